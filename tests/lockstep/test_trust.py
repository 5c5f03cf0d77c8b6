"""Clients of a server whose certificate the site's own authority signed: trusted where they are told, else not."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from collector.path_follower import make_client
from collector.shipping import Batch, GatewayClient
from lockstep.client.server import Server
from lockstep.errors import BadInput, DestinationAway, ServerAway
from tests.api.alerts.receivers import answer, make_certificate, receiving

RECEIPT = b'{"watermark": 7, "requests": []}'
Ask = Callable[[str, Path | None], object]


def as_reader(url: str, ca_file: Path | None) -> object:
    with Server(url, "lks_reader", ca_file=ca_file) as server:
        return server.send("POST", "/api/v1/anything", {})["watermark"]


def as_collector(url: str, ca_file: Path | None) -> object:
    with closing(GatewayClient(url, "lks_host", "h0", ca_file)) as client:
        return client.send(Batch("b1", 1, b"rows", rows=1)).watermark


def as_follower_of_paths(url: str, ca_file: Path | None) -> object:
    with make_client(url, "lks_host", ca_file) as client:
        return client.post("/").json()["watermark"]


ASKS = pytest.mark.parametrize("ask", [as_reader, as_collector, as_follower_of_paths])


@ASKS
def test_site_s_own_authority_is_believed_only_where_it_is_named(ask: Ask, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "localhost")
    with receiving(answer(200, RECEIPT), certificate) as receiver:
        url = receiver.url.replace("127.0.0.1", "localhost")
        assert ask(url, certificate) == 7
        with pytest.raises((ServerAway, DestinationAway, httpx.ConnectError), match="CERTIFICATE_VERIFY_FAILED"):
            ask(url, None)
        with pytest.raises((ServerAway, DestinationAway, httpx.ConnectError), match="CERTIFICATE_VERIFY_FAILED"):
            ask(receiver.url, certificate)  # another name than the certificate's
    assert len(receiver.got) == 1


@ASKS
def test_file_without_authorities_is_named(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing\n")
    for file in (tmp_path / "empty.pem", tmp_path / "none.pem"):
        with pytest.raises(BadInput, match=rf"cannot read authorities from {file} \((LOCKSTEP_CA|collector\.ca)_"):
            ask("https://localhost:1", file)


@pytest.mark.parametrize("name", ["LOCKSTEP_CA_FILE", "SSL_CERT_FILE"])
def test_commands_take_the_authority_from_the_environment(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path, "localhost")
    monkeypatch.setenv(name, str(certificate))
    with receiving(answer(200, RECEIPT), certificate) as receiver:
        assert as_reader(receiver.url.replace("127.0.0.1", "localhost"), None) == 7
