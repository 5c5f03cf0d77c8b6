"""Diagnoses for tests of the report: incidents, a delay matrix over hosts in a ring, and step times."""

from typing import Any

import numpy as np

from analyzer.delay_matrix.matrix import DelayMatrix, Pair
from analyzer.windows.window import End
from cli.report import OnlyIncidents, StepTimes
from lockstep.clock import NS_PER_S
from lockstep.verdict import Impact, Incident
from tests.lockstep.state.build import incident

T0 = 1_700_000_000 * NS_PER_S


def found(
    since_s: float = 20, last_s: float = 65, flaps: int = 0, **words: Any
) -> Incident:  # Any: fields of Verdict
    """An incident on nic:h3/eth1 from second 20 to 65; words replace fields of its verdict."""
    told = incident("i1", job="train")
    times = {"since_ns": T0 + int(since_s * NS_PER_S), "last_seen_ns": T0 + int(last_s * NS_PER_S)}
    verdict = told.verdict.model_copy(update=times | words)
    return told.model_copy(update={"verdict": verdict, "flaps": flaps})


def cost(ratio: float | None, waiting: int) -> Impact:
    return Impact(step_time_ratio=ratio, ranks_waiting=waiting, gpus=waiting)


def matrix(hosts: int = 8, nics: int = 4, slow: tuple[int, int] | None = (3, 1)) -> DelayMatrix:
    """Every NIC sends to the same NIC of the next host; one, when told, at four times the normal delay."""
    ends = [(host, nic) for host in range(hosts) for nic in range(nics)]
    pairs = tuple(
        Pair(End(f"h{host}", f"eth{nic}"), End(f"h{(host + 1) % hosts}", f"eth{nic}")) for host, nic in ends
    )
    ratio = np.array([4.0 if end == slow else 1.0 for end in ends])
    ones = np.ones(len(ratio))
    return DelayMatrix(
        *(pairs, frozenset({"ib"}), ratio, (ratio - 1) / 0.05, ratio > 2, 0.02 * ratio),
        *(0 * ones, 9 * ones, ones, ones < 1, ones > 0),
    )


def steps(*lengths: float) -> StepTimes:
    """Steps that begin every second."""
    return [(T0 + number * NS_PER_S, length) for number, length in enumerate(lengths)]


def described(*incidents: Incident, of: DelayMatrix | None = None, step_times: StepTimes = ()) -> OnlyIncidents:
    return OnlyIncidents(incidents, of, step_times)
