"""Decisions are listed, shown, approved, rejected and undone from the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.state.decisions import list_orders, list_outcomes, save_decisions
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from tests.api.build import Api, running_api
from tests.cli.commands import Run, check_failure
from tests.lockstep.state.build import decision, incident


@pytest.fixture
def api(tmp_path: Path, embedded_store: Store) -> Iterator[Api]:
    with running_api(tmp_path, embedded_store) as running:
        expires_ns = running.parts.clock.now_ns() + 10**15
        made = decision("d1").model_copy(
            update={"expires_ns": expires_ns, "held_because": "the verdict is stale", "advice": "save every 9 min"}
        )
        save_incidents(running.parts.control, [incident("i1")], None)
        save_decisions(running.parts.control, [made], None)
        yield running


@pytest.fixture
def to(api: Api) -> tuple[str, ...]:
    return ("--server", str(api.client.base_url), "--token", api.make_token("act"))


def test_decisions_are_listed_and_shown_with_every_alternative(lockstep: Run, to: tuple[str, ...]) -> None:
    listed, shown = lockstep("decisions", "list", *to), lockstep("decisions", "show", "d1", *to)
    assert (listed.code, shown.code) == (0, 0)
    assert "a spare is cheaper than waiting" in listed.out
    assert "held: the verdict is stale" in shown.out
    assert "goes on slowly" in shown.out
    assert "advice: save every 9 min" in shown.out
    assert json.loads(lockstep("decisions", "show", "d1", "--json", *to).out)["id"] == "d1"


def test_word_of_a_person_reaches_the_planner(lockstep: Run, api: Api, to: tuple[str, ...]) -> None:
    for kind in ("approve", "reject", "undo"):
        outcome = lockstep("decisions", kind, "d1", "--why", "I know", *to)
        assert (outcome.code, outcome.err) == (0, "")
    assert [order.kind for order in list_orders(api.parts.control, "d1")] == ["approve", "reject", "undo"]


def test_outcome_is_confirmed_and_scored(lockstep: Run, api: Api, to: tuple[str, ...]) -> None:
    assert lockstep("decisions", "outcome", "i1", "--right", "--why", "cable replaced", *to).code == 0
    assert list_outcomes(api.parts.control)["i1"].was_right
    assert json.loads(lockstep("decisions", "scorecard", *to).out)["right"] == 1


def test_refusal_of_the_server_is_one_sentence(lockstep: Run, api: Api, to: tuple[str, ...]) -> None:
    check_failure(lockstep("decisions", "show", "d9", *to), "there is no decision 'd9'")
    reader = (*to[:3], api.make_token("read"))
    check_failure(lockstep("decisions", "undo", "d1", *reader), "a token of scope read does not allow acting")
