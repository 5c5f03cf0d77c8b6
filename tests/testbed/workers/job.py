"""A job that runs: one process a rank, wherever there are hosts; told of faults by lines, to leave by their end."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lockstep.errors import LockstepError
from tests.testbed.services import wait_until
from tests.testbed.workers.plan import JobPlan, write_job

_LIMIT_S = 600
_END_S = 120.0


class Loopback:
    """Gives every host and NIC an address of 127.0.0.0/8 in the order in which they are asked for."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[str, str], str] = {}

    def address_of(self, host: str, nic: str) -> str:
        """Return the address of a NIC; the same each time.

        >>> network = Loopback()
        >>> network.address_of("h0", "eth0"), network.address_of("h0", "eth1"), network.address_of("h0", "eth0")
        ('127.77.0.1', '127.77.0.2', '127.77.0.1')
        """
        number = (
            self._addresses.get((host, nic))
            or f"127.77.{len(self._addresses) // 250}.{len(self._addresses) % 250 + 1}"
        )
        return self._addresses.setdefault((host, nic), number)

    def run_in(self, host: str, command: Sequence[str], env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)


class Network(Protocol):
    """Where hosts are: a fabric of namespaces, or this machine's loopback addresses."""

    def address_of(self, host: str, nic: str) -> str: ...

    def run_in(self, host: str, command: Sequence[str], env: Mapping[str, str]) -> "subprocess.Popen[bytes]": ...


@dataclass(frozen=True)
class StepTime:
    """When a rank was in a step; UNIX time of its clock."""

    step: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class SendingSocket:
    """A connection over the network that sends; rank and peer count in the communicator."""

    comm: int
    channel: int
    rank: int
    peer: int
    nic: str
    sport: int
    dport: int


@dataclass(frozen=True)
class RankProcess:
    """A rank's process, the pipe by which it is told things, and its files."""

    rank: int
    host: str
    process: "subprocess.Popen[bytes]"
    control: int  # the only writing end: when we are gone, it ends
    folder: Path

    @property
    def lines(self) -> list[str]:
        with suppress(FileNotFoundError):  # it has just begun
            return (self.folder / f"rank{self.rank}.out").read_text().splitlines()
        return []

    @property
    def complaints(self) -> str:
        with suppress(FileNotFoundError):
            return (self.folder / f"rank{self.rank}.err").read_text().strip()
        return ""

    @property
    def steps(self) -> list[StepTime]:
        return [StepTime(*map(int, line.split()[1:])) for line in self.lines if line.startswith("step ")]

    @property
    def sockets(self) -> list[SendingSocket]:
        return [_read_socket(line.split()) for line in self.lines if line.startswith("connection ")]

    def command(self, line: str) -> None:
        """Write a control line (nccl_plugin/tests/worker_control.c has them all)."""
        os.write(self.control, f"{line}\n".encode())

    def wait_for(self, word: str, limit_s: float = _LIMIT_S) -> None:
        """Return when a line of it begins with this; LockstepError when it has ended instead."""
        wait_until(
            lambda: any(f"{line} ".startswith(f"{word} ") for line in self._lines_of_living()),
            f"rank {self.rank} says {word!r}",
            limit_s,
        )

    def wait_for_step(self, step: int, limit_s: float = _LIMIT_S) -> None:
        self.wait_for(f"step {step}", limit_s)

    def _lines_of_living(self) -> list[str]:
        is_over, lines = self.process.poll() is not None, self.lines
        if is_over:
            raise LockstepError(f"rank {self.rank} ended with {self.process.returncode}: {self.complaints}")
        return lines


class Job:
    """The ranks of a job; the block's end ends them."""

    def __init__(self, ranks: Sequence[RankProcess]) -> None:
        self.ranks = tuple(ranks)
        self._is_closed = False

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.process.kill()
            rank.process.wait(_END_S)
        self._end_lines()

    def command(self, line: str) -> None:
        for rank in self.ranks:
            rank.command(line)

    def wait_for(self, word: str, limit_s: float = _LIMIT_S) -> None:
        """Return when every rank has said it: `ready`, `done`; LockstepError when one has ended instead."""
        for rank in self.ranks:
            rank.wait_for(word, limit_s)

    def wait_for_step(self, step: int, limit_s: float = _LIMIT_S) -> None:
        self.wait_for(f"step {step}", limit_s)

    def leave(self, limit_s: float = _END_S) -> list[int]:
        self._end_lines()
        return self.wait_until_over(limit_s)

    def wait_until_over(self, limit_s: float = _END_S) -> list[int]:
        return [rank.process.wait(limit_s) for rank in self.ranks]

    def _end_lines(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            for rank in self.ranks:
                os.close(rank.control)


def start_job(
    network: Network,
    plan: JobPlan,
    built: Path,
    folder: Path,
    limit_s: int = _LIMIT_S,
    environment: Mapping[str, str] | None = None,
) -> Job:
    """Start all ranks; `built` has worker and plugin (testbed.ranks.build_ranks), `folder` is new and the job's own.

    Rings are in `folder`/rings/HOST, NCCL's logs beside the rest. A rank ends when no step is done within the limit.
    """
    folder.mkdir(parents=True)
    for host in dict.fromkeys(plan.hosts):
        rings = rings_of(folder, host)
        rings.mkdir(parents=True)
        rings.chmod(0o1777)
    command = [str(built / "worker"), str(built / "liblockstep-nccl.so"), str(folder)]
    with ExitStack() as started:
        ranks = []
        for rank in range(plan.layout.ranks):
            words = [*command, str(rank), "--limit-s", str(limit_s)]
            ranks.append(_start_rank(network, plan, rank, folder, words, environment or {}))
            started.push(Job(ranks[-1:]))
        started.pop_all()
    return Job(ranks)


def rings_of(folder: Path, host: str) -> Path:
    return folder / "rings" / host


def environment_of(plan: JobPlan, rank: int, folder: Path) -> dict[str, str]:
    """Return what a launcher and Lockstep's injection tell a rank."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.layout.ranks),
        "LOCAL_RANK": str(plan.local_rank(rank)),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "LOCKSTEP_HOST": plan.hosts[rank],
        "LOCKSTEP_JOB": plan.job,
        "LOCKSTEP_RING_DIR": str(rings_of(folder, plan.hosts[rank])),
        "LOCKSTEP_SAMPLE": "1",  # a testbed's job is small: steps of all operations
        "LOCKSTEP_BUDGET": "0",  # else the plugin leaves detail out at times, to learn what it costs
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": str(folder / "nccl.%p.log"),
    }


def _start_rank(
    network: Network, plan: JobPlan, rank: int, folder: Path, command: Sequence[str], environment: Mapping[str, str]
) -> RankProcess:
    host = plan.hosts[rank]
    addresses = [network.address_of(host, nic) for nic in plan.nics]
    (folder / f"rank{rank}.job").write_text(write_job(plan, rank, addresses))
    pipe = folder / f"rank{rank}.control"
    os.mkfifo(pipe)
    control = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)  # reading, too: else opening waits for the rank
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("LOCKSTEP_", "NCCL_"))}
    env = ours | environment_of(plan, rank, folder) | dict(environment)
    try:
        process = network.run_in(host, command, env)
    except BaseException:
        os.close(control)
        raise
    return RankProcess(rank, host, process, control, folder)


def _read_socket(words: Sequence[str]) -> SendingSocket:
    _, comm, channel, rank, peer, nic, sport, dport = words
    return SendingSocket(int(comm, 16), int(channel), int(rank), int(peer), nic, int(sport), int(dport))
