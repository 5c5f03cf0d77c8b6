# ruff: noqa: TID251 -- lockstep.clock is not installed where there is a GPU
"""Runs real NCCL ranks as processes on one GPU, each a host of its own to NCCL, and collects what they left."""

import glob
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from namespaces import RankNetwork
from rings import Ring, read_ring

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent / "build"
PLUGIN = BUILD / "liblockstep-nccl.so"
RANK = BUILD / "gpu" / "rank"
SOURCES = ("rank.c", "side.c", "train.c", "kernels.cu")

# Ranks on one GPU: told apart by NCCL_HOSTID, joined by sockets, since everything else needs a GPU per rank.
NCCL_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "0",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_DEBUG": "WARN",
}
EVERY_CALLBACK = {"LOCKSTEP_DETAIL": "trace", "LOCKSTEP_BUDGET": "0", "LOCKSTEP_KERNEL": "on"}
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH")
LIBRARY_PATTERNS = (
    "/opt/torch/.venv/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2",
    "/usr/local/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2",
    "/usr/lib/*-linux-gnu/libnccl.so.2",
    "/usr/local/nccl*/lib/libnccl.so.2",
)
HANG_S = 1.5  # how long a job hangs before its ring files are copied
MPS_COMMANDS = ("nvidia-cuda-mps-control", "/usr/local/nvidia/bin/nvidia-cuda-mps-control")


class LabError(Exception):
    """This machine cannot run the tests; the text says what is missing."""


@dataclass(frozen=True)
class Run:
    """What to run: words for the rank program (see rank.c), and the world around it."""

    name: str
    ranks: int
    words: Callable[[int, Path], Sequence[str]]  # by rank and folder of the run
    environment: Mapping[str, str] = field(default_factory=dict)
    namespaces: bool = False
    pinned: bool = False  # to as many cores as each rank can have for itself
    timeout_s: float = 60
    limit: tuple[int, int] | None = None  # this rank's host sends at most so many bytes a second from its notice on


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    name: str
    codes: tuple[int | None, ...]  # None: it had to be killed
    lines: tuple[tuple[dict[str, object], ...], ...]  # by rank
    errors: str
    folder: Path
    seconds: float
    acted_ns: int = 0  # UNIX time of the limit, or of the copies that were made of a stopped job's ring files

    @property
    def succeeded(self) -> bool:
        return all(code == 0 for code in self.codes)

    def rings(self, side: str = "plugin", copied: bool = False) -> list[Ring]:
        """The ring files of a side, by rank; or those copied while the job hung."""
        folder = self.folder / "copied" if copied else self.folder
        folders = [ring_folder(folder, rank, side) for rank in range(len(self.codes))]
        return [read_ring(path) for each in folders for path in sorted(each.glob("*.ring"))]


def base_environment() -> dict[str, str]:
    """What every rank gets: little of ours, and NCCL's settings."""
    return {key: os.environ[key] for key in KEPT_VARIABLES if key in os.environ} | NCCL_ENVIRONMENT


def torch_environment(job: str, rank: int, ranks: int, host: int, rings: Path, master: str) -> dict[str, str]:
    """What a rank of PyTorch on a host of its own gets beyond that; `master` is where rank 0 waits, with its port."""
    address, _, port = master.partition(":")
    return {
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_PROFILER_PLUGIN": str(PLUGIN),
        "LOCKSTEP_RING_DIR": str(rings),
        "LOCKSTEP_HOST": f"h{host}",
        "LOCKSTEP_JOB": job,
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
    }


def ring_folder(folder: Path, rank: int, side: str = "plugin") -> Path:
    """Where the plugin of a rank puts its ring file."""
    return folder / "rings" / f"{side}-{rank}"


def side_word(name: str, library: str, plugin: str, settings: Mapping[str, str]) -> str:
    """The word that opens a copy of NCCL with a plugin."""
    return ",".join(["side=" + name, library, plugin, *(f"{key}={value}" for key, value in settings.items())])


def lockstep_side(
    name: str, library: str, folder: Path, rank: int, settings: Mapping[str, str], plugin: Path = PLUGIN
) -> str:
    """The word that opens a copy of NCCL with our plugin, its ring file in a directory that is made here."""
    rings = ring_folder(folder, rank, name)
    rings.mkdir(parents=True, exist_ok=True)
    ours = {"LOCKSTEP_RING_DIR": str(rings), "LOCKSTEP_HOST": f"h{rank}"}
    return side_word(name, library, str(plugin), ours | dict(settings))


def find_library() -> str:
    """The NCCL that programs on this machine most likely use: torch's, else the system's."""
    found = [path for pattern in LIBRARY_PATTERNS for path in sorted(glob.glob(pattern))]
    if not found:
        raise LabError("found no libnccl.so.2; name one with --nccl")
    return found[0]


