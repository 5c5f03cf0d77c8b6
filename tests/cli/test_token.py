"""A token is shown once and kept nowhere; lists and revocations go by its id."""

import json
import re
from pathlib import Path
from typing import Any

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


def test_secret_is_in_no_file_and_no_list_which_has_names_as_they_are(lockstep: Run, state: Path) -> None:
    token = lockstep("token", "create", "reader").out.strip()
    names = ("reader", "a[/red]", "[bold]b[/]", ":smile:")
    for name in names[1:]:
        lockstep("token", "create", name)
    secret = token.split("_", 2)[2]
    files = [file for file in state.rglob("*") if file.is_file()]
    assert files
    assert [file for file in files if secret.encode() in file.read_bytes()] == []
    outcome = lockstep("token", "list")
    assert (outcome.code, outcome.err) == (0, "")
    assert token.split("_")[1] in outcome.out
    assert all(name in outcome.out for name in names)
    assert secret not in outcome.out + lockstep("token", "list", "--json").out


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


def test_what_cannot_be_done_is_one_sentence_without_a_password(lockstep: Run) -> None:
    check_failure(lockstep("token", "revoke", "abc"), "there is no token 'abc'")
    check_failure(lockstep("token", "create", "x", "--scope", "ingest"), "so it needs the host that may send with it")
    check_failure(lockstep("token", "create", "x", "--scope", "root"), "--scope", code=2)
    for url, sentence in {
        "mysql://u:secret@db/x": "the control database cannot be kept in mysql",
        "sqlite:////proc/no/control.db": "cannot be used",
        "postgresql://u:secret@127.0.0.1:1/x?connect_timeout=1": "cannot be used",
    }.items():
        outcome = lockstep("token", "list", LOCKSTEP_CONTROL_URL=url)
        check_failure(outcome, sentence)
        assert "secret" not in outcome.err
