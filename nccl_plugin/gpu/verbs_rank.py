# ruff: noqa: T201 -- a program that is read by verbs.py
"""One rank of a torch job that checks every byte of what NCCL brings: all-reduce of 8 B to 16 MiB, and all-to-all."""

import json
import os
import time

import torch
import torch.distributed as dist

SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20)  # bytes
ROUNDS = 5


def check_all_reduce(rank: int, ranks: int, size: int) -> dict[str, object]:
    """The slowest of some rounds, and whether all had the right sums; numbers that float32 has exactly."""
    pattern = torch.arange(size // 4, device="cuda", dtype=torch.float32) % 97
    wanted = pattern * ranks + ranks * (ranks - 1) / 2
    seconds, is_right = [], True
    for _ in range(ROUNDS):
        data = pattern + rank
        torch.cuda.synchronize()
        began = time.monotonic()
        dist.all_reduce(data)
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - began)
        is_right &= bool(torch.equal(data, wanted))
    return {"op": "all_reduce", "bytes": size, "right": is_right, "ms": round(sorted(seconds)[ROUNDS // 2] * 1e3, 3)}


def check_all_to_all(rank: int, ranks: int) -> dict[str, object]:
    sent = torch.full((ranks * 1000,), float(rank), device="cuda")
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    torch.cuda.synchronize()
    wanted = torch.arange(ranks, device="cuda").repeat_interleave(1000).float()
    return {"op": "all_to_all", "bytes": got.numel() * 4, "right": bool(torch.equal(got, wanted))}


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(0)
    print(json.dumps({"op": "start", "torch": torch.__version__, "nccl": torch.cuda.nccl.version()}), flush=True)
    dist.init_process_group("nccl", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=ranks)
    for size in SIZES:
        print(json.dumps(check_all_reduce(rank, ranks, size)), flush=True)
    print(json.dumps(check_all_to_all(rank, ranks)), flush=True)
    dist.destroy_process_group()
    print(json.dumps({"op": "end"}), flush=True)


if __name__ == "__main__":
    main()
