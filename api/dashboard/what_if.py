"""What if: a part of a job breaks on paper, and the planner says what it would do and what every way would cost.

Nothing is written down and nobody is told: these are the planner's pure functions over what is known of the job.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from api.dashboard.addresses import call, job_call
from api.dashboard.jobs import choose_job
from api.dashboard.page_route import page_router
from api.dashboard.rendering import render
from api.dashboard.words import kind_of
from api.parts import Parts, parts_of
from api.reading.ranks import list_ranks, newest_attempt
from lockstep.clock import NS_PER_S
from lockstep.decision import Action, Option
from lockstep.errors import BadInput
from lockstep.planner_settings import JobHints
from lockstep.verdict import FaultClass, Impact, Verdict
from planner.recovery.decide import Choice, choose, lost_per_hour
from planner.recovery.facts import ClusterFacts, Durations, JobFacts, Layout, Resume
from planner.recovery.ladder import RUNGS, Standing
from planner.recovery.situation import Situation
from planner.recovery.taxonomy import severity_of
from planner.recovery.weighing import weigh

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
    checkpoint_min: int | None = 30  # age of the last complete checkpoint; None: there is none
    load_s: int = 120
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
    checkpoint_min: Annotated[int, Query(ge=0, le=1_440)] = 30,
    load_s: Annotated[int, Query(ge=0, le=86_400)] = 120,
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
    facts, components = read_job(parts, choice.job, checkpoint_min * 60.0, float(load_s))
    question = Question(
        what=what,
        component=component or components[0],
        ratio=ratio,
        lasted_min=lasted_min,
        price=planner.gpu_hour_price if price is None else price,
        checkpoint_min=checkpoint_min,
        load_s=load_s,
        spares=len(planner.spares) if spares is None else spares,
        # An unticked box is not sent, so the defaults hold only until the form was used.
        can_restart=bool(can_restart) if is_asked else planner.controller != "none",
        can_shrink=bool(can_shrink) if is_asked else planner.can_shrink,
    )
    answer = ask(facts, question, hosts_of(parts), parts.clock.now_ns())
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
        answer=answer,
    )


def ask(facts: JobFacts, question: Question, hosts: frozenset[str], now_ns: int) -> Answer:
    """Return what the planner would do about the fault on paper."""
    verdict = suppose(facts, question, now_ns)
    cluster = ClusterFacts(
        hosts=hosts,
        spares=tuple(f"spare{number}" for number in range(question.spares)),
        can_restart=question.can_restart,
        can_shrink=question.can_shrink,
    )
    situation = Situation(verdict, facts, cluster, Durations(), question.price)
    severity, because = severity_of(verdict, ())
    options = weigh(situation)
    choice = choose(options, situation, Standing(severity, because), now_ns)
    others = [option for option in options if option.action != choice.option.action]
    return Answer(choice, others, severity, because, RUNGS[severity], situation.node, lost_per_hour(situation))


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
        impact=Impact(step_time_ratio=question.ratio if is_slow else None, ranks_waiting=max(facts.gpus - 1, 0)),
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


def read_job(parts: Parts, job: str, checkpoint_s: float, load_s: float) -> tuple[JobFacts, list[str]]:
    """Return the job as it runs now, with a checkpoint of that age, and its parts that could break."""
    ranks = list_ranks(parts.store, job, newest_attempt(parts.store, job), parts.clock.now_ns())
    hosts = tuple(dict.fromkeys(rank.host for rank in ranks))
    gpus = list(dict.fromkeys(f"gpu:{rank.host}/{rank.gpu}" for rank in ranks if rank.gpu is not None))
    hints = parts.settings.planner.jobs
    hint = hints.get(job, hints.get("*", JobHints()))
    layout = Layout(hint.tp, hint.pp, hint.dp, hint.micro_batches)
    resume = Resume("the last complete checkpoint", "any", checkpoint_s, load_s)
    facts = JobFacts(
        job=job,
        nodes=hosts,
        gpus=len(ranks),
        layout=layout if layout.gpus > 1 else None,
        resume=resume,
        resume_smaller=resume,  # supposed to load on fewer nodes too
        weight=hint.weight,
        min_nodes=hint.min_nodes,
        throughput=hint.throughput,
    )
    return facts, [*(f"host:{host}" for host in hosts), *_nics_of(parts, hosts), *gpus]


def hosts_of(parts: Parts) -> frozenset[str]:
    """Return all hosts of the topology."""
    return frozenset(host.id for host in parts.topology.hosts) if parts.topology else frozenset()


def _nics_of(parts: Parts, hosts: tuple[str, ...]) -> list[str]:
    if parts.topology is None:
        return []
    return [f"nic:{host.id}/{nic.id}" for host in parts.topology.hosts if host.id in set(hosts) for nic in host.nics]
