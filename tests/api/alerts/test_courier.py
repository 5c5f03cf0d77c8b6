"""Secrets are read at each try, are never said, and a receiver's failure is a sentence."""

from pathlib import Path

import pytest

from api.alerts.courier import Courier, read_secrets, without_secrets
from api.alerts.posting import Outside
from lockstep.alert_settings import AlertSettings, Target
from lockstep.clock import SystemClock
from lockstep.errors import BadInput
from tests.api.alerts.build import LOOPBACK, SECRET, news, target
from tests.api.alerts.receivers import answer, receiving


@pytest.fixture
def courier() -> Courier:
    return Courier(AlertSettings(), "http://head:8642", Outside(SystemClock(), LOOPBACK, 60.0))


def test_key_in_a_file_can_be_changed_while_it_is_used(courier: Courier, tmp_path: Path) -> None:
    file = tmp_path / "key"
    with receiving() as receiver:
        hook = target(url=receiver.url, secrets=(), secret_files=(file,))
        for secret in (SECRET, "whsec_" + SECRET[-24:] + SECRET[-24:]):
            file.write_text(secret + "\n")
            assert courier.deliver(hook, news()).result == "delivered"
    assert len({got.headers["webhook-signature"] for got in receiver.got}) == 2


def test_file_that_is_missing_is_said(courier: Courier, tmp_path: Path) -> None:
    said = courier.deliver(target(secrets=(), secret_files=(tmp_path / "none",)), news())
    assert said.result == "failed"
    assert "cannot read a secret of target ops" in said.sentence
    with pytest.raises(BadInput):
        read_secrets(target(secrets=(), secret_files=(tmp_path / "none",)))


def test_receiver_that_repeats_a_secret_does_not_make_us_say_it(courier: Courier) -> None:
    with receiving(answer(403, b"the key routing-key-1 is unknown")) as receiver:
        said = courier.deliver(target(kind="pagerduty", url=receiver.url), news())
    assert said.sentence == "HTTP 403 the key *** is unknown"


@pytest.mark.parametrize(
    ("hook", "hidden"),
    [
        (target(kind="slack"), "/services/T0/B0/verysecret"),
        (target(url="https://example.com/x?token=abcdef"), "token=abcdef"),
    ],
)
def test_part_of_an_address_that_is_a_secret_is_hidden(hook: Target, hidden: str) -> None:
    assert hidden not in without_secrets(f"no route to {hook.url}", hook, ())
    assert hidden not in hook.shown_address
    assert SECRET not in repr(target())


def test_bug_in_one_message_is_a_failure_of_it(courier: Courier) -> None:
    broken = news().model_copy(update={"matters": ()})
    said = courier.deliver(target(), broken)
    assert (said.result, said.sentence) == ("failed", "this should not have happened: ValueError")


@pytest.mark.parametrize("secret", ["two\nlines", "a b", "schlüssel"])
def test_secret_that_no_header_can_hold_is_said_without_it(courier: Courier, secret: str) -> None:
    said = courier.deliver(target(kind="alertmanager", secrets=(secret,)), news())
    assert said.sentence == "a secret of target ops has spaces, lines or letters that are not plain ASCII"
