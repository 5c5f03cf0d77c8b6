"""A verdict says how sure it is, what it costs and what it would justify, and never more than was seen."""

import json
from dataclasses import replace

import pytest

from analyzer.impact import Account
from analyzer.testimony import doubt, read_second_claims
from analyzer.verdicts import GradingOptions, finding_of, make_verdict
from analyzer.windows.window import Finding
from lockstep.records import CLAIMED_TWICE, Event
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from lockstep.verdict import Verdict
from tests.analyzer.looking import end_of, found, look, world
from tests.builders import SECOND, make, rows


def judged(finding: Finding, *, ratio: float | None = 1.5, silent: tuple[str, ...] = (), since_s: int = 0) -> Verdict:
    context, since_ns = look(silent=silent), end_of(0) - since_s * SECOND
    account = Account(since_ns, since_ns, since_ns, ratio=ratio)
    return make_verdict(finding, since_ns, context, account, GradingOptions())


@pytest.mark.parametrize(
    ("finding", "ratio", "silent"),
    [
        (found(likelihood=0.9), 1.5, ()),
        (replace(found(likelihood=0.99), cap=0.9), 1.5, ()),
        (replace(found(likelihood=0.99), may_isolate=False), 1.5, ()),
        (found("host:h1", "software", likelihood=0.99), 1.5, ()),
        (found("job:train", "global_slow", likelihood=0.99), 1.5, ()),
        (found(likelihood=0.99), 1.01, ()),
        (found(likelihood=0.99), None, ()),
        (found(likelihood=0.99), 1.5, ("h0", "h1", "h2")),
    ],
    ids=["unsure", "unproven", "no one part", "software", "everybody", "cheap", "cost unknown", "half blind"],
)
def test_nothing_is_isolated_without_reason(finding: Finding, ratio: float | None, silent: tuple[str, ...]) -> None:
    assert judged(finding, ratio=ratio, silent=silent).grade == "alert"


def test_stalled_wire_is_isolated_only_after_its_retries() -> None:
    dead = found("nic:h3/eth1", "comm_hang", likelihood=0.97)
    assert [judged(dead, since_s=seconds).grade for seconds in (6, 29, 30)] == ["alert", "alert", "isolate"]
    assert judged(found("host:h2", "noncomm_hang", likelihood=0.97), since_s=6).grade == "isolate"
    assert judged(found(likelihood=0.97)).grade == "isolate"


@pytest.mark.parametrize(
    ("evidence", "grade"),
    [
        ({"kind": "standstill", "told_by": ["h9"]}, "alert"),
        ({"kind": "standstill", "told_by": ["h3", "h9"]}, "isolate"),
        ({"kind": "xid", "host": "h3"}, "isolate"),
        ({"kind": "xid", "host": "h9", "told_by": ["h9"]}, "alert"),
        ({"kind": "process_exit", "host": "h3", "told_by": ["h3"]}, "alert"),
    ],
    ids=["one host", "two hosts", "its own kernel", "the kernel of another", "its own process"],
)
def test_one_host_condemns_no_other(evidence: dict[str, object], grade: str) -> None:
    assert judged(replace(found("host:h3", "crash", likelihood=0.97), evidence=(evidence,))).grade == grade


DEAD: dict[str, tuple[int, tuple[str, ...], tuple[str, ...], str]] = {  # of how many, who are silent, who tells of it
    "all others tell": (3, ("h2",), ("h0", "h1"), "isolate"),
    "one tells, the other does not": (3, ("h2",), ("h0",), "alert"),
    "one tells, and rows of the dead one": (3, ("h2",), ("h0", "h2"), "alert"),
    "another is silent too": (3, ("h1", "h2"), ("h0", "h1"), "alert"),
    "there is only one other": (2, ("h1",), ("h0",), "alert"),
    "one of many tells": (8, ("h7",), ("h0",), "alert"),
    "three of eight are silent": (8, ("h5", "h6", "h7"), ("h0", "h1"), "alert"),
}


@pytest.mark.parametrize("case", DEAD)
def test_a_dead_host_is_isolated_when_enough_others_are_there_and_two_of_them_tell_of_it(case: str) -> None:
    hosts, silent, told_by, grade = DEAD[case]
    dead, told = silent[-1], {"kind": "standstill", "told_by": list(told_by)}
    gone = replace(
        found(f"host:{dead}", "crash", likelihood=0.95), evidence=({"kind": "silence", "host": dead}, told)
    )
    context = look(silent=silent, roster=world(hosts=hosts))
    verdict = make_verdict(gone, end_of(0), context, Account(0, 0, 0), GradingOptions())
    assert (verdict.grade, verdict.coverage) == (grade, round(1 - len(silent) / hosts, 4))


def test_where_two_hosts_claim_a_rank_no_verdict_is_sure(embedded_store: Store) -> None:
    context, sure = look(), found(likelihood=0.97)
    detail = json.dumps({"job": context.job, "attempt": context.attempt})
    claim = make(Event, host="h9", ts_ns=end_of(0) - 1, source="gateway", kind=CLAIMED_TWICE, detail=detail)
    forged = replace(claim, source="test")
    for told, confidence in (((forged, replace(claim, detail='{"job": "other"}')), 0.97), ((claim,), 0.8)):
        embedded_store.insert(TABLE_BY_NAME["events"], rows(*told), token=str(confidence))
        (finding,) = doubt([sure], read_second_claims(embedded_store, context))
        verdict = judged(finding)
        assert (verdict.confidence, verdict.grade == "isolate") == (confidence, confidence > 0.9)
    assert verdict.evidence[-1]["host"] == "h9"


def test_confidence_is_capped_and_coverage_lowered_by_what_was_not_seen() -> None:
    assert judged(found(likelihood=0.45)).grade == "note"
    assert judged(replace(found(likelihood=0.99), cap=0.5)).confidence == 0.5
    assert judged(found(), silent=("h0", "h1")).coverage == 0.75
    unknown = make_verdict(found(), 0, look(roster=world(hosts=4, nodes=8)), Account(0, 0, 0), GradingOptions())
    assert unknown.coverage == 0.5, "four of its eight hosts were never heard of"


def test_stored_verdict_gives_its_finding_back() -> None:
    finding = replace(found(side="tx", doubt=["nic:h4/eth1"], since_ns=end_of(0)), ranks_waiting=63, likelihood=0.96)
    assert finding_of(judged(finding)) == finding
