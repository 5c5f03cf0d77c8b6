"""docs/settings.md says what the code says, and every variable of ours that anything names is in it."""

import re
from pathlib import Path

from lockstep.config import NOT_SETTINGS, list_settings, settings_manual
from tests.conftest import REPO
from tests.repo.files import PACKAGES

MANUAL = REPO / "docs" / "settings.md"


def test_settings_manual_is_up_to_date(update_golden: bool) -> None:
    if update_golden:
        MANUAL.write_text(settings_manual(), encoding="utf-8")
    assert MANUAL.read_text(encoding="utf-8") == settings_manual(), "run this test with --update-golden"


def test_every_setting_has_one_row() -> None:
    rows = re.findall(
        r"^\| `([a-z._]+)` \| `([A-Z_]+)` \| (?:`[^`]+`|none) \| \S.*\|$", settings_manual(), re.MULTILINE
    )
    assert rows == [(".".join(setting.path), setting.variable) for setting in list_settings()]


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
    folders = [*PACKAGES, "benchmarks", "deploy", ".ci"]
    files = [file for folder in folders for file in (REPO / folder).rglob("*") if file.is_file()]
    return [REPO / "Makefile", *(file for file in files if file.suffix != ".pyc")]
