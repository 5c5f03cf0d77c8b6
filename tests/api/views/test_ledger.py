"""The ledger knows what a part did before, follows a GPU by its UUID, and says when one sent back is here again."""

from typing import Any

import pytest

from api.views.ledger import find_part, list_parts
from api.views.part_names import check_component, concerns
from lockstep.errors import BadInput, NotPresent
from lockstep.execution import NodeOrder, Outcome, PartIdentity
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import give_node_order, save_decisions, save_isolated, save_outcome
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import take_lease
from lockstep.store.store import Store
from tests.api.views.build import happening, incident_on, put, reading
from tests.builders import SECOND, T0
from tests.lockstep.state.build import decision
from tests.lockstep.state.test_executions import isolated

DAY = 86_400 * SECOND
NOW = T0 + 10 * DAY


def isolate(control: ControlDatabase, component: str, node: str, **fields: Any) -> None:
    """Take a node out of service under the decision d1 on the incident i1, which must be there."""
    lease = take_lease(control, "planner", "test", ttl_ns=SECOND, now_ns=T0)
    assert lease is not None
    save_decisions(control, [decision("d1", incident="i1")], None)
    out = {"node": node, "component": component, "since_ns": T0, "changed_ns": T0}
    save_isolated(control, isolated(**(out | fields)), lease)


def test_part_is_listed_with_what_it_did(shared_store: Store, control: ControlDatabase) -> None:
    put(shared_store, [happening("p0", T0, "nic:p0/eth0"), happening("p0", T0, "nic:p0/eth1", severity="info")])
    told = [incident_on("nic:p0/eth0", "i1"), incident_on("nic:p0/eth0", "i2"), incident_on("job:train", "i3")]
    save_incidents(control, told, None)
    save_outcome(control, Outcome(incident="i1", was_right=True, who="ann", ts_ns=T0 + DAY))
    save_outcome(control, Outcome(incident="i2", was_right=False, part="link:p0/eth0--leaf1", who="ann", ts_ns=T0))
    isolate(control, "nic:p0/eth0", "p0")
    parts = {part.component: part for part in list_parts(shared_store, control, NOW) if "p0" in part.component}
    nic, cable = parts["nic:p0/eth0"], parts["link:p0/eth0--leaf1"]
    assert (nic.incidents, nic.confirmed, nic.cleared, nic.isolations, nic.severe_events) == (2, 1, 1, 1, 1)
    assert (nic.last_ns, nic.last_at) == (T0 + DAY, "2023-11-15T22:13:20Z")
    assert (cable.incidents, cable.confirmed) == (0, 1)
    assert sorted(parts) == ["link:p0/eth0--leaf1", "nic:p0/eth0"], "a NIC that told nothing severe has no history"
    assert [part.kind for part in list_parts(shared_store, control, NOW, "link")] == ["link"]


def test_host_has_the_history_of_all_its_parts(shared_store: Store, control: ControlDatabase) -> None:
    put(shared_store, [happening("q0", T0 + n, f"gpu:q0/{n}") for n in range(2)])
    save_incidents(control, [incident_on("nic:q0/eth0", "i1"), incident_on("gpu:q1/0", "i2")], None)
    part = find_part(shared_store, control, "host:q0", NOW)
    assert [each.id for each in part.history] == ["i1"]
    assert [event.component for event in part.events] == ["gpu:q0/1", "gpu:q0/0"]
    assert (part.incidents, part.severe_events) == (1, 2)


def test_gpu_that_moved_after_it_was_named_is_flagged_where_it_is_now(
    shared_store: Store, control: ControlDatabase
) -> None:
    put(shared_store, [reading("r0", 3, "GPU-bad", T0 - SECOND), reading("r7", 0, "GPU-bad", T0 + 5 * DAY)])
    save_incidents(control, [incident_on("gpu:r0/3", "i1")], None)
    flags = {part.component: part.flags for part in list_parts(shared_store, control, NOW) if part.flags}
    sentence = "GPU-bad was gpu:r0/3 when incident i1 named it, and is here since 2023-11-19T22:13:20Z"
    assert flags["gpu:r7/0"] == (sentence,)
    part = find_part(shared_store, control, "gpu:r7/0", NOW)
    assert part.flags == (sentence,)


