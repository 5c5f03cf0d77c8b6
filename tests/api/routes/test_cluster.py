"""Hosts, parts and jobs as routes give them: read with their rights, page by page."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.config import Settings
from lockstep.fabrics import leaf_spine
from lockstep.host_paths import PathChoice, PathSummary, parse_plan
from lockstep.sections import PlannerSettings
from lockstep.state.fabric import publish_topology, save_path_plan
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from tests.api.build import Api, bearer, check_problem, running_api
from tests.api.dashboard.build import browse
from tests.api.views.build import COMM, NOW, counters, heartbeat, incident_on, load_job, put, reading, step
from tests.builders import SECOND, T0
from tests.planner.checkpoints.build import copy_real
from tests.waiting import PunctualClock


class BriefClock(PunctualClock):
    """A clock on which it is always late in the same second: what is new is as new as can be."""

    def now_ns(self) -> int:
        return self._epoch_ns // SECOND * SECOND + SECOND - 1


@pytest.fixture(scope="module")
def hosts_api(tmp_path_factory: pytest.TempPathFactory, shared_store: Store) -> Iterator[Api]:
    folder: Path = tmp_path_factory.mktemp("hosts")
    with running_api(folder, shared_store, clock=BriefClock()) as running:
        now_ns = running.parts.clock.now_ns()
        hosts = [f"h{number}" for number in range(3)]
        put(shared_store, [heartbeat(host, now_ns) for host in hosts])
        put(shared_store, [reading(host, gpu, f"GPU-{host}-{gpu}", now_ns) for host in hosts for gpu in (0, 1)])
        put(shared_store, [counters(host, nic, now_ns, tx_bytes=1) for host in hosts for nic in ("eth0", "eth1")])
        yield running


@pytest.mark.parametrize(
    ("path", "names", "every"),
    [
        ("agents", ("host",), [("h0",), ("h1",), ("h2",)]),
        ("hosts", ("host",), [("h0",), ("h1",), ("h2",)]),
        ("gpus", ("host", "gpu"), [(host, gpu) for host in ("h0", "h1", "h2") for gpu in (0, 1)]),
        ("nics", ("host", "nic"), [(host, nic) for host in ("h0", "h1", "h2") for nic in ("eth0", "eth1")]),
    ],
)
def test_each_machine_comes_once(
    hosts_api: Api, path: str, names: tuple[str, ...], every: list[tuple[object]]
) -> None:
    since = {} if path == "hosts" else {"since_s": 86_400}
    items = hosts_api.walk(f"/api/v1/{path}", {"limit": 1, **since})
    assert [tuple(item[name] for name in names) for item in items] == every


def test_devices_of_one_host_and_hosts_of_one_job_can_be_chosen(hosts_api: Api) -> None:
    gpus = hosts_api.get("/api/v1/gpus", {"host": "h1", "since_s": 86_400}).json()["items"]
    assert [gpu["gpu_uuid"] for gpu in gpus] == ["GPU-h1-0", "GPU-h1-1"]
    nics = hosts_api.get("/api/v1/nics", {"host": "h9", "since_s": 86_400}).json()
    assert nics == {"items": [], "next": None}
    assert hosts_api.get("/api/v1/hosts", {"job": "none"}).json() == {"items": [], "next": None}
    save_incidents(hosts_api.parts.control, [incident_on("gpu:h1/1", "i1")], None)
    host = hosts_api.get("/api/v1/hosts/h1").json()
    assert (host["host"], host["incidents"], host["jobs"]) == ("h1", ["i1"], [])
    check_problem(hosts_api.get("/api/v1/hosts/h9"), 404, "not-found")


def test_agent_tells_what_is_missing_and_one_that_ended_in_order_is_not_silent(
    hosts_api: Api, shared_store: Store
) -> None:
    now_ns = hosts_api.parts.clock.now_ns()
    lacks = replace(heartbeat("x8", now_ns), stalled={"gpu": T0})
    put(shared_store, [lacks, replace(heartbeat("x9", now_ns - 60 * 10**9), ended=True, gateway="east:8080")])
    found = {agent["host"]: agent for agent in hosts_api.get("/api/v1/agents", {"since_s": 86_400}).json()["items"]}
    assert found["x8"]["missing"] == ["no readings from gpu on x8 since 2023-11-14 22:13:20 UTC"]
    assert [found["x9"][name] for name in ("is_silent", "has_ended", "gateway")] == [False, True, "east:8080"]
    assert "no readings from gpu on x8 since" in browse(hosts_api, "/agents").text
    assert "no readings from gpu on x8 since" in browse(hosts_api, "/").text


JOB = "/api/v1/jobs/team/run-7"


@pytest.fixture(scope="module")
def jobs_api(shared_api: Api, shared_store: Store) -> Api:
    load_job(shared_store, "team/run-7")
    load_job(shared_store, "z")
    put(shared_store, (step("team/run-7", number, 0, T0 + number * SECOND, 0.5) for number in range(5)))
    return shared_api


def test_jobs_come_page_by_page_by_condition_and_one_by_its_id(jobs_api: Api) -> None:
    assert [job["job"] for job in jobs_api.walk("/api/v1/jobs", {"limit": 1})] == ["team/run-7", "z"]
    assert [job["job"] for job in jobs_api.get("/api/v1/jobs", {"job": "z"}).json()["items"]] == ["z"]
    assert jobs_api.get("/api/v1/jobs", {"condition": "running"}).json()["items"] == []
    first = jobs_api.get("/api/v1/jobs?condition=ended&condition=slow&limit=1")
    assert "condition=ended&condition=slow" in first.headers["Link"]
    assert [job["job"] for job in first.json()["items"]] == ["team/run-7"]
    check_problem(jobs_api.get("/api/v1/jobs", {"condition": "tired"}), 422, "bad-request")
    job = jobs_api.get(JOB).json()
    assert (job["job"], job["ranks"], job["condition"], job["step"]) == ("team/run-7", 4, "ended", None)
    check_problem(jobs_api.get("/api/v1/jobs/no/such"), 404, "not-found")


def test_steps_ranks_and_communicators_come_page_by_page(jobs_api: Api) -> None:
    for path, key, every in (
        ("steps", "step", [4, 3, 2, 1, 0]),
        ("ranks", "rank", [0, 1, 2, 3]),
        ("communicators", "comm", [str(COMM)]),
    ):
        assert [item[key] for item in jobs_api.walk(f"{JOB}/{path}", {"limit": 2})] == every


def test_matrix_and_lags_of_the_last_window_and_of_any_stretch_can_be_asked_for(jobs_api: Api) -> None:
    answer = jobs_api.get(f"{JOB}/matrix")
    matrix = answer.json()
    assert (matrix["to_ns"], matrix["cells"]["ms"]) == (NOW, [1.0, 1.0, 3.0, 1.0])
    tag = answer.headers["ETag"]
    again = jobs_api.client.get(f"{JOB}/matrix", headers={**answer.request.headers, "If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    query: dict[str, str | int] = {"from_ns": T0, "to_ns": T0 + 2 * SECOND, "comm": str(COMM)}
    matrix = jobs_api.get(f"{JOB}/matrix", query).json()
    assert (matrix["from_ns"], matrix["comm"], len(matrix["ranks"])) == (T0, str(COMM), 4)
    lags = jobs_api.get(f"{JOB}/lags", {"columns": 30}).json()
    assert lags["times_ns"][-1] == NOW - 10 * SECOND
    assert [row[-1] for row in lags["lag_ms"]] == [0.0, 0.0, 0.0, 0.6]


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ({"from_ns": 5}, 400, "come together"),
        ({"from_ns": 5, "to_ns": 5}, 400, "has to be before"),
        ({"from_ns": 0, "to_ns": 10**18}, 400, "the most that is answered"),
        ({"from_ns": -1, "to_ns": 5}, 422, "from_ns"),
        ({"attempt": 70_000}, 422, "attempt"),
    ],
)
def test_stretch_that_makes_no_sense_is_refused(jobs_api: Api, query: dict[str, int], status: int, says: str) -> None:
    for path in ("matrix", "lags"):
        answer = jobs_api.get(f"{JOB}/{path}", query)
        assert says in check_problem(answer, status, "bad-input" if status == 400 else "bad-request")


def test_communicator_that_is_none_is_refused_and_a_job_that_nobody_knows_has_nothing(jobs_api: Api) -> None:
    for comm, status in (("x", 422), ("9" * 20, 400), ("5", 404)):
        assert jobs_api.get(f"{JOB}/matrix", {"comm": comm}).status_code == status
    for path in ("ranks", "communicators", "matrix", "lags"):
        check_problem(jobs_api.get(f"/api/v1/jobs/no/such/{path}"), 404, "not-found")


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
    way: dict[str, Any] = {"nic": "eth0", "dst": "h1", "dst_nic": "eth0", "destination": "10.0.0.2"}
    choice = PathChoice(connection="f0", links=("a",), sports=(sport,), **way)
    summary = PathSummary(generation=0, made_ns=1, flows=1, with_ports=1, max_use=0.5, bound=0.5)
    return save_path_plan(api.parts.control, summary, {host: [choice]}, api.lease("paths"), True)


def test_a_host_reads_its_paths_alone_and_again_only_when_they_changed(api: Api) -> None:
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
    headers = mine | {"If-None-Match": f'"{number}"'}
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
