"""Every recorded trace becomes a capture through the real plugin, and the capture says what the lines say."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from collector.nccl.snapshot import Losses
from importers.traces.callback_capture import import_callbacks
from lockstep.capture.files import Capture, read_capture
from tests.importers.traces.traces import ALL_TRACES, TRACES, PlainTrace, read_lines, work_out, write_lines
from tests.tiers import long_except

Row = dict[str, Any]  # Any: a row of any table

V1 = "first200_nccl2.23.4_apiv1_rank0.jsonl"
DDP = "torch_ddp_gpu_r1.jsonl.xz"
V1_FUNCS = {4: "AllReduce"}


@dataclass(frozen=True)
class Imported:
    """A trace by name, as its lines say it and as the plugin and the folding say it."""

    name: str
    plain: PlainTrace
    capture: Capture
    losses: Losses

    def rows(self, table: str) -> list[Row]:
        rows = self.capture.tables.get(table)
        return [] if rows is None else list(rows.to_pylist())


Importer = Callable[[str], Imported]


@pytest.fixture(scope="module")
def importer(plugin_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Importer:
    """Import a trace by name, each once."""

    @cache
    def import_once(name: str) -> Imported:
        target = tmp_path_factory.mktemp("capture") / "c"
        losses = import_callbacks([TRACES / name], target, plugin_library, lambda *_: None)
        return Imported(name, work_out(TRACES / name), read_capture(target), losses)

    return import_once


@pytest.fixture(scope="module", params=long_except(("f_base.jsonl.xz", DDP, V1), ALL_TRACES))
def imported(request: pytest.FixtureRequest, importer: Importer) -> Imported:
    return importer(request.param)


def test_operations_are_what_was_enqueued(imported: Imported) -> None:
    plain = Counter(
        (
            f"h{rank}",
            V1_FUNCS.get(one.start["func"], one.start["func"]),
            one.start.get("peer", -1),
            imported.plain.ranks[rank].unix_ns(one.start["ts"]),
            one.bytes,
            one.start["nCh"],
            one.captured,
        )
        for rank, one in imported.plain.operations
        if one.is_over
    )
    told = Counter(
        tuple(row[name] for name in ("host", "func", "peer", "enqueue_ns", "bytes", "channels", "captured"))
        for row in imported.rows("collectives")
    )
    assert told == plain
    assert told


def test_sequence_numbers_are_those_of_nccl_or_count_per_peer(imported: Imported) -> None:
    plain = {
        (imported.plain.ranks[rank].unix_ns(one.start["ts"]), f"h{rank}", one.start.get("peer", -1)): one.seq
        for rank, one in imported.plain.operations
    }
    for row in imported.rows("collectives"):
        assert row["seq"] == plain[row["enqueue_ns"], row["host"], row["peer"]]
        assert row["seq_valid"] == (row["replay"] == 0)


def test_every_transfer_has_its_times_waits_and_bytes(imported: Imported) -> None:
    started = {
        (f"h{rank}", *(transfer.start[name] for name in ("ch", "peer", "send", "ts"))): (rank, one, transfer)
        for rank, one, transfer in imported.plain.transfers()
        if transfer.stop
    }
    rows = imported.rows("transfers")
    assert len(rows) + imported.losses.sizeless == len(started) > 0
    for row in rows:
        header = imported.plain.ranks[int(row["host"][1:])].header
        first = row["first_ns"] - header["real0"] + header["mono0"]
        sends = int(row["direction"] == "send")
        rank, one, transfer = started[row["host"], row["channel"], row["peer"], sends, first]
        assert transfer.stop is not None
        assert row["seq"] == one.seq
        assert row["bytes"] == transfer.bytes()
        assert row["steps"] == transfer.start["nSteps"]
        assert row["last_ns"] == pytest.approx(imported.plain.ranks[rank].unix_ns(transfer.stop["ts"]), abs=1_000)
        hidden, waits = {"send": "flush_ns", "recv": "wire_ns"}[row["direction"]], transfer.waits()
        assert row[hidden] is None
        for name in {"gpu_wait_ns", "peer_wait_ns", "wire_ns", "flush_ns"} - {hidden}:
            assert row[name] == pytest.approx(waits.get(name, 0), abs=1_000), name


def test_every_step_that_ended_is_a_sample_with_its_three_moments(imported: Imported) -> None:
    def timestamps() -> Iterator[tuple[object, ...]]:
        for rank, one, transfer in imported.plain.transfers():
            ranks = imported.plain.ranks[rank]
            for step in transfer.steps.values():
                if step.stop:
                    reached = step.first({"SendWait" if transfer.start["send"] else "RecvFlushWait"})
                    times = (ranks.unix_ns(event["ts"]) for event in (step.start, reached, step.stop))
                    yield f"h{rank}", one.seq, transfer.start["ch"], step.start["step"], reached.get("arg", 0), *times

    names = ("host", "seq", "channel", "step", "bytes", "posted_ns", "wire_ns", "done_ns")
    told = Counter(tuple(row[name] for name in names) for row in imported.rows("step_samples"))
    assert told == Counter(timestamps())
    assert told


def test_statistics_add_up_to_the_rows(imported: Imported) -> None:
    timed = [row for row in imported.rows("collectives") if row["end_ns"] is not None]
    assert sum(row["n"] for row in imported.rows("op_stats")) == len(timed)
    assert sum(row["bytes"] for row in imported.rows("op_stats")) == sum(row["bytes"] for row in timed)
    moved = imported.rows("transfers")
    assert sum(row["n"] for row in imported.rows("transfer_stats")) == len(moved)
    assert sum(row["bytes"] for row in imported.rows("transfer_stats")) == sum(row["bytes"] for row in moved)


def test_communicators_are_those_of_the_headers(imported: Imported) -> None:
    plain = {
        (f"h{rank}", int(comm["id"], 16), comm["rank"], comm["nRanks"], comm["nNodes"], one.unix_ns(comm["ts_init"]))
        for rank, one in imported.plain.ranks.items()
        for comm in one.header["comms"]
        if comm["nRanks"] > 0
    }
    names = ("host", "comm", "rank", "nranks", "nnodes", "init_ns")
    assert {tuple(row[name] for name in names) for row in imported.rows("comms")} == plain
    assert {row["nccl_version"] for row in imported.rows("comms")} <= {imported.plain.about.get("nccl")}


def test_nothing_is_lost_and_the_capture_describes_itself(imported: Imported) -> None:
    kernels, sizeless = imported.losses.stale_kernels, imported.losses.sizeless
    assert imported.losses == Losses(stale_kernels=kernels, sizeless=sizeless)
    assert (sizeless > 0) == (imported.name == V1)  # NCCL 2.23 tells neither sizes nor the size of a communicator
    info, topology = imported.capture.info, imported.capture.topology
    assert info.job == imported.plain.about["run"]
    assert set(info.hosts) == {f"h{rank}" for rank in imported.plain.ranks}
    assert topology is not None
    assert {host.id for host in topology.hosts} == set(info.hosts)
    for row in imported.rows("collectives"):
        assert info.start_ns <= row["enqueue_ns"] < info.end_ns
        assert (row["start_ns"] is None) == (row["end_ns"] is None) == (row["clock"] == "none")
        if row["clock"] != "none":
            assert row["enqueue_ns"] - 100_000 <= row["start_ns"] <= row["end_ns"]


RIGHT = ("f_base.jsonl.xz", "K_a2a_graph_const_n232.jsonl.xz")


@pytest.mark.parametrize("name", long_except(RIGHT, (*RIGHT, "tree_healthy.jsonl.xz")))
def test_no_kernel_time_is_refused_where_all_are_right(name: str, importer: Importer) -> None:
    imported = importer(name)
    assert imported.losses.stale_kernels == 0
    timed = {(one.start["ts"], rank) for rank, one in imported.plain.operations if one.kernels}
    assert Counter(row["clock"] for row in imported.rows("collectives"))["gpu"] == len(timed)


def stale_kernels(plain: PlainTrace) -> int:
    """Return how many kernels began long before they were enqueued: both clocks are one in these traces."""
    count = 0
    for rank in plain.ranks.values():
        pairs = [(kernel, one) for one in rank.operations.values() for kernel in one.kernels]
        offset = min(kernel["ts"] - kernel["ptimer"] for kernel, _ in pairs)
        count += sum(kernel["ptimer"] + offset < one.start["ts"] - 200_000 for kernel, one in pairs)
    return count


@pytest.mark.slow  # another import of the same trace
def test_stale_times_are_refused_also_where_the_release_is_believed_to_be_right(
    plugin_library: Path, tmp_path: Path
) -> None:
    name = "K_a2a_const_n228.jsonl.xz"
    about, *others = read_lines(TRACES / name)
    write_lines(tmp_path / "t.jsonl", [about | {"nccl": "2.32.3"}, *others])
    losses = import_callbacks([tmp_path / "t.jsonl"], tmp_path / "c", plugin_library, lambda *_: None)
    assert losses.stale_kernels == stale_kernels(work_out(TRACES / name)) > 50


def latest(rows: list[Row]) -> dict[tuple[str, int], Row]:
    ordered = sorted(rows, key=lambda row: row["ts_ns"])
    return {(row["host"], row["comm"]): row for row in ordered}


def test_stopped_rank_is_the_one_that_does_not_take_what_has_arrived(importer: Importer) -> None:
    rows = latest(importer("h4_sigstop_r1_live.jsonl.xz").rows("progress"))
    states = {host: row["head_state"] for (host, _), row in rows.items()}
    assert states == {"h0": "recv_wait", "h1": "recv_gpu_wait", "h2": "recv_wait", "h3": "recv_wait"}
    assert {(row["enqueued"], row["done"], row["open_bytes"]) for row in rows.values()} == {(40, 39, 4 << 20)}


@pytest.mark.slow  # the longest trace
def test_rank_that_never_enqueued_is_behind_in_its_communicators(importer: Importer) -> None:
    imported = importer("hang_sigstop_r6_live.jsonl.xz")
    rows = latest(imported.rows("progress"))
    behind = set()
    for comm in {comm for _, comm in rows}:
        members = {host: row for (host, of), row in rows.items() if of == comm}
        most = max(row["enqueued"] for row in members.values())
        behind |= {host for host, row in members.items() if row["enqueued"] < most}
    assert behind == {"h6"}
    waiting = {host for (host, _), row in rows.items() if row["head_state"] == "recv_wait"}
    assert "h6" not in waiting
    assert len(waiting) >= 4
    assert imported.plain.about["snapshot_mono_ns"] > 0
    assert all(row["oldest_open_ns"] < row["ts_ns"] - 1_000_000_000 for row in rows.values() if row["open_bytes"])


def test_nic_of_line_1_is_on_transfers_and_connections(importer: Importer) -> None:
    imported = importer(DDP)
    assert {(row["nic"], row["transport"]) for row in imported.rows("transfers")} == {("eth0", "socket")}
    told = {(row["host"], row["direction"], row["nic"], row["source"]) for row in imported.rows("connections")}
    assert told == {(f"h{rank}", way, "eth0", "only_nic") for rank in range(4) for way in ("send", "recv")}
    assert imported.capture.info.layout is not None
    assert imported.capture.info.layout.dp == 4


@pytest.mark.parametrize("api", long_except([1], [1, 2, 3, 4, 6, 7]))
def test_every_version_of_the_interface_tells_the_same_operations(
    api: int, importer: Importer, plugin_library: Path, tmp_path: Path
) -> None:
    lines = read_lines(TRACES / "torch2.jsonl.xz")
    for line in lines:
        if "header" in line:
            line["header"]["api"] = api
    import_callbacks([write_lines(tmp_path / "t", lines)], tmp_path / "c", plugin_library, lambda *_: None)
    tables = read_capture(tmp_path / "c").tables
    recorded = importer("torch2.jsonl.xz").capture.tables
    lacking = ["start_ns", "end_ns", "clock", "channels"]  # before v4: no kernel times, no channels of a send
    keys = [(name, "ascending") for name in ("comm", "rank", "func", "peer", "seq")]  # nor in the order of their ends
    told, wanted = (each["collectives"].drop_columns(lacking).sort_by(keys) for each in (tables, recorded))
    assert told.equals(wanted)
    assert tables["transfers"].equals(recorded["transfers"])
