"""What each part can be told: one class per section of the settings file, but for the planner's."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from lockstep.decision import Action, Mode

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
        "",
        description="chdb:///directory or http(s)://user@host:8123/database, of a cluster with several nodes, any of "
        "which will do: http://user@a:8123,b:8123/database; empty: <state_dir>/store",
    )
    password_file: Path | None = Field(None, description="file with the password, where the URL has none")
    memory_mb: int = Field(2048, ge=256, description="memory cap of the embedded engine, and of a query on a server")
    cluster: str | None = Field(None, description="name of the cluster in the servers' configuration; shards by job")
    nodes: tuple[str, ...] = Field(
        (), description="URLs of all nodes of the cluster, for migrations and backups; empty: those in url"
    )
    replicated: bool = Field(False, description="use Replicated engines, which need a Keeper")
    retention_days: dict[str, Days] = Field(
        default_factory=dict, description="days to keep rows by table, where not the default; 0 keeps them"
    )


class ControlSettings(Section):
    """Where small mutable state lives: incidents, decisions, tokens, leases."""

    url: str = Field(
        "", description="sqlite:///file or postgresql://user@host/database; empty: <state_dir>/control.db"
    )
    key_file: Path | None = Field(
        None,
        description="keys that seal receivers' secrets in it, the same for all API processes; "
        "None: <state_dir>/secrets.key, made when it is first needed",
    )


class ApiSettings(Section):
    """What people and programs talk to."""

    listen: Listen = Field("127.0.0.1:8642", description="address to serve on; loopback unless set otherwise")
    open_reads: bool = Field(False, description="let anyone who reaches the port read without a token")
    open_metrics: bool = Field(False, description="let scrapers on this machine read /metrics without a token")
    tls_cert: Path | None = Field(None, description="file with the certificate and its chain; None: plain HTTP")
    tls_key: Path | None = Field(None, description="file with the certificate's private key")
    tls_in_front: bool = Field(False, description="a proxy in front speaks TLS, so cookies are marked Secure")
    session_hours: float = Field(12.0, gt=0, le=720, description="after which a browser has to log in again")
    requests_per_s: float = Field(200.0, ge=0, description="of one token or address, on average; 0: no limit")
    batches_per_s: float = Field(200.0, ge=0, description="the same for what one collector sends; 0: no limit")
    max_body_kb: int = Field(1024, ge=1, description="largest body of a request that is no telemetry and no capture")
    max_capture_mb: int = Field(512, ge=1, description="largest capture that may be uploaded")
    store_reads: int = Field(
        24, ge=1, le=32, description="most requests that wait for the store at once; 40 threads serve everybody"
    )
    max_listeners: int = Field(
        100, ge=1, description="most readers of the incident stream at once; one token may have a quarter of them"
    )
    max_connections: int = Field(
        1024, ge=1, description="most connections of one address at once; without effect with tls_in_front"
    )
    metrics_jobs: int = Field(100, ge=0, description="most jobs with gauges of their own in /metrics")
    oidc_issuer: str = Field("", description="URL of an OpenID Connect issuer whose tokens are taken; empty: none")
    oidc_audience: str = Field("", description="what the issuer calls Lockstep; required with an issuer")
    oidc_claim: str = Field("groups", description="claim that holds groups or roles; dots lead into objects")
    oidc_scopes: dict[str, Literal["read", "act", "admin"]] = Field(
        default_factory=dict, description='scope by group or role, such as {"sre": "act"}; others get none'
    )
    oidc_name: str = Field("sub", description="claim that is written into the audit as who did it")

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key come together: one of them is missing")
        if self.oidc_issuer and not self.oidc_audience:
            raise ValueError("oidc_issuer needs oidc_audience, else tokens made for others would be taken")
        return self


class GatewaySettings(Section):
    """The way in for collectors' batches."""

    max_batch_mb: int = Field(8, ge=1, le=256, description="largest batch as it arrives")
    max_rows: int = Field(500_000, ge=1, description="most rows in one batch")
    max_backlog_mb: int = Field(4096, ge=16, description="log on disk beyond which agents are asked to wait")
    segment_s: float = Field(
        1.0,
        gt=0,
        le=60,
        description="one insert per table in this time: half of it in a lull, up to three times while hosts send",
    )


