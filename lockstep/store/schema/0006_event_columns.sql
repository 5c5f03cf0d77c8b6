-- Which process an event is about, and how it ended, as columns: nobody reads them out of the message.
ALTER TABLE ${local}.events
    ADD COLUMN IF NOT EXISTS rank Nullable(UInt32),
    ADD COLUMN IF NOT EXISTS pid Nullable(UInt32),
    ADD COLUMN IF NOT EXISTS signal Nullable(UInt8),
    ADD COLUMN IF NOT EXISTS exit_code Nullable(Int32),
    ADD COLUMN IF NOT EXISTS detail Nullable(String) CODEC(ZSTD(3));
