"""A small OpenID Connect issuer on a real socket, with keys of its own making that it can change."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.http_serving import Quiet, serving

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
        self.keys[key_id] = (
            rsa.generate_private_key(65537, 2048) if kind == "RSA" else ec.generate_private_key(ec.SECP256R1())
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
    """Give an issuer with one key, k1."""
    issuer = Issuer()

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked.append(self.path)
            body = json.dumps(issuer.answer(self.path)).encode()
            self.send_response(503 if issuer.is_away else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    issuer.add_key("k1")
    with serving(Handler) as url:
        issuer.url = url
        yield issuer
