-- What a second of a fleet costs the store, a fifth less. Rows of a second hardly fold: what their views grouped by hash
-- the engine sorts and folds anyway as it writes the part. A receiver does not know the wire, and every reader asks for
-- the sending side: a delay matrix over a long time has that one alone.
ALTER TABLE ${local}.wire_minutes_view MODIFY QUERY
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
    toUInt64(transfer_stats.n) AS n,
    bytes,
    wire_ns,
    wire_max_ns
FROM ${local}.transfer_stats
WHERE direction = 'send';

ALTER TABLE ${local}.rank_minutes_view MODIFY QUERY
SELECT
    job,
    attempt,
    intDiv(ts_ns, 60000000000) AS minute,
    comm,
    func,
    size_class,
    rank,
    toUInt64(op_stats.n) AS n,
    bytes,
    dur_sum_ns,
    dur_max_ns,
    gap_sum_ns
FROM ${local}.op_stats;

ALTER TABLE ${local}.sightings_by_gpu_health MODIFY QUERY
SELECT gpu_uuid, host, gpu, ts_ns AS first_ns, ts_ns AS last_ns
FROM ${local}.gpu_health
WHERE gpu_uuid != '';

-- Uncompressed bytes. A part with a file for each column costs forty syncs, and a merge of such parts a third more; 512
-- hosts fill the default of 10 MiB in a second.
ALTER TABLE ${local}.transfer_stats MODIFY SETTING min_bytes_for_wide_part = 134217728;
ALTER TABLE ${local}.progress MODIFY SETTING min_bytes_for_wide_part = 134217728;
ALTER TABLE ${local}.transfers MODIFY SETTING min_bytes_for_wide_part = 134217728;
ALTER TABLE ${local}.op_stats MODIFY SETTING min_bytes_for_wide_part = 134217728;
ALTER TABLE ${local}.collectives MODIFY SETTING min_bytes_for_wide_part = 134217728;
ALTER TABLE ${local}.wire_minutes MODIFY SETTING min_bytes_for_wide_part = 134217728;
