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
from lockstep.state.incidents import add_detail_request
from lockstep.state.tokens import list_tokens, revoke_token
from lockstep.store.store import Store
from tests.api.build import Api, batch_headers, check_problem, running_api
from tests.api.fake_store import FakeStore
from tests.api.ingest.build import batch
from tests.builders import T0, make, rows
from tests.waiting import eventually

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
    """The same, of one's own."""
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


def test_same_batch_again_is_acknowledged_again_and_stored_once(api: Api) -> None:
    headers = good_headers(api, "twice")
    for _ in range(3):
        assert post(api, batch("once", host="twice"), headers).json()["watermark"] == 1
    api.parts.gateway.close()
    api.parts.gateway.close = lambda: None  # type: ignore[method-assign]  # the app would close it once more
    count = "SELECT count() AS n FROM events WHERE host = 'twice'"
    assert api.parts.store.query(count)["n"].to_pylist() == [1]


def test_reply_carries_the_watermark_and_the_host_s_detail_requests(light_api: Api) -> None:
    mine = DetailRequest(id="w1", host="h0", kind="probe", details={"dst": "h1"}, expires_ns=FAR_NS)
    add_detail_request(light_api.parts.control, mine)
    add_detail_request(
        light_api.parts.control, DetailRequest(id="w2", host="h1", kind="detail", details={}, expires_ns=FAR_NS)
    )
    add_detail_request(
        light_api.parts.control, DetailRequest(id="w3", host="h0", kind="detail", details={}, expires_ns=T0)
    )
    headers = good_headers(light_api)
    post(light_api, batch("a"), headers)
    answer = post(light_api, batch("b"), headers | {NUMBER_HEADER: "2"})
    assert Receipt.model_validate_json(answer.content) == Receipt(watermark=2, requests=(mine,))


def test_detail_request_that_is_made_meanwhile_comes_with_a_later_reply(light_api: Api) -> None:
    headers = good_headers(light_api)
    assert post(light_api, batch("a"), headers).json()["requests"] == []
    detail_request = DetailRequest(id="w1", host="h0", kind="probe", details={"dst": "h1"}, expires_ns=FAR_NS)
    add_detail_request(light_api.parts.control, detail_request)
    eventually(lambda: post(light_api, batch("a"), headers).json()["requests"] == [detail_request.model_dump()])


def test_way_past_the_router_is_the_route_that_is_documented(light_api: Api) -> None:
    documented = light_api.get("/openapi.json").json()["paths"][PATH]["post"]
    assert documented["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/Receipt")
    check_problem(light_api.client.get(PATH), 405, "method-not-allowed")


def test_fault_of_ours_is_told_without_its_insides(light_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(light_api.parts.gateway, "take", broken)
    sentence = check_problem(post(light_api, batch("a"), good_headers(light_api)), 500, "failed")
    assert "secret" not in sentence


def test_batch_without_a_token_is_refused(strict_api: Api) -> None:
    headers = good_headers(strict_api)
    del headers["Authorization"]
    answer = post(strict_api, batch("a"), headers)
    assert "Authorization: Bearer" in check_problem(answer, 401, "no-token")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("value", ["Basic abc", "Bearer", "lks_abc"])
def test_batch_with_something_else_for_a_token_is_refused(strict_api: Api, value: str) -> None:
    answer = post(strict_api, batch("a"), good_headers(strict_api) | {"Authorization": value})
    check_problem(answer, 401, "no-token")


def test_batch_with_a_token_that_nobody_made_is_refused(strict_api: Api) -> None:
    unknown = "lks_" + "0" * 16 + "_" + "A" * 43
    check_problem(post(strict_api, batch("a"), batch_headers(unknown)), 401, "unknown-token")


def test_batch_with_a_revoked_token_is_refused(light_api: Api) -> None:
    headers = good_headers(light_api)
    (token,) = list_tokens(light_api.parts.control)
    assert post(light_api, batch("a"), headers).status_code == 200
    revoke_token(light_api.parts.control, token.id, T0)
    eventually(lambda: post(light_api, batch("a"), headers).status_code == 401)  # test_board says how soon
    check_problem(post(light_api, batch("a"), headers), 401, "unknown-token")


@pytest.mark.parametrize("scope", ["read", "admin"])
def test_batch_with_a_token_for_something_else_is_refused(strict_api: Api, scope: str) -> None:
    token = strict_api.make_token("read" if scope == "read" else "admin", "h0")
    sentence = check_problem(post(strict_api, batch("a"), batch_headers(token)), 403, "wrong-scope")
    assert sentence == f"a token of scope {scope} does not allow sending telemetry"


@pytest.mark.parametrize(("agent", "named"), [("h1", "h1"), ("", "nobody")])
def test_batch_of_another_host_than_the_token_s_is_refused(strict_api: Api, agent: str, named: str) -> None:
    headers = batch_headers(strict_api.make_token("ingest", "h0"), agent=agent)
    sentence = check_problem(post(strict_api, batch("a"), headers), 403, "wrong-host")
    assert sentence == f"this token is for h0, the batch is from {named}"


def test_row_of_another_host_is_refused_and_named(strict_api: Api) -> None:
    body = encode_batch({"events": rows(make(Event, host="h0"), make(Event, host="h1"))})
    sentence = check_problem(post(strict_api, body, good_headers(strict_api)), 403, "wrong-host")
    assert sentence == "events, row 1: this token is for h0, the row is from h1"


@pytest.mark.parametrize("version", ["0", str(RECORDS_VERSION + 1), "", "x", "-1", "1.0", "9" * 5000])
def test_batch_of_another_version_is_refused(strict_api: Api, version: str) -> None:
    answer = post(strict_api, batch("a"), good_headers(strict_api) | {VERSION_HEADER: version})
    assert "only [1]" in check_problem(answer, 426, "unsupported-version")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Content-Type", "application/json"),
        ("Content-Type", ""),
        ("Content-Encoding", "gzip"),
        ("Content-Encoding", ""),
    ],
)
def test_batch_of_another_media_type_or_encoding_is_refused(strict_api: Api, header: str, value: str) -> None:
    answer = post(strict_api, batch("a"), good_headers(strict_api) | {header: value})
    check_problem(answer, 415, "unsupported-media")


