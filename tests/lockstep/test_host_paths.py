"""The plan of paths comes back as it was written, is never set back, and the C code reads the same in every file."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep import host_paths
from lockstep.directories import lock_directory
from lockstep.errors import BadInput, LeaseLost, LockstepError
from tests.path_shim.playing import build_shim

ADDRESSES = st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str))
PORTS = st.integers(1, 65_535)
ENTRIES = st.builds(
    host_paths.PathEntry,
    destination=ADDRESSES,
    ports=st.lists(PORTS, max_size=8).map(tuple),
    dport=st.none() | PORTS,
    source=st.none() | ADDRESSES,
)
PLANS = st.builds(
    host_paths.PathPlan,
    generation=st.integers(0, 10**18 - 1),
    lease_end_s=st.integers(0, 10**18 - 1),
    entries=st.lists(ENTRIES, max_size=6).map(tuple),
)


def plan(generation: int = 1, *entries: host_paths.PathEntry, lease_end_s: int = 100) -> host_paths.PathPlan:
    return host_paths.PathPlan(generation, lease_end_s, entries)


def entry(*ports: int, destination: str = "10.1.0.2") -> host_paths.PathEntry:
    return host_paths.PathEntry(destination, ports)


def in_the_words_of_the_library(drawn: host_paths.PathPlan) -> host_paths.PathPlan:
    """Return the plan as it is read back: libc has its own way to shorten addresses."""
    try:
        return host_paths.parse_plan(host_paths.dump_plan(drawn))
    except BadInput:
        return host_paths.PathPlan(0, 0)


def test_plan_with_every_kind_of_entry_reads_as_people_expect() -> None:
    told = plan(
        3,
        host_paths.PathEntry("10.1.0.2", (1, 65_535), 5201, "10.2.0.2"),
        host_paths.PathEntry("fd00::2"),
        lease_end_s=9,
    )

    assert (
        host_paths.dump_plan(told) == b"lockstep-paths 1 3 9\n10.2.0.2 10.1.0.2 5201 1,65535\n* fd00::2 * ?\nend 2\n"
    )
    assert host_paths.parse_plan(host_paths.dump_plan(told)) == told
    with pytest.raises(BadInput, match="usual form"):
        host_paths.dump_plan(plan(1, entry(1, destination="fd00:0::2")))


GOOD = b"lockstep-paths 1 3 9\n* 10.1.0.2 * 40000\nend 1\n"


DAMAGED = {
    GOOD[:-1]: "cut short",
    b"": "cut short",
    GOOD + b"\n": "number of its 2 entries",
    GOOD.replace(b"end 1", b"end 2"): "number of its 1 entries",
    GOOD.replace(b"paths 1", b"paths 2"): "does not begin with",
    GOOD.replace(b" 3 ", b" 03 "): "'03' where a number belongs",
    GOOD.replace(b" 3 ", b" +3 "): "where a number belongs",
    GOOD.replace(b"40000", b"0"): "port 0",
    GOOD.replace(b"40000", b"65536"): "port 65536",
    GOOD.replace(b"40000", b"40000,"): "where a number belongs",
    GOOD.replace(b"40000", b"?,1"): "where a number belongs",
    GOOD.replace(b"40000", b",".join([b"1"] * (host_paths.MOST_PORTS + 1))): "at most 128",
    GOOD.replace(b"10.1.0.2", b"10.1.0.02"): "where an address belongs",
    GOOD.replace(b"10.1.0.2", b"10.1.0"): "where an address belongs",
    GOOD.replace(b"* 10", b"*  10"): "has 5 fields",
    GOOD.replace(b"10.1", b"\xff0.1"): "no text",
    GOOD.replace(b"40000", b"40000" + b" " * 2000): "too long",
    b"x" * (host_paths.MOST_BYTES + 1): "at most 1048576",
}


def test_damaged_files_are_refused_with_the_reason_by_both(tmp_path: Path) -> None:
    for damaged, problem in DAMAGED.items():
        with pytest.raises(BadInput, match=problem):
            host_paths.parse_plan(damaged)
    assert read_by_shim(tmp_path, list(DAMAGED)) == ["damaged"] * len(DAMAGED)


def read_by_shim(folder: Path, files: list[bytes]) -> list[str]:
    names = [folder / f"file{number}" for number in range(len(files))]
    for name, written in zip(names, files, strict=True):
        name.write_bytes(written)
    command = [build_shim("plan") / "plan", *names]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [part.removesuffix("\n") for part in told.split("--\n")[:-1]]


def read_by_us(written: bytes) -> str:
    try:
        told = host_paths.parse_plan(written)
    except BadInput:
        return "damaged"
    lines = [f"{told.generation} {told.lease_end_s}"]
    for each in told.entries:
        ports = ",".join(map(str, each.ports)) or "?"
        lines.append(f"{each.source or '*'} {each.destination} {each.dport or 0} {ports}")
    return "\n".join(lines)


@st.composite
def nearly_right(draw: st.DrawFn) -> bytes:
    """A file as we write it, or one with a few bytes put in, taken out or changed."""
    written = bytearray(host_paths.dump_plan(in_the_words_of_the_library(draw(PLANS))))
    for _ in range(draw(st.integers(0, 2))):
        at, length = draw(st.integers(0, len(written))), draw(st.integers(0, 3))
        written[at : at + length] = draw(
            st.sampled_from([b"", b" ", b"\n", b"0", b"7", b",", b"*", b"?", b":", b"\0", b"end "])
        )
    return bytes(written)


@given(st.lists(nearly_right(), min_size=20, max_size=20))
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_c_code_and_we_agree_on_every_file(tmp_path: Path, files: list[bytes]) -> None:
    assert read_by_shim(tmp_path, files) == [read_by_us(written) for written in files]


def file_of(length: int) -> bytes:
    """Return a plan of just so many bytes; the ports of its first entry fill it up."""
    line = b"* 10.1.0.2 * 40000\n"
    count = (length - 200) // len(line)
    rest = length - len(b"lockstep-paths 1 3 9\n" + line * count + b"end %d\n" % count)
    filling = b",1" * (rest // 2 - rest % 2) + b",11" * (rest % 2)
    written = b"lockstep-paths 1 3 9\n" + line[:-1] + filling + b"\n" + line * (count - 1) + b"end %d\n" % count
    assert len(written) == length
    return written


def test_files_are_read_by_both_up_to_the_greatest_size(tmp_path: Path) -> None:
    largest, larger = read_by_shim(tmp_path, [file_of(host_paths.MOST_BYTES), file_of(host_paths.MOST_BYTES + 1)])

    assert largest == read_by_us(file_of(host_paths.MOST_BYTES)) != "damaged"
    assert larger == read_by_us(file_of(host_paths.MOST_BYTES + 1)) == "damaged"


def test_written_plan_is_the_file_replaces_a_damaged_one_is_never_set_back_nor_written_by_two_at_once(
    tmp_path: Path,
) -> None:
    file = tmp_path / "paths" / "plan"
    assert host_paths.read_plan(file) is None
    for _ in range(2):
        host_paths.write_plan(file, plan(1, entry(40_000)))
        assert host_paths.read_plan(file) == plan(1, entry(40_000))
        assert os.listdir(file.parent) == ["plan"]
        assert file.stat().st_mode & 0o777 == 0o644
        file.write_text("lockstep-paths 1 99")
    file = tmp_path / "plan"
    host_paths.write_plan(file, plan(5, entry(1), lease_end_s=100))
    host_paths.write_plan(file, plan(5, entry(1), lease_end_s=200))
    with pytest.raises(LeaseLost, match="another plan 5 already"):
        host_paths.write_plan(file, plan(5, entry(2), lease_end_s=300))
    with pytest.raises(LeaseLost, match="plan 5 already, which is later than 4"):
        host_paths.write_plan(file, plan(4, entry(2)))
    assert host_paths.read_plan(file) == plan(5, entry(1), lease_end_s=200)
    lock = lock_directory(tmp_path)
    try:
        with pytest.raises(LockstepError, match="another process writes"):
            host_paths.write_plan(file, plan(6))
    finally:
        os.close(lock)


def test_reports_are_read_and_anything_else_in_their_folder_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "17").write_text("5 17 10.0.0.1 4000 10.0.0.2 80 3 enforced\n6 17 10.0.0.1 40\n\xff\n")
    (tmp_path / "notes").write_text("5 17 10.0.0.1 4000 10.0.0.2 80 3 enforced\n")

    (report,) = host_paths.read_reports(tmp_path)
    assert report == host_paths.PathReport(5, 17, "10.0.0.1", 4000, "10.0.0.2", 80, 3, "enforced")
    assert report.is_enforced
    assert list(host_paths.read_reports(tmp_path / "none")) == []


# --- Net plugins find in a whole file the ports that the plan has for their queue pairs ---

USUAL: dict[str, Any] = {  # Any: fields of several types
    "connection": "j/q0",
    "nic": "mlx5_0",
    "dst": "h1",
    "dst_nic": "mlx5_0",
    "links": ("leaf0--spine0",),
    "proto": "roce",
    "source": "10.0.0.1",
    "destination": "10.0.0.2",
    "dport": 4791,
    "sports": (49_152,),
}


@pytest.mark.parametrize(
    ("choices", "is_enforceable", "lines"),
    [
        ([{}], True, ["10.0.0.1 10.0.0.2 49152 1 j/q0"]),
        (
            [{"sports": (49_160, 49_161)}, {"connection": "job 1/q1", "weight": 0.12345}],
            True,
            ["10.0.0.1 10.0.0.2 49160 1 j/q0", "10.0.0.1 10.0.0.2 49152 0.123 job%201/q1"],
        ),
        ([{"sports": ()}, {"source": None}, {"destination": None}, {"proto": "tcp"}], True, []),
        ([{}], False, []),  # switches choose
    ],
)
def test_queue_pairs_come_in_the_order_of_the_plan_marked_as_advice(
    choices: list[dict[str, Any]], is_enforceable: bool, lines: list[str], tmp_path: Path
) -> None:
    made = tuple(host_paths.PathChoice.model_validate({**USUAL, **fields}) for fields in choices)
    ages = {"generation": 7, "made_ns": 1, "lease_end_ns": 90 * 10**9}
    host_paths.write_queue_pairs(
        tmp_path / "plan", host_paths.HostPaths(host="h0", is_enforceable=is_enforceable, choices=made, **ages)
    )
    whole = ["lockstep-queue-pairs 1 7 90 advisory", *lines, f"end {len(lines)}", ""]
    assert (tmp_path / "plan").read_text().split("\n") == whole
