"""A verdict in the words of the night shift: hung or slow, compute or network, hardware or not, how to prove it."""

from dataclasses import dataclass

from lockstep.decision import Action
from lockstep.verdict import FaultClass, Verdict

STANDING: tuple[FaultClass, ...] = ("comm_hang", "noncomm_hang", "crash")  # the job does not go on at all
_WORTH_TELLING = 1.005  # of a step's time before: half a percent is what rounding would hide
_FABRIC = ("nic", "link", "switch")

CLASSES: dict[FaultClass, str] = {
    "comm_slow": "Slow communication",
    "noncomm_slow": "Slow outside of communication",
    "global_slow": "Everybody slower",
    "comm_hang": "Hung in communication",
    "noncomm_hang": "Hung outside of communication",
    "crash": "Crashed",
    "software": "Software",
}
ACTIONS: dict[Action, str] = {
    "none": "Do nothing",
    "reroute": "Route around it",
    "reattempt": "Try again in place",
    "restart_process": "Restart the process",
    "recycle": "Hand its micro-batches to peers",
    "drop_replica": "Go on without the replica",
    "reconfigure": "Restart on fewer nodes",
    "replace": "Restart with a spare",
    "grow": "Take nodes back in",
}
GRADES = {
    "isolate": "would justify draining a node",
    "alert": "a person should look",
    "note": "worth knowing",
}


@dataclass(frozen=True, slots=True)
class Proof:
    """The cheapest test of a verdict while the job runs, and what would overturn it."""

    test: str
    overturned_by: str


# By kind of part. Cheapest evidence first: nothing here stops the job.
_PROOFS = {
    "nic": Proof(
        "Read the NIC's error and pause counters twice, ten seconds apart, and probe it from a host on its leaf.",
        "another NIC of the same host is as slow (then it is the host), or the slowness moves with the cable to "
        "another port (then it is the cable)",
    ),
    "link": Proof(
        "Probe both ends over this link and over a neighbouring one, and read both ports' error counters.",
        "connections that do not use this link are as slow, or the counters of both ports stand still",
    ),
    "switch": Proof(
        "Compare connections through this switch with those through its neighbours of the same tier.",
        "most connections through the switch turn out to be normal (then it is one of its links)",
    ),
    "gpu": Proof(
        "Read clock, temperature and throttle reasons of this GPU next to its neighbours' on the same host.",
        "all GPUs of the host arrive late (then it is the host), or it is in time with another job's ranks on it",
    ),
    "host": Proof(
        "Take the stacks of the late ranks on this host, and look at its load, memory and file system.",
        "only one GPU or NIC of the host is late (then it is that part), or the lateness follows the ranks elsewhere",
    ),
    "nvlink": Proof(
        "Read the NVLink error counters of both ends.",
        "traffic over the network from the same GPU is as slow (then it is the GPU)",
    ),
    "pcie": Proof(
        "Read the PCIe replay counter and the link's width and speed.",
        "the GPU is as slow in work that does not cross PCIe",
    ),
    "rank": Proof(
        "Take the stack of this rank.",
        "the rank entered the collective after all, and another one did not",
    ),
    "job": Proof(
        "Compare the stacks of a few ranks, and ask what changed in code, data or file system.",
        "one part turns out to be slower than the others",
    ),
}


def kind_of(component: str) -> str:
    """Return the kind of a part: "nic" of "nic:h3/eth1"."""
    return component.partition(":")[0]


def proof_of(verdict: Verdict) -> Proof | None:
    """Return how a verdict can be tested; None for a kind of part that we know no test for."""
    return _PROOFS.get(kind_of(verdict.component))


def state_words(verdict: Verdict) -> str:
    """Return whether the job is hung, slow or crashed."""
    if verdict.fault_class == "crash":
        return "crashed"
    return "hung" if verdict.fault_class in STANDING else "slow"


def side_words(verdict: Verdict) -> str:
    """Return the direction at fault, where it has one."""
    return {"tx": "sending", "rx": "receiving", None: ""}[verdict.side]


def domain_words(verdict: Verdict) -> str:
    """Return whether it is compute or communication, and whether the network team is needed."""
    if verdict.fault_class in ("comm_slow", "comm_hang") and kind_of(verdict.component) in _FABRIC:
        return "Communication. The network team is needed."
    if verdict.fault_class in ("comm_slow", "comm_hang"):
        return "Communication, inside of the host. The network team is not needed."
    if verdict.fault_class == "global_slow":
        return "Not known: everybody is slower, and nobody stands out."
    return "Not communication. The network team is not needed."


def origin_words(verdict: Verdict) -> str:
    """Return whether it is hardware, or code and data."""
    if verdict.fault_class == "software":
        return "Code or data. No reason to take hardware away."
    if kind_of(verdict.component) in ("job", "rank"):
        return "Not told apart: no single piece of hardware stands out."
    return "Hardware, or what runs it: it stands out among its like."


def scope_words(verdict: Verdict) -> str:
    """Return how far it reaches: one part, one host, one switch, everybody."""
    scopes = {
        "nic": "One NIC.",
        "link": "One cable.",
        "switch": "One switch, and what hangs on it.",
        "gpu": "One GPU.",
        "host": "One host.",
        "nvlink": "One NVLink.",
        "pcie": "One GPU's PCIe link.",
        "rank": "One rank.",
        "job": "The whole job.",
    }
    return scopes.get(kind_of(verdict.component), "One part.")


def impact_words(verdict: Verdict) -> str:
    """Return what the fault does to the job, as far as it is known."""
    ratio, waiting = verdict.impact.step_time_ratio, verdict.impact.ranks_waiting
    said = []
    if verdict.fault_class in STANDING:
        said.append("the job stands still")
    elif ratio is not None and ratio >= _WORTH_TELLING:
        said.append(f"steps take {ratio:.2f} times as long")
    if waiting:
        said.append(f"{waiting:,} ranks wait" if waiting > 1 else "1 rank waits")
    return ", ".join(said) or "what it costs is not known"


def lost_per_hour(verdict: Verdict) -> float | None:
    """Return the GPU-hours that every hour of waiting costs; None where the slowdown is not known."""
    gpus = verdict.impact.ranks_waiting + 1
    if verdict.fault_class in STANDING:
        return float(gpus)
    ratio = verdict.impact.step_time_ratio
    return None if ratio is None else gpus * max(1 - 1 / max(ratio, 1.0), 0.0)
