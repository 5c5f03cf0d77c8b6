"""What each kind of receiver is sent, and which answers it is believed for."""

import base64
import json
import os
from dataclasses import replace
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from api.alerts import alertmanager
from api.alerts.formats import (
    Sending,
    headline,
    judge_pagerduty,
    judge_slack,
    render_mail,
    render_pagerduty,
    render_slack,
    render_webhook,
    severity,
)
from api.alerts.transport import Answer, Post
from importers.traces.alertmanager import check_notification, statements_of
from lockstep.alerts import Thread, decode_key
from lockstep.clock import SystemClock
from lockstep.errors import BadInput
from tests.api.alerts.build import SECRET, after, make_alert, make_notification, target
from tests.builders import T0

SLOWS = "nic:h3/eth1 slows what it sends in job train"
TITLE = f"{SLOWS} since 2023-11-14 22:13 UTC: steps take 1.42 times as long, 255 ranks wait"
SENDING = Sending(after(60), "https://lockstep.example/", ("routing-key-1",))


def document(post: Post) -> Any:
    return json.loads(post.body)


def test_webhook_gets_a_cloud_event_of_bounded_size() -> None:
    event = document(render_webhook(target(), make_notification(), Sending(after(60), "https://lockstep.example")))
    told = {"specversion": "1.0", "id": make_notification().id, "source": "https://lockstep.example", "subject": "i1"}
    assert event | told == event
    assert event["type"] == "dev.lockstep.incident.opened"
    assert event["time"] == "2023-11-14T22:13:20Z"
    (told,) = event["data"]["items"]
    assert (told["component"], told["class"], told["grade"]) == ("nic:h3/eth1", "comm_slow", "isolate")
    assert told["url"] == "https://lockstep.example/incidents/i1"
    assert event["data"]["title"] == TITLE
    post = render_webhook(target(), make_notification(make_alert(reason="x" * 100_000)), Sending(0, "http://head"))
    assert len(post.body) < 20_000
    with pytest.raises(BadInput, match="a webhook's secret is whsec_ and base64") as refused:
        render_webhook(target(), make_notification(), Sending(0, "http://head", ("not base64!",)))
    assert "not base64!" not in str(refused.value)


def test_alertmanager_gets_labels_by_which_it_routes_an_end_that_comes_by_itself_and_reminders() -> None:
    receiver = target(kind="alertmanager")
    post = alertmanager.render(receiver, make_notification(), Sending(after(60), "http://head", firing_s=240))
    (alert,) = document(post)
    assert post.url == "http://am.example:9093/api/v2/alerts"
    told = {"alertname": "LockstepIncident", "lockstep": "incident", "subject": "i1", "job": "train", "host": "h3"}
    told |= {"class": "comm_slow", "component": "nic:h3/eth1", "grade": "isolate", "severity": "warning"}
    assert alert["labels"] == told
    assert (alert["startsAt"], alert["endsAt"]) == ("2023-11-14T22:13:20Z", "2023-11-14T22:18:20Z")
    assert alert["annotations"]["summary"] == headline(make_notification())
    (closed,) = document(alertmanager.render(receiver, make_notification(kind="incident.closed"), SENDING))
    assert closed["endsAt"] == "2023-11-14T22:14:20Z"
    update = make_notification(make_alert(), kind="incident.updated", before=make_alert(fault_class="comm_hang"))
    firing, ended = document(alertmanager.render(receiver, update, SENDING))
    assert (firing["labels"]["severity"], ended["labels"]["severity"]) == ("warning", "critical")
    assert firing["endsAt"] > ended["endsAt"] == "2023-11-14T22:14:20Z"
    thread = Thread(target="am", subject="i1", key="i1", number=1, reported_ns=T0, alert=make_alert())
    receiver = target(kind="alertmanager", watchdog=True)
    alerts = document(alertmanager.remind(receiver, [thread], SENDING))
    assert [alert["labels"]["alertname"] for alert in alerts] == ["LockstepIncident", "LockstepWatchdog"]
    assert all("lockstep" in alert["labels"] for alert in alerts)
    (first,) = document(alertmanager.render(receiver, make_notification(), SENDING))
    assert alerts[0]["labels"] == first["labels"], "the same alert, not another one"


