"""docs/operations.md names commands, settings, files, values and words of our log that exist, and its queries run."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from collector import shipping
from lockstep.config import NOT_SETTINGS, Settings, list_settings
from lockstep.records import Agent
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from tests.builders import make, rows
from tests.conftest import REPO
from tests.deploy.chart import default_values
from tests.deploy.commands import check_command

TEXT = (REPO / "docs/operations.md").read_text()
CODE = "\n".join(re.findall(r"^```sh\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE) + re.findall(r"`([^`\n]+)`", TEXT))
SOURCES = "\n".join(
    file.read_text()
    for name in ("collector", "cli", "lockstep", "api")
    for file in sorted((REPO / name).rglob("*.py"))
)
SETTINGS = {".".join(setting.place): setting.default for setting in list_settings()}

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


def command_lines() -> list[str]:
    return re.findall(r"(?<![\w/.-])lockstep ((?:token|store) [^\n`&#]+)", CODE)


def test_there_are_commands_to_check() -> None:
    assert len(command_lines()) >= 5


@pytest.mark.parametrize("line", command_lines())
def test_every_command_is_taken(line: str) -> None:
    check_command(shlex.split(line))


def test_every_setting_is_there() -> None:
    sections = "|".join(sorted({name.partition(".")[0] for name in SETTINGS if "." in name}))
    named = set(re.findall(rf"`((?:{sections})\.[a-z_]+)`", TEXT))

    assert len(named) >= 5
    assert named <= SETTINGS.keys()


def test_every_variable_is_a_setting_or_said_not_to_be_one() -> None:
    known = {setting.variable for setting in list_settings()} | NOT_SETTINGS.keys()

    assert set(re.findall(r"\bLOCKSTEP_[A-Z_]+\b", TEXT)) <= known


def test_every_file_of_the_repository_is_there() -> None:
    named = set(re.findall(r"\b(?:deploy|docs|benchmarks|nccl_plugin)/[\w./-]*\w", TEXT))

    assert {name for name in named if not (REPO / name).exists()} <= {"nccl_plugin/build"}


def test_values_of_the_chart_that_are_set_are_there() -> None:
    assert set(re.findall(r"--set (\w+)=", TEXT)) <= default_values().keys()


@pytest.mark.parametrize("words", QUOTED)
def test_words_that_the_runbooks_quote_are_said(words: str) -> None:
    assert words in SOURCES
    assert words.partition(" {")[0] in TEXT


def test_figures_are_those_of_the_settings() -> None:
    hours = SETTINGS["collector.spool_mb"] * 1.048576 / 360

    assert 2.9 < hours < 3.1, "1 GiB, the default, is three hours"
    assert Settings().analyzer.silence_s == 15, "`silent_s` above 15"
    assert sorted(shipping._FINAL_STATUS) == [
        int(code) for code in re.findall(r"for good \((.*?)\)", TEXT)[0].split(", ")
    ]


def test_commands_for_many_hosts_reach_all_of_them_although_one_is_down(tmp_path: Path) -> None:
    lines = re.findall(r"^(?:xargs|\w+=').*$", CODE, re.MULTILINE)
    hosts = [f"gpu-{number:03}" for number in range(1, 41)]
    (tmp_path / "hosts").write_text("\n".join(hosts) + "\n")
    (tmp_path / "tokens").mkdir()
    for host in hosts:
        (tmp_path / "tokens" / host).write_text(f"token of {host}")
    ssh = tmp_path / "ssh"  # what ssh says of a host that is down is 255, at which xargs would stop for good
    ssh.write_text(f'#!/bin/sh\n[ $1 = root@gpu-003 ] && exit 255\n{{ echo "$1 $2"; cat; }} >>{tmp_path}/$1.log\n')
    ssh.chmod(0o755)

    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", "\n".join(lines)], cwd=tmp_path, env=environment, check=True, timeout=60)

    assert sum(line.startswith("xargs") for line in lines) == 3
    assert (tmp_path / "failed").read_text().splitlines() == ["gpu-003"] * 3
    assert {log.name for log in tmp_path.glob("*.log")} == {f"root@{host}.log" for host in hosts if host != "gpu-003"}
    said = (tmp_path / "root@gpu-007.log").read_text()
    assert "token of gpu-007" in said
    assert ["collector.token" in said, "enable --now" in said, "ln -sfn lockstep-" in said] == [True] * 3


def test_query_finds_the_host_that_is_silent_and_the_one_that_is_behind(store: Store) -> None:
    (query,) = re.findall(r"^```sql\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    (now_s,) = store.query("SELECT toUnixTimestamp(now()) AS now_s")["now_s"].to_pylist()
    now_ns = now_s * 1_000_000_000

    def beat(host: str, ago_s: int, behind_s: int) -> Agent:
        ts_ns = now_ns - ago_s * 1_000_000_000
        return make(Agent, host=host, ts_ns=ts_ns, watermark_ns=ts_ns - behind_s * 1_000_000_000, version="0.1.0")

    beats = [
        beat("well", 60, 0),
        beat("well", 0, 0),
        beat("silent", 600, 0),
        beat("behind", 0, 300),
        beat("gone", 7200, 0),
    ]
    store.insert(TABLE_BY_NAME["agents"], rows(*beats), "token")

    found = {row["host"]: row for row in store.query(query).to_pylist()}
    assert found.keys() == {"silent", "behind", "well"}
    assert found["silent"]["silent_s"] >= 600
    assert (found["behind"]["behind_s"], found["well"]["behind_s"], found["well"]["release"]) == (300, 0, "0.1.0")
