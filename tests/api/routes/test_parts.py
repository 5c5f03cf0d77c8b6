"""The ledger of parts, the topology, checkpoints, and the paths that hosts ask for and report on, over HTTP."""

from pathlib import Path

from lockstep.config import Settings
from lockstep.fabrics import leaf_spine
from lockstep.host_paths import PathChoice, PathSummary, parse_plan
from lockstep.sections import PlannerSettings
from lockstep.state.fabric import publish_topology, save_path_plan
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from tests.api.build import Api, bearer, check_problem, running_api
from tests.api.views.build import incident_on
from tests.planner.checkpoints.build import copy_real


def test_parts_come_page_by_page_and_by_kind_and_name(api: Api) -> None:
    names = ["gpu:h0/1", "link:h0/eth0--leaf0", "nic:h0/eth0"]
    save_incidents(api.parts.control, [incident_on(name, f"i-{name}") for name in names], None)
    assert [part["component"] for part in api.walk("/api/v1/parts", {"limit": 2})] == names
    assert [part["component"] for part in api.get("/api/v1/parts", {"kind": "nic"}).json()["items"]] == names[2:]
    assert api.get("/api/v1/parts", {"flagged": "true"}).json()["items"] == []
    part = api.get("/api/v1/parts/link:h0/eth0--leaf0").json()
    assert [each["id"] for each in part["history"]] == ["i-link:h0/eth0--leaf0"]
    check_problem(api.get("/api/v1/parts/nic:h0/eth7"), 404, "not-found")
    check_problem(api.get("/api/v1/parts/job:train"), 400, "bad-input")


def test_checkpoints_of_a_job_are_read(tmp_path: Path, shared_store: Store) -> None:
    copy_real("dcp", tmp_path / "saved" / "team_a")
    settings = Settings(planner=PlannerSettings(checkpoints=f"{tmp_path}/saved/{{job}}"))
    with running_api(tmp_path, shared_store, settings=settings) as api:
        found = api.get("/api/v1/checkpoints", {"job": "team/a"}).json()
        assert [each["checkpoint"]["step"] for each in found["items"]] == [200]
        assert found["back_to"]["path"].endswith("step-200")
        check_problem(api.get("/api/v1/checkpoints"), 422, "bad-request")


def test_topology_is_read_with_what_is_suspected_and_no_checkpoints_without_the_setting(api: Api) -> None:
    assert "no topology is known" in check_problem(api.get("/api/v1/topology"), 404, "not-found")
    fabric = leaf_spine(hosts=2, nics_per_host=1, leaves=1, spines=1)
    publish_topology(api.parts.control, fabric, source="x", now_ns=1)
    save_incidents(api.parts.control, [incident_on("link:leaf0--spine0", "i1")], None)
    shown = api.get("/api/v1/topology").json()
    assert {link["id"]: link["suspects"] for link in shown["links"]}["leaf0--spine0"] == ["i1"]
    assert shown["version"]["number"] == 1
    for job in ("train", "../x"):
        check_problem(api.get("/api/v1/checkpoints", {"job": job}), 404, "not-found")


def publish(api: Api, host: str = "h0", sport: int = 4000) -> int:
    choice = PathChoice(
        connection="f0", nic="eth0", dst="h1", dst_nic="eth0", links=("a",), destination="10.0.0.2", sports=(sport,)
    )
    summary = PathSummary(generation=0, made_ns=1, flows=1, with_ports=1, max_use=0.5, bound=0.5)
    return save_path_plan(api.parts.control, summary, {host: [choice]}, api.lease("paths"), True)


def test_a_host_reads_its_paths_and_nobody_else_s(api: Api) -> None:
    check_problem(api.get("/api/v1/paths"), 404, "not-found")
    check_problem(api.get("/api/v1/paths/hosts/h7"), 404, "not-found")
    number = publish(api)
    mine, other = (bearer(api.make_token("ingest", host)) for host in ("h0", "h1"))
    assert api.client.get("/api/v1/paths/hosts/h0", headers=mine).json()["choices"][0]["sports"] == [4000]
    check_problem(api.client.get("/api/v1/paths/hosts/h0", headers=other), 403, "wrong-scope")
    told = {"generation": 1, "planned": 1, "enforced": 1}
    check_problem(api.client.post("/api/v1/paths/hosts/h1/count", json=told, headers=mine), 403, "wrong-host")
    plan = parse_plan(api.get("/api/v1/paths/hosts/h0", {"form": "file"}).content)
    assert (plan.generation, plan.entries[0].destination, plan.entries[0].ports) == (number, "10.0.0.2", (4000,))


def test_what_has_not_changed_is_not_sent_again_and_plans_are_listed_newest_first(api: Api) -> None:
    number = publish(api)
    token = api.make_token("ingest", "h0")
    headers = bearer(token) | {"If-None-Match": f'"{number}"'}
    assert api.client.get("/api/v1/paths/hosts/h0", headers=headers).status_code == 304
    publish(api, sport=4001)
    answer = api.client.get("/api/v1/paths/hosts/h0", headers=headers)
    assert (answer.status_code, answer.headers["ETag"]) == (200, f'"{number + 1}"')
    numbers = [publish(api, sport=4000 + turn) for turn in range(3)]
    listed = api.get("/api/v1/paths/history", {"limit": 2}).json()["items"]
    assert [plan["generation"] for plan in listed] == numbers[:0:-1]


def test_the_share_of_connections_that_keep_to_the_plan_is_reported(api: Api) -> None:
    number = publish(api)
    assert api.get("/api/v1/paths").json()["enforced_share"] is None
    for host, enforced in (("h0", 3), ("h1", 1)):
        told = {"generation": number, "planned": 4, "enforced": enforced, "reasons": {"busy": 4 - enforced}}
        headers = bearer(api.make_token("ingest", host))
        assert api.client.post(f"/api/v1/paths/hosts/{host}/count", json=told, headers=headers).status_code == 204
    seen = api.get("/api/v1/paths").json()
    assert (seen["enforced_share"], seen["planned_connections"], seen["generation"]) == (0.5, 8, number)
    assert seen["hosts"]["h1"]["reasons"] == {"busy": 3}
