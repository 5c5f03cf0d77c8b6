"""The elastic agents of one torchrun job, node by node: found, stopped, started, and a worker of theirs killed.

What is to be done on a node is a shell script handed to `sh -s` on its standard input. It needs no quoting on the
way, so the same script runs here and behind `ssh NODE`.
"""

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from lockstep.errors import ControllerRefused
from planner.controllers.protocol import check_template
from planner.controllers.running import Deadline, Finished, Notes, make_environment, run_within

MARK_VARIABLE = "LOCKSTEP_RESTART_MARK"  # in the environment of an agent: the mark it was started under
# Agents (of torch 2.13) keep the address of rank 0's store from their first meeting and tell it to nobody who joins
# later, unless they are told not to share the store: a node that comes back would wait for it until all give up.
JOINABLE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
_AT_ONCE = 32  # nodes that are asked at the same time
Answer = TypeVar("Answer")
Subject = TypeVar("Subject")

# Goes on with $pid, or ends where no agent runs. A number in a file may long be another process's: the
# command line of an agent names its job (--rdzv-id), and only then is it taken for one.
_FIND = """
pid=
{ read -r pid < "$pid_file"; } 2>/dev/null
case $pid in ''|*[!0-9]*) exit 0 ;; esac
grep -qzxFs -e "$job" -e "--rdzv-id=$job" -e "--rdzv_id=$job" /proc/$pid/cmdline || exit 0
"""
_SHOW = (
    _FIND
    + f"""echo "$pid $({{ tr '\\0' '\\n' < /proc/$pid/environ; }} 2>/dev/null | sed -n 's/^{MARK_VARIABLE}=//p')"
"""
)
# Prints "PID COUNT LIMIT" for each worker: children with a local rank, and how often torchrun has restarted them.
_WORKERS = (
    _FIND
    + """
for child in $(cat /proc/$pid/task/*/children 2>/dev/null); do
    { tr '\\0' '\\n' < /proc/$child/environ; } 2>/dev/null | awk -F= -v child=$child '
        $1 == "LOCAL_RANK" { is_worker = 1 }
        $1 == "TORCHELASTIC_RESTART_COUNT" { count = $2 }
        $1 == "TORCHELASTIC_MAX_RESTARTS" { limit = $2 }
        END { if (is_worker) print child, count, limit }'
done
"""
)
_STOP = _WORKERS + "kill -TERM $pid\n"
# An agent (of torch 2.13) that is told to end while it starts its workers leaves them behind.
_END_LEFT = """
for worker in $workers; do
    grep -qzxFs "TORCHELASTIC_RUN_ID=$job" /proc/$worker/environ || continue
    kill -KILL $worker 2>/dev/null || true
done
"""


@dataclass(frozen=True, slots=True)
class Agent:
    """An elastic agent that runs."""

    node: str
    pid: int
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """A process of the training, as its environment describes it."""

    node: str
    pid: int
    restarts: int
    most_restarts: int


@dataclass(frozen=True, slots=True)
class Reach:
    """How commands come to a node. {node} and {job} are filled in; in `launch` they are shell variables."""

    pid_file: str  # where the launch command leaves the agent's process id, on the node
    launch: str  # starts an agent in the background and returns; $node, $job, $pid_file and $rendezvous are set
    on_node: tuple[str, ...] = ()  # before `sh -s`, such as ("ssh", "{node}"); nothing: all nodes are this host
    environment: Mapping[str, str] = field(default_factory=dict)  # of the command that goes to the node

    def __post_init__(self) -> None:
        check_template((self.pid_file, *self.on_node), ("node", "job"))


