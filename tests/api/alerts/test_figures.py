"""How delivery does, in figures: what was tried, what waits and for how long, and which receivers are the worst."""

from pathlib import Path

import pytest

from api.alerts.counts import DeliveryCounts
from api.alerts.figures import MOST_NAMED, OutboxFigures, Receiver, read_outbox
from lockstep.alert_settings import AlertSettings
from tests.api.alerts.build import Alerts, alerting, fault, target
from tests.api.alerts.receivers import answer, receiving


def figures_of(alerts: Alerts, *targets: object) -> OutboxFigures:
    chosen = AlertSettings.model_construct(**{**AlertSettings().model_dump(), "targets": targets})
    return read_outbox(chosen, alerts.control, alerts.clock.now_ns())


def counted(counts: DeliveryCounts) -> dict[tuple[str, str], float]:
    (family,) = counts.counter.collect()
    return {
        (sample.labels["kind"], sample.labels["result"]): sample.value
        for sample in family.samples
        if sample.name.endswith("_total") and sample.value
    }


@pytest.mark.parametrize(
    ("status", "result", "messages", "oldest_s", "is_disabled"),
    [
        (200, "delivered", {}, 0.0, False),
        (500, "failed", {"waiting": 1}, 20.0, False),
        (410, "failed", {"waiting": 1}, 0.0, True),
    ],
)
def test_try_is_counted_and_what_it_left_behind_is_seen(
    tmp_path: Path, status: int, result: str, messages: dict[str, int], oldest_s: float, is_disabled: bool
) -> None:
    with receiving(answer(status)) as receiver:
        hook = target(url=receiver.url)
        with alerting(tmp_path, hook) as alerts:
            alerts.happen(fault())
            alerts.round()
            alerts.clock.advance(20)
            found = figures_of(alerts, hook)
    assert counted(alerts.counts) == {("webhook", result): 1}
    left = {state: messages.get(state, 0) for state in ("waiting", "sending", "dead")}
    assert found.messages == {("webhook", state): count for state, count in left.items()}
    assert found.oldest_s == oldest_s, "what waits for a receiver that is gone has no age: nobody tries"
    assert found.receivers == (Receiver("ops", "webhook", int(status != 200), is_disabled=is_disabled),)


def test_message_that_is_refused_for_good_is_dead(tmp_path: Path) -> None:
    with receiving(answer(400, b"no")) as receiver:
        pager = target(kind="pagerduty", url=receiver.url)
        with alerting(tmp_path, pager) as alerts:
            alerts.happen(fault())
            alerts.round()
            found = figures_of(alerts, pager)
    assert counted(alerts.counts) == {("pagerduty", "dead"): 1}
    assert found.messages["pagerduty", "dead"] == 1
    assert found.oldest_s == 0, "nothing waits: only the count tells"


def test_of_many_receivers_the_worst_are_named(tmp_path: Path) -> None:
    with receiving(answer(500)) as receiver:
        ill = target("zz-ill", url=receiver.url)
        others = [target(f"r{number:02}", url=receiver.url, events=()) for number in range(MOST_NAMED + 5)]
        off = target("off", url=receiver.url, enabled=False)
        with alerting(tmp_path, ill, *others, off) as alerts:
            alerts.happen(fault())
            alerts.round()
            found = figures_of(alerts, ill, *others, off)
    assert len(found.receivers) == MOST_NAMED
    assert (found.receivers[0].name, found.receivers[1].name) == ("zz-ill", "r00")
    assert "off" not in {each.name for each in found.receivers}
