"""Whoever watches `lockstep up` reads a line when an incident opens, and one when it closes."""

import pytest

from cli.up import _print_incident
from lockstep.verdict import Incident
from tests.builders import SECOND, T0
from tests.lockstep.state.build import incident


def told(**changes: object) -> Incident:
    whole = incident("i1")
    verdict = whole.verdict.model_copy(update={"since_ns": T0, "component": "nic:[/h3]/eth1"})
    opened = {"opened_ns": T0 + 12 * SECOND, "updated_ns": T0 + 12 * SECOND, "verdict": verdict}
    return whole.model_copy(update=opened | changes)


def test_incident_is_one_line_when_it_opens_and_one_when_it_closes(capsys: pytest.CaptureFixture[str]) -> None:
    _print_incident(told(), T0 + 17 * SECOND + SECOND // 2)
    assert capsys.readouterr().out == (
        "22:13:32 comm_slow nic:[/h3]/eth1 (0.97, reported 17.5 s after it began): "
        "h3's eth1 sends at a tenth of its rate, says Zoë\n"
    )
    _print_incident(told(updated_ns=T0 + 17 * SECOND), T0 + 18 * SECOND)
    assert capsys.readouterr().out == ""
    _print_incident(
        told(state="closed", updated_ns=T0 + 60 * SECOND, closed_because="the part has been normal again"), T0
    )
    assert capsys.readouterr().out == "22:14:20 closed nic:[/h3]/eth1: the part has been normal again\n"
