"""PyTorch's words for operations and data types, in NCCL's words.

The words are those that torch.distributed.flight_recorder of PyTorch 2.13 knows, without the `nccl:` before them.
"""

from collections.abc import Sequence
from math import prod

FUNCS = {
    "all_reduce": "AllReduce",
    "all_reduce_barrier": "AllReduce",
    "allreduce_coalesced": "AllReduce",
    "all_gather": "AllGather",
    "_all_gather_base": "AllGather",
    "all_gather_into_tensor_coalesced": "AllGather",
    "ALLGATHER_coalesced": "AllGather",
    "all_gather_single": "AllGather",
    "all_gather_v": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "_reduce_scatter_base": "ReduceScatter",
    "reduce_scatter_tensor_coalesced": "ReduceScatter",
    "REDUCE_SCATTER_coalesced": "ReduceScatter",
    "reduce_scatter_single": "ReduceScatter",
    "reduce_scatter_v": "ReduceScatter",
    "broadcast": "Broadcast",
    "_broadcast_oop": "Broadcast",
    "reduce": "Reduce",
    "_reduce_oop": "Reduce",
    "all_to_all": "AlltoAll",
    "all_to_all_single": "AlltoAll",
    "all_to_all_v_single": "AlltoAll",
    "gather": "Gather",
    "scatter": "Scatter",
    "send": "Send",
    "recv": "Recv",
}

# PyTorch's name: NCCL's name and the bytes of one value.
DTYPES = {
    "Byte": ("ncclUint8", 1),
    "Bool": ("ncclUint8", 1),
    "Char": ("ncclInt8", 1),
    "Int": ("ncclInt32", 4),
    "Long": ("ncclInt64", 8),
    "Half": ("ncclFloat16", 2),
    "BFloat16": ("ncclBfloat16", 2),
    "Float": ("ncclFloat32", 4),
    "Double": ("ncclFloat64", 8),
    "Float8_e4m3fn": ("ncclFloat8e4m3", 1),
    "Float8_e5m2": ("ncclFloat8e5m2", 1),
}


def nccl_dtype(dtypes: Sequence[str]) -> str | None:
    """Return NCCL's name of the data type of all these tensors, or None where they differ or it has none."""
    names = {DTYPES[dtype][0] if dtype in DTYPES else None for dtype in dtypes}
    return names.pop() if len(names) == 1 else None


def size_of(shapes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> int | None:
    """Return the bytes of tensors of these shapes, or None where shapes or data types do not tell."""
    kinds = list(dtypes) * len(shapes) if len(dtypes) == 1 else list(dtypes)
    if not shapes or len(kinds) != len(shapes) or any(kind not in DTYPES for kind in kinds):
        return None
    if any(length < 0 for shape in shapes for length in shape):
        return None
    size = sum(prod(shape) * DTYPES[kind][1] for shape, kind in zip(shapes, kinds, strict=True))
    return size if size < 1 << 64 else None
