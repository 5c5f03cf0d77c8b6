"""A flood becomes a few events and a count; what is rare beside it stays visible."""

from collector.sources.kernel_log import MAX_ALIKE, MAX_EVENTS, FloodGate
from lockstep.records import Event
from tests.builders import T0


def event(kind: str = "xid", component: str = "gpu:h0/a", severity: str = "warning", ts_ns: int = T0) -> Event:
    return Event(
        host="h0",
        ts_ns=ts_ns,
        source="s",
        kind=kind,
        component=component,
        severity=severity,
        message=f"m{ts_ns - T0}",
    )


def test_few_events_pass_unchanged_and_nothing_is_counted() -> None:
    gate = FloodGate()
    sent = [gate.admit(event(ts_ns=T0 + number), "31", second=1) for number in range(MAX_ALIKE)]
    assert sent == [[event(ts_ns=T0 + number)] for number in range(MAX_ALIKE)]
    assert gate.oldest_held_ns is None
    assert gate.close() == []


def test_more_of_the_same_in_a_second_becomes_one_count_with_the_last_line() -> None:
    gate = FloodGate()
    for number in range(1_000):
        gate.admit(event(ts_ns=T0 + number), "31", second=1)
    assert gate.oldest_held_ns == T0 + MAX_ALIKE
    (count,) = gate.close()
    assert (count.kind, count.component, count.ts_ns) == ("folded", "host:h0", T0 + MAX_ALIKE)
    assert count.message == f"{1_000 - MAX_ALIKE} more xid lines in one second, the last of them: m999"
    assert gate.oldest_held_ns is None


def test_the_next_second_reports_the_count_first_and_passes_again() -> None:
    gate = FloodGate()
    for _ in range(MAX_ALIKE + 1):
        gate.admit(event(), "31", second=1)
    sent = gate.admit(event(), "31", second=2)
    assert [row.kind for row in sent] == ["folded", "xid"]
    assert gate.close() == []


def test_flood_of_one_xid_hides_neither_another_xid_nor_another_gpu() -> None:
    gate = FloodGate()
    for _ in range(1_000):
        gate.admit(event(), "31", second=1)
    fallen, other = event(severity="critical"), event(component="gpu:h0/b")
    assert gate.admit(fallen, "79", second=1) == [fallen]
    assert gate.admit(other, "31", second=1) == [other]


def test_flood_of_different_things_is_bounded_too_and_its_count_is_as_bad_as_its_worst() -> None:
    gate = FloodGate()
    sent = [row for number in range(5_000) for row in gate.admit(event(component=f"gpu:h0/{number}"), "31", second=1)]
    gate.admit(event(severity="critical"), "79", second=1)
    gate.admit(event(severity="info"), "63", second=1)
    assert len(sent) == MAX_EVENTS
    (count,) = gate.close()
    assert count.severity == "critical"
    assert count.message.startswith(f"{5_000 - MAX_EVENTS + 2} more xid lines")


def test_each_kind_is_counted_for_itself() -> None:
    gate = FloodGate()
    for kind in ("xid", "oom"):
        for _ in range(MAX_ALIKE + 2):
            gate.admit(event(kind=kind), "", second=1)
    assert [count.message.split(",")[0] for count in gate.close()] == [
        "2 more xid lines in one second",
        "2 more oom lines in one second",
    ]
