"""A cluster is read from JSON with every mistake named, and a plan is written so that programs can read it."""

import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import BadInput
from planner.allocation.allocate import plan_allocation
from planner.allocation.cluster_file import allocation_to_json, parse_cluster, read_cluster

EXAMPLE = Path(__file__).parents[2] / "data" / "recovery" / "cluster.json"
SMALL: dict[str, Any] = {
    "nodes": [{"name": "h0"}, {"name": "h1", "leaf": "leaf0", "failures_per_day": 0.5}],
    "jobs": [{"id": "a", "nodes": ["h0"], "throughput": {"1": 10, "2": 18, "3": 25}, "valid": [1, 2]}],
}


def test_the_example_is_a_cluster_of_three_jobs_and_one_that_waits() -> None:
    cluster = read_cluster(EXAMPLE)
    assert [one.id for one in cluster.jobs] == ["chat", "code", "search"]
    assert [one.id for one in cluster.waiting] == ["tiny"]
    assert cluster.job("chat").recovery.recycled == {1: 2600.0}
    assert cluster.job("chat").throughput.measured == {8}
    assert parse_cluster(SMALL).job("a").throughput.counts == (1, 2)


def test_a_plan_can_be_written_as_json() -> None:
    written = json.loads(json.dumps(allocation_to_json(plan_allocation(parse_cluster(SMALL)))))
    assert written["jobs"]["a"]["action"] == "reconfigure"
    assert written["jobs"]["a"]["nodes"] == ["h0", "h1"]
    assert [other["name"] for other in written["alternatives"]] == ["do nothing"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"nodes": [{"name": "h0", "colour": "red"}]}, "nodes.0.colour: Extra inputs are not permitted"),
        ({"jobs": [{"id": "a"}]}, "jobs.0.throughput: Field required"),
        ({"jobs": [{"id": "a", "throughput": {"0": 1}}]}, "job a: a throughput table needs one rate for each count"),
        ({"jobs": [{"id": "a", "throughput": {"1": -1}}]}, "job a: a throughput table holds rates"),
        ({"version": 2}, "version: Input should be less than or equal to 1"),
        ({"nodes": [{"name": "h0"}] * 2}, "node h0 is listed 2 times"),
    ],
)
def test_every_mistake_is_named(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        parse_cluster(SMALL | change)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(BadInput, match=r"c\.json cannot be read as a cluster"):
        read_cluster(tmp_path / "c.json")
    with pytest.raises(BadInput, match=r"gone\.json cannot be read as a cluster"):
        read_cluster(tmp_path / "gone.json")
