"""What each kind of receiver is sent, and which answers it is believed for."""

import json
from typing import Any

import pytest

from api.alerts.posting import Post
from api.alerts.retrying import Answer
from api.alerts.sinks import alertmanager, mail, pagerduty, slack, webhook
from api.alerts.wording import Sending, headline, severity
from lockstep.errors import BadInput
from lockstep.intake.alertmanager import check_notification, statements_of
from lockstep.news import Thread
from tests.api.alerts.build import after, matter, news, target
from tests.builders import T0

TITLE = (
    "nic:h3/eth1 slows what it sends in job train since 2023-11-14 22:13 UTC: "
    "steps take 1.42 times as long, 255 ranks wait"
)
SENDING = Sending(after(60), "https://lockstep.example/", ("routing-key-1",))


def document(post: Post) -> Any:
    return json.loads(post.body)


def test_webhook_gets_a_cloud_event() -> None:
    event = document(webhook.render(target(), news(), Sending(after(60), "https://lockstep.example")))
    required = {"specversion": "1.0", "id": news().id, "source": "https://lockstep.example", "subject": "i1"}
    assert event | required == event
    assert event["type"] == "dev.lockstep.incident.opened"
    assert event["time"] == "2023-11-14T22:13:20Z"
    (told,) = event["data"]["matters"]
    assert (told["component"], told["class"], told["grade"]) == ("nic:h3/eth1", "comm_slow", "isolate")
    assert told["url"] == "https://lockstep.example/incidents/i1"
    assert event["data"]["title"] == TITLE


def test_body_stays_below_twenty_kilobytes_however_long_the_reason() -> None:
    post = webhook.render(target(), news(matter(reason="x" * 100_000)), Sending(0, "http://head"))
    assert len(post.body) < 20_000


def test_key_in_a_file_that_is_none_is_a_sentence_without_the_key() -> None:
    with pytest.raises(BadInput, match="a webhook's secret is whsec_ and base64") as refused:
        webhook.render(target(), news(), Sending(0, "http://head", ("not base64!",)))
    assert "not base64!" not in str(refused.value)


def test_alertmanager_gets_labels_by_which_it_routes_and_an_end_that_comes_by_itself() -> None:
    post = alertmanager.render(target(kind="alertmanager"), news(), Sending(after(60), "http://head", firing_s=240))
    (alert,) = document(post)
    assert post.url == "http://am.example:9093/api/v2/alerts"
    assert alert["labels"] == {
        "alertname": "LockstepIncident",
        "lockstep": "incident",
        "subject": "i1",
        "job": "train",
        "class": "comm_slow",
        "component": "nic:h3/eth1",
        "grade": "isolate",
        "severity": "critical",
        "host": "h3",
    }
    assert (alert["startsAt"], alert["endsAt"]) == ("2023-11-14T22:13:20Z", "2023-11-14T22:18:20Z")
    assert alert["annotations"]["summary"] == headline(news())


def test_alertmanager_is_told_the_end_and_with_new_labels_the_end_of_the_old() -> None:
    receiver = target(kind="alertmanager")
    (closed,) = document(alertmanager.render(receiver, news(kind="incident.closed"), SENDING))
    assert closed["endsAt"] == "2023-11-14T22:14:20Z"
    update = news(matter(grade="alert"), kind="incident.updated", before=matter())
    firing, ended = document(alertmanager.render(receiver, update, SENDING))
    assert (firing["labels"]["severity"], ended["labels"]["severity"]) == ("warning", "critical")
    assert firing["endsAt"] > ended["endsAt"] == "2023-11-14T22:14:20Z"


def test_reminder_has_all_that_fires_and_the_watchdog() -> None:
    thread = Thread(target="am", subject="i1", key="i1", number=1, told_ns=T0, matter=matter())
    receiver = target(kind="alertmanager", watchdog=True)
    alerts = document(alertmanager.remind(receiver, [thread], SENDING))
    assert [alert["labels"]["alertname"] for alert in alerts] == ["LockstepIncident", "LockstepWatchdog"]
    assert all("lockstep" in alert["labels"] for alert in alerts)
    (first,) = document(alertmanager.render(receiver, news(), SENDING))
    assert alerts[0]["labels"] == first["labels"], "the same alert, not another one"


def test_slack_gets_blocks_in_which_nothing_is_taken_for_a_mention() -> None:
    told = document(slack.render(target(kind="slack"), news(matter(reason="<!channel> & <@U1>")), SENDING))
    assert "<!channel>" not in json.dumps(told)
    assert [block["type"] for block in told["blocks"]] == ["header", "section", "section", "context"]
    assert "https://lockstep.example/incidents/i1" in told["blocks"][3]["elements"][0]["text"]
    assert told["text"].startswith("🔴")
    closed = document(slack.render(target(kind="slack"), news(kind="incident.closed"), SENDING))
    assert closed["text"] == f"🟢 Over: {TITLE}"


