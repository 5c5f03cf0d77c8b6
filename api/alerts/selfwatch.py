"""Does Lockstep itself watch? Agents, windows, store, services and the queue: who is silent is told about.

What this cannot see is its own death; for that the watchdog fires at Alertmanager, and somebody there misses it.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import structlog

from api.alerts.active import trouble_alert
from lockstep.alerts import Alert
from lockstep.clock import NS_PER_S
from lockstep.errors import StoreError
from lockstep.state.database import ControlDatabase, lease_ends
from lockstep.state.deliveries import oldest_waiting
from lockstep.state.tokens import expects_agents
from lockstep.store.store import Store

_log = structlog.get_logger("alerts")

_LOOKBACK = 2  # times our patience: a day of heartbeats of a thousand hosts would be too much to read each time
_CHECK_NS = 15 * NS_PER_S  # between two looks
_HANGING_NS = 60 * NS_PER_S  # far longer than the questions take
_LIVE_NS = 60 * NS_PER_S  # well beyond the analyzer's patience with a silent host


@dataclass(frozen=True)
class Watched:
    """What is asked whether Lockstep itself is well."""

    store: Store
    gateway_trouble: Callable[[], str | None] = lambda: None
    services: tuple[str, ...] = ("analyzer", "planner")


@dataclass(frozen=True, slots=True)
class Agents:
    """Hosts that were last_seen of lately: how many, the newest word, and the one whose data is furthest behind.

    Hosts whose agents stopped in order are counted apart: nothing more is expected of them.
    """

    hosts: int
    last_seen_ns: int
    last_host: str = ""
    behind_s: float = 0.0  # of last_host: from its newest heartbeat back to its watermark
    ended: int = 0  # hosts whose agents have said their last word


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found out about Lockstep; None: it could not be asked."""

    agents: Agents | None
    expects_agents: bool  # a collector has a token, or was last_seen of before
    store_trouble: str | None
    store_used: float | None  # share of its disk
    lease_ends: Mapping[str, int]  # of all services that there should be
    oldest_message: tuple[str, int] | None  # for which receiver, and since when


@dataclass(frozen=True, slots=True)
class Patience:
    """How long something may be away before a person is told."""

    silent_s: float = 300.0
    full_share: float = 0.9
    since_ns: int = 0  # when we began to watch: before that, nobody had a chance


class SelfWatch:
    """Looks at Lockstep from time to time, in a thread of its own: a store that hangs must not hold up alerts."""

    def __init__(self, watched: Watched, control: ControlDatabase, patience: Patience) -> None:
        self._watched, self._control, self._patience = watched, control, patience
        self._troubles: dict[str, Alert] = {}  # replaced as a whole
        self._had_agents = False
        self._all_ended = False
        self._checked_ns = 0
        self._checking: threading.Thread | None = None

    def evaluate(self, reported: Mapping[str, Alert], targets: Collection[str], now_ns: int) -> dict[str, Alert]:
        """Return what is wrong; while we have not watched for long enough, what was told before still is."""
        is_checking = self._checking is not None and self._checking.is_alive()
        if not is_checking and now_ns - self._checked_ns >= _CHECK_NS:
            self._begin(reported, targets, now_ns)
        troubles = self._troubles
        if is_checking and now_ns - self._checked_ns >= _HANGING_NS:
            hanging = f"the store is away: it has not answered for {_HANGING_NS // NS_PER_S} s"
            troubles = {"lockstep:store": trouble_alert("store", hanging, self._checked_ns), **troubles}
        if now_ns - self._patience.since_ns >= self._patience.silent_s * NS_PER_S + _HANGING_NS:
            return troubles
        return {**reported, **troubles}

    def wait(self) -> None:
        """Wait for the evaluate that is under way."""
        if self._checking:
            self._checking.join()

    def _begin(self, reported: Mapping[str, Alert], targets: Collection[str], now_ns: int) -> None:
        self._had_agents |= "lockstep:agents" in reported
        self._checked_ns = now_ns
        self._checking = threading.Thread(target=self._check, args=(targets, now_ns), name="self-watch", daemon=True)
        self._checking.start()

    def _check(self, targets: Collection[str], now_ns: int) -> None:
        try:
            since_ns = now_ns - round(_LOOKBACK * self._patience.silent_s * NS_PER_S)
            facts = gather_facts(self._watched, self._control, targets, since_ns, now_ns)
        except Exception as error:  # noqa: BLE001  # alerts go on without it; nobody would see a thread that died
            _log.error("cannot evaluate at ourselves", exc_info=error)
            return
        self._had_agents |= bool(facts.agents and facts.agents.hosts)
        self._all_ended = have_all_ended(facts.agents, self._all_ended)
        expects = not self._all_ended and (facts.expects_agents or self._had_agents)
        facts = replace(facts, expects_agents=expects)
        found = find_troubles(facts, self._patience, now_ns)
        now = [trouble_alert(name, sentence, now_ns) for name, sentence in found.items()]
        self._troubles = {alert.subject: self._troubles.get(alert.subject, alert) for alert in now}


