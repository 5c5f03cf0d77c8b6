"""One frozen tree of settings from a TOML file and LOCKSTEP_* variables, checked whole before anything starts.

A variable is LOCKSTEP_<SECTION>_<KEY> and wins over the file: LOCKSTEP_STORE_URL is `url` in `[store]`. Lists and
tables are given as JSON. Unknown keys and bad values are reported all at once.
"""

import json
import ssl
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import Field, ValidationError

from lockstep.alerts import AlertSettings
from lockstep.errors import BadInput, BadSettings
from lockstep.sections import (
    AnalyzerSettings,
    ApiSettings,
    CollectorSettings,
    ControlSettings,
    GatewaySettings,
    PlannerSettings,
    Section,
    StoreSettings,
)

DEFAULT_FILE = Path("/etc/lockstep/lockstep.toml")

# Variables of ours that are not settings.
NOT_SETTINGS = {
    "LOCKSTEP_CONFIG": "the settings file",
    "LOCKSTEP_SERVER": "address of the server that commands ask",
    "LOCKSTEP_TOKEN": "token of commands that ask a running server",
    "LOCKSTEP_CA_FILE": "authorities that its certificate may be signed by, beside the system's (SSL_CERT_FILE)",
    "LOCKSTEP_HOST": "name of the host, for the plugin",
    "LOCKSTEP_JOB": "id of the job, for the plugin",
    "LOCKSTEP_RING_DIR": "where the plugin keeps its ring files",
    "LOCKSTEP_RING_MIB": "size of a process's ring file, for the plugin",
    "LOCKSTEP_DETAIL": "how much the plugin records",
    "LOCKSTEP_SAMPLE": "share of operations whose steps the plugin records",
    "LOCKSTEP_BUDGET": "what the plugin may cost a job, in percent",
    "LOCKSTEP_KERNEL": "whether the plugin asks for GPU times",
    "LOCKSTEP_NCCL_VERSION": "NCCL release, where the plugin cannot find it",
    "LOCKSTEP_PLUGIN": "the plugin, for commands that play recordings through it",
    "LOCKSTEP_PATHS_FILE": "where path_shim reads planned source ports",
    "LOCKSTEP_PATHS_AGENT": "socket of the agent that path_shim asks for ports not known beforehand",
    "LOCKSTEP_PATHS_REPORT_DIR": "where path_shim reports which connections kept to the plan",
    "LOCKSTEP_RUN_REPORT": "where `lockstep run` says how its command ended",
    "LOCKSTEP_PUBLIC_DATA": "third-party data for tests",
    "LOCKSTEP_RESUME_FROM": "checkpoint from which a restarted job resumes, for the job",
    "LOCKSTEP_RESUME_FORMAT": "format of that checkpoint: dcp, torch_dist, ds_zero or universal, for the job",
    "LOCKSTEP_TARGET": "layout that a restarted job should take, as JSON, for the job",
    "LOCKSTEP_RESTART_MARK": "decision under which an elastic agent was started, for the torchrun controller",
    "LOCKSTEP_ACTION": "why a job was restarted, for the job",
    "LOCKSTEP_CI": "set in continuous integration, where nothing may be skipped",
}


class Settings(Section):
    """All settings of all parts; each part reads its own section."""

    state_dir: Path = Field(Path("/var/lib/lockstep"), description="what this machine must keep")
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="least severe line to print")
    lease_s: float = Field(8.0, gt=0, description="a service that is silent for this long loses its role")
    store: StoreSettings = StoreSettings()
    control: ControlSettings = ControlSettings()
    api: ApiSettings = ApiSettings()
    gateway: GatewaySettings = GatewaySettings()
    collector: CollectorSettings = CollectorSettings()
    analyzer: AnalyzerSettings = AnalyzerSettings()
    planner: PlannerSettings = PlannerSettings()
    alerts: AlertSettings = AlertSettings()

    @property
    def store_url(self) -> str:
        return self.store.url or f"chdb://{self._state_path}/store"

    @property
    def control_url(self) -> str:
        return self.control.url or f"sqlite:///{self._state_path}/control.db"

    @property
    def key_file(self) -> Path:
        return self.control.key_file or self.state_dir / "secrets.key"

    @property
    def _state_path(self) -> str:
        """The state directory as it stands in a URL."""
        return quote(str(self.state_dir.absolute()))


