"""A pickle of torch gives its values; one that would run code, or reserve memory, is refused in a sentence."""

import gc
import os
import pickle
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from planner.checkpoints.inert_pickle import StandIn, read_metadata, read_state
from tests.planner.checkpoints.build import DATA

pytestmark = pytest.mark.usefixtures("tried_here")
METADATA = (DATA / "dcp" / "step-200" / ".metadata").read_bytes()


class Evil:
    """Runs a command where it is unpickled in the ordinary way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def test_real_metadata_gives_files_offsets_and_lengths() -> None:
    held: Any = read_metadata(".metadata", METADATA)
    pieces = [vars(piece) for piece in held.storage_data.values()]
    assert {piece["relative_path"] for piece in pieces} == {f"__{rank}_0.distcp" for rank in range(4)}
    assert all(piece["length"] > 0 for piece in pieces)
    sizes = {name: tensor.size for name, tensor in held.state_dict_metadata.items() if hasattr(tensor, "size")}
    assert sizes["model.0.weight"] == (16, 8)


def test_metadata_that_asks_for_a_command_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\.metadata: cannot be read as a pickle: asks for posix\.system"):
        read_metadata(".metadata", pickle.dumps(Evil(tmp_path / "ran")))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", range(2, 6))
def test_states_hold_any_class_and_still_nothing_runs(tmp_path: Path, protocol: int) -> None:
    held: Any = read_state("s.pt", pickle.dumps({"step": 7, "evil": Evil(tmp_path / "ran")}, protocol))
    assert held["step"] == 7
    assert isinstance(held["evil"], StandIn)
    assert not (tmp_path / "ran").exists()


def test_names_that_no_metadata_holds_are_refused() -> None:
    for name in (
        "builtins.eval",
        "torch.load",
        "torch.distributed.checkpointed.x",
        "torch.hub",
        "collections.Counter",
    ):
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
        read_state("s.pt", data)


@given(st.integers(0, len(METADATA) - 1), st.binary(min_size=1, max_size=4))
def test_metadata_with_changed_bytes_is_read_or_refused_and_never_crashes(at: int, change: bytes) -> None:
    with suppress(BadInput):
        read_metadata(".metadata", METADATA[:at] + change + METADATA[at + len(change) :])
    assert gc.isenabled()


@given(st.integers(0, len(METADATA) - 1))
def test_metadata_that_was_cut_is_refused(length: int) -> None:
    with pytest.raises(BadInput):
        read_metadata(".metadata", METADATA[:length])
