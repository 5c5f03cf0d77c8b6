"""Which ring files there are, in the usual directories of the host and inside containers, and whose they are.

A container is looked into through /proc/PID/root of a process that holds a ring file there. Nothing on the way is
followed: a link inside of a container would lead to a place on the host. A directory stays open while it is of use,
also when the process through which it was found has ended.

Whose the directory may be: the host's own must be root's, or ours. Those in shared memory are made by the plugin
itself, and those in containers belong to the container, perhaps to an unprivileged user namespace, so there any owner
will do, as long as others cannot rename what is not theirs. That is no loss: whose a ring is comes from the lock and
from the kernel, and whoever owns the directory can only make us miss a file.

Whose the ring is: the process that holds its lock, its user, and its job, as the kernel says. What the file says of
itself is only compared. Where a scheduler puts jobs into control groups (Slurm), the group is the job: no process can
leave it. Elsewhere it is the environment with which the process was started.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from collector.kernel.foreign_file import directory_problem, printable
from collector.kernel.process import Environment, RingHolders, read_environment, read_link
from collector.supervision import JOB_VARIABLES
from lockstep.clock import NS_PER_S
from lockstep.errors import BadRing
from lockstep.wire import HEADER, text_of

Inode = tuple[int, int]  # device and number

SCAN_NS = 5 * NS_PER_S  # how often directories are looked for; the files in those that are known come every time
_MOST_FILES = 4_096  # looked at in one directory
_MOST_DIRECTORIES = 256
_SHARED_MEMORY = Path("dev/shm")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

# Where launchers say how often a process was restarted, best first; the plugin has the same list.
_ATTEMPT_VARIABLES = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_JOB_BYTES = HEADER["job"].itemsize - 1
_MOST_ATTEMPTS = 0xFFFF

# slurm.conf(5), cgroup.conf(5): /slurm/uid_1000/job_7/step_0 (v1), /system.slice/slurmstepd.scope/job_7/step_0 (v2).
_SLURM = re.compile(r"/[^/\n]*slurm[^\n]*/job_(\d+)(?:/|$)", re.MULTILINE)
# Both drivers of the kubelet: /kubepods/burstable/pod<uid>/…, /kubepods.slice/kubepods-pod<uid with _>.slice/….
_POD = re.compile(r"/[^\n]*kubepods[^\n]*pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_DOCKER = re.compile(r"/[^\n]*docker[-/]([0-9a-f]{64})")
_LEAST_UUID = 8  # letters of an abbreviated UUID that we take for one GPU: "GPU-" and four more


@dataclass(frozen=True)
class FoundFile:
    """A file that may be a ring."""

    directory: "RingDirectory"
    name: str
    inode: Inode

    @property
    def path(self) -> Path:
        """The way to it that nobody can bend meanwhile."""
        return Path(f"/proc/self/fd/{self.directory.descriptor}/{self.name}")

    @property
    def shown(self) -> Path:
        """As people know it."""
        return self.directory.path / self.name

    def remove(self) -> None:
        """Take the file away, if the name still means the same one."""
        with contextlib.suppress(OSError):
            found = os.stat(self.name, dir_fd=self.directory.descriptor, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == self.inode:
                os.unlink(self.name, dir_fd=self.directory.descriptor)


class RingDirectory:
    """An open directory."""

    def __init__(self, path: Path, descriptor: int, is_contained: bool) -> None:
        self.path, self.descriptor, self.is_contained = path, descriptor, is_contained
        found = os.fstat(descriptor)
        self.inode: Inode = (found.st_dev, found.st_ino)

    def files(self) -> Iterator[FoundFile]:
        """Return what is named like a ring file; without looking at the files themselves."""
        with contextlib.suppress(OSError), os.scandir(self.descriptor) as entries:
            for entry in islice(entries, _MOST_FILES):
                if entry.name.endswith(".ring"):
                    yield FoundFile(self, entry.name, (self.inode[0], entry.inode()))

    def close(self) -> None:
        os.close(self.descriptor)


class RingDirectories:
    """Finds the directories again and again; jobs and containers come and go."""

    def __init__(self, root: Path, directories: Sequence[Path]) -> None:
        self._root, self._proc = root, root / "proc"
        self._relative = [directory.relative_to("/") for directory in directories]
        self._holders = RingHolders(root, directories)
        self._open: dict[Inode, RingDirectory] = {}
        self._scanned_ns: int | None = None
        self._distrusted: dict[Path, str] = {}
        self.complaints: list[str] = []  # directories that turned out not to be trusted in the last look

    def scan(self, now_ns: int, in_use: set[Inode]) -> list[RingDirectory]:
        """Return the directories there are; those of `in_use` stay open whatever happens."""
        self.complaints = []
        if self._scanned_ns is None or not 0 <= now_ns - self._scanned_ns < SCAN_NS:
            self._scanned_ns = now_ns
            self._scan(in_use)
        return list(self._open.values())

    def close(self) -> None:
        for directory in self._open.values():
            directory.close()
        self._open = {}

    def _scan(self, in_use: set[Inode]) -> None:
        seen: set[Inode] = set()
        for base, is_contained in [(self._root, False), *((base, True) for base in self._containers())]:
            for relative in self._relative:
                if directory := self._find(base, relative, is_contained):
                    seen.add(directory.inode)
        for inode in self._open.keys() - seen - in_use:
            self._open.pop(inode).close()

    def _containers(self) -> Iterator[Path]:
        """Return the root of a process per mount namespace that is not ours and in which a ring is held."""
        ours = read_link(self._proc / "self/ns/mnt")
        namespaces = {read_link(self._proc / f"{pid}/ns/mnt"): pid for pid in sorted(self._holders(), reverse=True)}
        for namespace, pid in namespaces.items():
            if namespace and namespace != ours:
                yield self._proc / str(pid) / "root"

    def _find(self, base: Path, relative: Path, is_contained: bool) -> RingDirectory | None:
        path = base / relative
        try:
            descriptor = _open_below(base, relative)
        except OSError:  # it is not there, a link on the way, or not for us
            return None
        found = RingDirectory(path, descriptor, is_contained)
        any_owner = is_contained or relative.is_relative_to(_SHARED_MEMORY)
        problem = directory_problem(os.fstat(descriptor), any_owner)
        self._note(path, problem)
        if problem or found.inode in self._open or len(self._open) >= _MOST_DIRECTORIES:
            found.close()
            return None if problem else self._open.get(found.inode)
        self._open[found.inode] = found
        return found

    def _note(self, path: Path, problem: str | None) -> None:
        """Complain when it changes, not each time round."""
        if problem and self._distrusted.get(path) != problem:
            self.complaints.append(f"{printable(path)}: {problem}")
        if problem and len(self._distrusted) < _MOST_DIRECTORIES:
            self._distrusted[path] = problem
        elif not problem:
            self._distrusted.pop(path, None)


def _open_below(base: Path, relative: Path) -> int:
    descriptor = os.open(base, _FLAGS)
    for part in relative.parts:
        above = descriptor
        try:
            descriptor = os.open(part, _FLAGS | os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)
    return descriptor


@dataclass(frozen=True)
class Group:
    """What a process's control group says of it."""

    job: str | None = None  # a scheduler's: the last word
    container: str | None = None  # a pod or a container, which is a part of a job at most


