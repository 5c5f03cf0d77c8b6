"""Which modules can be recovered, and what a snapshot is worth."""

from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from lockstep.errors import BadInput
from lockstep.training.state import Snapshots, adopt_state, check_model, pack, take_state, unpack

pytestmark = pytest.mark.slow  # importing torch takes each worker 4 s


@pytest.fixture
def lone_group(tmp_path: Path) -> object:
    """A default group of this process alone, as wrappers want one."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(steps):
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_wrapped_and_sharded_models_are_refused_with_what_to_do(lone_group: object) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    with pytest.raises(BadInput, match=r"DistributedDataParallel.*hand over its \.module"):
        check_model(wrapped)
    check_model(wrapped.module)
    sharded = fully_shard(nn.Linear(3, 2), mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(BadInput, match=r"parameter weight is a DTensor.*use a checkpoint"):
        check_model(sharded)


def test_a_packed_state_goes_on_where_it_was_taken() -> None:
    model, optimizer = trained(3)
    other, others = trained(0)
    adopt_state(unpack(pack(take_state(model, optimizer))), other, others)
    for one, its in ((model, optimizer), (other, others)):
        one(torch.ones(3)).sum().backward()
        its.step()
        its.zero_grad()
    assert torch.equal(model.weight, other.weight)


def newest(snapshots: Snapshots) -> tuple[str, int]:
    found = snapshots.newest()
    assert found is not None
    return found.source, found.step


def test_the_newest_readable_snapshot_counts_and_memory_is_nearer_than_disk(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path / "memory", tmp_path / "disk")
    assert snapshots.newest() is None
    state = take_state(*trained(1))
    snapshots.save("disk", 4, state)
    snapshots.save("memory", 4, state)
    for step in (5, 6, 7):
        snapshots.save("memory", step, state)
    assert sorted(file.name[-4:] for file in (tmp_path / "memory").iterdir()) == ["6.pt", "7.pt"]
    (tmp_path / "memory" / "step-000000000007.pt").write_bytes(b"torn")
    assert newest(snapshots) == ("memory", 6)
    for file in (tmp_path / "memory").iterdir():
        file.unlink()
    snapshots.save("memory", 4, state)
    assert newest(snapshots) == ("memory", 4)
