"""Dumps of PyTorch's Flight Recorder become rows, or one sentence, and never run code."""

import ast
import json
import os
import pickle
import random
from pathlib import Path

import pytest

from importers.traces.flight_recorder import parse_flight_recorder
from importers.traces.readings import Reading
from lockstep.errors import BadInput
from tests.importers.traces.build import Told, refusal, sound

pytestmark = pytest.mark.usefixtures("tried_here")

T0 = 1_700_000_000_000_000_000


def entry(**told: object) -> Told:
    """A finished all-reduce of 4 KiB in the process group of all ranks."""
    whole: Told = {"record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 7}
    whole |= {"p2p_seq_id": 0, "op_id": 7, "is_p2p": False, "profiling_name": "nccl:all_reduce"}
    whole |= {"time_created_ns": T0, "input_sizes": [[32, 32]], "input_dtypes": ["Float"], "state": "completed"}
    whole |= {"output_sizes": [[32, 32]], "output_dtypes": ["Float"], "retired": True, "timeout_ms": 600_000}
    return whole | told


def dump(*entries: Told, **told: object) -> Told:
    """A dump of any of four ranks."""
    group = {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}
    status = {"last_enqueued_collective": 7, "last_started_collective": -1, "last_completed_collective": 7}
    whole: Told = {"version": "2.9", "nccl_version": "2.27.3", "pg_config": {"0": group}, "pg_status": {"0": status}}
    return whole | {"entries": list(entries)} | told


def read(*dumps: Told) -> Reading:
    """Read dumps of the ranks 0, 1 and so on."""
    files = {f"trace_rank_{rank}": pickle.dumps(told, protocol=2) for rank, told in enumerate(dumps)}
    return sound(parse_flight_recorder(files, "j"))


def first(reading: Reading, table: str) -> Told:
    row: Told = reading.tables()[table].to_pylist()[0]
    return row


def refused(data: bytes, name: str = "trace_rank_0") -> str:
    return refusal(lambda: parse_flight_recorder({name: data}, "j"))


def test_finished_operation_has_its_number_and_size_and_no_time_that_only_a_watchdog_noticed() -> None:
    noticed = {"time_discovered_started_ns": T0 + 5, "time_discovered_completed_ns": T0 + 9}
    reading = read(dump(entry(**noticed)))
    row, comm = first(reading, "collectives"), first(reading, "comms")
    assert (row["func"], row["seq"], row["seq_valid"], row["bytes"]) == ("AllReduce", 7, True, 4096)
    assert (row["dtype"], row["enqueue_ns"]) == ("ncclFloat32", T0)
    assert (row["start_ns"], row["end_ns"], row["clock"]) == (None, None, "none")
    assert (row["channels"], row["algo"], row["proto"]) == (None, "", "")
    assert {comm[name] for name in ("gpu_pci", "gpu_uuid", "destroy_ns", "gpu", "pid", "nnodes")} == {None}


def test_operations_are_counted_as_nccl_counts_them_and_those_of_unknown_size_or_number_are_left_out() -> None:
    for word, inputs, outputs, func, size in (
        ("nccl:_all_gather_base", [[8]], [[32]], "AllGather", 32),
        ("nccl:_reduce_scatter_base", [[32]], [[8]], "ReduceScatter", 32),
        ("nccl:all_to_all", [[8], [4]], [[8], [4]], "AlltoAll", 48),
        ("nccl:brand_new", [[2]], [[2]], "brand_new", 8),
    ):
        told = entry(profiling_name=word, input_sizes=inputs, output_sizes=outputs)
        row = first(read(dump(told)), "collectives")
        assert (row["func"], row["bytes"]) == (func, size)
    row = first(read(dump(entry(profiling_name="nccl:send 0->3", is_p2p=True, p2p_seq_id=12))), "collectives")
    assert (row["func"], row["peer"], row["seq"], row["seq_valid"]) == ("Send", 3, 12, False)
    unknown: list[Told] = [{"input_sizes": []}, {"input_dtypes": ["Quaternion"]}, {"input_sizes": [[-1]]}]
    for sizes in unknown:
        reading = read(dump(entry(**sizes)))
        assert "collectives" not in reading.rows
        assert reading.unread == {"operations were left out, because nobody can say how much they moved": 1}
    reading = read(dump(entry(), entry()))  # coalesced
    assert reading.tables()["collectives"].num_rows == 1
    assert reading.unread == {"operations were left out, because others of the same group have their number": 1}


def test_operation_that_has_not_ended_is_progress_and_not_a_finished_operation() -> None:
    status = {"last_enqueued_collective": 9, "last_started_collective": -1, "last_completed_collective": 7}
    waiting = [entry(collective_seq_id=n, state="scheduled", time_created_ns=T0 + n) for n in (9, 8)]
    reading = read(dump(entry(), *waiting, pg_status={"0": status}))
    row = first(reading, "progress")
    assert (row["enqueued"], row["started"], row["done"]) == (9, 7, 7)
    assert (row["oldest_open_ns"], row["open_bytes"], row["open_dtype"]) == (T0 + 8, 4096, "ncclFloat32")
    assert (row["head_state"], row["head_peer"], row["ts_ns"]) == ("unknown", None, T0 + 9)
    assert reading.tables()["collectives"]["seq"].to_pylist() == [7]
    assert list(reading.unread.values()) == [2]
    begun = entry(collective_seq_id=8, state="started")  # where nobody asked for timing
    row = first(read(dump(begun, pg_status={"0": status})), "progress")
    assert (row["enqueued"], row["started"], row["done"]) == (9, 8, 7)
    rows = read(dump(entry(time_created_ns=T0 + 4)), dump()).tables()["progress"].to_pylist()
    assert [(row["rank"], row["ts_ns"], row["head_state"]) for row in rows] == [(n, T0 + 4, "idle") for n in (0, 1)]


def groups_of(*names: str) -> Told:
    return {name: {"name": name, "desc": f"group {name}", "ranks": "[0, 1]"} for name in names}


def statuses_of(**enqueued: int) -> Told:
    others = {"last_started_collective": -1, "last_completed_collective": 0}
    return {number.strip("_"): {"last_enqueued_collective": count} | others for number, count in enqueued.items()}


def test_counts_belong_to_the_group_that_entries_or_their_order_tell_and_else_are_left_out() -> None:
    def told(group: str, names: tuple[str, ...], **enqueued: int) -> Reading:
        one = entry(pg_id=5, process_group=(group, f"group {group}"))
        return read(dump(one, pg_config=groups_of(*names), pg_status=statuses_of(**enqueued)))

    tables = told("72", ("0", "72", "108"), _0=1, _5=2, _16=3).tables()
    names = {row["comm"]: row["name"] for row in tables["comms"].to_pylist()}
    counts = {names[row["comm"]]: row["enqueued"] for row in tables["progress"].to_pylist()}
    assert counts == {"group 0": 1, "group 72": 2, "group 108": 3}
    reading = told("72", ("0", "72", "108"), _5=2, _16=3)
    assert reading.tables()["progress"]["enqueued"].to_pylist() == [2]
    assert reading.unread == {"counts were left out, because nothing tells which process group they are of": 1}
    reading = told("108", ("72", "108"), _5=2, _16=3)  # which contradicts the order
    assert reading.tables()["progress"]["enqueued"].to_pylist() == [2]


def test_json_tells_the_same_as_a_pickle_and_leaves_entries_out_where_there_are_none() -> None:
    whole = dump(entry(time_discovered_started_ns=0, time_discovered_completed_ns=T0))
    as_json = parse_flight_recorder({"trace_rank_0.json": json.dumps(whole).encode()}, "j")
    assert as_json.tables() == read(whole).tables()
    silent = {name: value for name, value in dump().items() if name != "entries"}
    files = {"r0": json.dumps(dump(entry())).encode(), "r1": json.dumps(silent).encode()}
    assert parse_flight_recorder(files, "j").tables()["progress"].num_rows == 2


class Hostile:
    """An object that makes a directory wherever somebody unpickles it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    bomb = pickle.dumps(dump(entry(), extra=Hostile(tmp_path / "ran")), protocol=protocol)
    assert refused(bomb) == (
        f"trace_rank_0: cannot be read as a pickle: asks for {os.mkdir.__module__}.mkdir, and only plain data is read"
    )
    assert not (tmp_path / "ran").exists()
    pickle.loads(bomb)
    assert (tmp_path / "ran").exists(), "the pickle was harmless, and the test proves nothing"


def test_damaged_pickle_is_one_sentence_wherever_it_is_damaged() -> None:
    """In this process: hundreds of children take a minute, and tests/lockstep/test_hostile_files.py has them."""
    whole, seed = pickle.dumps(dump(entry(), entry(state="started")), protocol=2), 20260815
    print("seed", seed)
    choose, sentences = random.Random(seed), []
    for _ in range(500):
        damaged = bytearray(whole)
        damaged[choose.randrange(len(whole))] = choose.randrange(256)
        try:
            parse_flight_recorder({"rank_0": bytes(damaged)}, "j").tables()
        except BadInput as error:
            sentences.append(str(error))
    assert len(sentences) > 100
    assert [said for said in sentences if not said.startswith("rank_0: ") or "\n" in said] == []


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ([1], "trace_rank_0: Input should be a valid dictionary"),
        (dump(version="3.0"), "trace_rank_0: version: String should match"),
        (dump(entry(), entry(state="odd")), "trace_rank_0: entries.1.state: Input should be 'scheduled'"),
        (dump(entry(time_created_ns=-1)), "trace_rank_0: entries.0.time_created_ns: "),
        (dump(entry(process_group=("9", ""))), "trace_rank_0: entries.0: rank 0 is not in process group '9'"),
        (dump(entry(profiling_name="\ud800")), "trace_rank_0: entries.0.profiling_name: Value error, "),
        (dump(pg_config={"0": {"name": "0", "ranks": "[1,"}}), "trace_rank_0: pg_config.0.ranks: "),
        (dump(pg_config={"0": {"name": "0", "ranks": [1]}}), "trace_rank_0: pg_config: no process group has rank 0"),
        (dump(), "trace_rank_0: no dump has an entry"),
        *(
            (dump(entry(), pg_config={"0": group}), "trace_rank_0: pg_config.0")
            for group in ({"name": ["0"], "ranks": "[0]"}, {"name": "0", "ranks": {}}, "0", None)
        ),
    ],
)
def test_what_is_wrong_is_said_with_file_and_field(told: object, sentence: str) -> None:
    assert refused(pickle.dumps(told)).startswith(sentence)


def test_files_that_are_no_dumps_or_of_one_rank_are_refused() -> None:
    for length in (0, 1, 100):
        cut = refused(pickle.dumps(dump(entry()))[:length])
        assert cut.startswith("trace_rank_0: cannot be read as a pickle: ")
    assert refused(b'{"version": ').startswith("trace_rank_0: is not JSON: ")
    assert refused(b"", "trace").startswith("trace: the name does not end in the number of a rank")
    data = pickle.dumps(dump(entry()))
    twice = refusal(lambda: parse_flight_recorder({"a/rank_1": data, "b/rank_1": data}, "j"))
    assert twice == "b/rank_1: is of rank 1, and so is a/rank_1"
    wrong = pickle.dumps(dump(entry(), pg_config={"0": {"name": "0", "ranks": "[-1]"}}))
    both = refusal(lambda: parse_flight_recorder({"rank_0": wrong, "rank_1": wrong}, "j"))
    assert both.startswith("rank_0: pg_config.0.ranks.0: ")


def send(**told: object) -> Told:
    return entry(is_p2p=True, p2p_seq_id=7, profiling_name="nccl:send 0->1", state="scheduled", **told)


def test_counts_of_sends_are_told_only_between_two_ranks_that_do_nothing_else() -> None:
    reading = read(dump(send()), dump())
    assert "progress" not in reading.tables(), "every rank counts its own"
    words = "counts were left out, because each rank counts other sends and receives"
    assert reading.unread[words] == 2, "of the rank that sent nothing too: its count is of something else"
    pair = {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}}
    assert read(dump(send(), pg_config=pair), dump(pg_config=pair)).tables()["progress"].num_rows == 2
    mixed = read(dump(send(), entry(), pg_config=pair), dump(pg_config=pair))
    assert "progress" not in mixed.tables(), "collectives and sends share the place of their counts"


def test_groups_are_told_apart_although_ranks_share_what_they_tell_alike() -> None:
    first = {"0": {"name": "0", "desc": "all", "ranks": "[0, 1]"}, "1": {"name": "1", "desc": "", "ranks": "[0]"}}
    second = {"0": {"name": "0", "desc": "all", "ranks": "[0, 1]"}, "1": {"name": "1", "ranks": "[1]"}}
    third = {"0": {"name": "0", "desc": "other", "ranks": "[0, 1, 2]"}, "1": {"name": "1", "ranks": [2, 1, 1]}}
    reading = read(*(dump(entry(), pg_config=config) for config in (first, second, third)))
    rows = reading.tables()["comms"].to_pylist()
    assert [(row["host"], row["name"], row["world_rank"], row["rank"], row["nranks"]) for row in rows] == [
        *[("rank-0", "all", 0, 0, 2), ("rank-0", "1", 0, 0, 1)],
        *[("rank-1", "all", 1, 1, 2), ("rank-1", "1", 1, 0, 1)],
        *[("rank-2", "other", 2, 2, 3), ("rank-2", "1", 2, 0, 3)],  # the first place counts
    ]
    assert rows[0]["comm"] == rows[2]["comm"]
    assert len({row["comm"] for row in rows}) == 5, "only the first two ranks share a group"


@pytest.mark.parametrize("case", ["gpu_error_2nd", "lock_gil_1st"])
def test_ranks_that_broke_a_real_job_are_the_ones_behind_in_their_expert_group(case: str) -> None:
    folder = os.environ.get("LOCKSTEP_PUBLIC_DATA")
    if not folder:
        pytest.skip("needs LOCKSTEP_PUBLIC_DATA, the folder of third-party data")
    files = {path.name: path.read_bytes() for path in (Path(folder) / "fr_nvrx" / case).iterdir()}
    tables = parse_flight_recorder(files, case).tables()
    experts = {r["comm"] for r in tables["comms"].to_pylist() if r["name"] == "EXPERT_MODEL_PARALLEL_GROUP"}
    rows = [row for row in tables["progress"].to_pylist() if row["comm"] in experts]
    furthest = {comm: max(row["enqueued"] for row in rows if row["comm"] == comm) for comm in experts}
    behind = {row["host"] for row in rows if row["enqueued"] < furthest[row["comm"]]}
    label = (Path(folder) / "fr_nvrx" / "labels" / f"{case}.fault_injection.log").read_text().splitlines()[0]
    assert behind == {f"rank-{rank}" for rank in ast.literal_eval(label.partition(": ")[2])}
    assert (len(rows), len(files)) == (16, 16)
