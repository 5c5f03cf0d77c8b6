"""What if: a part of a job breaks on paper, and the planner says what it would do and what every way would cost.

Nothing is written down and nobody is notified: these are the planner's pure functions over what is known of the job.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from api.dashboard.jobs import choose_job
from api.dashboard.pages import call, job_call, page_router, render
from api.dependencies import Parts, parts_of
from api.views.hosts import list_hosts
from api.views.ranks import list_ranks, newest_attempt
from lockstep.clock import NS_PER_S
from lockstep.decision import Action, Option
from lockstep.errors import BadInput
from lockstep.in_job import IN_JOB_ACTS
from lockstep.sections import JobHints
from lockstep.state.decisions import list_isolated
from lockstep.verdict import FaultClass, Impact, Verdict
from lockstep.words import kind_of, lasting
from planner.checkpoints.choose import CheckpointFolders
from planner.context import ClusterFacts, Context, Durations, JobFacts, Layout, Resume
from planner.cost import weigh
from planner.decide import Choice, choose, lost_per_hour
from planner.escalation import LEVELS, Level, severity_of

SUPPOSED_AGE_MIN, SUPPOSED_LOAD_S = 30, 120  # of a checkpoint, where none is known
_SUPPOSED = "supposed"


@dataclass(frozen=True, slots=True)
class Known:
    """Figures that a question begins with, each with where it came from."""

    checkpoint_min: int
    checkpoint_from: str
    load_s: int
    load_from: str
    spares: tuple[str, ...]
    spares_from: str
    resume: Resume | None = None  # None: the checkpoint is supposed
    resume_smaller: Resume | None = None  # on fewer nodes; None: nothing there loads on them
    next_save_s: float | None = None

    def is_this(self, checkpoint_min: int, load_s: int) -> bool:
        """Return whether the checkpoint that is asked about is the one that is there."""
        return self.resume is not None and (checkpoint_min, load_s) == (self.checkpoint_min, self.load_s)


def read_known(
    folders: CheckpointFolders | None,
    job: str,
    layout: Layout | None,
    spares: tuple[tuple[str, ...], str],
    now_ns: int,
) -> Known:
    """Return what the job's own folder of checkpoints says; where it says nothing, what is supposed, and why."""
    free, spares_from = spares
    if folders is None:
        return _suppose(f"{_SUPPOSED}: planner.checkpoints is not set", free, spares_from)
    resume = folders.newest(job, layout, now_ns)
    if resume is None:
        folder = folders.catalogue(job, now_ns).folder
        return _suppose(f"{_SUPPOSED}: no checkpoint in {folder} is verified to be complete", free, spares_from)
    age = lasting(resume.age_s)
    return Known(
        checkpoint_min=round(resume.age_s / 60),
        checkpoint_from=f"{resume.path}, saved {age} ago, the newest that is verified to be complete",
        load_s=round(resume.back_s),
        load_from="its size at planner.read_mb_per_s" + (", and its conversion" if resume.convert_s else ""),
        spares=free,
        spares_from=spares_from,
        resume=resume,
        resume_smaller=folders.newest(job, None, now_ns, is_resized=True),
        next_save_s=folders.next_save_s(job, now_ns),
    )


def find_free(spares: Sequence[str], out: Collection[str], busy: Collection[str]) -> tuple[tuple[str, ...], str]:
    """Return the spares that are neither out of service nor in use, and in words where the count is from.

    >>> find_free(["h8", "h9"], {"h9"}, set())
    (('h8',), '1 of 2 in planner.spares: h9 is out of service')
    """
    if not spares:
        return (), "planner.spares names none"
    taken = [f"{name} is out of service" for name in spares if name in out]
    taken += [f"{name} runs a job" for name in spares if name in busy and name not in out]
    free = tuple(name for name in spares if name not in out and name not in busy)
    why = f": {', '.join(taken)}" if taken else ", none of them out of service or in use"
    return free, f"{len(free)} of {len(spares)} in planner.spares{why}"


