"""The services as the settings say: each of them for a process of its own, or all of them as one head node."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from time import monotonic

import structlog

from analyzer.pipeline import AnalyzerOptions, FollowOptions
from analyzer.service import AnalyzerService, Announce, ServiceOptions
from analyzer.straggler.kernels import NumericOptions
from analyzer.straggler.stragglers import StragglerOptions
from analyzer.windows.window import EvaluationOptions
from api.alerts.service import make_alerts
from api.dependencies import Parts
from api.ingest.gateway import Gateway, GatewayOptions
from lockstep.clock import NS_PER_S, Clock
from lockstep.config import Settings, make_state_dir
from lockstep.errors import BadInput
from lockstep.sealing import Keyring
from lockstep.sections import AnalyzerSettings, PlannerSettings
from lockstep.state.claims import BatchClaims
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.fabric import find_topology, list_topologies
from lockstep.state.leases import ALL_JOBS, Duty, DutyOptions, Shard, Work, check_held, unique_holder
from lockstep.store.engine import Embedded
from lockstep.store.maintenance import layout_of, served_store
from lockstep.store.store import Store
from lockstep.topology import Topology, TopologyIndex, load_topology
from lockstep.verdict import Incident
from planner.assembly import make_planner
from planner.paths.service import PathService

_LEAVE_S = 3.0  # for work under way; whoever stops us kills us after 5
_log = structlog.get_logger("duty")

_AGAIN_S = 2.0  # from the end of a process to the next: a store that is away is not asked all the time
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

Leave = threading.Event
Serve = Callable[[Leave], None]  # returns some time after it is set; is pickled


class DutyProcess:
    """Looks like a duty to whoever starts and stops it."""

    def __init__(self, name: str, control: ControlDatabase, clock: Clock, options: DutyOptions, serve: Serve) -> None:
        self.name = name
        self._control, self._clock, self._options, self._serve = control, clock, options, serve
        self._stop = threading.Event()
        self._spawning = threading.Lock()  # held from the decision to start a process until it can be stopped
        self._process = self._make()
        self._thread = threading.Thread(target=self._keep_running, name=f"duty-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        """Return how the process ended, until there is another."""
        code = self._process.exitcode
        return None if code is None else f"the process of {self.name} ended with {code}"

    def check_held(self) -> None:
        """Raise LockstepError where neither that process nor another holds the lease."""
        ttl_ns = int(self._options.lease_s * NS_PER_S)
        check_held(self._control, [self.name], ttl_ns, self._clock.now_ns())

    def wake(self) -> None:
        """Nothing: it looks once a second by itself."""

    def stop(self) -> None:
        """Tell the process to leave; `close` waits for it."""
        with self._spawning:
            self._stop.set()
            if self._process.pid and self._process.is_alive():
                self._process.terminate()

    def close(self, patience_s: float | None = None) -> None:
        """Wait for the process; one that stays beyond our patience is killed, and its lease expires by itself."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(patience_s)
        if self._process.pid and self._process.is_alive():
            _log.warning("duty is left in the midst of its work, its lease expires by itself", duty=self.name)
            self._process.kill()

    def _make(self) -> SpawnProcess:
        return get_context("spawn").Process(target=_run, args=(self._serve, os.getpid()), daemon=True)

    def _keep_running(self) -> None:
        while not self._stop.is_set():
            with self._spawning:
                if self._stop.is_set():
                    return
                self._process = self._make()
                self._process.start()
            self._process.join()
            if not self._stop.is_set():
                _log.error("duty is started again, its process ended", duty=self.name, code=self._process.exitcode)
                self._clock.wait(self._stop, _AGAIN_S)


@dataclass(frozen=True)
class Duties:
    """What one process does under leases."""

    all: tuple[Duty | DutyProcess, ...]
    stops: tuple[Callable[[], None], ...] = ()  # tell works that take long to end early

    def start(self) -> None:
        for duty in self.all:
            duty.start()

    def close(self) -> None:
        """Ask all of them to stop, then wait for all together."""
        for stop in (*(duty.stop for duty in self.all), *self.stops):
            stop()
        until_s = monotonic() + _LEAVE_S
        for duty in self.all:
            duty.close(max(until_s - monotonic(), 0.0))

    def wake(self, name: str) -> None:
        for duty in self.all:
            if duty.name == name:
                duty.wake()


@contextmanager
def opened_head(
    settings: Settings, clock: Clock, topology: Topology | None, announce: Announce, notice: str = ""
) -> Iterator[tuple[Parts, Duties]]:
    """Open all services and close them in the opposite order at the end; a given topology goes before others."""
    with opened_api(settings, clock, topology, notice) as (parts, alerts):

        def announce_and_alert(incident: Incident) -> None:
            announce(incident)
            alerts.wake("alerts")

        if settings.analyzer.processes > 1:
            raise BadInput("analyzer.processes above 1 is for `lockstep serve analyzer`: here all is one process")
        analyzer = make_analyzer(settings.analyzer, parts.store, parts.control, parts.topology, announce_and_alert)
        works = {
            "analyzer": analyzer.run_once,
            **_planner_works(settings.planner, parts.store, parts.control, parts.topology),
        }
        duties = Duties((*_duties(works, settings, parts.control, clock).all, *alerts.all), (analyzer.stop,))
        parts.gateway.inserted = partial(duties.wake, "analyzer")
        yield replace(parts, duties=tuple(duty.name for duty in duties.all)), duties