class CollectorSettings(Section):
    """The agent on a training host."""

    server: str = Field("http://127.0.0.1:8642", description="where the gateway is")
    ca_file: Path | None = Field(None, description="authorities that its certificate may be signed by, too")
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
        Path("/run/lockstep/paths/reports"), description="where path_shim reports which connections kept to the plan"
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
    processes: int = Field(1, ge=1, le=64, description="that share the jobs; on all head nodes as many")
    evaluation_s: int = Field(2, ge=1, le=60, description="time between two evaluations of a job")
    window_s: int = Field(6, ge=1, le=600, description="least stretch of time that an evaluation judges")
    silence_s: float = Field(15.0, gt=0, description="a host that sent nothing for this long is known as silent")
    topology: Path | None = Field(None, description="topology.json of the cluster; none: the one published last")
    device: Literal["auto", "numpy", "cpu", "cuda"] = Field(
        "auto", description="what computes long arrays; auto: a GPU where there is one, else numpy"
    )


class ModelHint(Section):
    """The size of a transformer and of its batch, from which its work by nodes is modelled."""

    parameters: float = Field(gt=0, description="such as 7e9")
    layers: int = Field(ge=1, description="that pipeline stages divide")
    hidden: int = Field(ge=1, description="width of a layer")
    sequence: int = Field(ge=1, description="tokens of a sequence")
    global_batch: int = Field(ge=1, description="sequences of a step")
    micro_batch: int = Field(1, ge=1, description="sequences of a micro-batch")


class JobHints(Section):
    """What a site says of a job beforehand: telemetry does not carry it."""

    tp: int = Field(1, ge=1, description="tensor-parallel GPUs")
    pp: int = Field(1, ge=1, description="pipeline stages")
    dp: int = Field(1, ge=1, description="replicas")
    micro_batches: int | None = Field(None, ge=1, description="per replica and step")
    weight: float = Field(1.0, gt=0, description="what its throughput is worth against that of other jobs")
    min_nodes: int = Field(1, ge=1, description="fewer, and it cannot run")
    throughput: dict[int, float] = Field(
        default_factory=dict,
        description="work a second by nodes, in one unit for all jobs; empty: as telemetry has seen it",
    )
    model: ModelHint | None = Field(
        None, description="its size, for node counts on which it was not seen; None: by its layout, or in proportion"
    )


class PlannerSettings(Section):
    """Turns incidents into decisions, and carries out those that may be."""

    listen: Listen = Field("127.0.0.1:8644", description="address of its health and metrics")
    paths: bool = Field(False, description="plan paths for the flows of all jobs; needs a topology")
    controller: str = Field(
        "none",
        description="who carries decisions out: none, slurm, torchrun, kubernetes, nvrx, webhook or command; in_job "
        "beside one of them (docs/training.md)",
    )
    controller_options: dict[str, Any] = Field(
        default_factory=dict, description='options of the controller, such as {"timeout_s": 10}'
    )  # Any: each controller has its own, and checks them
    modes: dict[Action, Mode] = Field(
        default_factory=dict, description='what may be done automatically: {"replace": "propose"}; else only observed'
    )
    spares: tuple[str, ...] = Field((), description="nodes kept idle for replacements, best first")
    gpu_hour_price: float | None = Field(None, ge=0, description="what a GPU-hour costs, to show losses as money")
    checkpoints: str = Field("", description="directory of a job's checkpoints, with {job} in it; empty: unknown")
    read_mb_per_s: float = Field(1000.0, gt=0, description="at which a checkpoint is loaded by the whole job")
    checkpoint_quiet_s: float = Field(
        10.0, ge=0, description="after a file's last change; until then it is being written"
    )
    converter: tuple[str, ...] = Field(
        (),
        description="DeepSpeed's converter, run before a restart on another layout, such as "
        '["/opt/train/bin/python", "-m", "deepspeed.checkpoint.ds_to_universal"]; empty: never',
    )
    convert_timeout_s: float = Field(3600.0, gt=0, description="after which a conversion has failed")
    jobs: dict[str, JobHints] = Field(
        default_factory=dict, description="hints by job; those of * hold for all others"
    )
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

    def mode_of(self, action: Action) -> Mode:
        """Return whether an action is observed, proposed or carried out."""
        return self.modes.get(action, "observe")
