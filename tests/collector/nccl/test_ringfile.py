"""The control page, and what no forged file can do: raise anything but BadRing, or make us read without end."""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.nccl.ringfile import RingFile, open_ring
from lockstep import wire
from lockstep.errors import BadRing
from tests.collector.nccl.forging import Forged, forge


def request_in(path: Path, forged: Forged) -> tuple[int, ...]:
    offset = int(forged.header["requests"]["offset"])
    content = path.read_bytes()[offset : offset + wire.REQUEST.itemsize]
    return tuple(np.frombuffer(content, wire.REQUEST)[0].tolist())


def test_status_is_as_the_plugin_wrote_it_and_one_that_cannot_be_is_refused(tmp_path: Path) -> None:
    forged = Forged()
    status = forged.table("status")
    status["level"], status["paid_ppm"], status["stale"] = wire.STEPS, -12, 5
    path = forged.write(tmp_path / "a.ring")
    with open_ring(path) as ring:
        found = ring.status()
        assert (int(found["level"]), int(found["paid_ppm"]), int(found["stale"])) == (wire.STEPS, -12, 5)
        for level, lowered in ((5, 0), (wire.STEPS, 3)):
            status["level"], status["lowered"] = level, lowered
            forged.write(path)
            with pytest.raises(BadRing, match="has level"):
                ring.status()


def test_request_has_a_new_stamp_written_last_that_is_never_zero_and_nonsense_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = Forged()
    path = forged.write(tmp_path / "a.ring")
    with open_ring(path) as ring:
        for wrong in ((5, 0, 0), (-1, 0, 0), (1, 65_537, 0), (1, -1, 0), (1, 0, -1), (1, 0, 1_000_001)):
            with pytest.raises(ValueError, match="no level, share or budget"):
                ring.request(*wrong)
        assert request_in(path, forged) == (0, 0, 0, 0)
        ring.request(wire.STEPS, 655, 5_000)
        assert request_in(path, forged) == (1, wire.STEPS, 655, 5_000)
        ring.request(wire.OFF, 0, 0)
        assert request_in(path, forged) == (2, wire.OFF, 0, 0)
        forged.table("requests")["stamp"] = 0xFFFFFFFF
        forged.write(path)
        ring.request(wire.TRACE, 65_536, 1)
        assert request_in(path, forged) == (1, wire.TRACE, 65_536, 1)
        offset, written = int(forged.header["requests"]["offset"]), list[int]()
        monkeypatch.setattr(os, "pwrite", lambda _, content, at: written.extend(range(at, at + len(content))))
        ring.request(wire.OFF, 0, 0)
    assert written == [*range(offset + 4, offset + 16), *range(offset, offset + 4)]


def test_request_never_goes_into_a_file_that_took_the_place_of_ours_nor_makes_one_grow_again_that_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = forge(tmp_path / "a.ring")
    with open_ring(path) as ring:
        other = forge(tmp_path / "other")
        before = other.read_bytes()
        other.rename(path)
        with pytest.raises(BadRing, match="was replaced"):
            ring.request(wire.OFF, 0, 0)
        assert path.read_bytes() == before
        path.unlink()
        path.symlink_to(forge(tmp_path / "third"))
        with pytest.raises(BadRing, match="symbolic links"):
            ring.request(wire.OFF, 0, 0)
    shrinking, pwrite = forge(tmp_path / "b.ring"), os.pwrite

    def write_and_cut(descriptor: int, content: bytes, at: int) -> int:
        pwrite(descriptor, content, at)
        os.truncate(shrinking, 100)
        return len(content)

    monkeypatch.setattr(os, "pwrite", write_and_cut)
    with open_ring(shrinking) as ring, pytest.raises(BadRing, match="was cut"):
        ring.request(wire.OFF, 0, 0)
    assert shrinking.stat().st_size == 100


def read_everything(ring: RingFile) -> int:
    """Use all that a reader offers; return how many of the calls gave an answer."""
    answers = 0
    parts = (ring.clock, ring.communicators, ring.live, ring.status, ring.owner)
    for ask in (ring.read_records, *parts, ring.read_records):
        with suppress(BadRing):
            ask()
            answers += 1
    return answers


@pytest.mark.parametrize("kept", [0, 100, 4096, 5000, 30_000])
def test_file_that_is_removed_can_still_be_read_and_one_that_is_cut_is_a_bad_ring(tmp_path: Path, kept: int) -> None:
    forged = Forged()
    forged.append(0, 20)
    path = forged.write(tmp_path / "a.ring")
    with open_ring(path) as ring, path.open("r+b") as other:
        path.unlink()
        assert len(ring.read_records().sorted.enqueued) == 20
        assert read_everything(ring) == 7
        other.truncate(kept)
        assert read_everything(ring) < 7


def try_to_read(path: Path, content: bytes) -> None:
    path.touch(0o600)
    path.write_bytes(content)
    try:
        ring = open_ring(path)
    except BadRing:
        return
    with ring:
        read_everything(ring)


@cache
def well_filled() -> bytes:
    forged = Forged()
    forged.header["clock_kind"] = wire.CLOCK_TSC
    forged.set_clock([(number * 2_000, 10**18 + number * 1_000) for number in range(70)])
    for kind in range(1, 6):
        forged.append(0, 60, kind)
        forged.append(1, 30, kind)
    forged.table("transfers")["handle"] = 7
    forged.table("operations")["handle"] = 9
    forged.table("comms")["incarnation"] = 1
    forged.table("rows")["key"] = 2 << 40 | 1 << 32
    return bytes(forged.content)


NUMBERS = st.sampled_from([0, 1, 2, 7, 0x7F, 0x80, 0xFF])


@given(changes=st.lists(st.tuples(st.integers(0, wire.HEADER.itemsize - 1), NUMBERS), max_size=6))
def test_no_header_does_harm(tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]) -> None:
    content = bytearray(well_filled())
    for index, value in changes:
        content[index] = value
    try_to_read(tmp_path_factory.getbasetemp() / "header.ring", bytes(content))


@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([1e-4, 1e-2, 0.5, 1.0]), keep_header=st.booleans())
def test_no_corruption_does_harm(
    tmp_path_factory: pytest.TempPathFactory, seed: int, share: float, keep_header: bool
) -> None:
    content = np.frombuffer(well_filled(), np.uint8).copy()
    random = np.random.default_rng(seed)
    is_hit = random.random(len(content)) < share
    is_hit[: wire.PAGE] &= not keep_header
    content[is_hit] = random.integers(0, 256, int(is_hit.sum()))
    try_to_read(tmp_path_factory.getbasetemp() / "corrupt.ring", content.tobytes())


@given(content=st.binary(max_size=2 * wire.PAGE), begins_right=st.booleans())
def test_no_other_file_does_harm(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, begins_right: bool
) -> None:
    head = well_filled()[:16] if begins_right else b""
    try_to_read(tmp_path_factory.getbasetemp() / "other.ring", head + content)
