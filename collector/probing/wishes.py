"""Probes that the server wishes for: each wish once, only to hosts of the topology, and a bounded number of packets.

Details of a wish of kind `probe`: `dst`, `dst_nic`, `proto` (tcp, udp, roce) and `sport`; and, where the default does
not do, `src_nic`, `dport`, `ports` (so many source ports from `sport` on) and `count` (how often each of them).
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from reprlib import repr as shorten

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from collector.probing.addresses import AddressBook
from collector.probing.packets import PROTOCOLS, ROCE_PORT, Flow
from lockstep.errors import BadInput
from lockstep.topology import Nic, Topology
from lockstep.wish import Wish

MOST_PENDING = 10_000  # probes of all wishes together that wait for their turn: about 3 MB
_MOST_REMEMBERED = 4_096  # ids of wishes that were taken or refused


class _Details(BaseModel):
    """What a wish says, before anybody looks whether it may be done."""

    model_config = ConfigDict(extra="ignore", strict=True)  # a server may be newer than its agents

    dst: str
    dst_nic: str
    proto: str
    sport: int = Field(ge=1, le=65_535)
    dport: int = Field(ROCE_PORT, ge=1, le=65_535)
    src_nic: str | None = None
    ports: int = Field(1, ge=1, le=MOST_PENDING)
    count: int = Field(1, ge=1, le=MOST_PENDING)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A wish that is not carried out, and why."""

    wish: str
    component: str
    reason: str


class ProbeOrders:
    """What was wished for and waits for its turn."""

    def __init__(self, host: str, topology: Topology, book: AddressBook) -> None:
        self._host, self._book = host, book
        self._nics = {node.id: {nic.id: nic for nic in node.nics} for node in topology.hosts}
        self._known: OrderedDict[str, None] = OrderedDict()
        self._pending: deque[tuple[int, Flow]] = deque()

    def take_in(self, wishes: Sequence[Wish]) -> list[Refusal]:
        """Note the wishes that are new and return those that are refused; a wish is looked at once."""
        refusals = []
        for wish in wishes:
            if wish.kind == "probe" and wish.host == self._host and wish.id not in self._known:
                self._remember(wish.id)
                try:
                    self._queue(wish)
                except BadInput as error:
                    refusals.append(Refusal(wish.id, f"host:{self._host}", str(error)))
        return refusals

    def next(self, now_ns: int) -> Flow | None:
        """Return whose turn it is, without taking it off the list; what has expired is dropped."""
        while self._pending and self._pending[0][0] <= now_ns:
            self._pending.popleft()
        return self._pending[0][1] if self._pending else None

    def done(self) -> None:
        """Take the one whose turn it was off the list."""
        self._pending.popleft()

    def _remember(self, wish: str) -> None:
        self._known[wish] = None
        if len(self._known) > _MOST_REMEMBERED:
            self._known.popitem(last=False)

    def _queue(self, wish: Wish) -> None:
        details = _read_details(wish)
        flow = self._first_flow(details)
        last = details.sport + details.ports - 1
        if last > 65_535:
            raise BadInput(f"source ports end at 65535, but {last} was wished for")
        if len(self._pending) + details.ports * details.count > MOST_PENDING:
            raise BadInput(f"{details.ports * details.count} probes more than {MOST_PENDING} waiting ones in all")
        for _, sport in product(range(details.count), range(details.sport, last + 1)):
            self._pending.append(
                (wish.expires_ns, Flow(flow.src_nic, flow.dst, flow.dst_nic, flow.proto, sport, flow.dport))
            )

    def _first_flow(self, details: _Details) -> Flow:
        if details.proto not in PROTOCOLS:
            raise BadInput(f"protocol {shorten(details.proto)} is none of {', '.join(PROTOCOLS)}")
        if details.dst == self._host or details.dst_nic not in self._nics.get(details.dst, ()):
            place = f"{shorten(details.dst)}, {shorten(details.dst_nic)}"
            raise BadInput(f"there is no other host with such a NIC in the topology: {place}")
        if self._book.address_of(details.dst, details.dst_nic) is None:
            raise BadInput(f"the address of {details.dst}/{details.dst_nic} is not known")
        src_nic = details.src_nic or self._nearest(self._nics[details.dst][details.dst_nic])
        if src_nic is None or self._book.address_of(self._host, src_nic) is None:
            raise BadInput(f"this host has no NIC {shorten(src_nic)} with a known address")
        return Flow(src_nic, details.dst, details.dst_nic, details.proto, details.sport, details.dport)

    def _nearest(self, other: Nic) -> str | None:
        """Return our NIC of the same plane, of the same rail if there is one."""
        mine = [nic for nic in self._nics.get(self._host, {}).values() if nic.plane == other.plane]
        same = [nic.id for nic in mine if nic.rail == other.rail]
        return next(iter(same + [nic.id for nic in mine]), None)


def _read_details(wish: Wish) -> _Details:
    try:
        return _Details.model_validate(wish.details)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise BadInput(f"its {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
