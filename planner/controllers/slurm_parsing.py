"""What Slurm's commands print, as values: nodes, jobs, host lists, and the marks that we left in them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lockstep.hostlists import expand_hostlist
from planner.controllers.protocol import JobView, Node

JobState = Literal["waiting", "running", "ended", "failed"]

# slurm.schedmd.com/squeue.html, "JOB STATE CODES"; what is in none of these lists is on its way to run again.
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING", "CONFIGURING"}
_BETWEEN = {"COMPLETING", "CONFIGURING"}  # not over, but it does not work either: it may yet turn out to have failed
_ENDED = {"COMPLETED", "CANCELLED"}
_FAILED = {"FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED", "REVOKED"}

# slurm.schedmd.com/sinfo.html, "NODE STATE CODES". A node that sleeps (POWERED_DOWN) is woken up for work.
_WORKING = {"IDLE", "ALLOCATED", "MIXED"}
_BARRED = {"DRAIN", "FAIL", "MAINT", "MAINTENANCE", "NOT_RESPONDING", "INVAL", "INVALID_REG", "REBOOT_ISSUED"}

_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z:/_]*)=")
_REASON = re.compile(r"\sReason=(?P<why>.*?)(?: \[(?P<who>[^\s@\]]+)@(?P<when>[^\]]*)\])?\s*$")
_MARKED = re.compile(r"lockstep (?P<mark>[\w.-]+)(?:: (?P<why>.*))?")
_TIMES = re.compile(r"^(KillWait|MinJobAge|MessageTimeout)\s*=\s*(\d+) sec", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as `scontrol show node` describes it."""

    name: str
    states: frozenset[str]
    why: str = ""  # the reason, without who gave it
    who: str = ""
    when: str = ""

    @property
    def is_drained(self) -> bool:
        return "DRAIN" in self.states

    @property
    def is_usable(self) -> bool:
        return bool(self.states & _WORKING) and not self.states & _BARRED

    @property
    def mark(self) -> str | None:
        """Return the mark under which we drained it; None when it is in service, or somebody else drained it."""
        return read_mark(self.why) if self.is_drained else None

    def as_node(self) -> Node:
        words = "+".join(sorted(self.states))
        reason = "" if self.is_usable else f"{words}: {self.why}" if self.why else words
        return Node(self.name, self.is_usable, self.mark, reason, is_idle="IDLE" in self.states)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as `scontrol show job` describes it; `fields` are all that it said, `(null)` and the like left out."""

    id: str
    state: JobState
    fields: Mapping[str, str]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(expand_hostlist(self.fields.get("NodeList", "")))

    @property
    def restarts(self) -> int:
        return int(self.fields.get("Restarts", "0"))

    @property
    def user(self) -> str:
        """Return whose job it is, without the number: `UserId=ada(1000)`."""
        return self.fields.get("UserId", "").partition("(")[0]

    def as_view(self) -> JobView:
        state: JobState = "waiting" if self.fields.get("JobState") in _BETWEEN else self.state
        return JobView(self.id, state, self.nodes, self.restarts, read_mark(self.fields.get("Comment", "")))


@dataclass(frozen=True, slots=True)
class SlurmTimes:
    """How long a Slurm waits and remembers; what it does not say is as slurm.conf(5) has it by default."""

    kill_wait_s: float = 30.0  # KillWait: a cancelled job has so long between SIGTERM and SIGKILL
    memory_s: float = 300.0  # MinJobAge: an ended job is known for so long at least; 0: for ever
    answer_s: float = 10.0  # MessageTimeout: a command waits so long for slurmctld


def write_mark(mark: str, reason: str = "") -> str:
    """Return a mark as we leave it in a drain reason or a comment.

    >>> write_mark("d-17", "NIC eth0 is slow"), write_mark("d-17")
    ('lockstep d-17: NIC eth0 is slow', 'lockstep d-17')
    """
    return f"lockstep {mark}: {' '.join(reason.split())}" if reason.strip() else f"lockstep {mark}"


def read_mark(text: str) -> str | None:
    """Return the mark in a drain reason or comment; None when it is not one of ours."""
    found = _MARKED.fullmatch(text.strip())
    return found["mark"] if found else None


def parse_nodes(text: str) -> list[SlurmNode]:
    """Return the nodes of `scontrol show node --oneliner`."""
    return [_parse_node(line) for line in text.splitlines() if line.startswith("NodeName=")]


def parse_jobs(text: str) -> list[SlurmJob]:
    """Return the jobs of `scontrol show job --oneliner`: more than one for an array or a heterogeneous job."""
    return [_parse_job(line) for line in text.splitlines() if line.startswith("JobId=")]


def find_marked(queue: str, mark: str) -> str | None:
    """Return the newest job that carries a mark, from lines `ID|STATE|COMMENT` of squeue."""
    rows = [line.split("|", 2) for line in queue.splitlines() if line.count("|") >= 2]
    return pick_marked(((job, comment) for job, _, comment in rows if job.isdigit()), mark)


def pick_marked(comments: Iterable[tuple[str, str]], mark: str) -> str | None:
    """Return the newest job that carries a mark, from jobs and their comments."""
    marked = [int(job) for job, comment in comments if read_mark(comment) == mark]
    return str(max(marked)) if marked else None


def parse_times(config: str) -> SlurmTimes:
    """Return the times that `scontrol show config` tells."""
    names = {"KillWait": "kill_wait_s", "MinJobAge": "memory_s", "MessageTimeout": "answer_s"}
    return SlurmTimes(**{names[key]: float(value) for key, value in _TIMES.findall(config)})


def _parse_node(line: str) -> SlurmNode:
    reason = _REASON.search(line)
    fields = _parse_fields(line[: reason.start()] if reason else line)
    # An asterisk after the state is the short form of NOT_RESPONDING.
    words = fields.get("State", "UNKNOWN").replace("*", "+NOT_RESPONDING").split("+")
    reported = {name: text or "" for name, text in reason.groupdict().items()} if reason else {}
    return SlurmNode(fields["NodeName"], frozenset(words), **reported)


def _parse_job(line: str) -> SlurmJob:
    fields = {key: value for key, value in _parse_fields(line).items() if value not in ("(null)", "N/A", "None", "")}
    if len(re.findall(r"\sUserId=", line)) != 1:  # a job may be named `x UserId=root(0)`, and would run as root
        fields.pop("UserId", None)
    return SlurmJob(fields["JobId"], read_state(fields.get("JobState", "")), fields)


def read_state(word: str) -> JobState:
    """Return what one of Slurm's job states means to us."""
    if word in _RUNNING:
        return "running"
    if word in _ENDED:
        return "ended"
    return "failed" if word in _FAILED else "waiting"


def _parse_fields(line: str) -> dict[str, str]:
    """Return KEY=value pairs, whose values may hold blanks; of a key that comes twice, the first counts."""
    keys = list(_KEY.finditer(line))
    ends = [key.start() for key in keys[1:]] + [len(line)]
    pairs = [(key[1], line[key.end() : end].strip()) for key, end in zip(keys, ends, strict=True)]
    return dict(reversed(pairs))
