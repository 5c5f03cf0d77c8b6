"""The scenarios that come with Lockstep can be listed and shown."""

import json

from tests.cli.commands import Run, check_failure


def test_scenarios_are_listed_with_what_happens(lockstep: Run) -> None:
    outcome = lockstep("scenario", "list")
    assert (outcome.code, outcome.err) == (0, "")
    assert "nic-half-speed" in outcome.out
    assert "one NIC carries half its rate from second 20 on" in outcome.out


def test_list_is_json_on_request(lockstep: Run) -> None:
    listed = json.loads(lockstep("scenario", "list", "--json").out)
    assert {"healthy", "nic-half-speed"} <= {scenario["name"] for scenario in listed}
    assert all(scenario["summary"] for scenario in listed)


def test_scenario_is_shown_with_the_verdict_that_is_right(lockstep: Run) -> None:
    outcome = lockstep("scenario", "show", "nic-half-speed")
    shown = json.loads(outcome.out)
    assert (shown["expect"][0]["class"], shown["expect"][0]["component"]) == ("comm_slow", "nic:h3/eth1")


def test_unknown_scenario_is_one_sentence_with_those_there_are(lockstep: Run) -> None:
    outcome = lockstep("scenario", "show", "../healthy")
    check_failure(
        outcome, "there is no scenario '../healthy'; `lockstep scenario list` shows all of these families: "
    )
    assert "nic-half-speed" in outcome.err
