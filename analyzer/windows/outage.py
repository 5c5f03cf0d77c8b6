"""Whose telemetry was lost together, and which faults nobody would see therefore.

Hosts die one by one; many that fall silent at once share a path of our own.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analyzer.windows.jobs import Roster
from analyzer.windows.silence import HostReport
from analyzer.windows.window import Context, Finding
from lockstep.clock import NS_PER_S
from lockstep.topology import TopologyIndex, split_end
from lockstep.words import clock_time

_MOST = 0.5  # of the hosts of a job: more do not die within a few reports, and if they did the cause is no host
_FEWEST = 2  # one host that falls silent behind its own switch may well be gone
_NAMED = 16  # hosts in the evidence


@dataclass(frozen=True, slots=True)
class Outage:
    """Hosts whose telemetry ended together, and the part that they have in common."""

    hosts: frozenset[str]
    component: str
    others: tuple[str, ...] = ()  # parts that they have in common as well


def find_outages(context: Context) -> list[Outage]:
    """Return where the telemetry of most hosts, or of all behind one gateway or switch, ended at once.

    A host whose agent said that it ends is missed by nobody. Cost: O(hosts log hosts).
    """
    silent = {host: context.reports[host] for host in context.silent if host in context.reports}
    together = _find_together({host: report for host, report in silent.items() if not report.has_ended})
    if len(together) < _FEWEST:
        return []
    gateways = _name_behind("gateway", _hosts_by_gateway(context), together)
    if gateway := [name for hosts, names in gateways.items() if hosts == together for name in names]:
        return [Outage(together, gateway[0])]
    if len(together) > _MOST * len(context.roster.hosts):
        return [Outage(together, f"job:{context.job}")]
    behind = _hosts_behind(context.topology, context.roster.hosts) if context.topology else {}
    groups = _name_behind("switch", behind, together)
    if frozenset().union(*groups) != together:  # a switch does not silence hosts elsewhere
        return []
    return [Outage(hosts, first, tuple(others)) for hosts, (first, *others) in groups.items()]


def _name_behind(
    kind: str, behind: Mapping[str, frozenset[str]], together: frozenset[str]
) -> dict[frozenset[str], list[str]]:
    """Return what has only lost hosts behind it, by these hosts; on several rails they are behind several."""
    groups: dict[frozenset[str], list[str]] = defaultdict(list)
    for name, hosts in sorted(behind.items()):
        if len(hosts) >= _FEWEST and hosts <= together:
            groups[hosts].append(f"{kind}:{name}")
    return groups


def name_outage(outage: Outage, context: Context) -> Finding:
    """Return the finding that an outage is: of our own telemetry, and of no host."""
    since_ns = max(context.reports[host].reach_ns for host in outage.hosts)
    seconds = (context.window.end_ns - since_ns) / NS_PER_S
    count, named = len(outage.hosts), sorted(outage.hosts)[:_NAMED]
    return Finding(
        fault_class="telemetry_lost",
        component=outage.component,
        likelihood=0.9,
        reason=_say(outage, context, f"{count} of {len(context.roster.hosts)} hosts", clock_time(since_ns)),
        evidence=({"kind": "outage", "hosts": named, "count": count, "seconds": round(seconds, 3)},),
        ambiguous_with=outage.others,
        ranks_waiting=0,
        lost_share=0.0,
        since_ns=since_ns,
        is_certain=True,
    )


def _say(outage: Outage, context: Context, whose: str, since: str) -> str:
    sources = {context.reports[host].missing_source for host in outage.hosts}
    if None not in sources:
        which = ", ".join(sorted(filter(None, sources)))
        return f"no readings from {which} on {whose} since {since} UTC: their agents report, see what their logs say"
    kind, _, name = outage.component.partition(":")
    where = {"switch": f" behind {name}", "gateway": f" that send to the gateway at {name}"}.get(kind, "")
    path = "that gateway" if kind == "gateway" else "the gateway"
    return (
        f"no telemetry from {whose}{where} since {since} UTC, all at once: look at {path}, and at the network "
        "between it and them"
    )


def _find_together(reports: Mapping[str, HostReport]) -> frozenset[str]:
    """Return the largest group of hosts whose last words lie no further apart than their reports may."""
    if not reports:
        return frozenset()
    hosts = np.array(sorted(reports, key=lambda host: reports[host].reach_ns), object)
    reach_ns = np.array([reports[host].reach_ns for host in hosts])
    patience_ns = max(report.patience_ns for report in reports.values())
    first = np.searchsorted(reach_ns, reach_ns - patience_ns)
    last = int(np.argmax(np.arange(len(hosts)) - first))
    return frozenset(hosts[first[last] : last + 1].tolist())


def _hosts_behind(topology: TopologyIndex, hosts: frozenset[str]) -> dict[str, frozenset[str]]:
    """Return the hosts of a job by the switch that they are cabled to."""
    behind: dict[str, set[str]] = defaultdict(set)
    for host in hosts:
        for nic in topology.nics_of(host):
            if leaf := topology.leaf_of(host, nic.id):
                behind[leaf].add(host)
    return {leaf: frozenset(found) for leaf, found in behind.items()}


def _hosts_by_gateway(context: Context) -> dict[str, frozenset[str]]:
    """Return the hosts of a job by the gateway that they send to; one that only lacks readings gets through to it."""
    behind: dict[str, set[str]] = defaultdict(set)
    for host in context.roster.hosts & context.reports.keys():
        if (report := context.reports[host]).gateway and not report.has_ended:
            behind[report.gateway].add(host)
    speaking = {host for host, report in context.reports.items() if report.missing_source}
    return {gateway: frozenset(hosts) for gateway, hosts in behind.items() if not hosts & speaking}


def is_unseen(finding: Finding, parts: frozenset[str], context: Context) -> bool:
    """Return whether the hosts that would tell of a fault say nothing of it; `parts` are all that it may be.

    Lost telemetry is back when half of the hosts are that it was lost of. Of what belongs to no host, a link between
    switches or the whole job, all tell: as long as the telemetry of many is lost, nobody knows.
    """
    if finding.fault_class == "telemetry_lost":
        lost = {host for row in finding.evidence for host in row.get("hosts", ())}
        return 2 * len(lost & context.silent) > len(lost)
    hosts = _hosts_of_parts(parts, context.roster)
    return bool(hosts & (context.silent | context.idle) if hosts else context.lost)


def find_last_told(parts: frozenset[str], context: Context) -> tuple[str, HostReport] | None:
    """Return the host that says nothing of a fault for longest, with its report; None: none ever reported."""
    unseen = (context.silent | context.idle) & context.reports.keys()
    hosts = (_hosts_of_parts(parts, context.roster) or context.lost) & unseen
    found = ((host, context.reports[host]) for host in sorted(hosts))
    return min(found, key=lambda each: each[1].reach_ns, default=None)


def hosts_of(part: str) -> set[str]:
    """Return the hosts at the ends of a part; the names of switches and jobs, too, which are nobody's."""
    return {split_end(end)[0] for end in part.partition(":")[2].split("--")}


def _hosts_of_parts(parts: frozenset[str], roster: Roster) -> frozenset[str]:
    """Return the hosts of the job that some parts are on; none for a link between switches."""
    ranks = [int(name) for part in parts if (name := part.removeprefix("rank:")) != part and name.isdigit()]
    on_ranks = frozenset(roster.host_of[np.isin(roster.world_rank_of, ranks)].tolist())
    return (roster.hosts & set().union(*map(hosts_of, parts))) | on_ranks
