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


@pytest.fixture(scope="module")
def ring_path(tmp_path_factory: pytest.TempPathFactory, plugin_library: Path) -> Path:
    """The file of a process that made twenty all-reduces with every callback recorded."""
    folder = tmp_path_factory.mktemp("rings")
    script = "import sys; from pathlib import Path; from tests.fixtures.live_job import Rank; "
    script += f"rank = Rank(Path(sys.argv[1])); [rank.all_reduce(seq) for seq in range({OPERATIONS})]"
    settings = {"LOCKSTEP_RING_DIR": str(folder), "LOCKSTEP_HOST": "h3"} | module("lab").EVERY_CALLBACK
    command = [sys.executable, "-c", script, str(plugin_library)]
    subprocess.run(command, cwd=REPO, env=os.environ | settings, check=True)
    (path,) = folder.glob("*.ring")
    return path


def test_every_part_runs_unless_one_is_named_that_exists_and_every_setting_that_is_given_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kit = module("kit")
    assert kit.read_arguments([]).part is None
    assert kit.read_arguments(["--part", "load", "--part", "traces"]).part == ["load", "traces"]
    with pytest.raises(SystemExit):
        kit.read_arguments(["--part", "everything"])
    assert "invalid choice: 'everything'" in capsys.readouterr().err
    given = {name for path in KIT.glob("*.py") for name in re.findall(r'"(LOCKSTEP_\w+)"', path.read_text())}
    sources = [*KIT.parent.glob("*.c"), *KIT.glob("*.c"), *(REPO / "tests/testbed/softverbs").glob("*.c")]
    read = {name for path in sources for name in re.findall(r'"(LOCKSTEP_\w+)"', path.read_text())}
    # And those of what runs beside the jobs.
    read |= set(re.findall(r"`(LOCKSTEP_\w+)`", (REPO / "docs/settings.md").read_text()))
    assert given
    assert given - read == set()


def test_every_word_of_the_plans_is_one_that_the_rank_program_plays(tmp_path: Path) -> None:
    overhead, kit, traces = module("overhead"), module("kit"), module("traces")
    experiment = overhead.Experiment("", [overhead.Side("none", None, {})], [overhead.Configuration("", "none")], ())
    planned = overhead.words_of(experiment, {"none": Path("libnccl.so.2")}, 0, tmp_path, pair=0, rounds=1)
    planned += [*kit.MIXED_WORDS, "train=1:2:3:4:5"]
    planned += [scenario.word for scenario in traces.SCENARIOS if scenario.word]
    known = set(re.findall(r'"(\w+)"', (KIT / "rank.c").read_text()))
    assert {word.partition("=")[0] for word in planned} - known == set()


def experiment_of(names: str) -> object:
    overhead = module("overhead")
    sides = [overhead.Side(name, None, {}) for name in names]
    return overhead.Experiment("", sides, [overhead.Configuration(f"with {name}", name) for name in names], ())


