"""A question begins with what is known of the job, and says of each figure where it is from."""

from pathlib import Path

from api.dashboard.known import SUPPOSED_AGE_MIN, find_free, read_known
from api.reading.checkpoints import open_folders
from lockstep.figures import lasting
from lockstep.planner_settings import PlannerSettings
from tests.planner.recovery.checkpoints.build import NOW_NS, OLD_NS, copy_real

NO_SPARES = find_free((), (), ())


def test_age_of_the_newest_complete_checkpoint_is_the_default(tmp_path: Path) -> None:
    saved = copy_real("dcp", tmp_path / "train")
    folders = open_folders(PlannerSettings(checkpoints=f"{tmp_path}/{{job}}"))
    known = read_known(folders, "train", None, NO_SPARES, NOW_NS)
    assert known.checkpoint_min == round((NOW_NS - OLD_NS) / 60e9)
    age = lasting((NOW_NS - OLD_NS) / 1e9)
    assert known.checkpoint_from == (f"{saved}/step-200, saved {age} ago, the newest that is verified to be complete")
    assert known.is_this(known.checkpoint_min, known.load_s)
    assert not known.is_this(known.checkpoint_min + 1, known.load_s)


def test_where_no_checkpoint_is_known_one_is_supposed_and_it_is_said_why(tmp_path: Path) -> None:
    unset = read_known(None, "train", None, NO_SPARES, NOW_NS)
    assert (unset.checkpoint_min, unset.checkpoint_from) == (
        SUPPOSED_AGE_MIN,
        "supposed: planner.checkpoints is not set",
    )
    folders = open_folders(PlannerSettings(checkpoints=f"{tmp_path}/{{job}}"))
    empty = read_known(folders, "train", None, NO_SPARES, NOW_NS)
    assert empty.checkpoint_from == f"supposed: no checkpoint in {tmp_path}/train is verified to be complete"
    assert not empty.is_this(empty.checkpoint_min, empty.load_s)


def test_spares_that_are_out_or_in_use_are_not_free() -> None:
    assert find_free(("a", "b", "c"), {"a"}, {"b"}) == (
        ("c",),
        "1 of 3 in planner.spares: a is out of service, b runs a job",
    )
    assert find_free(("a",), (), ())[1] == "1 of 1 in planner.spares, none of them out of service or in use"
    assert NO_SPARES == ((), "planner.spares names none")
