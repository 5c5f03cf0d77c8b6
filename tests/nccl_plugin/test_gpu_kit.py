"""The kit behind `make gpu-test`, as far as it goes without a GPU: plans, statistics, ring files and traces."""

import importlib
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from importers.traces.callback_trace import ALGOS, DTYPES, FUNCS, PROTOS, RECORD, Event, cut_events, events_of
from lockstep import wire

REPO = Path(__file__).resolve().parents[2]
KIT = REPO / "nccl_plugin" / "gpu"
OPERATIONS = 20


def module(name: str) -> ModuleType:
    """A file of the kit. It is no package: on a machine with a GPU it runs as it lies there."""
    if str(KIT) not in sys.path:
        sys.path.insert(0, str(KIT))
    return importlib.import_module(name)


@pytest.fixture
def ring_path(tmp_path: Path, plugin_library: Path) -> Path:
    """The file of a process that made twenty all-reduces with every callback recorded."""
    script = "import sys; from pathlib import Path; from tests.fixtures.live_job import Rank; "
    script += f"rank = Rank(Path(sys.argv[1])); [rank.all_reduce(seq) for seq in range({OPERATIONS})]"
    settings = {
        "LOCKSTEP_RING_DIR": str(tmp_path),
        "LOCKSTEP_DETAIL": "trace",
        "LOCKSTEP_BUDGET": "0",
        "LOCKSTEP_HOST": "h3",
    }
    command = [sys.executable, "-c", script, str(plugin_library)]
    subprocess.run(command, cwd=REPO, env=os.environ | settings, check=True)
    (path,) = tmp_path.glob("*.ring")
    return path


# --- what it is told ---


def test_every_part_runs_unless_one_is_named() -> None:
    kit = module("kit")

    assert kit.read_arguments([]).part is None
    assert kit.read_arguments(["--part", "load", "--part", "traces"]).part == ["load", "traces"]


def test_part_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        module("kit").read_arguments(["--part", "everything"])
    assert "invalid choice: 'everything'" in capsys.readouterr().err


def test_every_setting_that_the_kit_gives_is_one_that_the_plugin_reads() -> None:
    given = {name for path in KIT.glob("*.py") for name in re.findall(r'"(LOCKSTEP_\w+)"', path.read_text())}
    read = {name for path in KIT.parent.glob("*.c") for name in re.findall(r'"(LOCKSTEP_\w+)"', path.read_text())}

    assert given
    assert given - read == set()


def test_every_word_of_the_plans_is_one_that_the_rank_program_plays(tmp_path: Path) -> None:
    overhead, load, traces = module("overhead"), module("load"), module("traces")
    experiment = experiment_of(["none"])
    planned = overhead.words_of(experiment, {"none": Path("libnccl.so.2")}, 0, tmp_path, turn=0, rounds=1)
    planned += [
        *load.MIXED_WORDS,
        *(scenario.word for scenario in traces.SCENARIOS if scenario.word),
        "train=1:2:3:4:5",
    ]

    known = set(re.findall(r'"(\w+)"', (KIT / "rank.c").read_text()))
    assert {word.partition("=")[0] for word in planned} - known == set()


# --- what a plugin costs ---


def experiment_of(names: list[str]) -> object:
    overhead = module("overhead")
    sides = [overhead.Side(name, None, {}) for name in names]
    return overhead.Experiment("", sides, [overhead.Configuration(f"with {name}", name) for name in names], ())


def test_all_ranks_make_the_same_calls_in_the_same_order(tmp_path: Path) -> None:
    overhead, experiment = module("overhead"), experiment_of(["a", "b", "c"])
    libraries = {name: tmp_path / name for name in "abc"}

    first, second = (overhead.words_of(experiment, libraries, rank, tmp_path, turn=1, rounds=3) for rank in (0, 1))

    assert first == second


def test_every_round_visits_every_configuration_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    overhead, experiment = module("overhead"), experiment_of(["a", "b", "c", "d", "e"])
    libraries = {name: tmp_path / name for name in "abcde"}

    words = overhead.words_of(experiment, libraries, 0, tmp_path, turn=0, rounds=4)

    used = [word.removeprefix("use=") for word in words if word.startswith("use=")]
    rounds = ["".join(used[begin : begin + 5]) for begin in range(0, 20, 5)]
    assert {"".join(sorted(visited)) for visited in rounds} == {"abcde"}
    assert len(set(rounds)) == 4


def lines_of_rank(rounds: list[str], us_of_side: dict[str, float]) -> list[dict[str, object]]:
    sizes = module("overhead").CALLS_BY_BYTES
    return [
        {"side": side, "bytes": size, "us": us_of_side[side] + number}
        for number, sides in enumerate(rounds)
        for side in sides
        for size in sizes
    ]


def orders_of(rounds: list[str]) -> list[list[object]]:
    configuration = module("overhead").Configuration
    return [[configuration(f"with {side}", side) for side in sides] for sides in rounds]


