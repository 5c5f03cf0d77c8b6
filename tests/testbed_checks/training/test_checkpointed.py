"""A training job whose rank is killed resumes on fewer ranks, and its loss curve is that of an undisturbed run."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.testbed.training.checkpointed import LoggedStep, read_log
from tests.testbed.training.checkpoints import RESUME_FROM, find_newest
from tests.testbed_checks.training.in_turn import start_in_turn
from tests.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.slow

STEPS, EVERY = 10, 3
KILLED_AFTER = 4  # a step after the first checkpoint


@dataclass(frozen=True)
class Scenario:
    """What remains of a job that lost a rank and resumed, and the log of one that did not."""

    folder: Path
    ends: list[str]
    before: Mapping[int, LoggedStep]  # until the rank was killed
    after: Mapping[int, LoggedStep]  # of all steps, as told last
    whole: Mapping[int, LoggedStep]


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    folder = tmp_path_factory.mktemp("checkpointed")
    log, whole = folder / "log.jsonl", folder / "whole.jsonl"
    steps = [f"--steps={STEPS}", f"--every={EVERY}"]
    lost = [*steps, f"--dir={folder / 'kept'}", f"--log={log}", "--step-s=0.3"]
    jobs = [
        (None, [*lost, "--ranks=3"]),
        (None, [*lost, "--ranks=2"]),
        (None, [*steps, f"--dir={folder / 'other'}", f"--log={whole}", "--ranks=3"]),
    ]
    with start_in_turn(jobs) as process:
        try:
            eventually(lambda: KILLED_AFTER in read_log(log))
            victim = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[1]
            os.kill(int(victim), signal.SIGKILL)
            assert process.stdout is not None
            ends = [process.stdout.readline().strip()]
            before = read_log(log)
            ends += process.communicate(timeout=LIMIT_S)[0].splitlines()
        finally:
            process.kill()
    return Scenario(folder, ends, before, read_log(log), read_log(whole))


def test_killed_rank_ends_the_job_with_a_sentence(scenario: Scenario) -> None:
    assert scenario.ends[0] == "ranks of the training job have failed: 0 with 1, 1 with -9, 2 with 1"
    assert max(scenario.before) < STEPS
    assert {line.ranks for line in scenario.before.values()} == {3}


def test_job_resumes_on_two_ranks_from_its_newest_complete_checkpoint(scenario: Scenario) -> None:
    newest = EVERY * (max(scenario.before) // EVERY)
    resumed = [line for line in scenario.after.values() if line.ranks == 2]

    assert scenario.ends[1:] == ["done", "done"]
    assert {line.resumed_from for line in resumed} <= {newest, newest - EVERY}  # it may have been killed amid saving
    assert min(line.step for line in resumed) == resumed[0].resumed_from + 1
    assert {line.ranks for line in scenario.after.values()} == {3, 2}
    assert find_newest(scenario.folder / "kept") == scenario.folder / "kept" / "step-9"


def test_loss_curve_is_that_of_the_run_that_lost_nobody(scenario: Scenario) -> None:
    assert sorted(scenario.after) == sorted(scenario.whole) == list(range(1, STEPS + 1))
    for step, line in scenario.after.items():
        assert line.loss == pytest.approx(scenario.whole[step].loss, abs=1e-5), step
    assert max(line.loss for line in scenario.whole.values()) > 1.2 * min(
        line.loss for line in scenario.whole.values()
    )


def test_ranks_of_slurm_meet_in_a_folder_and_resume_from_the_checkpoint_that_is_named(
    scenario: Scenario, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    options = [f"--dir={tmp_path}", f"--log={log}", f"--rendezvous={tmp_path}", "--steps=6", "--every=100"]
    named = {RESUME_FROM: str(scenario.folder / "kept" / "step-3"), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.testbed.training.checkpointed", *options],
            env={**os.environ, **named, "SLURM_JOB_ID": "7", "SLURM_PROCID": str(rank), "SLURM_NTASKS": "2"},
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(LIMIT_S) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()

    told = read_log(log)
    assert list(told) == [4, 5, 6]
    assert [line.loss for line in told.values()] == pytest.approx(
        [scenario.whole[step].loss for step in told], abs=1e-5
    )
