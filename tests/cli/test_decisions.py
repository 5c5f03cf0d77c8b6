"""Decisions are listed, shown, approved, rejected and undone from the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.execution import PartIdentity
from lockstep.state.decisions import list_node_orders, list_orders, list_outcomes, save_decisions, save_isolated
from lockstep.state.incidents import save_incidents
from tests.api.build import Api, running_api
from tests.api.fake_store import FakeStore
from tests.cli.commands import Run, check_failure
from tests.lockstep.state.build import decision, incident
from tests.lockstep.state.test_executions import isolated


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running_api(tmp_path, FakeStore()) as running:
        expires_ns = running.parts.clock.now_ns() + 10**15
        told = {"held_because": "the verdict is stale", "advice": "save every 9 min"}
        made = decision("d1").model_copy(update={"expires_ns": expires_ns, **told})
        save_incidents(running.parts.control, [incident("i1")], None)
        save_decisions(running.parts.control, [made], None)
        yield running


@pytest.fixture
def to(api: Api) -> tuple[str, ...]:
    return ("--server", str(api.client.base_url), "--token", api.make_token("act"))


def test_decisions_are_listed_and_a_person_s_word_kept(lockstep: Run, to: tuple[str, ...], api: Api) -> None:
    listed, shown = lockstep("decisions", "list", *to), lockstep("decisions", "show", "d1", *to)
    assert (listed.code, shown.code) == (0, 0)
    assert "a spare is cheaper than waiting" in listed.out
    assert "held: the verdict is stale" in shown.out
    assert "goes on slowly" in shown.out
    assert "advice: save every 9 min" in shown.out
    assert json.loads(lockstep("decisions", "show", "d1", "--json", *to).out)["id"] == "d1"
    for kind in ("approve", "reject", "undo"):
        outcome = lockstep("decisions", kind, "d1", "--why", "I know", *to)
        assert (outcome.code, outcome.err) == (0, "")
    assert [order.kind for order in list_orders(api.parts.control, "d1")] == ["approve", "reject", "undo"]
    assert lockstep("decisions", "outcome", "i1", "--right", "--why", "cable replaced", *to).code == 0
    assert list_outcomes(api.parts.control)["i1"].was_right
    assert json.loads(lockstep("decisions", "scorecard", *to).out)["right"] == 1
    check_failure(lockstep("decisions", "show", "d9", *to), "there is no decision 'd9'")
    reader = (*to[:3], api.make_token("read"))
    check_failure(lockstep("decisions", "undo", "d1", *reader), "a token of scope read does not allow acting")


@pytest.fixture
def api_with_nodes_out(api: Api) -> Api:
    control = api.parts.control
    save_decisions(control, [decision("d2")], None)
    save_isolated(control, isolated(message="ECC errors", tests=2), api.lease("planner"))
    save_isolated(control, isolated(decision="d2", node="h5", state="returned"), api.lease("planner"))
    return api


def test_nodes_out_are_listed_and_a_person_s_word_kept(
    lockstep: Run, api_with_nodes_out: Api, to: tuple[str, ...]
) -> None:
    listed = lockstep("isolations", "list", *to)
    assert (listed.code, "ECC errors" in listed.out, "h5" in listed.out) == (0, True, False)
    every = json.loads(lockstep("isolations", "list", "--all", "--json", *to).out)
    assert [item["node"] for item in every["items"]] == ["h3", "h5"]
    for kind in ("test", "return", "repaired"):
        outcome = lockstep("isolations", kind, "h3", "--why", "I know", *to)
        assert (outcome.code, outcome.err) == (0, "")
    sent = lockstep("isolations", "rma", "h3", "--serial", "132", "--ticket", "RMA-7", *to)
    assert sent.out.startswith("rma h3: written down")
    orders = list_node_orders(api_with_nodes_out.parts.control, isolated())
    assert [order.kind for order in orders] == ["test", "return", "repaired", "rma"]
    assert orders[-1].part == PartIdentity(serial="132", ticket="RMA-7")
    check_failure(lockstep("isolations", "test", "h5", *to), "Lockstep keeps no node 'h5' out of service")
    reader = (*to[:3], api_with_nodes_out.make_token("read"))
    check_failure(lockstep("isolations", "return", "h3", *reader), "a token of scope read does not allow acting")
