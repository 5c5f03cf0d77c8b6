-- Tables about hosts, NICs, GPUs, switch ports and paths; the placeholders are those of 0001.

CREATE TABLE IF NOT EXISTS ${local}.agents
(
    host           LowCardinality(String),
    ts_ns          Int64 CODEC(Delta, ZSTD(1)),
    version        LowCardinality(String),
    watermark_ns   Int64 CODEC(Delta, ZSTD(1)),
    dropped        UInt64 CODEC(Delta, ZSTD(1)),
    spool_bytes    UInt64 CODEC(T64, ZSTD(1)),
    cpu_ns         Int64 CODEC(Delta, ZSTD(1)),
    plugin_cost_ns Nullable(Int64) CODEC(ZSTD(1))
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(ts_ns, 86400000000000)
ORDER BY (host, ts_ns)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.clocks
(
    host      LowCardinality(String),
    ts_ns     Int64 CODEC(Delta, ZSTD(1)),
    offset_ns Int64 CODEC(T64('bit'), ZSTD(1)),
    error_ns  Int64 CODEC(T64('bit'), ZSTD(1)),
    source    LowCardinality(String)
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(ts_ns, 86400000000000)
ORDER BY (host, source, ts_ns)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.nic_counters
(
    host       LowCardinality(String),
    ts_ns      Int64 CODEC(Delta, ZSTD(1)),
    nic        LowCardinality(String),
    up         Bool,
    speed_mbps Nullable(UInt32) CODEC(ZSTD(1)),
    rx_bytes   UInt64 CODEC(Delta, ZSTD(1)),
    tx_bytes   UInt64 CODEC(Delta, ZSTD(1)),
    rx_errors  UInt64 CODEC(Delta, ZSTD(1)),
    tx_errors  UInt64 CODEC(Delta, ZSTD(1)),
    rx_drops   UInt64 CODEC(Delta, ZSTD(1)),
    tx_drops   UInt64 CODEC(Delta, ZSTD(1)),
    retrans    Nullable(UInt64) CODEC(ZSTD(1)),
    extra      Map(LowCardinality(String), UInt64) CODEC(ZSTD(1))
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(ts_ns, 86400000000000)
ORDER BY (host, nic, ts_ns)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.fabric_counters
(
    host            LowCardinality(String),
    ts_ns           Int64 CODEC(Delta, ZSTD(1)),
    switch          LowCardinality(String),
    port            LowCardinality(String),
    up              Bool,
    speed_mbps      Nullable(UInt32) CODEC(ZSTD(1)),
    rx_bytes        UInt64 CODEC(Delta, ZSTD(1)),
    tx_bytes        UInt64 CODEC(Delta, ZSTD(1)),
    errors          Nullable(UInt64) CODEC(ZSTD(1)),
    drops           Nullable(UInt64) CODEC(ZSTD(1)),
    pause_rx        Nullable(UInt64) CODEC(ZSTD(1)),
    pause_tx        Nullable(UInt64) CODEC(ZSTD(1)),
    fec_uncorrected Nullable(UInt64) CODEC(ZSTD(1)),
    extra           Map(LowCardinality(String), UInt64) CODEC(ZSTD(1))
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(ts_ns, 86400000000000)
ORDER BY (switch, port, ts_ns)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.gpu_health
(
    host          LowCardinality(String),
    ts_ns         Int64 CODEC(Delta, ZSTD(1)),
    gpu           UInt16,
    gpu_uuid      LowCardinality(String),
    sm_mhz        Nullable(UInt32) CODEC(ZSTD(1)),
    temp_c        Nullable(Float64) CODEC(ZSTD(1)),
    power_w       Nullable(Float64) CODEC(ZSTD(1)),
    throttle      LowCardinality(String),
    ecc_sbe       Nullable(UInt64) CODEC(ZSTD(1)),
    ecc_dbe       Nullable(UInt64) CODEC(ZSTD(1)),
    nvlink_errors Nullable(UInt64) CODEC(ZSTD(1)),
    pcie_replays  Nullable(UInt64) CODEC(ZSTD(1)),
    util          Nullable(Float64) CODEC(ZSTD(1))
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(ts_ns, 86400000000000)
ORDER BY (host, gpu, ts_ns)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.events
(
    host      LowCardinality(String),
    ts_ns     Int64 CODEC(Delta, ZSTD(1)),
    source    LowCardinality(String),
    kind      LowCardinality(String),
    component LowCardinality(String),
    severity  LowCardinality(String),
    message   String CODEC(ZSTD(3))
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(ts_ns, 86400000000000)
ORDER BY (host, ts_ns)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.probes
(
    host    LowCardinality(String),
    ts_ns   Int64 CODEC(Delta, ZSTD(1)),
    src_nic LowCardinality(String),
    dst     LowCardinality(String),
    dst_nic LowCardinality(String),
    proto   LowCardinality(String),
    sport   UInt16 CODEC(Delta, ZSTD(1)),
    dport   UInt16 CODEC(Delta, ZSTD(1)),
    rtt_ns  Nullable(Int64) CODEC(T64('bit'), ZSTD(1)),
    hops    Array(LowCardinality(String)) CODEC(ZSTD(1))
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(ts_ns, 86400000000000)
ORDER BY (host, dst, intDiv(ts_ns, 60000000000), src_nic, dst_nic, sport, ts_ns)
${settings};

CREATE TABLE IF NOT EXISTS ${local}.paths
(
    host       LowCardinality(String),
    src_nic    LowCardinality(String),
    dst        LowCardinality(Nullable(String)),
    dst_nic    LowCardinality(String),
    proto      LowCardinality(String),
    sport      UInt16 CODEC(Delta, ZSTD(1)),
    dport      UInt16 CODEC(Delta, ZSTD(1)),
    links      Array(LowCardinality(String)) CODEC(ZSTD(1)),
    seen_ns    Int64 CODEC(ZSTD(1)),
    confidence Float64
)
ENGINE = ${engine MergeTree}
PARTITION BY intDiv(seen_ns, 2592000000000000)
ORDER BY (host, src_nic, dst_nic, proto, sport, dport, seen_ns)
${settings};