@dataclass(frozen=True)
class Owner:
    """The process that writes a ring file."""

    pid: int
    job: str
    attempt: int
    environment: Environment


@dataclass(frozen=True)
class Claim:
    """What is to be confirmed of a ring file: its name and its user, and the job of which it says to be."""

    file: str
    uid: int
    job: str


def find_owner(proc: Path, pid: int | None, claim: Claim) -> Owner:
    """Return who writes a file of which the kernel says that `pid` holds it, or raise BadRing with the reason."""
    if problem := _holder_problem(proc, pid, claim.uid) or pid is None:
        raise BadRing(str(problem), file=claim.file)
    environment = read_environment(proc, pid)
    if environment is None:
        why = f"the environment of process {pid}, which holds it, is not for us to read (that takes CAP_SYS_PTRACE)"
        raise BadRing(f"cannot be checked: {why}", file=claim.file)
    job, problem = judge_job(claim, environment, read_group(proc, pid))
    if problem:
        raise BadRing(problem, file=claim.file)
    return Owner(pid, job, attempt_of(environment), environment)


def _holder_problem(proc: Path, pid: int | None, uid: int) -> str:
    if pid is None:
        return "nobody holds it: its process ended before it was seen, or there never was one"
    if pid == 0:
        return "is held by a process that cannot be seen from here (is the collector in a namespace of processes?)"
    if uid not in (uids := read_uids(proc, pid)):
        who = ", ".join(map(str, sorted(uids))) or "nobody"
        return f"belongs to uid {uid} and is held by process {pid} of uid {who}"
    return ""


def judge_job(claim: Claim, environment: Environment, group: Group) -> tuple[str, str]:
    """Return the job of a process, and a problem when its file claims another one.

    >>> judge_job(Claim("a.ring", 1000, "7"), {"SLURM_JOB_ID": "7"}, Group(job="7"))
    ('7', '')
    >>> judge_job(Claim("a.ring", 1000, "8"), {"LOCKSTEP_JOB": "8"}, Group(job="7"))
    ('7', 'claims job 8, and its process is in job 7')
    """
    reported = job_of(environment)
    job = group.job or reported or group.container or f"uid-{claim.uid}"
    # A name of the job's own choice is no claim to be another one; a number of the scheduler's is.
    names_another = group.job is not None and claim.job.isdecimal() and claim.job != group.job
    if names_another or claim.job not in (reported, group.job):
        return job, f"claims job {claim.job or 'none'}, and its process is in job {group.job or reported or 'none'}"
    return job, ""


