"""What a person types who carries a decision out without the planner, for the controllers whose commands all know."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lockstep.decision import Action
from lockstep.in_job import IN_JOB_ACTS


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be done."""

    job: str
    nodes: tuple[str, ...] = ()  # to take out of service
    reason: str = ""
    nnodes: int | None = None  # that the job starts again on; None: as many as before
    convert: str | None = None  # a command that must come before


def list_commands(controller: str, action: Action, wanted: Wanted) -> tuple[str, ...]:
    """Return commands in their order; none for controllers that a site knows better than we do.

    >>> list_commands("slurm", "replace", Wanted("4711", ("h3",), "gone"))
    ('scontrol update NodeName=h3 State=DRAIN Reason=gone', 'scontrol requeue 4711')
    """
    write = _BY_CONTROLLER.get(controller)
    if write is None or action in ("none", "reroute", "reattempt", *IN_JOB_ACTS):
        return ()
    return (*([wanted.convert] if wanted.convert else []), *write(wanted))


def _slurm(wanted: Wanted) -> Iterator[str]:
    job = shlex.quote(wanted.job)
    if wanted.nodes:
        names = shlex.quote(",".join(wanted.nodes))
        yield f"scontrol update NodeName={names} State=DRAIN Reason={shlex.quote(wanted.reason)}"
    if wanted.nnodes is None:
        yield f"scontrol requeue {job}"
    else:  # Slurm changes the size of waiting jobs only
        yield f"scontrol requeuehold {job}"
        yield f"scontrol update JobId={job} NumNodes={wanted.nnodes}"
        yield f"scontrol release {job}"


def _kubernetes(wanted: Wanted) -> Iterator[str]:
    for node in wanted.nodes:
        yield f"kubectl cordon {shlex.quote(node)}"
    namespace, _, name = wanted.job.rpartition("/")
    where = f" -n {shlex.quote(namespace)}" if namespace else ""
    if wanted.nnodes is None:
        yield f"kubectl delete pods{where} -l jobset.sigs.k8s.io/jobset-name={shlex.quote(name)}"


_BY_CONTROLLER: Mapping[str, Callable[[Wanted], Iterator[str]]] = {"slurm": _slurm, "kubernetes": _kubernetes}
