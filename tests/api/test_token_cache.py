"""What the control database says is obeyed within half a second, and is asked for once for all who come."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from api import token_cache as cache_module
from api.token_cache import LIFE_S, TokenCache
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S, ManualClock
from lockstep.errors import ControlAway
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.incidents import add_detail_request
from lockstep.state.tokens import Scope, Token, create_token, list_tokens, revoke_token


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as database:
        yield database


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000 * NS_PER_S)


@pytest.fixture
def cache(control: ControlDatabase, clock: ManualClock) -> TokenCache:
    return TokenCache(control, clock)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what the database is asked, from now on."""
    questions: list[str] = []
    for name in ("valid_tokens", "find_token", "detail_requests_by_host"):
        plain = getattr(cache_module, name)

        def ask(*arguments: object, name: str = name, plain: object = plain) -> object:
            questions.append(name)
            assert callable(plain)
            return plain(*arguments)

        monkeypatch.setattr(cache_module, name, ask)
    return questions


def make_token(control: ControlDatabase, host: str, scope: Scope = "ingest") -> str:
    return create_token(control, scope=scope, host=host, name="test", now_ns=1)


def find(cache: TokenCache, secret: str) -> Token | None:
    return asyncio.run(cache.find_token(secret))


def detail_requests(cache: TokenCache, host: str) -> list[str]:
    return [detail_request.id for detail_request in asyncio.run(cache.detail_requests_for(host))]


def detail_request(name: str, host: str, expires_s: float) -> DetailRequest:
    return DetailRequest(id=name, host=host, kind="probe", details={}, expires_ns=round(expires_s * NS_PER_S))


def test_what_is_written_down_is_obeyed_within_a_second() -> None:
    assert LIFE_S <= 1.0, "docs/operations.md promises it to whoever revokes a token"


def test_a_revoked_token_is_refused_as_soon_as_the_answer_is_old(
    cache: TokenCache, control: ControlDatabase, clock: ManualClock
) -> None:
    secret = make_token(control, "h0")
    found = find(cache, secret)
    assert found is not None
    assert found.host == "h0"
    revoke_token(control, found.id, now_ns=5)
    clock.advance(LIFE_S)
    assert find(cache, secret) is None


def test_a_token_is_looked_up_once_while_the_answer_is_young(
    cache: TokenCache, control: ControlDatabase, clock: ManualClock, asked: list[str]
) -> None:
    secret = make_token(control, "h0")
    for _ in range(3):
        assert find(cache, secret) is not None
        assert detail_requests(cache, "h0") == []
        clock.advance(LIFE_S / 8)
    assert asked == ["valid_tokens", "detail_requests_by_host"]
    clock.advance(LIFE_S)
    assert find(cache, secret) is not None
    assert asked == ["valid_tokens", "detail_requests_by_host"] * 2


def test_a_token_that_is_revoked_here_is_refused_at_once(cache: TokenCache, control: ControlDatabase) -> None:
    secret = make_token(control, "h0", "read")
    found = find(cache, secret)
    assert found is not None
    revoke_token(control, found.id, now_ns=5)
    assert find(cache, secret) == found
    cache.forget()
    assert find(cache, secret) is None


def test_nobody_is_looked_up_who_is_not_cached(cache: TokenCache, control: ControlDatabase, asked: list[str]) -> None:
    assert asyncio.run(cache.find_known("lks_" + "0" * 16 + "_" + "A" * 43)) is None
    assert "find_token" not in asked


def test_many_who_come_at_once_wait_for_one_answer(
    cache: TokenCache, control: ControlDatabase, asked: list[str]
) -> None:
    secrets = [make_token(control, f"h{number}") for number in range(30)]

    async def all_at_once() -> list[Token | None]:
        return await asyncio.gather(*(cache.find_token(secret) for secret in secrets))

    found = asyncio.run(all_at_once())
    assert [token.host for token in found if token] == [f"h{number}" for number in range(30)]
    assert asked == ["valid_tokens", "detail_requests_by_host"]


def test_a_token_that_is_newer_than_the_answer_is_found_at_once(cache: TokenCache, control: ControlDatabase) -> None:
    assert find(cache, make_token(control, "h0")) is not None
    found = find(cache, make_token(control, "h1"))
    assert found is not None
    assert found.host == "h1"


def test_a_token_of_another_scope_is_told_as_what_it_is(cache: TokenCache, control: ControlDatabase) -> None:
    found = find(cache, make_token(control, "h0", "read"))
    assert found is not None
    assert found.scope == "read"


@pytest.mark.parametrize("secret", ["", "nothing", "lks_" + "0" * 16 + "_" + "A" * 43])
def test_what_is_no_token_is_none(cache: TokenCache, control: ControlDatabase, secret: str) -> None:
    make_token(control, "h0")
    assert find(cache, secret) is None


def test_a_known_token_with_another_secret_is_none(cache: TokenCache, control: ControlDatabase) -> None:
    secret = make_token(control, "h0")
    (token,) = list_tokens(control)
    assert find(cache, secret) == token
    assert find(cache, secret[:-43] + "A" * 43) is None


def test_a_detail_request_reaches_its_host_as_soon_as_the_answer_is_old(
    cache: TokenCache, control: ControlDatabase, clock: ManualClock
) -> None:
    assert detail_requests(cache, "h0") == []
    add_detail_request(control, detail_request("late", "h0", 3_000))
    add_detail_request(control, detail_request("soon", "h0", 2_000))
    add_detail_request(control, detail_request("other", "h1", 2_000))
    clock.advance(LIFE_S)
    assert detail_requests(cache, "h0") == ["soon", "late"]
    assert detail_requests(cache, "h1") == ["other"]


def test_a_detail_request_that_expires_while_the_answer_is_young_is_not_delivered(
    cache: TokenCache, control: ControlDatabase, clock: ManualClock
) -> None:
    add_detail_request(control, detail_request("short", "h0", 1_000 + LIFE_S / 2))
    assert detail_requests(cache, "h0") == ["short"]
    clock.advance(LIFE_S * 3 / 4)
    assert detail_requests(cache, "h0") == []


def test_nobody_is_let_in_on_an_old_answer_while_the_database_is_away(
    cache: TokenCache, control: ControlDatabase, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = make_token(control, "h0")
    assert find(cache, secret) is not None

    def away(_: ControlDatabase) -> None:
        raise ControlAway("the control database cannot be used")

    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "valid_tokens", away)
        clock.advance(LIFE_S)
        with pytest.raises(ControlAway):
            find(cache, secret)
    assert find(cache, secret) is not None
