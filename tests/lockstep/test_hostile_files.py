"""A file that would freeze or end whoever reads it ends a child instead, and is refused with a sentence."""

from collections.abc import Callable

import pytest

from lockstep.errors import BadInput
from lockstep.hostile_files import load_plain, load_plain_all
from planner.checkpoints.torch_file import read_metadata, read_state
from tests.tiers import long_except

READERS = (load_plain, read_metadata, read_state)
_TUPLE, _ONE, _PAIR, _KEY = b"\x80\x02})", b"\x85", b"\x86", b"Ns."  # of pickles; a key of a dictionary is hashed
DOUBLED = _TUPLE + b"".join(b"q%ch%c" % (place, place) + _PAIR for place in range(60)) + _KEY
DEEP = _TUPLE + _ONE * 300_000 + _KEY


@pytest.mark.parametrize("read", long_except((load_plain,), READERS))
def test_pickle_that_would_end_its_reader_is_refused_and_what_is_sound_or_only_broken_passes_the_child(
    read: Callable[[str, bytes], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read("dump", b"\x80\x02}X\x01\x00\x00\x00aK\x07s.") == {"a": 7}
    with pytest.raises(BadInput, match=r"^dump: cannot be read as a pickle: "):
        read("dump", b"\x80\x02}X")
    with pytest.raises(BadInput, match=r"^dump: it is nested too deeply$"):
        read("dump", DEEP)
    monkeypatch.setattr("lockstep.hostile_files._CHILD_CPU_S", 1)
    with pytest.raises(BadInput, match=r"^dump: reading it takes more than 1 s of CPU$"):
        read("dump", DOUBLED)
    monkeypatch.setattr("lockstep.hostile_files._CHILD_BYTES", 128 << 20)
    monkeypatch.setattr("lockstep.hostile_files._BYTES_PER_BYTE", 1)
    with pytest.raises(BadInput, match="does not fit into memory"):
        read("dump", b"\x80\x02(" + b"}" * (4 << 20) + b"l.")


def test_of_many_files_the_one_that_cannot_be_read_is_named() -> None:
    sound = b"\x80\x02K\x07."
    assert load_plain_all({"a": sound, "b": sound}) == {"a": 7, "b": 7}
    with pytest.raises(BadInput, match=r"^b: it is nested too deeply$"):
        load_plain_all({"a": sound, "b": DEEP})
