"""Why a process keeps the others waiting: it died, was stopped, never came, or its GPU does not get there."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from signal import Signals
from typing import Any

import numpy as np

from analyzer.hang.facts import ENDED, STOPPED, HangOptions, HostEvent, ProgressFacts
from analyzer.hang.waits import Waits
from analyzer.windows.window import Finding
from lockstep.clock import NS_PER_S
from lockstep.topology import gpu_name, host_name

_GPU_LOST = ("xid", "gpu_lost")
_MOST_NAMED = 16  # ranks in one piece of evidence


@dataclass(frozen=True)
class Scene:
    """A standstill as far as it is understood, when the parts are named."""

    facts: ProgressFacts
    waits: Waits
    since_ns: int
    options: HangOptions

    @property
    def ranks_waiting(self) -> int:
        return int(self.waits.waiting.sum())

    @property
    def seconds(self) -> float:
        return (self.facts.now_ns - self.since_ns) / NS_PER_S

    @property
    def is_long(self) -> bool:
        """Return whether no operation takes as long; a dump is made after ten minutes."""
        return self.facts.is_dump or self.seconds >= self.options.unnamed_ns / NS_PER_S

    @property
    def how_long(self) -> str:
        """Return for how long it has lasted, in words; a dump does not tell when it was made."""
        return "at the time of the dump" if self.facts.is_dump else f"for {self.seconds:.0f} s"

    @property
    def earliest_ns(self) -> int:
        """Return from when on an event may be the reason: within a step everything is needed once."""
        return self.since_ns - max(self.options.before_ns, self.facts.period_ns or 0)

    @cached_property
    def involved(self) -> np.ndarray:
        """Return the processes that are inside something or are waited for."""
        waits, lines = self.waits, self.waits.lines
        begun = np.where(lines.untimed, lines.enqueued, lines.started)  # what was not seen to begin may have
        everybody = [lines.process[begun > lines.done], waits.origins, waits.missing]
        return np.unique(np.concatenate(everybody).astype(np.int64))

    @cached_property
    def queued(self) -> frozenset[int]:
        """Return the processes that have enqueued something which was watched and has not begun."""
        lines = self.waits.lines
        return frozenset(lines.process[(lines.enqueued > lines.started) & ~lines.untimed].tolist())

    @cached_property
    def behind_line(self) -> dict[int, int]:
        """Return for each process that others wait for a line in which it is behind."""
        behind = np.flatnonzero(self.waits.behind)
        return dict(zip(self.waits.lines.process[behind].tolist(), behind.tolist(), strict=True))

    @cached_property
    def awaits_ns(self) -> np.ndarray:
        """Return by process when it enqueued the oldest operation in which it waits to receive; far ahead: none."""
        lines = self.waits.lines
        oldest = np.full(len(self.facts.people), np.iinfo(np.int64).max)
        waits = (lines.state == "recv_wait") & (lines.started > lines.done) & (lines.open_ns > 0)
        np.minimum.at(oldest, lines.process[waits], lines.open_ns[waits])
        return oldest

    def rank_of(self, process: int) -> int:
        return int(self.facts.people.world_rank_of[process])

    def host_of(self, process: int) -> str:
        return str(self.facts.people.host_of[process])

    def gpu_of(self, process: int) -> str | None:
        gpu = int(self.facts.people.gpu_of[process])
        return gpu_name(self.host_of(process), gpu) if gpu >= 0 else None

    def timely(self, kinds: Iterable[str]) -> list[HostEvent]:
        """Return the events of some kinds that came with the standstill or after it."""
        wanted = set(kinds)
        return [event for event in self.facts.events if event.kind in wanted and event.ts_ns >= self.earliest_ns]


def name_processes(scene: Scene, processes: np.ndarray) -> list[Finding]:
    """Return what keeps each of some processes, those of one host that have the same trouble together."""
    # Whoever ended later did so because of the standstill: by a watchdog, or by its owner.
    latest_ns = scene.since_ns + scene.options.after_ns
    ended = first_by_rank(event for event in scene.timely(ENDED) if event.ts_ns <= latest_ns)
    stopped = first_by_rank(_not_continued(scene))
    lost_gpus = {event.component: event for event in scene.timely(_GPU_LOST)}
    hosts: dict[tuple[str, str], list[int]] = defaultdict(list)
    findings: list[Finding] = []
    for process in processes.tolist():
        rank, host, gpu = scene.rank_of(process), scene.host_of(process), scene.gpu_of(process)
        if gpu in lost_gpus:
            findings.append(_lost_gpu(scene, process, lost_gpus[gpu]))
        elif event := ended.get((host, rank)):
            findings.append(name_ended(scene, process, event))
        elif event := stopped.get((host, rank)):
            findings.append(_stopped(scene, process, event))
        elif gpu and is_queued(scene, process):
            findings.append(_stuck_gpu(scene, process))
        else:
            hosts["absent", host].append(process)
    return findings + [_absent(scene, members) for members in hosts.values()]


def name_missing(scene: Scene, lost: frozenset[str], is_new: bool) -> list[Finding]:
    """Return the hosts that others wait for and that fell silent with the standstill, or those silent long before.

    A host whose collector goes on telling is there, though its ranks send nothing any more; where the telemetry of
    many was lost together, nothing says that one of them is gone.
    """
    reporting = scene.facts.reporting
    hosts: dict[str, list[int]] = defaultdict(list)
    for process in scene.waits.missing.tolist():
        if scene.host_of(process) not in reporting | lost:
            hosts[scene.host_of(process)].append(process)
    last_seen_ns = scene.facts.last_row_ns | {host: told.reach_ns for host, told in scene.facts.reports.items()}
    found = [(host, last_seen_ns.get(host, 0), members) for host, members in hosts.items()]
    return [_silent(scene, *each, is_new) for each in found if (each[1] >= scene.earliest_ns) == is_new]


def find_stopped(scene: Scene, processes: np.ndarray) -> np.ndarray:
    """Return those of some processes of which events tell that they were stopped or lost their GPU."""
    stopped = first_by_rank(_not_continued(scene)).keys()
    lost_gpus = {event.component for event in scene.timely(_GPU_LOST)}
    found = [
        process
        for process in processes.tolist()
        if (scene.host_of(process), scene.rank_of(process)) in stopped or scene.gpu_of(process) in lost_gpus
    ]
    return np.array(found, np.int64)


def first_by_rank(events: Iterable[HostEvent]) -> dict[tuple[str, int], HostEvent]:
    """Return the first event about each rank: what comes later follows from it."""
    found: dict[tuple[str, int], HostEvent] = {}
    for event in events:
        if event.rank is not None:
            found.setdefault((event.host, event.rank), event)
    return found


def _not_continued(scene: Scene) -> list[HostEvent]:
    """Return how processes were stopped with the standstill that do not go on since; later it may be a debugger."""
    latest_ns = scene.since_ns + scene.options.after_ns
    last: dict[tuple[str, int], HostEvent] = {}
    for event in scene.timely((*STOPPED, "process_continued")):
        if event.kind == "process_continued" or event.ts_ns <= latest_ns:
            last |= first_by_rank([event])
    return [event for event in last.values() if event.kind in STOPPED]


def is_queued(scene: Scene, process: int) -> bool:
    """Return whether the host has handed over work that its GPU does not begin."""
    return process in scene.queued and not scene.facts.is_dump and not scene.waits.frozen[process]


def finding_of(scene: Scene, processes: list[int], **fields: Any) -> Finding:  # Any: fields of a finding
    evidence = (*fields.pop("evidence", ()), _progress_row(scene, processes))
    return Finding(
        evidence=evidence,
        ranks_waiting=scene.ranks_waiting,
        stands_still=True,
        since_ns=scene.since_ns,
        is_certain=True,
        **fields,
    )


def _progress_row(scene: Scene, processes: list[int]) -> dict[str, Any]:
    """Return how far the processes have come in what others wait for."""
    lines, waits = scene.waits.lines, scene.waits
    behind = [scene.behind_line[process] for process in processes if process in scene.behind_line]
    row: dict[str, Any] = {
        "kind": "standstill",
        "ranks": [scene.rank_of(process) for process in processes[:_MOST_NAMED]],
        "hosts": sorted({scene.host_of(process) for process in processes[:_MOST_NAMED]}),
        "gpus": [gpu for process in processes[:_MOST_NAMED] if (gpu := scene.gpu_of(process))],
        "seconds": round(scene.seconds, 3),
        "told_by": _list_witnesses(scene, processes)[:_MOST_NAMED],
    }
    if behind:
        line = behind[0]
        row |= {"comm": f"{int(lines.comm[line]):016x}", "func": str(lines.func[line])}
        row |= {"waited_for": int(waits.need[waits.group[line]])}
        row |= {"enqueued": int(lines.enqueued[line]), "started": int(lines.started[line])}
    return row


def _list_witnesses(scene: Scene, processes: list[int]) -> list[str]:
    """Return the hosts whose rows show the standstill: of ranks that wait, and of those that are waited for."""
    waits = scene.waits
    shown = np.union1d(np.flatnonzero(waits.waiting), np.intersect1d(processes, waits.lines.process))
    return sorted({scene.host_of(process) for process in shown.astype(np.int64).tolist()})


def _event_row(event: HostEvent) -> dict[str, Any]:
    return {"kind": event.kind, "ts_ns": event.ts_ns, "host": event.host, "message": event.message}


def _lost_gpu(scene: Scene, process: int, event: HostEvent) -> Finding:
    return finding_of(
        scene,
        [process],
        fault_class="crash",
        component=event.component,
        likelihood=0.97,
        reason=f"GPU of rank {scene.rank_of(process)} failed ({event.message}), and the others wait for it",
        evidence=(_event_row(event),),
        may_isolate=True,
    )


def name_ended(scene: Scene, process: int, event: HostEvent, others: tuple[str, ...] = ()) -> Finding:
    """Return that a process is gone; `others` ended in the same moment."""
    rank, host = scene.rank_of(process), scene.host_of(process)
    return finding_of(
        scene,
        [process],
        fault_class="crash",
        component=f"rank:{rank}",
        likelihood=0.6 if others else 0.97,
        reason=f"rank {rank} on {host} is gone ({event.message}), and the others wait for it",
        evidence=(_event_row(event),),
        ambiguous_with=others,
    )


def _stopped(scene: Scene, process: int, event: HostEvent) -> Finding:
    rank, host = scene.rank_of(process), scene.host_of(process)
    return finding_of(
        scene,
        [process],
        fault_class="noncomm_hang",
        component=host_name(host),
        likelihood=0.97,
        reason=f"rank {rank} on {host} does not run ({event.message}), and the others wait for it",
        evidence=(_event_row(event),),
    )


def _stuck_gpu(scene: Scene, process: int) -> Finding:
    rank, host, gpu = scene.rank_of(process), scene.host_of(process), scene.gpu_of(process)
    has_collector = host in scene.facts.reports  # a collector would have said that the process ended or was stopped
    return finding_of(
        scene,
        [process],
        fault_class="noncomm_hang",
        component=str(gpu),
        likelihood=0.9 if has_collector else 0.7,
        reason=f"{gpu} of rank {rank} has work queued and begins none of it {scene.how_long}: a kernel before "
        "it does not end",
        ambiguous_with=(host_name(host),),
        may_isolate=has_collector and scene.seconds >= scene.options.ib_retry_ns / NS_PER_S,
    )


def _absent(scene: Scene, processes: list[int]) -> Finding:
    host, ranks = scene.host_of(processes[0]), [scene.rank_of(process) for process in processes]
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks ({ranks[0]} and others)"
    gpus = tuple(gpu for process in processes if (gpu := scene.gpu_of(process)))
    is_frozen, is_behind = scene.waits.frozen[processes].any(), any(p in scene.behind_line for p in processes)
    stopped = ", and knows nothing of what it ended since" if is_frozen else ""
    never = f"never entered what {scene.ranks_waiting} ranks wait in {scene.how_long}{stopped}"
    open_yet = f"still has an operation open that others ended, while {scene.ranks_waiting} ranks wait"
    return finding_of(
        scene,
        processes,
        fault_class="noncomm_hang",
        component=host_name(host),
        likelihood=0.93,
        reason=f"{who} on {host} {never if is_behind else open_yet}: look at that process",
        ambiguous_with=gpus if len(gpus) == 1 else (),
    )


def _silent(scene: Scene, host: str, last_ns: int, processes: list[int], is_new: bool) -> Finding:
    """Return that a host is gone; one that was silent long before may only have lost its collector."""
    ago_s = (scene.facts.now_ns - last_ns) / NS_PER_S
    present = f"for {ago_s:.0f} s" if last_ns else "at all"
    return finding_of(
        scene,
        processes,
        fault_class="crash" if is_new else "noncomm_hang",
        component=host_name(host),
        likelihood=0.95 if is_new else 0.4,
        reason=f"no telemetry from {host} {present}, and everybody else waits for its ranks",
        evidence=({"kind": "silence", "host": host, "last_seen_ns": last_ns},),
        may_isolate=is_new,
    )


# With these a person or a scheduler asks a process to end.
_REQUESTED = (
    Signals.SIGTERM,
    Signals.SIGINT,
    Signals.SIGHUP,
    Signals.SIGQUIT,
    Signals.SIGUSR1,
    Signals.SIGUSR2,
)
# Nobody ends like that because another rank did; a launcher that loses patience with its ranks kills them much later.
_VIOLENT = (Signals.SIGKILL, Signals.SIGSEGV, Signals.SIGBUS, Signals.SIGILL, Signals.SIGFPE)
_MOST_OTHERS = 4
_ALL_OF_IT = 0.5  # of the processes of a job: so many do not end at once, unless it was asked to


def name_first_ended(scene: Scene) -> list[Finding]:
    """Return the process that ended first, if those that the others wait for ended at all. Cost: O(processes)."""
    ended, origins = _find_ended(scene), scene.waits.origins
    awaited = origins if len(origins) else scene.involved
    if not ended or not set(awaited.tolist()) & ended.keys():
        return []
    first_ns = min(event.ts_ns for event in ended.values())
    together = [process for process, event in ended.items() if event.ts_ns - first_ns <= scene.options.together_ns]
    violent = [process for process in together if ended[process].signal in _VIOLENT]
    suspects = sorted(violent or together, key=lambda process: (ended[process].ts_ns, process))
    others = tuple(f"rank:{scene.rank_of(process)}" for process in suspects[1 : 1 + _MOST_OTHERS])
    return [name_ended(scene, suspects[0], ended[suspects[0]], others)]


def was_ended_by_request(scene: Scene) -> bool:
    """Return whether the job came to its end: half of it was asked to, or all of it is gone at once.

    Where nothing tells how processes ended, ranks that crash leave others behind that wait for them, or are killed by
    a launcher that had to notice it first.
    """
    ended = _find_ended(scene)
    if len(ended) == len(scene.facts.people) and all(event.kind == "process_gone" for event in ended.values()):
        times = [event.ts_ns for event in ended.values()]
        return max(times) - min(times) <= scene.options.ending_ns
    return len(ended) >= _ALL_OF_IT * len(scene.facts.people) and was_first_asked_to_end(scene)


def was_first_asked_to_end(scene: Scene) -> bool:
    """Return whether the first process that ended was asked to, by a signal of a person or a scheduler."""
    first = min(_find_ended(scene).values(), key=lambda event: event.ts_ns, default=None)
    return first is not None and first.signal in _REQUESTED


def _find_ended(scene: Scene) -> dict[int, HostEvent]:
    """Return the processes of the job that ended with the standstill, and how."""
    latest_ns = scene.since_ns + scene.options.after_ns
    ended = first_by_rank(event for event in scene.timely(ENDED) if event.ts_ns <= latest_ns)
    if not ended:
        return {}
    people = scene.facts.people
    keys = zip(people.host_of.tolist(), people.world_rank_of.tolist(), strict=True)
    return {process: ended[key] for process, key in enumerate(keys) if key in ended}
