"""The head node of the fleet: one gateway process and one ClickHouse server process, as they run in production."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.clock import NS_PER_S, SystemClock
from lockstep.errors import StoreAway
from lockstep.state.database import open_control
from lockstep.state.tokens import create_token
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import Store, open_store
from tests.testbed.clickhouse import ClickHouseServer
from tests.testbed.services import Service, cpu_seconds, free_port

GPUS_PER_HOST = 8
_HOSTS_PER_BLOCK = 8
_BLOCKS_PER_EXPERT_BLOCK = 10
_EXPERT_BLOCK = 4  # the fifth of every ten, so that 64 hosts have one
_BLOCKS_PER_DENSE_JOB = 4
_DENSE_LAYOUTS = ((8, 4), (8, 1), (4, 2))  # TP, PP; the rest of the 256 ranks is data-parallel
_EXPERT_REPLICAS = 16  # EP groups of the mixture of experts in a fleet of 1,280


@dataclass(frozen=True)
class Group:
    """A communicator as one rank of it sees it: where its ranks are, and which peers it exchanges with."""

    comm: int
    kind: str  # tp, dp, pp, ep
    rank: int
    nranks: int
    gpu: int
    next_peers: tuple[int, ...]  # on other hosts, that this rank sends to
    previous_peers: tuple[int, ...]  # on other hosts, that it receives from


@dataclass(frozen=True)
class HostPlan:
    """What runs on one host."""

    number: int
    job: str
    groups: tuple[Group, ...]

    @property
    def name(self) -> str:
        return host_name(self.number)


def host_name(number: int) -> str:
    return f"h{number:05}"


def plan_host(number: int) -> HostPlan:
    """Return the job and the communicators of a host."""
    block, index = divmod(number, _HOSTS_PER_BLOCK)
    if block % _BLOCKS_PER_EXPERT_BLOCK == _EXPERT_BLOCK:
        return HostPlan(number, "moe-0", tuple(_expert_groups(block // _BLOCKS_PER_EXPERT_BLOCK, index)))
    # Blocks of the experts leave no hole in the dense jobs: those before a block are taken out of its number.
    dense_block = block - (block + _BLOCKS_PER_EXPERT_BLOCK - 1 - _EXPERT_BLOCK) // _BLOCKS_PER_EXPERT_BLOCK
    job, block_of_job = divmod(dense_block, _BLOCKS_PER_DENSE_JOB)
    groups = _dense_groups(job, block_of_job * _HOSTS_PER_BLOCK + index)
    return HostPlan(number, f"dense-{job}", tuple(groups))


def _expert_groups(replica: int, index: int) -> Iterator[Group]:
    for gpu in range(GPUS_PER_HOST):
        rank = index * GPUS_PER_HOST + gpu
        others = [peer for peer in range(_HOSTS_PER_BLOCK * GPUS_PER_HOST) if peer // GPUS_PER_HOST != index]
        yield Group(
            _comm(900, 0, replica), "ep", rank, _HOSTS_PER_BLOCK * GPUS_PER_HOST, gpu, tuple(others), tuple(others)
        )
        yield _ring(_comm(900, 1, rank), "dp", replica, _EXPERT_REPLICAS, gpu, ranks_per_host=1)


def _dense_groups(job: int, host_of_job: int) -> Iterator[Group]:
    tensor, pipeline = _DENSE_LAYOUTS[job % len(_DENSE_LAYOUTS)]
    world = _BLOCKS_PER_DENSE_JOB * _HOSTS_PER_BLOCK * GPUS_PER_HOST
    data = world // (tensor * pipeline)
    for gpu in range(GPUS_PER_HOST):
        rest, in_tensor = divmod(host_of_job * GPUS_PER_HOST + gpu, tensor)
        in_pipeline, in_data = divmod(rest, data)
        yield Group(_comm(job, 0, rest), "tp", in_tensor, tensor, gpu, (), ())
        yield _ring(
            _comm(job, 1, in_pipeline * tensor + in_tensor), "dp", in_data, data, gpu, GPUS_PER_HOST // tensor
        )
        if pipeline > 1:
            # Activations go forward and gradients back, so both neighbours are sent to and received from.
            near = tuple(peer for peer in (in_pipeline - 1, in_pipeline + 1) if 0 <= peer < pipeline)
            yield Group(_comm(job, 2, in_data * tensor + in_tensor), "pp", in_pipeline, pipeline, gpu, near, near)


def _ring(comm: int, kind: str, rank: int, nranks: int, gpu: int, ranks_per_host: int) -> Group:
    following, preceding = (
        (peer,) if peer // ranks_per_host != rank // ranks_per_host else ()
        for peer in ((rank + 1) % nranks, (rank - 1) % nranks)
    )
    return Group(comm, kind, rank, nranks, gpu, following, preceding)


def _comm(job: int, kind: int, number: int) -> int:
    """Return an id that looks like NCCL's, which are hashes: spread over 64 bits, the same on every rank."""
    return ((job << 24 | kind << 16 | number) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % (1 << 64)


_POLL_S = 0.05


class Head:
    """Gateway and store over one directory; `with` starts and ends them."""

    def __init__(self, directory: Path) -> None:
        self.clickhouse = ClickHouseServer(directory / "clickhouse")
        self.port = 0
        self.store_pid: int | None = None  # None while it is away
        self._state = directory / "state"
        self._log = directory / "gateway.log"
        self._gateway: Service | None = None
        self.store: Store

    def __enter__(self) -> "Head":
        try:
            self.start_store()
            self.store = open_store(self.clickhouse.url)
            migrate(self.store, Layout(self.store.database), SystemClock().now_ns())
            self._gateway = self._start_gateway()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_gateway_alive() and self._gateway:
            self._gateway.stop()
        if hasattr(self, "store"):
            self.store.close()
        self.kill_store()

    def start_store(self) -> None:
        self.clickhouse.start()
        self.store_pid = self.clickhouse.pid

    def kill_store(self) -> None:
        self.store_pid = None
        self.clickhouse.kill()

    @property
    def gateway_pid(self) -> int:
        assert self._gateway is not None, "the gateway was not started"
        return self._gateway.pid

    @property
    def backlog_bytes(self) -> int:
        """What is acknowledged and not in the store yet: the gateway's log. Asking the gateway would be load."""
        total = 0
        for pattern in ("*.segment", "*.open"):
            for path in (self._state / "gateway").glob(pattern):
                with suppress(FileNotFoundError):  # inserted meanwhile
                    total += path.stat().st_size
        return total

    def make_tokens(self, hosts: Iterable[int]) -> dict[int, str]:
        """Return an ingest token for every host."""
        now_ns = SystemClock().now_ns()
        with open_control(f"sqlite:///{self._state}/control.db") as control:
            return {
                host: create_token(control, scope="ingest", host=host_name(host), name="bench", now_ns=now_ns)
                for host in hosts
            }

    def is_gateway_alive(self) -> bool:
        return self._gateway is not None and self._gateway.is_alive()

    def gateway_output(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _start_gateway(self) -> Service:
        self._state.mkdir()
        self.port = free_port()
        settings = {
            "LOCKSTEP_STATE_DIR": str(self._state),
            "LOCKSTEP_STORE_URL": self.clickhouse.url,
            "LOCKSTEP_API_LISTEN": f"127.0.0.1:{self.port}",
            "LOCKSTEP_LOG_LEVEL": "warning",
        }
        return Service(("serve", "api"), settings, f"http://127.0.0.1:{self.port}/readyz", self._log).start()


def wait_until(is_so: Callable[[], object], limit_s: float) -> bool:
    """Return whether it became so within the limit."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def machine_cpu_seconds() -> float:
    """Return the CPU time that all processes together have used, on all cores, since the machine began."""
    user, nice, system, _idle, _wait, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


_PERIOD_S = 0.25
_LAST_POLL_S = 10.0
_MARKERS = 8  # hosts, all in one data-parallel group, so that one small query asks for all of them
_QUERY = (
    "SELECT host, max(ts_ns) AS newest_ns FROM transfer_stats WHERE job = {job:String} AND attempt = 0 "
    "AND comm = {comm:UInt64} AND direction = 'send' AND host IN {hosts:Array(String)} "
    "AND ts_ns >= {after:Int64} GROUP BY host"
)


@dataclass(frozen=True)
class Sample:
    """The head node as it was once; CPU seconds since each process began, None while the store is away."""

    at_ns: int
    backlog_bytes: int
    gateway_cpu_s: float
    store_cpu_s: float | None
    senders_cpu_s: float
    machine_cpu_s: float = 0.0  # of everybody on it


class Watch:
    """Looks from `with` on until its end."""

    def __init__(self, head: Head, senders: list[int], hosts: range, first_second: int) -> None:
        self._head, self._senders = head, senders
        self._markers = {plan_host(host).name: host for host in hosts[:_MARKERS]}
        self._next = dict.fromkeys(self._markers.values(), first_second)  # the oldest second not found yet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="fleet-watch")
        self.samples: list[Sample] = []
        self.sighted: dict[tuple[int, int], int] = {}

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_markers(self, end_second: int) -> None:
        """Look on until the rows of the last batch are found, or for a while where the store fell behind."""
        deadline_ns = time.monotonic_ns() + int(_LAST_POLL_S * NS_PER_S)
        while min(self._next.values()) < end_second and time.monotonic_ns() < deadline_ns:
            self._stop.wait(_PERIOD_S)

    def _poll(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            with suppress(OSError):  # a process has just ended
                self.samples.append(self._sample())
            with suppress(StoreAway):  # until it is started again
                self._find_markers()

    def _sample(self) -> Sample:
        return Sample(
            time.monotonic_ns(),
            self._head.backlog_bytes,
            cpu_seconds(self._head.gateway_pid),
            cpu_seconds(pid) if (pid := self._head.store_pid) else None,
            sum(map(cpu_seconds, self._senders)),
            machine_cpu_seconds(),
        )

    def _find_markers(self) -> None:
        first = plan_host(next(iter(self._markers.values())))
        group = next(group for group in first.groups if group.next_peers)
        after_ns = min(self._next.values()) * NS_PER_S
        asked = {"job": first.job, "comm": group.comm, "hosts": list(self._markers), "after": after_ns}
        found = self._head.store.query(_QUERY, asked).to_pylist()
        now_ns = time.monotonic_ns()
        for row in found:
            host, newest_second = self._markers[row["host"]], row["newest_ns"] // NS_PER_S
            for second in range(self._next[host], newest_second + 1):  # in order: all before it are there
                self.sighted[host, second] = now_ns
            self._next[host] = max(self._next[host], newest_second + 1)
