-- One row per GPU and place: from when to when it was there. Readings come every few seconds and are kept for a
-- quarter; where a GPU has been is asked by its UUID, of which they are not in order.
CREATE TABLE IF NOT EXISTS ${local}.sightings
(
    gpu_uuid String,
    host     LowCardinality(String),
    gpu      UInt16,
    first_ns SimpleAggregateFunction(min, Int64),
    last_ns  SimpleAggregateFunction(max, Int64)
)
ENGINE = ${engine AggregatingMergeTree}
ORDER BY (gpu_uuid, host, gpu)
${settings};

CREATE MATERIALIZED VIEW IF NOT EXISTS ${local}.sightings_by_comms TO ${local}.sightings AS
SELECT
    assumeNotNull(comms.gpu_uuid) AS gpu_uuid,
    host,
    assumeNotNull(comms.gpu) AS gpu,
    min(init_ns) AS first_ns,
    max(greatest(init_ns, ifNull(destroy_ns, 0))) AS last_ns
FROM ${local}.comms
WHERE comms.gpu_uuid IS NOT NULL AND comms.gpu IS NOT NULL
GROUP BY gpu_uuid, host, gpu;

CREATE MATERIALIZED VIEW IF NOT EXISTS ${local}.sightings_by_gpu_health TO ${local}.sightings AS
SELECT gpu_uuid, host, gpu, min(ts_ns) AS first_ns, max(ts_ns) AS last_ns
FROM ${local}.gpu_health
WHERE gpu_uuid != ''
GROUP BY gpu_uuid, host, gpu;

INSERT INTO ${local}.sightings
SELECT assumeNotNull(gpu_uuid), host, assumeNotNull(gpu), min(init_ns), max(greatest(init_ns, ifNull(destroy_ns, 0)))
FROM ${local}.comms
WHERE gpu_uuid IS NOT NULL AND gpu IS NOT NULL
GROUP BY gpu_uuid, host, gpu;

INSERT INTO ${local}.sightings
SELECT gpu_uuid, host, gpu, min(ts_ns), max(ts_ns)
FROM ${local}.gpu_health
WHERE gpu_uuid != ''
GROUP BY gpu_uuid, host, gpu;

ALTER TABLE ${local}.sightings MODIFY SETTING ttl_only_drop_parts = 0;
