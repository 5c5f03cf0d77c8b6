"""lockstep host and collect: a training host joins, leaves and is checked, and the agent on it."""

import os
import signal
import socket
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import structlog
import typer

from cli.setup import AsJson, configure_logging, out, settings_of
from collector.agent import CollectorAgent
from collector.host import Check, check_host, join, leave
from collector.metrics import serve_metrics
from collector.path_ports import PROBE_WAIT_S, AnswerServer, Choices, PathAgent, PortFinder, PortProber, listen
from collector.probes.paths import AddressBook, addresses_in
from collector.probes.sockets import RawExchange
from collector.registry import make_sources
from collector.shipping import BatchQueue, Checkpoints, Destination, GatewayClient, MemoryQueue, open_store_client
from collector.spool import Spool
from lockstep.allocation import leave_out_pandas
from lockstep.client.server import Server
from lockstep.clock import Clock, SystemClock
from lockstep.config import Settings, read_secret
from lockstep.errors import BadInput, LockstepError, NotPresent
from lockstep.sections import CollectorSettings
from lockstep.topology import load_topology

app = typer.Typer(no_args_is_help=True, help="A training host joins, leaves, and is checked.")

JoinToken = Annotated[
    str, typer.Option("--token", envvar="LOCKSTEP_TOKEN", help="`lockstep token create NAME --scope join` makes it.")
]
Host = Annotated[str, typer.Option(help="Name in the topology, where the host's own is another.")]
Authority = Annotated[Path | None, typer.Option(help="Authority that signed the head's certificate.")]

_log = structlog.get_logger("collect")


@app.command("join")
def join_command(server: str, token: JoinToken, host: Host = "", ca_file: Authority = None) -> None:
    """Report to a head node from now on, by a token of scope join; needs root."""
    with Server(server, token, ca_file=ca_file) as head:
        for step in join(head, host or _own_name(), ca_file):
            out.print(step, highlight=False)
    out.print("`lockstep host check` looks whether all is well", highlight=False)


@app.command("leave")
def leave_command() -> None:
    """Report no longer: stop the collector, and have the head node forget this host's token; needs root."""
    for step in leave():
        out.print(step, highlight=False)


@app.command("check")
def check(context: typer.Context, as_json: AsJson = False) -> None:
    """Look at head node, token, clock, plugin and sources, as the user and with the settings of the collector."""
    settings = settings_of(context).collector
    configure_logging("error")  # what sources have to say is among the checks
    host = settings.host or _own_name()
    checks: list[Check] = []
    for found in check_host(host, settings, SystemClock()):
        checks.append(found)
        if not as_json:
            out.print(f"{found.state:8} {found.name:12} {found.message}", highlight=False)
    if as_json:
        out.print_json(data=[asdict(found) for found in checks])
    if failed := [found.name for found in checks if found.state == "failed"]:
        raise LockstepError(f"{host} is not ready: mend {', '.join(dict.fromkeys(failed))}")


def collect(context: typer.Context) -> None:
    """Read this host and send what is found, until stopped."""
    settings = settings_of(context)
    leave_out_pandas()
    host = settings.collector.host or _own_name()
    signals, stop = StopSignals(), threading.Event()
    sources, destination, clock = make_sources(host, settings.collector), _destination(host, settings), SystemClock()
    queue, checkpoints = _queue(settings.collector, settings.state_dir / "spool")
    agent = CollectorAgent(host, sources, queue, destination, clock, checkpoints)
    agent.start()
    _follow_paths(host, settings.collector, clock, stop)
    stop_metrics = serve_metrics(agent, settings.collector.listen, clock)
    _log.info("collector is up", host=host, server=settings.collector.store_url or settings.collector.server)
    signals.wait()
    stop.set()
    stop_metrics()
    agent.close()


class StopSignals:
    """What SIGINT and SIGTERM say from now on; for the main thread.

    A handler that sets an event is not enough: a signal that comes just before the main thread begins to wait is
    noted and wakes nobody, and one that comes while it holds the event's lock waits for itself. A byte stays.
    """

    def __init__(self) -> None:
        self._wakeup, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)

    def wait(self) -> None:
        """Return when one has come, also where it came before."""
        os.read(self._wakeup, 1)


def _own_name() -> str:
    return socket.gethostname().split(".", 1)[0]


def _follow_paths(host: str, collector: CollectorSettings, clock: Clock, stop: threading.Event) -> None:
    """Keep the plan file of this host up to date, where it is wanted."""
    if collector.paths_file is None:
        return
    from collector.path_follower import PathFollower, make_client  # brings an HTTP client that others go without

    client = make_client(collector.server, read_secret(collector.token_file, "the host's token"), collector.ca_file)
    follower = PathFollower(client, host, collector.paths_file, collector.paths_reports, clock)
    threading.Thread(target=follower.follow, args=(stop,), name=f"{host}-paths", daemon=True).start()
    _find_ports(host, collector, clock, lambda: follower.choices)


def _find_ports(host: str, collector: CollectorSettings, clock: Clock, choices: Choices) -> None:
    """Answer jobs that ask for ports, where this host may probe and knows the fabric."""
    try:
        prober = _make_prober(host, collector.topology, clock)
        AnswerServer(
            listen(collector.paths_agent), PathAgent(PortFinder(prober, seed=clock.now_ns()), choices).answer
        )
    except (NotPresent, OSError) as error:  # the plan is followed all the same, where it names ports
        _log.warning("jobs that ask for ports get none", reason=str(error))


def _make_prober(host: str, topology_file: Path | None, clock: Clock) -> PortProber:
    if topology_file is None:
        raise NotPresent("the fabric is not known: set collector.topology")
    topology, exchange = load_topology(topology_file), RawExchange(clock, timeout_s=PROBE_WAIT_S)
    exchange.check()
    prober = PortProber(topology, host, AddressBook(topology, addresses_in(topology)), exchange.run)
    prober.prepare()
    return prober


def _destination(host: str, settings: Settings) -> Destination:
    collector = settings.collector
    if collector.store_url:
        password = read_secret(collector.store_password_file, "the password")
        return open_store_client(collector.store_url, password, host)
    token = read_secret(collector.token_file, "the host's token")
    if not token:
        raise BadInput("the agent needs a token: make one with `lockstep token create` and set collector.token_file")
    return GatewayClient(collector.server, token, host, collector.ca_file)


def _queue(settings: CollectorSettings, directory: Path) -> tuple[BatchQueue, Checkpoints]:
    """Return where batches wait, and how far an earlier agent had come."""
    memory_bytes = settings.buffer_mb << 20
    if not settings.spool_mb:
        return MemoryQueue(memory_bytes), {}
    spool = Spool(directory, settings.spool_mb << 20, memory_bytes)
    return spool, spool.checkpoints
