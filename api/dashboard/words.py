"""A verdict in the words of the night shift: hung or slow, compute or network, hardware or not, how to prove it."""

from dataclasses import dataclass

from lockstep.decision import Action, Mode
from lockstep.verdict import FaultClass, Verdict
from lockstep.words import kind_of

_FABRIC = ("nic", "link", "switch")

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
MODES: dict[Mode, str] = {"observe": "advice only", "propose": "approval pending", "execute": "automatic"}
GRADES = {"isolate": "would justify draining a node", "alert": "a person should look", "note": "worth knowing"}


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
        "Take the stack of this rank.", "the rank entered the collective after all, and another one did not"
    ),
    "job": Proof(
        "Compare the stacks of a few ranks, and ask what changed in code, data or file system.",
        "one part turns out to be slower than the others",
    ),
}


_PROOF_OF_LOSS = Proof(
    "See on one of its hosts whether the collector runs and its spool grows.",
    "the host itself does not answer, or its collector has ended",
)


def proof_of(verdict: Verdict) -> Proof | None:
    """Return how a verdict can be tested; None for a kind of part that we know no test for."""
    if verdict.fault_class == "telemetry_lost":
        return _PROOF_OF_LOSS
    return _PROOFS.get(kind_of(verdict.component))


_STATES: dict[FaultClass, str] = {"crash": "crashed", "telemetry_lost": "unseen"}


def state_words(verdict: Verdict) -> str:
    """Return whether the job is hung, slow or crashed, or nobody sees it."""
    if verdict.fault_class in _STATES:
        return _STATES[verdict.fault_class]
    return "hung" if verdict.stands_still else "slow"


def side_words(verdict: Verdict) -> str:
    """Return the direction at fault, where it has one."""
    return {"tx": "sending", "rx": "receiving", None: ""}[verdict.side]


def domain_words(verdict: Verdict) -> str:
    """Return whether it is compute or communication, and whether the network team is needed."""
    if verdict.fault_class in ("comm_slow", "comm_hang") and kind_of(verdict.component) in _FABRIC:
        return "Communication. The network team is needed."
    if verdict.fault_class == "comm_hang" and kind_of(verdict.component) == "job":
        return "Not known: all stand still, and nobody stands out."
    if verdict.fault_class in ("comm_slow", "comm_hang"):
        return "Communication, inside of the host. The network team is not needed."
    if verdict.fault_class == "global_slow":
        return "Not known: everybody is slower, and nobody stands out."
    if verdict.fault_class == "telemetry_lost":
        return "Not known: nobody sees what the job does there."
    return "Not communication. The network team is not needed."


def origin_words(verdict: Verdict) -> str:
    """Return whether it is hardware, or code and data."""
    if verdict.fault_class == "software":
        return "Code or data. No reason to take hardware away."
    if verdict.fault_class == "telemetry_lost":
        return "Our own telemetry. No reason to take hardware away."
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
