"""Who does not do his part in an operation that all have entered: his GPU stands, or his process does."""

import numpy as np

from analyzer.hang.facts import PAIRED
from analyzer.hang.processes import Scene, finding_of, is_queued
from analyzer.hang.waits import StuckOperation
from analyzer.windows.window import Finding
from lockstep.topology import host_name

_LEADS_ON = ("recv_wait", "wire", "peer_wait")  # the peer has to send, or to take what is sent to it
_OWN_GPU = ("recv_gpu_wait", "gpu_wait")  # has data that its GPU does not take; room that its GPU does not fill


def find_holders(scene: Scene, operation: StuckOperation) -> list[int]:
    """Return the processes inside an operation that do not do their part of it, as the states of the others show."""
    is_pair = str(scene.waits.lines.func[operation.members[0]]) in PAIRED
    return _of_two(scene, operation) if is_pair else _where_waiting_ends(scene, operation)


def _of_two(scene: Scene, operation: StuckOperation) -> list[int]:
    """Return who waits for its own GPU between two ranks."""
    lines, rows = scene.waits.lines, operation.members
    # Who waits to receive something that it enqueued before cannot come to this.
    rows = rows[scene.awaits_ns[lines.process[rows]] >= lines.open_ns[rows]]
    keeps = _OWN_GPU if len(operation.members) == 2 else _OWN_GPU[:1]
    return [int(lines.process[row]) for row in rows.tolist() if lines.state[row] in keeps]


def _where_waiting_ends(scene: Scene, operation: StuckOperation) -> list[int]:
    """Return the ranks of the one host that waits for nobody but itself, while the waiting of all others leads to it.

    Before it the buffers are full, and behind it they are empty. What passes between GPUs of one host nobody shows,
    so that it is followed from host to host; on the last one, a rank that has data and does not take it is named
    before those that only have nothing to send. Cost: O(members, and once their hosts per host on the way).
    """
    lines, rows = scene.waits.lines, operation.members
    state = lines.state[rows].astype(str)
    _, host = np.unique(scene.facts.people.host_of[lines.process[rows]].astype(str), return_inverse=True)
    host_of_rank = np.full(int(max(lines.rank[rows].max(), lines.head_peer[rows].max())) + 1, -1)
    host_of_rank[lines.rank[rows]] = host
    peer_host = np.where(lines.head_peer[rows] >= 0, host_of_rank[lines.head_peer[rows]], -1)
    leads = np.isin(state, _LEADS_ON) & (peer_host != host)
    asking, asked = host[leads], peer_host[leads]
    ends = np.setdiff1d(host[np.isin(state, _OWN_GPU)], asking)
    if len(ends) != 1 or not _all_lead_to(int(ends[0]), asking, asked):
        return []
    for kept in _OWN_GPU:
        if len(found := rows[(host == ends[0]) & (state == kept)]):
            return [int(process) for process in lines.process[found]]
    return []


def _all_lead_to(end: int, asking: np.ndarray, asked: np.ndarray) -> bool:
    """Return whether anybody asks at all, and all of them in the end this one; -1 is somebody who is not here."""
    reached = {end}
    while len(more := np.setdiff1d(asking[np.isin(asked, list(reached))], list(reached))):
        reached |= set(more.tolist())
    return len(asking) > 0 and bool((asked >= 0).all()) and reached >= set(asking.tolist())


def _gpu_stands(scene: Scene, process: int) -> bool:
    """Return whether a process waits for its GPU in an operation in which it sends and receives.

    If it did not run, it would mostly wait to receive: it would not have noticed what arrived for it meanwhile.
    """
    lines, stuck = scene.waits.lines, scene.waits.stuck
    rows = np.concatenate([each.members for each in stuck])
    mine = rows[(lines.process[rows] == process) & ~np.isin(lines.func[rows].astype(str), PAIRED)]
    return bool((lines.state[mine] == "gpu_wait").any())


def name_holder(scene: Scene, processes: list[int]) -> Finding:
    """Return who holds an operation up: the GPU, where a collector would have told of a stopped process."""
    process = processes[0]
    rank, host, gpu = scene.rank_of(process), scene.host_of(process), scene.gpu_of(process)
    is_gpu = gpu is not None and len(set(processes)) == 1
    is_gpu &= host in scene.facts.reports or _gpu_stands(scene, process) or is_queued(scene, process)
    return finding_of(
        scene,
        sorted(set(processes)),
        fault_class="noncomm_hang",
        component=str(gpu) if is_gpu else host_name(host),
        likelihood=0.85 if not is_gpu or host in scene.facts.reports else 0.7,
        reason=f"rank {rank} on {host} has done nothing in an operation {scene.how_long} while its neighbours "
        f"wait for it: {'its GPU stands' if is_gpu else 'its process or its GPU stands'}",
        ambiguous_with=(host_name(host) if is_gpu else gpu,) if gpu else (),
    )
