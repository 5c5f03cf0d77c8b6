-- Roll-ups that outlive the raw rows. A view writes partial states as rows come in and the engine merges them
-- later, so a reader always groups once more: SELECT ..., sum(n) ... GROUP BY. They carry the same deduplication
-- window as the raw tables; without it a repeated insert would be dropped there and counted twice here.

-- One row per operation of a communicator: who arrived first, who last, who ran longest.
CREATE TABLE IF NOT EXISTS ${local}.operations
(
    job       LowCardinality(String),
    attempt   UInt16,
    minute    Int64,
    comm      UInt64,
    func      LowCardinality(String),
    seq       UInt64 CODEC(Delta, ZSTD(1)),
    replay    UInt32 CODEC(Delta, ZSTD(1)),
    epoch     UInt16,
    n         SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    bytes     SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1)),
    first_ns  SimpleAggregateFunction(min, Nullable(Int64)) CODEC(Delta, ZSTD(1)),
    last_ns   SimpleAggregateFunction(max, Nullable(Int64)) CODEC(Delta, ZSTD(1)),
    last_rank AggregateFunction(argMax, UInt32, Nullable(Int64)) CODEC(ZSTD(1)),
    end_ns    SimpleAggregateFunction(max, Nullable(Int64)) CODEC(Delta, ZSTD(1))
)
ENGINE = ${engine AggregatingMergeTree}
PARTITION BY intDiv(minute, 1440)
ORDER BY (job, attempt, minute, comm, func, seq, replay, epoch)
${settings};

CREATE MATERIALIZED VIEW IF NOT EXISTS ${local}.operations_view TO ${local}.operations AS
SELECT
    job,
    attempt,
    intDiv(enqueue_ns, 60000000000) AS minute,
    comm,
    func,
    seq,
    replay,
    epoch,
    count() AS n,
    max(bytes) AS bytes,
    min(start_ns) AS first_ns,
    max(start_ns) AS last_ns,
    argMaxState(rank, start_ns) AS last_rank,
    max(end_ns) AS end_ns
FROM ${local}.collectives
WHERE peer = -1
GROUP BY job, attempt, minute, comm, func, seq, replay, epoch;

-- One row per rank, function and size class and minute.
CREATE TABLE IF NOT EXISTS ${local}.rank_minutes
(
    job        LowCardinality(String),
    attempt    UInt16,
    minute     Int64,
    comm       UInt64,
    func       LowCardinality(String),
    size_class UInt8,
    rank       UInt32 CODEC(Delta, ZSTD(1)),
    n          SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    bytes      SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    dur_sum_ns SimpleAggregateFunction(sum, Int64) CODEC(T64('bit'), ZSTD(1)),
    dur_max_ns SimpleAggregateFunction(max, Int64) CODEC(T64('bit'), ZSTD(1)),
    gap_sum_ns SimpleAggregateFunction(sum, Int64) CODEC(T64('bit'), ZSTD(1))
)
ENGINE = ${engine AggregatingMergeTree}
PARTITION BY intDiv(minute, 43200)
ORDER BY (job, attempt, minute, comm, func, size_class, rank)
${settings};

CREATE MATERIALIZED VIEW IF NOT EXISTS ${local}.rank_minutes_view TO ${local}.rank_minutes AS
SELECT
    job,
    attempt,
    intDiv(ts_ns, 60000000000) AS minute,
    comm,
    func,
    size_class,
    rank,
    sum(n) AS n,
    sum(bytes) AS bytes,
    sum(dur_sum_ns) AS dur_sum_ns,
    max(dur_max_ns) AS dur_max_ns,
    sum(gap_sum_ns) AS gap_sum_ns
FROM ${local}.op_stats
GROUP BY job, attempt, minute, comm, func, size_class, rank;

-- One row per pair of ranks, channel and minute: the delay matrix over a long time.
CREATE TABLE IF NOT EXISTS ${local}.wire_minutes
(
    host        LowCardinality(String),
    job         LowCardinality(String),
    attempt     UInt16,
    minute      Int64,
    comm        UInt64,
    rank        UInt32 CODEC(Delta, ZSTD(1)),
    channel     UInt16 CODEC(Delta, ZSTD(1)),
    peer        Int32 CODEC(Delta, ZSTD(1)),
    direction   LowCardinality(String),
    nic         LowCardinality(String),
    n           SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    bytes       SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    wire_ns     SimpleAggregateFunction(sum, Nullable(Int64)) CODEC(T64('bit'), ZSTD(1)),
    wire_max_ns SimpleAggregateFunction(max, Nullable(Int64)) CODEC(T64('bit'), ZSTD(1))
)
ENGINE = ${engine AggregatingMergeTree}
PARTITION BY intDiv(minute, 43200)
ORDER BY (job, attempt, minute, comm, direction, channel, rank, peer, nic, host)
${settings};

CREATE MATERIALIZED VIEW IF NOT EXISTS ${local}.wire_minutes_view TO ${local}.wire_minutes AS
SELECT
    host,
    job,
    attempt,
    intDiv(ts_ns, 60000000000) AS minute,
    comm,
    rank,
    channel,
    peer,
    direction,
    ifNull(transfer_stats.nic, '') AS nic,
    sum(n) AS n,
    sum(bytes) AS bytes,
    sum(wire_ns) AS wire_ns,
    max(wire_max_ns) AS wire_max_ns
FROM ${local}.transfer_stats
GROUP BY host, job, attempt, minute, comm, rank, channel, peer, direction, nic;
