"""One frozen tree of settings from a TOML file and LOCKSTEP_* variables, checked whole before anything starts.

A variable is LOCKSTEP_<SECTION>_<KEY> and wins over the file: LOCKSTEP_STORE_URL is `url` in `[store]`. Lists and
tables are given as JSON. Unknown keys and bad values are reported all at once.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lockstep.decision import Action, Mode
from lockstep.errors import BadInput, BadSettings

DEFAULT_FILE = Path("/etc/lockstep/lockstep.toml")

# Variables of ours that are not settings.
NOT_SETTINGS = {
    "LOCKSTEP_CONFIG": "the settings file",
    "LOCKSTEP_TOKEN": "token of commands that ask a running server",
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
    "LOCKSTEP_PATHS_REPORT_DIR": "where path_shim tells which connections kept to the plan",
    "LOCKSTEP_RUN_REPORT": "where `lockstep run` says how its command ended",
    "LOCKSTEP_PUBLIC_DATA": "third-party data for tests",
    "LOCKSTEP_RESUME_FROM": "checkpoint from which a restarted job resumes, for the job",
    "LOCKSTEP_TARGET": "layout that a restarted job should take, as JSON, for the job",
    "LOCKSTEP_RESTART_MARK": "decision under which an elastic agent was started, for the torchrun controller",
    "LOCKSTEP_ACTION": "why a job was restarted, for the job",
    "LOCKSTEP_CI": "set in continuous integration, where nothing may be skipped",
}


_LISTEN = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+)):([0-9]{1,5})")


def split_listen(value: str) -> tuple[str, int]:
    """Return host and port of `host:port`; an IPv6 host stands in brackets.

    >>> split_listen("[::1]:8642")
    ('::1', 8642)
    """
    match = _LISTEN.fullmatch(value)
    if not match or int(match[3]) > 65535:
        raise ValueError(f"{value!r} is not host:port")
    return match[1] or match[2], int(match[3])


def _check_listen(value: str) -> str:
    split_listen(value)
    return value


Listen = Annotated[str, AfterValidator(_check_listen)]
Days = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """Base of all sections: frozen, and nothing is taken that has no meaning."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class StoreSettings(Section):
    """Where telemetry lives."""

    url: str = Field(
        "", description="chdb:///directory or http(s)://user@host:8123/database; empty: <state_dir>/store"
    )
    password_file: Path | None = Field(None, description="file with the password, where the URL has none")
    memory_mb: int = Field(2048, ge=256, description="memory cap of the embedded engine, and of a query on a server")
    cluster: str | None = Field(None, description="name of the cluster in the servers' configuration; shards by job")
    nodes: tuple[str, ...] = Field((), description="URLs of all nodes of the cluster, for migrations and backups")
    replicated: bool = Field(False, description="use Replicated engines, which need a Keeper")
    retention_days: dict[str, Days] = Field(
        default_factory=dict, description="days to keep rows by table, where not the default; 0 keeps them"
    )


class ControlSettings(Section):
    """Where small mutable state lives: incidents, decisions, tokens, leases."""

    url: str = Field(
        "", description="sqlite:///file or postgresql://user@host/database; empty: <state_dir>/control.db"
    )


class ApiSettings(Section):
    """What people and programs talk to."""

    listen: Listen = Field("127.0.0.1:8642", description="address to serve on; loopback unless told otherwise")
    open_reads: bool = Field(False, description="let anyone who reaches the port read without a token")


class GatewaySettings(Section):
    """The way in for collectors' batches."""

    max_batch_mb: int = Field(8, ge=1, le=256, description="largest batch as it arrives")
    max_rows: int = Field(500_000, ge=1, description="most rows in one batch")
    max_backlog_mb: int = Field(4096, ge=16, description="log on disk beyond which agents are told to wait")
    segment_s: float = Field(1.0, gt=0, le=60, description="one insert per table in this time")