class Agents:
    """The agents of one job, within the time of one call. Raises ControllerRefused, and ControllerDown at its end."""

    def __init__(self, job: str, reach: Reach, deadline: Deadline) -> None:
        self._job, self._reach, self.deadline = job, reach, deadline

    def find(self, node: str) -> Agent | None:
        """Return a node's agent; None when none runs there."""
        words = self._run(node, _SHOW).out.split()
        return Agent(node, int(words[0]), words[1] if len(words) > 1 else None) if words else None

    def find_all(self, nodes: Sequence[str], barred: Collection[str] = ()) -> list[Agent]:
        """Return the agents that run on these nodes, in their order; a barred node that does not answer has none."""

        def find(node: str) -> Agent | None:
            try:
                return self.find(node)
            except ControllerRefused:
                if node not in barred:
                    raise
                return None

        return [agent for agent in self.each(nodes, find) if agent]

    def stop(self, node: str) -> list[Worker]:
        """Ask a node's agent to end, and return its workers, which it ends first."""
        return self._ask_for_workers(node, _STOP)

    def end_left(self, workers: Sequence[Worker]) -> None:
        """Kill those of an ended agent's workers, all of one node, that it left behind."""
        if workers:
            pids = " ".join(str(worker.pid) for worker in workers)
            self._run(workers[0].node, f"workers='{pids}'\n{_END_LEFT}")

    def launch(self, node: str, mark: str, variables: Mapping[str, str], rendezvous: str | None = None) -> None:
        """Start a node's agent, to meet the others at a node, with a mark and further variables around it."""
        exports = {**JOINABLE, **variables, MARK_VARIABLE: mark}
        words = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in exports.items())
        words += f"rendezvous={shlex.quote(rendezvous or '')}\n"
        self._run(node, words + self._reach.launch)
        if not self.deadline.wait_until(lambda: self.find(node) is not None, reserve_s=0):
            raise ControllerRefused(f"on {node}: the launch command ended, and no agent of job {self._job} runs")

    def find_workers(self, node: str) -> list[Worker]:
        """Return the workers of a node's agent."""
        return self._ask_for_workers(node, _WORKERS)

    def kill_worker(self, worker: Worker) -> None:
        """Kill a worker: all agents then start all workers again, which uses up one of the job's restarts."""
        self._run(worker.node, f"kill -KILL {worker.pid}\n")

    def each(self, nodes: Sequence[Subject], act: Callable[[Subject], Answer]) -> list[Answer]:
        """Do something for many nodes at once; the first that fails speaks for all."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(act, nodes))

    def _ask_for_workers(self, node: str, script: str) -> list[Worker]:
        rows = [line.split() for line in self._run(node, script).out.splitlines()]
        return [Worker(node, *(int(word) for word in row)) for row in rows if len(row) == 3]

    def _run(self, node: str, script: str) -> Finished:
        values = {"node": node, "job": self._job}
        command = [*(word.format(**values) for word in self._reach.on_node), "sh", "-s"]
        values["pid_file"] = self._reach.pid_file.format(**values)
        known = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
        done = run_within(command, self.deadline, make_environment(self._reach.environment), known + script)
        if done.code:
            raise ControllerRefused(f"on {node}: {done.complaint}")
        return done


_NOTE = "rendezvous"
_ASKED_FOR = re.compile(r"\$\{?rendezvous\b")


class Meeting:
    """The node where agents meet; none where the store is a service of its own, such as etcd."""

    def __init__(self, first: str | None, launch: str, notes: Notes) -> None:
        self._first, self._notes = first, notes
        self.can_move = bool(_ASKED_FOR.search(launch))

    @property
    def node(self) -> str | None:
        """Return the node that hosts the store now."""
        return (self._notes.read(_NOTE) or {}).get("node", self._first) if self._first else None

    def choose(self, wanted: Sequence[str]) -> str | None:
        """Return the node of the next meeting: the one of now, or the first of those that take part."""
        now = self.node
        return wanted[0] if now and wanted and now not in wanted else now

    def move(self, node: str | None) -> None:
        """Write down where agents meet from now on."""
        if node != self.node and node is not None:
            self._notes.write(_NOTE, {"node": node})

    def why_stuck(self, node: str, job: str) -> str | None:
        """Return why the job cannot go on without a node; None: it can, as far as the meeting goes."""
        if node != self.node or self.can_move:
            return None
        return (
            f"this needs a person: {node} hosts the rendezvous of job {job}, and the launch command names it for "
            "good; with $rendezvous in its place the job could be started again at another"
        )