def test_slack_gets_blocks_within_its_limits_in_which_nothing_is_taken_for_a_mention() -> None:
    hostile = make_notification(make_alert(reason="<!channel> & <@U1>"))
    told = document(render_slack(target(kind="slack"), hostile, SENDING))
    assert "<!channel>" not in json.dumps(told)
    assert [block["type"] for block in told["blocks"]] == ["header", "section", "section", "context"]
    assert "https://lockstep.example/incidents/i1" in told["blocks"][3]["elements"][0]["text"]
    assert told["text"].startswith("🟠")
    closed = document(render_slack(target(kind="slack"), make_notification(kind="incident.closed"), SENDING))
    assert closed["text"] == f"🟢 Over: {TITLE}"
    ended = make_notification(make_alert(state="closed", closed_ns=after(58)), kind="incident.closed")
    closed = document(render_slack(target(kind="slack"), ended, SENDING))
    assert closed["text"].startswith(f"🟢 Resolved after 58 s: {SLOWS} from ")
    many = [make_alert(f"i{number}", reason="y" * 4000, component="nic:" + "h" * 200) for number in range(90)]
    told = document(render_slack(target(kind="slack"), make_notification(*many), SENDING))
    header, text, fields, _ = told["blocks"]
    assert len(header["text"]["text"]) <= 150
    assert len(text["text"]["text"]) <= 3000
    assert len(fields["fields"]) <= 10


def test_pagerduty_is_triggered_and_resolved_under_the_incidents_id() -> None:
    receiver = target(kind="pagerduty")
    opened = document(render_pagerduty(receiver, make_notification(), SENDING))
    assert (opened["event_action"], opened["dedup_key"], opened["routing_key"]) == ("trigger", "i1", "routing-key-1")
    payload = opened["payload"]
    assert (payload["severity"], payload["component"], payload["group"]) == ("warning", "nic:h3/eth1", "train")
    closed = document(render_pagerduty(receiver, make_notification(kind="incident.closed"), SENDING))
    assert closed == {"routing_key": "routing-key-1", "event_action": "resolve", "dedup_key": "i1"}
    with pytest.raises(BadInput, match="has no routing key"):
        render_pagerduty(receiver, make_notification(), Sending(0, "http://head"))


def test_incident_links_the_runbook_of_its_class_where_there_is_one_and_nothing_else_does() -> None:
    runbooks = "https://wiki.example/lockstep/operations"
    for kind, secrets, render in (
        *(("webhook", (SECRET,), render_webhook), ("alertmanager", (), alertmanager.render)),
        *(("slack", (), render_slack), ("pagerduty", ("routing-key-1",), render_pagerduty)),
    ):
        plain = replace(SENDING, secrets=secrets)
        sending, receiver = replace(plain, runbooks=runbooks), target(kind=kind)
        assert f"{runbooks}#comm_slow" in render(receiver, make_notification(), sending).body.decode(), kind
        trouble = make_notification(make_alert().model_copy(update={"family": "lockstep"}))
        assert runbooks not in render(receiver, trouble, sending).body.decode(), kind
        assert "#comm_slow" not in render(receiver, make_notification(), plain).body.decode(), kind
    mail = render_mail(target(kind="email"), make_notification(), replace(SENDING, runbooks=runbooks))
    assert mail.get_content().endswith(f"/incidents/i1\n{runbooks}#comm_slow\n")


@pytest.mark.parametrize(
    ("judge", "answer", "result"),
    [
        (judge_slack, Answer(200, {}, b"ok"), "delivered"),
        (judge_slack, Answer(200, {}, b"<html>please log in"), "failed"),
        (judge_slack, Answer(410, {}, b"channel_is_archived"), "gone"),
        (judge_pagerduty, Answer(202, {}, b'{"status":"success","dedup_key":"i1"}'), "delivered"),
        (judge_pagerduty, Answer(202, {}, b"\xff\x00"), "failed"),
        (judge_pagerduty, Answer(202, {}, b"[]"), "failed"),
        (judge_pagerduty, Answer(202, {}, b"[" * 100_000), "failed"),
        (judge_pagerduty, Answer(400, {}, b"bad key"), "refused"),
        (judge_pagerduty, Answer(429, {"retry-after": "3"}, b""), "failed"),
        (alertmanager.judge_answer, Answer(200, {"content-type": "text/html"}, b"<html>"), "failed"),
        (alertmanager.judge_answer, Answer(200, {"content-type": "application/json"}, b""), "delivered"),
    ],
)
def test_liars_are_not_believed(judge: Any, answer: Answer, result: str) -> None:
    assert judge(answer, 0).result == result


