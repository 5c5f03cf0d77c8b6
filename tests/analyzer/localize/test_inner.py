"""What is slow inside a host is traced to an NVLink where its counters tell, else to the host."""

from dataclasses import replace

import numpy as np

from analyzer.delay_matrix.matrix import InnerGroup, InnerMatrix
from analyzer.evidence.observations import NO_EVIDENCE, Evidence, Observation, gather_evidence
from analyzer.localize.faults import find_faults
from analyzer.windows.window import Finding
from tests.analyzer.build import fabric, ring
from tests.analyzer.localize.build import context, matrix, pairs, times

ALL = tuple(range(8))


def inner(slow: dict[InnerGroup, float], *more: InnerGroup) -> InnerMatrix:
    """Return groups of all GPUs of each host and some more, of which some take longer than usual."""
    groups = (*(InnerGroup(f"h{host}", ALL) for host in range(8)), *more)
    ratio = np.array([slow.get(group, 1.0) for group in groups])
    return InnerMatrix(groups, ratio, np.log(ratio) / 0.02, ratio > 1.25)


def find(groups: InnerMatrix, evidence: Evidence = NO_EVIDENCE, starved: tuple[str, ...] = ()) -> list[Finding]:
    calm = matrix(pairs(ring()), times(1.0, lambda pair: False), starved=starved)
    return find_faults(replace(calm, inner=groups), evidence, context(fabric()))


def test_slow_group_without_a_sign_is_its_host_unless_that_starves() -> None:
    (found,) = find(inner({InnerGroup("h5", ALL): 6.0}))
    assert (found.fault_class, found.component) == ("comm_slow", "host:h5")
    assert "nvlink:h5/2" in found.ambiguous_with
    assert found.likelihood > 0.9
    assert found.may_isolate
    assert find(inner({InnerGroup("h5", ALL): 6.0}), starved=("h5",)) == []


def test_nvlink_is_named_by_its_errors_or_by_the_groups_that_share_it() -> None:
    observation = Observation("nvlink:h5/2", 3.0, {"what": "gpu:h5/2 counted errors on its NVLinks"})
    (found,) = find(inner({InnerGroup("h5", ALL): 6.0}), gather_evidence([observation]))
    assert (found.component, found.ambiguous_with) == ("nvlink:h5/2", ())
    assert "counted errors" in found.reason
    halves = [InnerGroup("h5", gpus) for gpus in ((0, 1, 2, 3), (2, 6), (1, 5), (3, 7), (0, 4))]
    slow = {group: 6.0 for group in (InnerGroup("h5", ALL), *halves) if 2 in group.gpus}
    (found,) = find(inner(slow, *halves))
    assert found.component == "nvlink:h5/2"
    assert found.likelihood > 0.5