class CollectorSettings(Section):
    """The agent on a training host."""

    server: str = Field("http://127.0.0.1:8642", description="where the gateway is")
    token_file: Path | None = Field(None, description="file with this host's ingest token")
    host: str = Field("", description="name of this host in the topology; empty: its host name")
    store_url: str = Field("", description="ClickHouse to insert into without a gateway, for up to 50 hosts")
    store_password_file: Path | None = Field(None, description="file with its password, where the URL has none")
    sources: tuple[str, ...] = Field((), description="names of the sources to read; empty: all there are")
    ring_dirs: tuple[Path, ...] = Field(
        (Path("/run/lockstep/rings"), Path("/dev/shm/lockstep")),  # noqa: S108  # where the plugin writes by itself
        description="where ring files are, on the host and in containers",
    )
    spool_mb: int = Field(
        1024, ge=0, description="disk for what could not be sent yet, in <state_dir>/spool; 0: none"
    )
    buffer_mb: int = Field(32, ge=1, description="memory for the same, where there is no disk or it takes nothing")
    listen: Listen = Field("127.0.0.1:8645", description="address of its metrics")
    topology: Path | None = Field(None, description="topology.json of the cluster; probes need the addresses in it")
    fabric_targets: Path | None = Field(None, description="file that names exporters of switches; on the head node")
    probes: bool = Field(False, description="probe paths to other hosts of the topology; needs CAP_NET_RAW")
    probe_packets_per_s: float = Field(20.0, gt=0, le=10_000, description="most probe packets a second")
    probe_protos: tuple[Literal["tcp", "roce", "udp"], ...] = Field(
        ("tcp",), min_length=1, description="what probes look like to switches; with RoCE: roce and tcp"
    )
    paths_file: Path | None = Field(
        None, description="where path_shim reads planned ports, such as /run/lockstep/paths/plan; None: no plan"
    )
    paths_reports: Path = Field(
        Path("/run/lockstep/paths/reports"), description="where path_shim tells which connections kept to the plan"
    )
    paths_agent: str = Field(
        "/run/lockstep/paths/agent",
        description="unix socket at which path_shim asks for ports that are not known beforehand; @name: abstract",
    )
    compare_clocks: bool = Field(False, description="compare this host's clock with other hosts of the topology")
    clock_reference: str = Field("", description="host that all compare themselves with; empty: the first")
    clock_key_file: Path | None = Field(None, description="file with a key that all collectors share")
    clock_port: int = Field(8641, ge=1, le=65535, description="UDP port for comparing clocks")


class AnalyzerSettings(Section):
    """Turns closed windows into verdicts."""

    listen: Listen = Field("127.0.0.1:8643", description="address of its health and metrics")
    look_s: int = Field(2, ge=1, le=60, description="time between two looks at a job")
    window_s: int = Field(6, ge=1, le=600, description="least stretch of time that a look judges")
    silence_s: float = Field(15.0, gt=0, description="a host that sent nothing for this long is known as silent")
    topology: Path | None = Field(None, description="topology.json of the cluster; none: the one published last")
    device: Literal["auto", "numpy", "cpu", "cuda"] = Field(
        "auto", description="what computes long arrays; auto: a GPU where there is one, else numpy"
    )


class JobHints(Section):
    """What a site says of a job beforehand: telemetry does not carry it."""

    tp: int = Field(1, ge=1, description="tensor-parallel GPUs")
    pp: int = Field(1, ge=1, description="pipeline stages")
    dp: int = Field(1, ge=1, description="replicas")
    micro_batches: int | None = Field(None, ge=1, description="per replica and step")
    weight: float = Field(1.0, gt=0, description="what its throughput is worth against that of other jobs")
    min_nodes: int = Field(1, ge=1, description="fewer, and it cannot run")
    throughput: dict[int, float] = Field(
        default_factory=dict, description="work a second by nodes, in one unit for all jobs; empty: in proportion"
    )


