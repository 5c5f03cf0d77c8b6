"""Which jobs are there, when they are active, and who takes part in them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.windows.columns import filled
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.store.together import WHOSE
from lockstep.topology import gpu_name, host_name


def list_hosts(hosts: Iterable[str]) -> str:
    """Return the parameter `hosts` of a query that asks `OF_HOSTS`."""
    return "\n".join(sorted(hosts))


# What tells that a job lives, and when; the last column says whether a row stands for the second that begins there.
# A job that hangs finishes nothing, but its progress is still reported.
_ACTIVITY_TABLES = (
    ("op_stats", "ts_ns", "ts_ns", True),
    ("transfer_stats", "ts_ns", "ts_ns", True),
    ("progress", "ts_ns", "ts_ns", False),
    ("collectives", "enqueue_ns", "coalesce(end_ns, enqueue_ns)", False),
    ("transfers", "first_ns", "last_ns", False),
    ("steps", "start_ns", "end_ns", False),
)
# Rows are stored by their beginning. What takes longer than an hour ends by NCCL's watchdog, not by itself.
_LONGEST_NS = 3_600 * NS_PER_S
_MOST_JOBS_OF_HOST = 64  # that are followed at once: eight GPUs in seven parts each, and some that ended

JobKey = tuple[str, int]  # job, attempt


@dataclass(frozen=True, slots=True)
class JobSpan:
    """An attempt of a job that the store knows of, from its first moment to its last."""

    job: str
    attempt: int
    first_ns: int
    last_ns: int
    tables: frozenset[str] = frozenset()  # that tell of it


def find_jobs(store: Store, since_ns: int) -> list[JobSpan]:
    """Return the jobs that were active since then."""
    rows = store.query(
        "SELECT job, attempt, min(first) AS first_ns, max(last) AS last_ns, groupUniqArray(told) AS tables FROM ("
        + " UNION ALL ".join(_activity_sql(*observation) for observation in _ACTIVITY_TABLES)
        # Tables are sorted by job and attempt, so no row needs to be hashed.
        + ") GROUP BY job, attempt ORDER BY job, attempt SETTINGS optimize_aggregation_in_order = 1",
        {"since": since_ns},
    )
    return [JobSpan(**{**row, "tables": frozenset(row["tables"])}) for row in rows.to_pylist()]


def find_active_hops(store: Store, span: JobSpan, hop_ns: int) -> list[int]:
    """Return the ends of all hops in which a job was active: a clock may be years off, and evaluations cost."""
    evidence = " UNION DISTINCT ".join(
        f"SELECT DISTINCT intDiv({end}, {{hop:Int64}}) AS hop FROM {table} "
        "WHERE job = {job:String} AND attempt = {attempt:UInt16}"
        for table, _, end, _ in _ACTIVITY_TABLES
        if table in span.tables
    )
    rows = store.query(
        f"SELECT DISTINCT hop FROM ({evidence}) ORDER BY hop",
        {"job": span.job, "attempt": span.attempt, "hop": hop_ns},
    )
    return [(hop + 1) * hop_ns for hop in rows["hop"].to_pylist()]


def find_activity(store: Store, span: JobSpan) -> tuple[int, int]:
    """Return from when to when a job did something, as exactly as its rows tell it: statistics are per second."""
    exact = [
        observation
        for observation in _ACTIVITY_TABLES
        if observation[0] in ("collectives", "transfers") and observation[0] in span.tables
    ]
    if not exact:
        return span.first_ns, span.last_ns
    times = " UNION ALL ".join(
        f"SELECT min({begin}) AS first, max({end}) AS last FROM {table} "
        "WHERE job = {job:String} AND attempt = {attempt:UInt16}"
        for table, begin, end, _ in exact
    )
    asked = {"job": span.job, "attempt": span.attempt}
    (row,) = store.query(f"SELECT min(first) AS first, max(last) AS last FROM ({times})", asked).to_pylist()
    return int(row["first"]), int(row["last"])


def _activity_sql(table: str, begin: str, end: str, is_second: bool) -> str:
    last = f"max({end})" + (f" + {NS_PER_S}" if is_second else "")
    return (
        f"SELECT job, attempt, min({begin}) AS first, {last} AS last, '{table}' AS told FROM {table} "
        f"WHERE {begin} >= {{since:Int64}} - {_LONGEST_NS if begin != end else 0} AND {end} >= {{since:Int64}} "
        "GROUP BY job, attempt"
    )


NOBODY = -1  # the number of a process that no communicator told of

_MEMBERS = f"""
SELECT /*ask,*/ comm, rank, nranks, nnodes, host, pid, gpu, world_rank, init_ns, plugin_version FROM comms FINAL
WHERE {WHOSE}
"""
_RANK_BITS = np.uint64(32)  # a rank is an u32, so communicator and rank fit into one sortable number
_RANK_MASK = np.uint64(0xFFFFFFFF)
_RECORDER = "flight-recorder"  # how the plugin's version begins where PyTorch's recorder stands for the plugin


@dataclass(frozen=True, slots=True)
class Process:
    """One rank of the job and where it runs."""

    number: int
    host: str
    gpu: int | None
    world_rank: int | None

    @property
    def gpu_name(self) -> str | None:
        return None if self.gpu is None else gpu_name(self.host, self.gpu)

    @property
    def host_name(self) -> str:
        return host_name(self.host)

    @property
    def rank_name(self) -> str:
        """Return its name in verdicts; without a world rank its number stands for it."""
        return f"rank:{self.number if self.world_rank is None else self.world_rank}"


@dataclass(frozen=True)
class Roster:
    """All processes and communicators of one attempt of a job."""

    host_of: np.ndarray  # str of each process
    gpu_of: np.ndarray  # NVML index of each process, -1 where unknown
    world_rank_of: np.ndarray  # of each process, -1 where unknown
    nodes: int  # hosts that its largest communicator counts; some of them may never have said a word
    comms: np.ndarray  # u64, the communicators, sorted
    sizes: np.ndarray  # ranks that each of them counts, known or not
    _keys: np.ndarray  # place in comms and rank of each member in one number, sorted
    _processes: np.ndarray  # the process of each key
    is_dump: bool = False  # whether only flight recorders told of it, after the end

    @classmethod
    def empty(cls) -> "Roster":
        """Return the roster of a job of which nobody has told anything."""
        nobody, nothing = np.zeros(0, np.int64), np.zeros(0, np.uint64)
        return cls(np.zeros(0, object), nobody, nobody, 0, nothing, nobody, nothing, nobody)

    def __len__(self) -> int:
        return len(self.host_of)

    @property
    def ranks(self) -> int:
        """Return how many ranks the job has as far as its communicators tell, known or not."""
        return max(int(self.sizes.max(initial=0)), len(self))

    @cached_property
    def hosts(self) -> frozenset[str]:
        return frozenset(self.host_of.tolist())

    def process(self, number: int) -> Process:
        """Return a process by its number."""
        gpu, world_rank = int(self.gpu_of[number]), int(self.world_rank_of[number])
        return Process(
            number, self.host_of[number], gpu if gpu >= 0 else None, world_rank if world_rank >= 0 else None
        )

    def find(self, comm: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """Return the process number of each (communicator, rank), NOBODY for unknown ones."""
        wanted = _keys_of(self.comms, comm, rank)
        indexes = np.searchsorted(self._keys, wanted)
        found = (indexes < len(self._keys)) & (rank >= 0) & np.isin(comm, self.comms)
        indexes[~found] = 0
        found &= self._keys[indexes] == wanted if len(self._keys) else False
        return np.where(found, self._processes[indexes] if len(self._processes) else NOBODY, NOBODY)

    def seats(self, processes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return communicator and rank of every place that some processes have."""
        keys = self._keys[np.isin(self._processes, processes)]
        return self.comms[(keys >> _RANK_BITS).astype(np.int64)], (keys & _RANK_MASK).astype(np.int64)

    def members(self, comm: int) -> np.ndarray:
        """Return the process numbers of a communicator by rank, of those that told of themselves."""
        index = int(np.searchsorted(self.comms, np.uint64(comm)))
        bounds = np.array([index, index + 1], np.uint64) << _RANK_BITS
        low, high = np.searchsorted(self._keys, bounds)
        return self._processes[low:high]


