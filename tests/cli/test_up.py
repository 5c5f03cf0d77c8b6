"""An incident is one line when it opens and one when it closes, whatever its names are."""

import pytest

from cli.up import _announce
from lockstep.verdict import Incident
from tests.builders import SECOND, T0
from tests.lockstep.state.build import incident


def told(**changes: object) -> Incident:
    whole = incident("i1")
    verdict = whole.verdict.model_copy(update={"since_ns": T0, "component": "nic:[/h3]/eth1"})
    opened = {"opened_ns": T0 + 12 * SECOND, "updated_ns": T0 + 12 * SECOND, "verdict": verdict}
    return whole.model_copy(update=opened | changes)


def test_incident_that_opens_is_one_line_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    _announce(told())
    assert capsys.readouterr().out == (
        "22:13:32 comm_slow nic:[/h3]/eth1 (0.97, 12 s after it began): "
        "h3's eth1 sends at a tenth of its rate, says Zoë\n"
    )


def test_incident_that_goes_on_says_nothing_more(capsys: pytest.CaptureFixture[str]) -> None:
    _announce(told(updated_ns=T0 + 17 * SECOND))
    assert capsys.readouterr().out == ""


def test_incident_that_closes_is_one_line_with_why(capsys: pytest.CaptureFixture[str]) -> None:
    _announce(told(state="closed", updated_ns=T0 + 60 * SECOND, closed_because="the part has been normal again"))
    assert capsys.readouterr().out == "22:14:20 closed nic:[/h3]/eth1: the part has been normal again\n"
