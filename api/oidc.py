"""Tokens of an OpenID Connect issuer: does the signature hold, who is it, and which scope does the site give them?"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt
import structlog

from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import NotAllowed
from lockstep.sections import ApiSettings
from lockstep.state.tokens import Scope, Token

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

    def _age_s(self, timestamp_ns: int | None) -> float:
        return float("inf") if timestamp_ns is None else (self._clock.monotonic_ns() - timestamp_ns) / NS_PER_S


def fetch_keys(issuer: str) -> dict[str, jwt.PyJWK]:
    """Return the issuer's signing keys by id, as OpenID Connect Discovery 1.0 finds them."""
    with httpx.Client(timeout=TIMEOUT_S, follow_redirects=False) as client:
        configuration = _get(client, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if configuration["issuer"] != issuer:
            raise ValueError(f"it calls itself {configuration['issuer']!r}")
        keys = _get(client, configuration["jwks_uri"])["keys"]
    known = (_read_key(key) for key in keys if key.get("use", "sig") == "sig" and key.get("kty") != "oct")
    return {key.key_id: key for key in known if key is not None and key.key_id}


def _read_key(key: dict[str, Any]) -> jwt.PyJWK | None:
    """Return the key, or None for a kind that we do not know: an issuer may have others for others."""
    try:
        return jwt.PyJWK(key)
    except jwt.PyJWTError:
        return None


def _get(client: httpx.Client, url: str) -> dict[str, Any]:  # Any: JSON of somebody else
    parts = urlsplit(url)
    if parts.scheme != "https" and (not (parts.scheme == "http" and parts.hostname in _LOOPBACK)):
        raise ValueError(f"{url} is not https")
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


# Asymmetric only: with HS256 the issuer's published key would be a password, and `none` is no signature at all.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
LEEWAY_S = 30  # that the clocks of issuer and head node may differ by
_LONGEST_NAME = 200
_LOWEST_FIRST: tuple[Scope, ...] = ("read", "act", "admin")
# The times are checked by our own clock.
_OPTIONS: jwt.types.Options = {
    "require": ["exp", "iss", "aud", "sub"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}

Claims = Mapping[str, Any]  # Any: what the issuer wrote


@dataclass(frozen=True, slots=True)
class Proven:
    """Whom a token was issued to, and when that ends."""

    token: Token
    expires_ns: int


class OidcVerifier:
    """Checks tokens of one issuer."""

    def __init__(self, settings: ApiSettings, keys: IssuerKeys, clock: Clock) -> None:
        self._settings, self._keys, self._clock = settings, keys, clock

    def verify(self, text: str) -> Proven:
        """Return whom the token names, or raise NotAllowed with the reason."""
        claims = self._signed_claims(text)
        expires_ns = _check_times(claims, self._clock.now_ns())
        scope = find_scope(claims, self._settings.oidc_claim, self._settings.oidc_scopes)
        if scope is None:
            problem = f"nothing in the claim {self._settings.oidc_claim!r} of this token gives a scope"
            raise NotAllowed(problem, slug="wrong-scope", status=403)
        name = str(claims.get(self._settings.oidc_name) or claims["sub"])[:_LONGEST_NAME]
        return Proven(Token(id=f"oidc:{claims['sub']}", scope=scope, host=None, name=name, created_ns=0), expires_ns)

    def _signed_claims(self, text: str) -> Claims:
        try:
            key = self._keys.find(jwt.get_unverified_header(text).get("kid", ""))
            return jwt.decode(
                text,
                key,
                algorithms=ALGORITHMS,
                issuer=self._settings.oidc_issuer,
                audience=self._settings.oidc_audience,
                options=_OPTIONS,
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise _refused(str(error)) from error


def make_verifier(settings: ApiSettings, clock: Clock) -> OidcVerifier | None:
    """Return what checks tokens of the issuer that is set; None where none is."""
    if not settings.oidc_issuer:
        return None
    return OidcVerifier(settings, IssuerKeys(settings.oidc_issuer, clock), clock)


def find_scope(claims: Claims, claim: str, scopes: Mapping[str, Scope]) -> Scope | None:
    """Return the highest scope that a group or role of the claim gives.

    >>> find_scope({"realm": {"roles": ["sre", "dev"]}}, "realm.roles", {"sre": "act", "dev": "read"})
    'act'
    """
    found: Any = claims
    for part in claim.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    groups = found.split() if isinstance(found, str) else found
    given = {scopes.get(group) for group in groups if isinstance(group, str)} if isinstance(groups, list) else set()
    return next((scope for scope in reversed(_LOWEST_FIRST) if scope in given), None)


def _check_times(claims: Claims, now_ns: int) -> int:
    """Return when the token ends; NotAllowed where it has ended or not begun."""
    expires_ns, leeway_ns = _timestamp_ns(claims["exp"]), LEEWAY_S * NS_PER_S
    if expires_ns + leeway_ns <= now_ns:
        raise _refused("it has expired")
    if _timestamp_ns(claims.get("nbf", 0)) - leeway_ns > now_ns:
        raise _refused("it is not valid yet")
    return expires_ns


def _timestamp_ns(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 33:
        raise _refused(f"{value!r} is no moment")
    return int(value * NS_PER_S)


def _refused(reason: str) -> NotAllowed:
    return NotAllowed(f"this OIDC token is not taken: {reason}", slug="unknown-token", status=401)
