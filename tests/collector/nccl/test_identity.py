"""What a ring file says of its process: told as it is, as far as it can be true."""

import os
from pathlib import Path

import pytest

from collector.nccl.header import Identity
from collector.nccl.ringfile import open_ring
from lockstep import wire
from lockstep.errors import BadRing, RingNotReady
from tests.collector.nccl.forging import Forged


def identity_with(path: Path, **header: int | bytes) -> Identity:
    forged = Forged()
    for name, value in header.items():
        forged.header[name] = value
    with open_ring(forged.write(path / "a.ring")) as ring:
        return ring.identity


def test_everything_of_the_header_is_reported(tmp_path: Path) -> None:
    assert identity_with(tmp_path, visible_gpus=b"0,1", attempt=2, kernel_channels=1) == Identity(
        pid=4711,
        created_ns=1_700_000_000_000_000_000,
        tag=0xBEEF,
        host="node-7",
        job="train",
        attempt=2,
        world_rank=3,
        world_size=8,
        local_rank=None,
        visible_gpus="0,1",
        plugin_version="0.1.0",
        nccl_version="2.28.9",
        api_version=5,
        kernel_channels=True,
        clock_kind=wire.CLOCK_MONOTONIC,
    )


@pytest.mark.parametrize(
    ("code", "version"), [(22809, "2.28.9"), (23203, "2.32.3"), (2804, "2.8.4"), (0, None), (21005, "2.10.5")]
)
def test_version_of_nccl_is_written_as_people_do(tmp_path: Path, code: int, version: str | None) -> None:
    assert identity_with(tmp_path, nccl_version=code).nccl_version == version


def test_ranks_that_the_environment_does_not_say_are_unknown(tmp_path: Path) -> None:
    found = identity_with(tmp_path, world_rank=-1, world_size=-1, local_rank=0)
    assert (found.world_rank, found.world_size, found.local_rank) == (None, None, 0)


def test_text_without_an_end_and_with_control_characters_can_be_printed(tmp_path: Path) -> None:
    found = identity_with(tmp_path, host=b"\xff" * 80, job=b"a\x1b[2J\nb")
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
