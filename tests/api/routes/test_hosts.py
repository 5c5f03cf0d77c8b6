"""Agents, hosts, GPUs and NICs over HTTP, page by page."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from tests.api.build import Api, check_problem, running_api
from tests.api.dashboard.build import browse
from tests.api.views.build import counters, heartbeat, incident_on, put, reading
from tests.builders import SECOND, T0
from tests.waiting import PunctualClock


class BriefClock(PunctualClock):
    """A clock on which it is always late in the same second: what is new is as new as can be."""

    def now_ns(self) -> int:
        return self._epoch_ns // SECOND * SECOND + SECOND - 1


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, shared_store: Store) -> Iterator[Api]:
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
def test_every_machine_is_listed_once(
    api: Api, path: str, names: tuple[str, ...], every: list[tuple[object]]
) -> None:
    since = {} if path == "hosts" else {"since_s": 86_400}
    items = api.walk(f"/api/v1/{path}", {"limit": 1, **since})
    assert [tuple(item[name] for name in names) for item in items] == every


def test_devices_of_one_host_and_hosts_of_one_job_can_be_chosen(api: Api) -> None:
    gpus = api.get("/api/v1/gpus", {"host": "h1", "since_s": 86_400}).json()["items"]
    assert [gpu["gpu_uuid"] for gpu in gpus] == ["GPU-h1-0", "GPU-h1-1"]
    nics = api.get("/api/v1/nics", {"host": "h9", "since_s": 86_400}).json()
    assert nics == {"items": [], "next": None}
    assert api.get("/api/v1/hosts", {"job": "none"}).json() == {"items": [], "next": None}
    save_incidents(api.parts.control, [incident_on("gpu:h1/1", "i1")], None)
    host = api.get("/api/v1/hosts/h1").json()
    assert (host["host"], host["incidents"], host["jobs"]) == ("h1", ["i1"], [])
    check_problem(api.get("/api/v1/hosts/h9"), 404, "not-found")


def test_agent_tells_which_readings_are_missing_and_one_that_ended_in_order_is_not_silent(
    api: Api, shared_store: Store
) -> None:
    now_ns = api.parts.clock.now_ns()
    lacks = replace(heartbeat("x8", now_ns), stalled={"gpu": T0})
    put(shared_store, [lacks, replace(heartbeat("x9", now_ns - 60 * 10**9), ended=True, gateway="east:8080")])
    found = {agent["host"]: agent for agent in api.get("/api/v1/agents", {"since_s": 86_400}).json()["items"]}
    assert found["x8"]["missing"] == ["no readings from gpu on x8 since 2023-11-14 22:13:20 UTC"]
    assert [found["x9"][name] for name in ("is_silent", "has_ended", "gateway")] == [False, True, "east:8080"]
    assert "no readings from gpu on x8 since" in browse(api, "/agents").text
    assert "no readings from gpu on x8 since" in browse(api, "/").text
