"""What simulated hosts, NICs, switches and GPUs tell beside the operations of the job, as the rows they would send.

Bytes and what becomes of packets come out of the transfers that the simulation made (traffic.py); states, heat and
events out of the story. Times are true: whoever shifts hosts' clocks does so afterwards.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.arrow import ARROW_TYPES, fill_rows, rows_of
from lockstep.clock import NS_PER_S
from lockstep.sim.gpu_readings import PERIOD_S as GPU_PERIOD_S
from lockstep.sim.gpu_readings import GpuReadings
from lockstep.sim.happenings import Happenings
from lockstep.sim.host_clocks import ClockReadings
from lockstep.sim.link_troubles import LinkTroubles
from lockstep.sim.network import Floats
from lockstep.sim.operations import Operation
from lockstep.sim.placement import Flags
from lockstep.sim.ports import Ports, nic_ports, switch_ports
from lockstep.sim.simulation import Simulation
from lockstep.sim.traffic import Traffic
from lockstep.tables import TABLE_BY_NAME

FABRIC_PERIOD_S, CLOCK_PERIOD_S = 10, 10


class Surroundings:
    """Follows a simulation operation by operation and gives the readings of each whole second, in order.

    All operations that end before a second are to be noted before its readings are asked for; what is noted later
    counts in later readings, so that nothing is lost.
    """

    def __init__(self, simulation: Simulation, start_ns: int) -> None:
        story, seed, network = simulation.story, simulation.seed, simulation.network
        hosts = [host.id for host in simulation.topology.hosts]
        self._simulation, self._start_ns, self._head = simulation, start_ns, hosts[0]
        self._is_ib = story.cluster.transport == "ib"
        self._nics, self._ports = nic_ports(simulation.topology, network), switch_ports(simulation.topology)
        self._troubles = LinkTroubles(story, network)
        self._traffic = Traffic(network, self._troubles, len(self._nics), self._is_ib)
        self._gpus = GpuReadings(story, seed, hosts)
        self._clocks = ClockReadings(story, seed, pa.array(hosts))
        self._happenings = Happenings(story, self._troubles, hosts, start_ns)
        self._nic_extras, self._port_extras = _Extras(len(self._nics)), _Extras(len(self._ports))

    def note(self, operation: Operation) -> None:
        """Take an operation as it is simulated."""
        self._traffic.note(operation, self._simulation.running.lucky)
        self._gpus.note(operation)
        self._happenings.note(operation)

    def until(self, second_ns: int) -> dict[str, pa.Table]:
        """Return the readings taken at a whole second of the story, and what happened since the one before."""
        second, ts_ns = second_ns // NS_PER_S, self._start_ns + second_ns
        events, down = self._happenings.until(second), self._troubles.down_at(second)
        tables = {"nic_counters": self._nic_counters(second, ts_ns, down)}
        if second % FABRIC_PERIOD_S == 0:
            tables["fabric_counters"] = self._fabric_counters(second, ts_ns, down)
        if second % GPU_PERIOD_S == 0:
            tables["gpu_health"] = self._gpus.rows(second, ts_ns)
        if second % CLOCK_PERIOD_S == 0:
            tables["clocks"] = self._clocks.rows(second, ts_ns)
        if events:
            tables["events"] = rows_of(TABLE_BY_NAME["events"], list(events))
        return tables

    def _nic_counters(self, second: int, ts_ns: int, down: Flags) -> pa.Table:
        nics, traffic = self._nics, self._traffic
        columns = {
            "host": nics.owner,
            "nic": nics.name,
            "rx_errors": _counts(traffic.broken.at(second)[nics.rx]),
            "tx_errors": _counts(traffic.unsent.at(second)[nics.tx]),
            "rx_drops": 0,
            "tx_drops": 0,
            "retrans": _counts(traffic.sent_again.at(second)) + _counts(self._happenings.retries),
            "extra": self._nic_extras.maps(self._nic_extra(second)),
        }
        common = self._common(nics, second, ts_ns, down)
        return fill_rows(TABLE_BY_NAME["nic_counters"], len(nics), common | columns)

    def _nic_extra(self, second: int) -> Mapping[str, Floats]:
        """Return what is counted beside the columns, under the names that collectors find.

        A queue that is full drops packets before the NIC sees them, so that the NIC itself counts none.
        """
        if self._is_ib:
            return {
                "local_ack_timeout_err": self._happenings.retries,
                "packet_seq_err": self._traffic.sent_again.at(second),
                "port_xmit_wait": self._traffic.paused.at(second)[self._nics.tx],
            }
        return {"qdisc_drops": self._traffic.dropped.at(second)[self._nics.tx]}

    def _fabric_counters(self, second: int, ts_ns: int, down: Flags) -> pa.Table:
        ports, traffic = self._ports, self._traffic
        broken, paused = traffic.broken.at(second)[ports.rx], traffic.paused.at(second)
        columns = {
            "host": self._head,
            "switch": ports.owner,
            "port": ports.name,
            "errors": _counts(broken),
            "drops": _counts(traffic.dropped.at(second)[ports.tx] + traffic.refused.at(second)[ports.rx]),
            "pause_rx": _counts(paused[ports.tx]),
            "pause_tx": _counts(paused[ports.rx]),
            "fec_uncorrected": _counts(broken),
            "extra": self._port_extras.maps({}),
        }
        common = self._common(ports, second, ts_ns, down)
        rows = fill_rows(TABLE_BY_NAME["fabric_counters"], len(ports), common | columns)
        dead = pa.array(sorted(self._troubles.dead_switches(second)), pa.string())
        return rows.filter(pc.invert(pc.is_in(rows["switch"], dead))) if len(dead) else rows

    def _common(self, ports: Ports, second: int, ts_ns: int, down: Flags) -> dict[str, object]:
        moved, is_down = self._traffic.bytes.at(second), down[ports.tx // 2]
        return {
            "ts_ns": ts_ns,
            "up": ~is_down,
            "speed_mbps": pa.array(ports.mbps, mask=is_down),
            "rx_bytes": _counts(moved[ports.rx]),
            "tx_bytes": _counts(moved[ports.tx]),
        }


class _Extras:
    """Makes columns of counters by name; the names are the same in all rows and are written once."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._known: dict[tuple[str, ...], tuple[pa.Array, pa.Array]] = {}

    def maps(self, counters: Mapping[str, Floats]) -> pa.Array:
        names = tuple(counters)
        if names not in self._known:
            offsets = np.arange(self._rows + 1, dtype=np.int32) * len(names)
            self._known[names] = pa.array(offsets), pa.array(list(names) * self._rows, pa.string())
        offsets, keys = self._known[names]
        items = _counts(np.array([counters[name] for name in names]).T.ravel())
        return pa.MapArray.from_arrays(offsets, keys, pa.array(items)).cast(ARROW_TYPES["counters"])


def _counts(sums: Floats) -> np.ndarray:
    """Return whole numbers of things that have happened in full."""
    return np.floor(sums).astype(np.uint64)
