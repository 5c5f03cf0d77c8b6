"""What bash and zsh complete: commands at once, scenarios, benches, and jobs where a server answers."""

import os
import subprocess
from pathlib import Path

import pytest

from cli.main import COMMANDS, _words_before_cursor
from lockstep.store.store import Store
from tests.api.build import running_api
from tests.api.routes.test_captures import store_job
from tests.cli.answering import unused_address
from tests.cli.commands import LOCKSTEP, Run, environment_for
from tests.waiting import LIMIT_S


def typed_in_bash(line: str) -> dict[str, str]:
    words = line.split(" ")
    return {"_LOCKSTEP_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}


def typed_in_zsh(line: str) -> dict[str, str]:
    return {"_LOCKSTEP_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line}


def test_whole_words_before_the_cursor_say_which_command_it_is() -> None:
    for line, words in {
        "lockstep ": [],
        "lockstep sto": [],
        "lockstep scenario ": ["scenario"],
        "lockstep scenario sh": ["scenario"],
        "lockstep --config a.toml scenario show x": ["--config", "a.toml", "scenario", "show"],
    }.items():
        for typed in (typed_in_bash, typed_in_zsh):
            assert _words_before_cursor(typed(line), []) == words
    assert _words_before_cursor({"COMP_WORDS": "lockstep scenario"}, ["scenario"]) is None, "no shell asks"
    assert _words_before_cursor({"_LOCKSTEP_COMPLETE": "source_bash"}, []) == []
    assert _words_before_cursor({}, ["--install-completion"]) == []


def offered(lockstep: Run, line: str, **variables: str) -> list[str]:
    outcome = lockstep(**typed_in_bash(line), **variables)
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out.split()


def test_commands_and_what_they_know_themselves_are_offered(lockstep: Run) -> None:
    assert offered(lockstep, "lockstep ") == [command.name for command in COMMANDS]
    assert offered(lockstep, "lockstep dec") == ["decisions"]
    for line, word in {
        "lockstep scenario sh": "show",
        "lockstep scenario show nic-half": "nic-half-speed",
        "lockstep simulate nic-half": "nic-half-speed",
        "lockstep bench acc": "accuracy",
        "lockstep decisions app": "approve",
        "lockstep capture --sin": "--since",
    }.items():
        assert word in offered(lockstep, line)
    outcome = lockstep(**typed_in_zsh("lockstep scenario sh"))
    assert outcome.out.startswith('_arguments \'*: :(("show":"Show a scenario')


def test_jobs_of_a_server_that_answers_are_offered(
    lockstep: Run, tmp_path: Path, embedded_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.client._TIMEOUT_S", 60)  # machines are shared: no test fails for being slow
    with running_api(tmp_path, embedded_store) as api:
        store_job(api, "train-1", host="h0")
        store_job(api, "other", host="h1")
        url, token = str(api.client.base_url), api.make_token("read")
        assert offered(lockstep, f"lockstep capture --server {url} --job tr", LOCKSTEP_TOKEN=token) == ["train-1"]
        assert offered(lockstep, f"lockstep diagnose --server {url} --job tr", LOCKSTEP_TOKEN="lks_wrong") == []
    assert offered(lockstep, f"lockstep capture --server {unused_address()} --job tr") == []


@pytest.mark.slow
def test_completion_is_installed_where_the_manual_says_and_real_bash_completes_with_it(tmp_path: Path) -> None:
    environment = environment_for(tmp_path) | {"HOME": str(tmp_path)}
    environment["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    for shell, file in (("bash", ".bashrc"), ("zsh", ".zshrc")):
        command = [LOCKSTEP, "--install-completion", shell]
        subprocess.run(command, env=environment, capture_output=True, check=True, timeout=LIMIT_S)
        assert (tmp_path / file).exists()
    script = """
eval "$(_LOCKSTEP_COMPLETE=source_bash lockstep)"
COMP_WORDS=(lockstep decisions app) COMP_CWORD=2
_lockstep_completion lockstep
echo "${COMPREPLY[@]}"
"""
    environment = environment_for(tmp_path) | {"PATH": f"{Path(LOCKSTEP).parent}:{os.environ['PATH']}"}
    command = ["bash", "--norc", "-ec", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("approve\n", "")
