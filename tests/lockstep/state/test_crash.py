"""A process that is killed leaves whole transactions behind and locks nobody out."""

import pytest

from lockstep.errors import NotPresent
from lockstep.state.database import open_control
from lockstep.state.incidents import get_incident, list_incidents, save_incidents
from tests.lockstep.state.build import incident
from tests.lockstep.state.child import child, heard


def test_kill_in_mid_transaction_leaves_nothing_half_written(control_url: str) -> None:
    with child("stop_half_way", control_url) as process:
        assert heard(process) == "in mid-transaction"
        process.kill()
        process.wait()
    with open_control(control_url) as db:
        with pytest.raises(NotPresent):
            get_incident(db, "half")
        # The dead process held a lock on this very id; writing it shows that the lock went with the process.
        save_incidents(db, [incident("half")], None)
        assert list_incidents(db) == [incident("half")]


def test_kill_at_any_moment_keeps_what_was_acknowledged_in_whole_pairs(control_url: str) -> None:
    with child("save_pairs", control_url) as process:
        acknowledged = [heard(process) for _ in range(20)]
        process.kill()
        process.wait()
    with open_control(control_url) as db:
        found = {saved.id for saved in list_incidents(db, limit=100_000)}
    pairs = {number: {f"left{number}", f"right{number}"} for number in map(int, acknowledged)}
    assert all(pair <= found for pair in pairs.values())
    assert {key.removeprefix("left") for key in found if key.startswith("left")} == {
        key.removeprefix("right") for key in found if key.startswith("right")
    }
