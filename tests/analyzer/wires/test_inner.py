"""NVLink is judged by the fastest rank of communicators inside a host."""

import numpy as np

from analyzer.wires.inner import judge_inner
from analyzer.wires.judging import WireOptions
from analyzer.wires.matrix import InnerMatrix
from analyzer.wires.memory import WireMemory
from tests.analyzer.wires.build import HOSTS, MS, context, facts, inner, look_at, ring, waits


def judge(*slow: int, times: float = 5.0, hosts: int = HOSTS) -> InnerMatrix | None:
    rows = [inner(host, (2 + 0.01 * (host % 3)) * MS * (times if host in slow else 1.0)) for host in range(hosts)]
    return judge_inner(facts(inner=rows).inner, WireMemory(), context(), WireOptions())[0]


def test_group_that_takes_longer_than_others_is_slow() -> None:
    matrix = judge(5)
    assert matrix is not None
    assert [matrix.groups[place].host for place in np.flatnonzero(matrix.hot)] == ["h5"]
    assert matrix.ratio[5] > 4.5


def test_groups_that_are_alike_are_not() -> None:
    matrix = judge()
    assert matrix is not None
    assert not matrix.hot.any()


def test_single_host_has_nobody_to_be_held_against() -> None:
    assert judge(hosts=1) is None


def test_groups_of_other_sizes_are_not_compared() -> None:
    rows = [inner(host, 2 * MS) for host in range(HOSTS)] + [inner(20, 9 * MS, ranks=4)]
    matrix, _ = judge_inner(facts(inner=rows).inner, WireMemory(), context(), WireOptions())
    assert matrix is not None
    assert not matrix.hot.any()


def test_matrix_carries_what_is_inside_hosts() -> None:
    rows = [inner(host, (10 if host == 3 else 2) * MS) for host in range(HOSTS)]
    matrix = look_at(facts(waits(ring()), inner=rows))
    assert matrix is not None
    assert matrix.inner is not None
    assert matrix.inner.hot.tolist() == [host == 3 for host in range(HOSTS)]


def test_job_without_wires_still_has_its_inside() -> None:
    rows = [inner(host, (10 if host == 3 else 2) * MS) for host in range(HOSTS)]
    matrix = look_at(facts(inner=rows))
    assert matrix is not None
    assert matrix.wires == ()
    assert matrix.inner is not None
