"""A rank that records through the real plugin is found, checked, folded, and let go when it ends."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from collector.nccl.budget import CROWDED_S, PERIOD_S, WHOLE_SHARE, Budget, lot_of
from collector.nccl.progress import FLOOR_NS
from collector.nccl.ringfile import open_ring
from collector.sources.nccl_rings import NcclRingsSource
from lockstep import wire
from lockstep.arrow import schema_of
from lockstep.batches import DetailRequest
from lockstep.errors import NotPresent
from lockstep.tables import TABLE_BY_NAME
from tests.collector.nccl.readings import Array
from tests.collector.sources.imitated_rings import USUAL, Follower, do_more, make_root, recording
from tests.tiers import long_except
from tests.waiting import eventually

RANK = {"LOCKSTEP_JOB": "job 7", "RANK": "3", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,5"}
FOREVER_NS = 1 << 62
UNLIMITED = Budget(1 << 30, 1 << 40)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rings").mkdir()
    return tmp_path / "rings"


@contextmanager
def following(folder: Path, **options: object) -> Iterator[Follower]:
    with closing(NcclRingsSource("h0", directories=(folder,), **options)) as source:  # type: ignore[arg-type]  # any
        yield Follower(source)


def request(kind: str, name: str = "w", **details: object) -> DetailRequest:
    return DetailRequest(id=name, host="h0", kind=kind, details={"job": "job 7"} | details, expires_ns=FOREVER_NS)


def count_ended(follower: Follower) -> int:
    """Return how many operations are known to have ended: all but one that a kill came upon."""
    return sum(row["end_ns"] is not None for row in follower.rows["collectives"])


def test_live_rank_is_folded_and_its_rows_carry_what_the_kernel_says_until_it_is_dead_and_drained(
    folder: Path, plugin_library: Path
) -> None:
    with (
        following(folder) as follower,
        recording(plugin_library, folder, **RANK, TORCHELASTIC_RESTART_COUNT="2", LOCAL_WORLD_SIZE="2") as job,
    ):
        eventually(lambda: follower.has("op_stats") and follower.rows.get("transfers"))
        follower.skip(1)
        tables = follower.read()
        (comm,) = follower.rows["comms"]
        assert (comm["host"], comm["job"], comm["attempt"], comm["pid"]) == ("h0", "job 7", 2, job.pid)
        assert (comm["gpu"], comm["world_rank"]) == (5, 3)
        assert {row["host"] for rows in follower.rows.values() for row in rows} == {"h0"}
        assert all(table.schema == schema_of(TABLE_BY_NAME[name]) for name, table in tables.items())
        assert follower.cost_ns is not None
        eventually(lambda: follower.has("comms") and follower.paid_ns > 0)
        plugin = follower.rows["plugins"][0]
        assert (plugin["job"], plugin["pid"], plugin["world_rank"], plugin["local_ranks"]) == ("job 7", job.pid, 3, 2)
        told = (plugin["level"], plugin["lowered"], plugin["paid_ppm"], plugin["lost"])
        assert told == ("transfers", "no", None, 0)
        assert follower.refusals() == []
        progress = follower.rows["progress"][-1]
        assert (progress["func"], progress["rank"]) == ("AllReduce", 0)
        assert progress["enqueued"] >= progress["done"] > 0
        (ring,) = folder.glob("*.ring")
        job.kill()
        job.wait()
        follower.skip(1)
        follower.read()
        assert follower.source._processes == []
        assert ring.exists()
        assert follower.cost_ns is not None
        follower.skip(61)
        follower.read()
        assert not ring.exists()
        assert follower.cost_ns is None
        assert follower.refusals() == []


@pytest.mark.slow
def test_rank_that_stands_still_is_looked_at_ten_times_a_second(folder: Path, plugin_library: Path) -> None:
    with following(folder) as follower, recording(plugin_library, folder, **RANK) as job:
        eventually(lambda: follower.has("op_stats"))
        assert follower.source.period_s in (CROWDED_S, PERIOD_S)
        _stop_inside_an_operation(job.pid, folder)
        follower.skip(2 + FLOOR_NS / 1e9)
        follower.read()
        assert follower.source.period_s == 0.1
        before = len(follower.rows["progress"])
        follower.skip(0.1)
        assert set(follower.read()) == {"progress"}
        assert len(follower.rows["progress"]) == before + 1
        assert follower.rows["progress"][-1]["oldest_open_ns"] is not None
        follower.skip(20)  # nothing new is seen by looking so often
        now_ns = follower.now_ns()
        follower.read()
        assert follower.source.period_s in (CROWDED_S, PERIOD_S)
        assert follower.watermark_ns >= now_ns - 3 * 10**9  # what hangs does not hold it
        os.kill(job.pid, signal.SIGCONT)


def _stop_inside_an_operation(pid: int, folder: Path) -> None:
    """Stop the process at a moment at which an operation has a part under way."""
    os.kill(pid, signal.SIGUSR1)
    eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    (path,) = folder.glob("*.ring")
    with open_ring(path) as ring:
        assert (ring.live().operations["open"] > 0).any()


def test_detail_is_raised_while_it_is_requested_and_put_back(folder: Path, plugin_library: Path) -> None:
    with following(folder) as follower, recording(plugin_library, folder, **RANK):
        eventually(lambda: follower.has("comms"))
        (path,) = folder.glob("*.ring")
        with open_ring(path) as ring:
            before = int(ring.status()["level"]), int(ring.status()["share"])

            def is_in_force(level: int, share: int, *requests: DetailRequest) -> bool:
                follower.skip(1)
                follower.read(*requests)
                return (int(ring.status()["level"]), int(ring.status()["share"])) == (level, share)

            raised = request("detail", level="steps", share=1.0, ranks=[3])
            others = request("detail", level="steps", share=1.0, ranks=[4])
            eventually(lambda: is_in_force(wire.STEPS, WHOLE_SHARE, raised))
            eventually(lambda: bool(follower.has("step_samples")) or is_in_force(0, 0, raised))
            eventually(lambda: is_in_force(*before, others))
        assert before[0] == wire.TRANSFERS


def test_job_that_pays_too_much_records_less_for_good_unless_somebody_asks_for_more(
    folder: Path, plugin_library: Path
) -> None:
    def lower(attempt: int) -> DetailRequest:
        return request("lower", level="operations", attempt=attempt)

    with following(folder) as follower, recording(plugin_library, folder, **RANK):
        eventually(lambda: follower.has("comms"))
        follower.has("plugins")

        def is_told(level: str, lowered: str, *requests: DetailRequest) -> bool:
            follower.skip(1)
            follower.read(*requests)
            told = follower.rows["plugins"][-1]
            return (told["level"], told["lowered"]) == (level, lowered)

        assert is_told("transfers", "no", lower(attempt=1)), "another attempt is meant"
        eventually(lambda: is_told("operations", "job", lower(attempt=0)))
        assert is_told("operations", "job")
        eventually(lambda: is_told("steps", "no", request("detail", level="steps")))
        eventually(lambda: is_told("operations", "job"))
        told = len(follower.rows["plugins"])
        assert is_told("operations", "job")
        assert len(follower.rows["plugins"]) == told, "what has not changed is told every ten seconds"


def test_rank_with_few_operations_is_sampled_more_often_and_left_as_it_was(
    folder: Path, plugin_library: Path
) -> None:
    def share_of() -> int:
        with open_ring(path) as ring:
            return int(ring.status()["share"])

    for sampled, expected in ({}, WHOLE_SHARE // 2), ({"LOCKSTEP_SAMPLE": "0.02"}, 1_310):
        with recording(plugin_library, folder, count="50", **RANK, LOCKSTEP_DETAIL="steps", **sampled) as job:
            (path,) = folder.glob("*.ring")
            usual = share_of()
            with following(folder) as follower:
                for _ in range(3):
                    follower.read()
                    follower.skip(10)
                    do_more(job)  # five in a second
                assert share_of() == expected
            do_more(job)
            assert share_of() == usual
        path.unlink()


def test_rows_beyond_the_budget_are_only_counted_and_the_last_minutes_bring_them_and_nothing_twice(
    folder: Path, plugin_library: Path
) -> None:
    with (
        following(folder, budget=Budget(rows=100)) as follower,
        recording(plugin_library, folder, count="500", **RANK) as job,
    ):
        follower.read()
        for _ in range(3):  # in all they fit into the ring
            do_more(job)
            follower.has("op_stats")
        job.kill()
        job.wait()
        for _ in range(6):
            follower.has("op_stats")
        kept, counted = len(follower.rows["collectives"]), sum(row["n"] for row in follower.rows["op_stats"])
        assert 0 < kept < counted / 4
        moved = {row["seq"] for row in follower.rows["transfers"]}
        assert moved >= {row["seq"] for row in follower.rows["collectives"]}
        wanted = [request("last_minutes", minutes=10, ranks=[3])]
        wanted += [request("last_minutes", name, minutes=minutes) for name, minutes in (("again", 10), ("x", 11))]
        for _ in range(80):
            follower.skip(1)
            follower.read(*wanted)
    numbers = [row["seq"] for row in follower.rows["collectives"]]
    assert len(numbers) == len(set(numbers)) == counted
    parts = [(row["seq"], row["channel"], row["peer"]) for row in follower.rows["transfers"]]
    assert len(parts) == len(set(parts))
    assert len(parts) > counted * 0.95


@pytest.mark.parametrize("ranks", long_except([2], [1, 2]))
def test_killed_collector_goes_on_where_it_was(folder: Path, plugin_library: Path, ranks: int) -> None:
    with ExitStack() as stack:
        jobs = [stack.enter_context(recording(plugin_library, folder, **RANK)) for _ in range(ranks)]
        first = Follower(NcclRingsSource("h0", directories=(folder,), budget=UNLIMITED))
        eventually(lambda: first.has("collectives") and len(first.rows["collectives"]) > 300 * ranks)
        assert first.checkpoint is not None
        second = Follower(NcclRingsSource("h0", directories=(folder,), budget=UNLIMITED))
        second.skipped_ns = first.skipped_ns
        second.source.resume(first.checkpoint)
        for job in jobs:
            job.kill()  # also its process is gone, and with it what the kernel knew
            job.wait()
        for _ in range(6):
            second.has("op_stats")
    both = (first, second)
    done = Counter(row["seq"] for each in both for row in each.rows["collectives"])
    assert sorted(done) == list(range(len(done)))
    assert [done[seq] for seq in sorted(done)] == sorted(done.values(), reverse=True), "a rank has a gap"
    assert max(done.values()) == ranks
    assert max(Counter(row["seq"] for each in both for row in each.rows["transfers"]).values()) == ranks
    counts = [row["n"] for each in both for row in each.rows.get("op_stats", [])]
    assert sum(counts) == count_ended(first) + count_ended(second)
    assert second.refusals() == []
    assert second.dropped == 0
    for each in both:
        each.source.close()


def test_collector_that_was_away_catches_up_reading_by_reading_and_loses_nothing(
    folder: Path, plugin_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collector.sources.nccl_rings.MOST_RECORDS", 1_000)
    with (
        recording(plugin_library, folder, count="1500", LOCKSTEP_RING_MIB="16", **RANK) as job,
        following(folder, budget=UNLIMITED) as follower,
    ):
        follower.read()
        do_more(job)
        watermarks, periods_s = [], []
        for _ in range(12):
            follower.has("collectives")
            watermarks.append(follower.watermark_ns)
            periods_s.append(follower.source.period_s)
    assert (periods_s[0], periods_s[-1]) == (CROWDED_S, PERIOD_S)
    assert sorted(row["seq"] for row in follower.rows["collectives"]) == list(range(1_500))
    assert sum(row["n"] for row in follower.rows["op_stats"]) == 1_500
    assert sum(row["late_n"] for row in follower.rows["op_stats"]) == 0
    assert len(follower.rows["transfers"]) == sum(row["n"] for row in follower.rows["transfer_stats"])
    assert (follower.dropped, watermarks) == (0, sorted(watermarks))


def test_file_that_cannot_be_learnt_again_is_refused_and_the_source_goes_on(
    folder: Path, plugin_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stumble = Mock(side_effect=OverflowError("a number that no writer writes"))
    with recording(plugin_library, folder, **RANK), following(folder) as first, following(folder) as second:
        eventually(lambda: first.has("collectives"))
        second.source.resume(first.checkpoint or b"")
        monkeypatch.setattr("collector.nccl.processes.FollowedProcess.resume", stumble)
        second.read()
        second.skip(1)
        second.read()
    assert second.refusals() == ["a number that no writer writes"]


def test_process_that_cannot_be_folded_with_the_others_is_refused_and_they_lose_nothing(
    folder: Path, plugin_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(known: Array) -> Array:
        if (wire.tag_of(known["handle"]) == tag).any():
            raise OverflowError("a number that no writer writes")
        return lot_of(known)

    with (
        following(folder, budget=UNLIMITED) as follower,
        recording(plugin_library, folder, **RANK),
        recording(plugin_library, folder, **RANK | {"LOCKSTEP_JOB": "job 8"}) as other,
    ):
        eventually(lambda: follower.has("op_stats") and len({row["job"] for row in follower.rows["op_stats"]}) == 2)
        with ExitStack() as stack:
            rings = [stack.enter_context(open_ring(path)) for path in folder.glob("*.ring")]
            (tag,) = [ring.identity.tag for ring in rings if ring.identity.job == "job 7"]
        monkeypatch.setattr("collector.nccl.host_aggregator.lot_of", stumble)
        with pytest.raises(OverflowError):
            eventually(lambda: follower.has("nothing"))  # until job 7 has done more
        for _ in range(5):
            follower.has("op_stats")
        other.kill()
        other.wait()
        for _ in range(5):
            follower.has("op_stats")
    assert follower.refusals() == ["a number that no writer writes"]
    assert follower.dropped == 0
    done = [row["seq"] for row in follower.rows["collectives"] if row["job"] == "job 8"]
    assert sorted(done) == list(range(len(done)))
    ended = sum(row["end_ns"] is not None for row in follower.rows["collectives"] if row["job"] == "job 8")
    assert sum(row["n"] for row in follower.rows["op_stats"] if row["job"] == "job 8") == ended


def test_host_without_jobs_has_nothing_to_report_whatever_its_checkpoint_and_one_without_processes_is_not_present(
    tmp_path: Path, folder: Path
) -> None:
    with closing(NcclRingsSource("h0", tmp_path)) as source, pytest.raises(NotPresent):
        source.read(0, ())
    make_root(tmp_path)
    with closing(NcclRingsSource("h0", tmp_path, (USUAL,))) as source:
        reading = source.read(10**18, ())
    assert (reading.tables, reading.dropped, reading.plugin_cost_ns) == ({}, 0, None)
    for content in (b"", b"{}", b"[1]", b'{"version":1,"since_ns":0,"share":1,"files":[{}]}', b"\xff"):
        with following(folder) as follower:
            follower.source.resume(content)
            assert follower.read() == {}
            assert json.loads(follower.checkpoint or b"")["files"] == []