def test_samples_are_the_slowest_ranks_and_the_first_round_is_not_among_them() -> None:
    rounds = ["ab", "ba", "ab"]
    lines = [lines_of_rank(rounds, {"a": 10, "b": 30}), lines_of_rank(rounds, {"a": 11, "b": 20})]

    samples = module("overhead").collect_samples(lines, orders_of(rounds))

    assert samples[8] == {"with a": [12.0, 13.0], "with b": [31.0, 32.0]}


def test_lines_in_another_order_than_planned_are_not_taken_for_samples() -> None:
    lines = [lines_of_rank(["ba"], {"a": 10, "b": 30})]

    with pytest.raises(AssertionError):
        module("overhead").collect_samples(lines, orders_of(["ab"]))


def test_a_machine_that_slows_down_does_not_look_like_a_cost() -> None:
    overhead = module("overhead")
    drifting = [100.0 * 1.1**number for number in range(30)]

    ratios = overhead.paired_ratios([value * 1.02 for value in drifting], [drifting, drifting])

    assert ratios == pytest.approx([0.02] * 30)


def test_interval_holds_the_true_cost_and_not_zero() -> None:
    overhead, generator = module("overhead"), random.Random(7)
    noisy = [[0.03 + generator.gauss(0, 0.02) for _ in range(15)] for _ in range(20)]

    interval = overhead.interval_of(noisy)

    assert 0 < interval.low < 0.03 < interval.high < 0.06


def test_processes_that_differ_widen_the_interval() -> None:
    """Rounds of one process agree with one another, which says nothing about the next process."""
    overhead, generator = module("overhead"), random.Random(8)
    centres = [-0.03, 0.03, -0.02, 0.02, 0.01, -0.01]
    apart = [[centre + generator.gauss(0, 0.001) for _ in range(15)] for centre in centres]
    alike = [[generator.gauss(0, 0.001) for _ in range(15)] for _ in centres]

    def width(ratios: list[list[float]]) -> float:
        interval = overhead.interval_of(ratios)
        return float(interval.high - interval.low)

    assert width(apart) > 10 * width(alike)


def test_table_compares_with_the_mean_of_the_copies_without_a_plugin() -> None:
    overhead = module("overhead")
    times = {overhead.BASELINE: [10.0] * 4, overhead.CONTROL: [30.0] * 4, "transfers": [22.0] * 4}
    configurations = [overhead.Configuration(label, "side") for label in times]
    experiment = overhead.Experiment("percent", [], configurations, (overhead.BASELINE, overhead.CONTROL))
    samples = dict.fromkeys(overhead.CALLS_BY_BYTES, times)

    assert overhead.table_of(experiment, [samples, samples]).splitlines() == [
        "| percent | 8 B | 1 MiB | 64 MiB |",
        "| --- | --- | --- | --- |",
        "| no plugin | 10.0 us | 10.0 us | 10.0 us |",
        "| no plugin again" + " | +200.0 [+200.0, +200.0]" * 3 + " |",
        "| transfers" + " | +10.0 [+10.0, +10.0]" * 3 + " |",
    ]