def test_slack_stays_within_its_limits() -> None:
    many = [matter(f"i{number}", reason="y" * 4000, component="nic:" + "h" * 200) for number in range(90)]
    told = document(slack.render(target(kind="slack"), news(*many), SENDING))
    header, text, fields, _ = told["blocks"]
    assert len(header["text"]["text"]) <= 150
    assert len(text["text"]["text"]) <= 3000
    assert len(fields["fields"]) <= 10


def test_pagerduty_is_triggered_and_resolved_under_the_incidents_id() -> None:
    receiver = target(kind="pagerduty")
    opened = document(pagerduty.render(receiver, news(), SENDING))
    assert (opened["event_action"], opened["dedup_key"], opened["routing_key"]) == ("trigger", "i1", "routing-key-1")
    payload = opened["payload"]
    assert (payload["severity"], payload["component"], payload["group"]) == ("critical", "nic:h3/eth1", "train")
    closed = document(pagerduty.render(receiver, news(kind="incident.closed"), SENDING))
    assert closed == {"routing_key": "routing-key-1", "event_action": "resolve", "dedup_key": "i1"}
    with pytest.raises(BadInput, match="has no routing key"):
        pagerduty.render(receiver, news(), Sending(0, "http://head"))


@pytest.mark.parametrize(
    ("judge", "answer", "result"),
    [
        (slack.judge_answer, Answer(200, {}, b"ok"), "delivered"),
        (slack.judge_answer, Answer(200, {}, b"<html>please log in"), "failed"),
        (slack.judge_answer, Answer(410, {}, b"channel_is_archived"), "gone"),
        (pagerduty.judge_answer, Answer(202, {}, b'{"status":"success","dedup_key":"i1"}'), "delivered"),
        (pagerduty.judge_answer, Answer(202, {}, b"\xff\x00"), "failed"),
        (pagerduty.judge_answer, Answer(202, {}, b"[]"), "failed"),
        (pagerduty.judge_answer, Answer(400, {}, b"bad key"), "refused"),
        (pagerduty.judge_answer, Answer(429, {"retry-after": "3"}, b""), "failed"),
        (alertmanager.judge_answer, Answer(200, {"content-type": "text/html"}, b"<html>"), "failed"),
        (alertmanager.judge_answer, Answer(200, {"content-type": "application/json"}, b""), "delivered"),
    ],
)
def test_liars_are_not_believed(judge: Any, answer: Answer, result: str) -> None:
    assert judge(answer, 0).result == result


def test_mail_has_one_thread_per_incident_and_one_line_in_its_subject() -> None:
    odd = matter("i/1", component="nic:h3\r\nBcc: x@example.com")
    letter = mail.render(target(kind="email"), news(odd), SENDING)
    assert letter["Subject"].startswith(
        "[Lockstep] nic:h3 Bcc: x@example.com slows what it sends in job train since "
    )
    assert letter["Bcc"] is None
    assert letter["Message-ID"] == f"<{news().id}@example.com>"
    assert letter["References"] == "<i-1@example.com>"
    assert "https://lockstep.example/incidents/i%2F1" in letter.get_content()


def test_list_of_many_says_how_many_more_there_are() -> None:
    many = [matter(f"i{number}", component=f"gpu:h{number}/0") for number in range(30)]
    assert headline(news(*many)) == "30 incidents in job train: gpu:h0/0, gpu:h1/0, gpu:h2/0 and others"
    assert "… and 10 more" in mail.render(target(kind="email"), news(*many), SENDING).get_content()


def test_severity_follows_the_grade() -> None:
    assert severity(news()) == "critical"
    assert severity(news(matter(grade="alert"))) == "warning"
    assert severity(news(matter(grade="note"))) == "info"
    assert severity(news(kind="lockstep.test")) == "info"


def test_our_own_alerts_are_no_evidence_when_they_come_back() -> None:
    posted = document(alertmanager.render(target(kind="alertmanager"), news(), SENDING))
    foreign = {"labels": {"alertname": "NodeDown", "instance": "h3:9100"}, "startsAt": "2024-05-01T08:00:00Z"}
    alerts = [{**alert, "status": "firing"} for alert in (*posted, foreign)]
    notification = check_notification("it", json.dumps({"version": "4", "alerts": alerts}).encode())
    assert [statement.rows[0]["message"] for statement in statements_of(notification)] == [
        "NodeDown is firing (instance=h3:9100)"
    ]
