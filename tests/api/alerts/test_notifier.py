"""Secrets are read at each try, are never said, and a receiver's failure is a sentence."""

from pathlib import Path

import pytest

from api.alerts.notifier import Notifier, read_secrets, without_secrets
from api.alerts.transport import Outside
from lockstep.alerts import AlertSettings
from lockstep.clock import SystemClock
from lockstep.errors import BadInput
from lockstep.state.deliveries import list_deliveries
from lockstep.state.targets import list_health
from tests.api.alerts.build import LEASE_S, LOOPBACK, SECRET, after, alerting, fault, make_notification, target
from tests.api.alerts.receivers import answer, kinds, receiving
from tests.waiting import eventually


@pytest.fixture
def notifier() -> Notifier:
    return Notifier(AlertSettings(), "http://head:8642", Outside(SystemClock(), LOOPBACK, 60.0))


def test_key_in_a_file_can_be_changed_and_a_missing_file_is_said(notifier: Notifier, tmp_path: Path) -> None:
    file = tmp_path / "key"
    with receiving() as receiver:
        hook = target(url=receiver.url, secrets=(), secret_files=(file,))
        for secret in (SECRET, "whsec_" + SECRET[-24:] + SECRET[-24:]):
            file.write_text(secret + "\n")
            assert notifier.deliver(hook, make_notification()).result == "delivered"
    assert len({got.headers["webhook-signature"] for got in receiver.got}) == 2
    said = notifier.deliver(target(secrets=(), secret_files=(tmp_path / "none",)), make_notification())
    assert said.result == "failed"
    assert "cannot read a secret of target ops" in said.sentence
    with pytest.raises(BadInput):
        read_secrets(target(secrets=(), secret_files=(tmp_path / "none",)))


def test_receiver_that_repeats_a_secret_does_not_make_us_say_it_nor_a_bug(notifier: Notifier) -> None:
    with receiving(answer(403, b"the key routing-key-1 is unknown")) as receiver:
        said = notifier.deliver(target(kind="pagerduty", url=receiver.url), make_notification())
    assert said.sentence == "HTTP 403 the key *** is unknown"
    broken = make_notification().model_copy(update={"alerts": ()})
    said = notifier.deliver(target(), broken)
    assert (said.result, said.sentence) == ("failed", "this should not have happened: ValueError")


def test_part_of_an_address_that_is_a_secret_is_hidden() -> None:
    query = target(url="https://example.com/x?token=abcdef")
    for hook, hidden in ((target(kind="slack"), "/services/T0/B0/verysecret"), (query, "token=abcdef")):
        assert hidden not in without_secrets(f"no route to {hook.url}", hook, ())
        assert hidden not in hook.shown_address
    assert SECRET not in repr(target())


@pytest.mark.parametrize("secret", ["two\nlines", "a b", "schlüssel"])
def test_secret_that_no_header_can_hold_is_said_without_it(notifier: Notifier, secret: str) -> None:
    said = notifier.deliver(target(kind="alertmanager", secrets=(secret,)), make_notification())
    assert said.sentence == "a secret of target ops has spaces, lines or letters that are not plain ASCII"


def test_retries_have_the_same_id_and_body_and_follow_the_schedule(tmp_path: Path) -> None:
    only = ("incident",)
    with (
        receiving(answer(500, b"no")) as receiver,
        alerting(tmp_path, target(url=receiver.url, events=only)) as alerts,
    ):
        alerts.happen(fault())
        alerts.round()
        alerts.round(4.9)
        assert len(receiver.got) == 1
        alerts.round(1.2)
        assert len(receiver.got) == 2, "5 s and up to a fifth more"
        receiver.reply = answer(204)
        alerts.round(299)
        assert len(receiver.got) == 2
        alerts.round(62)
        assert len(receiver.got) == 3
        assert len({(got.headers["webhook-id"], got.body) for got in receiver.got}) == 1
        (delivery,) = list_deliveries(alerts.control, "ops")
        assert (delivery.state, [each.status for each in delivery.tries.log]) == ("delivered", [500, 500, 204])
        assert delivery.tries.log[0].said == "HTTP 500 no"
        assert list_health(alerts.control)["ops"].failures_in_row == 0


def test_message_that_never_arrives_is_given_up_after_the_tenth_try(tmp_path: Path) -> None:
    with receiving(answer(503)) as receiver, alerting(tmp_path, target(url=receiver.url), keep_days=99) as alerts:
        alerts.happen(fault())
        for _ in range(11):
            alerts.round(30 * 3600)
        (delivery,) = [each for each in list_deliveries(alerts.control, "ops") if each.tries.notification.key == "i1"]
        assert (delivery.state, delivery.tries.count) == ("failed", 10)


def test_receiver_that_asks_for_patience_gets_it(tmp_path: Path) -> None:
    reply = answer(429, Retry_After="120")
    with receiving(reply) as receiver, alerting(tmp_path, target(url=receiver.url)) as alerts:
        alerts.happen(fault())
        alerts.round()
        alerts.round(60)
        assert len(receiver.got) == 1
        alerts.round(61)
        assert len(receiver.got) == 2


