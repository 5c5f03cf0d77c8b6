"""deploy/prometheus: every metric in an alert is on a real agent's page, and every alert has its runbook."""

import re
import urllib.request
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from collector.metrics import serve_metrics
from testbed.services import free_port
from tests.collector.fake_gateway import FakeGateway
from tests.collector.test_agent import NumberedSource, running
from tests.conftest import REPO
from tests.waiting import HastyClock, eventually

Rule = dict[str, Any]  # Any: YAML

(GROUP,) = yaml.safe_load((REPO / "deploy/prometheus/lockstep-collector.rules.yml").read_text())["groups"]
RULES = [pytest.param(rule, id=rule["alert"]) for rule in GROUP["rules"]]
OPERATIONS = (REPO / "docs/operations.md").read_text()


@pytest.fixture(scope="module")
def labels_of() -> dict[str, set[str]]:
    """Every metric that a real agent serves, with the labels that it has."""
    port, clock = free_port(), HastyClock()
    with FakeGateway() as gateway, running(NumberedSource("a"), server=gateway.url, clock=clock) as agent:
        stop = serve_metrics(agent, f"127.0.0.1:{port}", clock)
        eventually(lambda: len(gateway.received) >= 1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        stop()
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"\blockstep_collector_\w+", text))


@pytest.mark.parametrize("rule", RULES)
def test_metrics_of_an_alert_exist_with_the_labels_that_it_shows(rule: Rule, labels_of: dict[str, set[str]]) -> None:
    named = metrics_in(rule["expr"])
    shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) - {"instance"}

    assert named or rule["expr"].startswith("up{")
    assert named <= labels_of.keys()
    assert shown <= {label for name in named for label in labels_of[name]}


@pytest.mark.parametrize("rule", RULES)
def test_an_alert_has_all_that_it_takes_and_a_runbook(rule: Rule) -> None:
    assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"].keys() == {"summary", "description"}
    assert re.search(rf"^### .*`{rule['alert']}`", OPERATIONS, re.MULTILINE), "docs/operations.md has no runbook"


def test_counters_are_not_compared_as_they_are() -> None:
    raw = [
        rule["alert"] for rule in GROUP["rules"] if re.search(r"(?<![([])\blockstep_\w+_total\b(?!\[)", rule["expr"])
    ]

    assert raw == []


def test_every_metric_is_in_the_manual_and_the_manual_names_no_other(labels_of: dict[str, set[str]]) -> None:
    # What Python's client counts about the process is explained where it comes from; ours are all in the table.
    ours = {name for name in labels_of if name.startswith("lockstep_collector_") and "_process_" not in name}
    listed = set(re.findall(r"^\| `(lockstep_collector_\w+)", OPERATIONS, re.MULTILINE))

    assert ours <= listed
    assert metrics_in(OPERATIONS) <= labels_of.keys()
