"""Which source port leads over which links: what probes have found, how sure that is, and what is no longer true.

An entry is good for one pair of NICs and one protocol, because switches hash addresses and ports together: what a
server under a leaf finds tells its neighbours which links live, not which port leads over them. Confidence follows
the rule of succession over probes that agreed in a row, halves with age, and is shared among parallel cables that a
probe cannot tell apart. Entries leave when their probes are lost, when a later probe took another path, and when a
link between their leaves changed: a switch that loses a next hop also moves flows that did not use it.

Cost: a loop over entries; probes are folded by the store, so that a row per probed port leaves it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import pyarrow as pa
from scipy.special import bdtrc

from lockstep.clock import NS_PER_S
from lockstep.records import Path
from lockstep.store.store import Store
from lockstep.topology import Link, Topology, TopologyIndex, count_hops, join_switches, split_end


class Changes:
    """Which entries a changed link makes doubtful: all between leaves that it lies between, whether they use it."""

    def __init__(self, topology: Topology, changed_ns: Mapping[str, int]) -> None:
        links = {link.id: tuple(split_end(end)[0] for end in (link.a, link.b)) for link in topology.links}
        self._index = TopologyIndex(topology)
        self._switches = join_switches(topology, is_intact=True)
        self._hops: dict[str, dict[str, int]] = {}  # distances of all switches from one
        self._between: dict[tuple[str | None, str | None], set[str]] = {}
        known = ((ts_ns, link, links[link]) for link, ts_ns in changed_ns.items() if link in links)
        self._changed = sorted(known, reverse=True)

    def since(self, path: Path) -> str:
        """Return a link that changed after an entry was seen, or nothing."""
        if not self._changed or self._changed[0][0] < path.seen_ns:
            return ""
        leaves = self._index.leaf_of(path.host, path.src_nic), self._index.leaf_of(str(path.dst), path.dst_nic)
        if leaves not in self._between:
            self._between[leaves] = {link for _, link, ends in self._changed if self._is_between(*leaves, *ends)}
        suspects = (link for ts_ns, link, _ in self._changed if ts_ns >= path.seen_ns)
        return next((link for link in suspects if link in self._between[leaves] or link in path.links), "")

    def _is_between(self, near: str | None, far: str | None, a: str, b: str) -> bool:
        """Return whether a link between two switches is on a shortest path between two leaves."""
        if near is None or far is None or not self._switches.has_edge(a, b):
            return False
        for node in (near, a, b):
            if node not in self._hops:
                self._hops[node] = count_hops(self._switches, node)
        hops, from_a, from_b = (self._hops[node] for node in (near, a, b))
        paths = ((from_a.get(near), from_b.get(far)), (from_b.get(near), from_a.get(far)))
        return any(x is not None and y is not None and x + 1 + y == hops.get(far) for x, y in paths)


KEY = ("host", "src_nic", "dst", "dst_nic", "proto", "sport", "dport")
FOLDED = (*KEY, "route", "agreed", "differing", "returned", "lost", "lost_since", "seen_ns", "tried_ns")
SILENT = "*"  # a hop that did not answer, as the collector writes it


Why = Literal["dead", "lossy", "changed", "old", "unclear", "elsewhere"]
Key = tuple[str, str, str, str, str, int, int]  # values of KEY


HALF_LIFE_S = 1800.0  # fabrics change some times a day: after half an hour unseen, belief is halved
MOST_AGE_S = 6 * 3600.0  # then it is below a thousandth in any case
_DEAD_LOSSES = 3  # in a row: with 1 % of loss that happens by chance once in a million
_ALLOWED_LOSS = 0.005  # of probes: they are policed by switches, so a few are lost on good paths
_LEAST_PROBES = 10  # losses come in bursts: of few probes, chance explains more than the binomial law has it
_LEAST_DOUBT = 1e-3  # probability below which so many losses are no chance


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A port that is known and not to be used, and why."""

    path: Path
    why: Why
    reason: str
    tried_ns: int  # when it was last probed, whether there was an answer or not


