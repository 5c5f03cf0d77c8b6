"""`lockstep plan paths` reads what people have, writes what programs read, and refuses nonsense in a sentence."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from lockstep.fabrics import leaf_spine
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


def test_every_flow_has_its_links_and_the_plan_its_figures(lockstep: Run, folder: Path) -> None:
    outcome = plan(lockstep, folder, "--json")
    written = json.loads(outcome.out)
    assert (outcome.code, written["max_load"], written["bound"]) == (0, 1.0, 1.0)
    assert written["flows"]["0"][0] == "h0/eth0--leaf0"
    assert all(len(links) == 4 for links in written["flows"].values())


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
    assert json.loads(plan(lockstep, folder, "--json", flows=name).out) == json.loads(
        plan(lockstep, folder, "--json").out
    )


def test_a_lost_link_moves_only_what_went_over_it(lockstep: Run, folder: Path) -> None:
    plan(lockstep, folder, "--out", folder / "plan.json")
    held = json.loads((folder / "plan.json").read_text())
    hit = {name for name, links in held["flows"].items() if "leaf0--spine1" in links}
    outcome = plan(lockstep, folder, "--before", folder / "plan.json", "--without", "link:leaf0--spine1", "--json")
    now = json.loads(outcome.out)
    assert now["moved"]["must"] == len(hit) == 2
    assert not any("leaf0--spine1" in links for links in now["flows"].values())


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
