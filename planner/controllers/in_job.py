"""Speaks to jobs that can lose processes, by files in a folder that both see; all else is left to another controller.

The other controller has the nodes and starts jobs; this one speaks to what runs. An order is a file that names its
mark, its nodes and the generation of processes it was given for; the job answers with a file. So an order that is
asked for again is the same one, one for a generation that is over changes nothing, and nobody listens on a port.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lockstep.clock import NS_PER_S, Clock, SystemClock
from lockstep.errors import ControllerDown
from lockstep.hostlists import match_hosts
from lockstep.in_job import (
    IN_JOB_ACTS,
    Announcement,
    Answer,
    Effect,
    Generation,
    JobFolder,
    Order,
    answer_name,
    nodes_of,
    order_name,
)
from planner.controllers.protocol import (
    Controller,
    ControllerAct,
    JobView,
    Node,
    Report,
    Restart,
    Shrink,
    check_mark,
    check_name,
    check_template,
)
from planner.controllers.running import Deadline

_LIVES_NS = 60 * NS_PER_S  # since a beat, by clocks of hosts that may differ by seconds


@contextmanager
def _reading() -> Iterator[None]:
    """Say that the job cannot be reached where its folder cannot."""
    try:
        yield
    except OSError as failure:
        raise ControllerDown(f"the folder of the job cannot be used: {failure}") from None


@dataclass(frozen=True, slots=True)
class InJobOptions:
    """Where jobs and the planner meet, and who has the nodes."""

    folder: str  # with {job}, such as /shared/lockstep/{job}
    controller: str  # that has the nodes and starts jobs
    controller_options: Mapping[str, Any] = field(default_factory=dict)  # Any: each controller has its own
    timeout_s: float = 30.0  # is waited for an answer
    dry_run: bool = False  # of what is said to jobs; the other controller has its own

    def __post_init__(self) -> None:
        check_template((self.folder,), ("job",))


class InJobController:
    """Speaks to jobs, and leaves all else to the controller beside it."""

    def __init__(self, options: InJobOptions, beside: Controller, clock: Clock | None = None) -> None:
        self._options, self._beside, self._clock = options, beside, clock or SystemClock()
        self.name = beside.name

    @property
    def acts(self) -> frozenset[ControllerAct]:
        return self._beside.acts

    @property
    def restarts_whole_job(self) -> bool:
        return self._beside.restarts_whole_job

    def nodes(self) -> Sequence[Node]:
        return self._beside.nodes()

    def isolate(self, node: str, mark: str, reason: str) -> Report:
        return self._beside.isolate(node, mark, reason)

    def release(self, node: str, mark: str) -> Report:
        """Give a node back, and let replicas on it join the jobs that they were ordered out of."""
        report = self._beside.release(node, mark)
        if report.is_good and report.outcome != "would" and not self._options.dry_run:
            for folder in self._list_folders():
                now = folder.newest_generation()
                if now is not None and (meant := match_hosts([node], now.out)):
                    order = Order(mark=check_mark(mark), act="admit", nodes=(meant[node],), generation=now.number)
                    folder.write_first(order_name(order), order)
        return report

    def restart(self, order: Restart) -> Report:
        return self._beside.restart(order)

    def reattempt(self, job: str, mark: str) -> Report:
        return self._beside.reattempt(job, mark)

    def job(self, job: str) -> JobView | None:
        """Return a job with what it has announced, while one of its processes lives."""
        with _reading():
            return self._describe(job, self._beside.job(job))

    def _describe(self, job: str, view: JobView | None) -> JobView | None:
        folder = self._folder(job)
        announced, now = folder.read("job.json", Announcement), folder.newest_generation()
        if announced is None or now is None or not self._is_alive(folder, now):
            return view
        effects = (folder.read(f"effects/{number}.json", Effect) for number in range(now.number, 0, -1))
        return replace(
            view or JobView(job, "running", tuple(nodes_of(now))),
            can=announced.can,
            replicas=announced.replicas,
            stages=announced.stages,
            micro_batches=-(-announced.micro_batches // announced.replicas),
            speed_after=announced.speed_after,
            standstill_s=next((effect.standstill_s for effect in effects if effect), None),
        )

    def shrink(self, order: Shrink) -> Report:
        """Order a job to go on without what it has on some nodes, and wait for its answer."""
        with _reading():
            return self._shrink(order)

    def _shrink(self, order: Shrink) -> Report:
        folder, deadline = self._folder(order.job), Deadline(self._options.timeout_s, self._clock)
        if (before := self._find_answer(folder, order.mark)) is not None:
            return Report("already", before.message)
        announced = folder.read("job.json", Announcement)
        if announced is None or order.act not in announced.can:
            return Report("refused", f"{order.job} has not announced that it can {order.act}")
        if self._options.dry_run:
            return Report("would", f"would have {order.job} go on without {', '.join(order.nodes)}")
        while True:
            now = folder.newest_generation()
            if now is None:
                return Report("refused", f"{order.job} has no replicas yet")
            answer = self._order(folder, order, now, deadline)
            if answer is None:
                return Report("failed", f"{order.job} has not answered within {self._options.timeout_s:g} s")
            newer = folder.newest_generation(now.number)
            if answer.outcome != "refused" or newer is None:
                return Report(answer.outcome, answer.message)

    def effect(self, job: str, mark: str) -> Effect | None:
        """Return what the generation that carried out an order, or needed none, has measured."""
        with _reading():
            folder = self._folder(job)
            answer = self._find_answer(folder, mark)
            return folder.read(f"effects/{answer.generation}.json", Effect) if answer else None

    def _order(self, folder: JobFolder, order: Shrink, now: Generation, deadline: Deadline) -> Answer | None:
        """Give an order to a generation, and return its answer."""
        meant = match_hosts(order.nodes, nodes_of(now))  # a replica calls its host what the host calls itself
        nodes = tuple(meant.get(node, node) for node in order.nodes)
        given = Order(mark=check_mark(order.mark), act=order.act, nodes=nodes, generation=now.number)
        folder.write_first(order_name(given), given)
        deadline.wait_until(lambda: folder.read(answer_name(given), Answer) is not None, reserve_s=0)
        return folder.read(answer_name(given), Answer)

    def _find_answer(self, folder: JobFolder, mark: str) -> Answer | None:
        """Return how an order was carried out, whichever generation it was given to."""
        for act in IN_JOB_ACTS:
            for path in sorted((folder.path / "answers").glob(f"{check_mark(mark)}.{act}.*.json")):
                answer = folder.read(f"answers/{path.name}", Answer)
                if answer is not None and answer.outcome != "refused":
                    return answer
        return None

    def _is_alive(self, folder: JobFolder, now: Generation) -> bool:
        floor_ns = self._clock.now_ns() - _LIVES_NS
        return any(beat.ts_ns > floor_ns for beat in folder.beats().values() if beat.member in now.members)

    def _folder(self, job: str) -> JobFolder:
        return JobFolder(Path(self._options.folder.format(job=check_name(job, "job"))))

    def _list_folders(self) -> Iterator[JobFolder]:
        pattern = Path(self._options.folder.format(job="*"))
        root = Path(pattern.anchor)
        return (JobFolder(path) for path in root.glob(str(pattern.relative_to(root))) if path.is_dir())
