"""One evaluation from rows to findings: dumps of real jobs, recordings of real NCCL, large jobs, and nonsense."""

import ast
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.hang.facts import HangMemory, HangOptions
from analyzer.hang.hangs import find_hangs
from analyzer.windows.window import Finding
from importers.traces.flight_recorder import parse_flight_recorder
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from tests.analyzer.hang.build import Job, line, reported, world
from tests.analyzer.hang.stored import find
from tests.builders import SECOND, T0

Told = dict[str, Any]  # Any: what a dump holds


def test_evaluation_before_knows_when_it_began_until_the_job_moves() -> None:
    job, early = Job(lines=world(r2=line(2, (4, 4, 4)))), T0 - 40 * SECOND
    (finding,), memory = find_hangs(job.progress, HangMemory(early), job.context, HangOptions())
    assert (finding.since_ns, memory.since_ns) == (early, early)
    assert "for 40 s" in finding.reason
    job = Job(lines=[line(rank, (5, 5, 4), since_ns=T0) for rank in range(4)])
    assert find_hangs(job.progress, HangMemory(T0), job.context, HangOptions()) == ([], HangMemory())
    job = Job(lines=[])
    assert find_hangs(job.progress, HangMemory(5), job.context, HangOptions()) == ([], HangMemory(5))


def test_job_of_which_nothing_is_heard_any_more_still_stands_for_the_same_reason() -> None:
    job = Job(lines=world(r2=line(2, (4, 4, 4))))
    found, memory = find_hangs(job.progress, HangMemory(), job.context, HangOptions())
    for lines in ([], [line(0, (5, 5, 4), since_ns=T0)]):
        left = Job(lines=lines)
        assert find_hangs(left.progress, memory, left.context, HangOptions()) == (found, memory)
    assert found


def test_few_rows_of_a_collector_are_no_recording() -> None:
    lines = [line(rank, (4, 4, 4) if rank == 2 else (5, 5, 4), since_ns=T0 - 3 * SECOND) for rank in range(4)]
    assert Job(lines=lines, facts={"interval_ns": 0}).find()
    assert Job(lines=lines, facts={"interval_ns": 0, "reports": reported(h0=0, h1=0)}).find() == []


def test_ranks_are_blamed_by_what_they_do_whatever_their_names_and_number() -> None:
    for absent in range(4):
        lines = [line(rank, (4, 4, 4) if rank == absent else (5, 5, 4)) for rank in reversed(range(4))]
        (finding,) = Job(lines=lines).find()
        assert (finding.component, finding.evidence[0]["ranks"]) == (f"host:h{absent // 2}", [absent])
    lines = [line(rank, (4, 4, 4) if rank == 2 else (5, 5, 4)) for rank in range(64)]
    assert [finding.component for finding in Job(ranks=64, lines=lines).find()] == ["host:h1"]
    lines = [line(0, (5, 5, 4)), *(line(rank, (4, 4, 4)) for rank in range(1, 4))]
    assert Job(lines=lines).find() == []


def test_garbage_gives_an_answer_and_no_crash() -> None:
    chance = np.random.default_rng(seed := 20260101)
    for _ in range(200):
        lines = [
            line(int(rank), tuple(chance.integers(0, 4, 3).tolist()), func=func, peer=int(peer), state=state)
            for rank, func, peer, state in zip(
                chance.integers(0, 4, 9),
                chance.choice(["AllReduce", "Send", "Recv", ""], 9).tolist(),
                chance.integers(-1, 5, 9),
                chance.choice(["wire", "recv_wait", "unknown", "recv_gpu_wait"], 9).tolist(),
                strict=True,
            )
        ]
        facts = {"is_dump": bool(chance.integers(2))}
        for finding in Job(comms={9: [0, 3]}, lines=lines, facts=facts).find():
            assert 0 < finding.likelihood <= 1, f"seed {seed}"


