-- How the plugin of each process does: what it records, what that costs the job, what it could not keep.
CREATE TABLE IF NOT EXISTS ${local}.plugins
(
    host           LowCardinality(String),
    job            LowCardinality(String),
    attempt        UInt16,
    pid            UInt32,
    world_rank     Nullable(UInt32) CODEC(ZSTD(1)),
    local_ranks    Nullable(UInt32) CODEC(ZSTD(1)),
    ts_ns          Int64 CODEC(Delta, ZSTD(1)),
    version        LowCardinality(String),
    level          LowCardinality(String),
    lowered        LowCardinality(String),
    budget_ppm     UInt32 CODEC(ZSTD(1)),
    callback_ppm   UInt32 CODEC(ZSTD(1)),
    paid_ppm       Nullable(Int32) CODEC(ZSTD(1)),
    paid_error_ppm Nullable(UInt32) CODEC(ZSTD(1)),
    paid_pairs     UInt32 CODEC(ZSTD(1)),
    dear           Bool,
    refused_comms  UInt64 CODEC(ZSTD(1)),
    lost           UInt64 CODEC(ZSTD(1))
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(ts_ns, 86400000000000)
ORDER BY (job, attempt, ts_ns, host, pid)
${settings};
