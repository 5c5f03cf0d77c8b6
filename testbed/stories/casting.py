"""A story for real parts: which of it the testbed can play, the job as its ranks know it, and what they are told."""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat

from lockstep.errors import NotPresent
from lockstep.sim.placement import place
from lockstep.sim.story import Doing, Expectation, Story
from lockstep.sim.timeline import Turn
from lockstep.topology import nic_name, split_end
from testbed.faults.breaker import why_not
from testbed.workers.plan import Collective, Compute, Item, JobPlan, Layout

MOST_RANKS = 32  # on two cores
_RANK_EFFECTS = ("late", "absent", "mismatched", "deadlocked", "pause", "second mix", "stuck")
_LEAST_BYTES = 4096


def find_obstacles(story: Story) -> list[str]:
    """Return why the testbed cannot tell a story, a sentence each; nothing when it can."""
    _, cp, _, _, ep = story.layout
    doings = (*story.job.steps, *story.job.second_step)
    obstacles = [
        *([f"it has {story.ranks} ranks, and two cores carry {MOST_RANKS}"] if story.ranks > MOST_RANKS else []),
        *(["there is no RDMA here, only sockets"] if story.cluster.transport != "socket" else []),
        *(["ranks of the testbed know no context or expert parallelism"] if cp > 1 or ep > 1 else []),
        *(["ranks of the testbed play no pipelines and no all-to-all"] if _is_too_much(doings) else []),
        *(["a path plan is not enforced here"] if story.cluster.fabric == "dual_plane" else []),
        *(["hosts of the testbed share one clock"] if story.clocks.skew_ms or story.clocks.drift_ppm else []),
        *(["batches come as they come"] if story.telling.late_s else []),
    ]
    return [*obstacles, *(reason for turn in story.timeline if (reason := _why_not_turn(turn)))]


def check_playable(story: Story) -> None:
    """Raise NotPresent with all that keeps the testbed from telling a story."""
    if obstacles := find_obstacles(story):
        raise NotPresent(f"the testbed cannot tell {story.name}: {'; '.join(dict.fromkeys(obstacles))}")


def _is_too_much(doings: Sequence[Doing]) -> bool:
    return any(doing.do in ("pipeline", "AllToAll") for doing in doings)


def _why_not_turn(turn: Turn) -> str | None:
    if turn.effect in (*_RANK_EFFECTS, "heal") or (turn.effect == "rate" and turn.kind == "gpu"):
        return None
    if turn.effect == "over":
        return "sockets fail over to no other port"
    return "the testbed restarts no jobs" if turn.effect == "restart" else why_not(turn)


def plan_job(story: Story, scale: float, seed: int) -> JobPlan:
    """Return the job of a story; `scale` is what the fabric's links carry of what the story says."""
    tp, _, dp, pp, _ = story.layout
    placement = place(story)
    nics = tuple(f"eth{number}" for number in range(story.cluster.nics_per_host))
    return JobPlan(
        job=story.name,
        hosts=tuple(f"h{host}" for host in placement.host_of.tolist()),
        layout=Layout(tp=tp, pp=pp, dp=dp),
        step=tuple(_items(story, story.job.steps, scale)),
        second_step=tuple(_items(story, story.job.second_step, scale)),
        nics=nics,
        seed=seed,
    )


def _items(story: Story, doings: Sequence[Doing], scale: float) -> Iterator[Item]:
    for doing in chain.from_iterable(repeat(each, each.times) for each in doings):
        if doing.do == "compute":
            yield Compute(doing.ms, story.noise.compute)
        else:
            size = max(int(doing.mb * 1e6 * scale), _LEAST_BYTES)
            kind, channels = doing.group, story.cluster.nics_per_host
            yield Collective(kind, doing.do, size, doing.algo, channels)  # type: ignore[arg-type]  # checked before


def cast_truth(story: Story) -> Story:
    """Return the story with its wires between two NICs named as ranks of the testbed use them.

    Here a channel has the NIC of the same number at both ends; simulated ranks use the NIC next to their GPU. So the
    wire through the NIC that a verdict should name leads to another NIC of the same host.
    """
    expect = [
        wanted.model_copy(update={"also_right": tuple(_wire_here(name, wanted) for name in wanted.also_right)})
        for wanted in story.expect
    ]
    return story.model_copy(update={"expect": tuple(expect)})


def _wire_here(name: str, wanted: Expectation) -> str:
    kind, _, ends = name.partition(":")
    pair = [split_end(end) for end in ends.split("--")]
    broken = next((nic for host, nic in pair if nic and wanted.component == nic_name(host, nic)), None)
    is_wire = kind == "link" and all(nic for _, nic in pair)
    return f"link:{'--'.join(f'{host}/{broken}' for host, _ in pair)}" if is_wire and broken else name


def ranks_of(story: Story, turn: Turn) -> list[int]:
    """Return the ranks that a turn is about: one, those of a host or GPU, or all; wires have none."""
    if turn.kind == "rank":
        return [int(turn.name)]
    placement = place(story)
    if turn.part is None:
        return list(range(placement.ranks))
    if turn.kind not in ("host", "gpu"):
        return []
    host, _, gpu = turn.name.partition("/")
    on_host = [rank for rank, number in enumerate(placement.host_of.tolist()) if f"h{number}" == host]
    return [rank for rank in on_host if not gpu or placement.gpu_of[rank] == int(gpu)]


def lines_for(turn: Turn, step: int) -> list[str]:
    """Return what ranks are told when a turn comes; `step` is the one they are about to begin at the earliest."""
    match turn.effect:
        case "late":
            return [f"late {1e3 * (turn.amount or 0.0):g}"]
        case "rate" if turn.kind == "gpu":
            return [f"slow {1 / (turn.amount or 1.0):g} {turn.share:g}"]
        case "pause":
            return [f"pause {1e3 * (turn.lasting_s or 0.0):g}"]
        case "mismatched":
            return ["mismatch 2"]
        case "deadlocked":
            return ["reversed"]
        case "second mix":
            return [f"second {step + 2}"]
        case "absent" | "stuck":
            return [turn.effect]
        case "heal":
            return ["heal"]
    return []
