"""A token opens what it was made for until it is revoked, and the database cannot tell anybody what it is."""

import re

import pytest
from sqlalchemy import select

from lockstep.errors import BadInput, NotPresent
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import list_audit
from lockstep.state.tables import TOKENS
from lockstep.state.tokens import (
    Token,
    create_token,
    expects_agents,
    find_token,
    list_tokens,
    match_token,
    revoke_token,
    valid_tokens,
)


def test_new_token_is_found_with_what_it_may_do(db: ControlDatabase) -> None:
    text = create_token(db, scope="ingest", host="h3", name="rack 7", now_ns=5)
    found = find_token(db, text)
    assert found == Token(id=text.split("_")[1], scope="ingest", host="h3", name="rack 7", created_ns=5)
    assert list_tokens(db) == [found]


def test_token_has_256_random_bits(db: ControlDatabase) -> None:
    texts = {create_token(db, scope="read", host=None, name="n", now_ns=0) for _ in range(5)}
    assert len(texts) == 5
    assert all(re.fullmatch(r"lks_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", text) for text in texts)


def test_secret_is_not_in_the_database(db: ControlDatabase) -> None:
    text = create_token(db, scope="admin", host=None, name="ada", now_ns=5)
    with db.read() as connection:
        row = connection.execute(select(TOKENS)).one()
    assert text.split("_", 2)[2] not in repr(row)
    assert re.fullmatch("[0-9a-f]{64}", row.digest)


def test_ingest_token_needs_a_host(db: ControlDatabase) -> None:
    with pytest.raises(BadInput, match="'rack 7' is for ingest, so it needs the host"):
        create_token(db, scope="ingest", host=None, name="rack 7", now_ns=5)
    assert list_tokens(db) == []


def test_wrong_secret_for_a_known_id_is_unknown(db: ControlDatabase) -> None:
    text = create_token(db, scope="read", host=None, name="ada", now_ns=5)
    assert find_token(db, text[:-43] + "A" * 43) is None


@pytest.mark.parametrize("text", ["", "lks_", "Bearer x", "lks_00_é\x00", "lks_" + "0" * 16 + "_" + "A" * 43])
def test_text_that_is_no_token_of_ours_is_unknown(db: ControlDatabase, text: str) -> None:
    assert find_token(db, text) is None


def test_revoked_token_is_unknown_but_still_listed(db: ControlDatabase) -> None:
    text = create_token(db, scope="read", host=None, name="ada", now_ns=5)
    revoke_token(db, list_tokens(db)[0].id, now_ns=9)
    assert find_token(db, text) is None
    assert list_tokens(db)[0].revoked_ns == 9


def test_second_revocation_changes_nothing(db: ControlDatabase) -> None:
    create_token(db, scope="read", host=None, name="ada", now_ns=5)
    for now_ns in (9, 10):
        revoke_token(db, list_tokens(db)[0].id, now_ns)
    assert list_tokens(db)[0].revoked_ns == 9
    assert [line.what for line in list_audit(db, 10)] == ["revoke_token", "create_token"]


def test_revoking_an_unknown_token_is_not_present(db: ControlDatabase) -> None:
    with pytest.raises(NotPresent, match="there is no token 'x'"):
        revoke_token(db, "x", now_ns=9)


def test_creation_and_revocation_are_audited_without_the_secret(db: ControlDatabase) -> None:
    text = create_token(db, scope="read", host=None, name="n", now_ns=5, who="ada", why="for grafana")
    token_id = list_tokens(db)[0].id
    revoke_token(db, token_id, 9, who="bob", why="leaked")
    revoked, created = list_audit(db, 10)
    assert (created.who, created.what, created.subject, created.ts_ns) == ("ada", "create_token", token_id, 5)
    assert (revoked.who, revoked.what, revoked.why, revoked.ts_ns) == ("bob", "revoke_token", "leaked", 9)
    assert text.split("_", 2)[2] not in repr((created, revoked))


def test_token_whose_audit_line_fails_is_not_made(db: ControlDatabase) -> None:
    with pytest.raises(BadInput, match="cannot hold this value"):
        create_token(db, scope="read", host=None, name="n", now_ns=2**70)
    assert list_tokens(db) == []


def test_valid_tokens_of_collectors_come_together_and_each_opens_only_with_its_secret(db: ControlDatabase) -> None:
    texts = [create_token(db, scope="ingest", host=f"h{number}", name="n", now_ns=5) for number in range(3)]
    other = create_token(db, scope="read", host=None, name="n", now_ns=5)
    revoke_token(db, texts[2].split("_")[1], now_ns=6)
    rows = valid_tokens(db)
    assert sorted(rows) == sorted(text.split("_")[1] for text in (*texts[:2], other))
    assert [match_token(rows, text) for text in (*texts[:2], other)] == [
        find_token(db, text) for text in (*texts[:2], other)
    ]
    assert [match_token(rows, text) for text in (texts[2], texts[0][:-43] + "A" * 43, "")] == [None] * 3


def test_agents_are_expected_while_a_collector_has_a_valid_token(db: ControlDatabase) -> None:
    create_token(db, scope="read", host=None, name="n", now_ns=5)
    assert not expects_agents(db)
    text = create_token(db, scope="ingest", host="h0", name="n", now_ns=5)
    assert expects_agents(db)
    revoke_token(db, text.split("_")[1], now_ns=6)
    assert not expects_agents(db)
