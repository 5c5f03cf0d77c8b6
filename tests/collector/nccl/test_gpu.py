"""The GPU of a rank is told by what its process was given to see, and is unknown rather than wrong."""

from pathlib import Path

import pytest

from collector.nccl.ownership import find_gpu, host_gpus

UUIDS = [f"GPU-{number}aaaaaaa-1111-2222-3333-444444444444" for number in range(4)]


SHOWN: dict[tuple[str | None, int | None], int | None] = {
    (None, 2): 2,
    (None, None): None,
    (None, 4): None,  # there are only four
    ("2,3", 1): 3,
    ("2,3", 2): None,
    ("2,3", None): None,
    ("3", 1): 3,  # each rank sees its own only
    (" 1 , 0 ", 0): 1,
    (UUIDS[2], 0): 2,
    ("GPU-3aaa,GPU-1aaa", 1): 1,
    **{(unknown, 0): None for unknown in ("GPU-9", "MIG-5aaa", "void", "-1", ",")},
}


@pytest.mark.parametrize(("given", "expected"), SHOWN.items())
def test_gpu_by_what_cuda_shows(given: tuple[str | None, int | None], expected: int | None) -> None:
    visible, local_rank = given
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert find_gpu(environment, local_rank, UUIDS, is_contained=False) == expected


@pytest.mark.parametrize(
    ("shown", "expected"), [("all", 1), ("3,2", 3), (f"{UUIDS[0]},{UUIDS[2]}", 2), ("void", None), ("2", None)]
)
def test_container_numbers_its_gpus_anew(shown: str, expected: int | None) -> None:
    assert find_gpu({"NVIDIA_VISIBLE_DEVICES": shown}, 1, UUIDS, is_contained=True) == expected
    assert find_gpu({"NVIDIA_VISIBLE_DEVICES": shown}, 1, UUIDS, is_contained=False) == 1


def test_gpus_of_the_host_come_in_the_order_of_their_addresses_and_an_only_one_is_everybodys(tmp_path: Path) -> None:
    for address, uuid in (("0000:41:00.0", UUIDS[1]), ("0000:01:00.0", UUIDS[0]), ("0000:81:00.0", None)):
        folder = tmp_path / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        folder.joinpath("information").write_text(f"Model: \t NVIDIA H200\nGPU UUID: \t {uuid}\n" if uuid else "")
    assert host_gpus(tmp_path) == [UUIDS[0], UUIDS[1], ""]
    assert host_gpus(tmp_path / "none") == []
    assert find_gpu({}, None, UUIDS[:1], is_contained=False) == 0
