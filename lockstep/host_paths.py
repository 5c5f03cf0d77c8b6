"""What a host is told of the path plan, and what it tells back: ports of its connections, and how many kept them.

Stock NCCL takes no source port for a queue pair from anybody. The verbs half of path_shim reads a file with those of
a host's RoCE queue pairs in its place, and reports what it could do; where it is not loaded, the file is advice, and
marked so: a net plugin that opens its own queue pairs can read it. It is text, like the file for sockets
(path_file.py), beside which it lies:

    lockstep-queue-pairs 1 GENERATION LEASE_END advisory
    SOURCE DESTINATION PORT WEIGHT CONNECTION
    ...
    end ENTRIES

One line is one queue pair from an address of this host. Those to one DESTINATION are to be taken in their order, one
for each that is opened. WEIGHT, 0 to 1, is the share of its rate that the path of this port can give, so that bytes
can be shared out accordingly. CONNECTION is for people (job/communicator/ranks/channel/queue pair), with odd letters
as %XX. The file is replaced as a whole. A file that does not end with the number of its entries is cut short and
counts as none; so does one with another version.
"""

from pathlib import Path
from typing import Literal
from urllib.parse import quote

from pydantic import Field

from lockstep.clock import NS_PER_S
from lockstep.path_file import MOST_PORTS, PathEntry, PathPlan, replace_file
from lockstep.verdict import Frozen

_QUEUE_PAIRS_VERSION = 1

Proto = Literal["tcp", "udp", "roce"]


class PathChoice(Frozen):
    """The path of one connection, and the source ports that lead onto it."""

    connection: str = Field(description="id of the flow, the same in every plan")
    nic: str = Field(description="NIC of this host, such as eth1")
    dst: str = Field(description="host at the other end")
    dst_nic: str
    links: tuple[str, ...] = Field(description="ids of the links in order")
    proto: Proto = "tcp"
    source: str | None = Field(None, description="address of the NIC; None: not known")
    destination: str | None = Field(None, description="address of the other NIC; None: not known")
    dport: int | None = Field(None, ge=1, le=65535, description="port at the other end; None: any")
    sports: tuple[int, ...] = Field(
        (), max_length=MOST_PORTS, description="in order of preference; empty: to be probed"
    )
    plane: int | None = None
    weight: float = Field(1.0, ge=0, le=1, description="share of its rate that its path can give")


class HostPaths(Frozen):
    """All paths of one host. A generation that is lower than one seen before is ignored."""

    host: str
    generation: int = Field(ge=0, description="number of the plan in which this last changed")
    made_ns: int = Field(ge=0)
    lease_end_ns: int = Field(ge=0, description="until when the planner counts on being the only one")
    is_enforceable: bool = Field(
        description="False: the fabric or the transport leaves no port to choose; advice only"
    )
    choices: tuple[PathChoice, ...] = ()

    def as_file(self) -> PathPlan:
        """Return what path_shim reads; connections whose ports are not known yet ask the agent of their host."""
        entries = dict.fromkeys(
            PathEntry(choice.destination, choice.sports, choice.dport, choice.source)
            for choice in self.choices
            if choice.destination and choice.proto == "tcp"
        )
        return PathPlan(self.generation, self.lease_end_ns // NS_PER_S, tuple(entries) if self.is_enforceable else ())


class PathSummary(Frozen):
    """One plan for the whole cluster, without the paths themselves."""

    generation: int = Field(ge=0)
    made_ns: int = Field(ge=0)
    flows: int = Field(ge=0)
    with_ports: int = Field(ge=0, description="flows for whose path a source port is known")
    max_use: float = Field(ge=0, description="load of the fullest link over its rate")
    bound: float = Field(ge=0, description="no plan can be below")
    must_move: int = Field(0, ge=0)
    may_move: int = Field(0, ge=0)
    weights: dict[str, float] = Field(default_factory=dict, description="parts that carry less than their rate")
    reasons: tuple[str, ...] = ()
    forecast: dict[str, float] = Field(
        default_factory=dict, description="by job, step time after this plan over that before it, as predicted"
    )
    measured: dict[str, float] = Field(default_factory=dict, description="the same as it came; filled in later")


class PathCount(Frozen):
    """How many connections of a host kept to their plan."""

    generation: int = Field(ge=0)
    planned: int = Field(ge=0, description="connections that the plan named")
    enforced: int = Field(ge=0, description="of these, those that got a planned port")
    reasons: dict[str, int] = Field(default_factory=dict, description="why others did not, such as busy")


def write_queue_pairs(path: Path, reported: HostPaths) -> None:
    """Replace a host's file: its queue pairs whose port and addresses are known, none where switches choose."""
    known = [each for each in reported.choices if each.proto == "roce" and each.source and each.destination]
    pairs = [
        f"{each.source} {each.destination} {port} {round(each.weight, 3):g} {quote(each.connection)}"
        for each in known
        for port in each.sports[:1]  # those behind the first only stand in for it
        if reported.is_enforceable
    ]
    lease_end_s = reported.lease_end_ns // NS_PER_S
    begin = f"lockstep-queue-pairs {_QUEUE_PAIRS_VERSION} {reported.generation} {lease_end_s} advisory"
    replace_file(path, "".join(f"{line}\n" for line in (begin, *pairs, f"end {len(pairs)}")).encode())
