"""A file of tensors is whole when what says so holds: its end, its directory, its header and its checksums."""

import gc
import io
import json
import os
import pickle
import struct
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from planner.checkpoints import torch_file
from planner.checkpoints.torch_file import StandIn, find_damage, read_metadata, read_saved
from tests.planner.checkpoints.build import DATA, save_like_torch

REAL = DATA / "zero_1" / "global_step3" / "mp_rank_00_model_states.pt"
WHOLE = REAL.read_bytes()


def test_real_file_is_whole_and_says_its_grid() -> None:
    assert find_damage(REAL, len(WHOLE)) is None
    saved = read_saved(REAL, len(WHOLE))
    assert (saved["dp_world_size"], saved["mp_world_size"], saved["global_steps"]) == (2, 1, 3)
    assert list(saved["param_shapes"][0]) == ["0.weight", "0.bias", "2.weight", "2.bias"]


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


def scan(data: bytes) -> int:
    return sum(torch_file.scan_zip(io.BytesIO(data), 0, len(data)))


def test_record_without_a_checksum_is_not_called_damaged() -> None:
    """torch.serialization.set_crc32_options(False) leaves it 0, in both headers."""
    with zipfile.ZipFile(io.BytesIO(WHOLE)) as archive:
        sums = [each.CRC for each in archive.infolist()]
    without = WHOLE
    for crc in sums:
        without = without.replace(struct.pack("<L", crc), bytes(4))
    assert 0 < scan(without) < scan(WHOLE)


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=40))
def test_changed_bytes_are_read_or_refused_and_nothing_else_is_raised(at: int, change: bytes) -> None:
    data = WHOLE[:at] + change + WHOLE[at + len(change) :]
    try:
        scan(data)
    except BadInput as refused:
        assert str(refused).startswith(("has ", "holds "))  # noqa: PT017  # either is right


def test_records_that_lie_over_one_another_are_not_read_again_and_again() -> None:
    begin = WHOLE.index(b"PK\x01\x02")
    end = struct.Struct("<4s4H2LH")
    *_, length, _, _ = end.unpack(WHOLE[-end.size :])
    entries = WHOLE[begin : begin + length] * 50
    data = WHOLE[:begin] + entries + end.pack(b"PK\x05\x06", 0, 0, 1, 1, len(entries), begin, 0)
    with pytest.raises(BadInput, match="has records that lie over one another"):
        scan(data)


def safetensors(header: object, data: bytes = bytes(16)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(begin: int, end: int, dtype: str = "F32", shape: tuple[int, ...] = (2, 2)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_safetensors_whose_tensors_fill_the_file_are_whole() -> None:
    header = {"__metadata__": {"format": "pt"}, "b": tensor(8, 16, "BF16"), "a": tensor(0, 8, "I64", (1,))}
    data = safetensors(header)
    assert sum(torch_file.scan_safetensors(io.BytesIO(data), len(data))) == len(data) - 16


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bytes(500), "its length would be 0 in 500 bytes"),
        (b"\xff" * 500, "its length would be 18446744073709551615 in 500 bytes"),
        (safetensors(b"\xfe" * 30), "none of safetensors"),
        (safetensors(b"[" * 90_000), "none of safetensors"),
        (safetensors([]), "none of safetensors"),
        (safetensors({"a": tensor(0, 16, "F64")}), r"16 bytes cannot hold 'a' of shape \[2, 2\]"),
        (safetensors({"a": tensor(0, 16, shape=(2**62,) * 90)}), "16 bytes cannot hold 'a'"),
        (safetensors({"a": tensor(-16, 0)}), "16 bytes cannot hold 'a'"),
        (safetensors({"a": tensor(16, 32)}), "begins at byte 16 where the one before ends at 0"),
        (safetensors({"a": tensor(0, 16)}, bytes(9)), "says 16 bytes of tensors and holds 9"),
    ],
)
def test_safetensors_whose_header_lies_are_damaged(data: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        list(torch_file.scan_safetensors(io.BytesIO(data), len(data)))


pytestmark = pytest.mark.usefixtures("tried_here")
METADATA = (DATA / "dcp" / "step-200" / ".metadata").read_bytes()


class Evil:
    """Runs a command where it is unpickled in the ordinary way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def test_metadata_that_asks_for_a_command_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\.metadata: cannot be read as a pickle: asks for posix\.system"):
        read_metadata(".metadata", pickle.dumps(Evil(tmp_path / "ran")))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", range(2, 6))
def test_states_hold_any_class_and_still_nothing_runs(tmp_path: Path, protocol: int) -> None:
    held: Any = torch_file.read_state("s.pt", pickle.dumps({"step": 7, "evil": Evil(tmp_path / "ran")}, protocol))
    assert held["step"] == 7
    assert isinstance(held["evil"], StandIn)
    assert not (tmp_path / "ran").exists()


def test_names_that_no_metadata_holds_are_refused() -> None:
    distributed = "torch.distributed.checkpointed.x"
    for name in ("builtins.eval", "torch.load", distributed, "torch.hub", "collections.Counter"):
        module, _, attribute = name.rpartition(".")
        with pytest.raises(BadInput, match="which such a file does not hold"):
            read_metadata(".metadata", f"\x80\x02c{module}\n{attribute}\n.".encode("latin-1"))


def test_what_one_file_does_to_a_stand_in_is_not_seen_in_the_next() -> None:
    name = b"ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n"
    with suppress(BadInput):
        read_metadata(".metadata", b"\x80\x02" + name + b"N}X\x06\x00\x00\x00lengthK\x05s\x86b.")
    made: Any = read_metadata(".metadata", b"\x80\x02" + name + b")\x81.")
    assert not hasattr(made, "length")
    assert not hasattr(StandIn, "length")


LARGE = struct.pack("<I", 1 << 31)  # more than would be in the file


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x02Nr" + LARGE + b".", "byte 3 of 9 is not what torch writes"),  # would reserve memory
        (b"\x80\x04X" + LARGE + b"abc.", "is not what torch writes"),
        *((data, r"^s\.pt: cannot be read as a pickle: ") for data in (b"", b".", b"\x80\x04", b"I1\n.", b"]" * 50)),
        (b"\x80\x02P0\n.", r"^s\.pt: cannot be read as a pickle: "),
    ],
)
def test_what_is_no_pickle_of_torch_is_one_sentence(data: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        torch_file.read_state("s.pt", data)


@given(st.integers(0, len(METADATA) - 1), st.binary(min_size=1, max_size=4))
def test_metadata_with_changed_bytes_is_read_or_refused_and_never_crashes(at: int, change: bytes) -> None:
    with suppress(BadInput):
        read_metadata(".metadata", METADATA[:at] + change + METADATA[at + len(change) :])
    assert gc.isenabled()
