-- One row per attempt of a job: how large it is and when it was heard of first and last. A list of jobs read every
-- step and every minute there ever was; it reads this. Every rank that lives sends op_stats, so that a view over other
-- tables would cost an insert a second and tell nothing new; captures, which may lack them, are told when they are
-- loaded. Smallest and largest do not mind a row that comes twice: this file can be run again.
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

CREATE MATERIALIZED VIEW IF NOT EXISTS ${local}.attempts_by_op_stats TO ${local}.attempts AS
SELECT job, attempt, min(ts_ns) AS first_ns, max(ts_ns) AS last_ns
FROM ${local}.op_stats
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

-- Roll-ups outlive the raw rows that the view reads; they know minutes, so that any exact moment goes before theirs.
INSERT INTO ${local}.attempts (job, attempt, first_ns, last_ns)
SELECT job, attempt, (min(minute) + 1) * 60000000000, greatest(min(minute) + 1, max(minute)) * 60000000000
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
