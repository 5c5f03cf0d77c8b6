"""What Slurm says of nodes and jobs, as values with our marks, and the sbatch command that starts a job again."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lockstep.hostlists import expand_hostlist
from planner.controllers.protocol import JobView, Node, Restart
from planner.controllers.running import Notes

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

    @property
    def by_whom(self) -> str:
        """Return who drained it, when and why."""
        return f'by {self.who or "somebody"} since {self.when or "an unknown time"} with the reason "{self.why}"'

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


# What the batch script does not say when it was said on sbatch's command line, and what `scontrol show job` calls it.
_CARRIED_OVER = {
    "JobName": "--job-name",
    "Partition": "--partition",
    "Account": "--account",
    "QOS": "--qos",
    "Reservation": "--reservation",
    "Features": "--constraint",
    "TresPerNode": "--gres",
    "TimeLimit": "--time",
    "WorkDir": "--chdir",
    "Licenses": "--licenses",
    "Network": "--network",
    "CPUs/Task": "--cpus-per-task",
    "MinMemoryNode": "--mem",
    "MinMemoryCPU": "--mem-per-cpu",
}
_FILES = {"StdOut": "--output", "StdErr": "--error"}
EXCLUDED = "excluded"  # in a note: the nodes that we kept the new attempt from, beside those of its owner
TEMPLATE_FIELDS = ("job", "mark", "comment", "script", "exclude", "nnodes", "checkpoint", "name", "user")


@dataclass(frozen=True, slots=True)
class Submission:
    """What is needed to submit a job again, also when Slurm has forgotten it."""

    job: SlurmJob
    script: str


def find_excluded(job: SlurmJob, order: Restart) -> str:
    """Return the nodes that the new attempt must not use: those of the order, and those of the job's own list."""
    before = expand_hostlist(job.fields.get("ExcNodeList", ""))
    return ",".join(dict.fromkeys([*before, *order.exclude]))


def find_ours(job: SlurmJob, order: Restart) -> str:
    """Return the nodes that only we keep the new attempt from, not the job's owner."""
    owner = expand_hostlist(job.fields.get("ExcNodeList", ""))
    return ",".join(node for node in order.exclude if node not in owner)


def without_ours(job: SlurmJob, notes: Notes) -> SlurmJob:
    """Return a job without the nodes on its list that we excluded at an earlier restart: they may be back by now.

    Those that are still out of service are in the order. What its owner excluded stays excluded.
    """
    mark = read_mark(job.fields.get("Comment", ""))
    ours = set(((notes.read(mark) if mark else None) or {}).get(EXCLUDED, "").split(","))
    left = [node for node in expand_hostlist(job.fields.get("ExcNodeList", "")) if node not in ours]
    others = {key: value for key, value in job.fields.items() if key != "ExcNodeList"}
    return replace(job, fields=others | ({"ExcNodeList": ",".join(left)} if left else {}))


