"""Signatures hold before an independent implementation, with each of several keys."""

import base64
import json
import os

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from api.alerts.sinks import webhook
from api.alerts.wording import Sending
from lockstep.alert_settings import decode_key
from lockstep.clock import SystemClock
from tests.api.alerts.build import SECRET, news, target

OTHER = "whsec_" + base64.b64encode(os.urandom(32)).decode()


def test_receiver_with_either_key_believes_it_while_keys_are_changed() -> None:
    sending = Sending(SystemClock().now_ns(), "http://head", (SECRET, OTHER))
    post = webhook.render(target(), news(), sending)
    for secret in (SECRET, OTHER):
        event = Webhook(secret).verify(post.body, dict(post.headers))
        assert event["id"] == news().id == post.headers["webhook-id"]


def test_changed_body_or_foreign_key_is_not_believed() -> None:
    post = webhook.render(target(), news(), Sending(SystemClock().now_ns(), "http://head", (SECRET,)))
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(post.body + b" ", dict(post.headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER).verify(post.body, dict(post.headers))


def test_body_is_the_same_at_each_try_and_the_time_is_not() -> None:
    first = webhook.render(target(), news(), Sending(10**18, "http://head", (SECRET,)))
    again = webhook.render(target(), news(), Sending(2 * 10**18, "http://head", (SECRET,)))
    assert first.body == again.body
    assert first.headers["webhook-signature"] != again.headers["webhook-signature"]


def test_without_a_key_nothing_is_signed() -> None:
    post = webhook.render(target(secrets=()), news(), Sending(0, "http://head"))
    assert "webhook-signature" not in post.headers
    assert post.headers["webhook-id"] == json.loads(post.body)["id"]


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!!", "c2hvcnQ=", base64.b64encode(b"x" * 65).decode(), "ü"])
def test_key_that_is_none_is_refused_without_showing_it(secret: str) -> None:
    with pytest.raises(ValueError, match="secret") as refused:
        decode_key(secret)
    assert not secret or secret not in str(refused.value).replace("whsec_ and", "")
