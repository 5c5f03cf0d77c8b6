"""A stored policy wins over the settings, has a version, and is never overwritten by who saw an older one."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from lockstep.errors import ChangedMeanwhile
from lockstep.sections import PlannerSettings
from lockstep.state import policies
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import list_audit
from lockstep.state.policies import (
    PLANNER,
    PlannerPolicy,
    PolicyVersion,
    current_policy,
    find_policy,
    list_policy_versions,
    policy_of,
    save_policy,
)

USUAL = policy_of(PlannerSettings())


def save(db: ControlDatabase, after: int, **changed: object) -> PolicyVersion:
    policy = PlannerPolicy.model_validate(USUAL.model_dump() | changed)
    return save_policy(db, PLANNER, policy, after=after, who="ann", why="told so", now_ns=5 + after)


def test_policy_of_the_settings_has_their_values() -> None:
    wanted = PlannerSettings(nodes_out=5, spares=("s1",), modes={"replace": "propose"}, gpu_hour_price=2.0)
    policy = policy_of(wanted)
    assert (policy.nodes_out, policy.spares, policy.modes) == (5, ("s1",), {"replace": "propose"})
    assert (policy.gpu_hour_price, policy.share_of_block) == (2.0, wanted.share_of_block)


def test_versions_follow_each_other_are_bounded_and_another_version_is_refused(
    db: ControlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (current_policy(db), find_policy(db, PLANNER)) == (None, None), "the settings hold"
    made = [save(db, after, nodes_out=after) for after in range(3)]
    assert list_policy_versions(db, PLANNER, 10) == made[::-1]
    assert find_policy(db, PLANNER) == made[-1]
    assert (made[-1].version, made[-1].who, made[-1].why, made[-1].changed_ns) == (3, "ann", "told so", 7)
    for after in (0, 2, 4, 7):
        with pytest.raises(ChangedMeanwhile, match=f"at version 3 by now, not {after}: read it again"):
            save(db, after, nodes_out=9)
    monkeypatch.setattr(policies, "MOST_VERSIONS", 2)
    made.append(save(db, 3))
    assert list_policy_versions(db, PLANNER, 10) == made[:1:-1]


def test_of_two_at_once_one_wins(db: ControlDatabase) -> None:
    def try_to(nodes_out: int) -> bool:
        try:
            save(db, 0, nodes_out=nodes_out)
        except ChangedMeanwhile:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        won = list(threads.map(try_to, range(4)))
    assert sum(won) == 1
    stored = current_policy(db)
    assert stored is not None
    assert won[stored.nodes_out]


def test_audit_says_what_changed(db: ControlDatabase) -> None:
    save(db, 0)
    save(db, 1, nodes_out=1, spares=("s1",))
    save(db, 2, nodes_out=1, spares=("s1",))
    reasons = [line.why for line in list_audit(db, 3)]
    assert reasons[:2] == ["told so: nothing changed", 'told so: nodes_out is now 1; spares is now ["s1"]']
    assert "share_of_block is now 0.25" in reasons[2]
