"""A scenario becomes a capture, the same one for the same seed, or nothing at all."""

from pathlib import Path

import pytest

import cli.simulate
from lockstep.capture.files import read_capture
from simulator.scenario import Scenario, find_scenario
from tests.cli.commands import Run, check_failure

SMALL = ("--ranks", "16")


@pytest.fixture(autouse=True)
def _short_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    """End every scenario after three seconds; whole ones are told where they are diagnosed."""

    def shortened(name: str) -> Scenario:
        return find_scenario(name).model_copy(update={"duration_s": 3.0})

    monkeypatch.setattr(cli.simulate, "find_scenario", shortened)


def test_capture_holds_the_scenario_and_nothing_is_on_standard_output(lockstep: Run, tmp_path: Path) -> None:
    outcome = lockstep("simulate", "healthy", "--out", tmp_path / "a", *SMALL)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.splitlines() == [
        "scenario healthy, 16 ranks, 3 s, seed 1",
        f"wrote {tmp_path}/a",
    ]
    capture = read_capture(tmp_path / "a")
    assert (capture.info.job, capture.info.hosts) == ("healthy", ("h0", "h1"))
    assert capture.tables["comms"].num_rows == 16
    assert capture.topology is not None


def test_same_seed_gives_the_identical_file_and_another_seed_another(lockstep: Run, tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        lockstep("simulate", "healthy", "--out", tmp_path / f"{name}.tar.zst", "--seed", seed, *SMALL)
    first, again, other = ((tmp_path / f"{name}.tar.zst").read_bytes() for name in "abc")
    assert first == again
    assert first != other


def test_unknown_scenario_is_one_sentence(lockstep: Run, tmp_path: Path) -> None:
    check_failure(lockstep("simulate", "dance", "--out", tmp_path / "a"), "there is no scenario 'dance'")
    assert list(tmp_path.iterdir()) == []


def test_capture_that_exists_is_never_overwritten(lockstep: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar.zst").write_text("precious")
    outcome = lockstep("simulate", "healthy", "--out", tmp_path / "a.tar.zst", *SMALL)
    assert outcome.code == 1
    assert "exists already; captures are never overwritten" in outcome.err
    assert (tmp_path / "a.tar.zst").read_text() == "precious"


@pytest.mark.parametrize("ranks", ["7", "8", "12"])
def test_number_of_ranks_that_fills_no_hosts_is_one_sentence(lockstep: Run, tmp_path: Path, ranks: str) -> None:
    outcome = lockstep("simulate", "healthy", "--out", tmp_path / "a", "--ranks", ranks)
    check_failure(outcome, "scenario healthy has 8 GPUs a host: give a multiple of that, two hosts at least")


def test_cluster_too_small_for_what_breaks_in_it_is_one_sentence(lockstep: Run, tmp_path: Path) -> None:
    outcome = lockstep("simulate", "nic-half-speed", "--out", tmp_path / "a", *SMALL)
    check_failure(outcome, "breaks what its cluster does not have: nic:h3/eth1")


@pytest.mark.parametrize("option", [["--ranks", "0"], ["--ranks", "many"], ["--seed", "-1"], ["--seed", "x"]])
def test_number_that_makes_no_sense_is_bad_usage(lockstep: Run, tmp_path: Path, option: list[str]) -> None:
    check_failure(lockstep("simulate", "healthy", "--out", tmp_path / "a", *option), option[0], code=2)


def test_place_that_cannot_be_written_is_one_sentence_and_nothing_is_left(lockstep: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = lockstep("simulate", "healthy", "--out", tmp_path / "file" / "a", *SMALL)
    assert outcome.code == 1
    assert "Not a directory" in outcome.err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_name_of_the_target_is_printed_as_it_is(lockstep: Run, tmp_path: Path) -> None:
    target = tmp_path / "a[red]" / "b[" / "c].tar.zst"
    outcome = lockstep("simulate", "healthy", "--out", target, *SMALL)
    assert f"wrote {target}" in outcome.err
    assert target.exists()
