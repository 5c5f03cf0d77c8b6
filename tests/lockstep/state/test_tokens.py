"""Tokens, sessions and idempotency keys open what they were made for until they end; the database holds no secret."""

import re

import pytest
from sqlalchemy import select

from lockstep.errors import BadInput, NotPresent
from lockstep.state import idempotency, tokens
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import list_audit
from lockstep.state.idempotency import KEPT_NS, STUCK_NS, Earlier, claim, drop, finish
from lockstep.state.tables import SESSIONS, TOKENS

LIFE = 1_000
NOW = 10**18
PERSON = tokens.Token(id="oidc:u-17", scope="admin", host=None, name="ann@site", created_ns=0)


def test_new_token_is_found_and_only_its_digest_is_kept(db: ControlDatabase) -> None:
    text = tokens.create_token(db, scope="ingest", host="h3", name="rack 7", now_ns=5)
    assert re.fullmatch(r"lks_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", text), "256 random bits"
    found = tokens.find_token(db, text)
    assert found == tokens.Token(id=text.split("_")[1], scope="ingest", host="h3", name="rack 7", created_ns=5)
    assert tokens.list_tokens(db) == [found]
    with db.read() as connection:
        row = connection.execute(select(TOKENS)).one()
    assert text.split("_", 2)[2] not in repr(row)
    assert re.fullmatch("[0-9a-f]{64}", row.digest)
    assert tokens.create_token(db, scope="ingest", host="h3", name="rack 7", now_ns=5) != text


@pytest.mark.parametrize(
    ("host", "now_ns", "message"),
    [
        (None, 5, "'rack 7' is for ingest, so it needs the host"),
        ("h3", 2**70, "cannot hold this value"),  # so its line in the audit fails
    ],
)
def test_token_that_is_refused_is_not_made(db: ControlDatabase, host: str | None, now_ns: int, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        tokens.create_token(db, scope="ingest", host=host, name="rack 7", now_ns=now_ns)
    assert tokens.list_tokens(db) == []


def test_text_that_is_no_token_or_session_of_ours_is_unknown(db: ControlDatabase) -> None:
    text = tokens.create_token(db, scope="read", host=None, name="ada", now_ns=5)
    for wrong in ("", "lks_", "Bearer x", "lks_00_é\x00", "lks_" + "0" * 16 + "_" + "A" * 43, text[:-43] + "A" * 43):
        assert tokens.find_token(db, wrong) is None
    for wrong in ("", "x", "é", "\ud800", "a" * 100_000):
        assert tokens.find_session(db, wrong, 1) is None


def test_revoked_token_is_unknown_but_still_listed_and_audited_once(db: ControlDatabase) -> None:
    text = tokens.create_token(db, scope="read", host=None, name="n", now_ns=5, who="ada", why="for grafana")
    token_id = tokens.list_tokens(db)[0].id
    for now_ns in (9, 10):
        tokens.revoke_token(db, token_id, now_ns, who="bob", why="leaked")
    assert tokens.find_token(db, text) is None
    assert tokens.list_tokens(db)[0].revoked_ns == 9
    with pytest.raises(NotPresent, match="there is no token 'x'"):
        tokens.revoke_token(db, "x", now_ns=9)
    revoked, created = list_audit(db, 10)
    assert (created.who, created.what, created.subject, created.ts_ns) == ("ada", "create_token", token_id, 5)
    assert (revoked.who, revoked.what, revoked.why, revoked.ts_ns) == ("bob", "revoke_token", "leaked", 9)
    assert text.split("_", 2)[2] not in repr((created, revoked))


def test_valid_tokens_come_together_and_each_opens_only_with_its_secret(db: ControlDatabase) -> None:
    other = tokens.create_token(db, scope="read", host=None, name="n", now_ns=5)
    assert not tokens.expects_agents(db)
    texts = [tokens.create_token(db, scope="ingest", host=f"h{number}", name="n", now_ns=5) for number in range(3)]
    tokens.revoke_token(db, texts[2].split("_")[1], now_ns=6)
    valid = (*texts[:2], other)
    rows = tokens.valid_tokens(db)
    assert sorted(rows) == sorted(text.split("_")[1] for text in valid)
    assert [tokens.match_token(rows, text) for text in valid] == [tokens.find_token(db, text) for text in valid]
    assert [tokens.match_token(rows, text) for text in (texts[2], texts[0][:-43] + "A" * 43, "")] == [None] * 3
    assert tokens.expects_agents(db)
    for text in texts[:2]:
        tokens.revoke_token(db, text.split("_")[1], now_ns=6)
    assert not tokens.expects_agents(db), "no collector has a valid token any more"


@pytest.fixture
def token(db: ControlDatabase) -> tokens.Token:
    found = tokens.find_token(db, tokens.create_token(db, scope="act", host=None, name="ann", now_ns=1))
    assert found is not None
    return found


def test_session_stands_for_its_token_until_it_ends_or_is_ended(db: ControlDatabase, token: tokens.Token) -> None:
    hers, other = tokens.begin_session(db, token, 10, 10 + LIFE), tokens.begin_session(db, PERSON, 10, 10 + LIFE)
    found, person = tokens.find_session(db, hers, 10 + LIFE - 1), tokens.find_session(db, other, 11)
    assert found is not None
    assert person is not None
    assert (found.id, found.scope, found.name, found.host) == (token.id, "act", "ann", None)
    assert (person.id, person.scope, person.name) == ("session:ann@site", "admin", "ann@site")
    assert tokens.find_session(db, hers, 10 + LIFE) is None
    tokens.revoke_token(db, token.id, 20)
    assert tokens.find_session(db, hers, 21) is None
    assert tokens.find_session(db, other, 21) is not None
    for now_ns in (22, 23):
        tokens.end_session(db, other, now_ns)
    assert tokens.find_session(db, other, 24) is None
    acts = [line.what for line in list_audit(db, 10)]
    assert acts == ["log_out", "revoke_token", "log_in", "log_in", "create_token"], "one log_out"


def test_database_holds_no_secret_of_a_session_and_forgets_what_is_over(
    db: ControlDatabase, token: tokens.Token
) -> None:
    tokens.begin_session(db, token, 10, 20)
    secret = tokens.begin_session(db, token, 20, 30)
    with db.read() as connection:
        rows = connection.execute(select(SESSIONS)).all()
    assert len(rows) == 1
    assert secret not in str(rows)


def test_key_is_claimed_once_until_it_is_dropped_or_stuck(db: ControlDatabase) -> None:
    assert claim(db, "k", "asked", NOW) is None
    assert claim(db, "k", "other", NOW + STUCK_NS - 1) == Earlier("asked", None, None)
    assert claim(db, "k", "asked", NOW + STUCK_NS) is None, "its process has died"
    drop(db, "k")
    assert claim(db, "k", "asked", NOW + 1) is None


def test_answers_are_kept_for_a_day_and_the_oldest_go(db: ControlDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(db, "k", "asked", NOW)
    finish(db, "k", 201, "sealed")
    assert claim(db, "k", "asked", NOW + KEPT_NS - 1) == Earlier("asked", 201, "sealed")
    assert claim(db, "k", "asked", NOW + KEPT_NS) is None
    drop(db, "k")
    monkeypatch.setattr(idempotency, "MOST", 3)
    for number in range(5):
        claim(db, f"k{number}", "asked", NOW + number)
        finish(db, f"k{number}", 200, "sealed")
    assert [number for number in range(4, 1, -1) if claim(db, f"k{number}", "asked", NOW + 10)] == [4, 3, 2]
    assert claim(db, "k0", "asked", NOW + 10) is None
