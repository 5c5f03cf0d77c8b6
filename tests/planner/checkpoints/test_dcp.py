"""A DCP checkpoint is complete when every file that its metadata names has all its bytes, and never otherwise."""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.checkpoints.checkpoint import SavedLayout
from tests.planner.checkpoints.build import copy_real, make_old, read_one, save_like_torch

pytestmark = pytest.mark.usefixtures("tried_here")

DCP, MEGATRON = "dcp/step-200", "megatron_like/iter_0000100"


@pytest.fixture
def dcp(tmp_path: Path) -> Path:
    return copy_real(DCP, tmp_path / "step-200")


@pytest.fixture
def megatron(tmp_path: Path) -> Path:
    return copy_real(MEGATRON, tmp_path / "iter_0000100")


def cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])
    make_old(path.parent)


def test_real_checkpoint_is_complete_and_moves_to_any_layout(dcp: Path) -> None:
    found = read_one(dcp)
    assert (found.format, found.state, found.step, found.moves) == ("dcp", "complete", 200, "any")
    assert (
        found.reason == "all 4 files that .metadata names are there with all their bytes; its records were read back"
    )
    assert found.layout == SavedLayout(world=4)
    assert found.bytes == sum(file.stat().st_size for file in dcp.iterdir())
    assert found.age_s(found.saved_ns + 5_000_000_000) == 5


@given(rank=st.integers(0, 3), lost=st.integers(1, 14_000))
def test_shard_that_lost_bytes_is_named(tmp_path_factory: pytest.TempPathFactory, rank: int, lost: int) -> None:
    folder = copy_real(DCP, tmp_path_factory.mktemp("dcp") / "step-200")
    shard = folder / f"__{rank}_0.distcp"
    size = shard.stat().st_size
    cut(shard, size - lost)
    found = read_one(folder)
    assert found.state == "incomplete"
    assert found.reason == f"{shard.name} has {size - lost} bytes, and .metadata says at least {size}"


def test_checkpoint_that_lacks_a_shard_or_its_metadata_is_not_complete(dcp: Path) -> None:
    (dcp / "__2_0.distcp").unlink()
    found = read_one(dcp)
    assert (found.state, found.reason) == ("incomplete", "__2_0.distcp named in .metadata is not there")
    (dcp / ".metadata").rename(dcp / ".metadata.tmp")
    assert read_one(dcp).reason == "its writer has not ended: .metadata.tmp has not got its last name yet"
    (dcp / ".metadata.tmp").unlink()
    found = read_one(dcp)
    assert (found.state, found.reason) == ("incomplete", "has no .metadata, which is written last")
    (dcp / "__0.metadata").write_bytes(b"x")  # ranks that saved each for itself
    make_old(dcp)
    found = read_one(dcp)
    assert found.state == "unverified"
    assert found.reason == "1 ranks wrote a .metadata each, and nothing says how many there should be"


def test_metadata_that_is_cut_foreign_or_leads_out_of_the_folder_is_a_sentence(dcp: Path) -> None:
    data = (dcp / ".metadata").read_bytes()
    assert data.count(b"__0_0.distcp") >= 1
    (dcp / ".metadata").write_bytes(data.replace(b"__0_0.distcp", b"../../passwd"))
    make_old(dcp)
    found = read_one(dcp)
    assert found.state == "incomplete"
    assert "of '../../passwd', which cannot be in this folder" in found.reason
    cut(dcp / ".metadata", 5000)
    assert (found := read_one(dcp)).state == "incomplete"
    assert found.reason.startswith(".metadata: cannot be read as a pickle: ")
    (dcp / ".metadata").write_bytes(pickle.dumps({"storage_data": 1}))
    make_old(dcp)
    assert read_one(dcp).reason == ".metadata names no file"


def test_megatron_says_layout_iteration_and_how_far_its_optimizer_lets_it_move(megatron: Path) -> None:
    found = read_one(megatron)
    assert (found.format, found.state, found.step) == ("torch_dist", "complete", 100)
    assert found.layout == SavedLayout(tp=2, pp=1, dp=2, cp=1, ep=1, world=4)
    assert found.moves == "dp"
    assert "saved as dp_reshardable" in found.moves_because
    content = {"distrib_optim_sharding_type": "fully_reshardable"}
    save_like_torch(megatron / "common.pt", {"iteration": 120, "content_metadata": content})
    make_old(megatron)
    found = read_one(megatron)
    assert (found.state, found.step, found.moves, found.layout) == ("complete", 120, "any", SavedLayout(world=4))


def test_megatron_that_lacks_a_file_or_has_another_backend_is_not_complete(megatron: Path) -> None:
    metadata, common = megatron / "metadata.json", (megatron / "common.pt").read_bytes()
    cut(megatron / "common.pt", 900)
    reasons = [read_one(megatron).reason]
    (megatron / "common.pt").unlink()
    reasons.append(read_one(megatron).reason)
    (megatron / "common.pt").write_bytes(common)
    for text in ("{", "[]", json.dumps({"sharded_backend": "zarr"}), "[" * 100_000, ""):
        metadata.write_text(text)
        make_old(megatron)
        found = read_one(megatron)
        assert (found.state, found.reason[:32]) == ("incomplete", "metadata.json names the backend ")
    metadata.unlink()
    found = read_one(megatron)
    assert (found.format, found.state) == ("torch_dist", "incomplete")
    assert [*reasons, found.reason] == [
        "common.pt is cut short or no file of torch: its zip has no end",
        "has no common.pt, though it is a checkpoint of Megatron",
        "has no metadata.json, though it is a checkpoint of Megatron",
    ]
