-- Tables about jobs. ${local} is the database on this node, ${engine X} the engine in its plain or replicated form,
-- ${settings} what every table needs for exactly-once inserts. Retention is set from the settings, not here. Every
-- statement can be repeated, because a migration that was cut short is run again from its first line.
--
-- Rows are ordered by minute first, so that a window reads few granules however long a job runs, and then by
-- communicator, so that one matrix reads one stretch. Neighbouring ranks start within jitter of each other:
-- Delta and T64('bit') before ZSTD store a time in 2.7 bytes where ZSTD alone needs 3.3.

CREATE TABLE IF NOT EXISTS ${local}.comms
(
    host           LowCardinality(String),
    job            LowCardinality(String),
    attempt        UInt16,
    comm           UInt64,
    name           LowCardinality(String),
    rank           UInt32 CODEC(Delta, ZSTD(1)),
    nranks         UInt32,
    nnodes         Nullable(UInt32),
    world_rank     Nullable(UInt32) CODEC(ZSTD(1)),
    pid            Nullable(UInt32),
    gpu            Nullable(UInt16),
    gpu_pci        LowCardinality(Nullable(String)),
    gpu_uuid       Nullable(String) CODEC(ZSTD(1)),
    nccl_version   LowCardinality(Nullable(String)),
    plugin_version LowCardinality(String),
    detail         LowCardinality(String),
    init_ns        Int64 CODEC(ZSTD(1)),
    destroy_ns     Nullable(Int64) CODEC(ZSTD(1)),
    version        Int64 MATERIALIZED ifNull(destroy_ns, init_ns)
)
ENGINE = ${engine ReplacingMergeTree version}
ORDER BY (job, attempt, comm, rank)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.connections
(
    host       LowCardinality(String),
    job        LowCardinality(String),
    attempt    UInt16,
    comm       Nullable(UInt64),
    rank       Nullable(UInt32),
    peer       Nullable(Int32),
    channel    Nullable(UInt16),
    direction  LowCardinality(String),
    transport  LowCardinality(String),
    proxy_rank Nullable(UInt32),
    nic        LowCardinality(Nullable(String)),
    local      String CODEC(ZSTD(1)),
    remote     String CODEC(ZSTD(1)),
    sport      Nullable(UInt16),
    lqpn       Nullable(UInt32),
    rqpn       Nullable(UInt32),
    source     LowCardinality(String),
    confidence Float64,
    seen_ns    Nullable(Int64) CODEC(ZSTD(1))
)
ENGINE = ${engine MergeTree}
ORDER BY (job, attempt, host, direction, transport, local, remote)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.collectives
(
    host       LowCardinality(String),
    job        LowCardinality(String),
    attempt    UInt16,
    comm       UInt64,
    func       LowCardinality(String),
    peer       Int32 CODEC(Delta, ZSTD(1)),
    seq        UInt64 CODEC(Delta, ZSTD(1)),
    replay     UInt32 CODEC(Delta, ZSTD(1)),
    seq_valid  Bool,
    captured   Bool,
    epoch      UInt16,
    rank       UInt32 CODEC(Delta, ZSTD(1)),
    algo       LowCardinality(String),
    proto      LowCardinality(String),
    dtype      LowCardinality(String),
    bytes      UInt64 CODEC(T64, ZSTD(1)),
    channels   Nullable(UInt8),
    enqueue_ns Int64 CODEC(Delta, T64('bit'), ZSTD(1)),
    start_ns   Nullable(Int64) CODEC(Delta, T64('bit'), ZSTD(1)),
    end_ns     Nullable(Int64) CODEC(Delta, T64('bit'), ZSTD(1)),
    clock      LowCardinality(String)
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(enqueue_ns, 86400000000000)
ORDER BY (job, attempt, intDiv(enqueue_ns, 60000000000), comm, func, seq, replay, rank)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.op_stats
(
    host       LowCardinality(String),
    job        LowCardinality(String),
    attempt    UInt16,
    comm       UInt64,
    func       LowCardinality(String),
    size_class UInt8,
    rank       UInt32 CODEC(Delta, ZSTD(1)),
    ts_ns      Int64 CODEC(Delta, ZSTD(1)),
    n          UInt32 CODEC(T64, ZSTD(1)),
    bytes      UInt64 CODEC(T64, ZSTD(1)),
    dur_sum_ns Int64 CODEC(T64('bit'), ZSTD(1)),
    dur_max_ns Int64 CODEC(T64('bit'), ZSTD(1)),
    gap_sum_ns Int64 CODEC(T64('bit'), ZSTD(1)),
    late_n     UInt32 CODEC(T64, ZSTD(1))
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(ts_ns, 86400000000000)
ORDER BY (job, attempt, intDiv(ts_ns, 60000000000), comm, func, size_class, ts_ns, rank)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.transfers
(
    host         LowCardinality(String),
    job          LowCardinality(String),
    attempt      UInt16,
    comm         UInt64,
    func         LowCardinality(String),
    seq          UInt64 CODEC(Delta, ZSTD(1)),
    replay       UInt32 CODEC(Delta, ZSTD(1)),
    epoch        UInt16,
    rank         UInt32 CODEC(Delta, ZSTD(1)),
    channel      UInt16 CODEC(Delta, ZSTD(1)),
    peer         Int32 CODEC(Delta, ZSTD(1)),
    direction    LowCardinality(String),
    transport    LowCardinality(Nullable(String)),
    nic          LowCardinality(Nullable(String)),
    sport        Nullable(UInt16) CODEC(ZSTD(1)),
    bytes        UInt64 CODEC(T64, ZSTD(1)),
    steps        UInt32 CODEC(T64, ZSTD(1)),
    detail       LowCardinality(String),
    gpu_wait_ns  Nullable(Int64) CODEC(T64('bit'), ZSTD(1)),
    peer_wait_ns Nullable(Int64) CODEC(T64('bit'), ZSTD(1)),
    wire_ns      Nullable(Int64) CODEC(T64('bit'), ZSTD(1)),
    flush_ns     Nullable(Int64) CODEC(T64('bit'), ZSTD(1)),
    first_ns     Int64 CODEC(Delta, T64('bit'), ZSTD(1)),
    last_ns      Int64 CODEC(Delta, T64('bit'), ZSTD(1))
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(first_ns, 86400000000000)
ORDER BY (job, attempt, intDiv(first_ns, 60000000000), comm, func, seq, replay, direction, channel, rank, peer)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.transfer_stats
(
    host         LowCardinality(String),
    job          LowCardinality(String),
    attempt      UInt16,
    comm         UInt64,
    func         LowCardinality(String),
    size_class   UInt8,
    rank         UInt32 CODEC(Delta, ZSTD(1)),
    channel      UInt16 CODEC(Delta, ZSTD(1)),
    peer         Int32 CODEC(Delta, ZSTD(1)),
    direction    LowCardinality(String),
    ts_ns        Int64 CODEC(Delta, ZSTD(1)),
    transport    LowCardinality(Nullable(String)),
    nic          LowCardinality(Nullable(String)),
    n            UInt32 CODEC(T64, ZSTD(1)),
    bytes        UInt64 CODEC(T64, ZSTD(1)),
    gpu_wait_ns  Nullable(Int64) CODEC(T64('bit'), ZSTD(1)),
    peer_wait_ns Nullable(Int64) CODEC(T64('bit'), ZSTD(1)),
    wire_ns      Nullable(Int64) CODEC(T64('bit'), ZSTD(1)),
    wire_max_ns  Nullable(Int64) CODEC(T64('bit'), ZSTD(1))
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(ts_ns, 86400000000000)
ORDER BY (job, attempt, intDiv(ts_ns, 60000000000), comm, direction, func, size_class, ts_ns, channel, rank, peer)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.step_samples
(
    host      LowCardinality(String),
    job       LowCardinality(String),
    attempt   UInt16,
    comm      UInt64,
    func      LowCardinality(String),
    seq       UInt64 CODEC(Delta, ZSTD(1)),
    replay    UInt32 CODEC(Delta, ZSTD(1)),
    epoch     UInt16,
    rank      UInt32 CODEC(Delta, ZSTD(1)),
    channel   UInt16 CODEC(Delta, ZSTD(1)),
    peer      Int32 CODEC(Delta, ZSTD(1)),
    direction LowCardinality(String),
    step      UInt32 CODEC(Delta, ZSTD(1)),
    nic       LowCardinality(Nullable(String)),
    sport     Nullable(UInt16) CODEC(ZSTD(1)),
    bytes     UInt64 CODEC(T64, ZSTD(1)),
    posted_ns Int64 CODEC(Delta, T64('bit'), ZSTD(1)),
    wire_ns   Int64 CODEC(Delta, T64('bit'), ZSTD(1)),
    done_ns   Int64 CODEC(Delta, T64('bit'), ZSTD(1))
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(posted_ns, 86400000000000)
ORDER BY (job, attempt, intDiv(posted_ns, 60000000000), comm, func, seq, replay, channel, direction, rank, peer, step)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.transits
(
    host       LowCardinality(String),
    job        LowCardinality(String),
    attempt    UInt16,
    comm       UInt64,
    func       LowCardinality(String),
    seq        UInt64 CODEC(Delta, ZSTD(1)),
    channel    UInt16 CODEC(Delta, ZSTD(1)),
    src_rank   UInt32 CODEC(Delta, ZSTD(1)),
    dst_rank   UInt32 CODEC(Delta, ZSTD(1)),
    src_nic    LowCardinality(Nullable(String)),
    dst_nic    LowCardinality(Nullable(String)),
    sport      Nullable(UInt16) CODEC(ZSTD(1)),
    bytes      UInt64 CODEC(T64, ZSTD(1)),
    transit_ns Int64 CODEC(T64('bit'), ZSTD(1)),
    skew_ns    Int64 CODEC(T64('bit'), ZSTD(1))
)
ENGINE = ${engine MergeTree}
ORDER BY (job, attempt, comm, func, seq, channel, src_rank, dst_rank)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.progress
(
    host           LowCardinality(String),
    job            LowCardinality(String),
    attempt        UInt16,
    comm           UInt64,
    rank           UInt32 CODEC(Delta, ZSTD(1)),
    func           LowCardinality(String),
    peer           Int32 CODEC(Delta, ZSTD(1)),
    ts_ns          Int64 CODEC(Delta, T64('bit'), ZSTD(1)),
    enqueued       UInt64 CODEC(Delta, ZSTD(1)),
    started        UInt64 CODEC(Delta, ZSTD(1)),
    done           UInt64 CODEC(Delta, ZSTD(1)),
    open_bytes     Nullable(UInt64) CODEC(T64, ZSTD(1)),
    open_dtype     LowCardinality(Nullable(String)),
    open_algo      LowCardinality(Nullable(String)),
    oldest_open_ns Nullable(Int64) CODEC(Delta, T64('bit'), ZSTD(1)),
    head_state     LowCardinality(String),
    head_peer      Nullable(Int32) CODEC(ZSTD(1)),
    head_channel   Nullable(UInt16) CODEC(ZSTD(1))
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(ts_ns, 86400000000000)
ORDER BY (job, attempt, intDiv(ts_ns, 60000000000), comm, func, peer, ts_ns, rank)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.steps
(
    host       LowCardinality(String),
    job        LowCardinality(String),
    attempt    UInt16,
    world_rank UInt32 CODEC(Delta, ZSTD(1)),
    step       UInt64 CODEC(Delta, ZSTD(1)),
    start_ns   Int64 CODEC(Delta, T64('bit'), ZSTD(1)),
    end_ns     Int64 CODEC(Delta, T64('bit'), ZSTD(1)),
    source     LowCardinality(String)
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(start_ns, 86400000000000)
ORDER BY (job, attempt, step, world_rank)
${settings};