def test_gpu_is_followed_by_its_uuid(shared_store: Store, control: ControlDatabase) -> None:
    put(shared_store, [reading("s0", 1, "GPU-s", T0 - SECOND), reading("s0", 1, "GPU-s", T0 + SECOND)])
    put(shared_store, [reading("s9", 2, "GPU-s", T0 + 3 * DAY), reading("s0", 1, "GPU-new", T0 + 4 * DAY)])
    put(shared_store, [reading("s0", 1, "GPU-new", T0 + 5 * DAY)])
    told = [incident_on("gpu:s0/1", "i1"), incident_on("gpu:s0/1", "i2", opened_ns=T0 + 4 * DAY + SECOND)]
    save_incidents(control, told, None)
    old, new = (find_part(shared_store, control, f"gpu:GPU-{name}", NOW) for name in ("s", "new"))
    assert [each.id for each in old.history] == ["i1"]
    assert [each.id for each in new.history] == ["i2"]
    assert [seen.component for seen in old.sightings] == ["gpu:s0/1", "gpu:s9/2"]


def test_gpu_that_was_sent_back_and_is_here_again_is_flagged(shared_store: Store, control: ControlDatabase) -> None:
    put(shared_store, [reading("u0", 0, "GPU-rma", T0), reading("u5", 4, "GPU-rma", T0 + 8 * DAY)])
    save_incidents(control, [incident_on("host:u0", "i1")], None)
    isolate(control, "host:u0", "u0")
    part = PartIdentity(uuid="GPU-rma", ticket="RMA-17")
    give_node_order(
        control, NodeOrder(decision="d1", node="u0", kind="rma", who="ann", part=part, ts_ns=T0 + 2 * DAY)
    )
    flags = {each.component: each.flags for each in list_parts(shared_store, control, NOW) if each.flags}
    (sentence,) = flags["gpu:u5/4"]
    assert sentence.startswith("GPU-rma was sent back from u0 on 2023-11-16T22:13:20Z (ticket RMA-17)")
    assert sentence.endswith("and is here again, seen until 2023-11-22T22:13:20Z")
    assert "gpu:u0/0" not in flags, "there it was before"


def test_part_that_is_named_after_its_repair_is_flagged(shared_store: Store, control: ControlDatabase) -> None:
    told = [incident_on("nic:v0/eth0", "i1"), incident_on("nic:v0/eth0", "i2", opened_ns=T0 + 3 * DAY)]
    save_incidents(control, told, None)
    isolate(control, "nic:v0/eth0", "v0", state="returned", repaired_ns=T0 + DAY)
    part = find_part(shared_store, control, "nic:v0/eth0", NOW)
    assert part.flags == ("named again by incident i2, after its repair of 2023-11-15T22:13:20Z",)
    assert [each.state for each in part.out_of_service] == ["returned"]


def test_part_without_a_history_is_not_there_and_a_name_of_none_refused(
    shared_store: Store, control: ControlDatabase
) -> None:
    with pytest.raises(NotPresent, match="no events for nic:zz/eth9 in the last 90 days"):
        find_part(shared_store, control, "nic:zz/eth9", NOW)
    for name in ("", "nic", "nic:", ":x", "job:train", "rank:3", "nic:\0", "nic:" + "x" * 300):
        with pytest.raises(BadInput, match="is no name of a part"):
            check_component(name)


@pytest.mark.parametrize(
    ("part", "component", "belongs"),
    [
        ("host:h3", "gpu:h3/1", True),
        ("host:h3", "link:h3/eth1--leaf1", True),
        ("host:h3", "gpu:h33/1", False),
        ("switch:leaf1", "link:h3/eth1--leaf1/12", True),
        ("port:leaf1/12", "link:h3/eth1--leaf1/12", True),
        ("port:leaf1/1", "link:h3/eth1--leaf1/12", False),
        ("nic:h3/eth1", "host:h3", False),
        ("host:h3", "job:h3", False),
    ],
)
def test_history_of_a_part_holds_what_concerns_it(part: str, component: str, belongs: bool) -> None:
    assert concerns(part, component) is belongs
