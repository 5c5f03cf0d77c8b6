"""A ZeRO checkpoint is complete when every rank of the grid in its states has written its files to their ends."""

import shutil
from pathlib import Path

import pytest

from planner.checkpoints.checkpoint import SavedLayout
from tests.planner.checkpoints.build import copy_real, fake_zero, make_old, read_one, save_like_torch

pytestmark = pytest.mark.usefixtures("tried_here")


@pytest.fixture(params=[1, 3])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return copy_real(f"zero_{request.param}/global_step3", tmp_path / "global_step3")


def test_real_checkpoint_is_complete_and_needs_the_converter_elsewhere(real: Path) -> None:
    found = read_one(real)
    assert (found.format, found.state, found.step, found.moves) == ("ds_zero", "complete", 3, "convert")
    assert found.layout == SavedLayout(tp=1, pp=1, dp=2, world=2)
    there = f"all {len(list(real.iterdir()))} files of 2 ranks are there, and each has its end"
    assert found.reason == f"{there}; its records were read back"
    is_stage_3 = (real / "zero_pp_rank_0_mp_rank_00_model_states.pt").exists()
    # Stages 1 and 2 need patterns made up where they have none.
    assert found.convert_flags == (() if is_stage_3 else ("--inject_missing_state",))


def test_tensors_cut_by_tp_are_not_converted_without_patterns(tmp_path: Path) -> None:
    found = read_one(fake_zero(tmp_path / "without" / "global_step7", tp=2))
    assert (found.state, found.moves) == ("complete", "never")
    assert found.moves_because == "it has no universal_checkpoint_info, which says how tensors were cut by tp"
    patterns = {"tp_replicated_parameter_patterns": ["norm"]}
    folder = fake_zero(tmp_path / "with" / "global_step7", tp=2, universal_checkpoint_info=patterns)
    assert read_one(folder).moves == "convert"
    folder = fake_zero(tmp_path / "global_step7", universal_checkpoint_info={"universal_checkpoint_version": 0.4})
    assert read_one(folder).convert_flags == ()


