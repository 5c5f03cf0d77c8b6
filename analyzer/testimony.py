"""Whose word a finding rests on: one host alone condemns no other, and where two claim a rank nobody is sure.

The gateway sees to it that a host speaks for its own parts and ranks only (api/ingest). What is left to a host that
lies is what it says of others by its own rows: that it waits for them, or that they are slow.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from analyzer.windows.outage import hosts_of
from analyzer.windows.window import Context, Finding
from lockstep.clock import NS_PER_S
from lockstep.records import CLAIMED_TWICE
from lockstep.store.store import Store
from lockstep.topology import lies_on

_FEWEST_WITNESSES = 2
# What the kernel or the management plane of the accused host says itself. Its silence is none: an agent may have died
# on a host that is well, while another host says that it waits for it.
_OWN_WORD = frozenset({"xid", "sxid", "gpu_lost", "link_down", "gpu_health", "gpu_counter"})
_DOUBT_CAP = 0.8  # below what any action without a person asks for (planner.limits)
_LOOKBACK_NS = 30 * 86_400 * NS_PER_S  # longer than attempts last
_MOST_TOLD = 4
_SECOND_CLAIMS = """
SELECT kind, host, ts_ns, message FROM events
WHERE kind = {kind:String} AND source = 'gateway' AND ts_ns >= {start:Int64} AND ts_ns < {end:Int64}
    AND JSONExtractString(ifNull(detail, ''), 'job') = {job:String}
    AND JSONExtractUInt(ifNull(detail, ''), 'attempt') = {attempt:UInt16}
ORDER BY ts_ns, host, message LIMIT {most:UInt32}
"""

Claims = tuple[dict[str, Any], ...]  # Any: evidence, as in a Finding


def has_witnesses(finding: Finding, context: Context) -> bool:
    """Return whether a finding rests on the word of two hosts that speak, or on that of the accused one's own kernel.

    Rows that a silent host sent before are no word of what is now.
    """
    if any(_is_own_word(row, finding.component) for row in finding.evidence):
        return True
    told_by = {host for row in finding.evidence for host in row.get("told_by", ())}
    return len((told_by or context.roster.hosts) - context.silent) >= _FEWEST_WITNESSES


def coverage_about(finding: Finding, context: Context) -> float:
    """Return the share of the hosts that was seen of those that can tell of a part: a dead host tells of nothing."""
    return context.coverage_beside(context.silent & context.roster.hosts & hosts_of(finding.component))


def _is_own_word(row: dict[str, Any], component: str) -> bool:  # Any: as in a Finding
    return row.get("kind") in _OWN_WORD and ("host" not in row or lies_on(component, str(row["host"])))


def read_second_claims(store: Store, context: Context) -> Claims:
    """Return what the gateway told of hosts that claim a rank of the job which another host holds."""
    end_ns = context.window.end_ns
    asked = {"kind": CLAIMED_TWICE, "start": end_ns - _LOOKBACK_NS, "end": end_ns, "most": _MOST_TOLD}
    return tuple(store.query(_SECOND_CLAIMS, context.parameters | asked).to_pylist())


def doubt(findings: Iterable[Finding], claims: Claims) -> tuple[Finding, ...]:
    """Return findings that are no surer than who holds which rank."""
    return tuple(
        replace(each, cap=min(each.cap, _DOUBT_CAP), evidence=(*each.evidence, *claims)) if claims else each
        for each in findings
    )
