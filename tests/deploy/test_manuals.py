"""What deploy/README.md and docs/operations.md name exists: commands, settings, files, pages, words of our log."""

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from collector import shipping
from lockstep import __version__
from lockstep.config import NOT_SETTINGS, Settings, list_settings, load_settings
from lockstep.records import Agent
from lockstep.sections import split_listen
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from lockstep.verdict import FaultClass
from tests.api.build import running_api
from tests.builders import make, rows
from tests.conftest import REPO
from tests.deploy.chart import default_values
from tests.deploy.compose_file import load_compose
from tests.deploy.grafana_boards import boards, panels
from tests.deploy.processes import check_command
from tests.deploy.unit_file import read_unit
from tests.waiting import LIMIT_S

COMPOSE = load_compose()
README, OPERATIONS = ((REPO / name).read_text() for name in ("deploy/README.md", "docs/operations.md"))
RUNBOOKS = OPERATIONS.partition("\n## Runbooks\n")[2].partition("\n## ")[0]
SETTINGS = {".".join(setting.path): setting.default for setting in list_settings()}
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
# What the runbooks quote, as it stands in the code.
QUOTED = [
    "the agent needs a token",
    "the host's token",
    "cannot read {what}",
    "another agent uses the spool",
    "there is no such setting",
    "there is no source",
    "no metrics are served",
    "batches wait",
    "the gateway does not answer",
    "records of version",
    "the spool takes nothing, batches wait in memory",
    "kernel log cannot be read",
]


def code_in(text: str) -> str:
    inline = re.findall(r"`([^`\n]+)`", text) + re.findall(
        r"`([^`]+)`", _BLOCK.sub("", text)
    )  # some go over two lines
    return "\n".join(_BLOCK.findall(text) + inline)


def commands_in(text: str, words: str) -> list[str]:
    found = re.findall(rf"(?<![\w/.-])(?:/opt/lockstep/bin/)?lockstep ((?:{words}) [^\n`#&]+)", code_in(text))
    return sorted({re.sub(r"\s+", " ", line).strip() for line in found})


THROUGH_IMAGE = [
    words
    for service, words in re.findall(r"docker compose run --rm (\w+) ([^\n&#]+)", code_in(README))
    if COMPOSE.services[service].is_ours
]
QUESTIONS = sorted(set(re.findall(r"\bask ([\w/:?=]+)", code_in(RUNBOOKS))))
PAGES = sorted(set(re.findall(r"^/(?!version)[a-z-]+(?:[/?][\w=/]+)?$", code_in(RUNBOOKS), re.MULTILINE)))


@pytest.mark.parametrize(
    ("lines", "least"),
    [
        (commands_in(README, "token|store") + THROUGH_IMAGE, 4),
        (commands_in(OPERATIONS, "token|store"), 9),
        (commands_in(RUNBOOKS, "top|decisions|isolations|store"), 10),
    ],
)
def test_every_command_is_taken(lines: list[str], least: int) -> None:
    assert len(lines) >= least
    for line in lines:
        check_command(shlex.split(line))


def test_every_file_value_variable_and_setting_is_there() -> None:
    named = set(re.findall(r"\b(?:deploy/[\w./,-]+[\w]|constraints\.txt|docker-compose\.yml)", README))
    secrets = {name for name in named if name.startswith("deploy/secrets/")}
    assert secrets <= set(COMPOSE.secrets.values())
    assert {name for name in named - secrets if not (REPO / name).exists()} <= {"deploy/secrets"}
    named = set(re.findall(r"\b(?:deploy|docs|benchmarks|nccl_plugin)/[\w./-]*\w", OPERATIONS))
    assert {name for name in named if not (REPO / name).exists()} <= {"nccl_plugin/build"}
    values = re.findall(r"--set (\w+)=", README) + re.findall(r"`(token\.hostFile|privileged)\b", README)
    assert len(values) >= 3
    assert {name.partition(".")[0] for name in values} <= default_values().keys()
    assert set(re.findall(r"--set (\w+)=", OPERATIONS)) <= default_values().keys()
    variables = dict(re.findall(r"\b(LOCKSTEP_\w+)(?:=(\S+))?", README))
    assert load_settings(variables, Path("/dev/null")).api.listen == variables["LOCKSTEP_API_LISTEN"]
    known = {setting.variable for setting in list_settings()} | NOT_SETTINGS.keys()
    assert set(re.findall(r"\bLOCKSTEP_[A-Z_]+\b", OPERATIONS)) <= known
    sections = "|".join(sorted({name.partition(".")[0] for name in SETTINGS if "." in name}))
    named = set(re.findall(rf"`((?:{sections})\.[a-z_]+)`", OPERATIONS))
    assert len(named) >= 5
    assert named <= SETTINGS.keys()


