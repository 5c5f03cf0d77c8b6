"""Reads what the path planner needs from the store: who sends how much, and what probes found.

Sums are the store's work: what leaves it is a row per connection or per probed port.
"""

import pyarrow as pa

from lockstep.store.store import Store
from lockstep.topology import TopologyIndex
from planner.paths.catalogue import (
    FOLDED,
    KEY,
    MOST_AGE_S,
    SILENT,
    Catalogue,
    Circumstances,
    build_catalogue,
    recall_catalogue,
)
from planner.paths.demand import KEY as CONNECTION
from planner.paths.demand import SUMS, DemandFacts

MOST_SENDS = 1_000_000  # ends of connections: an all-to-all of 700 ranks; about 200 MB while flows are made of them
MOST_PORTS = 1_000_000  # probed ports: 2,000 for each of 500 pairs of leaves; about as much

_INSIDE = "ts_ns >= {start:Int64} AND ts_ns < {end:Int64}"
_WHO = "job, attempt, comm, rank"
_SUMS = f"""
SELECT {", ".join(CONNECTION)}, direction, sum(bytes) AS moved, uniqExact(ts_ns) AS seconds, sum(wire_ns) AS wire,
       argMax(host, ts_ns) AS last_host, argMax(nic, ts_ns) AS last_nic, argMax(transport, ts_ns) AS last_transport,
       max(ts_ns) AS last_ns
FROM transfer_stats WHERE {_INSIDE} AND peer >= 0 AND bytes > 0
GROUP BY {", ".join(CONNECTION)}, direction ORDER BY moved DESC, {", ".join(CONNECTION)}, direction
LIMIT {{most:UInt64}}
"""
# Only of jobs that sent something: others have nothing to plan, and the tables keep weeks of them.
_ACTIVE = f"(job, attempt) IN (SELECT DISTINCT job, attempt FROM transfer_stats WHERE {_INSIDE})"
_MEMBERS = f"""
SELECT {_WHO}, argMax(host, init_ns) AS last_host, max(init_ns) AS made_ns
FROM comms WHERE {_ACTIVE} GROUP BY {_WHO} ORDER BY {_WHO}
"""
_CONNECTIONS = f"""
SELECT job, attempt, comm, rank, peer, channel, direction, transport, nic, local, remote, sport, lqpn, rqpn,
       max(confidence) AS certainty, max(seen_ns) AS last_ns
FROM connections WHERE {_ACTIVE}
GROUP BY job, attempt, comm, rank, peer, channel, direction, transport, nic, local, remote, sport, lqpn, rqpn
"""
_WHOLE = f"notEmpty(hops) AND NOT has(hops, '{SILENT}')"
_VALID = f"rtt_ns IS NOT NULL AND {_WHOLE}"
_ROUTES = f"""
SELECT {", ".join(KEY)}, argMaxIf(hops, (rtt_ns IS NOT NULL, ts_ns, hops), {_WHOLE}) AS newest,
       maxIf(ts_ns, rtt_ns IS NOT NULL) AS answered_ns, max(ts_ns) AS tried
FROM probes WHERE {_INSIDE} GROUP BY {", ".join(KEY)} ORDER BY tried DESC, {", ".join(KEY)} LIMIT {{most:UInt64}}
"""
# Since when the newest route holds is known only with that route at hand, so the probes are gone through again.
_MOVED = f"""
SELECT {", ".join(KEY)}, any(newest) AS route, any(answered_ns) AS answer, any(tried) AS tried_ns,
       maxIf(ts_ns, {_VALID} AND hops != newest) AS moved_ns
FROM probes INNER JOIN ({_ROUTES}) AS routes USING ({", ".join(KEY)})
WHERE {_INSIDE} GROUP BY {", ".join(KEY)}
"""
_FOLDED = f"""
SELECT {", ".join(KEY)}, any(route) AS way, countIf({_VALID} AND hops = route AND ts_ns > moved_ns) AS agreed,
       countIf({_VALID} AND hops != route) AS differing,
       countIf({_VALID} AND hops = route AND ts_ns <= moved_ns) AS returned,
       arrayCount(at -> at > minIf(ts_ns, {_VALID} AND hops = route AND ts_ns > moved_ns),
                  groupArrayIf(ts_ns, rtt_ns IS NULL)) AS lost,
       countIf(rtt_ns IS NULL AND ts_ns > answer) AS lost_since,
       maxIf(ts_ns, {_VALID} AND hops = route) AS seen_ns, any(tried_ns) AS last_try
FROM probes INNER JOIN ({_MOVED}) AS moved USING ({", ".join(KEY)})
WHERE {_INSIDE} GROUP BY {", ".join(KEY)} ORDER BY {", ".join(KEY)}
"""
_PATHS = """
SELECT host, src_nic, if(dst IS NULL OR dst = '', splitByChar('/', dst_nic)[1], assumeNotNull(dst)) AS far,
       if(position(dst_nic, '/') > 0, splitByChar('/', dst_nic)[2], dst_nic) AS far_nic, proto, sport, dport,
       argMax(links, (seen_ns, confidence)) AS way, max(seen_ns) AS last_ns,
       argMax(confidence, (seen_ns, confidence)) AS certainty
FROM paths WHERE seen_ns >= {start:Int64} AND seen_ns < {end:Int64}
GROUP BY host, src_nic, far, far_nic, proto, sport, dport ORDER BY last_ns DESC LIMIT {most:UInt64}
"""