def build_rank() -> None:
    """Builds the rank program for the GPU that is here, unless it is newer than all that it is made of."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise LabError("the rank program needs nvcc")
    RANK.parent.mkdir(parents=True, exist_ok=True)
    newest = max(path.stat().st_mtime for path in [*HERE.glob("*.*"), HERE.parent / "wire.h"])
    if RANK.exists() and RANK.stat().st_mtime > newest:
        return
    sources = [str(HERE / name) for name in SOURCES]
    flags = ["-O2", "-arch=native", "-Xcompiler", "-Wall,-Wextra,-Werror"]
    subprocess.run([compiler, *flags, "-o", str(RANK), *sources, "-ldl"], check=True)


class SharedGpu:
    """CUDA's multi-process service: without it the ranks take turns on the GPU, milliseconds each."""

    def __init__(self) -> None:
        self._control = next((path for path in map(shutil.which, MPS_COMMANDS) if path), None)
        self._folder = Path(tempfile.mkdtemp(prefix="mps-"))
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": str(self._folder), "CUDA_MPS_LOG_DIRECTORY": str(self._folder)}

    def __enter__(self) -> "SharedGpu":
        if self._control is None:
            raise LabError("found no nvidia-cuda-mps-control")
        subprocess.run([self._control, "-d"], env=os.environ | self.environment, check=True, timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        if self._control is not None:
            command = [self._control]
            subprocess.run(command, input=b"quit\n", env=os.environ | self.environment, timeout=30, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)


class Lab:
    """Starts runs one after another, each in a folder of its own under `folder`."""

    def __init__(self, folder: Path, gpu_environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._gpu_environment = dict(gpu_environment)

    def run(self, run: Run) -> Outcome:
        """Runs to the end, or to its time limit; nothing of it is left running."""
        folder = self.folder / run.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        began = time.monotonic()
        network: AbstractContextManager[RankNetwork | None] = (
            RankNetwork(run.ranks) if run.namespaces else nullcontext()
        )
        with network as hosts:
            processes = [self._start(run, rank, folder, hosts) for rank in range(run.ranks)]
            try:
                acted_ns = _Watcher(run, processes, folder, hosts).watch()
            finally:
                end_in_order(processes, (signal.SIGKILL,), 0)
        seconds = time.monotonic() - began
        lines = tuple(json_lines(folder / f"out.{rank}") for rank in range(run.ranks))
        errors = "".join((folder / f"err.{rank}").read_text(errors="replace")[-800:] for rank in range(run.ranks))
        codes = tuple(None if process.returncode == -signal.SIGKILL else process.returncode for process in processes)
        return Outcome(run.name, codes, lines, errors, folder, seconds, acted_ns)

    def _start(self, run: Run, rank: int, folder: Path, hosts: RankNetwork | None) -> "subprocess.Popen[bytes]":
        environment = base_environment() | self._gpu_environment | dict(run.environment)
        environment |= {"NCCL_HOSTID": f"lab{rank}", "NCCL_SOCKET_IFNAME": "eth0" if hosts else "lo"}
        environment |= {"RANK": str(rank), "WORLD_SIZE": str(run.ranks)}
        command = [str(RANK), str(rank), str(run.ranks), str(folder), *run.words(rank, folder)]
        before = hosts.command(rank) if hosts else []
        if run.pinned:
            before = [*before, "taskset", "--cpu-list", _cores_of(rank, run.ranks, os.cpu_count() or 1)]
        with open(folder / f"out.{rank}", "wb") as out, open(folder / f"err.{rank}", "wb") as err:
            return subprocess.Popen([*before, *command], env=environment, stdout=out, stderr=err)


def _cores_of(rank: int, ranks: int, cores: int) -> str:
    """As many as each rank can have; two are left to the rest of the machine where that leaves any."""
    left_alone = 2 if cores > ranks + 2 else 0
    share = max(1, (cores - left_alone) // ranks)
    first = (left_alone + rank * share) % cores
    return f"{first}-{first + share - 1}"


class _Watcher:
    """Waits for all ranks, and acts once when one of them stops itself or announces its fault."""

    def __init__(
        self, run: Run, processes: Sequence["subprocess.Popen[bytes]"], folder: Path, hosts: RankNetwork | None
    ) -> None:
        self._run, self._processes, self._folder = run, processes, folder
        self._limiter = hosts.prepare_limit(*run.limit) if hosts is not None and run.limit is not None else None
        self._acted_ns = 0

    def watch(self) -> int:
        """Returns when all have ended, one has failed, or the time is over; says when it acted."""
        deadline = time.monotonic() + self._run.timeout_s
        while any(process.poll() is None for process in self._processes) and time.monotonic() < deadline:
            if any(process.returncode for process in self._processes):
                break
            if not self._acted_ns:
                self._act()
            time.sleep(0.001)
        if self._limiter is not None:
            self._limiter.kill()
            self._limiter.wait()
        return self._acted_ns

    def _act(self) -> None:
        if self._limiter is not None and self._run.limit is not None:
            if b'"onset"' in (self._folder / f"out.{self._run.limit[0]}").read_bytes():
                self._limiter.communicate(b"\n", timeout=10)
                self._acted_ns = time.time_ns()
            return
        for process in self._processes:
            if process.returncode is None and _is_stopped(process.pid):
                self._copy_rings(process)

    def _copy_rings(self, stopped: "subprocess.Popen[bytes]") -> None:
        """The job hangs as long as one of its ranks is stopped: what its files say then is what a hang looks like."""
        time.sleep(HANG_S)
        self._acted_ns = time.time_ns()
        shutil.copytree(self._folder / "rings", self._folder / "copied" / "rings")
        stopped.send_signal(signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def end_in_order(
    processes: "Sequence[subprocess.Popen[bytes]]", signals: Sequence[signal.Signals], patience_s: float
) -> None:
    """Ask first, as a launcher does, so that the GPU's service survives; insist when patience is over."""
    for each in signals:
        for process in processes:
            if process.poll() is None:
                process.send_signal(each)
    deadline = time.monotonic() + patience_s
    for process in processes:
        try:
            process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def json_lines(file: Path) -> tuple[dict[str, object], ...]:
    """What a rank said in JSON; nothing where it did not come so far."""
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    return tuple(json.loads(line) for line in lines if line.startswith("{") and line.endswith("}"))
