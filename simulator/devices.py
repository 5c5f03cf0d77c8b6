"""What simulated hosts, NICs, switches and GPUs tell beside the operations of the job, as the rows they would send.

Bytes and what becomes of packets come out of the transfers that the simulation made (traffic.py); states, heat and
events out of the scenario. Times are true: whoever shifts hosts' clocks does so afterwards.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.arrow import ARROW_TYPES, fill_rows, rows_of
from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME
from simulator.events import SimulatedEvents
from simulator.faults import Fault, active_faults
from simulator.network import Ports, nic_ports, switch_ports
from simulator.operations import Operation
from simulator.pairs import NEVER, Flags, Floats, Ints, Times
from simulator.scenario import Scenario
from simulator.simulation import Simulation
from simulator.traffic import LinkFaults, Tally, Traffic

GPU_PERIOD_S = 5
# Of an H100 SXM: highest and idle SM clock, power of computing, waiting and idle, where it begins to throttle.
MAX_MHZ, _IDLE_MHZ = 1980, 345
_COMPUTE_W, _WAITING_W, _IDLE_W = 650.0, 260.0, 110.0
_HOT_C = 92.0
HOT, IDLE = "hw_thermal_slowdown", "gpu_idle"  # as NVML names them
_ERRORS_PER_S = 20.0  # of a PCIe or NVLink connection that has lost its whole rate
_COOLING, _READING = 0x6EA7, 0x6EA8  # keep these draws apart from all others of the same seed


@dataclass(frozen=True)
class _Attempt:
    begin_ns: float
    gpu_of_rank: Ints  # counted over the hosts
    inside_since: Times  # by GPU: of an operation that never ends


class GpuReadings:
    """Follows what every GPU of the cluster does, spares too; counted over the hosts."""

    def __init__(self, scenario: Scenario, seed: int, hosts: list[str]) -> None:
        self._scenario, self._seed = scenario, seed
        self._per_host = scenario.cluster.gpus_per_host
        gpus = len(hosts) * self._per_host
        self._busy, self._ended = Tally(gpus), Tally(gpus)
        self._was_busy, self._had_ended = np.zeros(gpus), np.zeros(gpus)
        self._attempts: dict[int, _Attempt] = {}
        self._errors = {"pcie": np.zeros(gpus), "nvlink": np.zeros(gpus)}
        self._temp_c = np.random.default_rng([seed, _COOLING]).uniform(58.0, 68.0, gpus)
        index = np.tile(np.arange(self._per_host), len(hosts))
        names = np.repeat(hosts, self._per_host)
        self._names = {
            "host": pa.array(names),
            "gpu": index,
            "gpu_uuid": pa.array([gpu_uuid(host, gpu) for host, gpu in zip(names, index.tolist(), strict=True)]),
        }

    def note(self, operation: Operation) -> None:
        """Count how long ranks were in an operation, or that they never leave it."""
        attempt = self._attempts.get(operation.attempt) or self._begin(operation)
        gpus = attempt.gpu_of_rank[operation.rank]
        ended = operation.end < NEVER / 2
        spent = operation.end[ended] - operation.start[ended]
        self._busy.add(operation.end[ended], gpus[ended], spent)
        self._ended.add(operation.end[ended], gpus[ended], np.ones(len(spent)))
        inside = ~ended & (operation.start < NEVER / 2)
        np.minimum.at(attempt.inside_since, gpus[inside], operation.start[inside])

    def _begin(self, operation: Operation) -> "_Attempt":
        placement, gpus = operation.comms.placement, len(self._temp_c)
        gpu_of_rank = placement.host_of * self._per_host + placement.gpu_of
        begun = _Attempt(float(operation.enqueue.min()), gpu_of_rank, np.full(gpus, NEVER))
        self._attempts[operation.attempt] = begun
        return begun

    def _attempt_at(self, second: int) -> "_Attempt":
        """Return the attempt that has begun last: operations may be noted ahead of the readings."""
        begun = [each for each in self._attempts.values() if each.begin_ns < second * NS_PER_S]
        return begun[-1] if begun else _Attempt(0.0, np.zeros(0, np.int64), np.full(len(self._temp_c), NEVER))

    def rows(self, second: int, ts_ns: int) -> pa.Table:
        """Return the readings at a second; to be asked every five."""
        faults = active_faults(self._scenario.timeline, second)
        attempt = self._attempt_at(second)
        has_process = np.isin(np.arange(len(self._temp_c)), attempt.gpu_of_rank)
        works, waits = self._activity(second, faults, attempt)
        speed, errors = self._speed(faults, second), self._count_errors(faults, second)
        is_hot, is_idle = speed < 1, ~works
        random = np.random.default_rng([self._seed, _READING, second])
        drawn = np.where(works, _WAITING_W * waits + _COMPUTE_W * (1 - waits) * speed, _IDLE_W)
        warm = np.where(works, self._temp_c, 34.0)
        # What is hot enough to throttle stays at that temperature, however far the clock has to fall.
        temp_c = np.where(is_hot, np.minimum(_HOT_C, warm + 4 * (1 - speed) * (_HOT_C - warm) + 15), warm)
        columns = {
            "sm_mhz": np.where(has_process, np.rint(MAX_MHZ * speed), _IDLE_MHZ).astype(np.uint32),
            "temp_c": np.rint(temp_c + random.normal(0.0, 0.5, len(temp_c))),
            "power_w": np.round(drawn + random.normal(0.0, 5.0, len(drawn)), 1),
            "throttle": pa.array(np.select([is_hot, is_idle], [HOT, IDLE], "").tolist()),
            "util": np.round(np.where(works, 1 - np.abs(random.normal(0.0, 0.01, len(drawn))), 0.0), 2),
        }
        fixed = {**self._names, "ts_ns": ts_ns, "ecc_sbe": 0, "ecc_dbe": 0, **errors}
        return fill_rows(TABLE_BY_NAME["gpu_health"], len(works), fixed | columns)

    def _activity(self, second: int, faults: tuple[Fault, ...], attempt: "_Attempt") -> tuple[Flags, Floats]:
        """Return which GPUs ran kernels since the last reading, and for what share these waited or moved data."""
        busy, ended = self._busy.at(second).copy(), self._ended.at(second).copy()
        share = np.clip((busy - self._was_busy) / (GPU_PERIOD_S * NS_PER_S), 0.0, 1.0)
        is_inside = attempt.inside_since < second * NS_PER_S
        works = (ended > self._had_ended) | is_inside
        self._was_busy, self._had_ended = busy, ended
        for fault in faults:
            if fault.effect == "stuck":
                works |= self._gpus_of(fault) & np.isin(np.arange(len(works)), attempt.gpu_of_rank)
            elif fault.effect == "gone":
                works &= ~self._gpus_of(fault)
            elif fault.effect == "killed":
                works[attempt.gpu_of_rank[int(fault.name) :][:1]] = False
        return works, np.where(is_inside, 1.0, share)

    def _speed(self, faults: tuple[Fault, ...], now_s: float) -> Floats:
        """Return what heat leaves of the clocks."""
        speed = np.ones(len(self._temp_c))
        for fault in faults:
            if fault.effect == "rate" and fault.kind == "gpu" and fault.over_s > 0:
                speed[self._gpus_of(fault)] *= 1 - (1 - (fault.amount or 0.0)) * fault.level(now_s)
        return speed

    def _count_errors(self, faults: tuple[Fault, ...], now_s: float) -> dict[str, np.ndarray]:
        for fault in faults:
            if fault.effect == "rate" and fault.kind in self._errors:
                lack = (1 - (fault.amount or 0.0)) * fault.level(now_s)
                self._errors[fault.kind][self._gpus_of(fault)] += _ERRORS_PER_S * GPU_PERIOD_S * lack
        names = {"pcie_replays": "pcie", "nvlink_errors": "nvlink"}
        return {column: self._errors[kind].astype(np.uint64) for column, kind in names.items()}

    def _gpus_of(self, fault: Fault) -> Flags:
        """Return the GPUs of a host, or one of them."""
        gpus = np.arange(len(self._temp_c))
        host, _, gpu = fault.name.partition("/")
        mine: Flags = gpus // self._per_host == int(host.removeprefix("h"))
        return mine & (gpus % self._per_host == int(gpu)) if gpu else mine


def gpu_uuid(host: str, gpu: int) -> str:
    """Return the UUID of a simulated GPU, the same each time."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{host}/{gpu}')}"


