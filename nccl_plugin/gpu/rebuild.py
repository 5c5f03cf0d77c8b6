# ruff: noqa: T201, TID251 -- a program for people, on a machine without our packages
"""How long real NCCL takes to leave a frozen peer, to go on without it, and to take a new one in.

`python3 nccl_plugin/gpu/rebuild.py` on a machine with torch and one GPU: four ranks on it talk over loopback sockets.
One stops itself; the others abort their communicator as a planner would tell them to, make one of three, then one of
four with a new process, which gets a gibibyte of state. Printed are the seconds of each rank.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

WORLD = 4
FROZEN = WORLD - 1
PORT = 29555
PATIENCE_S = 120
ELEMENTS = 16 << 20  # of 4 bytes: 64 MiB
STATE_ELEMENTS = 256 << 20  # 1 GiB
ALONE_ON_ITS_HOST = {
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # torch would end the process that we want to go on
}


class Rank:
    """One rank; its communicators meet through a store that outlives them."""

    def __init__(self, number: int, is_new: bool) -> None:
        import torch
        from torch import distributed

        self.torch, self.distributed, self.number = torch, distributed, number
        torch.cuda.set_device(0)
        patience = timedelta(seconds=PATIENCE_S)
        is_master = number == 0 and not is_new
        self.store = distributed.TCPStore("127.0.0.1", PORT, None, is_master, patience, wait_for_workers=False)
        self.values = torch.ones(ELEMENTS, device="cuda")

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Print how long something took, the GPU's work included."""
        begin = time.monotonic()
        yield
        self.torch.cuda.synchronize()
        print(f"rank {self.number}: {what}: {time.monotonic() - begin:.3f} s", flush=True)

    def meet(self, name: str, world: int) -> None:
        """Make a communicator and use it once: NCCL connects then."""
        with self.timed(f"{name}: communicator and first all-reduce"):
            store = self.distributed.PrefixStore(name, self.store)
            self.distributed.init_process_group("nccl", store=store, rank=self.number, world_size=world)
            self.distributed.all_reduce(self.values)

    def lose_a_peer(self) -> None:
        """Freeze, or abort the operation that waits for the frozen one."""
        from torch.distributed import distributed_c10d

        if self.number == FROZEN:
            os.kill(os.getpid(), signal.SIGSTOP)
        self.distributed.all_reduce(self.values, async_op=True)
        time.sleep(1.0)  # until somebody has noticed
        begin = time.monotonic()
        distributed_c10d._abort_process_group()
        print(f"rank {self.number}: abort with a frozen peer: {time.monotonic() - begin:.3f} s", flush=True)

    def pass_state(self) -> None:
        """Send a gibibyte from rank 0 to the new rank."""
        state = self.torch.ones(STATE_ELEMENTS, device="cuda")
        self.distributed.barrier()
        if self.number in (0, FROZEN):
            with self.timed("1 GiB of state"):
                self.distributed.send(state, FROZEN) if self.number == 0 else self.distributed.recv(state, 0)


def live(number: int, is_new: bool) -> None:
    """Be a rank from its start to its end."""
    rank = Rank(number, is_new)
    if is_new:
        rank.store.set("a new rank is there", "")
    else:
        rank.meet("in the beginning", WORLD)
        rank.lose_a_peer()
        rank.meet("without it", WORLD - 1)
        rank.store.wait(["a new rank is there"])
        with rank.timed("leave in order"):
            rank.distributed.destroy_process_group()
    rank.meet("with a new one", WORLD)
    rank.pass_state()
    rank.distributed.destroy_process_group()


def start(number: int, is_new: bool) -> "subprocess.Popen[bytes]":
    host = {"NCCL_HOSTID": f"host{number}{'new' if is_new else ''}"}
    words = [sys.executable, __file__, str(number), "new" if is_new else "first"]
    return subprocess.Popen(words, env=os.environ | ALONE_ON_ITS_HOST | host)


def main() -> None:
    """Start the ranks, then a new one in place of the frozen one."""
    ranks = [start(number, is_new=False) for number in range(WORLD)]
    try:
        time.sleep(30)  # far longer than they need until they wait for it
        begin = time.monotonic()
        new = start(FROZEN, is_new=True)
        codes = [new.wait(PATIENCE_S), *(rank.wait(PATIENCE_S) for rank in ranks[:FROZEN])]
        print(f"new process, from start to end: {time.monotonic() - begin:.1f} s; exit codes {codes}")
    finally:
        for rank in ranks:
            rank.kill()


if __name__ == "__main__":
    live(int(sys.argv[1]), sys.argv[2] == "new") if len(sys.argv) == 3 else main()