@contextmanager
def opened_api(
    settings: Settings, clock: Clock, topology: Topology | None = None, notice: str = ""
) -> Iterator[tuple[Parts, Duties]]:
    """Open what the API and the gateway need, and the duty that sends alerts."""
    make_state_dir(settings)
    with ExitStack() as stack:
        store = stack.enter_context(served_store(settings, clock))
        # A key file that was named is not made: it may be mistyped.
        keys = Keyring(settings.key_file, is_made=settings.control.key_file is None)
        control = stack.enter_context(open_control(settings.control_url, keys=keys))
        options = GatewayOptions(settings.gateway.segment_s, max_backlog_bytes=settings.gateway.max_backlog_mb << 20)
        parts = Parts(
            settings=settings,
            store=store,
            layout=layout_of(settings),
            control=control,
            gateway=Gateway(settings.state_dir / "gateway", store, clock, options, BatchClaims(control)),
            clock=clock,
            topology=topology or topology_of(settings.analyzer, control),
            notice=notice,
        )
        alerts = make_alerts(parts)
        stack.callback(alerts.close)
        yield replace(parts, duties=("alerts",)), _duties({"alerts": alerts.run_once}, settings, control, clock)


@contextmanager
def opened_analyzer(
    settings: Settings, clock: Clock, announce: Announce, shard: Shard = ALL_JOBS, others: Mapping[str, Serve] = {}
) -> Iterator[Duties]:
    """Open what turns closed windows of a shard into incidents, and what does so for others in their processes."""
    make_state_dir(settings)
    with served_store(settings, clock) as store, open_control(settings.control_url) as control:
        if shard.of > 1 and isinstance(store.address, Embedded):
            raise BadInput("analyzer.processes above 1 needs a ClickHouse server: an embedded store is one process's")
        service = make_analyzer(
            settings.analyzer, store, control, topology_of(settings.analyzer, control), announce, shard
        )
        own = _duties({shard.name: service.run_once}, settings, control, clock)
        options = DutyOptions(lease_s=settings.lease_s)
        apart = [DutyProcess(name, control, clock, options, serve) for name, serve in others.items()]
        yield Duties((*own.all, *apart), (service.stop,))


@contextmanager
def opened_planner(settings: Settings, clock: Clock) -> Iterator[Duties]:
    """Open what turns incidents into decisions; the store only where its telemetry is looked at."""
    make_state_dir(settings)
    with ExitStack() as stack:
        control = stack.enter_context(open_control(settings.control_url))
        needs_store = settings.planner.paths or settings.planner.controller != "none"
        store = stack.enter_context(served_store(settings, clock)) if needs_store else None
        works = _planner_works(settings.planner, store, control, topology_of(settings.analyzer, control))
        yield _duties(works, settings, control, clock)


def make_analyzer(
    settings: AnalyzerSettings,
    store: Store,
    control: ControlDatabase,
    topology: Topology | None,
    announce: Announce,
    shard: Shard = ALL_JOBS,
) -> AnalyzerService:
    evaluations = EvaluationOptions(hop_ns=settings.evaluation_s * NS_PER_S, shortest_ns=settings.window_s * NS_PER_S)
    straggler = StragglerOptions(numeric=NumericOptions(settings.device))
    follow = FollowOptions(analyzer=AnalyzerOptions(straggler=straggler), evaluations=evaluations)
    options = ServiceOptions(int(settings.silence_s * NS_PER_S), follow, shard)
    return AnalyzerService(store, control, TopologyIndex(topology) if topology else None, options, announce)


def topology_of(settings: AnalyzerSettings, control: ControlDatabase) -> Topology | None:
    """Return the topology in the file that is set, else the one published last; None without either."""
    if settings.topology:
        return load_topology(settings.topology)
    return find_topology(control)[1] if list_topologies(control, limit=1) else None


def _planner_works(
    settings: PlannerSettings, store: Store | None, control: ControlDatabase, topology: Topology | None
) -> dict[str, Work]:
    works: dict[str, Work] = {"planner": make_planner(settings, store, control, topology).run_once}
    if store is not None and settings.paths:
        if topology is None:
            raise BadInput(
                "planner.paths needs to know the fabric: set analyzer.topology, or `lockstep topology publish` it"
            )
        works["paths"] = PathService(store, control, topology).run_once
    return works


def _duties(works: dict[str, Work], settings: Settings, control: ControlDatabase, clock: Clock) -> Duties:
    options = DutyOptions(lease_s=settings.lease_s)
    return Duties(tuple(Duty(name, unique_holder(), control, clock, work, options) for name, work in works.items()))


def _run(serve: Serve, parent: int) -> None:
    """Serve until we are told to leave, or our parent is no more."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew that it should tell
        return
    leave = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches our parent, which tells us
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    serve(leave)
