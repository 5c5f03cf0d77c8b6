"""Signatures of webhooks as https://www.standardwebhooks.com describes them: one per key, while keys are changed."""

import base64
import hashlib
import hmac
from collections.abc import Iterable

from lockstep.alert_settings import decode_key
from lockstep.errors import BadInput


def sign(event: str, now_s: int, body: bytes, secrets: Iterable[str]) -> dict[str, str]:
    """Return the headers that say which message this is, when it was sent, and that it is ours.

    >>> secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    >>> sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [secret])["webhook-signature"]
    'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
    """
    headers = {"webhook-id": event, "webhook-timestamp": str(now_s)}
    signed = f"{event}.{now_s}.".encode() + body
    try:
        signatures = [_signature(decode_key(secret), signed) for secret in secrets]
    except ValueError as error:
        raise BadInput(str(error)) from None
    return headers | {"webhook-signature": " ".join(signatures)} if signatures else headers


def _signature(key: bytes, signed: bytes) -> str:
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