_TRUTH, _KNOWLEDGE = 0xC10C, 0xC10D  # keep these draws apart from all others of the same seed


def host_clocks(scenario: Scenario, seed: int) -> tuple[Ints, Floats]:
    """Return how many nanoseconds each host's clock is ahead when the scenario begins, and by how much it drifts.

    Spares have clocks too. A drift of 1e-6 gains a microsecond a second.
    """
    random, hosts = np.random.default_rng([seed, _TRUTH]), scenario.cluster.all_hosts
    offset_ns = np.rint(random.uniform(-1.0, 1.0, hosts) * scenario.clocks.skew_ms * 1e6).astype(np.int64)
    return offset_ns, random.uniform(-1.0, 1.0, hosts) * scenario.clocks.drift_ppm * 1e-6


class ClockReadings:
    """What each host tells about its own clock: the truth, rounded by less than the bound that it gives."""

    def __init__(self, scenario: Scenario, seed: int, hosts: pa.Array) -> None:
        self._seed, self._hosts = seed, hosts
        self._offset_ns, self._drift = host_clocks(scenario, seed)
        self._error_ns = round(scenario.clocks.known_to_us * 1e3)

    def rows(self, second: int, ts_ns: int) -> pa.Table:
        random = np.random.default_rng([self._seed, _KNOWLEDGE, second])
        error_ns = random.integers(-self._error_ns, self._error_ns, len(self._hosts), endpoint=True)
        truth_ns = self._offset_ns + np.rint(self._drift * second * NS_PER_S).astype(np.int64)
        known = {"offset_ns": truth_ns + error_ns, "error_ns": self._error_ns, "source": "ntp"}
        return fill_rows(TABLE_BY_NAME["clocks"], len(self._hosts), {"host": self._hosts, "ts_ns": ts_ns, **known})


