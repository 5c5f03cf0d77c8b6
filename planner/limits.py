"""What keeps a decision from being carried out automatically: blast radius, a person's undo, doubt, capacity.

Limits stop new isolation, never a release. Each returns one sentence, and the first that holds is the reason.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep.clock import NS_PER_S
from lockstep.decision import Action, Decision
from lockstep.execution import OUT_OF_SERVICE, Isolated
from lockstep.sections import PlannerSettings
from lockstep.verdict import Incident, Verdict
from planner.context import ClusterFacts, Context, node_of
from planner.controllers.protocol import Node
from planner.cost import begins_anew, resume_for

_MOST_NAMED = 4
UNDO_S = 7 * 86_400.0  # a part that a person gave back is left alone for this long
_VERDICT_AGE_S = 60.0  # that the analyzer has evaluated since it saw the fault last: it may be over
_ANALYZER_LAG_S = 600.0  # an analyzer that is further behind is down, and what it knew may be over
_CONFIDENCE = 0.9  # below it a person decides
_DISAGREE_S = 30.0  # two verdicts that began this close and name different nodes may be one fault
SHRINKING: tuple[Action, ...] = ("recycle", "drop_replica", "reconfigure", "replace")


@dataclass(frozen=True, slots=True)
class Constraints:
    """What limits look at besides the decision itself."""

    isolated: Sequence[Isolated] = ()  # ever, or in the last days
    undone: Sequence[Decision] = ()  # decisions that a person has undone within memory
    others: Sequence[Incident] = ()  # open incidents of the same job
    nodes: Sequence[Node] | None = None  # as the controller sees them; None: it was not asked
    controller_trouble: str | None = None
    is_raised: bool = False  # a cure in place was tried and did not hold: the node is next, whatever the grade
    restarts: int = 0  # of jobs, by us, in the last hour


def find_hold(
    incident: Incident,
    action: Action,
    context: Context,
    constraints: Constraints,
    settings: PlannerSettings,
    now_ns: int,
) -> str | None:
    """Return why an action must not be carried out automatically now; None: nothing speaks against it."""
    if action == "none":
        return None
    holds = [
        _find_doubt(incident, context.verdict, now_ns),
        *_find_objections(incident, action, context, constraints, settings),
    ]
    if action in SHRINKING:
        holds += [
            *_find_weakness(context, constraints),
            *_find_disagreement(incident, context, constraints),
            *(hold for node in context.nodes for hold in _find_unknown(node, constraints)),
            *_find_radius(action, context, constraints, settings, now_ns),
        ]
    return next((hold for hold in holds if hold), None)


def _find_doubt(incident: Incident, verdict: Verdict, now_ns: int) -> str | None:
    """Return why a verdict is not sure enough.

    Its age counts up to where the analyzer has evaluated the job, not up to now: on a busy machine an analyzer may be
    minutes behind, and what it has not looked at yet says nothing against its verdict.
    """
    age_s = (incident.updated_ns - verdict.last_seen_ns) / NS_PER_S
    if age_s > _VERDICT_AGE_S:
        return f"the verdict is stale: it was last confirmed {age_s:.0f} s before the newest evaluation of the job"
    lag_s = (now_ns - incident.updated_ns) / NS_PER_S
    if lag_s > _ANALYZER_LAG_S:
        return f"the verdict is stale: the job was last evaluated {lag_s:.0f} s ago"
    if verdict.confidence < _CONFIDENCE:
        return f"the verdict is {verdict.confidence:.0%} sure, and automatic action needs {_CONFIDENCE:.0%}"
    return None


def _find_objections(
    incident: Incident, action: Action, context: Context, constraints: Constraints, settings: PlannerSettings
) -> Iterator[str]:
    """Yield what speaks against any action: strange hosts, a no, too many restarts, a checkpoint not to be had."""
    if strangers := context.job.strangers:
        who = ", ".join(strangers[:_MOST_NAMED])
        yield f"{who} reports on {context.job.job}, and the controller has it on other nodes"
    for decision in constraints.undone:  # a no counts on the same node, whatever its part, and to the same act
        is_same_node = any(part.node in context.nodes for part in decision.isolate)
        is_same_act = decision.incident == incident.id and decision.action == action
        if (is_same_node and action in SHRINKING) or is_same_act:
            yield f"a person has undone or rejected decision {decision.id} on {context.verdict.component}"
    # Many hangs at once have a cause that no restart cures.
    if action != "reroute" and constraints.restarts >= settings.restarts_per_hour:
        most = settings.restarts_per_hour
        yield f"{constraints.restarts} jobs were restarted in the last hour, and {most} is the limit"
    resume = resume_for(action, context.job)
    if resume is not None and resume.obstacle:
        yield resume.obstacle
    if begins_anew(action, context):
        yield f"no checkpoint of {context.job.job} is verified complete: it would begin anew"


def _find_weakness(context: Context, constraints: Constraints) -> Iterator[str]:
    """Yield why a verdict does not justify taking this node away."""
    verdict, node, job = context.verdict, context.node, context.job
    if verdict.grade != "isolate" and not constraints.is_raised:
        yield f"the verdict is graded {verdict.grade}, and nodes are drained automatically at isolate only"
    for other in verdict.ambiguous_with:
        if node_of(other, context.hosts) not in (None, node):
            yield f"{verdict.component} cannot be told apart from {other}"
    if job.nodes and node not in job.nodes:
        yield f"{node} is no node of {job.job}"


def _find_disagreement(incident: Incident, context: Context, constraints: Constraints) -> Iterator[str]:
    """Yield verdicts that blame another node for what may be the same fault; two that are gone do not disagree."""
    mine, hosts = context.verdict, context.hosts
    for theirs in (other.verdict for other in constraints.others if other.id != incident.id):
        is_close = abs(theirs.since_ns - mine.since_ns) <= _DISAGREE_S * NS_PER_S
        blamed = node_of(theirs.component, hosts)
        if is_close and theirs.grade == "isolate" and blamed not in (None, *context.nodes):
            yield f"two verdicts disagree: {mine.component} and {theirs.component} are blamed for the same time"


def _find_unknown(node: str, constraints: Constraints) -> Iterator[str]:
    if constraints.controller_trouble:
        yield f"the controller does not answer: {constraints.controller_trouble}"
    names = {each.name for each in constraints.nodes or () if each.is_usable or each.name == node}
    if names and node not in names:  # NVRx tells of excluded nodes only
        yield f"the controller does not know node {node}"


def _find_radius(
    action: Action, context: Context, constraints: Constraints, settings: PlannerSettings, now_ns: int
) -> Iterator[str]:
    """Yield the limits on the blast radius that taking these nodes away would break."""
    nodes, job, more = context.nodes, context.job, max(len(context.nodes), 1)
    others = [each for each in constraints.isolated if each.node not in nodes]
    recent = {each.node for each in others if each.since_ns > now_ns - 3600 * NS_PER_S}
    if len(recent) + more > settings.nodes_per_hour:
        follow = f", {more} would follow" if more > 1 else ""
        most = settings.nodes_per_hour
        yield f"{len(recent)} nodes were isolated in the last hour{follow}, and {most} is the limit"
    out = {each.node for each in others if each.state in OUT_OF_SERVICE}
    if len(out) + more > settings.nodes_out:
        yield f"{len(out)} nodes are out of service, and {settings.nodes_out} is the limit"
    for at, node in enumerate(nodes):
        yield from _find_full_block(node, out | set(nodes[:at]), context.cluster, settings)
    left = len(job.nodes) - (0 if action == "replace" else more)
    if left < job.min_nodes:
        yield f"{left} nodes would be left to {job.job}, which needs {job.min_nodes}"


def _find_full_block(node: str, out: set[str], cluster: ClusterFacts, settings: PlannerSettings) -> Iterator[str]:
    block = cluster.block_of.get(node)
    if block is None:
        return
    members = {host for host, its in cluster.block_of.items() if its == block}
    most = max(int(settings.share_of_block * len(members)), 1)
    if len(out & members) >= most:
        yield f"{len(out & members)} of the {len(members)} hosts of {block} are out of service, and {most} may be"
