"""Nodes that are out of service are listed, tested, returned and sent back from the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.execution import PartIdentity
from lockstep.state.decisions import list_node_orders, save_decisions, save_isolated
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import take_lease
from lockstep.store.store import Store
from tests.api.build import Api, running_api
from tests.cli.commands import Run, check_failure
from tests.lockstep.state.build import decision, incident
from tests.lockstep.state.test_executions import isolated


@pytest.fixture
def api(tmp_path: Path, embedded_store: Store) -> Iterator[Api]:
    with running_api(tmp_path, embedded_store) as running:
        control = running.parts.control
        save_incidents(control, [incident("i1")], None)
        save_decisions(control, [decision("d1"), decision("d2")], None)
        lease = take_lease(control, "planner", "test", 10**12, running.parts.clock.now_ns())
        assert lease is not None
        save_isolated(control, isolated(message="ECC errors", tests=2), lease)
        save_isolated(control, isolated(decision="d2", node="h5", state="returned"), lease)
        yield running


@pytest.fixture
def to(api: Api) -> tuple[str, ...]:
    return ("--server", str(api.client.base_url), "--token", api.make_token("act"))


def test_nodes_that_are_out_of_service_are_listed_with_what_was_said_last(lockstep: Run, to: tuple[str, ...]) -> None:
    listed = lockstep("isolations", "list", *to)
    assert (listed.code, "ECC errors" in listed.out, "h5" in listed.out) == (0, True, False)
    every = json.loads(lockstep("isolations", "list", "--all", "--json", *to).out)
    assert [item["node"] for item in every["items"]] == ["h3", "h5"]


def test_word_of_a_person_reaches_the_planner(lockstep: Run, api: Api, to: tuple[str, ...]) -> None:
    for kind in ("test", "return", "repaired"):
        outcome = lockstep("isolations", kind, "h3", "--why", "I know", *to)
        assert (outcome.code, outcome.err) == (0, "")
    sent = lockstep("isolations", "rma", "h3", "--serial", "132", "--ticket", "RMA-7", *to)
    assert sent.out.startswith("rma h3: written down")
    orders = list_node_orders(api.parts.control, isolated())
    assert [order.kind for order in orders] == ["test", "return", "repaired", "rma"]
    assert orders[-1].part == PartIdentity(serial="132", ticket="RMA-7")


def test_refusal_of_the_server_is_one_sentence(lockstep: Run, api: Api, to: tuple[str, ...]) -> None:
    check_failure(lockstep("isolations", "test", "h5", *to), "Lockstep keeps no node 'h5' out of service")
    reader = (*to[:3], api.make_token("read"))
    check_failure(lockstep("isolations", "return", "h3", *reader), "a token of scope read does not allow acting")