def _suppose(why: str, spares: tuple[str, ...], spares_from: str) -> Known:
    return Known(SUPPOSED_AGE_MIN, why, SUPPOSED_LOAD_S, why, spares, spares_from)


router = page_router()

What = Literal["slow", "hung", "crashed"]
_CONFIDENCE = 0.95  # of the verdict on paper: what a clear fault gets
_KINDS = ("host", "gpu", "nic", "link", "switch", "nvlink", "pcie")


@dataclass(frozen=True)
class Question:
    """What is supposed to have happened, and what is around."""

    what: What = "hung"
    component: str = ""
    ratio: float = 1.5  # step time over the usual, while slow
    lasted_min: int = 60
    price: float | None = None
    checkpoint_min: int = SUPPOSED_AGE_MIN  # age of the last complete checkpoint
    load_s: int = SUPPOSED_LOAD_S
    spares: int = 0
    can_restart: bool = False
    can_shrink: bool = False


@dataclass(frozen=True)
class Answer:
    """What the planner would do."""

    choice: Choice
    alternatives: list[Option]
    severity: int
    severity_because: str
    allowed: tuple[Action, ...]  # at that severity
    node: str | None
    per_hour: float


@router.get("/what-if")
def what_if(
    request: Request,
    job: str | None = None,
    what: What = "hung",
    component: str = "",
    ratio: Annotated[float, Query(ge=1, le=100)] = 1.5,
    lasted_min: Annotated[int, Query(ge=0, le=10_080)] = 60,
    price: Annotated[float | None, Query(ge=0, le=10_000)] = None,
    checkpoint_min: Annotated[int | None, Query(ge=0, le=10_000_000)] = None,
    load_s: Annotated[int | None, Query(ge=0, le=1_000_000)] = None,
    spares: Annotated[int | None, Query(ge=0, le=1_000)] = None,
    can_restart: bool | None = None,
    can_shrink: bool | None = None,
    is_asked: bool = False,
) -> HTMLResponse:
    """Return what would be done if a part of a job broke."""
    parts = parts_of(request)
    choice = choose_job(parts, job)
    if choice.job is None:
        return render(request, "no_job.html", "whatif", "What if", (call("/jobs"),), what="question to ask")
    planner = parts.settings.planner
    facts, components = read_job(parts, choice.job)
    known = know(request, facts)
    question = Question(
        what=what,
        component=component or components[0],
        ratio=ratio,
        lasted_min=lasted_min,
        price=planner.gpu_hour_price if price is None else price,
        checkpoint_min=known.checkpoint_min if checkpoint_min is None else checkpoint_min,
        load_s=known.load_s if load_s is None else load_s,
        spares=len(known.spares) if spares is None else spares,
        # An unticked box is not sent, so the defaults hold only until the form was used.
        can_restart=bool(can_restart) if is_asked else planner.controller != "none",
        can_shrink=bool(can_shrink),
    )
    facts = with_checkpoint(facts, question, known)
    hosts = frozenset(host.id for host in parts.topology.hosts) if parts.topology else frozenset[str]()
    answer = ask(facts, question, hosts, parts.clock.now_ns(), known.spares)
    return render(
        request,
        "what_if.html",
        "whatif",
        "What if",
        (call("/decisions", job=choice.job), job_call(choice.job, "ranks")),
        choice=choice,
        facts=facts,
        components=components,
        question=question,
        known=known,
        answer=answer,
        controller=planner.controller,
        is_priced=planner.gpu_hour_price is not None,
    )


def ask(
    facts: JobFacts, question: Question, hosts: frozenset[str], now_ns: int, spares: tuple[str, ...] = ()
) -> Answer:
    """Return what the planner would do about the fault on paper; `spares` are those that there are by name."""
    verdict = suppose(facts, question, now_ns)
    supposed = (f"spare{number}" for number in range(len(spares), question.spares))
    cluster = ClusterFacts(
        hosts=hosts,
        spares=(*spares[: question.spares], *supposed),
        can_restart=question.can_restart,
    )
    facts = replace(facts, can=frozenset(IN_JOB_ACTS if question.can_shrink else ()))
    context = Context(verdict, facts, cluster, Durations(), question.price)
    severity, because = severity_of(verdict, ())
    options = weigh(context)
    choice = choose(options, context, Level(severity, because), now_ns)
    others = [option for option in options if option.action != choice.option.action]
    return Answer(choice, others, severity, because, LEVELS[severity], context.node, lost_per_hour(context))


