"""A header's claims are compared with the file and with limits before anything is read by them."""

import os
from pathlib import Path

import pytest

from collector.nccl.header import MAX_SECTION_BYTES
from collector.nccl.ringfile import open_ring
from lockstep import wire
from lockstep.errors import BadRing, RingNotReady
from tests.collector.nccl.forging import Forged, Sizes, forge

SECTIONS = ("requests", "status", "clocks", "comms", "rows", "rings", "records", "operations", "transfers")


def refusal(path: Path, forged: Forged) -> str:
    with pytest.raises(BadRing) as caught:
        open_ring(forged.write(path))
    assert not isinstance(caught.value, RingNotReady)
    return caught.value.problem


def test_right_file_is_opened(tmp_path: Path) -> None:
    open_ring(forge(tmp_path / "a.ring")).close()


def test_file_of_the_plugins_own_size_is_opened(tmp_path: Path) -> None:
    sizes = Sizes(
        18, wire.CLOCK_PAIRS, wire.COMMS, wire.ROWS, wire.RING_RECORDS, wire.RING_OPERATIONS, wire.RING_TRANSFERS
    )
    with open_ring(forge(tmp_path / "a.ring", sizes=sizes)) as ring:
        assert ring.read_records().lost == 0
        assert len(ring.live().transfers) == 0


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("offset", 0),
        ("offset", wire.PAGE - 8),
        ("offset", wire.PAGE + 1),
        ("offset", (1 << 64) - 8),
        ("offset", 1 << 40),
        ("count", 0),
        ("count", (1 << 32) - 1),
        ("stride", 0),
        ("stride", 8),
        ("stride", 1 << 31),
        ("stride", (1 << 32) - 1),
    ],
)
def test_section_that_cannot_be_is_refused_by_name(tmp_path: Path, section: str, field: str, value: int) -> None:
    forged = Forged()
    forged.header[section][field] = value
    assert section in refusal(tmp_path / "a.ring", forged)


def test_section_that_ends_behind_the_file_is_refused(tmp_path: Path) -> None:
    forged = Forged()
    forged.header["transfers"]["offset"] += wire.PAGE
    assert refusal(tmp_path / "a.ring", forged).startswith("has its transfers at ")


def test_sections_in_one_place_are_refused(tmp_path: Path) -> None:
    forged = Forged()
    forged.header["rows"]["offset"] = forged.header["comms"]["offset"] + 8
    assert refusal(tmp_path / "a.ring", forged) == "has comms and rows in one place"


def test_section_that_would_take_all_our_memory_is_refused(tmp_path: Path) -> None:
    forged = Forged()
    forged.header["transfers"]["count"], forged.header["transfers"]["stride"] = 1 << 16, 1 << 12
    forged.header["file_bytes"] = 1 << 30
    path = forged.write(tmp_path / "a.ring")
    os.truncate(path, 1 << 30)  # a hole: it costs nothing to make
    assert MAX_SECTION_BYTES < 1 << 28
    with pytest.raises(BadRing, match="has 65536 transfers of 4096 bytes each"):
        open_ring(path)


@pytest.mark.parametrize("name", ["records", "operations", "transfers"])
def test_table_that_does_not_belong_to_the_rings_is_refused(tmp_path: Path, name: str) -> None:
    forged = Forged()
    forged.header[name]["count"] -= 1
    assert "for 2 rings" in refusal(tmp_path / "a.ring", forged)


def test_ring_too_short_to_be_read_in_time_is_refused(tmp_path: Path) -> None:
    assert "rings of less than 256" in refusal(tmp_path / "a.ring", Forged(Sizes(records=128)))


@pytest.mark.parametrize("claimed", [0, 1 << 20, (1 << 64) - 1])
def test_file_that_is_not_as_long_as_it_says_is_refused(tmp_path: Path, claimed: int) -> None:
    forged = Forged()
    forged.header["file_bytes"] = claimed
    assert refusal(tmp_path / "a.ring", forged).startswith(f"says it has {claimed} bytes")


def test_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = forge(tmp_path / "a.ring")
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(BadRing, match="says it has"):
        open_ring(path)


def test_longer_elements_of_a_later_version_are_read_as_far_as_we_know_them(tmp_path: Path) -> None:
    forged = Forged(stretch=24)
    forged.append(1, 300)
    forged.table("comms")[["incarnation", "id"]][2] = (1, 77)
    with open_ring(forged.write(tmp_path / "a.ring")) as ring:
        assert ring.read_records().enqueued["seq"].tolist() == list(range(300 - wire_capacity(forged), 300))
        assert ring.clock().to_unix_ns([2_000]).tolist() == [1_700_000_000_000_002_000]
        assert ring.communicators()[["index", "id"]].tolist() == [(2, 77)]


def wire_capacity(forged: Forged) -> int:
    """Return how many of the newest records a reader takes from a ring that is full."""
    return forged.sizes.records - 65
