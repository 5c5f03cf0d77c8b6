"""What may break in a drawn world, where and when, and which verdicts on it are right."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from lockstep.topology import host_name, link_name, nic_name
from lockstep.verdict import FaultClass
from simulator.scenario import ClusterShape, Expectation, JobShape, build_topology

JOB = "world"  # what the job is called whose faults are drawn
_EVER_S = 3_600.0  # a verdict is never late: how soon one comes is measured elsewhere

Random = np.random.Generator
Drawn = TypeVar("Drawn")


def pick(random: Random, options: Sequence[Drawn], weights: Sequence[float] = ()) -> Drawn:
    share = np.array(weights or [1.0] * len(options), float)
    return options[int(random.choice(len(options), p=share / share.sum()))]


def between(random: Random, low: float, high: float) -> float:
    """Return a number whose logarithm is spread evenly: short and small ones as often as long and large ones."""
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


@dataclass(frozen=True)
class Place:
    """Where and when something may break."""

    cluster: ClusterShape
    job: JobShape
    step_s: float
    duration_s: float

    def onset_s(self, random: Random) -> float:
        """Return when: before the first row in one of four."""
        return 0.0 if random.random() < 0.25 else round(self.duration_s * random.uniform(0.1, 0.7), 2)


@dataclass(frozen=True)
class Broken:
    """What is wrong with a world, and which verdicts on it are right."""

    lines: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()
    host: str = ""  # that has it
    silent: tuple[str, ...] = ()  # hosts whose telemetry ends
    silent_from_s: float = 0.0
    needs_paths: bool = False


Break = Callable[[Random, Place], Broken]


def _expected(at_s: float, fault_class: FaultClass, component: str, **more: object) -> Expectation:
    fields = {"class": fault_class, "component": component, "after_s": at_s, "within_s": _EVER_S}
    return Expectation.model_validate(fields | more)


def _wire(effect: str, fault_class: FaultClass, what: str) -> Break:
    """Return what breaks a NIC, or the cable to its leaf, in one direction or both."""

    def draw(random: Random, place: Place) -> Broken:
        host, nic = int(random.integers(place.cluster.hosts)), int(random.integers(place.cluster.nics_per_host))
        name = nic_name(f"h{host}", f"eth{nic}")
        cable = next(link_name(link) for link in build_topology(place.cluster).links if link.a == f"h{host}/eth{nic}")
        side = pick(random, ("tx", "rx", None)) if what == "nic" and "%" in effect else None
        part, other = (name, cable) if what == "nic" else (cable, name)
        at_s, amount = place.onset_s(random), f"{random.uniform(12, 75):.0f}"
        line = f"at {at_s} s fail {part} {side + ' ' if side else ''}{effect.format(amount)}"
        right = _expected(at_s, fault_class, part, side=side, also_right=(other,))
        return Broken((line, *_heal(random, place, at_s, part)), (right,), f"h{host}")

    return draw


def _heal(random: Random, place: Place, at_s: float, part: str) -> tuple[str, ...]:
    """Return that it is over, now and then, after a while."""
    lasts_s = max(10 * place.step_s, 8.0, 0.3 * place.duration_s)  # shorter ones are a note at most
    is_due = random.random() < 0.15 and at_s + lasts_s < place.duration_s
    return (f"at {at_s + lasts_s:.2f} s heal {part}",) if is_due else ()


def _between_switches(random: Random, place: Place) -> Broken:
    topology = build_topology(place.cluster)
    nics = {f"{host.id}/{nic.id}" for host in topology.hosts for nic in host.nics}
    link = pick(random, [link for link in topology.links if link.a not in nics])
    at_s = place.onset_s(random)
    line = f"at {at_s} s fail {link_name(link)} to {random.uniform(4, 25):.0f} %"
    return Broken((line,), (_expected(at_s, "comm_slow", link_name(link)),), needs_paths=True)


def _leaf(random: Random, place: Place) -> Broken:
    leaves = [switch.id for switch in build_topology(place.cluster).switches if "leaf" in switch.id]
    name, at_s = f"switch:{pick(random, leaves)}", place.onset_s(random)
    line = f"at {at_s} s fail {name} to {random.uniform(15, 60):.0f} %"
    return Broken((line,), (_expected(at_s, "comm_slow", name),), needs_paths=True)


def _slow_gpu(random: Random, place: Place) -> Broken:
    host, gpu = int(random.integers(place.cluster.hosts)), int(random.integers(place.cluster.gpus_per_host))
    name, at_s = f"gpu:h{host}/{gpu}", place.onset_s(random)
    rarely = f" in {random.uniform(15, 60):.0f} % of steps" if random.random() < 0.15 else ""
    line = f"at {at_s} s fail {name} to {random.uniform(40, 88):.0f} %{rarely}"
    also = _only_rank(place, host)
    right = _expected(at_s, "noncomm_slow", name, also_right=also, also_class=("software",))
    return Broken((line, *_heal(random, place, at_s, name)), (right,), f"h{host}")


def _only_rank(place: Place, host: int) -> tuple[str, ...]:
    """Return the names that a host, its GPU and its rank share where there is one of each."""
    return (f"host:h{host}", f"gpu:h{host}/0", f"rank:{host}") if place.cluster.gpus_per_host == 1 else ()


def _slow_host(random: Random, place: Place) -> Broken:
    host, at_s = int(random.integers(place.cluster.hosts)), place.onset_s(random)
    name, late_ms = host_name(f"h{host}"), 1e3 * place.step_s * random.uniform(0.1, 1.0)
    rarely = f" in {random.uniform(40, 90):.0f} % of steps" if random.random() < 0.3 else ""
    line = f"at {at_s} s fail {name} late {late_ms:.1f} ms{rarely}"
    also = {"also_right": _only_rank(place, host), "also_class": ("software",)}
    right = _expected(at_s, "noncomm_slow", name, **also)
    return Broken((line, *_heal(random, place, at_s, name)), (right,), f"h{host}")


def _starved(random: Random, place: Place) -> Broken:
    host, at_s = int(random.integers(place.cluster.hosts)), place.onset_s(random)
    name, line = host_name(f"h{host}"), f"at {at_s} s fail host:h{host} starved to {random.uniform(4, 30):.0f} %"
    also = {"also_right": _only_rank(place, host), "also_class": ("software",)}
    return Broken((line,), (_expected(at_s, "noncomm_slow", name, **also),), f"h{host}")


def _process(effect: str, fault_class: FaultClass, *also_class: FaultClass) -> Break:
    def draw(random: Random, place: Place) -> Broken:
        gpus = place.cluster.gpus_per_host
        rank, at_s = int(random.integers(place.cluster.hosts * gpus)), max(place.onset_s(random), 0.01)
        host, gpu = divmod(rank, gpus)
        part = f"gpu:h{host}/{gpu}" if effect == "stuck" else f"rank:{rank}"
        names = (f"rank:{rank}", f"gpu:h{host}/{gpu}") + (
            () if effect == "stuck" and gpus > 1 else (f"host:h{host}",)
        )
        right = _expected(at_s, fault_class, names[0], also_right=names[1:], also_class=also_class)
        return Broken((f"at {at_s} s fail {part} {effect}",), (right,), f"h{host}")

    return draw


def _mistake(random: Random, place: Place) -> Broken:
    rank = int(random.integers(place.cluster.hosts * place.cluster.gpus_per_host))
    at_s = max(place.onset_s(random), 0.01)
    right = _expected(at_s, "software", f"job:{JOB}", also_right=(f"rank:{rank}",))
    return Broken((f"at {at_s} s fail rank:{rank} mismatched",), (right,), f"h{rank // place.cluster.gpus_per_host}")


def _gone(random: Random, place: Place) -> Broken:
    host, at_s = int(random.integers(place.cluster.hosts)), max(place.onset_s(random), 0.01)
    right = _expected(at_s, "crash", f"host:h{host}", also_right=_only_rank(place, host))
    return Broken((f"at {at_s} s fail host:h{host} gone",), (right,), f"h{host}")


def _telemetry(random: Random, place: Place) -> Broken:
    """Return that the telemetry of some hosts ends while the job goes on; of most of them, that is to be told."""
    hosts, at_s = place.cluster.hosts, max(place.onset_s(random), 0.01)
    silent = random.permutation(hosts)[: int(random.integers(1, hosts + 1))]
    is_told = hosts > len(silent) > hosts / 2 and len(silent) > 1
    right = (_expected(at_s, "telemetry_lost", f"job:{JOB}"),) if is_told else ()
    return Broken((), right, silent=tuple(f"h{host}" for host in silent), silent_from_s=at_s)


KINDS: Mapping[str, tuple[Break, float]] = {
    "healthy": (lambda random, place: Broken(), 9.0),
    "slow NIC": (_wire("to {} %", "comm_slow", "nic"), 4.0),
    "slow host link": (_wire("to {} %", "comm_slow", "link"), 1.5),
    "slow leaf-spine link": (_between_switches, 1.0),
    "slow leaf": (_leaf, 1.0),
    "slow GPU": (_slow_gpu, 3.0),
    "late host": (_slow_host, 2.0),
    "starved host": (_starved, 1.0),
    "NIC down": (_wire("down", "comm_hang", "nic"), 1.0),
    "link down": (_wire("down", "comm_hang", "link"), 1.0),
    "stuck kernel": (_process("stuck", "noncomm_hang"), 1.5),
    "absent rank": (_process("absent", "noncomm_hang"), 1.0),
    "stopped process": (_process("stopped", "noncomm_hang"), 1.0),
    "killed process": (_process("killed", "crash", "noncomm_hang"), 1.0),
    "host gone": (_gone, 1.0),
    "mismatch": (_mistake, 1.0),
    "telemetry ends": (_telemetry, 1.5),
}