def load_settings(environment: Mapping[str, str], file: Path | None = None) -> Settings:
    """Return the settings, or raise BadSettings with every complaint about file and variables.

    The file is the one given, else LOCKSTEP_CONFIG, else /etc/lockstep/lockstep.toml if it is there.
    """
    complaints: list[str] = []
    tree = _read_file(_choose_file(environment, file), complaints)
    _lay_over(tree, environment, complaints)
    settings = _validate(tree, complaints)
    if complaints or settings is None:
        raise BadSettings(complaints)
    return settings


def make_state_dir(settings: Settings) -> Path:
    """Make the directory for what this machine must keep, where it is not there yet."""
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise BadInput(
            f"cannot make the state directory {settings.state_dir} ({error.strerror}); set LOCKSTEP_STATE_DIR"
        ) from error
    return settings.state_dir


def read_secret(file: Path | None, what: str) -> str:
    """Return what a secret file holds, without the newline at its end; nothing when no file is named."""
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {what} from {file}: {error}") from error


def trusted(ca_file: Path | None = None, setting: str = "LOCKSTEP_CA_FILE") -> ssl.SSLContext:
    """Return what certificates are checked with; SSL_CERT_FILE stands in for the system's authorities, as elsewhere.

    The setting is where the file was named, for who has to mend it.
    """
    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as error:
            raise BadInput(f"cannot read authorities from {ca_file} ({setting}): {error}") from error
    return context


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that can be set: where in the file, by which variable, and what it is when nobody says."""

    path: tuple[str, ...]  # section and key, or the key alone
    default: Any  # Any: settings have many types
    meaning: str

    @property
    def variable(self) -> str:
        return "_".join(("LOCKSTEP", *self.path)).upper()


def list_settings() -> list[Setting]:
    """Return every setting there is, in the order of their sections."""
    return list(_leaves())


def _choose_file(environment: Mapping[str, str], file: Path | None) -> Path | None:
    if file or "LOCKSTEP_CONFIG" in environment:
        return file or Path(environment["LOCKSTEP_CONFIG"])
    try:
        return DEFAULT_FILE if DEFAULT_FILE.exists() else None
    except PermissionError:  # in a directory that we may not look into: reading it says so
        return DEFAULT_FILE


def _read_file(file: Path | None, complaints: list[str]) -> dict[str, Any]:  # Any: TOML, not yet checked
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        complaints.append(f"{file}: {error}")
        return {}


def _lay_over(tree: dict[str, Any], environment: Mapping[str, str], complaints: list[str]) -> None:
    paths = {setting.variable: setting.path for setting in _leaves()}
    for name, text in sorted(environment.items()):
        if not name.startswith("LOCKSTEP_") or name in NOT_SETTINGS:
            continue
        if name in paths:
            _put(tree, paths[name], _parse(text))
        else:
            complaints.append(f"{name}: there is no such setting")


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    *sections, key = path
    for section in sections:
        inner = tree.setdefault(section, {})
        if not isinstance(inner, dict):
            return  # the file has a plain value where a section belongs; validation complains about that
        tree = inner
    tree[key] = value


def _parse(text: str) -> Any:
    """Read lists and tables as JSON and everything else as text, which pydantic turns into what is needed."""
    if text[:1] in "[{" and text:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    return text


def _validate(tree: dict[str, Any], complaints: list[str]) -> Settings | None:
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        complaints.extend(
            f"{'.'.join(map(str, problem['loc']))}: "
            + (
                "there is no such setting"
                if problem["type"] == "extra_forbidden"
                else f"{problem['msg'][0].lower()}{problem['msg'][1:]}"
            )
            for problem in error.errors()
        )
        return None


def _leaves() -> Iterator[Setting]:
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            for key, inner in section.model_fields.items():
                yield Setting((name, key), inner.get_default(call_default_factory=True), inner.description or "")
        else:
            yield Setting((name,), field.get_default(call_default_factory=True), field.description or "")


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
    others = "".join(f"| `{name}` | {_plain(meaning)} |\n" for name, meaning in NOT_SETTINGS.items())
    return "\n".join([_INTRODUCTION, *parts, _OTHERS + others])


def _section(name: str, section: type[Section], settings: Sequence[Setting]) -> str:
    title = f"`[{name}]`" if name else "At the top of the file"
    mine = [setting for setting in settings if ".".join(setting.path[:-1]) == name]
    rows = ""
    for each in mine:
        default = f"`{toml}`" if (toml := _as_toml(each.default)) else "none"
        rows += f"| `{'.'.join(each.path)}` | `{each.variable}` | {default} | {_plain(each.meaning)} |\n"
    return f"## {title}\n\n{section.__doc__}\n\n| key | variable | default | meaning |\n|---|---|---|---|\n{rows}"


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


def _plain(text: str) -> str:
    """Return text that stays in its cell and is not taken for HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;")