@dataclass(frozen=True)
class Catalogue:
    """What is known at a moment."""

    paths: tuple[Path, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True)
class Circumstances:
    """What else decides whether an entry is good."""

    topology: Topology
    now_ns: int
    changed_ns: Mapping[str, int] = field(default_factory=dict)  # when links last went up or down, by id


def recall_catalogue(rows: pa.Table, now: Circumstances) -> Catalogue:
    """Return what rows of `paths` are worth now; of one port the newest counts."""
    cables, changes = _Cables(now.topology), Changes(now.topology, now.changed_ns)
    newest = {key_of(path): path for path in map(_recall, rows.sort_by("seen_ns").to_pylist())}
    aged = [replace(path, confidence=path.confidence * _age(path.seen_ns, now)) for path in newest.values()]
    return _sort_out((path, _judge_path(path, cables, changes, now), path.seen_ns) for path in aged)


def build_catalogue(folded: pa.Table, now: Circumstances, reported: Catalogue | None = None) -> Catalogue:
    """Return what folded probes are worth now, beside what was told of other ports.

    Where parallel cables join two hops and what was told of the port names one of them, it is that one.
    """
    cables, changes = _Cables(now.topology), Changes(now.topology, now.changed_ns)
    known = {key_of(path): path for path in (reported.paths if reported else ())}
    entries: list[tuple[dict[str, Any], Path]] = []
    for row in folded.to_pylist():
        before = known.pop(_key(row), None)
        links, certainty = cables.find(row, before.links if before else ())
        known_of = {name: row[name] for name in (*KEY, "seen_ns")}
        confidence = _believe(row) * certainty * _age(row["seen_ns"], now)
        entries.append((row, Path(**known_of, links=[link.id for link in links], confidence=confidence)))
    lossy = _find_lossy(entries)
    judges = ((_judge_probes(row, path, lossy), row, path) for row, path in entries)
    found = _sort_out(
        (path, why or _judge_path(path, cables, changes, now), row["tried_ns"]) for why, row, path in judges
    )
    probed = {key_of(path) for _, path in entries}
    left = [each for each in (reported.left_out if reported else ()) if key_of(each.path) not in probed]
    paths = sorted((*found.paths, *known.values()), key=key_of)
    return Catalogue(tuple(paths), (*found.left_out, *left))


def doubt_changed(catalogue: Catalogue, now: Circumstances) -> Catalogue:
    """Return a catalogue without what changed links have made doubtful since it was built."""
    cables, changes = _Cables(now.topology), Changes(now.topology, now.changed_ns)
    again = _sort_out((path, _judge_path(path, cables, changes, now), path.seen_ns) for path in catalogue.paths)
    return Catalogue(again.paths, (*catalogue.left_out, *again.left_out))


_Judged = tuple[Why, str] | None


def key_of(path: Path) -> Key:
    """Return what an entry is about."""
    return path.host, path.src_nic, str(path.dst), path.dst_nic, path.proto, path.sport, path.dport


def _key(row: Mapping[str, Any]) -> Key:  # Any: values of a row
    host, src_nic, dst, dst_nic, proto, sport, dport = (row[name] for name in KEY)
    return host, src_nic, dst, dst_nic, proto, sport, dport


def _sort_out(judged: Iterable[tuple[Path, _Judged, int]]) -> Catalogue:
    in_order = sorted(judged, key=lambda each: key_of(each[0]))
    paths = tuple(path for path, why, _ in in_order if why is None)
    return Catalogue(paths, tuple(LeftOut(path, *why, tried_ns) for path, why, tried_ns in in_order if why))


def _believe(row: Mapping[str, Any]) -> float:
    """Return how likely the next packet takes this path, by the rule of succession."""
    against = min(row["differing"], row["returned"])  # it came back after others: it moves, or packets are sprayed
    return float((row["agreed"] + 1) / (row["agreed"] + against + 2))


def _age(seen_ns: int, now: Circumstances) -> float:
    """Return what is left of a belief after so long."""
    return float(0.5 ** (max(now.now_ns - seen_ns, 0) / NS_PER_S / HALF_LIFE_S))