def test_rank_that_left_an_empty_or_cut_file_or_none_is_named(real: Path) -> None:
    path = real / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    whole = path.read_bytes()
    for data, message in ((b"", "is empty"), (whole[:2000], "is cut short or no file of torch: its zip has no end")):
        path.write_bytes(data)
        make_old(real)
        found = read_one(real)
        assert (found.state, found.reason) == ("incomplete", f"{path.name} {message}")
    path.write_bytes(whole)
    (real / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()  # by the names alone it is whole, of one rank
    make_old(real)
    found = read_one(real)
    assert found.state == "incomplete"
    assert found.reason == "2 ranks saved, and zero_pp_rank_1_mp_rank_00_optim_states.pt is not there"


@pytest.mark.parametrize(("tp", "pp", "dp"), [(1, 1, 1), (2, 1, 2), (2, 3, 2), (1, 4, 1)])
def test_grid_of_a_pipeline_stands_in_the_states(tmp_path: Path, tp: int, pp: int, dp: int) -> None:
    dimensions = {"pp_degree": pp, "tp_degree": tp}
    folder = fake_zero(
        tmp_path / "global_step7", tp=tp, pp=pp, dp=dp, layers=4, checkpoint_parallel_dimensions=dimensions
    )
    found = read_one(folder)
    assert (found.state, found.layout) == ("complete", SavedLayout(tp=tp, pp=pp, dp=dp, world=tp * pp * dp))
    last = f"bf16_zero_pp_rank_{dp - 1}_mp_rank_{tp * pp - 1:02d}_optim_states.pt"
    (folder / last).unlink()
    assert read_one(folder).state == "incomplete"


def test_grid_of_an_older_version_is_told_by_its_layers(tmp_path: Path) -> None:
    found = read_one(fake_zero(tmp_path / "global_step7", tp=2, pp=3, dp=2, layers=4))
    assert found.layout == SavedLayout(tp=2, pp=3, dp=2, world=12)


def test_layer_that_is_missing_is_named_by_the_states(tmp_path: Path) -> None:
    folder = fake_zero(tmp_path / "all" / "global_step7", layers=4)
    (folder / "layer_03-model_00-model_states.pt").unlink()
    assert read_one(folder).reason == "2 ranks saved, and layer_03-model_00-model_states.pt is not there"
    folder = fake_zero(tmp_path / "global_step7", tp=2, pp=2, layers=4)
    (folder / "layer_02-model_01-model_states.pt").unlink()
    found = read_one(folder)
    assert (found.state, "layer_02-model_01-model_states.pt is not there" in found.reason) == ("incomplete", True)


@pytest.mark.parametrize(("layers", "moves"), [(None, "never"), ([{"moe_layer_id": 0}], "convert")])
def test_experts_of_native_moe_cannot_be_converted(tmp_path: Path, layers: object, moves: str) -> None:
    folder = fake_zero(tmp_path / "global_step7", ds_autoep_layers=layers, num_experts=[4])
    for expert in range(4):
        save_like_torch(folder / f"layer_0_expert_{expert}_mp_rank_00_model_states.pt", {})
    make_old(folder)
    found = read_one(folder)
    assert (found.state, found.moves, found.experts) == ("complete", moves, 4)
    (folder / "layer_0_expert_3_mp_rank_00_model_states.pt").unlink()
    assert read_one(folder).reason == "2 ranks saved, and layer_0_expert_3_mp_rank_00_model_states.pt is not there"


def test_experts_that_no_state_counts_are_not_verified(tmp_path: Path) -> None:
    folder = fake_zero(tmp_path / "global_step7")
    save_like_torch(folder / "layer_0_expert_0_mp_rank_00_model_states.pt", {})
    make_old(folder)
    found = read_one(folder)
    assert found.state == "unverified"
    assert found.reason == "nothing says how many experts there are, or ranks that share them"


def test_states_without_zero_hold_the_optimizer_themselves(tmp_path: Path) -> None:
    folder = fake_zero(tmp_path / "global_step7", param_shapes=None)
    for path in folder.glob("*optim*"):
        path.unlink()
    found = read_one(folder)
    assert (found.state, found.moves) == ("complete", "dp")


def test_states_that_do_not_tell_the_grid_are_not_verified_or_complete(tmp_path: Path) -> None:
    found = read_one(fake_zero(tmp_path / "global_step7", dp_world_size="two"))
    assert found.state == "unverified"
    assert found.reason == "mp_rank_00_model_states.pt does not say how many ranks there should be"
    states = tmp_path / "global_step7" / "mp_rank_00_model_states.pt"
    save_like_torch(states, [1])
    make_old(states.parent)
    found = read_one(states.parent)
    assert found.state == "unverified"
    assert found.reason.startswith("nothing says how many ranks there should be: ")
    states.unlink()
    assert read_one(states.parent).reason == "has no model states of any rank"


@pytest.fixture(params=[1, 3])
def universal(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return copy_real(f"zero_{request.param}/global_step3_universal", tmp_path / "global_step3_universal")


def test_what_the_converter_wrote_is_complete_and_what_is_missing_or_cut_is_named(universal: Path) -> None:
    found = read_one(universal)
    assert (found.format, found.state, found.step, found.moves) == ("universal", "complete", 3, "any")
    there = "all 4 parameters that the model states name are there, and each file has its end"
    assert found.reason == f"{there}; its records were read back"
    assert found.files == sum(path.is_file() for path in universal.rglob("*"))
    (universal / "zero" / "0.bias" / "exp_avg.pt").unlink()
    assert read_one(universal).reason == "zero/0.bias has no exp_avg.pt, and it has the other moment"
    (universal / "zero" / "0.bias" / "exp_avg_sq.pt").unlink()
    assert read_one(universal).state == "complete"
    value = universal / "zero" / "0.weight" / "fp32.pt"
    whole = value.read_bytes()
    value.write_bytes(whole[:500])
    make_old(universal)
    assert read_one(universal).reason == "zero/0.weight/fp32.pt is cut short or no file of torch: its zip has no end"
    value.unlink()
    assert read_one(universal).reason == "zero/0.weight has no fp32.pt"
    value.write_bytes(whole)
    make_old(universal)
    shutil.rmtree(universal / "zero" / "2.weight")
    found = read_one(universal)
    assert (found.state, found.reason) == ("incomplete", "zero lacks 2.weight")


def test_converter_that_was_killed_leaves_an_incomplete_one(universal: Path) -> None:
    (universal / "tmp").mkdir()
    make_old(universal)
    assert read_one(universal).reason == "the converter has not ended: its folder tmp is still there"
    (universal / "tmp").rmdir()
    (universal / "zero" / "optimizer_state.pt").unlink()
    message = "has no zero/optimizer_state.pt, which the converter writes after the parameters"
    assert read_one(universal).reason == message