def test_every_extra_service_volume_and_release_is_there() -> None:
    extras = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    locks = re.findall(r"-r deploy/locks/([\w,]+)\.txt", README)
    assert locks == ["api,analyzer,planner", "collector", "build", "collector", "build"], "head, then host"
    assert {extra for lock in locks for extra in lock.split(",")} - {"build"} <= extras.keys()
    services = re.findall(r"docker compose (?:exec|cp) (?:-T )?(\w+)(?=[ :])", code_in(README))
    assert set(services) - {"monday"} <= COMPOSE.services.keys()
    assert all(f"`{volume}`" in README for volume in COMPOSE.volumes)
    assert set(re.findall(r"lockstep-(\d+\.\d+\.\d+)", README)) == {__version__}


def test_the_tables_of_ports_and_capabilities_are_the_truth() -> None:
    settings = COMPOSE.services["api"].settings
    listed = {
        int(port) for row in re.findall(r"^\| (\d[\d, ]+) \|", README, re.MULTILINE) for port in row.split(", ")
    }
    published = {port.published for service in COMPOSE.services.values() for port in service.ports}
    parts = (settings.api, settings.analyzer, settings.planner, settings.collector)
    listening = {split_listen(part.listen)[1] for part in parts}
    assert listed == published | listening | {settings.collector.clock_port, 8123, 9000}
    lost = "\n".join(re.findall(r"^\| (`CAP_[^|]+)\|", README, re.MULTILINE))
    granted = read_unit("lockstep-collector.service").only("AmbientCapabilities").split()
    assert sorted(re.findall(r"CAP_\w+", lost)) == sorted(granted)


def test_words_and_figures_of_the_runbooks_are_those_of_the_code() -> None:
    folders = ("collector", "cli", "lockstep", "api")
    sources = "\n".join(file.read_text() for name in folders for file in sorted((REPO / name).rglob("*.py")))
    assert [words for words in QUOTED if words not in sources] == []
    assert [words for words in QUOTED if words.partition(" {")[0] not in OPERATIONS] == []
    assert 2.9 < SETTINGS["collector.spool_mb"] * 1.048576 / 360 < 3.1, "1 GiB, the default, is three hours"
    assert Settings().analyzer.silence_s == 15, "`silent_s` above 15"
    final = re.findall(r"for good \((.*?)\)", OPERATIONS)[0].split(", ")
    assert sorted(shipping._FINAL_STATUS) == [int(code) for code in final]


def test_commands_for_many_hosts_reach_all_of_them_although_one_is_down(tmp_path: Path) -> None:
    lines = re.findall(r"^(?:xargs|\w+=').*$", code_in(OPERATIONS), re.MULTILINE)
    hosts = [f"gpu-{number:03}" for number in range(1, 41)]
    (tmp_path / "hosts").write_text("\n".join(hosts) + "\n")
    (tmp_path / "tokens").mkdir()
    for host in hosts:
        (tmp_path / "tokens" / host).write_text(f"token of {host}")
    ssh = tmp_path / "ssh"  # what ssh says of a host that is down is 255, at which xargs would stop for good
    ssh.write_text(f'#!/bin/sh\n[ $1 = root@gpu-003 ] && exit 255\n{{ echo "$1 $2"; cat; }} >>{tmp_path}/$1.log\n')
    ssh.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", "\n".join(lines)], cwd=tmp_path, env=environment, check=True, timeout=LIMIT_S)
    assert sum(line.startswith("xargs") for line in lines) == 3
    assert (tmp_path / "failed").read_text().splitlines() == ["gpu-003"] * 3
    assert {log.name for log in tmp_path.glob("*.log")} == {f"root@{host}.log" for host in hosts if host != "gpu-003"}
    said = (tmp_path / "root@gpu-007.log").read_text()
    for words in ("token of gpu-007", "collector.token", "enable --now", "ln -sfn lockstep-"):
        assert words in said