def _find_lossy(entries: Sequence[tuple[Mapping[str, Any], Path]]) -> dict[tuple[str, ...], str]:
    """Return the paths between leaves that lose more probes than chance explains, all of their ports together.

    A port is probed rarely, its path by many; what is lost at a host spreads over all paths to it.
    """
    lost, sent = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for row, path in entries:
        path_links = _fabric_links(path)
        lost[path_links] += row["lost"]
        sent[path_links] += row["lost"] + row["agreed"]
    return {
        path_links: f"{lost[path_links]} of {sent[path_links]} probes were lost on its path"
        for path_links in lost
        if sent[path_links] >= _LEAST_PROBES
        and bdtrc(lost[path_links] - 1, sent[path_links], _ALLOWED_LOSS) < _LEAST_DOUBT
    }


def _fabric_links(path: Path) -> tuple[str, ...]:
    """Return the links between the leaves, inside one leaf the cables of the hosts."""
    return tuple(path.links[1:-1] or path.links)


def _judge_probes(row: Mapping[str, Any], path: Path, lossy: Mapping[tuple[str, ...], str]) -> _Judged:
    """Return why probes speak against an entry, or None."""
    if not row["route"]:
        return "unclear", "not every switch on its path answered"
    if row["lost_since"] >= _DEAD_LOSSES or not row["agreed"]:
        return "dead", f"its last {row['lost_since']} probes were lost"
    if reason := lossy.get(_fabric_links(path)):
        return "lossy", reason
    return None


def _judge_path(path: Path, cables: "_Cables", changes: Changes, now: Circumstances) -> _Judged:
    """Return why the fabric or the time speaks against an entry, or None."""
    if not path.links or not cables.is_up.keys() >= set(path.links):
        return "elsewhere", "its hops are not joined in this topology"
    if down := [link for link in path.links if not cables.is_up[link]]:
        return "dead", f"{down[0]} is down"
    if link := changes.since(path):
        return "changed", f"{link} changed after it was probed"
    if now.now_ns - path.seen_ns > MOST_AGE_S * NS_PER_S:
        return "old", f"it was last seen {(now.now_ns - path.seen_ns) / NS_PER_S:.0f} s ago"
    return None


def _recall(row: Mapping[str, Any]) -> Path:
    """Return a row as an entry; its destination may be in the name of the NIC."""
    host, slash, nic = row["dst_nic"].partition("/")
    ends = {"dst": host, "dst_nic": nic} if slash else {}
    return Path(**{**row, **ends})


class _Cables:
    """The links that join the hops of routes."""

    def __init__(self, topology: Topology) -> None:
        self._joined: dict[tuple[str, str], list[Link]] = defaultdict(list)
        self.is_up = {link.id: link.up for link in topology.links}
        hosts = {host.id for host in topology.hosts}
        for link in topology.links:
            a, b = (end if split_end(end)[0] in hosts else split_end(end)[0] for end in (link.a, link.b))
            self._joined[a, b].append(link)
            self._joined[b, a].append(link)

    def find(self, row: Mapping[str, Any], reported: Sequence[str]) -> tuple[list[Link], float]:
        """Return the links of a route and how certain that is; none where two of its hops are not joined.

        Of parallel cables, all that are up are equally likely, and the first one stands for them.
        """
        links, certainty = [], 1.0
        hops = [f"{row['host']}/{row['src_nic']}", *row["route"], f"{row['dst']}/{row['dst_nic']}"]
        for joint in pairwise(hops):
            cables = self._joined.get(joint, [])
            if len(cables) > 1:
                alive = [cable for cable in cables if cable.up] or cables
                cables = [cable for cable in cables if cable.id in reported] or alive
            if not cables:
                return [], 0.0
            links.append(cables[0])
            certainty /= len(cables)
        return links, certainty


MOST_PORTS = 1_000_000  # probed ports: 2,000 for each of 500 pairs of leaves; about 200 MB
_INSIDE = "ts_ns >= {start:Int64} AND ts_ns < {end:Int64}"
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
