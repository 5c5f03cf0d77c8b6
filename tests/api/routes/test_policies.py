"""A policy is what the settings say until somebody stores another, and nobody overwrites what they did not see."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from lockstep.config import Settings
from lockstep.sections import PlannerSettings
from lockstep.state.documents import list_audit
from lockstep.state.policies import current_policy
from tests.api.build import Api, bearer, check_problem, running_api
from tests.api.fake_store import FakeStore

PATH = "/api/v1/policies/planner"


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    planner = PlannerSettings(modes={"replace": "propose"}, nodes_out=3, spares=("s1", "s2"), gpu_hour_price=2.5)
    with running_api(tmp_path_factory.mktemp("policies"), FakeStore(), settings=Settings(planner=planner)) as running:
        yield running


@pytest.fixture
def admin(api: Api) -> dict[str, str]:
    return bearer(api.make_token("admin"))


def policy(**changed: object) -> dict[str, Any]:
    told = {"modes": {"reroute": "propose"}, "nodes_per_hour": 1, "restarts_per_hour": 2, "nodes_out": 3}
    return {**told, "share_of_block": 0.5, "gpu_hour_price": None, "spares": [], **changed}


def put(api: Api, headers: dict[str, str], tag: str | None, why: str = "", **changed: object) -> httpx.Response:
    match = {"If-Match": tag} if tag is not None else {}
    return api.client.put(PATH, json={"policy": policy(**changed), "why": why}, headers=headers | match)


def test_settings_hold_until_somebody_stores_another(api: Api) -> None:
    answer = api.get(PATH)
    assert (answer.json()["version"], answer.headers["ETag"], answer.json()["who"]) == (0, '"0"', "settings")
    told = answer.json()["policy"]
    assert (told["modes"], told["nodes_out"], told["spares"]) == ({"replace": "propose"}, 3, ["s1", "s2"])
    assert current_policy(api.parts.control) is None
    assert api.get("/api/v1/policies").json()["items"] == [answer.json()]


def test_stored_policy_wins_and_says_who_changed_it_and_why(api: Api, admin: dict[str, str]) -> None:
    answer = put(api, admin, '"0"', "quiet week", nodes_out=1)
    assert (answer.status_code, answer.headers["ETag"]) == (200, '"1"')
    stored = current_policy(api.parts.control)
    assert stored is not None
    assert (stored.nodes_out, stored.modes) == (1, {"reroute": "propose"})
    read = api.get(PATH)
    assert read.json() == answer.json()
    assert (read.json()["who"], read.json()["why"], read.headers["ETag"]) == ("test", "quiet week", '"1"')


def test_change_is_in_the_audit_in_words(api: Api, admin: dict[str, str]) -> None:
    put(api, admin, '"0"', "first")
    put(api, admin, '"1"', "fewer", nodes_out=1)
    lines = list_audit(api.parts.control, 2, what="change_policy")
    assert [(line.who, line.subject) for line in lines] == [("test", "planner")] * 2
    assert lines[0].why == "fewer: nodes_out is now 1"


def test_versions_are_kept(api: Api, admin: dict[str, str]) -> None:
    for version in range(3):
        put(api, admin, f'"{version}"', f"change {version}", nodes_per_hour=version)
    items = api.get(f"{PATH}/versions").json()["items"]
    assert [(item["version"], item["policy"]["nodes_per_hour"]) for item in items] == [(3, 2), (2, 1), (1, 0)]
    assert len(api.get(f"{PATH}/versions", {"limit": 1}).json()["items"]) == 1


def test_change_of_what_was_not_seen_is_refused(api: Api, admin: dict[str, str]) -> None:
    put(api, admin, '"0"')
    answer = put(api, admin, '"0"', nodes_out=9)
    expected = "policy planner is at version 1 by now, not 0: read it again"
    assert check_problem(answer, 412, "changed-meanwhile") == expected
    assert api.get(PATH).json()["policy"]["nodes_out"] == 3


@pytest.mark.parametrize("tag", ["*", "0", 'W/"0"', '"x"', '"7"', '"0", "1"'])
def test_tag_that_is_not_the_version_s_is_refused(api: Api, admin: dict[str, str], tag: str) -> None:
    check_problem(put(api, admin, tag), 412, "changed-meanwhile")


def test_change_without_a_tag_is_told_which_to_send(api: Api, admin: dict[str, str]) -> None:
    answer = put(api, admin, None)
    assert check_problem(answer, 428, "precondition-required") == 'say which version you saw: If-Match: "0"'


def test_promise_that_nobody_would_keep_is_refused(api: Api, admin: dict[str, str]) -> None:
    answer = put(api, admin, '"0"', modes={"replace": "execute"})
    assert check_problem(answer, 400, "bad-input") == (
        "modes says execute for ['replace'], and planner.controller names nobody who would"
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"nodes_out": -1}, "greater than or equal to 0"),
        ({"share_of_block": 1.1}, "less than or equal to 1"),
        ({"modes": {"explode": "execute"}}, "modes.explode"),
        ({"modes": {"replace": "maybe"}}, "'observe', 'propose' or 'execute'"),
        ({"spares": ["a", "a"]}, "a spare is named twice"),
        ({"spares": [" a"]}, "empty or has blanks"),
        ({"gpu_hour_price": -1}, "greater than or equal to 0"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_policy_that_makes_no_sense_is_refused(
    api: Api, admin: dict[str, str], changed: dict[str, object], reason: str
) -> None:
    assert reason in check_problem(put(api, admin, '"0"', "", **changed), 422, "bad-request")
    assert current_policy(api.parts.control) is None


def test_policy_is_given_whole(api: Api, admin: dict[str, str]) -> None:
    answer = api.client.put(PATH, json={"policy": {"nodes_out": 1}}, headers=admin | {"If-Match": '"0"'})
    assert "body.policy.share_of_block: Field required" in check_problem(answer, 422, "bad-request")


def test_there_is_one_policy(api: Api) -> None:
    assert check_problem(api.get("/api/v1/policies/x"), 404, "not-found") == "there is no policy 'x', only 'planner'"
