"""Receivers are made, tried out, changed and forgotten over HTTP; secrets go in and never come out."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.alerts import AlertSettings, Target
from lockstep.config import Settings
from lockstep.state.deliveries import Outgoing, save_round
from lockstep.state.documents import list_audit
from lockstep.state.targets import list_targets
from lockstep.store.store import Store
from tests.api.alerts.build import SECRET, make_notification, target
from tests.api.alerts.receivers import answer, receiving
from tests.api.build import Api, check_problem, running_api

HOOK = {"name": "ops", "kind": "webhook", "url": "https://example.com/hook?token=abcdef", "secrets": [SECRET]}


@pytest.fixture
def api(tmp_path: Path, shared_store: Store) -> Iterator[Api]:
    alerts = AlertSettings(targets=(target("fixed", "slack"),), allow=("127.0.0.1/32",))
    with running_api(tmp_path, shared_store, settings=Settings(alerts=alerts)) as running:
        yield running


def make(api: Api, admin: dict[str, str], **changes: Any) -> Any:
    made = api.client.post("/api/v1/webhooks", json=HOOK | changes, headers=admin)
    assert made.status_code == 201, made.text
    return made.json()


def fill_queue(api: Api, count: int = 1) -> None:
    news = (make_notification(number=number) for number in range(count))
    messages = [Outgoing("ops", each, replaces=False, is_end=False) for each in news]
    save_round(api.parts.control, api.lease("alerts"), messages, [])


def test_receiver_is_shown_without_its_secrets_which_no_file_of_the_database_has(
    api: Api, admin: dict[str, str], tmp_path: Path
) -> None:
    made = make(api, admin)
    shown = api.get("/api/v1/webhooks/ops").json()
    assert made == shown
    assert (shown["secrets"], shown["url"], shown["origin"]) == (1, "https://example.com/…?…", "api")
    listed = api.get("/api/v1/webhooks").json()
    assert [(item["name"], item["origin"]) for item in listed["items"]] == [("fixed", "settings"), ("ops", "api")]
    assert listed["items"][0]["url"] == "https://hooks.slack.com/…"
    everything = json.dumps([made, shown, listed])
    assert not [secret for secret in (SECRET, "abcdef", "verysecret") if secret in everything]
    make(api, admin, name="chat", kind="slack", url="https://hooks.slack.com/services/hidden-path", secrets=[])
    held = b"".join(file.read_bytes() for file in tmp_path.glob("control.db*"))
    hidden = (SECRET, "abcdef", "hidden-path", "hooks.slack.com")
    assert not [secret for secret in hidden if secret.encode() in held]


def test_change_keeps_what_is_not_named_and_secrets_can_be_rotated(api: Api, admin: dict[str, str]) -> None:
    make(api, admin)
    other = "whsec_" + "A" * 40
    changed = api.client.patch("/api/v1/webhooks/ops", json={"secrets": [other, SECRET]}, headers=admin)
    assert (changed.status_code, changed.json()["secrets"]) == (200, 2)
    api.client.patch("/api/v1/webhooks/ops?why=too+loud", json={"grades": ["isolate"]}, headers=admin)
    (kept,) = list_targets(api.parts.control)
    assert (kept.secrets, kept.grades, kept.url) == ((other, SECRET), ("isolate",), HOOK["url"])
    line = list_audit(api.parts.control, 1)[0]
    assert (line.who, line.what, line.why) == ("test", "change_target", "too loud")


def test_bad_change_is_refused_with_a_sentence_and_without_the_value(api: Api, admin: dict[str, str]) -> None:
    make(api, admin)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"secrets": ["hunter2hunter2"]}, "a webhook's secret"),
        ({"url": "gopher://x"}, "needs a url of https"),
        ({"colour": "red"}, "colour"),
        ({"name": "other"}, "a target keeps its name"),
        ({"secret_files": ["/etc/shadow"]}, "secret_files are for the settings file"),
        ({"grades": "isolate"}, "grades"),
    ]
    for changes, sentence in refused:
        answered = api.client.patch("/api/v1/webhooks/ops", json=changes, headers=admin)
        detail = check_problem(answered, 400, "bad-input")
        assert sentence in detail
        assert "hunter2" not in detail
    assert list_targets(api.parts.control)[0].url == HOOK["url"]
    for name in ("ops", "fixed"):
        again = api.client.post("/api/v1/webhooks", json=HOOK | {"name": name}, headers=admin)
        assert "already" in check_problem(again, 400, "bad-input")
    asked = HOOK | {"name": "x", "secret_files": ["/etc/shadow"]}
    check_problem(api.client.post("/api/v1/webhooks", json=asked, headers=admin), 400, "bad-input")
    for method, body in (("PATCH", {}), ("DELETE", None)):
        answered = api.client.request(method, "/api/v1/webhooks/fixed", json=body, headers=admin)
        assert check_problem(answered, 400, "bad-input") == "target 'fixed' is in the settings: change it there"


def test_test_message_says_at_once_what_the_receiver_said(api: Api, admin: dict[str, str]) -> None:
    with receiving(answer(503, b"later")) as receiver:
        make(api, admin, url=receiver.url)
        refused = api.client.post("/api/v1/webhooks/ops/test", headers=admin).json()
        receiver.reply = answer(200)
        taken = api.client.post("/api/v1/webhooks/ops/test", headers=admin).json()
    assert refused == {"delivered": False, "status": 503, "said": "HTTP 503 later"}
    assert taken == {"delivered": True, "status": 200, "said": "HTTP 200"}
    assert receiver.got[0].document["type"] == "dev.lockstep.lockstep.test"
    assert api.get("/api/v1/webhooks/ops/deliveries").json()["items"] == []
    assert [line.what for line in list_audit(api.parts.control, 9)].count("test_target") == 2


def test_receiver_inside_the_site_is_refused_made_or_changed_unless_allowed(api: Api, admin: dict[str, str]) -> None:
    inside = {"url": "http://169.254.169.254/latest/meta-data", "secrets": [SECRET]}
    refused = api.client.post("/api/v1/webhooks", json=HOOK | inside, headers=admin)
    assert "LOCKSTEP_ALERTS_ALLOW='[\"169.254.169.254\"]'" in check_problem(refused, 400, "bad-input")
    make(api, admin, url="http://127.0.0.1:9093")  # allowed
    refused = api.client.patch("/api/v1/webhooks/ops", json=inside, headers=admin)
    assert "an address inside the site" in check_problem(refused, 400, "bad-input")
    assert [each.url for each in list_targets(api.parts.control)] == ["http://127.0.0.1:9093"]


def test_deliveries_are_paged_and_replayed(api: Api, admin: dict[str, str]) -> None:
    make(api, admin)
    fill_queue(api, count=5)
    ids = [item["id"] for item in api.walk("/api/v1/webhooks/ops/deliveries", {"limit": 3})]
    assert ids == [make_notification(number=number).id for number in (4, 3, 2, 1, 0)]
    again = api.client.post(f"/api/v1/webhooks/ops/deliveries/{ids[0]}/replay", headers=admin)
    assert (again.status_code, again.json()["state"]) == (202, "waiting")
    check_problem(api.get("/api/v1/webhooks/ops/deliveries", {"cursor": "rubbish!"}), 400, "bad-input")


def test_deleted_receiver_leaves_nothing(api: Api, admin: dict[str, str]) -> None:
    make(api, admin)
    fill_queue(api)
    assert api.client.delete("/api/v1/webhooks/ops", headers=admin).json() == {"deleted": "ops"}
    for path in ("", "/deliveries"):
        check_problem(api.get(f"/api/v1/webhooks/ops{path}"), 404, "not-found")


def lose_key(api: Api) -> str:
    """Take the key away that seals receivers, and return what its file held."""
    file = api.parts.control.keys.file
    assert file is not None
    held = file.read_text()
    file.unlink()
    return held


def test_receiver_whose_key_is_lost_says_so_and_the_others_go_on(api: Api, admin: dict[str, str]) -> None:
    make(api, admin)
    held = lose_key(api)
    make(api, admin, name="later")
    shown = {each["name"]: each for each in api.get("/api/v1/webhooks").json()["items"]}
    assert (shown["ops"]["kind"], shown["ops"]["url"], shown["ops"]["secrets"]) == ("webhook", "", 0)
    assert "the address and the secrets of ops cannot be opened: key" in shown["ops"]["health"]["disabled_because"]
    assert (shown["later"]["health"], shown["fixed"]["health"]) == (None, None)
    file = api.parts.control.keys.file
    assert file is not None
    file.write_text(file.read_text() + held)
    assert api.get("/api/v1/webhooks/ops").json()["health"] is None


def test_lost_receiver_is_neither_tried_nor_enabled_until_it_is_whole_again(api: Api, admin: dict[str, str]) -> None:
    make(api, admin)
    lose_key(api)
    for act in ("test", "enable"):
        answered = api.client.post(f"/api/v1/webhooks/ops/{act}", headers=admin)
        assert "put the key back" in check_problem(answered, 400, "bad-input")
    for changes in ({"grades": ["isolate"]}, {"url": HOOK["url"]}, {"secrets": [SECRET]}):
        answered = api.client.patch("/api/v1/webhooks/ops", json=changes, headers=admin)
        assert "give `url` and `secrets` anew" in check_problem(answered, 400, "bad-input")
    whole = {"url": HOOK["url"], "secrets": [SECRET]}
    assert api.client.patch("/api/v1/webhooks/ops", json=whole, headers=admin).status_code == 200
    (kept,) = list_targets(api.parts.control)
    assert (type(kept), kept.url, kept.secrets) == (Target, HOOK["url"], (SECRET,))