def test_receiver_that_is_gone_is_disabled_with_a_sentence_and_keeps_its_messages(tmp_path: Path) -> None:
    with receiving(answer(410)) as receiver, alerting(tmp_path, target(url=receiver.url)) as alerts:
        alerts.happen(fault())
        for _ in range(3):
            alerts.round(600)
        assert len(receiver.got) == 1
        assert "HTTP 410" in (list_health(alerts.control)["ops"].disabled_because or "")
        assert [each.state for each in list_deliveries(alerts.control, "ops")] == ["waiting"]


def test_redirect_is_a_failure_and_not_followed(tmp_path: Path) -> None:
    with (
        receiving() as elsewhere,
        receiving(answer(302, Location=elsewhere.url)) as receiver,
        alerting(tmp_path, target(url=receiver.url)) as alerts,
    ):
        alerts.happen(fault())
        alerts.round()
        (delivery,) = list_deliveries(alerts.control, "ops")
    assert (delivery.state, elsewhere.got) == ("waiting", [])
    assert "redirects are not followed" in delivery.tries.log[0].said


def test_receiver_that_hangs_delays_nobody_else(tmp_path: Path) -> None:
    with receiving() as hanging, receiving() as other:
        hanging.reply = hanging.hang
        targets = target("a-hangs", url=hanging.url), target("b-works", url=other.url)
        with alerting(tmp_path, *targets) as alerts:
            alerts.happen(fault())
            alerts.begin_round()
            eventually(lambda: hanging.got and other.got)
            alerts.happen(fault("i2"))

            def both_arrived() -> bool:
                alerts.begin_round()
                return len(other.got) == 2

            eventually(both_arrived)
            assert len(hanging.got) == 1
            hanging.release.set()
            alerts.service.wait()


def test_order_within_an_incident_is_kept_while_a_receiver_is_away(tmp_path: Path) -> None:
    with receiving(answer(500)) as receiver, alerting(tmp_path, target(url=receiver.url), settle_s=0) as alerts:
        alerts.happen(fault())
        alerts.round()
        alerts.happen(fault(state="closed", closed_ns=after(1)))
        alerts.round(2)
        assert kinds(receiver) == ["incident.opened"], "the end waits for the beginning"
        receiver.reply = answer(200)
        alerts.round(5)
        alerts.round(1)
        assert kinds(receiver) == ["incident.opened", "incident.opened", "incident.closed"]


def test_store_that_hangs_holds_up_no_alert_and_is_told(tmp_path: Path) -> None:
    with receiving() as receiver, alerting(tmp_path, target(url=receiver.url)) as alerts:
        alerts.store.answers.clear()
        alerts.happen(fault())

        def both_told() -> bool:
            alerts.begin_round()
            alerts.clock.advance(10)
            return len(receiver.got) == 2

        eventually(both_told)
        assert kinds(receiver) == ["incident.opened", "lockstep.troubled"]
        assert "has not answered for 60 s" in receiver.got[1].document["data"]["items"][0]["reason"]


def test_whoever_takes_over_sends_again_what_was_under_way(tmp_path: Path) -> None:
    with receiving() as receiver:
        receiver.reply = receiver.hang
        hook = target(url=receiver.url)
        with alerting(tmp_path, hook) as first:
            first.happen(fault())
            first.begin_round()
            eventually(lambda: receiver.got)
            with alerting(tmp_path, hook) as second:
                second.holder = "another"
                second.clock.advance(LEASE_S)
                receiver.reply = answer(200)
                second.round()
            receiver.release.set()
        assert len({(got.headers["webhook-id"], got.body) for got in receiver.got}) == 1
        assert len(receiver.got) == 2


def test_alertmanager_is_reminded_of_what_fires_until_it_is_over(tmp_path: Path) -> None:
    with (
        receiving() as receiver,
        alerting(tmp_path, target(kind="alertmanager", url=receiver.url), settle_s=0) as alerts,
    ):
        alerts.happen(fault())
        for _ in range(4):
            alerts.round(61)
        assert len(receiver.got) >= 4
        assert {got.path for got in receiver.got} == {"/api/v2/alerts"}
        labels = [got.document[0]["labels"] for got in receiver.got]
        assert all(each == labels[0] for each in labels)
        alerts.happen(fault(state="closed", closed_ns=after(1)))
        alerts.round(1)
        count = len(receiver.got)
        alerts.round(120)
        assert len(receiver.got) == count, "nothing fires, so there is nothing to remind of"


def test_old_deliveries_are_forgotten(tmp_path: Path) -> None:
    with receiving() as receiver, alerting(tmp_path, target(url=receiver.url), keep_days=1) as alerts:
        alerts.happen(fault())
        alerts.round()
        alerts.happen(fault(state="closed", closed_ns=after(1)))
        alerts.round(100)
        assert len(list_deliveries(alerts.control, "ops")) == 2
        alerts.round(90_000)
        alerts.round(3600)
        assert [each.tries.notification.key for each in list_deliveries(alerts.control, "ops")] == []
