"""Fault scenarios: a cluster, a job, what breaks when, and which verdicts are right. Data, not code."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import (
    Annotated,
    Any,  # what TOML holds
    Literal,
)

from pydantic import BeforeValidator, Field, ValidationError

from lockstep.errors import BadScenario, NotPresent
from lockstep.fabrics import FabricOptions, dual_plane, leaf_spine, rail_optimised
from lockstep.records import Transport
from lockstep.topology import Topology, gpu_name, host_name, link_name, nic_name, switch_name
from lockstep.verdict import FaultClass, Side
from simulator.faults import Fault, Section, parse_fault

GroupKind = Literal["world", "tp", "cp", "dp", "ep", "pp"]
Algo = Literal["RING", "TREE"]


class ClusterShape(Section):
    """A fabric and the hosts on it."""

    hosts: int = Field(ge=2)
    spares: int = Field(0, ge=0, description="hosts beside those of the job, numbered after them")
    gpus_per_host: int = Field(ge=1)
    nics_per_host: int = Field(ge=1)
    hosts_per_leaf: int = Field(ge=1)
    spines: int = Field(ge=1)
    nic_gbps: float = Field(gt=0)
    fabric: Literal["leaf_spine", "rails", "dual_plane"] = "leaf_spine"
    routing: Literal["planned", "ecmp"] = Field(
        "planned", description="spread evenly, or by the hash of a five-tuple"
    )
    transport: Transport = "ib"
    hop_latency_us: float = Field(5.0, ge=0, description="from one NIC to another, whatever the size")
    nvlink_gbps: float = Field(2400.0, gt=0, description="between two GPUs of a host, one direction")

    @property
    def all_hosts(self) -> int:
        return self.hosts + self.spares


class Layout(Section):
    """How the ranks share the model; ranks are counted tp first, then cp, dp and pp, as Megatron does."""

    tp: int = Field(1, ge=1)
    cp: int = Field(1, ge=1)
    pp: int = Field(1, ge=1)
    dp: int | None = Field(None, ge=1, description="what the others leave over, when not given")
    ep: int = Field(1, ge=1, description="experts are spread over that many neighbours in dp")


class Doing(Section):
    """One thing that a training step does, on every rank."""

    do: Literal["compute", "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "AllToAll", "pipeline"]
    ms: float = Field(0.0, ge=0, description="of compute; of a pipeline: one forward of one stage")
    backward_ms: float = Field(0.0, ge=0, description="of a pipeline: one backward of one stage")
    first_ms: float = Field(0.0, ge=0, description="of a pipeline: more in the first stage, forward and backward")
    last_ms: float = Field(0.0, ge=0, description="of a pipeline: more in the last stage, forward and backward")
    mb: float = Field(0.0, ge=0, description="megabytes of an operation, or of a pipeline's activations")
    tp_mb: float = Field(0.0, ge=0, description="of a pipeline: all-reduced in tp after each forward and backward")
    group: GroupKind = "world"
    algo: Algo = "RING"
    times: int = Field(1, ge=1)


class JobShape(Section):
    """A training job; without `step` every step computes, then all-reduces its buckets one after the other."""

    compute_ms: float = Field(300.0, gt=0)
    allreduce_mb: tuple[Annotated[int, Field(ge=1)], ...] = Field((256,), min_length=1)
    layout: Layout = Layout()
    micro_batches: int = Field(4, ge=1)
    step: tuple[Doing, ...] = ()
    second_step: tuple[Doing, ...] = Field((), description="what a step does after `second mix`")
    first_steps_slower: float = Field(1.0, ge=1, description="autotuning: compute of the first two steps, times this")
    experts: float = Field(0.0, ge=0, description="spread of what a rank sends to each expert, and of its compute")
    sequences: float = Field(0.0, ge=0, description="spread of compute between data-parallel replicas, per step")

    @property
    def steps(self) -> tuple[Doing, ...]:
        plain = (Doing(do="compute", ms=self.compute_ms), *(Doing(do="AllReduce", mb=mb) for mb in self.allreduce_mb))
        return self.step or plain


class Noise(Section):
    """Relative standard deviations; a cluster without noise would make any detector look good."""

    compute: float = Field(0.02, ge=0, description="of a rank's compute time, per step")
    transfer: float = Field(0.03, ge=0, description="of a transfer's rate, per operation and connection")
    enqueue_us: float = Field(20.0, ge=0, description="of the host's delay before it enqueues")
    tail: float = Field(0.0, ge=0, le=1, description="share of computations and transfers with a heavy tail on top")


class Clocks(Section):
    """How far hosts' clocks are off; each host draws its own."""

    skew_ms: float = Field(0.0, ge=0, description="largest offset, either way")
    drift_ppm: float = Field(0.0, ge=0, description="largest drift, either way")
    known_to_us: float = Field(50.0, ge=0, description="how well the hosts know their offset")