def suppose(facts: JobFacts, question: Question, now_ns: int) -> Verdict:
    """Return the verdict that such a fault would get; BadInput for a part that no fault can be supposed of."""
    if kind_of(question.component) not in _KINDS or not question.component.partition(":")[2]:
        raise BadInput(
            f"{question.component!r} is no part: say kind:name, such as host:h3, with one of {', '.join(_KINDS)}"
        )
    is_slow = question.what == "slow"
    return Verdict(
        id="what-if",
        job=facts.job,
        fault_class=_class_of(question),
        component=question.component,
        confidence=_CONFIDENCE,
        grade="isolate",
        since_ns=max(now_ns - question.lasted_min * 60 * NS_PER_S, 0),
        last_seen_ns=now_ns,
        impact=Impact(
            step_time_ratio=question.ratio if is_slow else None, ranks_waiting=max(facts.gpus - 1, 0), gpus=facts.gpus
        ),
        reason="supposed",
        coverage=1.0,
    )


def _class_of(question: Question) -> FaultClass:
    is_network = kind_of(question.component) in ("nic", "link", "switch", "nvlink", "pcie")
    if question.what == "crashed":
        return "crash"
    if question.what == "hung":
        return "comm_hang" if is_network else "noncomm_hang"
    return "comm_slow" if is_network else "noncomm_slow"


def know(request: Request, facts: JobFacts) -> Known:
    """Return what the job's checkpoints and the control state say; the controller is not asked."""
    parts = parts_of(request)
    now_ns = parts.clock.now_ns()
    out = {each.node for each in list_isolated(parts.control) if each.state != "returned"}
    hosts = list_hosts(parts.store, parts.control, parts.topology, now_ns)
    free = find_free(parts.settings.planner.spares, out, {each.host for each in hosts if each.jobs})
    return read_known(request.app.state.checkpoints, facts.job, facts.layout, free, now_ns)


def with_checkpoint(facts: JobFacts, question: Question, known: Known) -> JobFacts:
    """Return the job with the checkpoint that is there, or with one as it is supposed, which loads on fewer nodes."""
    if known.is_this(question.checkpoint_min, question.load_s):
        return replace(facts, resume=known.resume, resume_smaller=known.resume_smaller, next_save_s=known.next_save_s)
    supposed = Resume("a checkpoint as supposed", "any", question.checkpoint_min * 60.0, float(question.load_s))
    return replace(facts, resume=supposed, resume_smaller=supposed)


def read_job(parts: Parts, job: str) -> tuple[JobFacts, list[str]]:
    """Return the job as it runs now, and its parts that could break."""
    ranks = list_ranks(parts.store, job, newest_attempt(parts.store, job), parts.clock.now_ns())
    hosts = tuple(dict.fromkeys(rank.host for rank in ranks))
    gpus = list(dict.fromkeys(f"gpu:{rank.host}/{rank.gpu}" for rank in ranks if rank.gpu is not None))
    hints = parts.settings.planner.jobs
    hint = hints.get(job, hints.get("*", JobHints()))
    layout = Layout(hint.tp, hint.pp, hint.dp, hint.micro_batches)
    facts = JobFacts(
        job=job,
        nodes=hosts,
        gpus=len(ranks),
        layout=layout if layout.gpus > 1 else None,
        weight=hint.weight,
        min_nodes=hint.min_nodes,
        throughput=hint.throughput,
    )
    known = (node for node in parts.topology.hosts if node.id in hosts) if parts.topology else ()
    nics = [f"nic:{node.id}/{nic.id}" for node in known for nic in node.nics]
    return facts, [*(f"host:{host}" for host in hosts), *nics, *gpus]
