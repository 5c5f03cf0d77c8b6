"""Whose ring file it is, as the kernel says: the process that holds its lock, its user, and its job.

What the file says of itself is only compared. Where a scheduler puts jobs into control groups (Slurm), the group is
the job: no process can leave it. Elsewhere it is the environment with which the process was started.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import BadRing
from lockstep.wire import HEADER, text_of

# Where launchers say who a process is, best first, and how often it was restarted; the plugin has the same lists.
_JOB_VARIABLES = ("LOCKSTEP_JOB", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID", "LSB_JOBID")
_ATTEMPT_VARIABLES = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_ENVIRONMENT_BYTES = 1 << 20  # launchers put their variables far in front of that
_JOB_BYTES = HEADER["job"].itemsize - 1
_MOST_ATTEMPTS = 0xFFFF

# slurm.conf(5), cgroup.conf(5): /slurm/uid_1000/job_7/step_0 (v1), /system.slice/slurmstepd.scope/job_7/step_0 (v2).
_SLURM = re.compile(r"/[^/\n]*slurm[^\n]*/job_(\d+)(?:/|$)", re.MULTILINE)
# Both drivers of the kubelet: /kubepods/burstable/pod<uid>/…, /kubepods.slice/kubepods-pod<uid with _>.slice/….
_POD = re.compile(r"/[^\n]*kubepods[^\n]*pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_DOCKER = re.compile(r"/[^\n]*docker[-/]([0-9a-f]{64})")

Environment = Mapping[str, str]


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
    told = job_of(environment)
    job = group.job or told or group.container or f"uid-{claim.uid}"
    # A name of the job's own choice is no claim to be another one; a number of the scheduler's is.
    names_another = group.job is not None and claim.job.isdecimal() and claim.job != group.job
    if names_another or claim.job not in (told, group.job):
        return job, f"claims job {claim.job or 'none'}, and its process is in job {group.job or told or 'none'}"
    return job, ""


def job_of(environment: Environment) -> str:
    """Return the job as the plugin reads it from the same environment; empty when there is none."""
    given = next((environment[name] for name in _JOB_VARIABLES if environment.get(name)), "")
    return text_of(given.encode(errors="surrogateescape")[:_JOB_BYTES])


def attempt_of(environment: Environment) -> int:
    """Return how often the job was restarted."""
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


def read_environment(proc: Path, pid: int) -> Environment | None:
    """Return the environment with which a process was started; None where it is not for us to read."""
    try:
        with open(proc / str(pid) / "environ", "rb") as file:
            pairs = file.read(_ENVIRONMENT_BYTES).decode(errors="surrogateescape").split("\0")
    except OSError:
        return None
    return {name: value for name, found, value in (pair.partition("=") for pair in pairs) if found}
