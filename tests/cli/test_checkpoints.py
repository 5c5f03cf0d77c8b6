"""`lockstep checkpoints` lists what a job could restart from, chooses for a layout, and refuses nonsense."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.commands import Run, check_failure
from tests.planner.checkpoints.build import copy_real


@pytest.fixture
def job(tmp_path: Path) -> Path:
    copy_real("zero_1/global_step3", tmp_path / "job" / "global_step3")
    copy_real("dcp/step-200", tmp_path / "job" / "step-200")
    os.truncate(tmp_path / "job" / "step-200" / "__1_0.distcp", 1000)
    os.utime(tmp_path / "job" / "step-200" / "__1_0.distcp", (1, 1))
    return tmp_path / "job"


def test_a_table_has_the_reason_for_each_and_programs_get_the_choice(lockstep: Run, job: Path) -> None:
    outcome = lockstep("checkpoints", job, "--read-mb-s", "1")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[1].split()[:3] == ["200", "dcp", "4"]
    assert "incomplete" in lines[1]
    assert "__1_0.distcp has 1000 bytes, and .metadata says at least 19500" in lines[1]
    assert "all 3 files of 2 ranks are there" in lines[2]
    assert "0.0142 s" in lines[2]
    assert outcome.err == "1 of 2 checkpoints are complete\n"
    assert "its records were read back" in lines[2]
    assert "not read back yet" in lockstep("checkpoints", job, "--read-s", "0").out
    outcome = lockstep("checkpoints", job, "--job", "train", "--for", "dp4", "--json")
    told = json.loads(outcome.out)
    assert (told["job"], [each["state"] for each in told["checkpoints"]]) == ("train", ["incomplete", "complete"])
    assert told["choice"]["convert"][1:3] == ["-m", "deepspeed.checkpoint.ds_to_universal"]
    assert told["choice"]["passed_over"][0]["path"] == str(job / "step-200")
    assert told["load_s"] == {str(job / "step-200"): None, str(job / "global_step3"): None}
    outcome = lockstep("checkpoints", job, "--for", "tp2,dp4")
    assert "after converting it from tp1 pp1 dp2 to tp2 pp1 dp4" in outcome.out
    assert f"--output_folder {job}/global_step3_universal --inject_missing_state" in outcome.out


def test_what_does_not_fit_is_one_sentence(lockstep: Run, job: Path) -> None:
    for more, sentence in {
        ("--for", "tp"): "--for tp: expected sizes such as tp8,pp4,dp3",
        ("--for", "xx4"): "--for xx4: expected sizes",
        ("--for", "tp0"): "--for tp0: expected sizes",
        ("--read-mb-s", "0"): "--read-mb-s is 0, but a rate is finite and above 0",
        ("--nodes", "8"): "advice on the interval takes --nodes, --save-s, --failures and --node-days",
    }.items():
        check_failure(lockstep("checkpoints", job, *more), sentence)
    check_failure(lockstep("checkpoints", job / "gone"), "gone cannot be read: No such file or directory")


def test_how_often_to_save_is_advised_from_the_failures_seen(lockstep: Run, job: Path) -> None:
    seen = ("--nodes", "128", "--save-s", "20", "--failures", "65", "--node-days", "10000")
    outcome = lockstep("checkpoints", job, *seen)
    assert "save every 34 minutes: a save holds 128 nodes up for 20 s" in outcome.out.replace("\n", " ")
    told = json.loads(lockstep("checkpoints", job, *seen, "--json").out)
    assert told["interval"]["interval_s"] == pytest.approx(2038, rel=0.01)
    assert told["interval"]["lost_share_now"] is None, "two checkpoints tell no interval"
