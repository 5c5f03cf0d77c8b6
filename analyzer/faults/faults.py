"""Question 6: which set of faults explains all slow wires, as findings with their reasons."""

from dataclasses import dataclass, field, replace

import numpy as np

from analyzer.context import Context
from analyzer.faults.cables import Cables
from analyzer.faults.failover import pass_on_to_dead_port
from analyzer.faults.likelihood import Likelihood
from analyzer.faults.naming import Fault, name_faults
from analyzer.faults.parts import Suspects, list_inner_suspects, list_suspects
from analyzer.faults.search import Search
from analyzer.faults.telling import tell_fault, tell_inner, tell_starved
from analyzer.finding import Finding
from analyzer.signs.signs import Signs
from analyzer.wires.matrix import DelayMatrix

# How far to trust a delay matrix by transport. Sockets were compared with recordings of real NCCL; InfiniBand's wire
# time ends with the acknowledgement, which is clearer, but we have only seen it simulated; others not even that.
CAPS: dict[str | None, float] = {"ib": 0.9, "socket": 0.9, "p2p": 0.8, "shm": 0.8, "ofi": 0.7, None: 0.6}
_LOWEST_CAP = 0.5


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """How much is said."""

    most_faults: int = 8  # at once in a small job; more, and the fabric is in trouble as a whole: nobody stands out
    hosts_per_fault: int = 16  # large jobs have more of them
    least_likelihood: float = 0.1  # less, and ten others are as good: naming one would be a guess
    caps: dict[str | None, float] = field(default_factory=lambda: CAPS)


DEFAULT = FaultOptions()


def find_faults(
    matrix: DelayMatrix, signs: Signs, context: Context, options: FaultOptions = DEFAULT
) -> list[Finding]:
    """Return the parts at fault, the one that explains most first; nothing when no wire is slow."""
    starved = [tell_starved(host, matrix, signs, context) for host in sorted(matrix.starved)]
    seen = _without_hosts(matrix, matrix.starved)
    cap = min((options.caps.get(transport, _LOWEST_CAP) for transport in matrix.transports), default=_LOWEST_CAP)
    faults = explain(seen, signs, context)
    most = options.most_faults + len({wire.src.host for wire in seen.wires}) // options.hosts_per_fault
    faults = [pass_on_to_dead_port(fault, signs) for fault in faults]
    likely = [fault for fault in faults if fault.likelihood >= options.least_likelihood and len(faults) <= most]
    inner = [tell_inner(fault, matrix.inner, signs) for fault in explain_inner(matrix, signs)] if matrix.inner else []
    return [*starved, *(replace(tell_fault(fault, seen, signs, context), cap=cap) for fault in likely), *inner]


def explain(matrix: DelayMatrix, signs: Signs, context: Context) -> list[Fault]:
    """Return the faults that together explain the slow wires best."""
    if not matrix.hot.any():
        return []
    suspects = list_suspects(matrix, context.topology)
    weighed = _weigh(suspects, matrix.ratio, matrix.hot, ~(matrix.ns_per_byte > 0))
    return _explain(weighed, signs, Cables(context.topology))


def explain_inner(matrix: DelayMatrix, signs: Signs) -> list[Fault]:
    """Return the faults that together explain the slow groups inside hosts; starved hosts have an excuse."""
    inner = matrix.inner
    if inner is None:
        return []
    excused = np.array([group.host in matrix.starved for group in inner.groups], bool)
    hot = inner.hot & ~excused
    suspects = list_inner_suspects(replace(inner, hot=hot))
    weighed = _weigh(suspects, inner.ratio, hot, np.zeros(len(hot), bool))
    return _explain(weighed, signs, Cables(None)) if hot.any() else []


def _weigh(suspects: Suspects, ratio: np.ndarray, hot: np.ndarray, unseen: np.ndarray) -> Likelihood:
    excess = np.log(np.clip(np.nan_to_num(ratio, nan=1.0), 1e-3, 1e3))  # a clock that jumped is no figure
    return Likelihood(suspects, excess, hot, unseen)


def _explain(likelihood: Likelihood, signs: Signs, cables: Cables) -> list[Fault]:
    search = Search(likelihood, signs, cables)
    return name_faults(search, search.explain(), cables)


def _without_hosts(matrix: DelayMatrix, hosts: frozenset[str]) -> DelayMatrix:
    """Return the matrix without the wires of some hosts: they say nothing about the parts they run through."""
    if not hosts:
        return matrix
    kept = np.array([wire.src.host not in hosts and wire.dst.host not in hosts for wire in matrix.wires], bool)
    return replace(
        matrix,
        wires=tuple(wire for wire, is_kept in zip(matrix.wires, kept.tolist(), strict=True) if is_kept),
        ratio=matrix.ratio[kept],
        sigmas=matrix.sigmas[kept],
        hot=matrix.hot[kept],
        ns_per_byte=matrix.ns_per_byte[kept],
    )
