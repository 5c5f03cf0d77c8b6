"""Any controller with a command line: each act is a command, written as an argument list with places to fill in.

Never a shell: each argument stays one argument, whatever a reason or a name holds. A command ends with 0 (done), 3
(it was so already) or 4 (refused); all else has failed. The last line of its output is the sentence of the report.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.errors import BadInput, ControllerDown
from planner.controllers.answers import parse_job, parse_nodes
from planner.controllers.orders import check_mark, check_name, check_order, find_variables
from planner.controllers.protocol import JobView, Node, Outcome, Report, Restart
from planner.controllers.running import Deadline, Finished, make_environment, run_within

Template = tuple[str, ...]
_PLACE = re.compile(r"\{([a-z]+)\}")
_OUTCOMES: dict[int, Outcome] = {0: "done", 3: "already", 4: "refused"}


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """The command of each act; empty: there is none, and the act is refused."""

    isolate: Template = ()  # {node} {mark} {reason}
    release: Template = ()  # {node} {mark}
    restart: Template = ()  # {job} {mark} {exclude} {nnodes} {checkpoint}; its variables are in the environment
    reattempt: Template = ()  # {job} {mark}
    nodes: Template = ()  # prints {"nodes": [{"name", "is_usable", "mark"?, "reason"?}]}
    job: Template = ()  # {job}; prints {"id", "state", "nodes"?, "restarts"?, "mark"?}, or {} when it knows none
    timeout_s: float = 60.0  # of each command
    restarts_whole_job: bool = True  # False: `restart` starts processes again in the allocation they have
    dry_run: bool = False


_PLACES: dict[str, frozenset[str]] = {
    "isolate": frozenset({"node", "mark", "reason"}),
    "release": frozenset({"node", "mark"}),
    "restart": frozenset({"job", "mark", "exclude", "nnodes", "checkpoint"}),
    "reattempt": frozenset({"job", "mark"}),
    "nodes": frozenset(),
    "job": frozenset({"job"}),
}


class CommandController:
    """Runs a site's own commands."""

    name = "command"

    def __init__(self, options: CommandOptions) -> None:
        check_templates(options)
        self._options = options
        self.restarts_whole_job = options.restarts_whole_job

    def nodes(self) -> Sequence[Node]:
        """Return the nodes that the command prints; none without one."""
        ended = self._look(self._options.nodes, {})
        return () if ended is None else parse_nodes(ended.out, ended.command[0])

    def job(self, job: str) -> JobView | None:
        """Return the job that the command prints; None without one."""
        check_name(job, "job")
        ended = self._look(self._options.job, {"job": job})
        return None if ended is None else parse_job(ended.out, ended.command[0])

    def isolate(self, node: str, mark: str, reason: str) -> Report:
        """Run the command that lets no new work start on a node."""
        check_name(node, "node")
        return self._act("isolate", self._options.isolate, {"node": node, "mark": mark, "reason": reason})

    def release(self, node: str, mark: str) -> Report:
        """Run the command that gives a node back to service."""
        check_name(node, "node")
        return self._act("release", self._options.release, {"node": node, "mark": mark})

    def restart(self, order: Restart) -> Report:
        """Run the command that starts a job again; the last line may name the job's new id as `job=ID`."""
        check_order(order)
        values = {
            "job": order.job,
            "mark": order.mark,
            "exclude": ",".join(order.exclude),
            "nnodes": "" if order.nnodes is None else str(order.nnodes),
            "checkpoint": order.checkpoint or "",
        }
        report = self._act("restart", self._options.restart, values, find_variables(order))
        named = re.search(r"\bjob=(\S+)", report.what)
        return Report(report.outcome, report.what, named[1] if named and report.is_good else order.job)

    def reattempt(self, job: str, mark: str) -> Report:
        """Run the command that lets a job try again in place."""
        check_name(job, "job")
        return self._act("reattempt", self._options.reattempt, {"job": job, "mark": mark})

    def _act(
        self, act: str, template: Template, values: Mapping[str, str], extra: Mapping[str, str] | None = None
    ) -> Report:
        check_mark(values["mark"])
        if not template:
            return Report("refused", f"no command is configured to {act}")
        command = fill(template, values)
        if self._options.dry_run:
            return Report("would", f"would run {command}")
        ended = run_within(command, Deadline(self._options.timeout_s), make_environment(extra or {}))
        outcome = _OUTCOMES.get(ended.code, "failed")
        return Report(outcome, ended.complaint if outcome == "failed" else _last_line(ended))

    def _look(self, template: Template, values: Mapping[str, str]) -> Finished | None:
        if not template:
            return None
        ended = run_within(fill(template, values), Deadline(self._options.timeout_s), make_environment({}))
        if ended.code != 0:
            raise ControllerDown(ended.complaint)
        return ended


def check_templates(options: CommandOptions) -> None:
    """Raise BadInput for a place that its act cannot fill, or for a program that is a place."""
    for act, places in _PLACES.items():
        template: Template = getattr(options, act)
        asked = {name for argument in template for name in _PLACE.findall(argument)}
        if asked - places:
            known = ", ".join(sorted(places)) or "none"
            raise BadInput(f"the command for {act} has {{{min(asked - places)}}} in it; it can have: {known}")
        if template and _PLACE.search(template[0]):
            raise BadInput(f"the program for {act} must be named, not filled in: {template[0]}")


def fill(template: Template, values: Mapping[str, str]) -> Template:
    """Return the arguments with their places filled in. What is filled in is never looked at again.

    >>> fill(("drain", "--node={node}", "{reason}"), {"node": "h1", "reason": "{node} is slow"})
    ('drain', '--node=h1', '{node} is slow')
    """
    for name, value in values.items():
        if value.startswith("-") or "\0" in value:
            raise BadInput(f"{name} would be taken for an option, or for no text at all: {value!r}")
    return tuple(_PLACE.sub(lambda place: values[place[1]], argument) for argument in template)


def _last_line(ended: Finished) -> str:
    lines = ended.out.strip().splitlines()
    return lines[-1].strip()[:500] if lines else f"{ended.command[0]} ended with {ended.code} and said nothing"
