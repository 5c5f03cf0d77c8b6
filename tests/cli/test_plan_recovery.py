"""`lockstep plan recovery` says who gets which nodes after an event, and refuses nonsense in a sentence."""

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from cli.plan import plan_of_recovery
from lockstep.errors import BadInput

EXAMPLE = Path(__file__).parents[1] / "data" / "recovery" / "cluster.json"


def plan(*more: object, cluster: Path = EXAMPLE) -> Result:
    app = typer.Typer()
    app.command()(plan_of_recovery)
    return CliRunner().invoke(app, ["--cluster", str(cluster), *map(str, more)])


def test_a_program_reads_the_plan_and_its_alternatives() -> None:
    outcome = plan("--event", "node_lost:h9", "--json")
    assert outcome.exit_code == 0, outcome.output
    written = json.loads(outcome.stdout)
    assert "h9" in written["jobs"]["code"]["given_up"]
    assert written["jobs"]["code"]["reasons"]["h9"] == "lost: it cannot be used"
    assert all("h9" not in job["nodes"] and "h19" not in job["nodes"] for job in written["jobs"].values())
    assert written["jobs"]["search"]["after"] >= 2
    assert [other["name"] for other in written["alternatives"]] == ["do nothing", "only the jobs that were hit"]
    assert all(other["value"] <= written["value"] for other in written["alternatives"])


def test_a_person_reads_a_sentence_a_table_and_what_else_could_be_done() -> None:
    outcome = plan("--event", "node_lost:h3")
    assert outcome.exit_code == 0, outcome.output
    assert re.match(r"chat 8 -> \d+ nodes by ", outcome.stdout)
    assert "instead: do nothing (jobs that were hit stand still, the others go on; worth" in outcome.stdout
    assert re.search(r"search +\d -> \d", outcome.stdout)


def test_without_an_event_the_cluster_is_planned_as_it_is() -> None:
    written = json.loads(plan("--json").stdout)
    assert "h19" not in [name for job in written["jobs"].values() for name in job["nodes"]]
    assert "tiny" not in written["jobs"]


def test_a_job_that_waited_gets_nodes_when_it_starts() -> None:
    tiny = json.loads(plan("--event", "job_starts:tiny", "--json").stdout)["jobs"]["tiny"]
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
    outcome = plan("--event", event)
    assert isinstance(outcome.exception, BadInput)
    assert sentence in str(outcome.exception)
    assert outcome.stdout == ""


def test_too_few_nodes_for_what_must_run_are_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(
        json.dumps({"nodes": [{"name": "h0"}], "jobs": [{"id": "a", "throughput": {"2": 1.0}, "may_stop": False}]})
    )
    outcome = plan(cluster=tmp_path / "c.json")
    assert str(outcome.exception) == "the jobs need at least 2 nodes together, and 1 can be used"
