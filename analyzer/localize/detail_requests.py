"""What to ask of collectors so that the next evaluation can tell apart what this one could not: the cheapest first.

Between the two NICs of a slow pair, probes decide that go out through the one to somebody else, and come in through
the other from somebody else. Where no topology names NICs to probe, or the doubt is inside a host, every step of
the ranks on both hosts is recorded for a while; their past is asked for as well, because it is gone soon. Where a job
is slower and no part stands out, more operations of all its ranks are recorded by steps: the part may be one that the
usual few samples miss.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from analyzer.windows.window import Context, End, Finding
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S
from lockstep.topology import TopologyIndex, split_end

_LASTS_NS = 60 * NS_PER_S  # then the evaluation that asked is long over; whoever still doubts asks again
_FIRST_PORT, _PORTS, _COUNT = 33_000, 16, 4  # so many source ports, to meet most of the equal ways, so often each
_MOST_DETAIL_REQUESTS = 16  # of one evaluation: collectors have other things to do
_MOST_RANKS = 16  # of one request for detail
_MINUTES = 2.0  # in full, around a fault that just began
_JOB_SHARE = 0.25  # of all ranks' operations: one a second or more of each pair, at a quarter of what all would cost


def propose_detail_requests(findings: Iterable[Finding], context: Context) -> list[DetailRequest]:
    """Return what would settle the doubts in some findings; nothing where there is no doubt."""
    doubtful = [finding for finding in findings if _rivals(finding, context)]
    requests = [request for finding in doubtful for request in _settle(finding, context)]
    return list({request.id: request for request in requests}.values())[:_MOST_DETAIL_REQUESTS]


def propose_sampling(context: Context) -> list[DetailRequest]:
    """Return one request per host for more of the job's operations by steps, for a slowdown that nothing explains."""
    details = {"job": context.job, "level": "steps", "share": _JOB_SHARE}
    about = f"job:{context.job}"
    return [
        _detail_request("detail", host, about, details, context)
        for host in sorted(context.roster.hosts - context.silent)
    ]


def _rivals(finding: Finding, context: Context) -> list[str]:
    """Return what a finding is doubtful about; the cable of a NIC is none: whoever looks at one sees the other."""
    own = finding.component.partition(":")[2]
    rivals = [name for name in finding.ambiguous_with if own not in name and name.partition(":")[2] not in own]
    return rivals if finding.component.startswith("nic:") else list(finding.ambiguous_with)


def _settle(finding: Finding, context: Context) -> Iterator[DetailRequest]:
    ends = [end for name in (finding.component, *finding.ambiguous_with) for end in _ends(name)]
    nics = list(dict.fromkeys(end for end in ends if end.nic))
    if context.topology and len(nics) > 1:
        yield from _probes(nics, context.topology, context)
    else:
        yield from _details(sorted({end.host for end in ends}), finding, context)


def _ends(component: str) -> Iterator[End]:
    """Yield the ends that a component names: NICs, or hosts as a whole."""
    kind, _, name = component.partition(":")
    if kind in ("nic", "link"):
        yield from (End(*split_end(end)) for end in name.split("--") if "/" in end or kind == "nic")
    elif kind in ("host", "gpu", "nvlink", "pcie"):
        yield End(split_end(name)[0], None)


def _probes(nics: list[End], topology: TopologyIndex, context: Context) -> Iterator[DetailRequest]:
    """Yield probes through each suspected NIC, to and from hosts that nobody suspects."""
    suspected = {end.host for end in nics}
    for end in nics:
        for other in islice(_bystanders(end, suspected, topology, context), 1):
            yield _probe(end, other, context)
            yield _probe(other, end, context)


def _bystanders(end: End, suspected: set[str], topology: TopologyIndex, context: Context) -> Iterator[End]:
    """Yield NICs of other hosts of the job that a NIC can reach."""
    for host in sorted(context.roster.hosts - suspected - context.silent):
        for nic in topology.nics_of(host):
            if topology.links_between(end.host, end.nic or "", host, nic.id):
                yield End(host, nic.id)


def _probe(src: End, dst: End, context: Context) -> DetailRequest:
    details = {"src_nic": src.nic, "dst": dst.host, "dst_nic": dst.nic, "proto": "udp", "sport": _FIRST_PORT}
    return _detail_request("probe", src.host, f"{src}>{dst}", {**details, "ports": _PORTS, "count": _COUNT}, context)


def _details(hosts: list[str], finding: Finding, context: Context) -> Iterator[DetailRequest]:
    roster = context.roster
    for host in hosts:
        ranks = np.sort(roster.world_rank_of[(roster.host_of == host) & (roster.world_rank_of >= 0)])[:_MOST_RANKS]
        if len(ranks):
            whose = {"job": context.job, "ranks": ranks.tolist()}
            yield _detail_request(
                "detail", host, finding.component, {**whose, "level": "steps", "share": 1.0}, context
            )
            yield _detail_request("last_minutes", host, finding.component, {**whose, "minutes": _MINUTES}, context)


def _detail_request(kind: str, host: str, about: str, details: dict[str, object], context: Context) -> DetailRequest:
    # A collector does what it knows by name only once, so that whoever still doubts a minute later asks anew.
    minute = context.window.end_ns // _LASTS_NS
    return DetailRequest(
        id=f"{context.job}/{kind}/{host}/{about}/{minute}",
        host=host,
        kind=kind,
        details=details,
        expires_ns=context.window.end_ns + _LASTS_NS,
    )
