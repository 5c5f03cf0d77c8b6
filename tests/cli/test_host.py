"""The agent of a training host starts with a token, leaves at a signal, and says what its host lacks."""

import json
import os
import signal
from pathlib import Path

from cli.host import StopSignals
from tests.cli.commands import Outcome, Run, check_failure

NOBODY = {"LOCKSTEP_COLLECTOR_SERVER": "http://127.0.0.1:1", "LOCKSTEP_COLLECTOR_LISTEN": "127.0.0.1:1"}
CLOCKS = {"LOCKSTEP_COLLECTOR_SOURCES": '["clocks"]', "LOCKSTEP_COLLECTOR_HOST": "h3"}


def test_agent_without_a_token_or_a_gateway_s_address_says_so(lockstep: Run, tmp_path: Path) -> None:
    def refusal(file: object, **more: str) -> Outcome:
        return lockstep("collect", LOCKSTEP_COLLECTOR_TOKEN_FILE=str(file), **more)

    check_failure(lockstep("collect"), "make one with `lockstep token create` and set collector.token_file")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "token").write_text("lks_secret\n")
    check_failure(refusal(tmp_path / "empty"), "the agent needs a token")
    check_failure(refusal(tmp_path / "absent"), f"cannot read the host's token from {tmp_path}/absent")
    sentence = "'head:8642' is not the address of a gateway; expected http(s)://host:port"
    check_failure(refusal(tmp_path / "token", LOCKSTEP_COLLECTOR_SERVER="head:8642"), sentence)


def test_signal_that_came_before_the_wait_ends_it() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before, wakeup = [signal.getsignal(number) for number in numbers], signal.set_wakeup_fd(-1)
    try:
        for number in numbers:
            signals = StopSignals()
            os.kill(os.getpid(), number)
            signals.wait()
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_what_has_to_be_mended_is_the_last_word(lockstep: Run) -> None:
    outcome = lockstep("host", "check", **NOBODY, **CLOCKS)
    assert outcome.code == 1
    assert "failed   head         http://127.0.0.1:1 does not answer" in outcome.out
    assert outcome.err == "lockstep: h3 is not ready: mend head\n"
    as_json = json.loads(lockstep("host", "check", "--json", **NOBODY, **CLOCKS).out)
    assert {each["name"] for each in as_json} == {"head", "collector", "plugin", "clocks"}
    assert as_json[0]["state"] == "failed"
