"""Tokens of an OpenID Connect issuer: does the signature hold, who is it, and which scope does the site give them?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from api.issuer_keys import IssuerKeys
from lockstep.clock import NS_PER_S, Clock
from lockstep.control.tokens import Scope, Token
from lockstep.errors import NotAllowed
from lockstep.sections import ApiSettings

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
    expires_ns, leeway_ns = _moment_ns(claims["exp"]), LEEWAY_S * NS_PER_S
    if expires_ns + leeway_ns <= now_ns:
        raise _refused("it has expired")
    if _moment_ns(claims.get("nbf", 0)) - leeway_ns > now_ns:
        raise _refused("it is not valid yet")
    return expires_ns


def _moment_ns(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 33:
        raise _refused(f"{value!r} is no moment")
    return int(value * NS_PER_S)


def _refused(reason: str) -> NotAllowed:
    return NotAllowed(f"this OIDC token is not taken: {reason}", slug="unknown-token", status=401)