@pytest.mark.parametrize("number", ["", "0", "-1", "+1", "1.5", "one", "²", str(2**63), "9" * 5000])
def test_batch_with_a_bad_number_is_refused(strict_api: Api, number: str) -> None:
    headers = httpx.Headers(good_headers(strict_api) | {NUMBER_HEADER: number}, encoding="latin-1")
    answer = strict_api.client.post(PATH, content=batch("a"), headers=headers)
    assert "must identify the batch" in check_problem(answer, 400, "bad-batch")


def test_batch_with_the_largest_number_is_taken(light_api: Api) -> None:
    answer = post(light_api, batch("a"), good_headers(light_api) | {NUMBER_HEADER: str(2**63 - 1)})
    assert answer.json()["watermark"] == 2**63 - 1


@pytest.mark.parametrize("boot", ["", "b" * 201])
def test_batch_without_a_usable_boot_is_refused(strict_api: Api, boot: str) -> None:
    answer = post(strict_api, batch("a"), good_headers(strict_api) | {BOOT_HEADER: boot})
    check_problem(answer, 400, "bad-batch")


@pytest.mark.parametrize("body", [b"", b"garbage", pa.compress(b"garbage", "zstd", asbytes=True)])
def test_garbage_is_refused(strict_api: Api, body: bytes) -> None:
    check_problem(post(strict_api, body, good_headers(strict_api)), 400, "bad-batch")


def test_batch_that_is_cut_short_is_refused(strict_api: Api) -> None:
    check_problem(post(strict_api, batch("a")[:-20], good_headers(strict_api)), 400, "bad-batch")


def test_large_body_is_refused(strict_api: Api) -> None:
    answer = post(strict_api, b"x" * ((1 << 20) + 1), good_headers(strict_api))
    assert check_problem(answer, 413, "too-large") == "a batch may have 1 MiB"


def test_large_body_in_chunks_is_refused_without_waiting_for_its_end(strict_api: Api) -> None:
    connection = HTTPConnection(strict_api.client.base_url.netloc.decode(), timeout=60)
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


def test_small_body_that_unpacks_into_a_large_one_is_refused(strict_api: Api) -> None:
    bomb = pa.compress(bytes(17 << 20), "zstd", asbytes=True)
    assert len(bomb) < 1 << 20
    sentence = check_problem(post(strict_api, bomb, good_headers(strict_api)), 413, "too-large")
    assert sentence == "the body unpacks to more than 16 MiB"


def test_batch_with_too_many_rows_is_refused(strict_api: Api) -> None:
    sentence = check_problem(post(strict_api, batch("a", "b", "c", "d"), good_headers(strict_api)), 413, "too-large")
    assert sentence == "the batch holds more than 3 rows"


def test_refused_batch_leaves_no_trace(light_api: Api) -> None:
    headers = good_headers(light_api)
    post(light_api, b"garbage", headers)
    assert light_api.parts.gateway.backlog_bytes == 0
    assert post(light_api, batch("a"), headers).json()["watermark"] == 1


def test_full_gateway_asks_the_agent_to_come_again(light_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise GatewayFull("4096 MiB wait for the store already")

    monkeypatch.setattr(light_api.parts.gateway, "take", full)
    answer = post(light_api, batch("a"), good_headers(light_api))
    assert check_problem(answer, 503, "busy") == "4096 MiB wait for the store already"
    assert answer.headers["Retry-After"] == "1"


def test_batches_are_taken_while_the_store_is_away(tmp_path: Path, shared_store: Store) -> None:
    away = FakeStore(fault=GatewayFull("stands for any trouble"))
    with running_api(tmp_path, shared_store, gateway_store=away) as api:
        assert post(api, batch("a"), good_headers(api)).status_code == 200