def test_copies_are_visited_equally_often_so_that_none_is_warmer(
    tmp_path: Path, plugin_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overhead = module("overhead")
    monkeypatch.setattr(overhead, "PLUGIN", plugin_library)

    experiment = overhead.plan_beside(tmp_path, {"example": tmp_path / "example.so"})

    visits = Counter(configuration.side for configuration in experiment.configurations)
    assert visits == dict.fromkeys((side.name for side in experiment.sides), 1)


# --- what a ring file says ---


def test_words_of_the_trace_are_those_of_the_ring_file() -> None:
    pairs = [(FUNCS, wire.FUNCS), (DTYPES, wire.DTYPES), (ALGOS, wire.ALGOS), (PROTOS, wire.PROTOS)]

    assert [tuple(word or "" for word in ours) for ours, _ in pairs] == [theirs for _, theirs in pairs]
    assert module("rings").FUNCS == wire.FUNCS


@pytest.mark.parametrize("name", ["STATUS", "CLOCK_PAIR", "COMM", "ROW", "RING", "OPERATION"])
def test_structs_are_as_long_as_the_readers(name: str) -> None:
    assert getattr(module("rings"), name).size == getattr(wire, name).itemsize


def test_record_is_as_long_as_the_readers() -> None:
    assert RECORD.size == wire.CALLBACK.itemsize


def test_ring_file_of_the_plugin_is_read_as_the_job_was(ring_path: Path) -> None:
    ring = module("rings").read_ring(ring_path)

    assert ring.enqueued_by_func() == Counter({"AllReduce": OPERATIONS})
    assert (ring.host, ring.api_version, ring.overwritten_records()) == ("h3", 7, 0)
    assert [(row.func, row.peer, row.enqueued, row.done) for row in ring.rows()] == [
        ("AllReduce", -1, OPERATIONS, OPERATIONS)
    ]
    assert [(comm.rank, comm.nranks, comm.name) for comm in ring.comms()] == [(0, 2, "world")]
    assert (ring.open_transfers(), ring.open_operations()) == (0, 0)


def test_load_test_is_content_when_the_counts_are_right(ring_path: Path) -> None:
    ring = module("rings").read_ring(ring_path)

    assert module("load").complaints_about("trace", ring, {"AllReduce": OPERATIONS}) == []


def test_load_test_names_a_call_that_was_not_recorded(ring_path: Path) -> None:
    ring = module("rings").read_ring(ring_path)

    complaints = module("load").complaints_about("trace", ring, {"AllReduce": OPERATIONS, "Send": 2})

    assert complaints == ["0 Send enqueued of 2"]


def test_load_test_names_a_level_that_was_not_asked_for(ring_path: Path) -> None:
    ring = module("rings").read_ring(ring_path)

    complaints = module("load").complaints_about("steps", ring, {"AllReduce": OPERATIONS})

    assert complaints == ["level trace instead of steps"]


def test_half_a_ring_file_is_refused_with_its_size(ring_path: Path) -> None:
    rings = module("rings")
    ring_path.write_bytes(ring_path.read_bytes()[:100_000])

    with pytest.raises(rings.NotARing, match="100000"):
        rings.read_ring(ring_path)


# --- what a trace says ---


def recorded_events(ring_path: Path) -> list[Event]:
    ring = module("rings").read_ring(ring_path)
    return list(events_of(module("traces").recording_of(3, ring), epoch_ns=0))


def test_trace_names_every_callback_with_its_parent(ring_path: Path) -> None:
    events = recorded_events(ring_path)
    starts = {event["h"]: event for event in events if event["ev"] == "start"}

    assert Counter(start["type"] for start in starts.values()) == dict.fromkeys(
        ("CollApi", "Coll", "ProxyOp", "ProxyStep"), OPERATIONS
    )
    parents = {(start["type"], starts[start["parent"]]["type"]) for start in starts.values() if "parent" in start}
    assert parents == {("Coll", "CollApi"), ("ProxyOp", "Coll"), ("ProxyStep", "ProxyOp")}
    assert [start["seq"] for start in starts.values() if start["type"] == "Coll"] == list(range(OPERATIONS))


def test_every_start_of_the_trace_has_its_stop(ring_path: Path) -> None:
    ends = Counter((event["h"], event["ev"]) for event in recorded_events(ring_path) if event["ev"] != "state")

    assert set(ends.values()) == {1}
    assert len(ends) == 2 * 4 * OPERATIONS


def start_of(number: int, kind: str, ts: int, parent: int | None = None) -> Event:
    event: Event = {"h": number, "ts": ts, "ev": "start", "type": kind}
    return event if parent is None else event | {"parent": parent}


def test_cut_keeps_what_a_call_caused_also_after_its_end() -> None:
    events = [start_of(1, "CollApi", 10), start_of(2, "Coll", 11, 1), start_of(3, "CollApi", 20)]
    events += [start_of(4, "ProxyOp", 25, 2), {"h": 4, "ts": 30, "ev": "stop", "type": "ProxyOp"}]

    assert [event["h"] for event in cut_events(events, 10, 20)] == [1, 2, 4, 4]


def test_cut_keeps_the_call_that_captured_a_replayed_graph() -> None:
    events = [start_of(1, "CollApi", 10), start_of(2, "Coll", 50, 1), start_of(3, "ProxyOp", 51, 2)]

    assert [event["h"] for event in cut_events(events, 40, 60)] == [1, 2, 3]


def test_cut_drops_a_second_stop_that_comes_after_its_end() -> None:
    stop: Event = {"h": 1, "ts": 12, "ev": "stop", "type": "CollApi"}
    events = [start_of(1, "CollApi", 10), stop, stop | {"ts": 99}]

    assert list(cut_events(events, 10, 20)) == events[:2]


# --- the network ---


@pytest.mark.needs_root
def test_ranks_on_hosts_of_their_own_reach_each_other_by_eth0_alone() -> None:
    listen = "import socket; s = socket.create_server(('10.77.0.2', 5000)); print(flush=True)"
    listen += "; s.accept()[0].sendall(b'here')"
    connect = (
        "import socket; s = socket.create_connection(('10.77.0.2', 5000), 60); print(s.recv(9), s.getsockname()[0])"
    )
    with module("namespaces").RankNetwork(2) as network:
        command = [*network.command(1), sys.executable, "-c", listen]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            server.stdout.readline()
            client = [*network.command(0), sys.executable, "-c", connect]
            answer = subprocess.run(client, capture_output=True, text=True, check=True)

    assert answer.stdout == "b'here' 10.77.0.1\n"
