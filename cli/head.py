"""The head node in one process: store, control state, gateway and API, analyzer and planner."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from analyzer.following import FollowOptions
from analyzer.lateness.late import LatenessOptions
from analyzer.looks import LookOptions
from analyzer.numeric.kernels import NumericOptions
from analyzer.pipeline import AnalyzerOptions
from analyzer.service import AnalyzerService, Announce, ServiceOptions
from api.alerts.service import make_alerts
from api.gateway.gateway import Gateway, GatewayOptions
from api.parts import Parts
from cli.opening import layout_of, served_store, unique_holder
from cli.planning import make_planner
from cli.setup import make_state_dir
from lockstep.clock import NS_PER_S, Clock
from lockstep.config import Settings
from lockstep.control.database import ControlDatabase, open_control
from lockstep.control.duty import Duty, DutyOptions, Work
from lockstep.control.topologies import find_topology, list_topologies
from lockstep.errors import BadInput
from lockstep.sealing import Keyring
from lockstep.store.store import Store
from lockstep.topology import Topology, TopologyIndex, load_topology
from planner.paths.service import PathService


@dataclass(frozen=True)
class Head:
    """Everything a head node has opened."""

    parts: Parts
    duties: tuple[Duty, ...]


@contextmanager
def opened_head(
    settings: Settings, clock: Clock, topology: Topology | None, announce: Announce, notice: str = ""
) -> Iterator[Head]:
    """Open all parts, hand them over, and close them in the opposite order; a given topology goes before others."""
    make_state_dir(settings)
    with ExitStack() as stack:
        store = stack.enter_context(served_store(settings, clock))
        control = stack.enter_context(open_control(settings.control_url, keys=keys_of(settings)))
        topology = topology or topology_of(settings, control)
        parts = Parts(
            settings=settings,
            store=store,
            layout=layout_of(settings),
            control=control,
            gateway=make_gateway(settings, store, clock),
            clock=clock,
            topology=topology,
            notice=notice,
        )
        analyzer = make_analyzer(settings, store, control, topology, announce)
        planner = make_planner(settings, store, control, topology)
        works: dict[str, Work] = {"analyzer": analyzer.run_once, "planner": planner.run_once}
        if settings.planner.paths:
            works["paths"] = make_path_service(store, control, topology).run_once
        alerts = make_alerts(parts)
        stack.callback(alerts.close)
        works["alerts"] = alerts.run_once
        yield Head(parts, tuple(make_duty(name, work, settings, control, clock) for name, work in works.items()))


def keys_of(settings: Settings) -> Keyring:
    """Return what seals secrets in the control database; a file that was named is not made: it may be mistyped."""
    named = settings.control.key_file
    return Keyring(named or settings.state_dir / "secrets.key", is_made=named is None)


def make_gateway(settings: Settings, store: Store, clock: Clock) -> Gateway:
    options = GatewayOptions(
        segment_s=settings.gateway.segment_s, max_backlog_bytes=settings.gateway.max_backlog_mb << 20
    )
    return Gateway(settings.state_dir / "gateway", store, clock, options)


def make_analyzer(
    settings: Settings, store: Store, control: ControlDatabase, topology: Topology | None, announce: Announce
) -> AnalyzerService:
    looks = LookOptions(hop_ns=settings.analyzer.look_s * NS_PER_S, shortest_ns=settings.analyzer.window_s * NS_PER_S)
    lateness = LatenessOptions(numeric=NumericOptions(device=settings.analyzer.device))
    follow = FollowOptions(analyzer=AnalyzerOptions(lateness=lateness), looks=looks)
    options = ServiceOptions(int(settings.analyzer.silence_s * NS_PER_S), follow)
    return AnalyzerService(store, control, TopologyIndex(topology) if topology else None, options, announce)


def make_path_service(store: Store, control: ControlDatabase, topology: Topology | None) -> PathService:
    if topology is None:
        raise BadInput(
            "planner.paths needs to know the fabric: set analyzer.topology, or `lockstep topology publish` it"
        )
    return PathService(store, control, topology)


def make_duty(name: str, work: Work, settings: Settings, control: ControlDatabase, clock: Clock) -> Duty:
    return Duty(name, unique_holder(), control, clock, work, DutyOptions(lease_s=settings.lease_s))


def topology_of(settings: Settings, control: ControlDatabase) -> Topology | None:
    """Return the topology in the file that is set, else the one published last; None without either."""
    if settings.analyzer.topology:
        return load_topology(settings.analyzer.topology)
    return find_topology(control)[1] if list_topologies(control, limit=1) else None
