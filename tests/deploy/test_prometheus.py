"""deploy/prometheus: metrics in an alert are on a real page of ours, every alert was tried, and has its runbook."""

import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from api.alerts.alertmanager import NAMES, TEST, WATCHDOG
from collector.metrics import serve_metrics
from importers.traces.alertmanager import OWN_LABEL
from lockstep.alerts import AlertSettings
from lockstep.config import Settings
from lockstep.records import Step
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import save_decisions, save_execution
from lockstep.state.incidents import note_jobs, save_incidents
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import open_store
from lockstep.tables import TABLE_BY_NAME
from lockstep.verdict import FaultClass
from tests.api.alerts.build import target
from tests.api.build import running_api
from tests.builders import make, rows
from tests.collector.fake_gateway import FakeGateway
from tests.collector.test_agent import NumberedSource, running
from tests.conftest import REPO
from tests.deploy.grafana_boards import panels
from tests.fixtures.control import hold_lease
from tests.lockstep.state.build import decision, incident
from tests.lockstep.state.test_executions import execution
from tests.testbed.services import free_port
from tests.waiting import LIMIT_S, HastyClock, eventually

Labels = dict[str, set[str]]  # of each metric
Rule = dict[str, Any]  # Any: YAML

FOLDER = REPO / "deploy/prometheus"
README = (FOLDER / "README.md").read_text()
BASE = "https://lockstep.example/docs"  # nobody's; the README says how to name one's own
FILES = sorted(FOLDER.glob("*.rules.yml"))
GROUPS = [group for file in FILES for group in yaml.safe_load(file.read_text())["groups"]]
RULES: list[Rule] = [rule for group in GROUPS for rule in group["rules"]]
OPERATIONS = (REPO / "docs/operations.md").read_text()
EACH = [pytest.param(rule, id=rule["alert"]) for rule in RULES]


@pytest.fixture(scope="module")
def on_collector() -> Labels:
    port, clock = free_port(), HastyClock()
    with FakeGateway() as gateway, running(NumberedSource("a"), server=gateway.url, clock=clock) as agent:
        stop = serve_metrics(agent, f"127.0.0.1:{port}", clock)
        eventually(lambda: len(gateway.received) >= 1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
            text = answer.read().decode()
        stop()
    return labels_in(text)


@pytest.fixture(scope="module")
def on_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Labels]:
    folder = tmp_path_factory.mktemp("server")
    settings = Settings(alerts=AlertSettings(targets=(target("am", "alertmanager"),)))
    with open_store(f"chdb://{folder / 'store'}") as store:
        migrate(store, Layout(store.database), now_ns=1)
        with running_api(folder, store, settings=settings) as api:
            fail_an_action(api.parts.control, ended_ns=10)
            note_jobs(api.parts.control, {"j": 1})
            store.insert(TABLE_BY_NAME["steps"], rows(step_at(api.parts.clock.now_ns())), token="test")
            eventually(lambda: "lockstep_actions_total{" in api.get("/metrics").text)
            yield labels_in(api.get("/metrics").text)


@pytest.fixture(scope="module")
def labels_of(on_collector: Labels, on_server: Labels) -> Labels:
    return on_server | on_collector


def labels_in(text: str) -> Labels:
    """Return the metrics of a page; one that has no sample so far is there, without labels that could be known."""
    families = list(text_string_to_metric_families(text))
    described = {family.name + ("_total" if family.type == "counter" else ""): set[str]() for family in families}
    return described | {sample.name: set(sample.labels) for family in families for sample in family.samples}


@pytest.fixture(scope="module")
def tried() -> dict[str, set[bool]]:
    """Of each alert, whether promtool tries it where it must fire, and where it must not."""
    found: dict[str, set[bool]] = {}
    for file in FOLDER.glob("*.test.yml"):
        for test in yaml.load(file.read_text(), yaml.CSafeLoader)["tests"]:
            for case in test["alert_rule_test"]:
                found.setdefault(case["alertname"], set()).add(bool(case["exp_alerts"]))
    return found


