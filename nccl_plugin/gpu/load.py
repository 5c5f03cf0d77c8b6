"""Loads the plugin in real NCCL and compares what its ring files say with what the ranks did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import Lab, Outcome, Run, lockstep_side
from rings import FUNCS, LEVELS, TRANSFER_KIND, NotARing, Ring, Row

MIB = 1 << 20
# Everything that a training job asks of NCCL, a few times each, with sizes of one and of many network steps.
MIXED_WORDS = (
    "AllReduce=8:20", f"AllReduce={MIB}:5", f"AllGather={MIB}:3", f"ReduceScatter={MIB}:3", f"Broadcast={MIB}:3",
    f"Ring={MIB}:3", f"AllToAll={MIB}:3", f"graph={MIB}:3", f"split={MIB}:3", f"AllReduce={8 * MIB}:3",
)  # fmt: skip
# NCCL 2.29 and newer turn a broadcast into an AllGatherV, for which no Coll event is made.
FIRST_WITHOUT_BROADCAST_EVENTS = 22900
# NCCL 2.27 tells of the transfers of the first peer only when one group sends to, or receives from, several.
FIRST_PEER_ONLY = range(22700, 22800)
COLL, P2P, PROXY_OP, PROXY_STEP, KERNEL_CHANNEL = 0x2, 0x4, 0x8, 0x10, 0x40
OPERATIONS_MASK = COLL | P2P
NEEDED_BITS = {
    "off": COLL,
    "operations": OPERATIONS_MASK,
    "transfers": OPERATIONS_MASK | PROXY_OP,
    "steps": OPERATIONS_MASK | PROXY_OP | PROXY_STEP,
    "trace": OPERATIONS_MASK | PROXY_OP | PROXY_STEP,
}


@dataclass(frozen=True)
class LoadCase:
    """One run of the mixed words."""

    library: str
    ranks: int
    settings: Mapping[str, str]

    @property
    def level(self) -> str:
        return self.settings.get("LOCKSTEP_DETAIL", "steps")

    @property
    def name(self) -> str:
        named = {"LOCKSTEP_DETAIL": "", "LOCKSTEP_KERNEL": "kernel-"}
        settings = [named[key] + value for key, value in self.settings.items() if key in named]
        return "-".join(["load", Path(self.library).parent.name, f"{self.ranks}ranks", *settings])


def cases_of(library: str) -> list[LoadCase]:
    """2, 4 and 8 ranks as users start them, then every level and both answers about kernel times."""
    plain = {"LOCKSTEP_BUDGET": "0"}
    cases = [LoadCase(library, ranks, plain) for ranks in (2, 4, 8)]
    cases += [LoadCase(library, 2, plain | {"LOCKSTEP_DETAIL": level}) for level in LEVELS]
    return [*cases, LoadCase(library, 4, plain | {"LOCKSTEP_KERNEL": "off"})]


def run_case(lab: Lab, case: LoadCase) -> tuple[Outcome, list[str]]:
    def words(rank: int, folder: Path) -> list[str]:
        return [lockstep_side("plugin", case.library, folder, rank, case.settings), *MIXED_WORDS]

    outcome = lab.run(Run(case.name, case.ranks, words, timeout_s=40))
    if not outcome.succeeded:
        return outcome, [f"ranks ended with {outcome.codes}: {outcome.errors[-400:]}"]
    try:
        rings = outcome.rings()
    except NotARing as problem:
        return outcome, [str(problem)]
    if len(rings) != case.ranks:
        return outcome, [f"{len(rings)} ring files of {case.ranks} ranks"]
    complaints = [
        f"rank {rank}: {complaint}"
        for rank, ring in enumerate(rings)
        for complaint in complaints_about(case.level, ring, calls_of(outcome, rank))
    ]
    return outcome, complaints


def calls_of(outcome: Outcome, rank: int) -> dict[str, int]:
    calls = [line["calls"] for line in outcome.lines[rank] if "calls" in line]
    assert isinstance(calls[0], dict)
    return calls[0]


def complaints_about(level: str, ring: Ring, calls: Mapping[str, int]) -> list[str]:
    """Where the ring file contradicts what the rank did."""
    status = ring.status()
    complaints = []
    if LEVELS[status["level"]] != level:
        complaints.append(f"level {LEVELS[status['level']]} instead of {level}")
    if status["mask"] & NEEDED_BITS[level] != NEEDED_BITS[level]:
        complaints.append(f"mask {status['mask']:#x} lacks some of {NEEDED_BITS[level]:#x}")
    if bool(status["mask"] & KERNEL_CHANNEL) != ring.kernel_channels:
        complaints.append(f"mask {status['mask']:#x} while kernel_channels is {ring.kernel_channels}")
    troubles = ("lowered", "refused_comms", "refused_rows", "overwritten", "foreign", "shared_threads")
    complaints += [f"{name} is {status[name]}" for name in troubles if status[name]]
    complaints += _counts(ring, calls if level != "off" else dict.fromkeys(calls, 0))
    return complaints + _ends(level, ring)


def _counts(ring: Ring, calls: Mapping[str, int]) -> list[str]:
    silent = {"Broadcast"} if ring.nccl_version >= FIRST_WITHOUT_BROADCAST_EVENTS else set()
    seen = ring.enqueued_by_func()
    if ring.overwritten_records():
        return []  # too many to count; the live table is compared all the same
    wanted = {func: 0 if func in silent else calls.get(func, 0) for func in FUNCS[1:]}
    return [f"{seen[func]} {func} enqueued of {wanted[func]}" for func in wanted if seen[func] != wanted[func]]


def _ends(level: str, ring: Ring) -> list[str]:
    complaints = [
        f"{row.func} on communicator {row.comm}, peer {row.peer}: {row.done} of {row.enqueued} done"
        for row in ring.rows()
        if level in ("transfers", "steps", "trace") and row.enqueued != row.done and not _is_beyond_sight(ring, row)
    ]
    if ring.open_transfers():
        complaints.append(f"{ring.open_transfers()} transfers are open")
    if level in ("transfers", "steps") and not any(True for _ in ring.records(TRANSFER_KIND)):
        complaints.append("no transfer was recorded")
    return complaints


def _is_beyond_sight(ring: Ring, row: Row) -> bool:
    """A send to oneself has no transfer and, in some releases, no kernel event: its end cannot be seen."""
    is_later_peer = ring.nccl_version in FIRST_PEER_ONLY and row.peer >= 0 and row.started == row.done
    if is_later_peer and not ring.kernel_channels:
        return True
    return any(known.index == row.comm and known.rank == row.peer for known in ring.comms())


def describe(case: LoadCase, outcome: Outcome, complaints: Sequence[str]) -> str:
    verdict = "ok" if not complaints else "FAILED: " + "; ".join(complaints)
    return f"{case.name}: {outcome.seconds:.1f} s, {verdict}"
