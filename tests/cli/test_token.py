"""A token is shown once and kept nowhere; lists and revocations go by its id."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lockstep.state.database import open_control
from lockstep.state.documents import list_audit
from lockstep.state.tokens import find_token
from tests.cli.commands import Run, check_failure


def listed(lockstep: Run) -> list[dict[str, Any]]:
    tokens: list[dict[str, Any]] = json.loads(lockstep("token", "list", "--json").out)
    return tokens


def test_secret_alone_is_on_standard_output_and_it_works(lockstep: Run, state: Path) -> None:
    outcome = lockstep("token", "create", "host h0", "--scope", "ingest", "--host", "h0")
    assert outcome.code == 0
    assert outcome.err == "this is shown once; keep it in a file that only its user can read\n"
    assert re.fullmatch(r"lks_[0-9a-f]{16}_[A-Za-z0-9_-]{43}\n", outcome.out)
    with open_control(f"sqlite:///{state}/control.db") as control:
        token = find_token(control, outcome.out.strip())
    assert token is not None
    assert (token.scope, token.host, token.name) == ("ingest", "h0", "host h0")


def test_secret_is_in_no_file(lockstep: Run, state: Path) -> None:
    secret = lockstep("token", "create", "reader").out.strip().split("_", 2)[2].encode()
    files = [file for file in state.rglob("*") if file.is_file()]
    assert files
    assert [file for file in files if secret in file.read_bytes()] == []


def test_list_shows_all_but_the_secret(lockstep: Run) -> None:
    secret = lockstep("token", "create", "reader").out.strip()
    outcome = lockstep("token", "list")
    assert (outcome.code, outcome.err) == (0, "")
    assert secret.split("_")[1] in outcome.out
    assert "reader" in outcome.out
    assert secret.split("_", 2)[2] not in outcome.out + lockstep("token", "list", "--json").out


def test_names_are_listed_as_they_are(lockstep: Run) -> None:
    for name in ("a[/red]", "[bold]b[/]", ":smile:"):
        lockstep("token", "create", name)
    outcome = lockstep("token", "list")
    assert outcome.code == 0
    assert all(name in outcome.out for name in ("a[/red]", "[bold]b[/]", ":smile:"))


def test_revoked_token_is_worthless_and_its_reason_is_in_the_audit(lockstep: Run, state: Path) -> None:
    secret = lockstep("token", "create", "reader").out.strip()
    (token,) = listed(lockstep)
    outcome = lockstep("token", "revoke", token["id"], "--why", "lost laptop")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", f"token {token['id']} is revoked\n")
    assert listed(lockstep)[0]["revoked_ns"] > 0
    with open_control(f"sqlite:///{state}/control.db") as control:
        assert find_token(control, secret) is None
        assert [(line.what, line.why) for line in list_audit(control, 10)] == [
            ("revoke_token", "lost laptop"),
            ("create_token", ""),
        ]


def test_unknown_token_cannot_be_revoked(lockstep: Run) -> None:
    check_failure(lockstep("token", "revoke", "abc"), "there is no token 'abc'")


def test_token_for_ingest_needs_its_host(lockstep: Run) -> None:
    check_failure(lockstep("token", "create", "x", "--scope", "ingest"), "so it needs the host that may send with it")


def test_scope_that_does_not_exist_is_bad_usage(lockstep: Run) -> None:
    check_failure(lockstep("token", "create", "x", "--scope", "root"), "--scope", code=2)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mysql://u:secret@db/x", "the control database cannot be kept in mysql"),
        ("sqlite:////proc/no/control.db", "cannot be used"),
        ("postgresql://u:secret@127.0.0.1:1/x?connect_timeout=1", "cannot be used"),
    ],
)
def test_control_database_that_cannot_be_used_is_one_sentence_without_its_password(
    lockstep: Run, url: str, sentence: str
) -> None:
    outcome = lockstep("token", "list", LOCKSTEP_CONTROL_URL=url)
    check_failure(outcome, sentence)
    assert "secret" not in outcome.err