def job_of(environment: Environment) -> str:
    """Return the job as the plugin reads it from the same environment; empty when there is none."""
    given = next((environment[name] for name in JOB_VARIABLES if environment.get(name)), "")
    return text_of(given.encode(errors="surrogateescape")[:_JOB_BYTES])


def attempt_of(environment: Environment) -> int:
    given = next((environment[name] for name in _ATTEMPT_VARIABLES if environment.get(name)), "")
    return min(int(given[:9]), _MOST_ATTEMPTS) if given.isascii() and given.isdecimal() else 0


def group_of(cgroup: str) -> Group:
    """Return what /proc/PID/cgroup says.

    >>> group_of("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0")
    Group(job='4711', container=None)
    """
    slurm, pod, docker = _SLURM.search(cgroup), _POD.search(cgroup), _DOCKER.search(cgroup)
    container = f"pod-{pod[1].replace('_', '-')}" if pod else f"docker-{docker[1][:12]}" if docker else None
    return Group(slurm[1] if slurm else None, container)


def read_group(proc: Path, pid: int) -> Group:
    """Return the control group of a process; nothing where the kernel has none."""
    try:
        return group_of((proc / str(pid) / "cgroup").read_text(errors="replace"))
    except OSError:
        return Group()


def read_uids(proc: Path, pid: int) -> set[int]:
    """Return the users as which a process acts: real, effective, saved, and for files; none when it is gone."""
    try:
        status = (proc / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return set()
    found = re.search(r"^Uid:((?:\s+\d+){4})\s*$", status, re.MULTILINE)
    return set(map(int, found[1].split())) if found else set()


def find_gpu(
    environment: Mapping[str, str], local_rank: int | None, uuids: Sequence[str], is_contained: bool
) -> int | None:
    """Return the index of the rank's GPU, or None where it cannot be told.

    CUDA_VISIBLE_DEVICES lists numbers or (abbreviated) UUIDs, and a rank takes the one at its local rank; a launcher
    that shows each rank its own GPU only leaves no choice. `uuids` are the host's GPUs in NVML's order, which is that
    of their PCI addresses; equal GPUs have the same order in CUDA. A container may number its GPUs anew.

    >>> find_gpu({"CUDA_VISIBLE_DEVICES": "2,3"}, 1, [], False), find_gpu({}, None, [], False)
    (3, None)
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    chosen = _choose([each.strip() for each in visible.split(",")] if visible else [], local_rank, uuids)
    if chosen is None:
        return None
    if not chosen.isdecimal():
        return _by_uuid(chosen, uuids)
    shown = environment.get("NVIDIA_VISIBLE_DEVICES", "all") if is_contained else "all"
    return _on_the_host(int(chosen[:4]), shown, uuids)


def host_gpus(root: Path) -> list[str]:
    """Return the UUIDs of the host's GPUs in NVML's order; empty where the driver does not list them."""
    found = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        try:
            reported = re.search(r"^GPU UUID:\s*(\S+)", path.read_text(errors="replace"), re.MULTILINE)
        except OSError:
            reported = None
        found.append(reported[1] if reported else "")
    return found


def _choose(visible: list[str], local_rank: int | None, uuids: Sequence[str]) -> str | None:
    if len(visible) == 1:
        return visible[0]
    if visible:
        return visible[local_rank] if local_rank is not None and local_rank < len(visible) else None
    if len(uuids) == 1:
        return "0"
    return None if local_rank is None or (uuids and local_rank >= len(uuids)) else str(local_rank)


def _on_the_host(number: int, shown: str, uuids: Sequence[str]) -> int | None:
    """Return what a container's number is on the host; `shown` is what its runtime was told to show."""
    if shown == "all":
        return number if number <= 0xFFFF else None
    indices = [int(each[:4]) if each.isdecimal() else _by_uuid(each, uuids) for each in shown.split(",")]
    known = sorted(index for index in indices if index is not None)
    return known[number] if len(known) == len(indices) and number < len(known) else None


def _by_uuid(uuid: str, uuids: Sequence[str]) -> int | None:
    if not uuid.startswith("GPU-") or len(uuid) < _LEAST_UUID:
        return None  # a part of a GPU (MIG), "void", "none"
    indices = [index for index, each in enumerate(uuids) if each.startswith(uuid)]
    return indices[0] if len(indices) == 1 else None
