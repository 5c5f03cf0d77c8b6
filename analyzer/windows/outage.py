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
from lockstep.topology import TopologyIndex, split_end, switch_name
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
    """Return where the telemetry of most hosts, or of all behind one switch, ended at once.

    Cost: O(hosts log hosts).
    """
    reports = {host: context.reports[host] for host in context.silent if host in context.reports}
    together = _find_together(reports)
    if len(together) < _FEWEST:
        return []
    if len(together) > _MOST * len(context.roster.hosts):
        return [Outage(together, f"job:{context.job}")]
    behind = _hosts_behind(context.topology, context.roster.hosts) if context.topology else {}
    switches = [each for each, hosts in sorted(behind.items()) if len(hosts) >= _FEWEST and hosts <= together]
    groups: dict[frozenset[str], list[str]] = defaultdict(list)  # hosts on several rails are behind several switches
    for switch in switches:
        groups[behind[switch]].append(switch_name(switch))
    return [Outage(hosts, first, tuple(others)) for hosts, (first, *others) in groups.items()]


def name_outage(outage: Outage, context: Context) -> Finding:
    """Return the finding that an outage is: of our own telemetry, and of no host."""
    since_ns = max(context.reports[host].reach_ns for host in outage.hosts)
    seconds = (context.window.end_ns - since_ns) / NS_PER_S
    count, named = len(outage.hosts), sorted(outage.hosts)[:_NAMED]
    kind, _, name = outage.component.partition(":")
    where = f" behind {name}" if kind == "switch" else ""
    return Finding(
        fault_class="telemetry_lost",
        component=outage.component,
        likelihood=0.9,
        reason=f"no telemetry from {count} of {len(context.roster.hosts)} hosts{where} since "
        f"{clock_time(since_ns)} UTC, all at once: look at the gateway, and at the network between it and them",
        evidence=({"kind": "outage", "hosts": named, "count": count, "seconds": round(seconds, 3)},),
        ambiguous_with=outage.others,
        ranks_waiting=0,
        lost_share=0.0,
        since_ns=since_ns,
        is_certain=True,
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


def is_unseen(finding: Finding, parts: frozenset[str], context: Context) -> bool:
    """Return whether the hosts that would tell of a fault are silent; `parts` are all that it may be.

    Lost telemetry is back when half of the hosts are that it was lost of. Of what belongs to no host, a link between
    switches or the whole job, all tell: as long as the telemetry of many is lost, nobody knows.
    """
    if finding.fault_class == "telemetry_lost":
        lost = {host for row in finding.evidence for host in row.get("hosts", ())}
        return 2 * len(lost & context.silent) > len(lost)
    hosts = _hosts_of_parts(parts, context.roster)
    return bool(hosts & context.silent if hosts else context.lost)


def find_last_told(parts: frozenset[str], context: Context) -> int | None:
    """Return up to when the silent hosts of a fault told anything; None: they never reported."""
    hosts = (_hosts_of_parts(parts, context.roster) or context.lost) & context.silent & context.reports.keys()
    return min((context.reports[host].reach_ns for host in hosts), default=None)


def hosts_of(part: str) -> set[str]:
    """Return the hosts at the ends of a part; the names of switches and jobs, too, which are nobody's."""
    return {split_end(end)[0] for end in part.partition(":")[2].split("--")}


def _hosts_of_parts(parts: frozenset[str], roster: Roster) -> frozenset[str]:
    """Return the hosts of the job that some parts are on; none for a link between switches."""
    ranks = [int(name) for part in parts if (name := part.removeprefix("rank:")) != part and name.isdigit()]
    on_ranks = frozenset(roster.host_of[np.isin(roster.world_rank_of, ranks)].tolist())
    return (roster.hosts & set().union(*map(hosts_of, parts))) | on_ranks
