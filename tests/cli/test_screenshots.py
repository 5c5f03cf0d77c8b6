"""Pictures for the README are of pages that exist, and without a server there is a sentence."""

from cli.screenshots import choose_shots
from tests.cli.commands import Run, check_failure


def test_every_picture_has_a_name_and_a_page_of_its_own() -> None:
    shots = list(choose_shots("i1", "team/run 7"))
    assert len({shot.name for shot in shots}) == len(shots) >= 8
    assert {shot.theme for shot in shots} == {"light", "dark"}
    assert "/matrix?job=team%2Frun+7" in {shot.path for shot in shots}


def test_pictures_of_nothing_are_refused_in_a_sentence(lockstep: Run) -> None:
    check_failure(lockstep("screenshots", "--url", "http://127.0.0.1:1"), "no server with open reads is at")