def read_demand(store: Store, topology: TopologyIndex, start_ns: int, end_ns: int) -> DemandFacts:
    """Return what all jobs sent from one whole second to another, and what is known of their connections."""
    window = {"start": start_ns, "end": end_ns}
    sums = store.query(_SUMS, {**window, "most": MOST_SENDS + 1}).rename_columns([*CONNECTION, *SUMS])
    names = [*CONNECTION, "direction", "transport", "nic", "local", "remote", "sport", "lqpn", "rqpn"]
    return DemandFacts(
        members=store.query(_MEMBERS, window).rename_columns(["job", "attempt", "comm", "rank", "host", "init_ns"]),
        connections=store.query(_CONNECTIONS, window).rename_columns([*names, "confidence", "seen_ns"]),
        sums=sums.slice(0, MOST_SENDS),
        start_ns=start_ns,
        end_ns=end_ns,
        topology=topology,
        notes=(
            (f"more than {MOST_SENDS} ends of connections sent or received; only the largest are looked at",)
            if sums.num_rows > MOST_SENDS
            else ()
        ),
    )


def read_probes(store: Store, start_ns: int, end_ns: int) -> pa.Table:
    """Return one row per port: its newest route, and how the probes of a time bear it out.

    `agreed` probes took it since one last took another, of which there were `differing`; before that `returned` took
    it already. Of the probes since the first that agreed `lost` were lost, `lost_since` at the end. A port that never
    answered has the route that its lost probes seem to have taken. Of too many ports those tried last are kept.
    """
    rows = store.query(_FOLDED, {"start": start_ns, "end": end_ns, "most": MOST_PORTS})
    return rows.rename_columns(list(FOLDED))


def read_paths(store: Store, start_ns: int, end_ns: int) -> pa.Table:
    """Return the newest row of `paths` for each port; of too many ports those seen last."""
    rows = store.query(_PATHS, {"start": start_ns, "end": end_ns, "most": MOST_PORTS})
    return rows.rename_columns([*KEY, "links", "seen_ns", "confidence"])


def read_catalogue(store: Store, now: Circumstances) -> Catalogue:
    """Return the catalogue as it is now, from all that was seen while entries are believed."""
    start_ns = now.now_ns - int(MOST_AGE_S * 1e9)
    reported = recall_catalogue(read_paths(store, start_ns, now.now_ns), now)
    return build_catalogue(read_probes(store, start_ns, now.now_ns), now, reported)