@pytest.mark.parametrize("rule", EACH)
def test_alert_is_whole_was_tried_and_has_a_runbook(
    rule: Rule, labels_of: Labels, tried: dict[str, set[bool]]
) -> None:
    named = metrics_in(rule["expr"])
    assert named or rule["expr"].startswith("up{")
    assert named <= labels_of.keys()
    shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) - {"instance"}
    assert shown <= {label for name in named for label in labels_of[name]}
    # Counters are not compared as they are, but for one that has only just begun: `x > 0 unless x offset 30m`.
    settled = re.sub(r"(\w+_total)(\{[^}]*\})? > 0 unless \1 offset \w+", "", rule["expr"])
    assert re.findall(r"(?<!increase\()\blockstep_\w+_total\b", settled) == []
    assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    address, _, anchor = str(rule["annotations"]["runbook_url"]).partition("#")
    assert address == f"{BASE}/operations.md"
    for name in get_args(FaultClass):  # one place, or one for each class of verdicts
        assert f'<a id="{anchor.replace("{{ $labels.class }}", name)}"></a>' in OPERATIONS
    assert f"`{rule['alert']}`" in OPERATIONS
    assert tried[rule["alert"]] == {True, False}


def test_rules_are_told_apart_from_alerts_of_our_own_and_tell_every_class_once() -> None:
    assert {rule["alert"] for rule in RULES}.isdisjoint({*NAMES.values(), TEST, WATCHDOG})
    assert {rule["labels"][OWN_LABEL] for rule in RULES} == {"rule"}, "no evidence when it comes back"
    assert "rule" not in NAMES, "so that routes can tell the two apart by the label, too"
    classes = [names.split("|") for rule in RULES for names in re.findall(r'class=~"([\w|]+)"', rule["expr"])]
    assert sorted(name for names in classes for name in names) == sorted(get_args(FaultClass))


@pytest.mark.parametrize(
    ("what", "files"), [("check", FILES), ("test", sorted(FOLDER.glob("*.test.yml")))], ids=["check", "test"]
)
def test_promtool_has_nothing_to_say(what: str, files: list[Path]) -> None:
    command = [find_promtool(), what, "rules", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == len(files) == 2


def test_links_become_the_site_s_own_by_the_commands_of_the_manual(tmp_path: Path) -> None:
    commands = [line for line in README.splitlines() if line.startswith("sed ")]
    here = [line.replace(">/etc/prometheus/", f">{tmp_path}/") for line in commands]
    subprocess.run(["sh", "-ec", "\n".join(here)], cwd=REPO, check=True, timeout=LIMIT_S)
    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert made.keys() == {file.name for file in FILES}
    assert not any(BASE in text for text in made.values())
    assert sum(text.count("https://wiki.your.site/lockstep/operations.md#") for text in made.values()) == len(RULES)


def test_scrape_configuration_is_one_and_has_the_names_that_the_rules_know(tmp_path: Path) -> None:
    told = told_configuration()
    (tmp_path / "prometheus.yml").write_text(told)
    command = ["check", "config", "--syntax-only", str(tmp_path / "prometheus.yml")]
    done = subprocess.run([find_promtool(), *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = {job["job_name"] for job in yaml.safe_load(told)["scrape_configs"]}
    assert jobs == {name for file in FILES for name in re.findall(r'up\{job="([\w-]+)"\}', file.read_text())}


def test_every_metric_is_in_the_manual_and_the_manual_names_no_other(on_collector: Labels, on_server: Labels) -> None:
    # What Python's client counts about the process is explained where it comes from; ours are all in the tables.
    served = {name for name in on_collector.keys() | on_server.keys() if not name.endswith("_created")}
    there = {re.sub("_(bucket|count|sum)$", "", name) for name in served}
    ours = {name for name in there if name.startswith("lockstep_") and "_process_" not in name}
    listed = {
        name for row in re.findall(r"^\| (`lockstep_[^|]+)\|", OPERATIONS, re.MULTILINE) for name in metrics_in(row)
    }
    drawn = {name for panel in panels() for name in metrics_in(panel.target.get("expr", ""))}
    assert drawn
    assert drawn <= on_server.keys()
    assert sorted(ours - listed) == []
    assert sorted(metrics_in(OPERATIONS) - there) == []


def find_promtool() -> str:
    found = shutil.which("promtool")
    return found or pytest.skip("needs promtool, of Debian's package prometheus: system-packages.txt")


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"\blockstep_[a-z_]+", text))


def told_configuration() -> str:
    (told,) = re.findall(r"^```yaml\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    return str(told)


def fail_an_action(control: ControlDatabase, ended_ns: int) -> None:
    """Leave an incident open that was answered in vain, so that everything has a figure."""
    save_incidents(control, [incident("i1")], None)
    save_decisions(control, [decision("d1")], None)
    failed = execution("d1", "failed").model_copy(update={"ended_ns": ended_ns})
    save_execution(control, failed, hold_lease(control, "planner"))


def step_at(now_ns: int, host: str = "h0") -> Step:
    return make(Step, host=host, step=1, start_ns=now_ns, end_ns=now_ns + 1, source="told")