def test_mail_has_one_thread_per_incident_and_lists_say_how_many_more() -> None:
    odd = make_alert("i/1", component="nic:h3\r\nBcc: x@example.com")
    letter = render_mail(target(kind="email"), make_notification(odd), SENDING)
    assert letter["Subject"].startswith("[Lockstep] nic:h3 Bcc: x@example.com slows what it sends in job train since")
    assert letter["Bcc"] is None
    assert letter["Message-ID"] == f"<{make_notification().id}@example.com>"
    assert letter["References"] == "<i-1@example.com>"
    assert "https://lockstep.example/incidents/i%2F1" in letter.get_content()
    many = [make_alert(f"i{number}", component=f"gpu:h{number}/0") for number in range(30)]
    assert headline(make_notification(*many)) == "30 incidents in job train: gpu:h0/0, gpu:h1/0, gpu:h2/0 and others"
    assert "… and 10 more" in render_mail(target(kind="email"), make_notification(*many), SENDING).get_content()
    hung = make_alert(fault_class="comm_hang", grade="note")
    assert severity(make_notification(make_alert(grade="isolate"))) == "warning", "sure is not bad"
    assert severity(make_notification(make_alert(), hung)) == "critical", "bad is not sure"
    assert severity(make_notification(hung.model_copy(update={"severity": "info"}))) == "info"


def test_our_own_alerts_are_no_evidence_when_they_come_back() -> None:
    posted = document(alertmanager.render(target(kind="alertmanager"), make_notification(), SENDING))
    foreign = {"labels": {"alertname": "NodeDown", "instance": "h3:9100"}, "startsAt": "2024-05-01T08:00:00Z"}
    alerts = [{**alert, "status": "firing"} for alert in (*posted, foreign)]
    notification = check_notification("it", json.dumps({"version": "4", "alerts": alerts}).encode())
    (statement,) = statements_of(notification)
    assert statement.rows[0]["message"] == "NodeDown is firing (instance=h3:9100)"


OTHER = "whsec_" + base64.b64encode(os.urandom(32)).decode()


def test_signature_holds_for_either_key_and_for_this_body_at_this_time_only() -> None:
    sending = Sending(SystemClock().now_ns(), "http://head", (SECRET, OTHER))
    post = render_webhook(target(), make_notification(), sending)
    for secret in (SECRET, OTHER):
        event = Webhook(secret).verify(post.body, dict(post.headers))
        assert event["id"] == make_notification().id == post.headers["webhook-id"]
    post = render_webhook(target(), make_notification(), Sending(SystemClock().now_ns(), "http://head", (SECRET,)))
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(post.body + b" ", dict(post.headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER).verify(post.body, dict(post.headers))
    first = render_webhook(target(), make_notification(), Sending(10**18, "http://head", (SECRET,)))
    again = render_webhook(target(), make_notification(), Sending(2 * 10**18, "http://head", (SECRET,)))
    assert first.body == again.body
    assert first.headers["webhook-signature"] != again.headers["webhook-signature"]
    post = render_webhook(target(secrets=()), make_notification(), Sending(0, "http://head"))
    assert "webhook-signature" not in post.headers
    assert post.headers["webhook-id"] == json.loads(post.body)["id"]


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!!", "c2hvcnQ=", base64.b64encode(b"x" * 65).decode(), "ü"])
def test_key_that_is_none_is_refused_without_showing_it(secret: str) -> None:
    with pytest.raises(ValueError, match="secret") as refused:
        decode_key(secret)
    assert not secret or secret not in str(refused.value).replace("whsec_ and", "")