def test_all_ranks_visit_every_configuration_once_a_round_in_the_same_order_of_its_own(
    tmp_path: Path, plugin_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overhead, experiment = module("overhead"), experiment_of("abcde")
    libraries = {name: tmp_path / name for name in "abcde"}
    words, others = (overhead.words_of(experiment, libraries, rank, tmp_path, pair=1, rounds=4) for rank in (0, 1))
    used = [word.removeprefix("use=") for word in words if word.startswith("use=")]
    rounds = ["".join(used[begin : begin + 5]) for begin in range(0, 20, 5)]
    assert words == others
    assert {"".join(sorted(visited)) for visited in rounds} == {"abcde"}
    assert len(set(rounds)) == 4
    monkeypatch.setattr(overhead, "PLUGIN", plugin_library)
    beside = overhead.plan_beside(tmp_path, {"example": tmp_path / "example.so"})
    visits = Counter(configuration.side for configuration in beside.configurations)
    assert visits == dict.fromkeys((side.name for side in beside.sides), 1), "no copy is warmer"


def test_samples_are_the_slowest_ranks_in_the_planned_order_without_the_first_round() -> None:
    overhead = module("overhead")

    def rank(rounds: list[str], **us_of_side: float) -> list[dict[str, object]]:
        visits = [(side, us_of_side[side] + number) for number, sides in enumerate(rounds) for side in sides]
        return [{"side": side, "bytes": size, "us": us} for side, us in visits for size in overhead.CALLS_BY_BYTES]

    rounds = ["ab", "ba", "ab"]
    orders = [[overhead.Configuration(f"with {side}", side) for side in sides] for sides in rounds]
    samples = overhead.collect_samples([rank(rounds, a=10, b=30), rank(rounds, a=11, b=20)], orders)
    assert samples[8] == {"with a": [12.0, 13.0], "with b": [31.0, 32.0]}
    with pytest.raises(AssertionError):
        overhead.collect_samples([rank(["ba"], a=10, b=30)], orders[:1])


def test_interval_holds_the_true_cost_and_processes_that_differ_widen_it_and_a_machine_that_slows_down_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounds of one process agree with one another, which says nothing about the next process."""
    overhead, generator = module("overhead"), random.Random(7)
    drifting = [100.0 * 1.1**number for number in range(30)]
    ratios = overhead.paired_ratios([value * 1.02 for value in drifting], [drifting, drifting])
    assert ratios == pytest.approx([0.02] * 30)
    monkeypatch.setattr(overhead, "RESAMPLES", 500)
    noisy = [[0.03 + generator.gauss(0, 0.02) for _ in range(15)] for _ in range(20)]
    interval = overhead.interval_of(noisy)
    assert 0 < interval.low < 0.03 < interval.high < 0.06
    centres = [-0.03, 0.03, -0.02, 0.02, 0.01, -0.01]
    apart = overhead.interval_of([[centre + generator.gauss(0, 0.001) for _ in range(15)] for centre in centres])
    alike = overhead.interval_of([[generator.gauss(0, 0.001) for _ in range(15)] for _ in centres])
    assert apart.high - apart.low > 10 * (alike.high - alike.low)


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


def test_words_and_structs_of_kit_and_trace_are_those_of_the_ring_file() -> None:
    pairs = [(FUNCS, wire.FUNCS), (DTYPES, wire.DTYPES), (ALGOS, wire.ALGOS), (PROTOS, wire.PROTOS)]
    assert [tuple(word or "" for word in ours) for ours, _ in pairs] == [theirs for _, theirs in pairs]
    rings = module("rings")
    assert rings.FUNCS == wire.FUNCS
    for name in ("STATUS", "CLOCK_PAIR", "COMM", "ROW", "RING"):
        assert getattr(rings, name).size == getattr(wire, name).itemsize
    assert RECORD.size == wire.CALLBACK.itemsize


def test_ring_file_of_the_plugin_is_read_as_the_job_was(ring_path: Path) -> None:
    ring = module("rings").read_ring(ring_path)
    assert ring.enqueued_by_func() == Counter({"AllReduce": OPERATIONS})
    assert (ring.host, ring.api_version, ring.overwritten_records()) == ("h3", 7, 0)
    assert [(row.func, row.peer, row.enqueued, row.done) for row in ring.rows()] == [
        ("AllReduce", -1, OPERATIONS, OPERATIONS)
    ]
    assert [(comm.rank, comm.nranks, comm.name) for comm in ring.comms()] == [(0, 2, "world")]
    assert ring.open_transfers() == 0


def test_load_test_names_calls_and_levels_that_were_not_asked_for_and_half_a_file(
    ring_path: Path, tmp_path: Path
) -> None:
    rings, complaints_about = module("rings"), module("kit").complaints_about
    ring, made = rings.read_ring(ring_path), {"AllReduce": OPERATIONS}
    assert complaints_about("trace", ring, made) == []
    assert complaints_about("trace", ring, made | {"Send": 2}) == ["0 Send enqueued of 2"]
    assert complaints_about("steps", ring, made) == ["level trace instead of steps"]
    (tmp_path / "half.ring").write_bytes(ring_path.read_bytes()[:100_000])
    with pytest.raises(rings.NotARing, match="100000"):
        rings.read_ring(tmp_path / "half.ring")


def test_trace_names_every_callback_with_its_parent_and_its_stop(ring_path: Path) -> None:
    rings = module("rings")
    ring = rings.read_ring(ring_path)
    records = b"".join(ring.records(rings.CALLBACK_KIND))
    events = list(events_of(module("traces").recording_of(3, ring, records), epoch_ns=0))
    starts = {event["h"]: event for event in events if event["ev"] == "start"}
    kinds = ("CollApi", "Coll", "ProxyOp", "ProxyStep")
    assert Counter(start["type"] for start in starts.values()) == dict.fromkeys(kinds, OPERATIONS)
    parents = {(start["type"], starts[start["parent"]]["type"]) for start in starts.values() if "parent" in start}
    assert parents == {("Coll", "CollApi"), ("ProxyOp", "Coll"), ("ProxyStep", "ProxyOp")}
    assert [start["seq"] for start in starts.values() if start["type"] == "Coll"] == list(range(OPERATIONS))
    ends = Counter((event["h"], event["ev"]) for event in events if event["ev"] != "state")
    assert set(ends.values()) == {1}
    assert len(ends) == 2 * 4 * OPERATIONS


def test_follower_keeps_every_record_once_and_counts_what_it_came_too_late_for(ring_path: Path) -> None:
    rings, follower = module("rings"), module("record").Follower(ring_path.parent)
    whole = b"".join(rings.read_ring(ring_path).records(rings.CALLBACK_KIND))
    for _ in range(3):
        follower.read()
    assert (follower.recording(3).records, follower.lost) == (whole, 0)
    follower._heads = [head - rings.read_ring(ring_path).sections["records"].count for head in follower._heads]
    follower.read()
    assert follower.lost > 0


def test_recorded_cases_are_drawn_from_a_seed_with_half_of_the_families_kept_aside() -> None:
    gpu_record = module("record")
    cases = gpu_record.draw(7, takes=2)
    assert cases == gpu_record.draw(7, takes=2) != gpu_record.draw(8, takes=2)
    assert len({case.name for case in cases}) == len(cases)
    for is_ill in (False, True):
        parts = [
            {(case.mode, case.fault) for case in cases if case.for_scoring == aside and bool(case.fault) == is_ill}
            for aside in (False, True)
        ]
        assert not parts[0] & parts[1]
        assert abs(len(parts[0]) - len(parts[1])) <= 1
    for case in cases:
        truth = gpu_record.truth_of(case, onset_ns=5, epoch_ns=2)
        assert bool(truth) == bool(case.fault)
        assert all(f"h{case.rank}" in part["component"] or part["component"] == f"rank:{case.rank}" for part in truth)


def event(number: int, kind: str, ts: int, ev: str = "start", **parent: int) -> Event:
    return {"h": number, "ts": ts, "ev": ev, "type": kind, **parent}


def test_cut_keeps_what_belongs_together() -> None:
    call, coll = event(1, "CollApi", 10), event(2, "Coll", 11, parent=1)
    sends = [event(4, "ProxyOp", 25, parent=2), event(4, "ProxyOp", 30, "stop")]
    caused = cut_events([call, coll, event(3, "CollApi", 20), *sends], 10, 20)
    replayed = cut_events([call, event(2, "Coll", 50, parent=1), event(3, "ProxyOp", 51, parent=2)], 45, 55)
    stopped = cut_events([call, *(event(1, "CollApi", ts, "stop") for ts in (12, 99))], 10, 20)
    kept = [[(one["h"], one["ts"]) for one in cut] for cut in (caused, replayed, stopped)]
    assert kept[0] == [(1, 10), (2, 11), (4, 25), (4, 30)], "what a call caused, also after its end"
    assert kept[1] == [(1, 10), (2, 50), (3, 51)], "the call that captured a replayed graph"
    assert kept[2] == [(1, 10), (1, 12)], "no second stop"


@pytest.mark.needs_root
def test_ranks_on_hosts_of_their_own_reach_each_other_by_eth0_alone() -> None:
    listen = "import socket; s = socket.create_server(('10.77.0.2', 5000)); print(flush=True)"
    listen += "; s.accept()[0].sendall(b'here')"
    connect = "import socket; s = socket.create_connection(('10.77.0.2', 5000), 60)"
    connect += "; print(s.recv(9), s.getsockname()[0])"
    with module("namespaces").RankNetwork(2) as network:
        command = [*network.command(1), sys.executable, "-ISc", listen]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            server.stdout.readline()
            client = [*network.command(0), sys.executable, "-ISc", connect]
            answer = subprocess.run(client, capture_output=True, text=True, check=True)

    assert answer.stdout == "b'here' 10.77.0.1\n"
