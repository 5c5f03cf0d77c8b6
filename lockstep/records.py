"""Every row that crosses a process boundary, defined once: fields, units, meaning.

Arrow schemas, ClickHouse columns, capture files and docs/records.md are derived from these classes or tested
against them; `lockstep.tables` says which table each class is. Times are integer nanoseconds since the UNIX
epoch, of the clock of `host`. A field that may be None is unknown when it is None; unknown is never zero.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

RECORDS_VERSION = 1
CLAIMED_TWICE = "rank_claimed_twice"  # kind of an event by which the gateway tells that a host claims another's rank

# A column's kind is the storage type; the Python type beside it is what a single value looks like.
U8 = Annotated[int, "u8"]
U16 = Annotated[int, "u16"]
U32 = Annotated[int, "u32"]
U64 = Annotated[int, "u64"]
I32 = Annotated[int, "i32"]
I64 = Annotated[int, "i64"]
F64 = Annotated[float, "f64"]
Flag = Annotated[bool, "bool"]
Text = Annotated[str, "str"]
Timestamp = Annotated[int, "timestamp"]  # nanoseconds since the UNIX epoch, never negative
Duration = Annotated[int, "duration"]  # nanoseconds, never negative
Texts = Annotated[list[str], "texts"]
Counters = Annotated[dict[str, int], "counters"]

Direction = Literal["send", "recv"]
Transport = Literal["ib", "socket", "ofi", "p2p", "shm", "collnet", "nvls"]
Detail = Literal["ops", "steps"]
PluginLevel = Literal["off", "operations", "transfers", "steps", "trace"]
LoweredBy = Literal["no", "callbacks", "job"]
StepWait = Literal["gpu_wait", "peer_wait", "wire", "recv_wait", "flush", "recv_gpu_wait"]
HeadState = Literal["idle", StepWait, "kernel_wait", "kernel_begun", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """What every row made on a host begins with."""

    host: Annotated[Text, "host that made the row; the gateway checks it against the agent's token"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(HostRecord):
    """What every row about a job begins with."""

    job: Annotated[Text, "job id, as the scheduler knows it"]
    attempt: Annotated[U16, "restart count; a requeue keeps the job id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comm(JobRecord):
    """A communicator as one of its ranks knows it; the newest version of a row wins."""

    comm: Annotated[U64, "communicator id, equal on all its ranks"]
    name: Annotated[Text, "name given by the framework, may be empty"]
    rank: Annotated[U32, "rank inside this communicator"]
    nranks: Annotated[U32, "number of ranks in this communicator"]
    nnodes: Annotated[U32 | None, "number of distinct hosts in this communicator"]
    world_rank: Annotated[U32 | None, "rank in the whole job"]
    pid: Annotated[U32 | None, "process id on the host"]
    gpu: Annotated[U16 | None, "NVML index of the rank's GPU"]
    gpu_pci: Annotated[Text | None, "PCI bus id of the GPU"]
    gpu_uuid: Annotated[Text | None, "UUID of the GPU, which survives renumbering"]
    nccl_version: Annotated[Text | None, "NCCL release in the process, such as 2.28.9"]
    plugin_version: Annotated[Text, "release of what observed it"]
    detail: Annotated[Detail, "finest detail recorded: operations, or network steps too"]
    init_ns: Annotated[Timestamp, "when the communicator was made"]
    destroy_ns: Annotated[Timestamp | None, "when it was destroyed; None while it lives"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection(JobRecord):
    """An NCCL connection and the NIC, transport and ports it uses, as far as a source could tell."""

    comm: Annotated[U64 | None, "communicator id"]
    rank: Annotated[U32 | None, "rank on this side"]
    peer: Annotated[I32 | None, "communicator rank on the other side"]
    channel: Annotated[U16 | None, "NCCL channel"]
    direction: Annotated[Direction, "as seen from this side"]
    transport: Annotated[Transport, "what carries it"]
    proxy_rank: Annotated[U32 | None, "rank whose proxy drives the NIC (PXN)"]
    nic: Annotated[Text | None, "NIC on this host, or its ports when fused"]
    local: Annotated[Text, "address on this side"]
    remote: Annotated[Text, "address on the other side"]
    sport: Annotated[U16 | None, "source port: TCP, or UDP of RoCE"]
    lqpn: Annotated[U32 | None, "queue pair number on this side"]
    rqpn: Annotated[U32 | None, "queue pair number on the other side"]
    source: Annotated[Text, "where this was learnt: nccl_log, graph, inet_diag, rdma, topology, only_nic"]
    confidence: Annotated[F64, "0 to 1"]
    seen_ns: Annotated[Timestamp | None, "when it was learnt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(JobRecord):
    """A finished operation on one rank (sampled)."""

    comm: Annotated[U64, "communicator id"]
    func: Annotated[Text, "NCCL's name: AllReduce, AllGather, ReduceScatter, Broadcast, Reduce, Send, Recv"]
    peer: Annotated[I32, "communicator rank of the other side for Send and Recv, otherwise -1"]
    seq: Annotated[U64, "number of the operation, counted per communicator and function (Send, Recv: and peer)"]
    replay: Annotated[U32, "replay of a CUDA graph in which seq stands still"]
    seq_valid: Annotated[Flag, "whether seq may enter a sequence comparison"]
    captured: Annotated[Flag, "whether the operation ran out of a CUDA graph"]
    epoch: Annotated[U16, "stretch of uninterrupted recording"]
    rank: Annotated[U32, "rank inside the communicator"]
    algo: Annotated[Text, "RING, TREE, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT"]
    proto: Annotated[Text, "LL, LL128, SIMPLE"]
    dtype: Annotated[Text, "NCCL's data type"]
    bytes: Annotated[U64, "as NCCL counts: one rank's part in AllGather and ReduceScatter, else the whole buffer"]
    channels: Annotated[U8 | None, "number of channels used"]
    enqueue_ns: Annotated[Timestamp, "when the host enqueued it"]
    start_ns: Annotated[Timestamp | None, "when it began, on the clock named by `clock`"]
    end_ns: Annotated[Timestamp | None, "when it ended, on the clock named by `clock`"]
    clock: Annotated[Literal["gpu", "proxy", "none"], "who stamped start and end"]
    untimed: Annotated[Flag | None, "whether the plugin had detail off, so that nobody saw it begin or end"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpStat(JobRecord):
    """All operations of one rank, function and size class in one second."""

    comm: Annotated[U64, "communicator id"]
    func: Annotated[Text, "NCCL's name"]
    size_class: Annotated[U8, "log2 of the bytes, rounded down"]
    rank: Annotated[U32, "rank inside the communicator"]
    ts_ns: Annotated[Timestamp, "begin of the second"]
    n: Annotated[U32, "operations finished in it"]
    bytes: Annotated[U64, "their bytes together"]
    dur_sum_ns: Annotated[Duration, "their durations together"]
    dur_max_ns: Annotated[Duration, "the longest of them"]
    gap_sum_ns: Annotated[Duration, "time from the end of the rank's previous operation to each start, together"]
    late_n: Annotated[U32, "operations that came after their second had been sent, counted in a later one"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(JobRecord):
    """A finished transfer: what one operation moved on one channel to or from one peer (sampled)."""

    comm: Annotated[U64, "communicator id"]
    func: Annotated[Text, "NCCL's name"]
    seq: Annotated[U64, "number of the operation"]
    replay: Annotated[U32, "replay of a CUDA graph"]
    epoch: Annotated[U16, "stretch of uninterrupted recording"]
    rank: Annotated[U32, "rank on this side"]
    channel: Annotated[U16, "NCCL channel"]
    peer: Annotated[I32, "rank on the other side; -1 for CollNet and NVLS, which have none"]
    direction: Annotated[Direction, "as seen from this side"]
    transport: Annotated[Transport | None, "decides what a wire time means"]
    nic: Annotated[Text | None, "NIC on this host"]
    sport: Annotated[U16 | None, "source port"]
    bytes: Annotated[U64, "bytes moved"]
    steps: Annotated[U32, "network steps it took"]
    detail: Annotated[Detail, "whether its steps were recorded; without them the waits are unknown"]
    gpu_wait_ns: Annotated[Duration | None, "waited for the local GPU"]
    peer_wait_ns: Annotated[Duration | None, "send: for the receiver's credit; recv: for the sender and the wire"]
    wire_ns: Annotated[Duration | None, "send only: socket, until the kernel took the bytes; IB, until acknowledged"]
    flush_ns: Annotated[Duration | None, "recv only: GPU-direct flush, or a starved proxy thread"]
    first_ns: Annotated[Timestamp, "first mark of the transfer"]
    last_ns: Annotated[Timestamp, "last mark of the transfer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStat(JobRecord):
    """All transfers of one rank, channel, peer, direction, function and size class in one second."""

    comm: Annotated[U64, "communicator id"]
    func: Annotated[Text, "NCCL's name"]
    size_class: Annotated[U8, "log2 of the operation's bytes, rounded down"]
    rank: Annotated[U32, "rank on this side"]
    channel: Annotated[U16, "NCCL channel"]
    peer: Annotated[I32, "rank on the other side, or -1"]
    direction: Annotated[Direction, "as seen from this side"]
    ts_ns: Annotated[Timestamp, "begin of the second"]
    transport: Annotated[Transport | None, "decides what a wire time means"]
    nic: Annotated[Text | None, "NIC on this host"]
    n: Annotated[U32, "transfers finished in it"]
    bytes: Annotated[U64, "their bytes together"]
    gpu_wait_ns: Annotated[Duration | None, "their waits for the local GPU together"]
    peer_wait_ns: Annotated[Duration | None, "their waits for the peer together"]
    wire_ns: Annotated[Duration | None, "their wire times together"]
    wire_max_ns: Annotated[Duration | None, "the longest wire time of one of them"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample(JobRecord):
    """A sampled network step, seen from one side."""

    comm: Annotated[U64, "communicator id"]
    func: Annotated[Text, "NCCL's name"]
    seq: Annotated[U64, "number of the operation"]
    replay: Annotated[U32, "replay of a CUDA graph"]
    epoch: Annotated[U16, "stretch of uninterrupted recording"]
    rank: Annotated[U32, "rank on this side"]
    channel: Annotated[U16, "NCCL channel"]
    peer: Annotated[I32, "rank on the other side"]
    direction: Annotated[Direction, "as seen from this side"]
    step: Annotated[U32, "number of the step inside the transfer"]
    nic: Annotated[Text | None, "NIC on this host"]
    sport: Annotated[U16 | None, "source port"]
    bytes: Annotated[U64, "bytes of the step"]
    posted_ns: Annotated[Timestamp, "when the buffer was posted"]
    wire_ns: Annotated[Timestamp, "send: handed to the network; recv: arrived"]
    done_ns: Annotated[Timestamp, "when the step ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transit(JobRecord):
    """Both sides of a network step joined; `host` is the receiving one."""

    comm: Annotated[U64, "communicator id"]
    func: Annotated[Text, "NCCL's name"]
    seq: Annotated[U64, "number of the operation"]
    channel: Annotated[U16, "NCCL channel"]
    src_rank: Annotated[U32, "sender"]
    dst_rank: Annotated[U32, "receiver"]
    src_nic: Annotated[Text | None, "NIC it left through"]
    dst_nic: Annotated[Text | None, "NIC it came in through"]
    sport: Annotated[U16 | None, "source port"]
    bytes: Annotated[U64, "bytes of the step"]
    transit_ns: Annotated[I64, "arrival minus the later of departure and posting; negative by clock error only"]
    skew_ns: Annotated[Duration, "uncertainty of the two clocks against each other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(JobRecord):
    """How far a rank has come in one communicator, function and peer: what a hang looks like from outside."""

    comm: Annotated[U64, "communicator id"]
    rank: Annotated[U32, "rank inside the communicator"]
    func: Annotated[Text, "NCCL's name"]
    peer: Annotated[I32, "rank on the other side for Send and Recv, otherwise -1"]
    ts_ns: Annotated[Timestamp, "when it was looked at"]
    enqueued: Annotated[U64, "operations the host has enqueued"]
    started: Annotated[U64, "operations that began"]
    done: Annotated[U64, "operations that ended"]
    open_bytes: Annotated[U64 | None, "size of the oldest open operation"]
    open_dtype: Annotated[Text | None, "its data type"]
    open_algo: Annotated[Text | None, "its algorithm"]
    oldest_open_ns: Annotated[Timestamp | None, "since when it is open"]
    head_state: Annotated[
        HeadState,
        "what the oldest unfinished step waits for; where none is known or a GPU is late, if its kernel has begun",
    ]
    head_peer: Annotated[I32 | None, "rank that step goes to or comes from"]
    head_channel: Annotated[U16 | None, "channel of that step"]
    untimed: Annotated[Flag | None, "whether the newest operations may have begun and ended unseen, detail off"] = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(JobRecord):
    """A training step on one rank."""

    world_rank: Annotated[U32, "rank in the whole job"]
    step: Annotated[U64, "number of the step"]
    start_ns: Annotated[Timestamp, "begin of the step"]
    end_ns: Annotated[Timestamp, "end of the step"]
    source: Annotated[Literal["period", "told"], "found by the analyzer from the traffic, or reported in-band"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent(HostRecord):
    """A heartbeat of a collector."""

    ts_ns: Annotated[Timestamp, "when it was sent"]
    version: Annotated[Text, "release of the collector"]
    watermark_ns: Annotated[Timestamp, "every row older than this has been sent"]
    dropped: Annotated[U64, "rows lost since its start, whatever the reason"]
    spool_bytes: Annotated[U64, "bytes waiting to be sent"]
    cpu_ns: Annotated[Duration, "CPU time used since its start"]
    plugin_cost_ns: Annotated[Duration | None, "time the plugins on the host spent in callbacks since their start"]
    ended: Annotated[Flag | None, "whether it stops in order, and this is its last word"] = None
    gateway: Annotated[Text | None, "address of the gateway that it sends to"] = None
    stalled: Annotated[Counters, "UNIX time in ns up to which each source without readings now had given all"] = (
        field(default_factory=dict)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginHealth(JobRecord):
    """How the plugin in one process does: what it records, what that costs, what it could not keep."""

    pid: Annotated[U32, "process id on the host"]
    world_rank: Annotated[U32 | None, "rank in the whole job"]
    local_ranks: Annotated[U32 | None, "processes of the job on the host, as its launcher says"]
    ts_ns: Annotated[Timestamp, "when it was read"]
    version: Annotated[Text, "release of the plugin"]
    level: Annotated[PluginLevel, "what it records"]
    lowered: Annotated[LoweredBy, "whether it records less than asked for, and by whose measure"]
    budget_ppm: Annotated[U32, "what the job may pay, in millionths of its time; 0: whatever it costs"]
    callback_ppm: Annotated[U32, "time in its callbacks, of the busiest thread's time"]
    paid_ppm: Annotated[I32 | None, "what the job pays, by operations without detail; None: not measured yet"]
    paid_error_ppm: Annotated[U32 | None, "half the width of its 95 % interval"]
    paid_pairs: Annotated[U32, "comparisons that it rests on"]
    dear: Annotated[Flag, "whether the job surely pays more than the budget, by this rank's comparisons"]
    refused_comms: Annotated[U64, "communicators that found no place, and are not seen"]
    lost: Annotated[U64, "records overwritten before they were read, and open operations whose place was needed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockQuality(HostRecord):
    """How well the host's clock is known."""

    ts_ns: Annotated[Timestamp, "when it was measured"]
    offset_ns: Annotated[I64, "host clock minus reference"]
    error_ns: Annotated[Duration, "bound on the error of the offset"]
    source: Annotated[Literal["ptp", "ntp", "probe", "collectives"], "how it was measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NicCounter(HostRecord):
    """A reading of a NIC's counters, all since boot."""

    ts_ns: Annotated[Timestamp, "when it was read"]
    nic: Annotated[Text, "name on this host"]
    up: Annotated[Flag, "whether there is a carrier"]
    speed_mbps: Annotated[U32 | None, "negotiated rate; unknown while down"]
    rx_bytes: Annotated[U64, "bytes received"]
    tx_bytes: Annotated[U64, "bytes sent"]
    rx_errors: Annotated[U64, "frames received broken"]
    tx_errors: Annotated[U64, "frames that could not be sent"]
    rx_drops: Annotated[U64, "frames received and dropped"]
    tx_drops: Annotated[U64, "frames dropped before sending"]
    retrans: Annotated[U64 | None, "retransmissions, where the NIC or the transport counts them"]
    extra: Annotated[Counters, "the driver's other counters by name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricCounter(HostRecord):
    """A reading of a switch port's counters; `host` is the one that asked the switch."""

    ts_ns: Annotated[Timestamp, "when it was read"]
    switch: Annotated[Text, "node id of the switch in the topology"]
    port: Annotated[Text, "port name on the switch"]
    up: Annotated[Flag, "whether the link is up"]
    speed_mbps: Annotated[U32 | None, "negotiated rate; unknown while down"]
    rx_bytes: Annotated[U64, "bytes received"]
    tx_bytes: Annotated[U64, "bytes sent"]
    errors: Annotated[U64 | None, "broken frames"]
    drops: Annotated[U64 | None, "dropped frames"]
    pause_rx: Annotated[U64 | None, "pause frames received"]
    pause_tx: Annotated[U64 | None, "pause frames sent"]
    fec_uncorrected: Annotated[U64 | None, "code words beyond repair"]
    extra: Annotated[Counters, "the switch's other counters by name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHealth(HostRecord):
    """A reading of a GPU's health; what a model does not report is unknown."""

    ts_ns: Annotated[Timestamp, "when it was read"]
    gpu: Annotated[U16, "NVML index"]
    gpu_uuid: Annotated[Text, "UUID of the GPU, which survives renumbering"]
    sm_mhz: Annotated[U32 | None, "SM clock"]
    temp_c: Annotated[F64 | None, "temperature in degrees Celsius"]
    power_w: Annotated[F64 | None, "power drawn in watts"]
    throttle: Annotated[Text, "reasons for a lowered clock, comma-separated; empty when none"]
    ecc_sbe: Annotated[U64 | None, "corrected memory errors"]
    ecc_dbe: Annotated[U64 | None, "uncorrected memory errors"]
    nvlink_errors: Annotated[U64 | None, "NVLink errors of all links together"]
    pcie_replays: Annotated[U64 | None, "PCIe replays"]
    util: Annotated[F64 | None, "share of time a kernel ran, 0 to 1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(HostRecord):
    """Something that happened on a host."""

    ts_ns: Annotated[Timestamp, "when it happened"]
    source: Annotated[Text, "who saw it: a source of the collector, or run, ras, nccl-tests, alertmanager, gpud"]
    kind: Annotated[Text, "what happened, as one word: xid, link_down, oom, process_exit"]
    component: Annotated[Text, "the part it concerns, named as in verdicts"]
    severity: Annotated[Text, "info, warning, error or critical"]
    message: Annotated[Text, "the original line or a sentence, for people: programs read the other columns"]
    rank: Annotated[U32 | None, "rank in the whole job of the process it is about"] = None
    pid: Annotated[U32 | None, "process id, on the host or in the namespace of who reported it"] = None
    signal: Annotated[U8 | None, "number of the signal that ended the process"] = None
    exit_code: Annotated[I32 | None, "exit code of the process, where no signal ended it"] = None
    detail: Annotated[Text | None, "what else a program may need, as JSON: blame and code of an XID"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(HostRecord):
    """One probe packet and its answer."""

    ts_ns: Annotated[Timestamp, "when it was sent"]
    src_nic: Annotated[Text, "NIC it left through"]
    dst: Annotated[Text, "host it went to"]
    dst_nic: Annotated[Text, "NIC it was sent to"]
    proto: Annotated[Text, "udp, tcp, icmp or roce"]
    sport: Annotated[U16, "source port"]
    dport: Annotated[U16, "destination port"]
    rtt_ns: Annotated[Duration | None, "round trip; None means lost"]
    hops: Annotated[Texts, "node ids between source and destination, in order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path(HostRecord):
    """The links that a source port leads over; `host` is the source."""

    src_nic: Annotated[Text, "NIC at the source"]
    dst: Annotated[Text | None, "host at the destination, unless dst_nic already says host/nic"]
    dst_nic: Annotated[Text, "NIC at the destination"]
    proto: Annotated[Text, "udp, tcp, icmp or roce"]
    sport: Annotated[U16, "source port"]
    dport: Annotated[U16, "destination port"]
    links: Annotated[Texts, "link ids of the topology, in order"]
    seen_ns: Annotated[Timestamp, "when it was last confirmed"]
    confidence: Annotated[F64, "0 to 1"]