def dumps(ranks: int, absent: set[int]) -> dict[str, bytes]:
    """Dumps of a job in tensor groups of 8 and data groups across them; some ranks never enqueued the next."""
    groups = {str(1 + first // 8): list(range(first, first + 8)) for first in range(0, ranks, 8)}
    groups |= {str(10**6 + column): list(range(column, ranks, 8)) for column in range(8)}
    config = {name: {"name": name, "desc": "", "ranks": json.dumps(members)} for name, members in groups.items()}
    return {f"rank_{rank}": _dump(rank, config, rank in absent) for rank in range(ranks)}


def _dump(rank: int, config: Told, is_absent: bool) -> bytes:
    mine = {str(1 + rank // 8): 40, str(10**6 + rank % 8): 20}
    status = {
        str(index): {"last_enqueued_collective": done + (not is_absent), "last_started_collective": -1}
        | {"last_completed_collective": done}
        for index, done in enumerate(mine.values())
    }
    told: Told = {"version": "2.9", "pg_config": {name: config[name] for name in mine}, "pg_status": status}
    return json.dumps(
        told | {"entries": [_entry(index, name, done) for index, (name, done) in enumerate(mine.items())]}
    ).encode()


def _entry(index: int, name: str, done: int) -> Told:
    told: Told = {"pg_id": index, "process_group": [name, ""], "collective_seq_id": done, "p2p_seq_id": 0}
    told |= {"is_p2p": False, "profiling_name": "nccl:all_reduce", "time_created_ns": T0, "state": "completed"}
    return told | {"input_sizes": [[8]], "input_dtypes": ["Float"], "output_sizes": [[8]], "output_dtypes": ["Float"]}


def find_in_dumps(store: Store, files: dict[str, bytes]) -> list[Finding]:
    tables = parse_flight_recorder(files, "j1").tables()
    for name, rows in tables.items():
        store.insert(TABLE_BY_NAME[name], rows, token=f"dump/{name}")
    return find(store, max(tables["progress"]["ts_ns"].to_pylist()), period_ns=None)


def test_ranks_that_dumps_show_behind_are_found_among_a_thousand(embedded_store: Store) -> None:
    findings = find_in_dumps(embedded_store, dumps(1024, {100, 777}))
    assert {finding.component for finding in findings} == {"host:rank-100", "host:rank-777"}
    assert sorted(finding.evidence[0]["ranks"] for finding in findings) == [[100], [777]]
    assert "1022 ranks wait in at the time of the dump" in findings[0].reason


def test_rank_that_a_dump_shows_frozen_is_named_though_its_host_enqueued_what_others_wait_for() -> None:
    lines = [line(rank, (8, 6, 6)) for rank in range(4)]
    lines[2] = line(2, (8, 4, 4))  # it has ended 5 and 6 without knowing: nobody else could have ended 6
    (finding,) = Job(lines=lines, facts={"is_dump": True}).find()
    assert (finding.component, finding.evidence[0]["ranks"]) == ("host:h1", [2])
    assert "rank 2 on h1 still has an operation open that others ended" in finding.reason
    lines[1] = line(1, (6, 6, 6))  # never enqueued number 7
    found = Job(lines=lines, facts={"is_dump": True}).find()
    assert [rank for finding in found for rank in finding.evidence[0]["ranks"]] == [1, 2]


@pytest.mark.parametrize("case", ["gpu_error_2nd", "lock_gil_1st"])
def test_ranks_that_broke_a_real_job_are_found_in_its_dumps(embedded_store: Store, case: str) -> None:
    folder = os.environ.get("LOCKSTEP_PUBLIC_DATA")
    if not folder:
        pytest.skip("needs LOCKSTEP_PUBLIC_DATA, the folder of third-party data")
    files = {path.name: path.read_bytes() for path in (Path(folder) / "fr_nvrx" / case).iterdir()}
    label = (Path(folder) / "fr_nvrx" / "labels" / f"{case}.fault_injection.log").read_text().splitlines()[0]
    found = [rank for finding in find_in_dumps(embedded_store, files) for rank in finding.evidence[0]["ranks"]]
    assert sorted(found) == ast.literal_eval(label.partition(": ")[2])
