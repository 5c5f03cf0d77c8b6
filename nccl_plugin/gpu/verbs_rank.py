# ruff: noqa: T201 -- a program that is read by verbs.py
"""One rank of a torch job that checks every byte of what NCCL brings: all-reduce of 8 B to 256 MiB, and others.

MOST_BYTES in its environment bounds the all-reduces.
"""

import json
import os
import time

import torch
import torch.distributed as dist

SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)  # bytes
ROUNDS, LARGE = 5, 16 << 20  # rounds of what is not larger; of what is, one


def check_all_reduce(rank: int, ranks: int, size: int) -> dict[str, object]:
    """The median of some rounds, and whether all had the right sums; numbers that float32 has exactly."""
    pattern = torch.arange(size // 4, device="cuda", dtype=torch.float32) % 97
    wanted = pattern * ranks + ranks * (ranks - 1) / 2
    seconds, is_right = [], True
    for _ in range(ROUNDS if size <= LARGE else 1):
        data = pattern + rank
        torch.cuda.synchronize()
        began = time.monotonic()
        dist.all_reduce(data)
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - began)
        is_right &= bool(torch.equal(data, wanted))
    return {
        "op": "all_reduce",
        "bytes": size,
        "right": is_right,
        "ms": round(sorted(seconds)[len(seconds) // 2] * 1e3, 3),
    }


def check_all_to_all(rank: int, ranks: int, count: int) -> dict[str, object]:
    """So many numbers from each rank to each."""
    sent = torch.full((ranks * count,), float(rank), device="cuda")
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    torch.cuda.synchronize()
    wanted = torch.arange(ranks, device="cuda").repeat_interleave(count).float()
    return {"op": "all_to_all", "bytes": got.numel() * 4, "right": bool(torch.equal(got, wanted))}


def check_send_and_receive(rank: int, ranks: int, count: int) -> dict[str, object]:
    """Each rank sends to the next and receives from the one before."""
    sent, got = torch.full((count,), float(rank), device="cuda"), torch.empty(count, device="cuda")
    both = (
        dist.P2POp(dist.isend, sent, (rank + 1) % ranks),
        dist.P2POp(dist.irecv, got, (rank - 1) % ranks),
    )
    for work in dist.batch_isend_irecv(list(both)):
        work.wait()
    torch.cuda.synchronize()
    is_right = bool((got == (rank - 1) % ranks).all())
    return {"op": "send_receive", "bytes": count * 4, "right": is_right}


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(0)
    print(json.dumps({"op": "start", "torch": torch.__version__, "nccl": torch.cuda.nccl.version()}), flush=True)
    dist.init_process_group("nccl", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=ranks)
    most = int(os.environ.get("MOST_BYTES", SIZES[-1]))
    for size in (each for each in SIZES if each <= most):
        print(json.dumps(check_all_reduce(rank, ranks, size)), flush=True)
    for count in (1000, 1 << 18):
        print(json.dumps(check_all_to_all(rank, ranks, count)), flush=True)
        print(json.dumps(check_send_and_receive(rank, ranks, count)), flush=True)
    dist.destroy_process_group()
    print(json.dumps({"op": "end"}), flush=True)


if __name__ == "__main__":
    main()
