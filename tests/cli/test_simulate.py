"""Scenarios are listed and shown; one becomes a capture, the same one for the same seed, or nothing at all."""

import json
from pathlib import Path

import pytest

import cli.simulate
from lockstep.capture.files import read_capture
from simulator.scenario import Scenario, find_scenario, list_scenarios
from tests.cli.commands import Run, check_failure

SMALL = ("--ranks", "16")


@pytest.fixture(autouse=True)
def _short_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    """End every scenario after three seconds; whole ones are told where they are diagnosed."""

    def shortened(name: str) -> Scenario:
        return find_scenario(name).model_copy(update={"duration_s": 3.0})

    monkeypatch.setattr(cli.simulate, "find_scenario", shortened)


def test_capture_holds_the_scenario_and_is_the_same_for_the_same_seed(lockstep: Run, tmp_path: Path) -> None:
    outcome = lockstep("simulate", "healthy", "--out", tmp_path / "a", *SMALL)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.splitlines() == ["scenario healthy, 16 ranks, 3 s, seed 1", f"wrote {tmp_path}/a"]
    capture = read_capture(tmp_path / "a")
    assert (capture.info.job, capture.info.hosts) == ("healthy", ("h0", "h1"))
    assert capture.tables["comms"].num_rows == 16
    assert capture.topology is not None
    for name, seed in (("b", 1), ("c", 6)):
        lockstep("simulate", "healthy", "--out", tmp_path / name, "--seed", seed, *SMALL)
    first, again, other = ((tmp_path / name / "collectives.parquet").read_bytes() for name in "abc")
    assert first == again
    assert first != other


def test_what_cannot_be_simulated_is_one_sentence_and_nothing_is_left(lockstep: Run, tmp_path: Path) -> None:
    target = tmp_path / "a"
    check_failure(lockstep("simulate", "dance", "--out", target), "there is no scenario 'dance'")
    for ranks in ("7", "8", "12"):
        outcome = lockstep("simulate", "healthy", "--out", target, "--ranks", ranks)
        check_failure(outcome, "scenario healthy has 8 GPUs a host: give a multiple of that, two hosts at least")
    outcome = lockstep("simulate", "nic-half-speed", "--out", target, *SMALL)
    check_failure(outcome, "breaks what its cluster does not have: nic:h3/eth1")
    for option in (["--ranks", "0"], ["--ranks", "many"], ["--seed", "-1"], ["--seed", "x"]):
        check_failure(lockstep("simulate", "healthy", "--out", target, *option), option[0], code=2)
    (tmp_path / "file").write_text("precious")
    for existing, reason in (
        ("file", "exists already; captures are never overwritten"),
        ("file/a", "Not a directory"),
    ):
        outcome = lockstep("simulate", "healthy", "--out", tmp_path / existing, *SMALL)
        assert (outcome.code, reason in outcome.err.splitlines()[-1]) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "precious"
    odd = tmp_path / "a[red]" / "b[" / "c].tar.zst"
    assert f"wrote {odd}" in lockstep("simulate", "healthy", "--out", odd, *SMALL).err
    assert odd.exists()


def test_scenarios_are_listed_and_shown_with_the_verdict_that_is_right(lockstep: Run) -> None:
    outcome = lockstep("scenario", "list")
    assert (outcome.code, outcome.err) == (0, "")
    lines = [line.split() for line in outcome.out.splitlines()]
    assert "one NIC carries half its rate from second 20 on" in outcome.out
    families = [line[0] for line in lines]
    assert len(families) == len(set(families)) < len(list_scenarios()) / 3, "a line for each family"
    (nic_rx,) = (line for line in lines if line[0] == "nic-rx")
    assert nic_rx[1:3] == ["healthy-ib,", "healthy-socket,"]
    listed = json.loads(lockstep("scenario", "list", "--json").out)
    assert {"healthy", "nic-half-speed"} <= {scenario["name"] for scenario in listed}
    assert all(scenario["summary"] for scenario in listed)
    shown = json.loads(lockstep("scenario", "show", "nic-half-speed").out)
    assert (shown["expect"][0]["class"], shown["expect"][0]["component"]) == ("comm_slow", "nic:h3/eth1")
    outcome = lockstep("scenario", "show", "../healthy")
    check_failure(outcome, "there is no scenario '../healthy'; did you mean 'healthy'")
    outcome = lockstep("scenario", "show", "zzzz")
    check_failure(outcome, "there is no scenario 'zzzz'; `lockstep scenario list` shows all")
