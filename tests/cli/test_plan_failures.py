"""`lockstep plan schedule` and `plan recovery`: what failures cost and who gets which nodes; nonsense is refused."""

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from cli.plan import plan_of_recovery
from lockstep.errors import BadInput
from tests.cli.commands import Outcome, Run, check_failure

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


def test_people_get_a_table_and_a_sentence(lockstep: Run) -> None:
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


def plan_recovery(*more: object, cluster: Path = CLUSTER) -> Result:
    app = typer.Typer()
    app.command()(plan_of_recovery)
    return CliRunner().invoke(app, ["--cluster", str(cluster), *map(str, more)])


def test_a_program_reads_the_plan_and_its_alternatives() -> None:
    outcome = plan_recovery("--event", "node_lost:h9", "--json")
    assert outcome.exit_code == 0, outcome.output
    written = json.loads(outcome.stdout)
    assert "h9" in written["jobs"]["code"]["given_up"]
    assert written["jobs"]["code"]["reasons"]["h9"] == "lost: it cannot be used"
    assert all("h9" not in job["nodes"] and "h19" not in job["nodes"] for job in written["jobs"].values())
    assert written["jobs"]["search"]["after"] >= 2
    assert [other["name"] for other in written["alternatives"]] == ["do nothing", "only the jobs that were hit"]
    assert all(other["value"] <= written["value"] for other in written["alternatives"])


def test_a_person_reads_a_sentence_a_table_and_what_else_could_be_done() -> None:
    outcome = plan_recovery("--event", "node_lost:h3")
    assert outcome.exit_code == 0, outcome.output
    assert re.match(r"chat 8 -> \d+ nodes by ", outcome.stdout)
    assert "instead: do nothing (jobs that were hit stand still, the others go on; worth" in outcome.stdout
    assert re.search(r"search +\d -> \d", outcome.stdout)


def test_without_an_event_the_cluster_is_planned_as_it_is_and_who_starts_gets_nodes() -> None:
    written = json.loads(plan_recovery("--json").stdout)
    assert "h19" not in [name for job in written["jobs"].values() for name in job["nodes"]]
    assert "tiny" not in written["jobs"]
    tiny = json.loads(plan_recovery("--event", "job_starts:tiny", "--json").stdout)["jobs"]["tiny"]
    assert (tiny["before"], tiny["after"], tiny["action"]) == (0, 2, "start")


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        ("node_lost:h99", "there is no node h99"),
        ("h3", "event h3: expected KIND:NAME"),
        ("job_ends:tiny", "there is no job tiny among chat, code, search"),
    ],
)
def test_an_event_that_cannot_happen_is_refused_in_a_sentence(event: str, sentence: str) -> None:
    outcome = plan_recovery("--event", event)
    assert isinstance(outcome.exception, BadInput)
    assert sentence in str(outcome.exception)
    assert outcome.stdout == ""


def test_too_few_nodes_for_what_must_run_are_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(
        json.dumps({"nodes": [{"name": "h0"}], "jobs": [{"id": "a", "throughput": {"2": 1.0}, "may_stop": False}]})
    )
    outcome = plan_recovery(cluster=tmp_path / "c.json")
    assert str(outcome.exception) == "the jobs need at least 2 nodes together, and 1 can be used"