def have_all_ended(agents: Agents | None, before: bool) -> bool:
    """Return whether all agents have stopped in order, so that nobody has to report; so it was before or not."""
    if agents is None:
        return before
    return not agents.hosts and (before or agents.ended > 0)


def find_troubles(facts: Facts, patience: Patience, now_ns: int) -> dict[str, str]:
    """Return what is wrong with Lockstep, by name, as sentences."""
    troubles: dict[str, str] = {}
    if facts.store_trouble:
        troubles["store"] = f"the store is away: {facts.store_trouble}"
    if facts.store_used is not None and facts.store_used >= patience.full_share:
        troubles["disk"] = f"the store's disk is nearly full: {facts.store_used:.0%} of it is used"
    if now_ns - patience.since_ns < patience.silent_s * NS_PER_S:
        return troubles
    if facts.agents is not None:
        troubles |= _of_agents(facts.agents, facts.expects_agents, patience, now_ns)
    return troubles | _of_services(facts, patience, now_ns)


def _of_agents(agents: Agents, expects: bool, patience: Patience, now_ns: int) -> dict[str, str]:
    silent_s = (now_ns - agents.last_seen_ns) / NS_PER_S
    if (agents.hosts or expects) and silent_s > patience.silent_s:
        last = f"the last of {agents.hosts} hosts spoke {silent_s:.0f} s ago"
        none = f"no telemetry in the last {_LOOKBACK * patience.silent_s:.0f} s"
        return {"agents": f"no agent reports: {last if agents.hosts else none}"}
    if agents.behind_s > patience.silent_s:
        return {
            "windows": f"windows close without host {agents.last_host}: its data ends {agents.behind_s:.0f} s "
            "before its heartbeat"
        }
    return {}


def _of_services(facts: Facts, patience: Patience, now_ns: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for service, ends_ns in facts.lease_ends.items():
        idle_s = (now_ns - max(ends_ns, patience.since_ns)) / NS_PER_S
        if idle_s > patience.silent_s:
            found[service] = f"no {service} is at work: nobody has held its lease for {idle_s:.0f} s"
    if facts.oldest_message is not None:
        target, waits_s = facts.oldest_message[0], (now_ns - facts.oldest_message[1]) / NS_PER_S
        if waits_s > patience.silent_s:
            found["alert_queue"] = f"alerts do not get through: one to {target} has waited for {waits_s:.0f} s"
    return found


def gather_facts(
    watched: Watched, control: ControlDatabase, targets: Collection[str], since_ns: int, now_ns: int
) -> Facts:
    """Ask store and control database, for agents since then; a store that does not answer is a fact, too."""
    agents, used, trouble = None, None, None
    try:
        agents, used = _ask_agents(watched.store, since_ns, now_ns), _ask_disk(watched.store)
    except StoreError as error:
        trouble = str(error)
    held = lease_ends(control)
    return Facts(
        agents=agents,
        expects_agents=expects_agents(control),
        store_trouble=trouble or watched.gateway_trouble(),
        store_used=used,
        lease_ends={service: held.get(service, 0) for service in watched.services},
        oldest_message=oldest_waiting(control, targets),
    )


def _ask_agents(store: Store, since_ns: int, now_ns: int) -> Agents:
    row = store.query(
        "SELECT countIf(NOT has_ended) AS hosts, maxIf(last_seen, NOT has_ended) AS last_seen_ns, "
        "argMaxIf(host, lag, NOT has_ended) AS last_host, maxIf(lag, NOT has_ended) / 1e9 AS behind_s, "
        "countIf(has_ended) AS ended "
        "FROM (SELECT host, toInt64(max(ts_ns)) AS last_seen, toInt64(max(watermark_ns)) AS mark, "
        "argMax(ifNull(agents.ended, false), ts_ns) AS has_ended, "
        "if(last_seen >= {live:Int64}, last_seen - mark, 0) AS lag "  # windows do not wait for hosts that fell silent
        "FROM agents WHERE ts_ns >= {since:Int64} GROUP BY host)",
        {"since": since_ns, "live": now_ns - _LIVE_NS},
    ).to_pylist()[0]
    return Agents(row["hosts"], row["last_seen_ns"], row["last_host"], row["behind_s"], row["ended"])


def _ask_disk(store: Store) -> float | None:
    """Return how full the fullest disk of the store is; None where it has none that could fill up."""
    rows = store.query_system("SELECT total_space AS total, free_space AS free FROM system.disks").to_pylist()
    shares = [1 - row["free"] / row["total"] for row in rows if 0 < row["total"] < 2**60]  # object stores have no end
    return max(shares, default=None)
