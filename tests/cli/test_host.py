"""`lockstep host check` prints a line for each look, and fails where something has to be mended."""

import json

from tests.cli.commands import Run

NOBODY = {"LOCKSTEP_COLLECTOR_SERVER": "http://127.0.0.1:1", "LOCKSTEP_COLLECTOR_LISTEN": "127.0.0.1:1"}
CLOCKS = {"LOCKSTEP_COLLECTOR_SOURCES": '["clocks"]', "LOCKSTEP_COLLECTOR_HOST": "h3"}


def test_what_has_to_be_mended_is_the_last_word(lockstep: Run) -> None:
    outcome = lockstep("host", "check", **NOBODY, **CLOCKS)
    assert outcome.code == 1
    assert "failed   head         http://127.0.0.1:1 does not answer" in outcome.out
    assert outcome.err == "lockstep: h3 is not ready: mend head\n"
    as_json = json.loads(lockstep("host", "check", "--json", **NOBODY, **CLOCKS).out)
    assert {each["name"] for each in as_json} == {"head", "collector", "plugin", "clocks"}
    assert as_json[0]["state"] == "failed"
