"""The public keys of an OIDC issuer: kept for a while, and fetched anew when a token names one not yet seen."""

import threading
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt
import structlog

from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import NotAllowed

_log = structlog.get_logger("oidc")

FRESH_S = 600  # a key that the issuer takes back is worth nothing after this time
STALE_S = 6 * 3600  # keys outlive an issuer that is away by this much: it may have the same fault as the cluster
PAUSE_S = 10  # between two fetches: tokens with made-up keys must not make us ask all the time
TIMEOUT_S = 5.0
PATIENCE_S = 1.0  # an issuer that hangs must not hold every thread of the web process
_LARGEST = 1 << 20
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class IssuerKeys:
    """Keys by their id; may be asked from many threads."""

    def __init__(self, issuer: str, clock: Clock) -> None:
        self._issuer, self._clock = issuer, clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_ns: int | None = None
        self._tried_ns: int | None = None
        self._fetching = threading.Lock()  # one asks, the others wait for the same answer

    def find(self, key_id: object) -> jwt.PyJWK:
        """Return the key, or raise NotAllowed where the issuer has no such key or does not answer."""
        if not isinstance(key_id, str) or not key_id:
            raise NotAllowed("this OIDC token names no key", slug="unknown-token", status=401)
        if self._age_s(self._fetched_ns) >= FRESH_S or key_id not in self._keys:
            self._refresh()
        found = self._keys.get(key_id)
        if self._age_s(self._fetched_ns) >= STALE_S:
            raise NotAllowed("the OIDC issuer does not answer: use a token", slug="issuer-away", status=503)
        if found is None:
            problem = f"the OIDC issuer has no key {key_id[:80]!r}, or not any more"
            raise NotAllowed(problem, slug="unknown-token", status=401)
        return found

    def _refresh(self) -> None:
        """Fetch the keys, unless that was tried just now; who cannot wait goes on with what there is."""
        if not self._fetching.acquire(timeout=PATIENCE_S):
            return
        try:
            if self._age_s(self._tried_ns) >= PAUSE_S:
                self._tried_ns = self._clock.monotonic_ns()
                self._keys = fetch_keys(self._issuer)
                self._fetched_ns = self._tried_ns
        except (httpx.HTTPError, ValueError, TypeError, KeyError, AttributeError) as error:
            _log.warning("the OIDC issuer's keys could not be fetched", issuer=self._issuer, reason=str(error))
        finally:
            self._fetching.release()

    def _age_s(self, moment_ns: int | None) -> float:
        return float("inf") if moment_ns is None else (self._clock.monotonic_ns() - moment_ns) / NS_PER_S


def fetch_keys(issuer: str) -> dict[str, jwt.PyJWK]:
    """Return the issuer's signing keys by id, as OpenID Connect Discovery 1.0 finds them."""
    with httpx.Client(timeout=TIMEOUT_S, follow_redirects=False) as client:
        told = _get(client, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if told["issuer"] != issuer:
            raise ValueError(f"it calls itself {told['issuer']!r}")
        keys = _get(client, told["jwks_uri"])["keys"]
    known = (_read_key(key) for key in keys if key.get("use", "sig") == "sig" and key.get("kty") != "oct")
    return {key.key_id: key for key in known if key is not None and key.key_id}


def _read_key(key: dict[str, Any]) -> jwt.PyJWK | None:
    """Return the key, or None for a kind that we do not know: an issuer may have others for others."""
    try:
        return jwt.PyJWK(key)
    except jwt.PyJWTError:
        return None


def _get(client: httpx.Client, url: str) -> dict[str, Any]:  # Any: JSON of somebody else
    _check_safe(url)
    with client.stream("GET", url) as answer:
        answer.raise_for_status()
        body = b""
        for piece in answer.iter_bytes():
            body += piece
            if len(body) > _LARGEST:
                raise ValueError(f"{url} sends more than {_LARGEST} bytes")
    document = httpx.Response(200, content=body).json()
    if not isinstance(document, dict):
        raise TypeError(f"{url} sends no JSON object")
    return document


def _check_safe(url: str) -> None:
    """Raise ValueError where somebody on the way could put keys of their own in."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ValueError(f"{url} is not https")
