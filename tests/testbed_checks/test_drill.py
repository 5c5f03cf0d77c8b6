"""The timeline of a drill is made of what was written down, and says plainly what did not happen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from lockstep.execution import Execution, Step
from lockstep.state.database import open_control
from lockstep.state.documents import AuditLine
from lockstep.state.incidents import VerdictChange
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import open_store
from tests.planner import build
from tests.testbed.drill import timeline as drill
from tests.testbed.drill.phases import run_drill
from tests.testbed.drill.timeline import Phase, Records, Timeline, describe, make_timeline
from tests.testbed.training.checkpointed import LoggedStep

FAULT_S, CURE_S = 10.0, 30.0
DRILL: dict[str, Any] = {"incident": "i", "job": "7"}  # Any: fields of records


def at(seconds: float) -> int:
    return int(seconds * NS_PER_S)


def line(what: str, seconds: float, why: str = "host dies") -> AuditLine:
    return AuditLine(id=1, ts_ns=at(seconds), who="drill", what=what, subject="host:h1", why=why)


def verdict(component: str = "host:h1", seconds: float = 25.0, confidence: float = 0.95) -> VerdictChange:
    what = {"incident": "i", "state": "open", "fault_class": "crash", "grade": "isolate", "reason": "gone"}
    return VerdictChange.model_validate(
        {**what, "component": component, "ts_ns": at(seconds), "confidence": confidence}
    )


def execution(*acts: tuple[str, float], state: str = "done") -> Execution:
    steps = tuple(Step(act=act, subject="h1", state="done", ended_ns=at(end_s)) for act, end_s in acts)
    return build.execution(decision="d", steps=steps, state=state, began_ns=at(26), ended_ns=at(acts[-1][1]), **DRILL)


def logged(step: int, seconds: float, resumed_from: int = 0) -> LoggedStep:
    return LoggedStep(step=step, loss=1.0, ranks=3, layout="3x1", resumed_from=resumed_from, time_ns=at(seconds))


BEFORE = [logged(second, second) for second in range(1, 11)]
AGAIN = [logged(5 + step, 40 + step, resumed_from=5) for step in range(1, 11)]  # up to step 15 at 50 s
REPLACED = execution(("isolate", 27), ("restart", CURE_S), ("watch", 32))


def records(
    runs: Sequence[Execution] = (REPLACED,),
    verdicts: Sequence[VerdictChange] = (verdict("host:h2", 24), verdict(), verdict(seconds=33, confidence=0.5)),
    more: Sequence[AuditLine] = (),
    held_because: str | None = None,
) -> Records:
    operations = [at(half / 2) for half in range(1, 23)]  # two a second up to a second after the fault
    audit = [line("break_part", FAULT_S), *more]
    what = {"part": "host:h1", "grade": "isolate", "held_because": held_because}
    made = build.decision("replace", ("h1",), id="d", created_ns=at(26), **what, **DRILL)
    back = build.isolated("h1", decision="d", job="7", state="returned", changed_ns=at(50))
    steps = [*BEFORE, *AGAIN]
    return Records(audit, verdicts, [made] if verdicts else [], runs, [back] if runs else [], operations, steps)


def only(timeline: Timeline) -> Phase:
    (phase,) = timeline.phases
    return phase


def test_host_that_is_replaced_has_every_moment_and_what_it_cost() -> None:
    timeline = make_timeline(records(), loss_difference=0.0)
    phase = only(timeline)
    assert phase.verdict == "crash host:h1 (0.95, isolate)"
    moments = {"named": 15.0, "decided": 16.0, "drained": 17.0, "started again": 20.0, "running": 22.0}
    assert phase.seconds == moments | {"stepping": 31.0, "returned": 40.0}
    assert phase.speed == pytest.approx(0.05), "two operations in the twenty seconds before the cure"
    assert phase.lost_gpu_hours == pytest.approx(3 * 35 / 3_600), "forty seconds, in which it came five steps on"
    assert phase.idle_gpu_hours == pytest.approx(3 * 40 * 0.95 / 3_600)
    assert (timeline.steps, timeline.missing, timeline.problems) == (15, (), [])
    assert [each.split("  ")[-1] for each in describe(timeline)][1:3] == ["named", "decided"]


def test_part_that_is_well_again_would_have_cost_no_more_had_nobody_acted() -> None:
    run = execution(("isolate", 27), ("release", 31), state="undone")
    mended = line("mend_part", 28, "it goes on")
    phase = only(make_timeline(records([run], more=[mended], held_because="one is the limit"), 0.0))
    assert phase.seconds["undone"] == 21.0
    assert phase.idle_gpu_hours == pytest.approx(3 * 18 * (1 - 1 / 18) / 3_600)
    assert phase.as_json()["held_because"] == "one is the limit"


def test_what_did_not_happen_is_a_problem() -> None:
    nothing = make_timeline(records(runs=(), verdicts=()), loss_difference=0.1)
    never = [f"host dies: never {what}" for what in ("named", "decided", "stepping", "returned")]
    assert nothing.problems == [*never, "losses differ by 1.0e-01"]
    held = make_timeline(records(held_because="one is the limit"), 0.0)
    assert held.problems == ["host dies: never undone"]
    early = make_timeline(records(verdicts=[verdict(seconds=9)]), 0.0)
    assert "host dies: never named" in early.problems
    some = records()
    gap = Records(**{**vars(some), "steps": [*BEFORE, logged(12, 41), logged(13, 51)]})
    assert make_timeline(gap, 0.0).problems == ["1 steps were never done"]


def test_phase_that_is_not_known_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no phase flood; there are host dies, false verdict"):
        run_drill(tmp_path / "drill", ["host dies", "flood"], print)
    assert not (tmp_path / "drill").exists()


def test_what_was_noted_is_read_again_in_the_order_of_time(tmp_path: Path) -> None:
    with open_store(f"chdb://{tmp_path}/store") as store, open_control(f"sqlite:///{tmp_path}/control.db") as control:
        migrate(store, Layout(store.database), now_ns=1)
        drill.note_broken(control, "host dies", "host:h1", now_ns=5)
        drill.note_mended(control, "host:h1", "it goes on", now_ns=7)
        found = drill.read_records(store, control, tmp_path / "steps.jsonl")
    assert [(each.what, each.subject, each.why) for each in found.audit] == [
        ("break_part", "host:h1", "host dies"),
        ("mend_part", "host:h1", "it goes on"),
    ]
    assert (found.operations, found.steps, found.runs) == ([], [], [])
