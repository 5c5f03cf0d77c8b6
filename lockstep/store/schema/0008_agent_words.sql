-- What an agent says of itself: that it stops in order, where it sends to, and which sources give no readings.
ALTER TABLE ${local}.agents
    ADD COLUMN IF NOT EXISTS ended Nullable(Bool),
    ADD COLUMN IF NOT EXISTS gateway LowCardinality(Nullable(String)),
    ADD COLUMN IF NOT EXISTS stalled Map(LowCardinality(String), UInt64) CODEC(ZSTD(1));
