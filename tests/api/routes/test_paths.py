"""Hosts ask for their paths and tell how many connections keep to them; people see the whole."""

from lockstep.host_paths import PathChoice, PathSummary
from lockstep.path_file import parse_plan
from lockstep.state.fabric import save_path_plan
from lockstep.state.leases import take_lease
from tests.api.build import Api, bearer, check_problem


def publish(api: Api, host: str = "h0", sport: int = 4000) -> int:
    lease = take_lease(api.parts.control, "paths", "test", 10**9, api.parts.clock.now_ns())
    assert lease is not None
    choice = PathChoice(
        connection="f0", nic="eth0", dst="h1", dst_nic="eth0", links=("a",), destination="10.0.0.2", sports=(sport,)
    )
    summary = PathSummary(generation=0, made_ns=1, flows=1, with_ports=1, max_use=0.5, bound=0.5)
    return save_path_plan(api.parts.control, summary, {host: [choice]}, lease, True)


def test_a_host_reads_its_roads_and_nobody_else_s(api: Api) -> None:
    publish(api)
    mine, other = (bearer(api.make_token("ingest", host)) for host in ("h0", "h1"))
    assert api.client.get("/api/v1/paths/hosts/h0", headers=mine).json()["choices"][0]["sports"] == [4000]
    check_problem(api.client.get("/api/v1/paths/hosts/h0", headers=other), 403, "wrong-scope")


def test_what_has_not_changed_is_not_sent_again(api: Api) -> None:
    number = publish(api)
    token = api.make_token("ingest", "h0")
    headers = bearer(token) | {"If-None-Match": f'"{number}"'}
    assert api.client.get("/api/v1/paths/hosts/h0", headers=headers).status_code == 304
    publish(api, sport=4001)
    answer = api.client.get("/api/v1/paths/hosts/h0", headers=headers)
    assert (answer.status_code, answer.headers["ETag"]) == (200, f'"{number + 1}"')


def test_the_file_for_the_connect_path_is_served_as_the_shim_reads_it(api: Api) -> None:
    number = publish(api)
    answer = api.get("/api/v1/paths/hosts/h0", {"form": "file"})
    plan = parse_plan(answer.content)
    assert (plan.generation, plan.entries[0].destination, plan.entries[0].ports) == (number, "10.0.0.2", (4000,))


def test_a_host_without_a_plan_gets_a_sentence(api: Api) -> None:
    check_problem(api.get("/api/v1/paths/hosts/h7"), 404, "not-found")
    check_problem(api.get("/api/v1/paths"), 404, "not-found")


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


def test_a_host_does_not_speak_for_another(api: Api) -> None:
    told = {"generation": 1, "planned": 1, "enforced": 1}
    headers = bearer(api.make_token("ingest", "h0"))
    check_problem(api.client.post("/api/v1/paths/hosts/h1/count", json=told, headers=headers), 403, "wrong-host")


def test_plans_are_listed_newest_first(api: Api) -> None:
    numbers = [publish(api, sport=4000 + turn) for turn in range(3)]
    listed = api.get("/api/v1/paths/history", {"limit": 2}).json()["items"]
    assert [plan["generation"] for plan in listed] == numbers[:0:-1]