FABRIC_PERIOD_S, CLOCK_PERIOD_S = 10, 10


class DeviceTelemetry:
    """Follows a simulation operation by operation and gives the readings of each whole second, in order.

    All operations that end before a second are to be noted before its readings are asked for; what is noted later
    counts in later readings, so that nothing is lost.
    """

    def __init__(self, simulation: Simulation, start_ns: int) -> None:
        scenario, seed, network = simulation.scenario, simulation.seed, simulation.network
        hosts = [host.id for host in simulation.topology.hosts]
        self._simulation, self._start_ns, self._head = simulation, start_ns, hosts[0]
        self._is_ib = scenario.cluster.transport == "ib"
        self._nics, self._ports = nic_ports(simulation.topology, network), switch_ports(simulation.topology)
        self._link_faults = LinkFaults(scenario, network)
        self._traffic = Traffic(network, self._link_faults, len(self._nics), self._is_ib)
        self._gpus = GpuReadings(scenario, seed, hosts)
        self._clocks = ClockReadings(scenario, seed, pa.array(hosts))
        self._events = SimulatedEvents(scenario, self._link_faults, hosts, start_ns)
        self._nic_extras, self._port_extras = _Extras(len(self._nics)), _Extras(len(self._ports))

    def note(self, operation: Operation) -> None:
        """Take an operation as it is simulated."""
        self._traffic.note(operation, self._simulation.running.spared)
        self._gpus.note(operation)
        self._events.note(operation)

    def until(self, second_ns: int) -> dict[str, pa.Table]:
        """Return the readings taken at a whole second of the scenario, and what happened since the one before."""
        second, ts_ns = second_ns // NS_PER_S, self._start_ns + second_ns
        events, down = self._events.until(second), self._link_faults.down_at(second)
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
            "retrans": _counts(traffic.sent_again.at(second)) + _counts(self._events.retries),
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
                "local_ack_timeout_err": self._events.retries,
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
        dead = pa.array(sorted(self._link_faults.dead_switches(second)), pa.string())
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
