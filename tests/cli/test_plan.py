"""`lockstep plan` reads what people have, writes what programs read, and refuses nonsense in a sentence."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from lockstep.fabrics import leaf_spine
from lockstep.pipeline.checking import find_faults
from lockstep.pipeline.schedule import StepSchedule, Worker, unpack_schedule
from lockstep.topology import dump_topology
from tests.cli.commands import Outcome, Run, check_failure

ROWS = [{"id": f"{i}", "src": f"h{i}", "dst": f"h{(i + 4) % 16}", "gbps": 400.0} for i in range(16)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    topology = leaf_spine(hosts=16, nics_per_host=1, leaves=4, spines=4)
    (tmp_path / "topology.json").write_text(dump_topology(topology))
    (tmp_path / "flows.json").write_text(json.dumps(ROWS))
    return tmp_path


def plan(lockstep: Run, folder: Path, *more: object, flows: str = "flows.json") -> Outcome:
    return lockstep("plan", "paths", "--topology", folder / "topology.json", "--flows", folder / flows, *more)


def test_every_flow_has_its_links_and_a_lost_link_moves_only_what_went_over_it(lockstep: Run, folder: Path) -> None:
    outcome = plan(lockstep, folder, "--json")
    written = json.loads(outcome.out)
    assert (outcome.code, written["max_load"], written["bound"]) == (0, 1.0, 1.0)
    assert written["flows"]["0"][0] == "h0/eth0--leaf0"
    assert all(len(links) == 4 for links in written["flows"].values())
    plan(lockstep, folder, "--out", folder / "plan.json")
    held = json.loads((folder / "plan.json").read_text())
    hit = {name for name, links in held["flows"].items() if "leaf0--spine1" in links}
    outcome = plan(lockstep, folder, "--before", folder / "plan.json", "--without", "link:leaf0--spine1", "--json")
    now = json.loads(outcome.out)
    assert now["moved"]["must"] == len(hit) == 2
    assert not any("leaf0--spine1" in links for links in now["flows"].values())


@pytest.mark.parametrize("name", ["flows.csv", "flows.parquet", "flows.jsonl"])
def test_rows_of_all_kinds_of_files_give_the_same_plan(lockstep: Run, folder: Path, name: str) -> None:
    table, path = pa.Table.from_pylist(ROWS), folder / name
    match path.suffix:
        case ".csv":
            pa_csv.write_csv(table, path)
        case ".parquet":
            pq.write_table(table, path)
        case _:
            path.write_text("\n".join(map(json.dumps, ROWS)))
    assert plan(lockstep, folder, "--json", flows=name).out == plan(lockstep, folder, "--json").out


def test_a_person_reads_sentences_and_a_picture_and_nccl_gets_advice(lockstep: Run, folder: Path) -> None:
    outcome = plan(lockstep, folder, "--explain", "--slow", "spine3=0.5")
    assert "16 flows, 0 of them inside one leaf" in outcome.out
    assert "h0/eth0--leaf0, leaf0--spine" in outcome.out
    assert outcome.err.startswith("fullest link 2")
    assert plan(lockstep, folder, "--svg", folder / "loads.svg").code == 0
    drawn = (folder / "loads.svg").read_text()
    assert "ECMP, one draw" in drawn
    assert "planned: fullest link 100%" in drawn
    assert plan(lockstep, folder, "--nccl", folder / "nccl", "--without", "spine0").code == 0
    written = (folder / "nccl" / "all.env").read_text()
    assert written.startswith("# this is advice")
    assert "NCCL_IB_QPS_PER_CONNECTION=4\n" in written
    assert (folder / "nccl" / "hosts").read_text().split() == [f"h{number}" for number in range(16)]


def test_what_does_not_fit_is_one_sentence(lockstep: Run, folder: Path) -> None:
    for more, sentence in {
        ("--without", "spine9"): "this topology has no part named spine9",
        ("--slow", "spine1=2"): "--slow spine1=2: expected PART=SHARE",
        ("--slow", "spine1"): "expected PART=SHARE",
        ("--before", "/nonexistent"): "cannot be read as a plan",
    }.items():
        check_failure(plan(lockstep, folder, *more), sentence)
    for text in ("{", "", '{"a": 1', "[1"):
        (folder / "flows.json").write_text(text)
        check_failure(plan(lockstep, folder), "cannot be read as rows of flows")


GRID = ("--stages", 4, "--pipelines", 3, "--micro-batches", 6)


def schedule(lockstep: Run, *more: object) -> Outcome:
    return lockstep("plan", "schedule", *GRID, *more)


def test_the_worked_example_is_printed_with_its_bound_and_baseline(lockstep: Run) -> None:
    outcome = schedule(lockstep, "--failed", "1,2", "--json")
    written = json.loads(outcome.out)
    assert outcome.code == 0
    assert written["step"] == {
        "fault-free 1F1B": 27.0,
        "whole pipelines dropped": 36.0,
        "re-routed": 36.0,
        "re-routed, decoupled": 29.0,
        "re-routed, decoupled, staggered": 27.0,
    }
    assert written["bound"] == {"period": 27.0, "makespan": 29.0}
    made = unpack_schedule(StepSchedule.model_validate(written["schedule"]))
    assert (made.failed, made.period, find_faults(made)) == (frozenset({Worker(1, 2)}), 27.0, [])
    assert sum(map(len, made.ops.values())) == 4 * 3 * 6 * 3, "forward and both backwards of each piece"
    outcome = schedule(lockstep, "--failed", "1,2")
    assert "re-routed, decoupled, staggered  27    100.0%" in outcome.out
    assert "none that is staggered below 27" in outcome.err
    outcome = schedule(lockstep, "--failed", "0,0", "--failed", "1,1", "--failed", "2,2")
    assert outcome.code == 0
    assert "impossible" in outcome.out


def test_times_and_memory_are_read_and_a_picture_is_written(lockstep: Run, tmp_path: Path) -> None:
    times = {"forward": [1, 1, 1, 2], "input": [1, 1, 1, 2], "weight": [1, 1, 1, 2], "transfer": 0.1}
    (tmp_path / "times.json").write_text(json.dumps(times))
    picture = tmp_path / "step.svg"
    more = ("--times", tmp_path / "times.json", "--memory", 4, "--svg", picture, "--json")
    written = json.loads(schedule(lockstep, "--failed", "1,2", *more).out)
    assert written["bound"]["period"] >= 36.0
    assert max(written["most_held"].values()) <= 4
    assert picture.read_text().startswith("<svg")


def test_nonsense_is_refused_in_a_sentence(lockstep: Run, tmp_path: Path) -> None:
    (tmp_path / "times.json").write_text(json.dumps({"forward": [1], "input": [1], "weight": [1]}))
    for more, sentence in {
        ("--failed", "one"): "expected PIPELINE,STAGE",
        ("--failed", "7,0"): "worker (7, 0) is not on a grid of 3 x 4",
        ("--failed", "0,1", "--failed", "1,1", "--failed", "2,1"): "stage 1 has lost all 3 copies",
        ("--times", "/nowhere/times.json"): "cannot be read as times",
        ("--svg", "/nowhere/step.svg"): "cannot be written",
        ("--times", str(tmp_path / "times.json")): "given for 1 stages, the grid has 4",
    }.items():
        check_failure(schedule(lockstep, *more), sentence)


CLUSTER = Path(__file__).parents[1] / "data" / "recovery" / "cluster.json"


def plan_recovery(lockstep: Run, *more: object, cluster: Path = CLUSTER) -> Outcome:
    return lockstep("plan", "recovery", "--cluster", cluster, *more)


def test_a_recovery_is_read_with_its_alternatives_by_programs_and_by_people(lockstep: Run) -> None:
    outcome = plan_recovery(lockstep, "--event", "node_lost:h9", "--json")
    assert outcome.code == 0, outcome.err
    written = json.loads(outcome.out)
    assert "h9" in written["jobs"]["code"]["given_up"]
    assert written["jobs"]["code"]["reasons"]["h9"] == "lost: it cannot be used"
    assert all("h9" not in job["nodes"] and "h19" not in job["nodes"] for job in written["jobs"].values())
    assert written["jobs"]["search"]["after"] >= 2
    assert [other["name"] for other in written["alternatives"]] == ["do nothing", "only the jobs that were hit"]
    assert all(other["value"] <= written["value"] for other in written["alternatives"])
    outcome = plan_recovery(lockstep, "--event", "node_lost:h3")
    assert outcome.code == 0, outcome.err
    assert re.match(r"chat 8 -> \d+ nodes by ", outcome.out)
    assert "instead: do nothing (jobs that were hit stand still, the others go on; worth" in outcome.out
    assert re.search(r"search +\d -> \d", outcome.out)


def test_without_an_event_the_cluster_is_planned_as_it_is_and_who_starts_gets_nodes(lockstep: Run) -> None:
    written = json.loads(plan_recovery(lockstep, "--json").out)
    assert "h19" not in [name for job in written["jobs"].values() for name in job["nodes"]]
    assert "tiny" not in written["jobs"]
    tiny = json.loads(plan_recovery(lockstep, "--event", "job_starts:tiny", "--json").out)["jobs"]["tiny"]
    assert (tiny["before"], tiny["after"], tiny["action"]) == (0, 2, "start")


def test_what_cannot_happen_or_cannot_run_is_refused_in_a_sentence(lockstep: Run, tmp_path: Path) -> None:
    for event, sentence in {
        "node_lost:h99": "there is no node h99",
        "h3": "event h3: expected KIND:NAME",
        "job_ends:tiny": "there is no job tiny among chat, code, search",
    }.items():
        check_failure(plan_recovery(lockstep, "--event", event), sentence)
    jobs = [{"id": "a", "throughput": {"2": 1.0}, "may_stop": False}]
    (tmp_path / "c.json").write_text(json.dumps({"nodes": [{"name": "h0"}], "jobs": jobs}))
    outcome = plan_recovery(lockstep, cluster=tmp_path / "c.json")
    check_failure(outcome, "the jobs need at least 2 nodes together, and 1 can be used")
