"""A job as large as a matrix is meant for."""

from lockstep.records import Agent, Comm, TransferStat
from lockstep.store.store import Store
from tests.api.views.build import heartbeat, put
from tests.builders import SECOND, make

PEERS = (1, 2, 4, 8, 16, 32, 64, 128)  # ranks that each sends to, as in trees and exchanges
SLOW = (700, 701)
_RANKS_PER_HOST = 8


def load_large_job(store: Store, job: str, ranks: int, start_ns: int) -> None:
    """Put a job into a store in which each rank sends to eight others, and one pair is slow."""
    who, sent = {"job": job, "attempt": 0, "comm": 9}, {"ts_ns": start_ns + SECOND, "bytes": 1 << 20}
    hosts = [f"{job}-h{rank // _RANKS_PER_HOST}" for rank in range(ranks)]
    members = [
        make(Comm, host=hosts[rank], rank=rank, world_rank=rank, gpu=rank % 8, nranks=ranks, init_ns=start_ns, **who)
        for rank in range(ranks)
    ]
    wires = [
        make(TransferStat, host=hosts[rank], rank=rank, peer=peer, wire_ns=_wire_ns(rank, peer), **who, **sent)
        for rank in range(ranks)
        for peer in ((rank + step) % ranks for step in PEERS)
    ]
    beats: list[Agent] = [heartbeat(host, start_ns + 10 * SECOND) for host in dict.fromkeys(hosts)]
    put(store, [*members, *wires, *beats])


def _wire_ns(rank: int, peer: int) -> int:
    return 5_000_000 if (rank, peer) == SLOW else 1_000_000 + (rank * 7919 + peer) % 50_000
