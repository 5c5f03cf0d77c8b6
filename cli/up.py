"""lockstep up: everything on this machine in one process, with a simulated cluster where that is wanted."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from api.app import create_app
from api.head import opened_head
from api.web import check_exposure, listen_on, scheme_of, serve, with_listen
from cli.setup import err, out, settings_of
from collector.agent import CollectorAgent
from collector.shipping import GatewayClient, MemoryQueue
from collector.sources.simulated import SimulatedCluster, SimulatedSource
from lockstep.clock import NS_PER_S, Clock, SystemClock, rfc3339
from lockstep.config import Settings
from lockstep.state.database import ControlDatabase
from lockstep.state.tokens import Scope, create_token, list_tokens, revoke_token
from lockstep.verdict import Incident
from simulator.scenario import Scenario, build_topology, find_scenario
from simulator.simulation import Simulation
from simulator.telemetry import Identity, SimulatedTelemetry

_TOKEN_NAME = "demo"  # noqa: S105  # the name of tokens, not one of them
_SEED = 7  # any will do: the fault is found with each


def command(
    context: typer.Context,
    demo: Annotated[bool, typer.Option("--demo", help="Add a simulated cluster in which a NIC turns slow.")] = False,
    scenario: Annotated[
        str, typer.Option(help="Which scenario the demo plays; see `lockstep scenario list`.")
    ] = "nic-half-speed",
) -> None:
    """Run everything in one process until Ctrl-C: store, gateway, API, analyzer and planner."""
    settings = settings_of(context)
    chosen = find_scenario(scenario) if demo else None
    if demo:  # nobody can reach it but from this machine, and the page says that it is open
        check_exposure(settings.api, is_demo=True)
        local = {"open_reads": True, "tls_cert": None, "tls_key": None}  # its collectors know no certificate
        settings = settings.model_copy(update={"api": settings.api.model_copy(update=local)})
    _run(settings, chosen)


def _run(settings: Settings, scenario: Scenario | None) -> None:
    clock = SystemClock()
    check_exposure(settings.api)
    listener = listen_on(settings.api.listen, "LOCKSTEP_API_LISTEN")
    settings = with_listen(settings, listener)
    topology = build_topology(scenario.cluster) if scenario else None
    notice = f"Demo: {scenario.summary}. Reads need no token." if scenario else ""
    with opened_head(
        settings, clock, topology, lambda incident: _print_incident(incident, clock.now_ns()), notice
    ) as (
        parts,
        duties,
    ):
        demo = Demo(scenario, settings, parts.control, clock) if scenario else None

        def start() -> None:
            duties.start()
            if demo:
                demo.start()
                err.print(f"{notice} A verdict follows within half a minute after second 20.")
            out.print(f"Lockstep is up: {scheme_of(settings.api)}://{settings.api.listen}  (Ctrl-C stops it)")

        def leave() -> None:
            try:
                err.print("stopping")
            finally:  # nobody may read it any more: what is printed into a closed pipe ends here
                if demo:
                    demo.close()
                duties.close()

        serve(create_app(parts), listener, start, leave, settings.api)
    err.print("stopped; nothing is left running")


class Demo:
    """The collectors of a scenario's hosts; `start` begins the scenario, `close` ends it."""

    def __init__(self, scenario: Scenario, settings: Settings, control: ControlDatabase, clock: Clock) -> None:
        self._scenario = scenario
        self._settings = settings
        self._control = control
        self._clock = clock
        self._agents: list[CollectorAgent] = []

    def start(self) -> None:
        start_ns = self._clock.now_ns()
        started = datetime.fromtimestamp(start_ns // NS_PER_S, UTC)
        identity = Identity(job=f"demo-{started:%Y%m%dT%H%M%S}", start_ns=start_ns)
        cluster = SimulatedCluster(SimulatedTelemetry(Simulation(self._scenario, _SEED), identity))
        # The first host asks the switches, as a head node does.
        head = cluster.hosts[0]
        self._agents = [self._agent(cluster, host, "fabric" if host == head else "ingest") for host in cluster.hosts]
        for agent in self._agents:
            agent.start()

    def close(self) -> None:
        for agent in self._agents:
            agent.close()
        for token in list_tokens(self._control):
            if token.name == _TOKEN_NAME and token.revoked_ns is None:
                revoke_token(self._control, token.id, self._clock.now_ns(), who="demo", why="the demo ended")

    def _agent(self, cluster: SimulatedCluster, host: str, scope: Scope) -> CollectorAgent:
        token = create_token(
            self._control, scope=scope, host=host, name=_TOKEN_NAME, now_ns=self._clock.now_ns(), who="demo"
        )
        return CollectorAgent(
            host=host,
            sources=[SimulatedSource(cluster, host)],
            queue=MemoryQueue(self._settings.collector.buffer_mb << 20),
            destination=GatewayClient(f"http://{self._settings.api.listen}", token, host),
            clock=self._clock,
        )


def _print_incident(incident: Incident, now_ns: int) -> None:
    """Print one line when an incident opens or closes; its updates are on the page.

    How late it comes is told by the wall clock, with what windows and watermarks take.
    """
    verdict = incident.verdict
    clock_time = rfc3339(incident.updated_ns)[11:19]
    if incident.state == "closed":
        out.print(Text.assemble(f"{clock_time} closed ", (verdict.component, "bold"), f": {incident.closed_because}"))
    elif incident.updated_ns == incident.opened_ns:
        seconds = (now_ns - verdict.since_ns) / NS_PER_S
        out.print(
            Text.assemble(
                f"{clock_time} {verdict.fault_class} ",
                (verdict.component, "bold red"),
                f" ({verdict.confidence:.2f}, reported {seconds:.1f} s after it began): {verdict.reason}",
            )
        )
