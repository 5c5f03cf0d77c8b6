"""How a host begins to report to a head node, whether it can, and how it stops.

A join token is good for many hosts and for nothing but this. It is exchanged for a token of the host's own and is not
kept here. A check says what the host can tell and whether its head node takes it; where not, what has to be mended or
verdicts go without. It takes nothing away: beside a running collector no record, report or port is used up.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from importlib import resources
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
from lockstep.client.server import Server
from lockstep.clock import NS_PER_S, Clock
from lockstep.config import read_secret, trusted
from lockstep.errors import BadInput, LockstepError, NotPresent
from lockstep.records import RECORDS_VERSION
from lockstep.sections import CollectorSettings

UNIT = "lockstep-collector.service"
TOKEN = Path("etc/lockstep/collector.token")
SETTINGS = Path("etc/default/lockstep-collector")
UNIT_FILE = Path("etc/systemd/system") / UNIT
_FILES = {  # of those that come with us, what goes where: users of the unit, and where jobs leave what they record
    "lockstep.sysusers": Path("usr/lib/sysusers.d/lockstep.conf"),
    "lockstep.tmpfiles": Path("usr/lib/tmpfiles.d/lockstep.conf"),
    UNIT: UNIT_FILE,
}
_START = (
    ["systemd-sysusers"],
    ["systemd-tmpfiles", "--create", "lockstep.conf"],
    ["systemctl", "daemon-reload"],
    ["systemctl", "enable", "--now", UNIT],
)
_SYSTEMD = Path("run/systemd/system")  # is there where systemd is the first process
_INSTALLED = "/opt/lockstep/bin/lockstep"  # what the unit starts, unless we were started from elsewhere

Run = Callable[[list[str]], None]
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


def run_tool(command: list[str]) -> None:
    """Run a tool of the system, or raise BadInput with what it had to say."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or f"ended with {done.returncode}"
        raise BadInput(f"{' '.join(command)}: {said}")


def join(head: Server, host: str, ca_file: Path | None, root: Path = Path("/"), run: Run = run_tool) -> Iterator[str]:
    """Get the host a token of its own, put everything in place and start the collector; yield what was done."""
    if (root / TOKEN).exists():
        raise BadInput(f"this host has a token already, {root / TOKEN}: `lockstep host leave` gives it back")
    _check_writable(root)
    made = head.send("POST", "/api/v1/hosts/join", {"host": host})
    _write(root / TOKEN, f"{made['secret']}\n", 0o600)
    yield f"{head.url} knows {host} now; its token is in {root / TOKEN}"
    _write(root / SETTINGS, _settings(head.url, host, ca_file), 0o644)
    yield f"settings are in {root / SETTINGS}"
    if not (root / _SYSTEMD).is_dir():
        yield "no systemd here: start `lockstep collect` with these settings and collector.token_file yourself"
        return
    ours = str(Path(sys.argv[0]).resolve()) if Path(sys.argv[0]).name == "lockstep" else _INSTALLED
    for name, place in _FILES.items():
        text = (resources.files("collector") / "systemd" / name).read_text()
        _write(root / place, text.replace(_INSTALLED, ours), 0o644)
    for command in _START:
        run(command)
    yield f"{UNIT} runs, and will after each boot"


def leave(root: Path = Path("/"), run: Run = run_tool) -> Iterator[str]:
    """Stop the collector, have the head node forget the host's token, take away what `join` wrote; yield the same."""
    try:
        secret = (root / TOKEN).read_text().strip()
        settings = _read_settings((root / SETTINGS).read_text())
    except FileNotFoundError as error:
        raise NotPresent(f"this host has not joined: there is no {error.filename}") from None
    except PermissionError as error:
        raise BadInput(f"{error.filename} is root's: run this as root") from None
    if (root / UNIT_FILE).exists():
        run(["systemctl", "disable", "--now", UNIT])
        yield f"{UNIT} is stopped; it sent what it had"
    ca_file = settings.get("LOCKSTEP_COLLECTOR_CA_FILE")
    with Server(settings["LOCKSTEP_COLLECTOR_SERVER"], secret, ca_file=Path(ca_file) if ca_file else None) as head:
        head.send("POST", "/api/v1/hosts/leave", {})
    yield "its token is worth nothing from now on"
    for path in (TOKEN, SETTINGS, UNIT_FILE):
        (root / path).unlink(missing_ok=True)
    yield f"{TOKEN}, {SETTINGS} and the unit are gone"


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


def _settings(server: str, host: str, ca_file: Path | None) -> str:
    lines = [f"LOCKSTEP_COLLECTOR_SERVER={server}", f"LOCKSTEP_COLLECTOR_HOST={host}"]
    return "\n".join([*lines, *([f"LOCKSTEP_COLLECTOR_CA_FILE={ca_file.resolve()}"] if ca_file else []), ""])


def _read_settings(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    found = {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}
    if "LOCKSTEP_COLLECTOR_SERVER" not in found:
        raise BadInput(f"{SETTINGS} does not say LOCKSTEP_COLLECTOR_SERVER, so that nobody can be told of the leave")
    return found


def _check_writable(root: Path) -> None:
    """Refuse before the head node has made a token that could not be kept here."""
    for path in (TOKEN, SETTINGS):
        there = next(folder for folder in (root / path).parents if folder.exists())
        if not os.access(there, os.W_OK):
            raise BadInput(f"{there} cannot be written: run this as root")


def _write(path: Path, text: str, mode: int) -> None:
    """Write a file as a whole, readable for others only as the mode says, also for the moment before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        os.fchmod(file.fileno(), mode)  # what root's umask took away, the collector's user cannot read
        file.write(text)
    beside.replace(path)


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
