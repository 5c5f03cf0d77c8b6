"""Facts of a window say how much of the job was seen and how fast it went."""

from dataclasses import replace

import pytest

from analyzer.context import End
from tests.analyzer.build import facts


def test_end_is_written_as_in_verdicts() -> None:
    assert str(End("h0", "eth1")) == "h0/eth1"
    assert str(End("h0", None)) == "h0"


def test_coverage_is_the_share_of_hosts_that_spoke() -> None:
    assert facts().coverage == 1.0
    assert facts(hosts=8, silent=["h1", "h2"]).coverage == 0.75


def test_hosts_that_never_spoke_are_not_covered() -> None:
    assert replace(facts(hosts=6, silent=["h1"]), nodes=8).coverage == pytest.approx(5 / 8)
    assert replace(facts(hosts=6), nodes=4).coverage == 1.0, "the largest communicator need not span the job"


def test_nothing_is_covered_of_a_job_without_hosts() -> None:
    assert facts(hosts=0).coverage == 0.0


def test_pace_is_operations_a_second_and_rank() -> None:
    assert facts(operations=640).pace == pytest.approx(640 / 64 / 5)


def test_pace_is_unknown_without_operations_or_ranks() -> None:
    assert facts(operations=0).pace is None
    assert replace(facts(), ranks=0).pace is None