def read_roster(store: Store, job: str, attempt: int) -> Roster:
    """Return who takes part in an attempt of a job; nobody, while no communicator is known."""
    return build_roster(store.query(_MEMBERS, {"job": job, "attempt": attempt}))


def build_roster(members: pa.Table) -> Roster:
    """Return the roster that rows of `comms` tell of; where two hosts claim one rank, the first has it."""
    rows = members.sort_by("init_ns")
    comm = _numbers(rows["comm"], np.uint64)
    comms, index = np.unique(comm, return_inverse=True)
    keys, claimed = np.unique(_keys_of(comms, comm, _numbers(rows["rank"], np.int64)), return_index=True)
    if len(claimed) < len(rows):  # the gateway stores one row for a rank, captures may hold several
        return build_roster(rows.take(np.sort(claimed)))
    sizes = np.zeros(len(comms), np.int64)
    np.maximum.at(sizes, index, _numbers(rows["nranks"], np.int64))
    first, number = _identify(rows, index, sizes)
    is_recorder = pc.fill_null(pc.starts_with(rows["plugin_version"], _RECORDER), False)
    return Roster(
        host_of=np.array(rows["host"].take(first).to_pylist(), dtype=object),
        gpu_of=_numbers(rows["gpu"].take(first), np.int64),
        world_rank_of=_numbers(rows["world_rank"].take(first), np.int64),
        nodes=int(pc.max(rows["nnodes"]).as_py() or 0),
        comms=comms,
        sizes=sizes,
        _keys=keys,
        _processes=number[claimed],
        is_dump=len(is_recorder) > 0 and bool(pc.all(is_recorder).as_py()),
    )