def find_shape(job: SlurmJob, nnodes: int | None) -> dict[str, str]:
    """Return NumNodes, NumTasks and NumCPUs of the new attempt: per node as before, on `nnodes` nodes."""
    nodes = _least(job.fields.get("NumNodes", "1"))
    wanted, shape = nnodes or nodes, {}
    for key in ("NumTasks", "NumCPUs"):
        count = _least(job.fields.get(key, "0"))
        if count >= nodes and count % nodes == 0:  # else Slurm finds out by itself, from the script
            shape[key] = str(count // nodes * wanted)
    return {"NumNodes": str(wanted)} | shape


def build_sbatch(sbatch: str, submission: Submission, order: Restart, own_user: str) -> list[str]:
    """Return the command; the script goes to its standard input and the variables to its environment.

    Variables travel in the environment and not in --export, where a comma in a value would end it.
    """
    job = submission.job
    shape = find_shape(job, order.nnodes)
    command = [sbatch, "--parsable", f"--comment={write_mark(order.mark)}", "--export=ALL", "--open-mode=append"]
    command += [f"{option}={job.fields[key]}" for key, option in _CARRIED_OVER.items() if key in job.fields]
    command += [f"{option}={_own_file(job, job.fields[key])}" for key, option in _FILES.items() if key in job.fields]
    command += _find_size(job, int(shape["NumNodes"]))
    command += [f"--nodes={shape['NumNodes']}"]
    command += [f"--ntasks={shape['NumTasks']}"] if "NumTasks" in shape else []
    excluded = find_excluded(job, order)
    command += [f"--exclude={excluded}"] if excluded else []
    command += [f"--uid={job.user}"] if job.user and job.user != own_user else []  # root alone may do that
    words = job.fields.get("Command", "").split()[1:]  # one with a blank in it is two, as Slurm shows no quotes
    return [*command, "/dev/stdin", *words] if words else command


def _find_size(job: SlurmJob, nodes: int) -> list[str]:
    """Return what each node gives to the job, where Slurm shows it in other words than sbatch wants it."""
    per_node = job.fields.get("NtasksPerN:B:S:C", "0").partition(":")[0]
    gpus = job.fields.get("TresPerJob", "").replace("gres/", "gres:").removeprefix("gres:gpu:")
    words = [f"--ntasks-per-node={per_node}"] if per_node not in ("0", "*") else []
    words += (
        [f"--gpus={_scale(gpus, _least(job.fields.get('NumNodes', '1')), nodes)}"] if gpus and "," not in gpus else []
    )
    return words + (["--exclusive"] if job.fields.get("OverSubscribe") == "NO" else [])


def _scale(gpus: str, before: int, after: int) -> str:
    """Return the GPUs of a whole job, such as a100:32, for another count of nodes; per node as before.

    >>> _scale("a100:32", 4, 3), _scale("30", 4, 3)
    ('a100:24', '30')
    """
    kind, colon, count = gpus.rpartition(":")
    if not count.isdecimal() or int(count) % before:
        return gpus
    return f"{kind}{colon}{int(count) // before * after}"


def fill_template(template: Sequence[str], submission: Submission, order: Restart, script: str) -> list[str]:
    """Return a site's own command with its {fields} filled; `script` is the file that holds the batch script."""
    job = submission.job
    values: Mapping[str, str] = {
        "job": order.job,
        "mark": order.mark,
        "comment": write_mark(order.mark),
        "script": script,
        "exclude": find_excluded(job, order),
        "nnodes": find_shape(job, order.nnodes)["NumNodes"],
        "checkpoint": order.checkpoint or "",
        "name": job.fields.get("JobName", ""),
        "user": job.user,
    }
    return [word.format(**values) for word in template]


def why_not_submitted(job: SlurmJob) -> str | None:
    """Return why this job cannot be submitted again from its batch script; None: it can."""
    if "ArrayJobId" in job.fields:
        return f"job {job.id} is a task of array {job.fields['ArrayJobId']}, which sbatch cannot submit alone"
    if "HetJobId" in job.fields:
        return f"job {job.id} is a part of heterogeneous job {job.fields['HetJobId']}, which has no script of its own"
    if job.fields.get("BatchFlag") != "1":
        return f"job {job.id} was started by srun or salloc and has no batch script to start it from"
    return None


def why_not_requeued(job: SlurmJob) -> str | None:
    """Return why Slurm would not requeue this job; None: it would."""
    if job.fields.get("BatchFlag") != "1":
        return f"job {job.id} was started by srun or salloc, and Slurm requeues batch jobs only"
    if job.fields.get("Requeue") != "1":
        return f"job {job.id} was submitted with --no-requeue"
    return None


def explain_unknown(job: str) -> str:
    """Return the sentence about a job that Slurm does not know."""
    return f"Slurm knows no job {job}: it never was, or it ended and is forgotten"


def explain_over(job: SlurmJob) -> str:
    """Return the sentence about a job that nobody wants to run any more."""
    return (
        f"job {job.id} is over ({job.fields['JobState']}), by itself or by somebody's will: it is not started again"
    )


def _own_file(job: SlurmJob, path: str) -> str:
    """Return an output file with the old job's number as a pattern again, so that attempts do not share it.

    Directories stay as they are: Slurm makes none, and a number in their name is seldom a job's.
    """
    directory, slash, name = path.rpartition("/")
    return directory + slash + re.sub(rf"(?<!\d){job.id}(?!\d)", "%j", name)


def _least(span: str) -> int:
    return int(span.partition("-")[0])
