"""What a ring file says of its process: told as it is, as far as it can be true."""

import os
from dataclasses import asdict
from itertools import product
from pathlib import Path

import pytest

from collector.nccl.header import MAX_SECTION_BYTES, Identity
from collector.nccl.ringfile import open_ring
from lockstep import wire
from lockstep.errors import BadRing, RingNotReady
from tests.collector.nccl.forging import Forged, Sizes, forge


def identity_with(path: Path, **header: int | bytes) -> Identity:
    forged = Forged()
    for name, value in header.items():
        forged.header[name] = value
    with open_ring(forged.write(path / "a.ring")) as ring:
        return ring.identity


def test_everything_of_the_header_is_reported(tmp_path: Path) -> None:
    found = identity_with(tmp_path, visible_gpus=b"0,1", attempt=2, kernel_channels=1)
    expected = {"pid": 4711, "created_ns": 1_700_000_000_000_000_000, "tag": 0xBEEF, "host": "node-7", "job": "train"}
    expected |= {"attempt": 2, "world_rank": 3, "world_size": 8, "local_rank": None, "visible_gpus": "0,1"}
    expected |= {"plugin_version": "0.1.0", "nccl_version": "2.28.9", "api_version": 5, "kernel_channels": True}
    assert asdict(found) == expected | {"clock_kind": wire.CLOCK_MONOTONIC}


def test_version_is_written_as_people_do_unknown_ranks_are_none_and_text_can_be_printed(tmp_path: Path) -> None:
    versions = {22809: "2.28.9", 23203: "2.32.3", 2804: "2.8.4", 0: None, 21005: "2.10.5"}
    assert {code: identity_with(tmp_path, nccl_version=code).nccl_version for code in versions} == versions
    found = identity_with(tmp_path, world_rank=-1, world_size=-1, local_rank=0, host=b"\xff" * 80, job=b"a\x1b[2J\nb")
    assert (found.world_rank, found.world_size, found.local_rank) == (None, None, 0)
    assert (found.host, found.job) == ("\ufffd" * 80, "a[2Jb")


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("magic", b"LOCKSTOP", "is no ring file"),
        ("version", 0, "has version 0"),
        ("version", wire.VERSION + 1, "has version 2, and this reader knows 1"),
        ("ready", 2, "ready is 2"),
        ("tag", 0x10000, "has the tag 65536"),
        ("clock_kind", 0, "counts time"),
        ("clock_kind", 5, "counts time"),
        ("created_ns", 1 << 63, "which is no time"),
    ],
)
def test_what_no_plugin_writes_is_refused(tmp_path: Path, field: str, value: int | bytes, problem: str) -> None:
    with pytest.raises(BadRing, match=problem) as caught:
        identity_with(tmp_path, **{field: value})
    assert not isinstance(caught.value, RingNotReady)


def test_file_whose_writer_has_only_begun_may_be_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "a.ring"
    path.touch(0o600)
    problems = []
    for content in (b"", bytes(100), bytes(wire.PAGE)):
        path.write_bytes(content)
        with pytest.raises(RingNotReady) as caught:
            open_ring(path)
        problems.append(caught.value.problem)
    assert problems == ["has 0 bytes, not even a header", "has 100 bytes, not even a header", "is not complete yet"]
    with pytest.raises(RingNotReady, match="not complete"):
        identity_with(tmp_path, ready=0)
    assert os.listdir(tmp_path) == ["a.ring"]


SECTIONS = ("requests", "status", "clocks", "comms", "rows", "rings", "records", "operations", "transfers")


def refusal(path: Path, forged: Forged) -> str:
    with pytest.raises(BadRing) as caught:
        open_ring(forged.write(path))
    assert not isinstance(caught.value, RingNotReady)
    return caught.value.problem


def test_file_of_the_plugins_own_size_is_opened(tmp_path: Path) -> None:
    per_ring = wire.RING_RECORDS, wire.RING_OPERATIONS, wire.RING_TRANSFERS
    sizes = Sizes(18, wire.CLOCK_PAIRS, wire.COMMS, wire.ROWS, *per_ring)
    with open_ring(forge(tmp_path / "a.ring", sizes=sizes)) as ring:
        assert ring.read_records().lost == 0
        assert len(ring.live().transfers) == 0


WRONG = {
    "offset": [0, wire.PAGE - 8, wire.PAGE + 1, (1 << 64) - 8, 1 << 40],
    "count": [0, (1 << 32) - 1],
    "stride": [0, 8, 1 << 31, (1 << 32) - 1],
}


def test_section_that_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    wrong = [(field, value) for field, values in WRONG.items() for value in values]
    for section, (field, value) in product(SECTIONS, wrong):
        forged = Forged()
        forged.header[section][field] = value
        assert section in refusal(tmp_path / "a.ring", forged), (field, value)


def test_sections_that_do_not_fit_the_file_or_each_other_are_refused(tmp_path: Path) -> None:
    usual = Forged().header
    sizes = [(name, "count", int(usual[name]["count"]) - 1) for name in ("records", "operations", "transfers")]
    unfit = dict.fromkeys(sizes, "for 2 rings")
    unfit["transfers", "offset", int(usual["transfers"]["offset"]) + wire.PAGE] = "has its transfers at "
    unfit["rows", "offset", int(usual["comms"]["offset"]) + 8] = "has comms and rows in one place"
    for (section, field, value), problem in unfit.items():
        forged = Forged()
        forged.header[section][field] = value
        assert problem in refusal(tmp_path / "a.ring", forged)


def test_ring_too_short_to_be_read_in_time_and_a_file_that_is_not_as_long_as_it_says_are_refused(
    tmp_path: Path,
) -> None:
    assert "rings of less than 256" in refusal(tmp_path / "a.ring", Forged(Sizes(records=128)))
    for size in (0, 1 << 20, (1 << 64) - 1):
        forged = Forged()
        forged.header["file_bytes"] = size
        assert f"says it has {size} bytes" in refusal(tmp_path / "a.ring", forged)
    path = forge(tmp_path / "b.ring")
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(BadRing, match="says it has"):
        open_ring(path)


def test_section_that_would_take_all_our_memory_is_refused(tmp_path: Path) -> None:
    forged = Forged()
    forged.header["transfers"]["count"], forged.header["transfers"]["stride"] = 1 << 16, 1 << 12
    forged.header["file_bytes"] = 1 << 30
    path = forged.write(tmp_path / "a.ring")
    os.truncate(path, 1 << 30)  # a hole: it costs nothing to make
    assert MAX_SECTION_BYTES < 1 << 28
    with pytest.raises(BadRing, match="has 65536 transfers of 4096 bytes each"):
        open_ring(path)


def test_longer_elements_of_a_later_version_are_read_as_far_as_we_know_them(tmp_path: Path) -> None:
    forged = Forged(stretch=24)
    forged.append(1, 300)
    forged.table("comms")[["incarnation", "id"]][2] = (1, 77)
    with open_ring(forged.write(tmp_path / "a.ring")) as ring:
        read = ring.read_records().sorted.enqueued["seq"].tolist()
        assert read == list(range(300 - (forged.sizes.records - 65), 300))
        assert ring.clock().to_unix_ns([2_000]).tolist() == [1_700_000_000_000_002_000]
        assert ring.communicators()[["index", "id"]].tolist() == [(2, 77)]
