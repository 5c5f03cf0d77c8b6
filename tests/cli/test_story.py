"""The stories that come with Lockstep can be listed and shown."""

import json

from tests.cli.commands import Run, check_failure


def test_stories_are_listed_with_what_happens(lockstep: Run) -> None:
    outcome = lockstep("story", "list")
    assert (outcome.code, outcome.err) == (0, "")
    assert "nic-half-speed" in outcome.out
    assert "one NIC carries half its rate from second 20 on" in outcome.out


def test_list_is_json_on_request(lockstep: Run) -> None:
    listed = json.loads(lockstep("story", "list", "--json").out)
    assert {"healthy", "nic-half-speed"} <= {story["name"] for story in listed}
    assert all(story["summary"] for story in listed)


def test_story_is_shown_with_the_verdict_that_is_right(lockstep: Run) -> None:
    outcome = lockstep("story", "show", "nic-half-speed")
    shown = json.loads(outcome.out)
    assert (shown["expect"][0]["class"], shown["expect"][0]["component"]) == ("comm_slow", "nic:h3/eth1")


def test_unknown_story_is_one_sentence_with_those_there_are(lockstep: Run) -> None:
    outcome = lockstep("story", "show", "../healthy")
    check_failure(outcome, "there is no story '../healthy'; `lockstep story list` shows all of these families: ")
    assert "nic-half-speed" in outcome.err