class Telemetry(Section):
    """What reaches the store, and how."""

    steps: bool = Field(False, description="whether the job tells its training steps")
    layout: bool = Field(False, description="whether the capture names the parallel layout")
    nics: bool = Field(True, description="whether it is known which NIC a transfer used")
    paths: bool = Field(False, description="whether probes found which links each connection takes")
    without: tuple[str, ...] = Field((), description="hosts whose operations and transfers are not recorded")
    late_s: float = Field(0.0, ge=0, description="batches arrive up to this late, and in another order")
    sample: float = Field(1.0, gt=0, le=1, description="share of operations with complete rows")


class Expectation(Section):
    """A verdict that is right, and what else is."""

    fault_class: FaultClass = Field(alias="class")
    component: str
    side: Side | None = None
    also_right: tuple[str, ...] = ()
    also_class: tuple[FaultClass, ...] = ()
    after_s: float | None = Field(None, description="when it broke; the scenario's first failure, when not given")
    within_s: float = Field(gt=0, description="latest moment of the verdict, after the fault")


def _parse_lines(lines: object) -> object:
    if isinstance(lines, list | tuple):
        return tuple(parse_fault(line) if isinstance(line, str) else line for line in lines)
    return lines


class Scenario(Section):
    """A whole scenario; without expectations, silence is the right answer."""

    name: str = ""
    family: str = Field("", description="the file it comes from")
    summary: str
    duration_s: float = Field(gt=0)
    cluster: ClusterShape
    job: JobShape = JobShape()
    noise: Noise = Noise()
    clocks: Clocks = Clocks()
    telemetry: Telemetry = Telemetry()
    timeline: Annotated[tuple[Fault, ...], BeforeValidator(_parse_lines)] = ()
    expect: tuple[Expectation, ...] = ()

    @property
    def ranks(self) -> int:
        return self.cluster.hosts * self.cluster.gpus_per_host

    @property
    def layout(self) -> tuple[int, int, int, int, int]:
        """The sizes of tp, cp, dp, pp and ep, with dp filled in."""
        layout = self.job.layout
        dp = layout.dp or self.ranks // (layout.tp * layout.cp * layout.pp)
        return layout.tp, layout.cp, dp, layout.pp, layout.ep

    @property
    def breaks_at_s(self) -> float | None:
        """The moment of the first failure, or None when nothing breaks."""
        return min((fault.at_s for fault in self.timeline if fault.part and fault.effect not in BENIGN), default=None)


BENIGN = ("heal", "pause", "restart", "second mix")


