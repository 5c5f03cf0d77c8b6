"""docs/settings.md says what the code says, and every variable of ours that anything names is in it."""

import re
from pathlib import Path

from lockstep.config import NOT_SETTINGS, list_settings, settings_manual
from tests.conftest import REPO

MANUAL = REPO / "docs" / "settings.md"


def test_settings_manual_is_up_to_date(update_golden: bool) -> None:
    if update_golden:
        MANUAL.write_text(settings_manual(), encoding="utf-8")
    assert MANUAL.read_text(encoding="utf-8") == settings_manual(), "run this test with --update-golden"


def test_every_setting_has_one_row_with_key_variable_and_default() -> None:
    rows = re.findall(
        r"^\| `([a-z._]+)` \| `([A-Z_]+)` \| (`[^`]+`|none) \| \S.*\|$", settings_manual(), re.MULTILINE
    )
    assert [(key, variable) for key, variable, _ in rows] == [
        (".".join(setting.path), setting.variable) for setting in list_settings()
    ]
    defaults = {key: default for key, _, default in rows}
    assert defaults["api.listen"] == '`"127.0.0.1:8642"`'
    assert defaults["api.open_reads"] == "`false`"
    assert defaults["store.nodes"] == "`[]`"
    assert defaults["analyzer.topology"] == "none"


def test_every_variable_that_is_no_setting_is_listed() -> None:
    listed = re.findall(r"^\| `(LOCKSTEP_[A-Z_]+)` \|", settings_manual(), re.MULTILINE)
    assert listed == list(NOT_SETTINGS)


def test_every_variable_that_deployment_or_code_names_exists() -> None:
    known = set(NOT_SETTINGS) | {setting.variable for setting in list_settings()}
    named = {
        (name, str(file.relative_to(REPO)))
        for file in _files_that_set_variables()
        for name in re.findall(r"\bLOCKSTEP_[A-Z_]*[A-Z]\b", file.read_text(encoding="utf-8"))
    }
    assert {(name, file) for name, file in named if name not in known} == set()
    assert ("LOCKSTEP_API_LISTEN", "cli/serve.py") in named


def _files_that_set_variables() -> list[Path]:
    """Return everything but C, where names with our prefix are macros, and the tests, which invent wrong ones."""
    folders = [
        "lockstep",
        "collector",
        "analyzer",
        "planner",
        "api",
        "cli",
        "importers",
        "simulator",
        "benchmarks",
        "deploy",
        ".ci",
    ]
    files = [file for folder in folders for file in (REPO / folder).rglob("*") if file.is_file()]
    return [REPO / "Makefile", *(file for file in files if file.suffix != ".pyc")]