class PlannerSettings(Section):
    """Turns incidents into decisions, and carries out those that may be."""

    listen: Listen = Field("127.0.0.1:8644", description="address of its health and metrics")
    paths: bool = Field(False, description="plan roads for the flows of all jobs; needs a topology")
    controller: str = Field(
        "none", description="who carries decisions out: none, slurm, torchrun, kubernetes, nvrx, webhook or command"
    )
    controller_options: dict[str, Any] = Field(
        default_factory=dict, description='what the controller is told, such as {"timeout_s": 10}'
    )  # Any: each controller has its own, and checks them
    modes: dict[Action, Mode] = Field(
        default_factory=dict, description='what may be done by itself: {"replace": "propose"}; else only observed'
    )
    spares: tuple[str, ...] = Field((), description="nodes kept idle for replacements, best first")
    gpu_hour_price: float | None = Field(None, ge=0, description="what a GPU-hour costs, to show losses as money")
    checkpoints: str = Field("", description="directory of a job's checkpoints, with {job} in it; empty: unknown")
    read_mb_per_s: float = Field(1000.0, gt=0, description="at which a checkpoint is loaded by the whole job")
    checkpoint_quiet_s: float = Field(
        10.0, ge=0, description="after a file's last change; until then it is being written"
    )
    jobs: dict[str, JobHints] = Field(
        default_factory=dict, description="hints by job; those of * hold for all others"
    )
    can_shrink: bool = Field(False, description="jobs go on without a worker when they are told to")
    test_command: tuple[str, ...] = Field(
        (), description="tests an isolated {node}: exit code 0 returns it to service"
    )
    test_timeout_s: float = Field(1800.0, gt=0, description="after which a test has failed")
    test_after_s: float = Field(60.0, ge=0, description="rest of an isolated node before its test")
    nodes_per_hour: int = Field(2, ge=0, description="most nodes that are isolated in an hour without a person")
    restarts_per_hour: int = Field(6, ge=0, description="most jobs that are restarted in an hour without a person")
    nodes_out: int = Field(8, ge=0, description="most nodes that are out of service at once without a person")
    share_of_block: float = Field(0.25, ge=0, le=1, description="the same within one rack or leaf; one always may be")
    start_s: float = Field(
        120.0, ge=0, description="from the order until a new attempt's first step, without loading"
    )


class Settings(Section):
    """All settings of all parts; each part reads its own section."""

    state_dir: Path = Field(Path("/var/lib/lockstep"), description="what this machine must keep")
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="least severe line to print")
    lease_s: float = Field(15.0, gt=0, description="a service that is silent for this long loses its role")
    store: StoreSettings = StoreSettings()
    control: ControlSettings = ControlSettings()
    api: ApiSettings = ApiSettings()
    gateway: GatewaySettings = GatewaySettings()
    collector: CollectorSettings = CollectorSettings()
    analyzer: AnalyzerSettings = AnalyzerSettings()
    planner: PlannerSettings = PlannerSettings()

    @property
    def store_url(self) -> str:
        return self.store.url or f"chdb://{self._state_path}/store"

    @property
    def control_url(self) -> str:
        return self.control.url or f"sqlite:///{self._state_path}/control.db"

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


def read_secret(file: Path | None, what: str) -> str:
    """Return what a secret file holds, without the newline at its end; nothing when no file is named."""
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {what} from {file}: {error}") from error


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that can be set: where in the file, by which variable, and what it is when nobody says."""

    place: tuple[str, ...]  # section and key, or the key alone
    default: Any  # Any: settings have many types
    meaning: str

    @property
    def variable(self) -> str:
        return "_".join(("LOCKSTEP", *self.place)).upper()


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
    places = {setting.variable: setting.place for setting in _leaves()}
    for name, text in sorted(environment.items()):
        if not name.startswith("LOCKSTEP_") or name in NOT_SETTINGS:
            continue
        if name in places:
            _put(tree, places[name], _parse(text))
        else:
            complaints.append(f"{name}: there is no such setting")


def _put(tree: dict[str, Any], place: tuple[str, ...], value: Any) -> None:
    *sections, key = place
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
            _complain(".".join(map(str, problem["loc"])), problem["type"], problem["msg"])
            for problem in error.errors()
        )
        return None


def _complain(key: str, kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return f"{key}: there is no such setting"
    return f"{key}: {message[0].lower()}{message[1:]}"


def _leaves() -> Iterator[Setting]:
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            for key, inner in section.model_fields.items():
                yield Setting((name, key), inner.get_default(call_default_factory=True), inner.description or "")
        else:
            yield Setting((name,), field.get_default(call_default_factory=True), field.description or "")
