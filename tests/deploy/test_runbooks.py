"""Runbooks of docs/operations.md: one for every class; each page, question, command and picture they name exists."""

import re
import shlex
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import open_store
from lockstep.verdict import FaultClass
from tests.api.build import Api, running_api
from tests.conftest import REPO
from tests.deploy.commands import check_command
from tests.deploy.grafana_boards import boards, panels

TEXT = (REPO / "docs/operations.md").read_text()
RUNBOOKS = TEXT.partition("\n## Runbooks\n")[2].partition("\n## ")[0]
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
CODE = _BLOCK.findall(RUNBOOKS) + re.findall(r"`([^`]+)`", _BLOCK.sub("", RUNBOOKS))
COMMANDS = sorted(
    {
        re.sub(r"\s+", " ", words).strip()
        for text in CODE
        for words in re.findall(r"(?<![\w./-])lockstep ((?:top|decisions|isolations|store) [^\n`#&]+)", text)
    }
)
QUESTIONS = sorted({path for text in CODE for path in re.findall(r"\bask ([\w/:?=]+)", text)})
PAGES = sorted({text for text in CODE if re.fullmatch(r"/(?!version)[a-z-]+(?:[/?][\w=/]+)?", text)})


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    with open_store(f"chdb://{folder / 'store'}") as store:
        migrate(store, Layout(store.database), now_ns=1)
        with running_api(folder, store) as running:
            yield running


@pytest.fixture(scope="module")
def described(api: Api) -> dict[str, set[str]]:
    """What can be asked for: paths of the API as patterns, and what may stand behind the question mark."""
    paths: dict[str, dict[str, Any]] = api.get("/openapi.json").json()["paths"]
    return {
        re.sub(r"\{[^}]+\}", ".+", path): {parameter["name"] for parameter in ways["get"].get("parameters", ())}
        for path, ways in paths.items()
        if "get" in ways
    }


def runbook(anchor: str) -> str:
    """Return what stands between an anchor and the next one."""
    return RUNBOOKS.partition(f'<a id="{anchor}"></a>')[2].partition("<a id=")[0]


@pytest.mark.parametrize("fault_class", get_args(FaultClass))
def test_every_class_has_a_runbook_with_all_its_parts(fault_class: str) -> None:
    told = runbook(fault_class)

    assert re.match(rf"\n\n### .*: `{fault_class}`\n", told)
    parts = re.findall(r"\*\*(It means|Look at|Confirm|Act|Undo|Attach)\*\*", told)
    assert parts == ["It means", "Look at", "Confirm", "Act", "Undo", "Attach"]


def test_every_anchor_is_there_once() -> None:
    anchors = re.findall(r'<a id="([^"]+)"></a>', TEXT)

    assert len(anchors) == len(set(anchors)) >= 20


def test_there_is_something_to_check() -> None:
    assert (len(COMMANDS) >= 10, len(QUESTIONS) >= 8, len(PAGES) >= 4) == (True, True, True)


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_taken(line: str) -> None:
    check_command(shlex.split(line))


@pytest.mark.parametrize("asked", QUESTIONS)
def test_every_question_has_an_answer(described: dict[str, set[str]], asked: str) -> None:
    path, _, query = asked.partition("?")
    known = [names for pattern, names in described.items() if re.fullmatch(pattern, f"/api/v1/{path}")]

    assert known, f"nobody answers {path}"
    assert any({pair.partition("=")[0] for pair in query.split("&") if pair} <= names for names in known)


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_there(api: Api, page: str) -> None:
    answer = api.get(page)

    # Nobody has heard of JOB and INCIDENT here; a page that is there says so by name.
    named = re.findall("[A-Z]{3,}", page)
    assert answer.status_code == (404 if named else 200)
    assert all(name in answer.text for name in named)


def test_pictures_that_are_named_are_in_grafana() -> None:
    named = set(re.findall(r'"([A-Z][\w ,:]+)"(?=[\s\w]*Grafana)|Grafana\'s\s"([\w ,:]+)"', RUNBOOKS))
    titles = {panel.title for panel in panels()} | {board["title"] for board in boards().values()}

    assert len(named) >= 3
    assert {one or other for one, other in named} <= titles
