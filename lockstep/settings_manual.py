"""docs/settings.md as text: every setting with its variable and default, made from the settings themselves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.config import NOT_SETTINGS, Setting, Settings, list_settings
from lockstep.sections import Section

_INTRODUCTION = """\
# Settings

Settings come from a TOML file (`--config FILE`, else `LOCKSTEP_CONFIG`, else `/etc/lockstep/lockstep.toml` where it
exists) and from variables, which win. Lists and tables in a variable are JSON. A command that finds anything wrong
says all of it at once and does not start. This page is generated; `lockstep/config.py` is where to change it.
"""
_OTHERS = """\
## Variables that are not settings

| variable | meaning |
|---|---|
"""


def settings_manual() -> str:
    """Return the whole page."""
    settings = list_settings()
    parts = [_section("", Settings, settings)]
    parts += [
        _section(name, field.annotation, settings)
        for name, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    ]
    return "\n".join([_INTRODUCTION, *parts, _OTHERS + _rows_of(NOT_SETTINGS)])


def _section(name: str, section: type[Section], settings: Sequence[Setting]) -> str:
    title = f"`[{name}]`" if name else "At the top of the file"
    mine = [setting for setting in settings if ".".join(setting.place[:-1]) == name]
    rows = "".join(f"| {' | '.join(_cells(setting))} |\n" for setting in mine)
    return f"## {title}\n\n{section.__doc__}\n\n| key | variable | default | meaning |\n|---|---|---|---|\n{rows}"


def _cells(setting: Setting) -> tuple[str, ...]:
    key, default = ".".join(setting.place), _as_toml(setting.default)
    return f"`{key}`", f"`{setting.variable}`", f"`{default}`" if default else "none", _plain(setting.meaning)


def _as_toml(value: Any) -> str:  # Any: settings have many types
    """Return a default as it would stand in the file; empty where there is none."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return f'"{value}"'
    if isinstance(value, tuple):
        return str(list(value))
    return str(value)


def _rows_of(variables: Mapping[str, str]) -> str:
    return "".join(f"| `{name}` | {_plain(meaning)} |\n" for name, meaning in variables.items())


def _plain(text: str) -> str:
    """Return text that stays in its cell and is not taken for HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;")
