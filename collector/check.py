"""What a host can tell and whether its head node takes it; where not, what has to be mended or verdicts go without.

Nothing is taken away: beside a running collector no record, report or port is used up.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Literal

import httpx
from prometheus_client.parser import text_string_to_metric_families

from collector.kernel.process import ProcConnector, list_pids
from collector.nccl.finding import RingDirectories
from collector.nccl.header import Identity
from collector.nccl.ringfile import open_ring
from collector.probes.sockets import RawExchange
from collector.registry import SOURCES, Make
from lockstep import __version__
from lockstep.batches import AGENT_HEADER, CONTENT_TYPE, ENCODING, VERSION_HEADER
from lockstep.clock import NS_PER_S, Clock
from lockstep.config import read_secret, trusted
from lockstep.errors import BadInput, LockstepError, NotPresent
from lockstep.records import RECORDS_VERSION
from lockstep.sections import CollectorSettings

State = Literal["ok", "missing", "failed"]

_TIMEOUT_S = 5.0
_MOST_APART_S = 60.0  # clocks of a site that a time daemon keeps agree a thousand times better
_NCCL, _PLUGIN = ("libnccl.so", "librccl.so"), "liblockstep-nccl"
# What verdicts go without where a source is missing.
_LOST = {
    "connections": "a slow wire is named as a pair of hosts, not by its NIC and link",
    "links": "nothing tells a bad cable from a busy one but timings",
    "rdma": "nothing tells a bad RDMA port from a busy one but timings",
    "gpu": "a slow GPU is named without its clocks, temperature and errors",
    "kernel_log": "no XIDs, link flaps and out-of-memory kills",
    "processes": "a dead rank is seen by its silence, without exit code or signal",
    "probes": "a slow link without traffic of a job is not seen",
    "clocks": "clocks are compared by the job's own operations alone",
}
_HEAD_ONLY = "fabric"  # is read on the head node
_BATCH = {"Content-Type": CONTENT_TYPE, "Content-Encoding": ENCODING, VERSION_HEADER: str(RECORDS_VERSION)}


@dataclass(frozen=True)
class Check:
    """One look: missing is what one can do without, failed is what has to be mended."""

    name: str
    state: State
    message: str


def check_host(host: str, settings: CollectorSettings, clock: Clock, root: Path = Path("/")) -> Iterator[Check]:
    """Yield what was found, in the order in which one would mend it."""
    yield from _check_head(host, settings, clock)
    yield _check_collector(settings.listen)
    yield from _check_plugin(root, settings.ring_dirs, clock.now_ns())
    yield from _check_sources(host, settings, clock)


def _check_head(host: str, settings: CollectorSettings, clock: Clock) -> Iterator[Check]:
    """Look whether the head node answers, keeps our time, and takes what this host sends."""
    if settings.store_url:
        yield Check("head", "missing", "rows go straight into ClickHouse, so that nobody asks this host for detail")
        return
    try:
        token = read_secret(settings.token_file, "the host's token")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        context = trusted(settings.ca_file, "collector.ca_file")
        with httpx.Client(base_url=settings.server, headers=headers, verify=context, timeout=_TIMEOUT_S) as client:
            yield from _ask_head(client, host, clock)
    except (BadInput, NotPresent) as error:
        yield Check("head", "failed", str(error))
    except (httpx.HTTPError, httpx.InvalidURL, KeyError, ValueError) as error:
        yield Check("head", "failed", f"{settings.server} does not answer: {error}")


def _ask_head(client: httpx.Client, host: str, clock: Clock) -> Iterator[Check]:
    answer = client.get("/version")
    version = answer.raise_for_status().json()["version"]
    is_same = version == __version__
    skew = "" if is_same else f", here {__version__}: it takes collectors of the release before its own"
    yield Check("head", "ok" if is_same else "missing", f"{client.base_url} answers, Lockstep {version}{skew}")
    yield _check_time(answer.headers.get("Date"), clock)
    yield _check_token(client, host)


def _check_time(date: str | None, clock: Clock) -> Check:
    if date is None:
        return Check("time", "missing", "the head node does not say what time it has")
    apart_s = abs(parsedate_to_datetime(date).timestamp() - clock.now_ns() / NS_PER_S)
    if apart_s > _MOST_APART_S:
        return Check("time", "failed", f"the clocks of this host and the head node are {apart_s:.0f} s apart")
    return Check("time", "ok", f"this host and the head node agree within {max(apart_s, 1):.0f} s")


def _check_token(client: httpx.Client, host: str) -> Check:
    """Offer a batch without a number: it is refused for that only after all that may keep this host from sending."""
    answer = client.post("/api/v1/ingest", headers={**_BATCH, AGENT_HEADER: host})
    if answer.status_code == httpx.codes.BAD_REQUEST:
        return Check("token", "ok", f"the head node takes what {host} sends")
    mend = f"`lockstep token create {host} --scope ingest --host {host}` makes a token, for collector.token_file"
    return Check("token", "failed", f"the head node takes nothing from here: {answer.json()['detail']}; {mend}")


def _check_collector(listen: str) -> Check:
    """Ask the collector that runs here, if one does, how it is."""
    try:
        text = httpx.get(f"http://{listen}/metrics", timeout=_TIMEOUT_S).raise_for_status().text
        families = text_string_to_metric_families(text)
        given = (sample for family in families for sample in family.samples)
        samples = {(each.name, each.labels.get("source", "")): each.value for each in given}
    except (httpx.HTTPError, ValueError) as error:
        return Check("collector", "missing", f"none runs here: nothing answers at {listen}: {error}")
    if samples.get(("lockstep_collector_away", "")):
        return Check("collector", "failed", "it runs and its last batch did not get through: see its log")
    ill = [source for (name, source), value in samples.items() if name.endswith("source_success") and not value]
    if ill:
        return Check("collector", "failed", f"it runs and cannot read {', '.join(sorted(ill))}: see its log")
    sent = samples.get(("lockstep_collector_sent_batches_total", ""), 0)
    return Check("collector", "ok", f"it runs and has sent {sent:.0f} batches")


def _check_plugin(root: Path, directories: Sequence[Path], now_ns: int) -> Iterator[Check]:
    """Look which jobs record, and whose processes use NCCL without the plugin."""
    rings, unreadable = _read_rings(root, directories, now_ns)
    kinds = Counter((ring.job, ring.nccl_version or "of unknown version", ring.plugin_version) for ring in rings)
    for (job, nccl, plugin), ranks in sorted(kinds.items()):
        yield Check("plugin", "ok", f"job {job}: {ranks} ranks record, NCCL {nccl}, plugin {plugin}")
    if unreadable:
        yield Check("plugin", "failed", f"{len(unreadable)} ring files cannot be read: {unreadable[0]}")
    try:
        bare = _find_bare(root / "proc")
    except NotPresent as absence:
        yield Check("plugin", "missing", str(absence))
        return
    if bare:
        shown = ", ".join(map(str, bare[:8])) + (" and more" if len(bare) > 8 else "")
        started = "NCCL_PROFILER_PLUGIN was not set when they began"
        yield Check("plugin", "failed", f"{len(bare)} processes use NCCL and record nothing: pid {shown}: {started}")
    if not (rings or unreadable or bare):
        yield Check("plugin", "missing", "no process of this host uses NCCL now: look again when a job runs")


def _read_rings(root: Path, directories: Sequence[Path], now_ns: int) -> tuple[list[Identity], list[str]]:
    """Return what rings say they are, and why others cannot be read."""
    found, rings, problems = RingDirectories(root, directories), list[Identity](), list[str]()
    for directory in found.scan(now_ns, set()):
        for file in directory.files():
            try:
                with open_ring(file.path, file.shown) as ring:
                    rings += [ring.identity] if ring.owner() is not None else []
            except (LockstepError, OSError) as error:
                problems.append(str(error))
    problems += found.complaints
    found.close()
    return rings, problems


def _find_bare(proc: Path) -> list[int]:
    """Return processes that have NCCL in memory and not the plugin; those of others only where we may look."""
    bare = []
    for pid in sorted(list_pids(proc)):
        try:
            mapped = (proc / str(pid) / "maps").read_text(errors="replace")
        except OSError:  # it has ended, or is another user's
            continue
        if any(library in mapped for library in _NCCL) and _PLUGIN not in mapped:
            bare.append(pid)
    return bare


def _check_sources(host: str, settings: CollectorSettings, clock: Clock) -> Iterator[Check]:
    """Read each source once, but for those that a collector beside us needs to itself."""
    quiet = settings.model_copy(update={"compare_clocks": False, "probes": False})
    for name, make in SOURCES:
        if name in ("nccl_rings", _HEAD_ONLY) or (settings.sources and name not in settings.sources):
            continue
        reads: dict[str, Callable[[], None]] = {
            "processes": lambda: ProcConnector().close(),
            "probes": partial(_may_probe, settings, clock),
        }
        yield _check_source(name, reads.get(name, partial(_read_once, make, host, quiet, clock.now_ns())))


def _check_source(name: str, read: Callable[[], None]) -> Check:
    try:
        read()
    except NotPresent as absence:
        return Check(name, "missing", f"{absence}; without it: {_LOST[name]}")
    except (LockstepError, OSError) as error:
        return Check(name, "failed", f"{error}; without it: {_LOST[name]}")
    return Check(name, "ok", "can be read")


def _read_once(make: Make, host: str, settings: CollectorSettings, now_ns: int) -> None:
    with closing(make(host, settings)) as source:
        source.read(now_ns, ())


def _may_probe(settings: CollectorSettings, clock: Clock) -> None:
    if not settings.probes:
        raise NotPresent("collector.probes is off")
    RawExchange(clock).check()
