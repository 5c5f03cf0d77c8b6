"""The ledger of parts, the topology and checkpoints over HTTP."""

from pathlib import Path

import pytest

from lockstep.config import Settings
from lockstep.fabrics import leaf_spine
from lockstep.sections import PlannerSettings
from lockstep.state.fabric import publish_topology
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from tests.api.build import Api, check_problem, running_api
from tests.api.views.build import incident_on
from tests.planner.checkpoints.build import copy_real


def test_parts_come_page_by_page_and_by_kind(api: Api) -> None:
    names = ["gpu:h0/1", "link:h0/eth0--leaf0", "nic:h0/eth0"]
    save_incidents(api.parts.control, [incident_on(name, f"i-{name}") for name in names], None)
    first = api.get("/api/v1/parts", {"limit": 2}).json()
    rest = api.get("/api/v1/parts", {"limit": 2, "cursor": first["next"]}).json()
    assert [part["component"] for part in first["items"] + rest["items"]] == names
    assert [part["component"] for part in api.get("/api/v1/parts", {"kind": "nic"}).json()["items"]] == names[2:]
    assert api.get("/api/v1/parts", {"flagged": "true"}).json()["items"] == []


def test_part_is_read_by_its_name(api: Api) -> None:
    save_incidents(api.parts.control, [incident_on("link:h0/eth0--leaf0", "i1")], None)
    part = api.get("/api/v1/parts/link:h0/eth0--leaf0").json()
    assert [each["id"] for each in part["history"]] == ["i1"]
    check_problem(api.get("/api/v1/parts/nic:h0/eth7"), 404, "not-found")
    check_problem(api.get("/api/v1/parts/job:train"), 400, "bad-input")


def test_topology_is_read_with_what_is_suspected(api: Api) -> None:
    assert "no topology is known" in check_problem(api.get("/api/v1/topology"), 404, "not-found")
    publish_topology(
        api.parts.control, leaf_spine(hosts=2, nics_per_host=1, leaves=1, spines=1), source="x", now_ns=1
    )
    save_incidents(api.parts.control, [incident_on("link:leaf0--spine0", "i1")], None)
    fabric = api.get("/api/v1/topology").json()
    assert {link["id"]: link["suspects"] for link in fabric["links"]}["leaf0--spine0"] == ["i1"]
    assert fabric["version"]["number"] == 1


def test_checkpoints_of_a_job_are_read(tmp_path: Path, shared_store: Store) -> None:
    copy_real("dcp", tmp_path / "saved" / "team_a")
    settings = Settings(planner=PlannerSettings(checkpoints=f"{tmp_path}/saved/{{job}}"))
    with running_api(tmp_path, shared_store, settings=settings) as api:
        found = api.get("/api/v1/checkpoints", {"job": "team/a"}).json()
        assert [each["checkpoint"]["step"] for each in found["items"]] == [200]
        assert found["back_to"]["path"].endswith("step-200")
        check_problem(api.get("/api/v1/checkpoints"), 422, "bad-request")


@pytest.mark.parametrize("job", ["train", "../x"])
def test_nobody_knows_of_checkpoints_without_the_setting(api: Api, job: str) -> None:
    check_problem(api.get("/api/v1/checkpoints", {"job": job}), 404, "not-found")
