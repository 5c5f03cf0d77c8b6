"""A verdict is said alike everywhere: one sentence to grasp at once, and the cost as far as it is known."""

from fnmatch import fnmatchcase
from itertools import product
from typing import Any

import pytest

from lockstep.clock import NS_PER_S
from lockstep.verdict import Impact, Incident, judge_severity
from lockstep.words import CLASSES, fault_words, headline
from tests.lockstep.state.build import incident, verdict

T0 = 1_794_814_664 * NS_PER_S  # 2026-11-16 07:37:44


def lasting(closed_ns: int | None = None, **changes: object) -> Incident:
    told = incident("i1", job="train")
    seen = told.verdict.model_copy(update={"since_ns": T0, **changes})
    return told.model_copy(update={"verdict": seen, "closed_ns": closed_ns})


SINCE = "2026-11-16 07:37 UTC"
HANGS: dict[str, Any] = {"fault_class": "noncomm_hang", "component": "host:h3", "impact": Impact(ranks_waiting=1)}
WHOLE: dict[str, Any] = {"fault_class": "global_slow", "component": "job:train", "impact": Impact(ranks_waiting=0)}
CRASH: dict[str, Any] = {"fault_class": "crash", "component": "gpu:h3/1"}


@pytest.mark.parametrize(
    ("told", "names_job", "expected"),
    [
        (
            lasting(),
            False,
            f"nic:h3/eth1 slows what it sends since {SINCE}: steps take 1.42 times as long, 255 ranks wait",
        ),
        (lasting(**HANGS), True, f"host:h3 hangs in job train since {SINCE}: the job stands still, 1 rank waits"),
        (lasting(**WHOLE), True, f"job:train is slower as a whole since {SINCE}: what it costs is not known"),
        (lasting(T0 + 600 * NS_PER_S), False, "* from 2026-11-16 07:37 to 07:47 UTC*"),
        (lasting(T0 + 86_400 * NS_PER_S), False, "* from 2026-11-16 07:37 to 2026-11-17 07:37 UTC*"),
        (lasting(**CRASH), False, f"gpu:h3/1 crashed at {SINCE}:*"),  # which lasts no time
    ],
)
def test_headline_has_the_part_what_it_does_since_when_and_what_it_costs(
    told: Incident, names_job: bool, expected: str
) -> None:
    assert fnmatchcase(headline(told, names_job=names_job), expected)


def test_every_class_has_words_whatever_the_side() -> None:
    for fault_class, side in product(CLASSES, ("tx", "rx", None)):
        assert fault_words(verdict("train").model_copy(update={"fault_class": fault_class, "side": side}))
    link = verdict("train").model_copy(update={"fault_class": "comm_hang", "component": "link:a--b", "side": "tx"})
    assert fault_words(link) == "hangs communication"  # which end sends is not said by a link's side


def test_hour_of_waiting_costs_what_is_missing_of_the_speed() -> None:
    slow = verdict("train").model_copy(update={"impact": Impact(step_time_ratio=2.0, ranks_waiting=63, gpus=64)})
    assert slow.lost_per_hour == pytest.approx(32.0)
    assert slow.model_copy(update={"fault_class": "crash"}).lost_per_hour == 64.0
    deadlock = Impact(stands_still=True, ranks_waiting=63, gpus=64, gpu_hours=0.7)
    stopped = slow.model_copy(update={"fault_class": "software", "impact": deadlock})
    assert (stopped.lost_per_hour, stopped.lost_gpu_hours()) == (64.0, 0.7)
    unknown = slow.model_copy(update={"impact": Impact(ranks_waiting=64)})
    assert (unknown.lost_per_hour, unknown.lost_gpu_hours()) == (None, None)


def test_closed_incident_says_what_it_did_and_cost_over_all_of_its_time() -> None:
    healed = Impact(step_time_ratio=1.0, peak_ratio=2.1, mean_ratio=1.6, ranks_waiting=63, gpus=64, gpu_hours=0.31)
    closed = lasting(T0 + 600 * NS_PER_S, impact=healed).model_copy(update={"state": "closed"})
    assert headline(closed).endswith(": steps took 1.60 times as long, 63 ranks waited, 0.31 GPU-hours lost")


def test_verdict_of_the_version_before_is_charged_at_its_last_rate() -> None:
    stored = {"step_time_ratio": 1.25, "ranks_waiting": 999, "gpu_hours": None}
    old = verdict("train").model_copy(update={"impact": Impact.model_validate(stored), "since_ns": 0})
    assert old.model_copy(update={"last_seen_ns": 3_600 * NS_PER_S}).lost_gpu_hours() == pytest.approx(200.0)
    assert old.model_copy(update={"last_seen_ns": 0}).lost_gpu_hours(1_800 * NS_PER_S) == pytest.approx(100.0)


def test_severity_is_what_the_fault_does_to_the_job_at_its_worst() -> None:
    assert judge_severity(True, None) == "critical"
    assert [judge_severity(False, peak) for peak in (3.0, 1.4, 1.01, None)] == [
        "critical",
        "warning",
        "info",
        "warning",
    ]
