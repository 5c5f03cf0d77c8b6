"""A good batch is acknowledged and can be queried; everything else is refused with a reason programs can tell."""

import json
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from lockstep.batches import BOOT_HEADER, NUMBER_HEADER, VERSION_HEADER, DetailRequest, Receipt, encode_batch
from lockstep.config import Settings
from lockstep.errors import GatewayFull
from lockstep.records import RECORDS_VERSION, Event
from lockstep.sections import GatewaySettings
from lockstep.state.incidents import add_detail_requests
from tests.api.build import Api, batch_headers, check_problem, running_api
from tests.api.fake_store import FakeStore
from tests.api.ingest.build import batch
from tests.builders import T0, make, rows
from tests.conftest import REPO
from tests.waiting import LIMIT_S, eventually

PATH = "/api/v1/ingest"
FAR_NS = 2**62


def post(api: Api, body: bytes, headers: dict[str, str]) -> httpx.Response:
    return api.client.post(PATH, content=body, headers=headers)


def good_headers(api: Api, host: str = "h0") -> dict[str, str]:
    return batch_headers(api.make_token("ingest", host), agent=host)


SMALL = Settings(gateway=GatewaySettings(max_batch_mb=1, max_rows=3))


@pytest.fixture(scope="module")
def strict_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """An app with small limits whose store is in memory, shared by all tests of what is refused."""
    with running_api(tmp_path_factory.mktemp("strict"), FakeStore(), settings=SMALL) as running:
        yield running


@pytest.fixture
def light_api(tmp_path: Path) -> Iterator[Api]:
    with running_api(tmp_path, FakeStore(), settings=SMALL) as running:
        yield running


def test_good_batch_is_acknowledged_and_can_be_queried(api: Api) -> None:
    body = encode_batch({"events": rows(*(make(Event, host="good", message=str(n)) for n in range(3)))})
    answer = post(api, body, good_headers(api, "good"))
    assert (answer.status_code, answer.json()) == (200, {"watermark": 1, "requests": []})

    def arrived() -> list[str]:
        found = api.parts.store.query("SELECT message FROM events WHERE host = 'good' ORDER BY message")
        return list(found["message"].to_pylist())

    eventually(lambda: arrived() == ["0", "1", "2"])


def test_reply_carries_the_watermark_and_the_host_s_detail_requests(light_api: Api) -> None:
    headers = good_headers(light_api)
    assert post(light_api, batch("a"), headers).json()["requests"] == []
    mine = DetailRequest(id="w1", host="h0", kind="probe", details={"dst": "h1"}, expires_ns=FAR_NS)
    for request in (
        mine,
        DetailRequest(id="w2", host="h1", kind="detail", details={}, expires_ns=FAR_NS),
        DetailRequest(id="w3", host="h0", kind="detail", details={}, expires_ns=T0),
    ):
        add_detail_requests(light_api.parts.control, request)

    def receipt() -> Receipt:
        return Receipt.model_validate_json(post(light_api, batch("b"), headers | {NUMBER_HEADER: "2"}).content)

    eventually(lambda: receipt() == Receipt(watermark=2, requests=(mine,)))


def test_batch_without_the_right_token_is_refused(strict_api: Api) -> None:
    token = strict_api.make_token("admin", "h0")
    sentence = check_problem(post(strict_api, batch("a"), batch_headers(token)), 403, "wrong-scope")
    assert sentence == "a token of scope admin does not allow sending telemetry"
    for agent, named in (("h1", "h1"), ("", "nobody")):
        headers = batch_headers(strict_api.make_token("ingest", "h0"), agent=agent)
        sentence = check_problem(post(strict_api, batch("a"), headers), 403, "wrong-host")
        assert sentence == f"this token is for h0, the batch is from {named}"


