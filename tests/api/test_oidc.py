"""Tokens of an issuer are taken when everything about them holds; each thing that does not is told apart."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from api.oidc import FRESH_S, PAUSE_S, STALE_S, IssuerKeys, OidcVerifier, fetch_keys, find_scope, make_verifier
from lockstep.clock import NS_PER_S, ManualClock
from lockstep.config import Settings, load_settings
from lockstep.errors import BadSettings, NotAllowed
from lockstep.sections import ApiSettings
from tests.api.build import bearer, check_problem, running_api
from tests.api.fake_store import FakeStore
from tests.http_serving import Quiet, serving

NOW_S = 1_700_000_000
SCOPES = {"sre": "act", "ops": "admin", "dev": "read"}


AUDIENCE = "lockstep"
Claims = dict[str, Any]  # Any: whatever an issuer writes


@dataclass
class Issuer:
    """What the issuer says at the moment; tests change it."""

    url: str = ""
    name: str = ""  # how it calls itself; empty: its address
    keys: dict[str, Any] = field(default_factory=dict)  # Any: private keys of several kinds
    more: list[dict[str, Any]] = field(default_factory=list)  # Any: keys as JSON, good or bad
    asked: list[str] = field(default_factory=list)
    is_away: bool = False

    def add_key(self, key_id: str, kind: str = "RSA") -> None:
        is_rsa = kind == "RSA"
        self.keys[key_id] = (
            rsa.generate_private_key(65537, 2048) if is_rsa else ec.generate_private_key(ec.SECP256R1())
        )

    def claims(self, now_s: int, **changed: object) -> Claims:
        told = {"iss": self.url, "aud": AUDIENCE, "sub": "u-17", "email": "ann@site", "groups": ["sre"]}
        return {**told, "iat": now_s, "exp": now_s + 600, **changed}

    def sign(self, claims: Claims, key_id: str = "k1", algorithm: str = "RS256") -> str:
        return jwt.encode(claims, self.keys[key_id], algorithm, headers={"kid": key_id})

    def public_pem(self, key_id: str) -> bytes:
        return bytes(self.keys[key_id].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    def answer(self, path: str) -> object:
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.name or self.url, "jwks_uri": f"{self.url}/keys"}
        return {"keys": [_as_json(key_id, key) for key_id, key in self.keys.items()] + self.more}


def _as_json(key_id: str, key: Any) -> dict[str, Any]:  # Any: a private key; its public half as JSON
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": key_id, "use": "sig"}


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    issuer = Issuer()

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked.append(self.path)
            self.reply(503 if issuer.is_away else 200, json.dumps(issuer.answer(self.path)).encode())

    issuer.add_key("k1")
    with serving(Handler) as url:
        issuer.url = url
        yield issuer


@pytest.fixture(scope="module")
def shared_issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture
def issuer(shared_issuer: Issuer) -> Issuer:
    """The issuer with its first key alone."""
    shared_issuer.keys = {"k1": shared_issuer.keys["k1"]}
    shared_issuer.more, shared_issuer.asked, shared_issuer.is_away, shared_issuer.name = [], [], False, ""
    return shared_issuer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_S * NS_PER_S)


def settings_for(issuer: Issuer, **more: object) -> ApiSettings:
    told = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "oidc_scopes": SCOPES}
    return ApiSettings.model_validate(told | more)


@pytest.fixture
def verifier(issuer: Issuer, clock: ManualClock) -> OidcVerifier:
    made = make_verifier(settings_for(issuer), clock)
    assert made is not None
    return made


def refusal(verifier: OidcVerifier, token: str, status: int = 401) -> str:
    with pytest.raises(NotAllowed) as caught:
        verifier.verify(token)
    assert caught.value.status == status
    return str(caught.value)


def test_token_gives_scope_and_name_as_the_site_chose(
    issuer: Issuer, verifier: OidcVerifier, clock: ManualClock
) -> None:
    proven = verifier.verify(issuer.sign(issuer.claims(NOW_S)))
    assert (proven.token.id, proven.token.name, proven.token.scope) == ("oidc:u-17", "u-17", "act")
    assert proven.token.host is None, "a person reports for no host"
    assert proven.expires_ns == (NOW_S + 600) * NS_PER_S
    verifier.verify(issuer.sign(issuer.claims(NOW_S)))
    assert issuer.asked == ["/.well-known/openid-configuration", "/keys"], "keys are fetched once and kept"
    by_email = OidcVerifier(settings_for(issuer, oidc_name="email"), IssuerKeys(issuer.url, clock), clock)
    assert by_email.verify(issuer.sign(issuer.claims(NOW_S))).token.name == "ann@site"
    assert verifier.verify(issuer.sign(issuer.claims(NOW_S, exp=NOW_S - 29, nbf=NOW_S + 29))).token.scope == "act"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"iss": "http://127.0.0.1:1"}, "Invalid issuer"),
        ({"aud": "grafana"}, "Audience doesn't match"),
        ({"aud": ["grafana", "kibana"]}, "Audience doesn't match"),
        ({"exp": NOW_S - 31}, "it has expired"),
        ({"exp": "soon"}, "'soon' is no moment"),
        ({"exp": True}, "True is no moment"),
        ({"exp": 1e300}, "is no moment"),
        ({"nbf": NOW_S + 31}, "it is not valid yet"),
        ({"sub": 17}, "Subject must be a string"),
    ],
)
def test_claim_that_does_not_hold_is_named(
    issuer: Issuer, verifier: OidcVerifier, changed: dict[str, object], reason: str
) -> None:
    claims = issuer.claims(NOW_S) | changed
    token = jwt.api_jws.encode(json.dumps(claims).encode(), issuer.keys["k1"], "RS256", headers={"kid": "k1"})
    assert reason in refusal(verifier, token)


def test_missing_claim_is_named_and_an_issuer_of_another_name_not_believed(
    issuer: Issuer, verifier: OidcVerifier
) -> None:
    for missing in ("exp", "iss", "aud", "sub"):
        claims = {name: value for name, value in issuer.claims(NOW_S).items() if name != missing}
        assert f'missing the "{missing}" claim' in refusal(verifier, issuer.sign(claims))
    issuer.name = "https://elsewhere.example"
    verifier = OidcVerifier(settings_for(issuer), IssuerKeys(issuer.url, verifier._clock), verifier._clock)
    refusal(verifier, issuer.sign(issuer.claims(NOW_S)), status=503)


def test_signature_of_another_key_is_refused_and_a_public_key_no_password(
    issuer: Issuer, verifier: OidcVerifier
) -> None:
    issuer.add_key("thief")
    token = jwt.encode(issuer.claims(NOW_S), issuer.keys.pop("thief"), "RS256", headers={"kid": "k1"})
    assert "Signature verification failed" in refusal(verifier, token)
    token = jwt.encode(issuer.claims(NOW_S), "", "none", headers={"kid": "k1"})
    assert "alg value is not allowed" in refusal(verifier, token)
    head = _part({"alg": "HS256", "typ": "JWT", "kid": "k1"}) + "." + _part(issuer.claims(NOW_S))
    signature = jwt.get_algorithm_by_name("HS256").sign(head.encode(), issuer.public_pem("k1"))
    token = f"{head}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"
    assert "alg value is not allowed" in refusal(verifier, token)
    secret = base64.urlsafe_b64encode(b"s" * 32).decode().rstrip("=")
    issuer.more = [{"kty": "oct", "k": secret, "kid": "shared", "use": "sig", "alg": "HS256"}]
    token = jwt.encode(issuer.claims(NOW_S), b"s" * 32, "HS256", headers={"kid": "shared"})
    assert "has no key 'shared'" in refusal(verifier, token)
    token = jwt.encode(issuer.claims(NOW_S), issuer.keys["k1"], "RS256")
    assert refusal(verifier, token) == "this OIDC token names no key"


def test_elliptic_keys_work_beside_keys_of_kinds_unknown_to_us(issuer: Issuer, verifier: OidcVerifier) -> None:
    issuer.more = [{"kty": "XYZ", "kid": "future"}, {"kty": "RSA", "kid": "broken"}]
    issuer.add_key("e1", "EC")
    assert verifier.verify(issuer.sign(issuer.claims(NOW_S), "e1", "ES256")).token.scope == "act"


def test_text_that_is_no_token_and_person_of_no_group_are_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    for token in ("", "x", "a.b.c", "..", "e30.e30.e30", "é.é.é", "x" * 9000):
        assert refusal(verifier, token).startswith("this OIDC token")
    reason = refusal(verifier, issuer.sign(issuer.claims(NOW_S, groups=["cooks"])), status=403)
    assert reason == "nothing in the claim 'groups' of this token gives a scope"


@pytest.mark.parametrize(
    ("groups", "scope"),
    [(["dev", "ops", "sre"], "admin"), ("dev sre", "act"), ([], None), (None, None), (7, None), ([["sre"], 3], None)],
)
def test_highest_scope_of_all_groups_counts(groups: object, scope: str | None) -> None:
    assert find_scope({"groups": groups}, "groups", ApiSettings(oidc_scopes=SCOPES).oidc_scopes) == scope


def test_rotated_key_is_found_and_the_old_one_worth_nothing(
    issuer: Issuer, verifier: OidcVerifier, clock: ManualClock
) -> None:
    old = issuer.sign(issuer.claims(NOW_S, exp=NOW_S + 7200))
    verifier.verify(old)
    first = issuer.keys["k1"]
    issuer.keys = {}
    issuer.add_key("k2", "EC")
    clock.advance(PAUSE_S)
    assert verifier.verify(issuer.sign(issuer.claims(NOW_S), "k2", "ES256")).token.scope == "act"
    clock.advance(FRESH_S)
    assert "has no key 'k1'" in refusal(verifier, old)
    issuer.keys["k1"] = first


def test_made_up_keys_do_not_make_us_ask_always(issuer: Issuer, verifier: OidcVerifier, clock: ManualClock) -> None:
    issuer.keys["made-up"] = issuer.keys["k1"]
    token = issuer.sign(issuer.claims(NOW_S), "made-up")
    del issuer.keys["made-up"]
    for _ in range(5):
        assert "has no key 'made-up'" in refusal(verifier, token)
    assert len(issuer.asked) == 2
    clock.advance(PAUSE_S)
    refusal(verifier, token)
    assert len(issuer.asked) == 4


def test_issuer_that_is_away_locks_nobody_out_soon(
    issuer: Issuer, verifier: OidcVerifier, clock: ManualClock
) -> None:
    token = issuer.sign(issuer.claims(NOW_S, exp=NOW_S + 2 * STALE_S))
    verifier.verify(token)
    issuer.is_away = True
    clock.advance(STALE_S - 1)
    assert verifier.verify(token).token.scope == "act"
    clock.advance(1)
    assert refusal(verifier, token, status=503) == "the OIDC issuer does not answer: use a token"


def test_keys_are_not_fetched_where_somebody_could_change_them_nor_without_an_audience() -> None:
    for issuer_url in ("http://issuer.example", "ftp://127.0.0.1", "file:///etc"):
        with pytest.raises(ValueError, match="is not https"):
            fetch_keys(issuer_url)
    with pytest.raises(BadSettings, match="tokens made for others would be taken"):
        load_settings({"LOCKSTEP_API_OIDC_ISSUER": "https://issuer.example"})


def test_api_takes_tokens_of_an_issuer_beside_ours_where_one_is_set(tmp_path: Path, issuer: Issuer) -> None:
    settings = Settings(api=settings_for(issuer))
    with running_api(tmp_path, FakeStore(), settings=settings) as api:
        now_s = api.parts.clock.now_ns() // NS_PER_S
        claims = issuer.claims(now_s, exp=now_s + 10**6)
        ours, theirs = api.make_token("read"), issuer.sign(claims)
        for token in (ours, theirs):
            assert api.client.get("/api/v1/incidents", headers=bearer(token)).status_code == 200
        answer = api.client.get("/api/v1/tokens", headers=bearer(theirs))
        assert check_problem(answer, 403, "wrong-scope") == "a token of scope act does not allow administering"
        answer = api.client.post("/api/v1/ingest", headers=bearer(theirs))
        check_problem(answer, 401, "unknown-token")
    issuer.asked.clear()
    with running_api(tmp_path, FakeStore()) as api:
        answer = api.client.get("/api/v1/incidents", headers=bearer(issuer.sign(issuer.claims(NOW_S))))
        check_problem(answer, 401, "unknown-token")
        assert issuer.asked == []


def _part(content: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
