"""Probes between simulated hosts: a packet a second from every NIC, to another host and with another port each time.

A probe meets the delay and the loss of the links on its way, there and back, and is lost where one is down. It waits
in no queue: how full a link is shows in operations and counters.
"""

from functools import cached_property

import numpy as np
import pyarrow as pa

from lockstep.arrow import schema_of
from lockstep.clock import NS_PER_S
from lockstep.sim.link_troubles import LinkTroubles
from lockstep.sim.network import Floats, Network, flow_key
from lockstep.sim.placement import Ints
from lockstep.sim.rows import Desk
from lockstep.sim.story import Story
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import split_end

_FIRST_PORT, _PORTS, _TO_PORT = 33_000, 64, 4791
_SPREAD = 0.05  # of a round trip


class SimulatedProbes:
    """Answers what the hosts of a story would have measured; the same story and seed give the same probes."""

    def __init__(self, story: Story, network: Network, seed: int) -> None:
        self._story, self._network, self._seed = story, network, seed
        self._hops = [split_end(link.b)[0] for link in network.links]  # fabrics name the lower end first

    @cached_property
    def _troubles(self) -> LinkTroubles:
        """Worked out when the first probe is sent: most stories tell of none, and large clusters have many links."""
        return LinkTroubles(self._story, self._network)

    def at(self, second_ns: int, desk: Desk) -> pa.Table:
        """Return the probes of a second; none where the story tells of none."""
        if not self._story.telling.paths:
            return schema_of(TABLE_BY_NAME["probes"]).empty_table()
        second, nics = second_ns // NS_PER_S, self._story.cluster.nics_per_host
        src = np.arange(self._story.cluster.all_hosts * nics)
        hosts, dst = src // nics, self._targets(src, second)
        sport = np.full(len(src), _FIRST_PORT + second % _PORTS)
        there, back = self._ways(src, dst, second), self._ways(dst, src, second)
        return desk.host_rows(
            "probes",
            hosts,
            ts_ns=desk.moments(hosts, np.full(len(src), float(second_ns))),
            src_nic=_names(src % nics),
            dst=pa.array([f"h{host}" for host in (dst // nics).tolist()]),
            dst_nic=_names(dst % nics),
            proto="roce" if self._story.cluster.transport == "ib" else "tcp",
            sport=sport,
            dport=_TO_PORT,
            rtt_ns=self._round_trips(second_ns, there, back),
            hops=pa.array([self._hops_of(way) for way in there.tolist()]),
        )

    def _targets(self, src: Ints, second: int) -> Ints:
        """Return the NIC of the same number on another host, each second the next one."""
        nics, hosts = self._story.cluster.nics_per_host, self._story.cluster.all_hosts
        return (src // nics + 1 + second % (hosts - 1)) % hosts * nics + src % nics

    def _ways(self, src: Ints, dst: Ints, second: int) -> Ints:
        pairs = zip(src.tolist(), dst.tolist(), strict=True)
        keys = np.array([flow_key("probe", a, b, second % _PORTS) for a, b in pairs], np.int64)
        return self._network.choose_paths(src, dst, keys)

    def _round_trips(self, second_ns: int, there: Ints, back: Ints) -> pa.Array:
        random = np.random.default_rng([self._seed, second_ns // NS_PER_S, 7])
        trouble = self._troubles.at(float(second_ns), size=0)
        both = np.concatenate([there, back], axis=1)
        down = np.append(np.repeat(self._troubles.down_at(second_ns / NS_PER_S), 2), False)
        arrives = np.prod(1 - np.where(down, 1.0, trouble.lost)[both], axis=1)
        hop_ns: Floats = trouble.condition.delay_ns[both].sum(axis=1) + 2e3 * self._story.cluster.hop_latency_us
        measured = (hop_ns * random.normal(1.0, _SPREAD, len(both)).clip(0.5)).astype(np.int64)
        return pa.array(measured, mask=random.random(len(both)) >= arrives)

    def _hops_of(self, way: list[int]) -> list[str]:
        """Return the switches on a way: leaf, or leaf, spine, leaf."""
        links = [link // 2 for link in way if link != self._network.nowhere]
        last = self._hops[links[-1]]
        return [*(self._hops[link] for link in links[:2]), last] if len(links) > 2 else [last]


def _names(numbers: Ints) -> pa.Array:
    return pa.array([f"eth{number}" for number in numbers.tolist()])
