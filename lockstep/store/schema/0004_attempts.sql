-- One row per attempt of a job: how large it is and when it was heard of first and last. A list of jobs read every
-- step and every minute there ever was; it reads this. Smallest and largest do not mind a row that comes twice, so
-- what is there already is told again below however often this file is run.
CREATE TABLE IF NOT EXISTS ${local}.attempts
(
    job          LowCardinality(String),
    attempt      UInt16,
    ranks        SimpleAggregateFunction(max, UInt64),
    hosts        AggregateFunction(uniqExact, String),
    nccl_version SimpleAggregateFunction(max, Nullable(String)),
    first_ns     SimpleAggregateFunction(min, Int64),
    last_ns      SimpleAggregateFunction(max, Int64)
)
ENGINE = ${engine AggregatingMergeTree}
ORDER BY (job, attempt)
${settings};

CREATE MATERIALIZED VIEW IF NOT EXISTS ${local}.attempts_by_comms TO ${local}.attempts AS
SELECT
    job,
    attempt,
    toUInt64(greatest(max(nranks), ifNull(max(world_rank), 0) + 1)) AS ranks,
    uniqExactState(toString(host)) AS hosts,
    max(toNullable(toString(comms.nccl_version))) AS nccl_version,
    min(init_ns) AS first_ns,
    max(greatest(init_ns, ifNull(destroy_ns, 0))) AS last_ns
FROM ${local}.comms
GROUP BY job, attempt;

CREATE MATERIALIZED VIEW IF NOT EXISTS ${local}.attempts_by_steps TO ${local}.attempts AS
SELECT job, attempt, toUInt64(max(world_rank) + 1) AS ranks, min(start_ns) AS first_ns, max(end_ns) AS last_ns
FROM ${local}.steps
GROUP BY job, attempt;

CREATE MATERIALIZED VIEW IF NOT EXISTS ${local}.attempts_by_op_stats TO ${local}.attempts AS
SELECT job, attempt, min(ts_ns) AS first_ns, max(ts_ns) AS last_ns
FROM ${local}.op_stats
GROUP BY job, attempt;

CREATE MATERIALIZED VIEW IF NOT EXISTS ${local}.attempts_by_collectives TO ${local}.attempts AS
SELECT job, attempt, min(enqueue_ns) AS first_ns, max(ifNull(end_ns, enqueue_ns)) AS last_ns
FROM ${local}.collectives
GROUP BY job, attempt;

INSERT INTO ${local}.attempts
SELECT
    job,
    attempt,
    toUInt64(greatest(max(nranks), ifNull(max(world_rank), 0) + 1)),
    uniqExactState(toString(host)),
    max(toNullable(toString(comms.nccl_version))),
    min(init_ns),
    max(greatest(init_ns, ifNull(destroy_ns, 0)))
FROM ${local}.comms
GROUP BY job, attempt;

INSERT INTO ${local}.attempts (job, attempt, ranks, first_ns, last_ns)
SELECT job, attempt, toUInt64(max(world_rank) + 1), min(start_ns), max(end_ns)
FROM ${local}.steps
GROUP BY job, attempt;

-- Roll-ups outlive the raw rows that the views read.
INSERT INTO ${local}.attempts (job, attempt, first_ns, last_ns)
SELECT job, attempt, min(minute) * 60000000000, max(minute) * 60000000000
FROM (
    SELECT job, attempt, minute FROM ${local}.rank_minutes
    UNION ALL
    SELECT job, attempt, minute FROM ${local}.operations
)
GROUP BY job, attempt;

-- Tables in one piece: a part is never all old, so dropping only whole parts kept their rows for good.
ALTER TABLE ${local}.comms MODIFY SETTING ttl_only_drop_parts = 0;
ALTER TABLE ${local}.connections MODIFY SETTING ttl_only_drop_parts = 0;
ALTER TABLE ${local}.transits MODIFY SETTING ttl_only_drop_parts = 0;
ALTER TABLE ${local}.attempts MODIFY SETTING ttl_only_drop_parts = 0;
