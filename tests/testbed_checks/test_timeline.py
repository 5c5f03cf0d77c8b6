"""The timeline of a fault is told from what was written down, and says plainly what did not happen."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from lockstep.host_paths import PathSummary
from lockstep.state.database import open_control
from lockstep.state.documents import AuditLine
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import open_store
from lockstep.verdict import Impact, Incident
from tests.planner import build
from tests.testbed.paths import timeline as paths
from tests.testbed.paths.timeline import Records, Step, Timeline, describe, make_timeline

LINK = "link:leaf0--spine0"
FAULT_S = 10.0
USUAL, SLOW, MOVED = [0.5] * 20, [1.0, 2.0, 2.0, 2.0, 2.0], [1.0, 0.5, 0.5, 0.5, 0.5]
HEARD = f"leaf0--spine0 counts 20% of its rate: {LINK} needs 5.0 times the wire time per byte"


def at(seconds: float) -> int:
    return int(seconds * NS_PER_S)


def steps(*took_s: float) -> list[Step]:
    return [Step(at(end_s), each_s) for end_s, each_s in zip(accumulate(took_s), took_s, strict=True)]


def incident(component: str = LINK, opened_s: float = 16.0) -> Incident:
    impact = Impact(ranks_waiting=7)
    about = build.verdict(component=component, confidence=0.8, grade="note", since_ns=at(FAULT_S), impact=impact)
    return build.incident(about).model_copy(update={"opened_ns": at(opened_s), "updated_ns": at(opened_s)})


def plan(generation: int, made_s: float, weight: float | None = None, reason: str = "8 flows") -> PathSummary:
    load = {"flows": 8, "with_ports": 0, "max_use": 0.5, "bound": 0.5, "reasons": (reason,)}
    weights = {} if weight is None else {"leaf0--spine0": weight}
    return PathSummary.model_validate({"generation": generation, "made_ns": at(made_s), "weights": weights, **load})


def line(what: str, seconds: float, subject: str = LINK, why: str = "") -> AuditLine:
    return AuditLine(id=1, ts_ns=at(seconds), who="testbed", what=what, subject=subject, why=why)


def moved(seconds: float, generation: int) -> AuditLine:
    return line("move_connection", seconds, "loop/r0-r1", f"plan {generation}: from here to there")


def told(
    took_s: Sequence[float] = (*USUAL, *SLOW, *MOVED),
    incidents: Sequence[Incident] = (incident(),),
    moves: Sequence[AuditLine] = (moved(8.0, 1), moved(18.4, 2), moved(18.6, 2)),
    heard: str = HEARD,
) -> Timeline:
    doubt = plan(4, 14.0, 0.6, "leaf0--spine0 counts 60%: link:leaf0--spine0 cannot be told apart from it")
    plans = [plan(1, 8.0), doubt, plan(2, 18.0, 0.2, heard), plan(3, 40.0)]
    return make_timeline(Records(steps(*took_s), incidents, plans, [line("degrade_link", FAULT_S), *moves]))


def test_every_moment_is_told_in_seconds_since_the_fault() -> None:
    assert list(describe(told())) == [
        "  0.0 s  link:leaf0--spine0 is degraded",
        "  1.0 s  the first slow step ends, after 1.00 s",
        "  6.0 s  the telemetry ends that opens an incident, whose last word is comm_slow link:leaf0--spine0 (0.80)",
        f"  8.0 s  plan 2: {HEARD}",
        "  8.6 s  2 connections are on other paths",
        " 10.5 s  the first step ends that is not slow any more, after 0.50 s",
        "steps: usually 0.50 s, slow 2.00 s, moved 0.50 s",
    ]


def test_loop_is_closed_when_the_planner_had_heard_of_the_link_and_the_job_is_fast_again() -> None:
    assert told().is_closed
    assert told(incidents=(incident("nic:h0/eth0"),)).is_closed  # its last word does not undo what was heard
    for heard in (
        "leaf0--spine1 counts 20% of its rate: link:leaf0--spine1 needs 5.0 times the wire time per byte",
        "leaf0--spine0 counts 20% of its rate: leaf0/spine0 carries 20% by its speed and errors",
    ):
        assert not told(heard=heard).is_closed
    one_fast_among_slow = told((*USUAL, *SLOW, 0.5, 0.5, 2.0, 0.5, 2.0))
    assert (one_fast_among_slow.back, one_fast_among_slow.back_s) == (None, None)
    never_moved = told((*USUAL, *SLOW, *SLOW), moves=())
    assert (never_moved.moved_ns, never_moved.back, never_moved.plan, never_moved.slow_s) == (None, None, None, 2.0)


def test_only_what_belongs_to_the_fault_is_in_its_timeline() -> None:
    assert told(incidents=(incident(opened_s=9.0),)).incident is None
    timeline = told(moves=(moved(8.0, 1), moved(18.4, 2), moved(41.0, 3)))
    assert (timeline.moved, timeline.moved_ns, timeline.returned) == (1, at(18.4), 1)
    assert timeline.plan is not None
    assert timeline.plan.generation == 2
    with pytest.raises(BadInput, match="nobody wrote down"):
        make_timeline(Records(steps(*USUAL), [], [], []))
    with pytest.raises(BadInput, match="no step that ended before link:leaf0--spine0 was degraded"):
        make_timeline(Records([], [], [], [line("degrade_link", FAULT_S)]))


def test_what_was_noted_is_read_again_in_the_order_of_time(tmp_path: Path) -> None:
    with open_store(f"chdb://{tmp_path}/store") as store, open_control(f"sqlite:///{tmp_path}/control.db") as control:
        migrate(store, Layout(store.database), now_ns=1)
        paths.note_degraded(control, "leaf0--spine0", "to 10%", now_ns=5)
        paths.note_moved(control, "loop/r0-r1", 2, "from here to there", now_ns=7)
        records = paths.read_records(store, control, "loop")
    assert [(each.subject, each.why) for each in records.audit] == [
        (LINK, "to 10%"),
        ("loop/r0-r1", "plan 2: from here to there"),
    ]
    assert (records.steps, records.incidents, records.plans) == ([], [], [])
