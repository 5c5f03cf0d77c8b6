"""A conversion is made once, beside the checkpoint, and gets its name only when it is verified complete."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from lockstep.errors import BadInput
from planner.checkpoints.checkpoint import SavedLayout
from planner.checkpoints.choose import CONVERTER, ChoiceOptions, choose_checkpoint
from planner.checkpoints.convert import Conversion, Converter, Progress, find_conversion, find_obstacle
from planner.controllers.protocol import Report
from tests.planner.build import decision, seconds
from tests.planner.checkpoints.build import DATA, copy_real, make_old, read
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("tried_here")

UNIVERSAL = DATA / "zero_1" / "global_step3_universal"
# Copies a real universal checkpoint; $4 is the value of --output_folder.
COPY = f'cp -r {UNIVERSAL} "$4" && basename "$4" | tr -d "\\n" > "$(dirname "$4")/latest_universal"'
WHOLE = "all 4 parameters that the model states name are there, and each file has its end; its records were read back"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    copy_real("zero_1/global_step3", tmp_path / "job" / "global_step3")
    return tmp_path / "job"


def wanted(job: Path, script: str = COPY) -> Conversion:
    source, made = str(job / "global_step3"), str(job / "global_step3_universal")
    return Conversion(("sh", "-c", script, "sh", "--input_folder", source, "--output_folder", made), source, made)


def poll_until_over(converter: Converter, what: Conversion, limit_s: float = 30.0) -> Report:
    found: list[Report] = []

    def is_over() -> bool:
        progress = converter.poll(what, seconds(0))
        found.extend([progress.report] if progress.report else [])
        return bool(found)

    eventually(is_over, limit_s)
    return found[0]


def names(job: Path) -> list[str]:
    return sorted(path.name for path in job.iterdir())


def test_finished_conversion_is_used_again_and_an_unfinished_one_of_somebody_else_left_to_them(job: Path) -> None:
    theirs = copy_real("zero_1/global_step3_universal", job / "global_step3_universal")
    message = f"{theirs} was made before: {WHOLE}"
    assert Converter().poll(wanted(job, "exit 9"), seconds(0)) == Progress(message, Report("already", message))
    shutil.rmtree(theirs / "zero" / "2.weight")
    report = Converter().poll(wanted(job), seconds(0)).report
    assert report == Report("refused", f"{theirs} is incomplete, and not from here: zero lacks 2.weight")
    assert theirs.exists()


def test_verified_result_gets_its_name_and_nothing_else_is_left(job: Path) -> None:
    # A planner that died has left one half done.
    half = job / "global_step3_universal.abc.partial" / "global_step3_universal" / "zero"
    half.mkdir(parents=True)
    assert [each.path for each in read(job).checkpoints] == [str(job / "global_step3")]  # nor is it ever loaded
    report = poll_until_over(Converter(), wanted(job))
    assert (report.outcome, names(job)) == ("done", ["global_step3", "global_step3_universal", "latest_universal"])
    assert report.what.endswith(WHOLE)
    assert (job / "latest_universal").read_text() == "global_step3_universal"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no such parameter; exit 3", "the converter failed with 3: no such parameter"),
        ("true", "the converter ended, and it made nothing"),
        (
            f'{COPY}; rm -r "$4/zero/2.weight"',
            "the converter ended, and what it made is incomplete: zero lacks 2.weight",
        ),
    ],
)
def test_conversion_that_went_wrong_leaves_nothing_behind(job: Path, script: str, message: str) -> None:
    assert poll_until_over(Converter(), wanted(job, script)) == Report("failed", message)
    assert names(job) == ["global_step3"]


def test_conversion_that_does_not_end_is_ended_and_said(job: Path) -> None:
    converter, slow = Converter(timeout_s=60), wanted(job, "sleep 1000")
    assert converter.poll(slow, seconds(0)) == Progress(f"{job}/global_step3 is being converted")
    assert converter.poll(slow, seconds(59)).message == f"{job}/global_step3 is being converted, about 0 % is done"
    ended = converter.poll(slow, seconds(61)).report
    assert ended == Report("failed", "the converter did not end within 60 s; no output")
    assert (names(job), converter.is_running(slow)) == (["global_step3"], False)


def test_progress_is_told_by_what_is_written(job: Path) -> None:
    converter = Converter()
    slow = wanted(job, 'mkdir "$4"; cat "$2"/*.pt > "$4/slices"; sleep 1000')
    converter.poll(slow, seconds(0))
    (work,) = job.glob("*.partial")
    total = sum(path.stat().st_size for path in (job / "global_step3").iterdir())
    eventually(lambda: sum(path.stat().st_size for path in work.rglob("slices")) == total)
    assert converter.poll(slow, seconds(11)).message.endswith("about 50 % is done")
    converter.forget(slow)
    assert (names(job), converter.is_running(slow)) == (["global_step3"], False)


def test_slice_that_vanishes_while_it_is_measured_fails_nothing(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the converter remove one slice before it is looked at, and one right after."""

    def look_once(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.name == "before":
            path.unlink()
        found = os.stat(path, follow_symlinks=follow_symlinks)
        if path.name == "after":
            path.unlink()
        return found

    converter, slow = Converter(), wanted(job, 'mkdir "$4"; touch "$4/before" "$4/after"; sleep 1000')
    converter.poll(slow, seconds(0))
    eventually(lambda: len(list(job.glob("*.partial/*/*"))) == 2)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", look_once)
        progress = converter.poll(slow, seconds(11))
    assert progress == Progress(f"{job}/global_step3 is being converted, about 0 % is done")
    assert (converter.is_running(slow), list(job.glob("*.partial/*/*"))) == (True, [])
    converter.forget(slow)


def test_planner_that_cannot_see_the_checkpoint_or_write_beside_it_says_so(tmp_path: Path, job: Path) -> None:
    nowhere = wanted(tmp_path / "nowhere")
    message = f"the planner cannot see {tmp_path}/nowhere/global_step3, so it cannot convert it"
    assert Converter().poll(nowhere, seconds(0)).report == Report("refused", message)
    assert find_obstacle(nowhere.source, nowhere.destination) == message
    source = f"{job}/global_step3"
    message = f"the planner may not write to {job}/mounted, so it cannot convert {source}"
    made = f"{job}/mounted/global_step3_universal"  # root may write to all that is there
    assert find_obstacle(source, made) == message


def test_command_that_is_not_there_or_not_set_is_refused(job: Path) -> None:
    absent = wanted(job)
    absent = Conversion(("/no/such/python", *absent.command[1:]), absent.source, absent.destination)
    report = Converter().poll(absent, seconds(0)).report
    assert report == Report("refused", "the command `/no/such/python` cannot be started: No such file or directory")
    unset = Conversion(absent.command[4:], absent.source, absent.destination)
    report = Converter().poll(unset, seconds(0)).report
    assert report == Report("refused", "planner.converter is not set, so nothing is converted here")
    assert names(job) == ["global_step3"]


def test_conversion_is_read_from_the_decision_and_nonsense_is_refused() -> None:
    made = decision(resume={"convert": "'/a b/python' --input_folder /z --output_folder /u"})
    command = ("/a b/python", "--input_folder", "/z", "--output_folder", "/u")
    assert find_conversion(made) == Conversion(command, "/z", "/u")
    assert find_conversion(decision()) is None
    with pytest.raises(BadInput, match="has no --output_folder"):
        find_conversion(decision(resume={"convert": "python --input_folder /z"}))


TARGET = SavedLayout(tp=1, pp=1, dp=4)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
@pytest.mark.parametrize("stage", [1, 3])
def test_command_makes_a_complete_universal_checkpoint(tmp_path: Path, stage: int) -> None:
    source = copy_real(f"zero_{stage}/global_step3", tmp_path / "job" / "global_step3")
    options = ChoiceOptions(converter=(sys.executable, *CONVERTER[1:]))
    choice = choose_checkpoint(read(tmp_path / "job"), TARGET, options)
    made = Path(choice.load_from or "")
    wanted = Conversion(choice.convert, str(source), str(made))
    report = poll_until_over(Converter(timeout_s=300), wanted, limit_s=300)
    assert report.outcome == "done", report.what
    assert (tmp_path / "job" / "latest_universal").read_text() == "global_step3_universal"
    written_ns = max(path.stat().st_mtime_ns for path in made.rglob("*") if path.is_file())
    assert [each.state for each in read(tmp_path / "job", written_ns).checkpoints] == ["writing", "complete"]
    make_old(tmp_path / "job")
    found = read(tmp_path / "job")
    assert (found.remarks, [each.format for each in found.complete]) == ((), ["ds_zero", "universal"])
    again = choose_checkpoint(found, TARGET)
    assert (again.load_from, again.convert) == (choice.load_from, ())
