"""What the recordings of real NCCL say of waits, kernels and hangs, rank by rank."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cache

import numpy as np

from tests.importers.traces.traces import TRACES, PlainOperation, PlainTrace, PlainTransfer, read_lines, work_out

Waits = dict[tuple[int, str], float]  # by rank and name
SIDES = {True: ("gpu_wait", "peer_wait", "wire"), False: ("recv_gpu_wait", "recv_wait", "flush")}
COLUMNS = {"gpu_wait_ns": 0, "peer_wait_ns": 1, "wire_ns": 2, "flush_ns": 2}
REAL_STATES = {
    "SendGPUWait": "gpu_wait",
    "SendPeerWait": "peer_wait",
    "SendWait": "wire",
    "RecvWait": "recv_wait",
    "RecvFlushWait": "flush",
    "RecvGPUWait": "recv_gpu_wait",
}


@cache
def recorded(name: str) -> PlainTrace:
    return work_out(TRACES / f"{name}.jsonl.xz")


@cache
def kernel_stops(name: str) -> dict[tuple[int, int], int]:
    """Return when each kernel ended by the GPU's clock, by rank and number of its event."""
    lines = read_lines(TRACES / f"{name}.jsonl.xz")
    return {
        (line["r"], line["h"]): line["arg"] for line in lines if line.get("state") == "KernelChStop" and "arg" in line
    }


def lasting(name: str, rank: int, operation: PlainOperation) -> float:
    """Return how long an operation's kernels took."""
    ends = [kernel_stops(name).get((rank, kernel["h"])) for kernel in operation.kernels]
    begin = min(kernel["ptimer"] for kernel in operation.kernels)
    return float(max(end for end in ends if end is not None) - begin)


def real_waits(transfers: Iterable[tuple[int, PlainTransfer]]) -> Waits:
    """Return the mean wait per transfer of each rank and side."""
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for rank, transfer in transfers:
        waits, names = transfer.waits(), SIDES[bool(transfer.start["send"])]
        for column, index in COLUMNS.items():
            if (column == "wire_ns") == (names[2] == "wire") or index < 2:
                found[rank, names[index]].append(waits.get(column, 0))
    return {key: float(np.mean(values)) for key, values in found.items()}


def struck(name: str, above_ms: float) -> list[int]:
    """Return the numbers of the operations that took longer than that on some rank."""
    times: dict[int, float] = defaultdict(float)
    for rank, operation in recorded(name).operations:
        if operation.is_over and operation.kernels:
            times[operation.seq] = max(times[operation.seq], lasting(name, rank, operation))
    return [seq for seq, time in times.items() if time > above_ms * 1e6]


def real_waits_of(name: str, numbers: list[int]) -> Waits:
    return real_waits(
        (rank, transfer) for rank, operation, transfer in recorded(name).transfers() if operation.seq in numbers
    )


def members_of(name: str) -> dict[str, tuple[str, list[int]]]:
    comms = recorded(name).about["layout"]["comms"]
    return {comm["id"]: (comm["role"], comm["members"]) for comm in comms}


def real_waiters(name: str, role: str, share: float) -> set[int]:
    """Return the ranks whose kernels in communicators of a role are nearly as long as the longest, in the median."""
    lasted: dict[int, list[float]] = defaultdict(list)
    members = members_of(name)
    for rank, operation in recorded(name).operations:
        comm = recorded(name).ranks[rank].header["comms"][operation.start["comm"]]
        if operation.is_over and operation.kernels and members.get(comm["id"], ("", []))[0] == role:
            lasted[rank].append(lasting(name, rank, operation))
    median = {rank: float(np.median(values)) for rank, values in lasted.items()}
    return {rank for rank, value in median.items() if value > share * max(median.values())}


def live_states(name: str) -> dict[tuple[int, str], set[str]]:
    """Return the states of the oldest steps of each rank's oldest open operation, by role of its communicator."""
    roles = members_of(name) if "layout" in recorded(name).about else {}
    found: dict[tuple[int, str], set[str]] = {}
    for rank, operation in recorded(name).operations:
        comm = recorded(name).ranks[rank].header["comms"][operation.start.get("comm", 0)]
        key = (rank, roles.get(comm["id"], ("", []))[0])
        heads = [_head(transfer) for transfer in operation.transfers if transfer.stop is None]
        if key not in found and any(heads):
            found[key] = {REAL_STATES[head] for head in heads if head}
    return found


def _head(transfer: PlainTransfer) -> str | None:
    steps = sorted(
        (step.start["step"], step) for step in transfer.steps.values() if step.stop is None and step.states
    )
    return str(steps[0][1].states[-1]["state"]) if steps else None
