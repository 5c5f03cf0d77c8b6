"""Hosts are off by what the story allows, and what they say of their clocks is true within the bound they give."""

import numpy as np
from numpy.testing import assert_array_equal

from lockstep.clock import NS_PER_S
from lockstep.sim.host_clocks import host_clocks
from lockstep.sim.story import Clocks, JobShape
from tests.lockstep.sim.build import cluster, story
from tests.lockstep.sim.following import follow, rows_at

SKEWED = story(
    clocks=Clocks(skew_ms=10.0, drift_ppm=50.0, known_to_us=200.0),
    cluster=cluster(spares=2),
    job=JobShape(compute_ms=900.0),
)


def test_offsets_and_drifts_fill_the_range_that_the_story_names() -> None:
    drawn = [host_clocks(SKEWED, seed) for seed in range(50)]
    offsets_ms = np.concatenate([offset_ns for offset_ns, _ in drawn]) / 1e6
    drifts_ppm = np.concatenate([drift for _, drift in drawn]) * 1e6
    assert len(offsets_ms) == len(drifts_ppm) == 50 * 6
    assert 9.0 < np.abs(offsets_ms).max() <= 10.0
    assert 45.0 < np.abs(drifts_ppm).max() <= 50.0
    assert (offsets_ms < 0).any()
    assert (drifts_ppm < 0).any()


def test_same_seed_gives_the_same_clocks() -> None:
    for one, other in zip(host_clocks(SKEWED, 3), host_clocks(SKEWED, 3), strict=True):
        assert_array_equal(one, other)
    assert (host_clocks(SKEWED, 3)[0] != host_clocks(SKEWED, 4)[0]).all()


def test_clocks_are_exact_unless_the_story_says_otherwise() -> None:
    offset_ns, drift = host_clocks(story(), 1)
    assert not offset_ns.any()
    assert not drift.any()


def test_what_hosts_say_of_their_clocks_is_true_within_its_bound() -> None:
    tables, (offset_ns, drift) = follow(SKEWED, 30), host_clocks(SKEWED, 1)
    missed_ns = []
    for second in (0, 10, 20, 30):
        rows = rows_at(tables, "clocks", second)
        assert [row["host"] for row in rows] == [f"h{host}" for host in range(6)]
        assert {(row["error_ns"], row["source"]) for row in rows} == {(200_000, "ntp")}
        truth_ns = offset_ns + drift * second * NS_PER_S
        missed_ns += [row["offset_ns"] - true_ns for row, true_ns in zip(rows, truth_ns, strict=True)]
    assert 0 < np.abs(missed_ns).max() <= 200_001  # the truth is rounded to nanoseconds
    assert len(set(missed_ns)) == len(missed_ns)
