"""A session stands for its token until it is over, ended, or the token is revoked; the database holds no secret."""

import pytest
from sqlalchemy import select

from lockstep.state.database import ControlDatabase
from lockstep.state.documents import list_audit
from lockstep.state.sessions import begin_session, end_session, find_session
from lockstep.state.tables import SESSIONS
from lockstep.state.tokens import Token, create_token, find_token, revoke_token

LIFE = 1_000


@pytest.fixture
def token(db: ControlDatabase) -> Token:
    found = find_token(db, create_token(db, scope="act", host=None, name="ann", now_ns=1))
    assert found is not None
    return found


def person() -> Token:
    return Token(id="oidc:u-17", scope="admin", host=None, name="ann@site", created_ns=0)


def test_session_stands_for_its_token(db: ControlDatabase, token: Token) -> None:
    found = find_session(db, begin_session(db, token, 10, 10 + LIFE), 11)
    assert found is not None
    assert (found.id, found.scope, found.name, found.host) == (token.id, "act", "ann", None)


def test_session_of_a_person_without_a_token_of_ours_has_a_name_of_its_own(db: ControlDatabase) -> None:
    found = find_session(db, begin_session(db, person(), 10, 10 + LIFE), 11)
    assert found is not None
    assert (found.id, found.scope, found.name) == ("session:ann@site", "admin", "ann@site")


def test_session_is_over_at_its_end(db: ControlDatabase, token: Token) -> None:
    secret = begin_session(db, token, 10, 10 + LIFE)
    assert find_session(db, secret, 10 + LIFE - 1) is not None
    assert find_session(db, secret, 10 + LIFE) is None


def test_revoked_token_ends_its_sessions_and_no_other(db: ControlDatabase, token: Token) -> None:
    hers, other = begin_session(db, token, 10, 10 + LIFE), begin_session(db, person(), 10, 10 + LIFE)
    revoke_token(db, token.id, 20)
    assert find_session(db, hers, 21) is None
    assert find_session(db, other, 21) is not None


def test_ended_session_is_over(db: ControlDatabase, token: Token) -> None:
    secret, other = (begin_session(db, token, 10, 10 + LIFE) for _ in range(2))
    end_session(db, secret, 20)
    end_session(db, secret, 21)
    assert find_session(db, secret, 22) is None
    assert find_session(db, other, 22) is not None
    assert [line.what for line in list_audit(db, 10)] == ["log_out", "log_in", "log_in", "create_token"]


@pytest.mark.parametrize("secret", ["", "x", "é", "\ud800", "a" * 100_000])
def test_text_that_is_no_session_is_none(db: ControlDatabase, secret: str) -> None:
    assert find_session(db, secret, 1) is None


def test_database_holds_no_secret_and_forgets_what_is_over(db: ControlDatabase, token: Token) -> None:
    secret = begin_session(db, token, 10, 20)
    begin_session(db, token, 20, 30)
    with db.read() as connection:
        rows = connection.execute(select(SESSIONS)).all()
    assert len(rows) == 1
    assert secret not in str(rows)