def _identify(rows: pa.Table, comm: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a row that tells of each process, the newest, and the process number of each row.

    A process is its rank in the job, so that a job that starts again on other hosts has as many as before; but nobody
    speaks for a rank of another host by saying that it is his.
    """
    world_rank = _numbers(rows["world_rank"], np.int64)
    host = _numbers(rows["host"].combine_chunks().dictionary_encode().indices, np.int64)
    known = world_rank >= 0
    strays = _find_strays(_numbers(rows["rank"], np.int64), world_rank, host, comm, sizes)
    identity = np.stack(
        [
            ~known,
            world_rank,
            np.where(known & ~strays, -1, host),
            np.where(known, -1, _numbers(rows["pid"], np.int64)),
            np.where(known, -1, _numbers(rows["gpu"], np.int64)),
        ],
        axis=1,
    )
    _, last, number = np.unique(identity[::-1], axis=0, return_index=True, return_inverse=True)
    return len(identity) - 1 - last, number.reshape(-1)[::-1]


def _find_strays(
    rank: np.ndarray, world_rank: np.ndarray, host: np.ndarray, comm: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
    """Return the rows in which a host says that it has a rank of the job which others say they have.

    Those are believed that have its place in a communicator of the whole job, which other hosts tell of as well.
    """
    hosts = int(host.max(initial=0)) + 1
    mine = world_rank * hosts + host
    claimed = np.unique(mine[world_rank >= 0]) // hosts
    contested = np.isin(world_rank, claimed[1:][np.diff(claimed) == 0])
    if not contested.any():
        return contested
    speaking = np.bincount(np.unique(comm * hosts + host) // hosts, minlength=len(sizes))
    largest = sizes[speaking > 1].max(initial=0)
    has_its_place = (speaking[comm] > 1) & (sizes[comm] == largest) & (rank == world_rank)
    return contested & ~np.isin(mine, mine[has_its_place])


def _keys_of(comms: np.ndarray, comm: np.ndarray, rank: np.ndarray) -> np.ndarray:
    index = np.searchsorted(comms, comm.astype(np.uint64)).astype(np.uint64)
    return (index << _RANK_BITS) | rank.astype(np.uint64)


def _numbers(column: pa.ChunkedArray | pa.Array, kind: type[np.generic]) -> np.ndarray:
    """Return a column as numbers, -1 (unsigned: 0) where it is null."""
    known = column if kind is np.uint64 else column.cast(pa.int64())
    return filled(known, 0 if kind is np.uint64 else -1).astype(kind)


def choose_followed(hosts_of: Mapping[JobKey, frozenset[str]]) -> list[JobKey]:
    """Return the jobs to follow, the first ones first: not those of which each host has had its fill.

    A host that invents jobs has to name itself in them, and so holds back no job that runs elsewhere too.
    """
    followed, of_host = [], Counter[str]()
    for key, hosts in hosts_of.items():
        if not hosts or any(of_host[host] < _MOST_JOBS_OF_HOST for host in hosts):
            followed.append(key)
            of_host.update(hosts)
    return followed
