"""What is known of checkpoints travels as JSON, so that a job or a collector may tell it."""

import json
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lockstep.errors import BadInput
from planner.checkpoints.checkpoint import (
    Catalogue,
    Checkpoint,
    ReadRate,
    SavedLayout,
    estimate_convert_s,
    estimate_load_s,
    find_damage,
    newest_first,
    read_saved,
)
from tests.planner.checkpoints.build import DATA, catalogue, checkpoint, save_like_torch, zero


def test_catalogue_comes_back_from_json_as_it_went() -> None:
    told = catalogue(
        checkpoint(300, state="writing"), zero(200, experts=8, convert_flags=("--inject_missing_state",))
    )
    assert Catalogue.model_validate(json.loads(json.dumps(told.as_json()))) == told


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


REAL = DATA / "zero_1" / "global_step3" / "mp_rank_00_model_states.pt"
WHOLE = REAL.read_bytes()


def test_real_file_is_whole_and_says_its_grid() -> None:
    assert find_damage(REAL, len(WHOLE)) is None
    saved = read_saved(REAL, len(WHOLE))
    assert (saved["dp_world_size"], saved["mp_world_size"], saved["global_steps"]) == (2, 1, 3)
    assert list(saved["param_shapes"][0]) == ["0.weight", "0.bias", "2.weight", "2.bias"]


@given(st.integers(1, len(WHOLE) - 1))
def test_file_cut_anywhere_is_damaged(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.pt"
    path.write_bytes(WHOLE[:length])
    assert find_damage(path, length) == "is cut short or no file of torch: its zip has no end"


def test_what_is_no_file_of_torch_is_damaged_and_one_that_went_away_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for data, message in ((b"", "is empty"), (b"x" * 5000, "is cut short"), (b"PK\x03\x04" * 50, "cut")):
        path.write_bytes(data)
        assert message in (find_damage(path, len(data)) or "")
    path.unlink()
    assert find_damage(path, 10) == "cannot be read: No such file or directory"
    with pytest.raises(BadInput, match=r"a\.pt cannot be read"):
        read_saved(path, 10)


def test_directory_of_a_file_above_4_gib_is_found(tmp_path: Path) -> None:
    """Its place stands in the 64-bit end only."""
    body, entry = b"PK\x03\x04" + bytes(60), b"PK\x01\x02" + bytes(42)
    end_64 = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, len(entry), len(body))
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, len(body) + len(entry), 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    whole = body + entry + end_64 + locator + end
    (tmp_path / "a.pt").write_bytes(whole)
    assert find_damage(tmp_path / "a.pt", len(whole)) is None
    (tmp_path / "b.pt").write_bytes(body + entry + locator + end)
    assert find_damage(tmp_path / "b.pt", len(whole) - len(end_64)) is not None


def test_state_that_is_compressed_or_no_dictionary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", bytes(1 << 20))
    with pytest.raises(BadInput, match=r"bomb\.pt has no data\.pkl as torch writes it"):
        read_saved(path, path.stat().st_size)
    save_like_torch(tmp_path / "a.pt", [1, 2])
    with pytest.raises(BadInput, match=r"a\.pt does not hold a dictionary"):
        read_saved(tmp_path / "a.pt", (tmp_path / "a.pt").stat().st_size)
