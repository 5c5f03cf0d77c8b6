"""A restart is planned from the newest checkpoint that is verified complete and fits, and from nothing else."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from planner.checkpoints.checkpoint import (
    Checkpoint,
    ReadRate,
    SavedLayout,
    estimate_convert_s,
    estimate_load_s,
    newest_first,
)
from planner.checkpoints.choose import CONVERTER, CheckpointFolders, Choice, ChoiceOptions, choose_checkpoint
from planner.context import Layout, Resume
from tests.planner.build import seconds
from tests.planner.checkpoints.build import NOW_NS, OLD_NS, catalogue, checkpoint, copy_real, make_old, zero

pytestmark = pytest.mark.usefixtures("tried_here")

SAME, OTHER = SavedLayout(tp=2, pp=1, dp=4), SavedLayout(tp=2, pp=1, dp=3)
RATES = (ReadRate(source="remote", bytes_per_s=1e9),)


def choose(*checkpoints: Checkpoint, target: SavedLayout = SAME, **options: Any) -> Choice:
    return choose_checkpoint(catalogue(*checkpoints), target, ChoiceOptions(rates=RATES, **options))


@pytest.mark.parametrize("state", ["writing", "incomplete", "unverified"])
def test_newest_that_is_not_complete_is_passed_over_with_its_reason(state: str) -> None:
    choice = choose(checkpoint(300, state=state, reason="has no .metadata"), checkpoint(200), checkpoint(100))
    assert choice.load_from == "/c/step-200"
    assert choice.older == "/c/step-100"
    assert [each.because for each in choice.passed_over] == [f"it is {state}: has no .metadata"]
    assert choice.reason == (
        "/c/step-200 of step 200 is the newest that is complete and loads on tp2 pp1 dp4: all files are there; "
        f"1 newer passed over: it is {state}: has no .metadata"
    )


def test_nothing_complete_is_refused_in_a_sentence() -> None:
    choice = choose(checkpoint(300, state="writing", reason="its newest file changed 1 s ago"))
    assert (choice.checkpoint, choice.load_from, choice.convert) == (None, None, ())
    assert choice.reason == (
        "none of 1 checkpoints can be restarted from on tp2 pp1 dp4; the newest is /c/step-300, "
        "and it is writing: its newest file changed 1 s ago"
    )
    assert choose().reason == "/c holds no checkpoint"


def test_formats_that_cut_anew_load_on_any_layout_and_zero_on_its_own_without_a_command() -> None:
    choice = choose(checkpoint(), target=SavedLayout(tp=1, pp=8, dp=2))
    assert (choice.load_from, choice.convert, choice.load_s) == ("/c/step-100", (), 8.0)
    choice = choose(zero())
    assert (choice.load_from, choice.convert, choice.convert_s, choice.limits) == ("/c/global_step100", (), None, ())
    shared = SavedLayout(tp=2, pp=1, dp=2, cp=2)  # ranks that share a sequence count as replicas
    assert choose(zero(), target=shared).convert == ()
    assert choose(zero(layout=SavedLayout(world=8))).convert != (), "it is not known to be the same"


def test_zero_on_another_layout_is_converted_by_deepspeeds_own_command() -> None:
    converter = ("srun", "/env/bin/python", *CONVERTER[1:])
    choice = choose(zero(convert_flags=("--inject_missing_state",)), target=OTHER, converter=converter)
    folders = "--input_folder /c/global_step100 --output_folder /c/global_step100_universal"
    program = "srun /env/bin/python -m deepspeed.checkpoint.ds_to_universal"
    assert " ".join(choice.convert) == f"{program} {folders} --inject_missing_state"
    assert choice.load_from == "/c/global_step100_universal"
    assert choice.load_s == 8.0
    assert choice.convert_s == pytest.approx(8.6 + 32.0)
    assert "the model of the new layout must have the same parameter names" in choice.limits
    assert "after converting it from tp2 pp1 dp4 to tp2 pp1 dp3" in choice.reason


def test_converter_never_writes_into_a_folder_that_is_there_and_what_was_converted_is_taken() -> None:
    broken = checkpoint(100, path="/c/global_step100_universal", format="universal", state="incomplete")
    assert choose(zero(), broken, target=OTHER).load_from == "/c/global_step100_universal_2"
    universal = checkpoint(100, path="/c/global_step100_universal", format="universal")
    assert choose(zero(), universal, target=OTHER).load_from == "/c/global_step100_universal"
    assert choose(zero(), universal, target=SAME).convert == ()


def test_older_one_is_taken_where_the_newest_cannot_move_or_may_not_be_converted() -> None:
    newest = zero(300, moves="never", moves_because="the converter leaves out native experts")
    choice = choose(newest, checkpoint(200), target=OTHER)
    assert choice.load_from == "/c/step-200"
    assert choice.passed_over[0].because == (
        "it was saved on tp2 pp1 dp4 and not on tp2 pp1 dp3, and the converter leaves out native experts"
    )
    assert choose(newest, checkpoint(200), target=SAME).load_from == "/c/global_step300"
    choice = choose(zero(300), checkpoint(200), target=OTHER, may_convert=False)
    assert (choice.load_from, choice.convert) == ("/c/step-200", ())


def test_what_only_moves_in_replicas_keeps_its_other_sizes_and_experts_are_shared_evenly() -> None:
    bound = zero(format="torch_dist", moves="dp", moves_because="its optimizer was saved as dp_reshardable")
    smaller, shared = SavedLayout(tp=1, pp=1, dp=4), SavedLayout(tp=2, pp=1, dp=4, ep=2)
    assert [choose(bound, target=target).checkpoint for target in (OTHER, smaller, shared)] == [bound, None, None]
    choice = choose(zero(experts=8), target=SavedLayout(tp=2, pp=1, dp=3, ep=3))
    assert choice.checkpoint is None
    assert "its 8 experts cannot be shared evenly by ep3" in choice.reason


STATES = st.sampled_from(["complete", "writing", "incomplete", "unverified"])
MOVES = st.sampled_from(["any", "dp", "convert", "never"])


@given(st.lists(st.tuples(st.integers(0, 9), STATES, MOVES, st.integers(1, 4)), max_size=8))
def test_what_is_chosen_is_complete_and_no_newer_one_would_do(held: list[tuple[int, str, str, int]]) -> None:
    every = [
        zero(step, state=state, moves=moves, path=f"/c/{number}", layout=SavedLayout(tp=2, pp=1, dp=dp))
        for number, (step, state, moves, dp) in enumerate(held)
    ]
    choice = choose(*every)
    usable = [each for each in every if each.state == "complete" and (each.moves != "never" or each.layout.dp == 4)]
    if not usable:
        assert choice.checkpoint is None
        return
    assert choice.checkpoint in usable
    assert choice.checkpoint is not None
    assert choice.checkpoint.step == max(each.step or 0 for each in usable)
    assert bool(choice.convert) == (choice.checkpoint.moves == "convert" and choice.checkpoint.layout.dp != 4)


def folders_in(folder: Path, **more: Any) -> CheckpointFolders:
    return CheckpointFolders(f"{folder}/{{job}}", **({"read_mb_per_s": 100.0} | more))


def newest(folders: CheckpointFolders, layout: Layout | None = None, after_s: int = 0, job: str = "train") -> Resume:
    found = folders.newest(job, layout, NOW_NS + after_s * 10**9)
    assert found is not None
    return found


def test_job_without_a_folder_of_its_name_has_no_checkpoint(tmp_path: Path) -> None:
    folders = folders_in(tmp_path)
    assert folders.newest("nobody", None, seconds(0)) is None
    assert folders.next_save_s("nobody", seconds(0)) is None
    (tmp_path / "jobs").mkdir()
    copy_real("dcp", tmp_path / "outside")
    assert folders_in(tmp_path / "jobs").newest("../outside", None, NOW_NS) is None


def test_newest_complete_checkpoint_is_found_with_its_age_and_load_time(tmp_path: Path) -> None:
    saved, folders = copy_real("dcp", tmp_path / "train"), folders_in(tmp_path)
    found = newest(folders, Layout(replicas=3))
    assert (found.path, found.form, found.convert) == (f"{saved}/step-200", "dcp", ())
    assert (found.age_s, found.load_s > 0) == ((NOW_NS - OLD_NS) / 1e9, True)
    assert folders.newest("chat", None, NOW_NS) is None
    copy_real("dcp", tmp_path / "chat" / "step-100")
    assert folders.newest("chat", None, NOW_NS + 10**9) is None, "it looks again after some seconds"
    assert newest(folders, after_s=6, job="chat").path == f"{tmp_path}/chat/step-100/step-200"


def test_checkpoint_that_failed_to_load_is_passed_over_until_it_is_saved_anew(tmp_path: Path) -> None:
    older, last = (copy_real("dcp/step-200", tmp_path / "train" / f"step-{step}") for step in (100, 200))
    message = "train+1 was started from it and failed (d1)"
    folders = folders_in(tmp_path, unloadable=lambda: {str(last): (OLD_NS + 5, message)})
    assert newest(folders).path == str(older)
    first = folders.catalogue("train", NOW_NS).checkpoints[0]
    assert (first.state, first.reason) == ("unreadable", message)
    make_old(last, OLD_NS + 6)
    assert newest(folders, after_s=60).path == str(last)


def test_zero_is_converted_where_the_layout_changes_or_a_person_is_told(tmp_path: Path) -> None:
    saved = copy_real("zero_1/global_step3", tmp_path / "train" / "global_step3")
    same, other = (newest(folders_in(tmp_path), layout) for layout in (None, Layout(replicas=3)))
    assert (same.path, same.form, same.convert, same.obstacle) == (str(saved), "ds_zero", (), None)
    assert (other.path, other.form, other.obstacle) == (f"{saved}_universal", "universal", None)
    assert other.convert[3:7] == ("--input_folder", str(saved), "--output_folder", f"{saved}_universal")
    unset = "must be converted for the new layout, and planner.converter is not set"
    assert newest(folders_in(tmp_path, converter=()), Layout(replicas=3)).obstacle == f"{saved} {unset}"
    older = copy_real("zero_3/global_step3_universal", tmp_path / "train" / "global_step2_universal")
    found = newest(folders_in(tmp_path, converter=()), Layout(replicas=3))
    assert (found.path, found.convert, found.obstacle) == (str(older), (), None)


@pytest.mark.parametrize(
    "change", [{"state": "fine"}, {"bytes": -1}, {"format": "zarr"}, {"more": 1}, {"reason": None}]
)
def test_what_a_job_tells_is_checked(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Checkpoint.model_validate(checkpoint().model_dump() | change)


def test_layout_is_taken_from_a_decisions_target_and_reads_as_people_write_it() -> None:
    target = {"nnodes": 3, "tp": 8, "pp": 4, "dp": 3, "global_batch": 1536}
    assert SavedLayout.of(target) == SavedLayout(tp=8, pp=4, dp=3)
    layouts = (SavedLayout(tp=8, dp=3), SavedLayout(world=4), SavedLayout())
    assert [str(each) for each in layouts] == ["tp8 dp3", "4 ranks", "unknown"]


def test_checkpoints_without_a_step_come_last() -> None:
    ordered = sorted([checkpoint(None), checkpoint(0), checkpoint(7), checkpoint(30)], key=newest_first)
    assert [each.step for each in ordered] == [30, 7, 0, None]


GIVEN = ReadRate(source="remote", bytes_per_s=1e9)


def test_loading_takes_the_time_of_the_source_and_converting_reads_and_writes_twice() -> None:
    assert estimate_load_s(checkpoint(bytes=8_000_000_000), [GIVEN]) == pytest.approx(8.0)
    assert estimate_load_s(checkpoint(source="peer"), [GIVEN]) is None
    assert estimate_convert_s(zero(bytes=10_000_000_000), [GIVEN]) == pytest.approx(8.6 + 40.0)
    assert estimate_convert_s(zero(), []) is None