def test_query_finds_the_host_that_is_silent_and_the_one_that_is_behind(store: Store) -> None:
    (query,) = re.findall(r"^```sql\n(.*?)^```", OPERATIONS, re.DOTALL | re.MULTILINE)
    (now_s,) = store.query("SELECT toUnixTimestamp(now()) AS now_s")["now_s"].to_pylist()

    def beat(host: str, ago_s: int, behind_s: int = 0) -> Agent:
        ts_s = now_s - ago_s
        return make(Agent, host=host, ts_ns=ts_s * 10**9, watermark_ns=(ts_s - behind_s) * 10**9, version="0.1.0")

    beats = [beat("well", 60), beat("well", 0), beat("silent", 600), beat("behind", 0, 300), beat("gone", 7200)]
    store.insert(TABLE_BY_NAME["agents"], rows(*beats), "token")
    found = {row["host"]: row for row in store.query(query).to_pylist()}
    assert found.keys() == {"silent", "behind", "well"}
    assert found["silent"]["silent_s"] >= 600
    assert (found["behind"]["behind_s"], found["well"]["behind_s"], found["well"]["release"]) == (300, 0, "0.1.0")


@pytest.mark.parametrize("fault_class", get_args(FaultClass))
def test_every_class_has_a_runbook_with_all_its_parts(fault_class: str) -> None:
    told = RUNBOOKS.partition(f'<a id="{fault_class}"></a>')[2].partition("<a id=")[0]
    assert re.match(rf"\n\n### .*: `{fault_class}`\n", told)
    parts = re.findall(r"\*\*(It means|Look at|Confirm|Act|Undo|Attach)\*\*", told)
    assert parts == ["It means", "Look at", "Confirm", "Act", "Undo", "Attach"]


def test_every_anchor_is_there_once_and_pictures_that_are_named_are_in_grafana() -> None:
    anchors = re.findall(r'<a id="([^"]+)"></a>', OPERATIONS)
    assert len(anchors) == len(set(anchors)) >= 20
    named = set(re.findall(r'"([A-Z][\w ,:]+)"(?=[\s\w]*Grafana)|Grafana\'s\s"([\w ,:]+)"', RUNBOOKS))
    titles = {panel.title for panel in panels()} | {board["title"] for board in boards().values()}
    assert len(named) >= 3
    assert {one or other for one, other in named} <= titles


def test_every_question_and_page_of_the_runbooks_has_an_answer(embedded_store: Store, tmp_path: Path) -> None:
    assert len(QUESTIONS) >= 8
    assert len(PAGES) >= 4
    with running_api(tmp_path, embedded_store) as api:
        paths: dict[str, dict[str, Any]] = api.get("/openapi.json").json()["paths"]
        answers = {page: api.get(page) for page in PAGES}
    described = {
        re.sub(r"\{[^}]+\}", ".+", path): {parameter["name"] for parameter in ways["get"].get("parameters", ())}
        for path, ways in paths.items()
        if "get" in ways
    }
    for asked in QUESTIONS:
        path, _, query = asked.partition("?")
        known = [names for pattern, names in described.items() if re.fullmatch(pattern, f"/api/v1/{path}")]
        assert known, f"nobody answers {path}"
        assert any({pair.partition("=")[0] for pair in query.split("&") if pair} <= names for names in known), asked
    for page, answer in answers.items():
        named = re.findall("[A-Z]{3,}", page)  # nobody has heard of JOB and INCIDENT here, and a page says so by name
        assert answer.status_code == (404 if named else 200)
        assert all(name in answer.text for name in named)
