"""Who does not do his part in an operation that all have entered: his GPU stands, or his process does."""

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from analyzer.hang.facts import PAIRED, TOGETHER
from analyzer.hang.processes import Scene, finding_of, is_queued
from analyzer.hang.waits import StuckOperation
from analyzer.windows.window import Finding
from lockstep.topology import host_name

_LEADS_ON = ("recv_wait", "wire", "peer_wait")  # the peer has to send, or to take what is sent to it
_SENDING = ("wire", "peer_wait")  # what it sent is under way; room for it has to come
_OWN_GPU = ("recv_gpu_wait", "gpu_wait")  # has data that its GPU does not take; room that its GPU does not fill


def find_holders(scene: Scene, operation: StuckOperation) -> list[int]:
    """Return the processes inside an operation that do not do their part of it, as the states of the others show."""
    is_pair = str(scene.waits.lines.func[operation.members[0]]) in PAIRED
    by_steps = _of_two if is_pair else _where_waiting_ends
    return _never_begun(scene, operation) or by_steps(scene, operation) or _last_inside(scene, operation)


def _never_begun(scene: Scene, operation: StuckOperation) -> list[int]:
    """Return whose GPU has not begun the operation, nor anything else that is open, while those of others have.

    Who is in the kernel of another operation waits there. Of operations without recorded steps nothing more is known.
    """
    lines, rows = scene.waits.lines, operation.members
    state = lines.state[rows].astype(str)
    is_late = state == "kernel_wait"
    if is_late.all() or (state == "unknown").any():
        return []
    busy = lines.process[(lines.started > lines.done) & (lines.state != "kernel_wait")]
    late: list[int] = np.setdiff1d(lines.process[rows[is_late]], busy).tolist()
    return late


def _last_inside(scene: Scene, operation: StuckOperation) -> list[int]:
    """Return the only rank that has not left an operation and is sending in it: all that it sent has arrived.

    The others would still be there, had it not. So it has not noticed: its process has ended or was stopped, and no
    event tells. One that waits to receive may have lost what the network owes it.
    """
    lines, rows = scene.waits.lines, operation.members
    here = scene.waits.group == operation.group
    is_alone = (
        len(rows) == 1 and here.sum() > 1 and bool((lines.done[here] >= operation.number).sum() == here.sum() - 1)
    )
    is_sending = is_alone and lines.state[rows[0]] in _SENDING and str(lines.func[rows[0]]) in TOGETHER
    return [int(lines.process[rows[0]])] if is_sending else []


def _of_two(scene: Scene, operation: StuckOperation) -> list[int]:
    """Return who waits for its own GPU between two ranks."""
    lines, rows = scene.waits.lines, operation.members
    # Who waits to receive something that it enqueued before cannot come to this.
    rows = rows[scene.awaits_ns[lines.process[rows]] >= lines.open_ns[rows]]
    keeps = _OWN_GPU if len(operation.members) == 2 else _OWN_GPU[:1]
    return [int(lines.process[row]) for row in rows.tolist() if lines.state[row] in keeps]


def _where_waiting_ends(scene: Scene, operation: StuckOperation) -> list[int]:
    """Return the ranks of one host to which all waiting leads, and who wait for nobody but themselves.

    Before them the buffers are full, and behind them they are empty. What passes between GPUs of one host nobody
    shows: who has nothing to send may wait for another one there. A rank that has data and does not take it is named
    before those that only have nothing to send. Cost: O(members log members).
    """
    lines, rows = scene.waits.lines, operation.members
    rows = rows[np.isin(lines.state[rows].astype(str), (*_LEADS_ON, *_OWN_GPU))]
    state, host = lines.state[rows].astype(str), scene.facts.people.host_of[lines.process[rows]].astype(str)
    of_rank = {int(rank): number for number, rank in enumerate(lines.rank[rows])}
    leads = np.flatnonzero(np.isin(state, _LEADS_ON))
    asked = np.array([of_rank.get(int(peer), -1) for peer in lines.head_peer[rows[leads]]], np.int64)
    if len(leads) == 0 or (asked < 0).any():  # somebody who is not here, or nobody knows who
        return []
    ends = _find_ends(leads, asked, state == _OWN_GPU[1], host)
    if len(set(host[ends])) != 1 or not np.isin(state[ends], _OWN_GPU).any():
        return []
    kept = next(kept for kept in _OWN_GPU if (state[ends] == kept).any())
    if kept == _OWN_GPU[1] and not (state == _LEADS_ON[0]).any():  # nobody lacks what it does not send
        return []
    return [int(process) for process in lines.process[rows[ends[state[ends] == kept]]]]


def _find_ends(leads: np.ndarray, asked: np.ndarray, is_open: np.ndarray, host: np.ndarray) -> np.ndarray:
    """Return who is left when everybody passes on to those it waits for, again and again.

    Who has an open question waits for its host, and its host for everybody there.

    >>> alone = np.array(["h0", "h1", "h2", "h2"])
    >>> _find_ends(np.array([0, 1]), np.array([1, 2]), np.array([False, False, False, True]), alone).tolist()
    [2]
    """
    count = len(host)
    hosts, number = np.unique(host, return_inverse=True)
    everybody, asking_host = np.arange(count), np.flatnonzero(is_open)
    asking = np.concatenate([leads, asking_host, count + number])
    answering = np.concatenate([asked, count + number[asking_host], everybody])
    size = count + len(hosts)
    graph = csr_array((np.ones(len(asking), np.int8), (asking, answering)), (size, size))
    _, group = connected_components(graph, directed=True, connection="strong")
    left = np.unique(group[asking[group[asking] != group[answering]]])
    ends: np.ndarray = np.flatnonzero(~np.isin(group[:count], left))
    return ends


def _gpu_stands(scene: Scene, process: int) -> bool:
    """Return whether a process waits for its GPU in an operation in which it sends and receives.

    If it did not run, it would mostly wait to receive: it would not have noticed what arrived for it meanwhile.
    """
    lines, stuck = scene.waits.lines, scene.waits.stuck
    rows = np.concatenate([each.members for each in stuck])
    mine = rows[(lines.process[rows] == process) & ~np.isin(lines.func[rows].astype(str), PAIRED)]
    return bool(np.isin(lines.state[mine].astype(str), ("gpu_wait", "kernel_wait")).any())


def name_holder(scene: Scene, processes: list[int]) -> Finding:
    """Return who holds an operation up: the GPU, where a collector would have told of a stopped process."""
    process = processes[0]
    rank, host = scene.rank_of(process), scene.host_of(process)
    gpus = tuple(str(gpu) for each in sorted(set(processes)) if (gpu := scene.gpu_of(each)) is not None)
    is_gpu = bool(gpus) and len(set(processes)) == 1
    is_gpu &= host in scene.facts.reports or _gpu_stands(scene, process) or is_queued(scene, process)
    return finding_of(
        scene,
        sorted(set(processes)),
        fault_class="noncomm_hang",
        component=gpus[0] if is_gpu else host_name(host),
        likelihood=0.85 if not is_gpu or host in scene.facts.reports else 0.7,
        reason=f"rank {rank} on {host} has done nothing in an operation {scene.how_long} while its neighbours "
        f"wait for it: {'its GPU stands' if is_gpu else 'its process or its GPU stands'}",
        ambiguous_with=(host_name(host),) if is_gpu else gpus,
    )
