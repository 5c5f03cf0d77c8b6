"""Fault stories: a cluster, a job, what breaks when, and which verdict is right. Data, not code."""

import re
import tomllib
from importlib import resources
from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError

from lockstep.errors import BadStory, NotPresent
from lockstep.fabrics import FabricOptions, leaf_spine
from lockstep.records import Transport
from lockstep.topology import Topology, nic_name
from lockstep.verdict import FaultClass, Frozen, Side

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


class Told(Frozen):
    """Base of what stories are made of: TOML can write infinity, but no cluster can have it."""

    model_config = ConfigDict(allow_inf_nan=False)


class ClusterShape(Told):
    """A leaf-spine fabric and the hosts on it."""

    hosts: int = Field(ge=2)
    gpus_per_host: int = Field(ge=1)
    nics_per_host: int = Field(ge=1)
    hosts_per_leaf: int = Field(ge=1)
    spines: int = Field(ge=1)
    nic_gbps: float = Field(gt=0)
    transport: Transport = "ib"
    hop_latency_us: float = Field(5.0, ge=0, description="from one NIC to another, whatever the size")


class JobShape(Told):
    """A data-parallel job: every step computes, then all-reduces its buckets one after the other."""

    compute_ms: float = Field(gt=0)
    allreduce_mb: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)


class Noise(Told):
    """Relative standard deviations; a cluster without noise would make any detector look good."""

    compute: float = Field(0.02, ge=0, description="of a rank's compute time, per step")
    transfer: float = Field(0.03, ge=0, description="of a transfer's rate, per operation and connection")
    enqueue_us: float = Field(20.0, ge=0, description="of the host's delay before it enqueues")


class Turn(Told):
    """Something changes: a part gets a share of its rate or speed; 1.0 heals it."""

    at_s: float = Field(ge=0)
    part: str = Field(pattern=r"^(nic|gpu):[^/]+/[^/]+$")
    rate: float = Field(gt=0, le=1)
    side: Side | None = Field(None, description="of a NIC: only this direction")


class Expectation(Told):
    """A verdict that is right, and what else is."""

    fault_class: FaultClass = Field(alias="class")
    component: str
    also_right: tuple[str, ...] = ()
    within_s: float = Field(gt=0, description="latest moment of the verdict, after the fault")


class Story(Told):
    """A whole story; without expectations, silence is the right answer."""

    name: str = ""
    summary: str
    duration_s: float = Field(gt=0)
    cluster: ClusterShape
    job: JobShape
    noise: Noise = Noise()
    timeline: tuple[Turn, ...] = ()
    expect: tuple[Expectation, ...] = ()

    @property
    def ranks(self) -> int:
        return self.cluster.hosts * self.cluster.gpus_per_host


def list_stories() -> list[Story]:
    """Return all stories that come with Lockstep, by name."""
    folder = resources.files("lockstep.sim").joinpath("stories")
    names = sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))
    return [find_story(name) for name in names]


def find_story(name: str) -> Story:
    """Return a story by name, or raise NotPresent with the names there are."""
    file = resources.files("lockstep.sim").joinpath("stories", f"{name}.toml")
    if not _NAME.fullmatch(name) or not file.is_file():
        known = ", ".join(story.name for story in list_stories())
        raise NotPresent(f"there is no story {name!r}; there are: {known}")
    return parse_story(file.read_text(encoding="utf-8"), name)


def parse_story(text: str, name: str) -> Story:
    """Return the story in a TOML text, or raise BadStory with everything that is wrong in it."""
    try:
        story = Story.model_validate(tomllib.loads(text) | {"name": name})
    except tomllib.TOMLDecodeError as error:
        raise BadStory(f"story {name} is not TOML: {error}") from None
    except ValidationError as error:
        complaints = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise BadStory(f"story {name}: {complaints}") from None
    check_story(story)
    return story


def resize_story(story: Story, ranks: int) -> Story:
    """Return the story on a cluster of that many ranks, with the same hosts and leaves repeated."""
    gpus = story.cluster.gpus_per_host
    if ranks < 2 * gpus or ranks % gpus:
        raise BadStory(f"story {story.name} has {gpus} GPUs a host: give a multiple of that, two hosts at least")
    cluster = story.cluster.model_copy(update={"hosts": ranks // gpus})
    resized = story.model_copy(update={"cluster": cluster})
    check_story(resized)
    return resized


def build_topology(cluster: ClusterShape) -> Topology:
    """Return the fabric of a story; the up-links of a leaf together carry what its hosts can send."""
    leaves = -(-cluster.hosts // cluster.hosts_per_leaf)
    downlink_gbps = cluster.hosts_per_leaf * cluster.nics_per_host * cluster.nic_gbps
    return leaf_spine(
        hosts=cluster.hosts,
        nics_per_host=cluster.nics_per_host,
        leaves=leaves,
        spines=cluster.spines,
        options=FabricOptions(
            gpus_per_host=cluster.gpus_per_host, gbps=cluster.nic_gbps, uplink_gbps=downlink_gbps / cluster.spines
        ),
    )


def check_story(story: Story) -> None:
    """Raise BadStory unless the cluster can be built and every part of the timeline is in it."""
    shape = story.cluster
    if shape.hosts % shape.hosts_per_leaf:
        raise BadStory(f"story {story.name}: {shape.hosts} hosts do not fill leaves of {shape.hosts_per_leaf}")
    if shape.gpus_per_host % shape.nics_per_host:
        raise BadStory(
            f"story {story.name}: {shape.gpus_per_host} GPUs do not spread evenly over {shape.nics_per_host} NICs"
        )
    parts = _parts(build_topology(shape))
    unknown = [turn.part for turn in story.timeline if turn.part not in parts]
    if unknown:
        raise BadStory(f"story {story.name} breaks what its cluster does not have: {', '.join(unknown)}")


def _parts(topology: Topology) -> set[str]:
    nics = {nic_name(host.id, nic.id) for host in topology.hosts for nic in host.nics}
    return nics | {f"gpu:{host.id}/{gpu.index}" for host in topology.hosts for gpu in host.gpus}
