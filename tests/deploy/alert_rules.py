"""The alert rules of deploy/prometheus as tests see them, and what has to happen before all their metrics exist."""

import re
from typing import Any

import yaml

from lockstep.records import Step
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import save_decisions, save_execution
from lockstep.state.incidents import save_incidents
from tests.conftest import REPO
from tests.fixtures.control import hold_lease
from tests.lockstep.state.build import decision, incident
from tests.lockstep.state.test_executions import execution

Rule = dict[str, Any]  # Any: YAML

FOLDER = REPO / "deploy/prometheus"
README = (FOLDER / "README.md").read_text()
BASE = "https://lockstep.example/docs"  # nobody's; the README says how to name one's own
FILES = sorted(FOLDER.glob("*.rules.yml"))
RULES: list[Rule] = [
    rule for file in FILES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]
]


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
    return Step(
        host=host, job="j1", attempt=0, world_rank=0, step=1, start_ns=now_ns, end_ns=now_ns + 1, source="told"
    )
