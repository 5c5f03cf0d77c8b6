"""Answers of NCCL's RAS become communicators and events, or one sentence that names the file."""

import json
from functools import partial

from importers.traces.ras import Answer, parse_ras
from importers.traces.readings import Reading
from tests.importers.traces.build import Told, refusal, sound

T0 = 1_700_000_000_000_000_000
HASH = "0xae94423cfbb2ef4a"

# Written after the forms that NCCL 2.24 to 2.30 print.
TEXT = """SERVER PROTOCOL 2
OK
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2       3-4         8         7   RUNNING  INCOMPLETE,MISMATCH

"""
DEAD = """Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 77 on node 10.0.0.2 managing GPU 5

"""
MISMATCH = """Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  5 ranks have launched up to operation 41
  2 ranks have launched up to operation 40
  Rank 0 -- GPU 0 (NVML 6) managed by process 11 on node 10.0.0.1
  Rank 2 has launched up to operation 39 -- GPUs 2,3 managed by process 12 on node 10.0.0.1
  Rank 3 -- [process information not found]

"""


def member(rank: int, **told: object) -> Told:
    whole: Told = {"rank": rank, "host": f"10.0.0.{rank}", "pid": 100 + rank, "cuda_dev": 0, "nvml_dev": rank}
    whole |= {"status": {"init_state": 0, "async_error": 0, "finalize_called": False}}
    return whole | {"collective_counts": {"Broadcast": 0, "AllReduce": 9}} | told


def status(*ranks: Told, missing: tuple[Told, ...] = (), size: int | None = None) -> Told:
    comm = {"hash": HASH, "secondary_hash": "0x1:0x2", "size": size or len(ranks) + len(missing)}
    comm |= {"ranks_count": len(ranks), "missing_ranks_count": len(missing), "ranks": ranks, "missing_ranks": missing}
    return {"nccl_version": "2.29.1", "timestamp": "2025-12-19 13:06:53", "communicators": [comm]}


def read(*answers: str) -> Reading:
    """Read answers saved a nanosecond after each other."""
    return sound(parse_ras([Answer(f"a{n}", text.encode(), T0 + n) for n, text in enumerate(answers)], "j"))


def events(*answers: str) -> list[Told]:
    return [dict(row) for row in read(*answers).rows.get("events", [])]


def test_every_rank_of_a_communicator_is_known_with_its_process_and_gpu() -> None:
    rows = read(json.dumps(status(member(0), member(3)))).tables()["comms"].to_pylist()
    assert [(row["comm"], row["rank"], row["host"], row["pid"], row["gpu"]) for row in rows] == [
        (int(HASH, 16), 0, "10.0.0.0", 100, 0),
        (int(HASH, 16), 3, "10.0.0.3", 103, 3),
    ]
    assert (rows[0]["nranks"], rows[0]["nnodes"], rows[0]["nccl_version"]) == (2, 2, "2.29.1")
    assert rows[0]["init_ns"] == T0
    assert read(json.dumps(status(member(0), size=4))).rows["comms"][0]["nnodes"] is None, "some are not even named"
    answer = json.dumps(status(member(0)))
    again = read(answer, "SERVER PROTOCOL 2\nOK\n" + answer)
    assert again.tables()["comms"]["init_ns"].to_pylist() == [T0], "known from the first answer that has it"


def test_rank_that_does_not_answer_is_behind_or_has_an_error_is_an_event_and_a_job_that_is_well_has_none() -> None:
    assert events(json.dumps(status(member(0), member(1)))) == events(TEXT) == []
    for dead, kind, severity, what in (
        (False, "missing", "error", "did not answer"),
        (True, "dead", "critical", "is considered dead"),
    ):
        silent = member(1, status={"unresponsive": True, "considered_dead": dead})
        del silent["collective_counts"]
        (event,) = events(json.dumps(status(member(0), missing=(silent,))))
        assert (event["host"], event["component"], event["ts_ns"]) == ("10.0.0.1", "gpu:10.0.0.1/1", T0)
        assert (event["source"], event["kind"], event["severity"]) == ("ras", kind, severity)
        assert event["message"] == f"rank 1 of communicator {HASH}, process 101, {what}"
    nameless = member(1, nvml_dev=-1, status={"unresponsive": True})  # its GPU has no number
    reading = read(json.dumps(status(member(0), missing=(nameless,))))
    assert (reading.rows["events"][0]["component"], reading.rows["comms"][1]["gpu"]) == ("host:10.0.0.1", None)
    busy = member(2, status={"init_state": 7, "async_error": 7})
    for odd, kind, severity, words in (
        (member(1, collective_counts={"AllReduce": 8}), "behind", "info", "has launched 8 AllReduce, others 9"),
        (member(1, status={"init_state": 0, "async_error": 6}), "error", "error", "has async_error 6"),
    ):
        (event,) = events(json.dumps(status(member(0), odd, busy)))
        assert (event["kind"], event["severity"], event["component"]) == (kind, severity, "gpu:10.0.0.1/1")
        assert event["message"].endswith(words)


def test_text_tells_of_dead_processes_and_of_outliers_and_counts_those_it_cannot_name() -> None:
    (event,) = events(TEXT + DEAD)
    assert (event["kind"], event["host"], event["component"]) == ("dead", "10.0.0.2", "gpu:10.0.0.2/5")
    assert event["message"] == (
        "DEAD: 1 job process is considered dead (unreachable via the RAS network): "
        "Process 77 on node 10.0.0.2 managing GPU 5"
    )
    reading = read(TEXT + MISMATCH)
    first, second = reading.rows["events"]
    assert (first["kind"], first["component"]) == ("outlier", "gpu:10.0.0.1/6")
    assert first["message"] == (
        "communicator 0x27a079b828ff1a75, MISMATCH: 2 ranks have launched up to operation 40: "
        "Rank 0 -- GPU 0 (NVML 6) managed by process 11 on node 10.0.0.1"
    )
    assert second["component"] == "host:10.0.0.1"
    assert "different AllReduce operation counts: Rank 2 has launched up to operation 39" in str(second["message"])
    assert reading.unread == {"lines were left out, because they name no process": 1}


def test_what_is_wrong_is_said_with_the_file_and_field() -> None:
    refused = {
        b"": "has no communicators, so that it is no whole answer of NCCL's RAS",
        TEXT[:200].encode(): "has no communicators",
        b"\xff": "byte 0 is not text",
        b'{"communicators": [': "is not JSON: ",
        b'{"event": "PEER_DEAD"}': "communicators: Field required",
        json.dumps(status(member(-1))).encode(): "communicators.0.ranks.0.rank: ",
        json.dumps(status(member(1, host="a/b"))).encode(): "communicators.0.ranks.0.host: ",
    }
    for data, sentence in refused.items():
        assert refusal(partial(parse_ras, [Answer("a.txt", data, T0)], "j")).startswith(f"a.txt: {sentence}")
