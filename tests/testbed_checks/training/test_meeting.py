"""A rank knows its number and where to meet from Slurm, from torchrun, or not at all."""

from pathlib import Path

import pytest

from lockstep.errors import BadInput
from tests.testbed.training.meeting import Seat, find_seat

SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "3", "SLURM_JOB_ID": "42"}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_slurm_comes_before_torchrun_a_folder_before_an_address_and_a_requeued_job_meets_elsewhere() -> None:
    assert find_seat(TORCHRUN, None) == Seat(0, 2, ["tcp://10.0.0.1:29500"])
    seat = find_seat({**TORCHRUN, **SLURM}, Path("/shared"))

    assert (seat.rank, seat.ranks) == (1, 3)
    assert seat.addresses[0].startswith("file:///shared/meeting-42-")
    assert len(set(seat.addresses)) == 3
    first, again = (find_seat({**SLURM, "SLURM_RESTART_COUNT": count}, Path("/shared")) for count in "01")

    assert not set(first.addresses) & set(again.addresses)


def test_rank_without_number_or_place_says_what_is_missing() -> None:
    with pytest.raises(BadInput, match="which rank is this"):
        find_seat({"RANK": "0"}, Path("/shared"))
    with pytest.raises(BadInput, match="where do the ranks meet"):
        find_seat(SLURM, None)
