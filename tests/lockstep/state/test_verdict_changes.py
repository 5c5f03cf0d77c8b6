"""What was said of an incident before is kept: a line for each change of mind, none for mere figures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.incidents import list_verdict_changes, save_incidents
from lockstep.verdict import Incident
from tests.lockstep.state.build import incident


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as database:
        yield database


def said(updated_ns: int, identity: str = "i1", **verdict: object) -> Incident:
    usual = incident(identity, updated_ns=updated_ns)
    return usual.model_copy(update={"verdict": usual.verdict.model_copy(update=verdict)})


def test_change_of_mind_is_a_line_and_new_figures_are_none(control: ControlDatabase) -> None:
    for told in (said(200), said(201, confidence=0.1), said(202, grade="note"), said(203, grade="note")):
        save_incidents(control, [told], None)
    assert [(line.ts_ns, line.grade) for line in list_verdict_changes(control, "i1")] == [
        (200, "isolate"),
        (202, "note"),
    ]


def test_end_is_a_line_with_its_reason(control: ControlDatabase) -> None:
    save_incidents(control, [said(200)], None)
    save_incidents(control, [incident("i1", state="closed", updated_ns=300)], None)
    last = list_verdict_changes(control, "i1")[-1]
    assert (last.state, last.reason, last.component) == ("closed", "the NIC was replaced", "nic:h3/eth1")


def test_lines_of_incidents_that_are_written_together_stay_apart(control: ControlDatabase) -> None:
    save_incidents(control, [said(200), said(200, "i2"), said(201, component="gpu:h1/0")], None)
    assert [line.component for line in list_verdict_changes(control, "i1")] == ["nic:h3/eth1", "gpu:h1/0"]
    assert [line.component for line in list_verdict_changes(control, "i2")] == ["nic:h3/eth1"]
    assert list_verdict_changes(control, "i3") == []