@pytest.mark.parametrize(
    ("header", "values", "status", "slug", "sentence"),
    [
        (
            VERSION_HEADER,
            ["0", str(RECORDS_VERSION + 1), "", "x", "-1", "1.0", "9" * 5000],
            426,
            "unsupported-version",
            "only [1]",
        ),
        ("Content-Type", ["application/json", ""], 415, "unsupported-media", ""),
        ("Content-Encoding", ["gzip", ""], 415, "unsupported-media", ""),
        (
            NUMBER_HEADER,
            ["", "0", "-1", "+1", "1.5", "one", "²", str(2**63), "9" * 5000],
            400,
            "bad-batch",
            "must identify the batch",
        ),
        (BOOT_HEADER, ["", "b" * 201], 400, "bad-batch", ""),
    ],
)
def test_batch_with_a_bad_header_is_refused(
    strict_api: Api, header: str, values: list[str], status: int, slug: str, sentence: str
) -> None:
    good = good_headers(strict_api)
    for value in values:
        headers = httpx.Headers(good | {header: value}, encoding="latin-1")
        answer = strict_api.client.post(PATH, content=batch("a"), headers=headers)
        assert sentence in check_problem(answer, status, slug)


def test_batch_with_a_bad_body_is_refused_with_a_sentence(strict_api: Api) -> None:
    headers = good_headers(strict_api)
    for body in (b"", b"garbage", pa.compress(b"garbage", "zstd", asbytes=True), batch("a")[:-20]):
        check_problem(post(strict_api, body, headers), 400, "bad-batch")
    bomb = pa.compress(bytes(17 << 20), "zstd", asbytes=True)
    assert len(bomb) < 1 << 20
    for body, sentence in (
        (b"x" * ((1 << 20) + 1), "a batch may have 1 MiB"),
        (bomb, "the body unpacks to more than 16 MiB"),
        (batch("a", "b", "c", "d"), "the batch holds more than 3 rows"),
    ):
        assert check_problem(post(strict_api, body, headers), 413, "too-large") == sentence
    foreign = encode_batch({"events": rows(make(Event, host="h0"), make(Event, host="h1"))})
    sentence = check_problem(post(strict_api, foreign, headers), 403, "wrong-host")
    assert sentence == "events, row 1: this token is for h0, the row is from h1"


def test_large_body_in_chunks_is_refused_without_waiting_for_its_end(strict_api: Api) -> None:
    connection = HTTPConnection(strict_api.client.base_url.netloc.decode(), timeout=LIMIT_S)
    connection.putrequest("POST", PATH)
    for name, value in (good_headers(strict_api) | {"Transfer-Encoding": "chunked"}).items():
        connection.putheader(name, value)
    connection.endheaders()
    with suppress(ConnectionError):  # it may hang up before it has been told the last of it
        for _ in range(17):
            connection.send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
    answer = connection.getresponse()
    assert (answer.status, json.load(answer)["type"]) == (413, "urn:lockstep:problem:too-large")
    connection.close()


def test_refused_batch_leaves_no_trace_and_the_largest_number_is_taken(light_api: Api) -> None:
    headers = good_headers(light_api)
    post(light_api, b"garbage", headers)
    assert light_api.parts.gateway.backlog_bytes == 0
    assert post(light_api, batch("a"), headers).json()["watermark"] == 1
    answer = post(light_api, batch("a"), headers | {NUMBER_HEADER: str(2**63 - 1)})
    assert answer.json()["watermark"] == 2**63 - 1
    documented = json.loads((REPO / "docs" / "openapi.json").read_text(encoding="utf-8"))["paths"][PATH]["post"]
    assert documented["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/Receipt")


def test_full_gateway_asks_to_come_again_and_a_fault_tells_nothing(
    light_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [RuntimeError("a secret"), GatewayFull("4096 MiB wait for the store already")]

    def fail(*_: object, **__: object) -> None:
        raise faults.pop()

    monkeypatch.setattr(light_api.parts.gateway, "take", fail)
    answer = post(light_api, batch("a"), good_headers(light_api))
    assert check_problem(answer, 503, "busy") == "4096 MiB wait for the store already"
    assert answer.headers["Retry-After"] == "1"
    assert "secret" not in check_problem(post(light_api, batch("a"), good_headers(light_api)), 500, "failed")
