"""One caller cannot take everybody's turn, and no body is larger than what is asked for."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.limits import REFUSED_PER_S, Buckets, most_bytes
from lockstep.clock import NS_PER_S, ManualClock
from lockstep.config import Settings
from lockstep.sections import ApiSettings
from lockstep.state.sessions import begin_session
from lockstep.state.tokens import find_token
from tests.api.build import Api, batch_headers, bearer, check_problem, running_api
from tests.api.fake_store import FakeStore
from tests.api.rules import rules_of

LARGE = b"x" * (1 << 20)


class StillClock(ManualClock):
    """Stands still also for threads that wait, which do so in real time."""

    def __init__(self) -> None:
        super().__init__(10**18)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Api]:
    """An app for which no time passes, with three requests and two batches a second for each caller."""
    limits = ApiSettings(requests_per_s=1.5, batches_per_s=1, max_body_kb=64)
    with running_api(tmp_path, FakeStore(), settings=Settings(api=limits), clock=StillClock()) as running:
        yield running


def test_caller_that_asks_too_often_is_told_when_to_come_again(still: Api) -> None:
    headers = bearer(still.make_token("read"))
    assert [still.client.get("/api/v1/incidents", headers=headers).status_code for _ in range(3)] == [200] * 3
    answer = still.client.get("/api/v1/incidents", headers=headers)
    assert check_problem(answer, 429, "too-many-requests") == "too many requests: ask again in 0.7 s"
    assert answer.headers["Retry-After"] == "1"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_time_fills_the_bucket_again(still: Api) -> None:
    headers = bearer(still.make_token("read"))
    for _ in range(4):
        last = still.client.get("/api/v1/incidents", headers=headers)
    assert last.status_code == 429
    clock = still.parts.clock
    assert isinstance(clock, StillClock)
    clock.advance(1)
    assert still.client.get("/api/v1/incidents", headers=headers).status_code == 200


def test_one_caller_does_not_use_up_another_s_turn(still: Api) -> None:
    greedy, modest = bearer(still.make_token("read")), bearer(still.make_token("read"))
    for _ in range(5):
        still.client.get("/api/v1/incidents", headers=greedy)
    assert still.client.get("/api/v1/incidents", headers=modest).status_code == 200


def test_batches_have_a_bound_of_their_own(still: Api) -> None:
    headers = batch_headers(still.make_token("ingest", "h0"))
    statuses = [still.client.post("/api/v1/ingest", content=b"", headers=headers).status_code for _ in range(3)]
    assert statuses == [400, 400, 429]


def test_probes_are_never_refused(still: Api) -> None:
    assert {still.client.get("/healthz").status_code for _ in range(10)} == {200}


def test_made_up_tokens_are_slowed_down_and_a_neighbour_s_good_one_is_not(still: Api) -> None:
    good = bearer(still.make_token("read"))
    assert still.client.get("/api/v1/incidents", headers=good).status_code == 200
    tries = [
        still.client.get("/api/v1/incidents", headers=bearer(f"lks_{number:016x}_{'A' * 43}")).status_code
        for number in range(110)
    ]
    assert tries == [401] * int(REFUSED_PER_S * 20) + [429] * 10
    assert still.client.get("/api/v1/incidents", headers=good).status_code == 200


def fill_with_made_up_tokens(api: Api) -> None:
    """Send so many worthless tokens from our address that no more are looked at."""
    tries = [
        api.client.get("/api/v1/incidents", headers=bearer(f"lks_{number:016x}_{'A' * 43}")).status_code
        for number in range(110)
    ]
    assert tries[-10:] == [429] * 10


def test_good_token_that_was_never_seen_is_let_in_from_an_address_that_is_locked_out(still: Api) -> None:
    reader, agent = bearer(still.make_token("read")), batch_headers(still.make_token("ingest", "h0"))
    fill_with_made_up_tokens(still)
    assert still.client.get("/api/v1/incidents", headers=reader).status_code == 200
    assert still.client.post("/api/v1/ingest", content=b"", headers=agent).status_code == 400, "it was looked at"
    worse = bearer(still.make_token("read")[:-1] + "!")
    check_problem(still.client.get("/api/v1/incidents", headers=worse), 429, "too-many-requests")


def test_session_is_let_in_from_an_address_that_is_locked_out_and_a_made_up_one_is_not(still: Api) -> None:
    token = find_token(still.parts.control, still.make_token("read"))
    assert token is not None
    now_ns = still.parts.clock.now_ns()
    cookie = begin_session(still.parts.control, token, now_ns, now_ns + NS_PER_S)
    fill_with_made_up_tokens(still)
    good, bad = ({"Cookie": f"lockstep_session={secret}"} for secret in (cookie, "made-up"))
    assert still.client.get("/api/v1/incidents", headers=good).status_code == 200
    check_problem(still.client.get("/api/v1/incidents", headers=bad), 429, "too-many-requests")


def test_person_logs_in_from_an_address_that_is_locked_out(tmp_path: Path) -> None:
    with running_api(tmp_path, FakeStore(), clock=StillClock()) as api:
        token = api.make_token("read")
        fill_with_made_up_tokens(api)
        assert api.client.get("/login").status_code == 200
        assert api.client.get("/", headers={"Accept": "text/html"}).status_code == 303
        assert api.client.post("/login", data={"token": "lks_guessed"}).status_code == 429
        assert api.client.post("/login", data={"token": token}).status_code == 303


def test_no_limit_is_no_limit(tmp_path: Path) -> None:
    free = Settings(api=ApiSettings(requests_per_s=0))
    with running_api(tmp_path, FakeStore(), settings=free, clock=StillClock()) as api:
        assert {api.get("/api/v1/incidents").status_code for _ in range(50)} == {200}


def test_open_reads_count_by_address_whatever_token_is_made_up(tmp_path: Path) -> None:
    limits = Settings(api=ApiSettings(requests_per_s=1, open_reads=True))
    with running_api(tmp_path, FakeStore(), settings=limits, clock=StillClock()) as api:
        statuses = [api.client.get("/api/v1/incidents", headers=bearer(str(n))).status_code for n in range(3)]
    assert statuses == [200, 200, 429]


def test_body_that_says_it_is_too_large_is_refused_unread(still: Api) -> None:
    answer = still.client.put("/api/v1/policies/planner", content=LARGE, headers=bearer(still.make_token("admin")))
    assert check_problem(answer, 413, "too-large") == "a body here may have 64 KiB"


def test_body_that_says_nothing_is_counted_as_it_comes(still: Api) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(16):
            yield LARGE[: 1 << 13]

    answer = still.client.put("/api/v1/policies/planner", content=pieces(), headers=bearer(still.make_token("admin")))
    check_problem(answer, 413, "too-large")


def test_no_route_takes_a_body_without_a_bound(api: Api) -> None:
    """Those who read as they like say by themselves what is too much; all others are cut off."""
    tokens = {scope: api.make_token(scope, "x" if scope == "ingest" else None) for scope in ("admin", "ingest")}
    for rule in rules_of(api.parts):
        if rule.method in ("GET", "HEAD") or rule.path == "/api/v1/captures":
            continue
        headers = batch_headers(tokens["ingest" if rule.is_for_agents else "admin"], agent="x")
        answer = api.client.request(rule.method, rule.url, content=LARGE * 9, headers=headers)
        assert answer.status_code == 413, f"{rule.key}: {answer.status_code} {answer.text}"


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/api/v1/policies/planner", 1 << 20), ("/api/v1/captures", 512 << 20), ("/login", 1 << 20)],
)
def test_captures_may_be_larger_than_everything_else(path: str, expected: int) -> None:
    assert most_bytes(path, Settings()) == expected


@given(
    st.floats(0.1, 50, allow_nan=False),
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 2, allow_nan=False)), max_size=80),
)
def test_nobody_gets_more_than_the_burst_and_what_time_brings(per_s: float, asked: list[tuple[str, float]]) -> None:
    buckets, now_ns = Buckets(per_s), 0
    taken = dict.fromkeys("abc", 0)
    for caller, pause_s in asked:
        now_ns += int(pause_s * NS_PER_S)
        wait_s = buckets.take(caller, now_ns)
        taken[caller] += wait_s == 0
        assert wait_s <= 1 / per_s
        if wait_s:
            assert buckets.is_empty(caller, now_ns)
    most = max(1.0, per_s * 2) + per_s * now_ns / NS_PER_S
    assert all(count <= most + 1e-6 for count in taken.values())


def test_callers_are_remembered_up_to_a_bound() -> None:
    buckets = Buckets(1, most=10)
    for number in range(100):
        buckets.take(str(number), 0)
    assert len(buckets) == 10
    assert "99" in buckets
    assert "0" not in buckets