def resize_scenario(scenario: Scenario, ranks: int) -> Scenario:
    """Return the scenario on a cluster of that many ranks, with the same hosts and leaves repeated."""
    gpus = scenario.cluster.gpus_per_host
    if ranks < 2 * gpus or ranks % gpus:
        wanted = "give a multiple of that, two hosts at least"
        raise BadScenario(f"scenario {scenario.name} has {gpus} GPUs a host: {wanted}")
    cluster = scenario.cluster.model_copy(update={"hosts": ranks // gpus})
    job = scenario.job.model_copy(update={"layout": scenario.job.layout.model_copy(update={"dp": None})})
    resized = scenario.model_copy(update={"cluster": cluster, "job": job})
    check_scenario(resized)
    return resized


def build_topology(cluster: ClusterShape) -> Topology:
    """Return the fabric of a scenario; the up-links of a leaf together carry what its NICs can send."""
    hosts, leaves = cluster.all_hosts, -(-cluster.all_hosts // cluster.hosts_per_leaf)
    per_leaf = cluster.hosts_per_leaf * cluster.nics_per_host
    match cluster.fabric:
        case "leaf_spine":
            return leaf_spine(hosts, cluster.nics_per_host, leaves, cluster.spines, _options(cluster, per_leaf))
        case "rails":
            options = _options(cluster, cluster.hosts_per_leaf)
            return rail_optimised(hosts, cluster.nics_per_host, cluster.spines, options, pods=leaves)
        case "dual_plane":
            return dual_plane(hosts, leaves, cluster.spines, _options(cluster, per_leaf // 2), cluster.nics_per_host)


def _options(cluster: ClusterShape, nics_per_leaf: int) -> FabricOptions:
    uplink = max(nics_per_leaf, 1) * cluster.nic_gbps / cluster.spines
    return FabricOptions(gpus_per_host=cluster.gpus_per_host, gbps=cluster.nic_gbps, uplink_gbps=uplink)


def check_scenario(scenario: Scenario) -> None:
    """Raise BadScenario unless cluster and job can be built and everything that the timeline names is there."""
    if complaints := _shape_complaints(scenario) or _part_complaints(scenario):
        raise BadScenario(f"scenario {scenario.name}: {'; '.join(complaints)}")


def _shape_complaints(scenario: Scenario) -> list[str]:
    shape, (tp, cp, dp, pp, ep) = scenario.cluster, scenario.layout
    complaints = []
    if shape.all_hosts % shape.hosts_per_leaf:
        complaints.append(f"{shape.all_hosts} hosts do not fill leaves of {shape.hosts_per_leaf}")
    if shape.gpus_per_host % shape.nics_per_host:
        complaints.append(f"{shape.gpus_per_host} GPUs do not spread evenly over {shape.nics_per_host} NICs")
    if tp * cp * dp * pp != scenario.ranks:
        complaints.append(f"tp {tp} x cp {cp} x dp {dp} x pp {pp} are not {scenario.ranks} ranks")
    if shape.fabric != "leaf_spine" and any(fault.effect == "over" for fault in scenario.timeline):
        complaints.append("a port fails over only where all NICs of a host are on one leaf")
    if dp % ep:
        complaints.append(f"ep {ep} does not divide dp {dp}")
    return complaints


def _part_complaints(scenario: Scenario) -> list[str]:
    parts = _parts(build_topology(scenario.cluster)) | {f"rank:{rank}" for rank in range(scenario.ranks)} | {"fabric"}
    named = [fault.part for fault in scenario.timeline] + [_spare_of(fault) for fault in scenario.timeline]
    unknown = [part for part in named if part and part not in parts]
    return [f"it breaks what its cluster does not have: {', '.join(unknown)}"] if unknown else []


def _spare_of(fault: Fault) -> str | None:
    """Return what takes over: another NIC of the same host, or a host."""
    if fault.spare is None or fault.effect != "over":
        return fault.spare and host_name(fault.spare)
    return nic_name(fault.name.partition("/")[0], fault.spare)


def _parts(topology: Topology) -> set[str]:
    names = {link_name(link) for link in topology.links} | {switch_name(switch.id) for switch in topology.switches}
    for host in topology.hosts:
        names |= {host_name(host.id), *(nic_name(host.id, nic.id) for nic in host.nics)}
        gpus = [gpu_name(host.id, gpu.index) for gpu in host.gpus]
        names |= {kind + gpu.removeprefix("gpu") for gpu in gpus for kind in ("gpu", "pcie", "nvlink")}
    return names


_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


def list_scenarios() -> list[Scenario]:
    """Return all scenarios that come with Lockstep, by name."""
    return sorted((scenario for name in _families() for scenario in _family(name)), key=lambda one: one.name)


def find_scenario(name: str) -> Scenario:
    """Return a scenario by name, or raise NotPresent with those that may be meant."""
    # A name begins with that of its family: checking all would take longer than the rest of a command.
    for family in filter(name.startswith, _families()):
        for scenario in _family(family):
            if scenario.name == name:
                return scenario
    close = " or ".join(map(repr, get_close_matches(name, [scenario.name for scenario in list_scenarios()], 3)))
    guess = f"did you mean {close}? " if close else ""
    raise NotPresent(f"there is no scenario {name!r}; {guess}`lockstep scenario list` shows all")


@cache
def _families() -> tuple[str, ...]:
    names = (file.name for file in resources.files("simulator").joinpath("scenarios").iterdir())
    return tuple(name.removesuffix(".toml") for name in names if name.endswith(".toml") and name != "shapes.toml")


@cache
def _family(name: str) -> tuple[Scenario, ...]:
    file = resources.files("simulator").joinpath("scenarios", f"{name}.toml")
    return tuple(parse_family(file.read_text(encoding="utf-8"), name))


def parse_scenario(text: str, name: str) -> Scenario:
    """Return the one scenario in a TOML text, or raise BadScenario with everything that is wrong in it."""
    return _scenario(name, name, _read(text, name))


def parse_family(text: str, name: str) -> list[Scenario]:
    """Return all scenarios of a family."""
    if not _NAME.fullmatch(name):
        raise BadScenario(f"scenario {name!r}: a name has small letters, digits and dashes")
    return list(_variants(name, _read(text, name)))


def _variants(family: str, fields: dict[str, Any]) -> Iterator[Scenario]:
    strengths, transports = fields.pop("strengths", {}), fields.pop("transports", [])
    for transport in transports or [""]:
        suffix = f"-{transport}" if transport else ""
        there = fields | {"cluster": fields.get("cluster", {}) | ({"transport": transport} if transport else {})}
        for strength, words in (strengths or {"": {}}).items():
            name = family + (f"-{strength}" if strength else "") + suffix
            yield _scenario(name, family, _fill(there, {"scenario": name, **words}))
        if there.get("expect") and (strengths or transports):
            twin = _scenario(f"{family}-healthy{suffix}", family, _fill(there, next(iter(strengths.values()), {})))
            calm = tuple(fault for fault in twin.timeline if fault.effect in BENIGN and fault.effect != "heal")
            summary = f"{twin.summary.rstrip('.')}: the healthy twin, in which nothing breaks"
            yield twin.model_copy(update={"timeline": calm, "expect": (), "summary": summary})


def _fill(template: Any, words: Mapping[str, object]) -> Any:
    """Return the same with every {word} of a strength replaced; a value that is one word takes its type."""
    if isinstance(template, dict):
        return {key: _fill(value, words) for key, value in template.items()}
    if isinstance(template, list):
        return [_fill(value, words) for value in template]
    if isinstance(template, str):
        whole = re.fullmatch(r"\{(\w+)\}", template)
        if whole and whole[1] in words:
            return words[whole[1]]
        return re.sub(r"\{(\w+)\}", lambda match: str(words.get(match[1], match[0])), template)
    return template


def _scenario(name: str, family: str, fields: Mapping[str, Any]) -> Scenario:
    try:
        scenario = Scenario.model_validate(dict(fields) | {"name": name, "family": family})
    except BadScenario as error:
        raise BadScenario(f"scenario {name}: {error}") from None
    except ValidationError as error:
        complaints = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise BadScenario(f"scenario {name}: {complaints}") from None
    check_scenario(scenario)
    return scenario


def _read(text: str, name: str) -> dict[str, Any]:
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadScenario(f"scenario {name} is not TOML: {error}") from None
    for part in ("cluster", "job"):
        own, shapes = fields.get(part), _shapes().get(part, {})
        like = own.pop("like", None) if isinstance(own, dict) else None
        if like is not None and like not in shapes:
            known = ", ".join(shapes)
            raise BadScenario(f"scenario {name}: there is no {part} {like!r} to be like; there are {known}")
        if like is not None:
            fields[part] = shapes[like] | fields[part]
    return fields


@cache
def _shapes() -> dict[str, Any]:
    file = resources.files("simulator").joinpath("scenarios", "shapes.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))
