"""How delivery of alerts does at this moment: what waits, for how long, and which receivers fail; for the metrics."""

from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import dataclass, field

from api.alerts.service import all_targets, is_active
from lockstep.alert_settings import AlertSettings, Target
from lockstep.clock import NS_PER_S
from lockstep.control.backlog import count_undelivered
from lockstep.control.database import ControlDatabase
from lockstep.control.deliveries import oldest_waiting
from lockstep.control.targets import Health, list_health

MOST_NAMED = 20  # receivers with a series of their own, the worst first; there may be 128 of them
_REMOVED = "removed"  # of a message whose receiver is no longer in the settings
_STATES = {"waiting": "waiting", "sending": "sending", "failed": "dead"}


@dataclass(frozen=True, slots=True)
class Receiver:
    """How one receiver answers."""

    name: str
    kind: str
    failures: int  # since it last took something
    is_disabled: bool  # because it said that it is gone


@dataclass(frozen=True, slots=True)
class OutboxFigures:
    """The outbox as it is; the age is None where nobody could be asked."""

    messages: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by the receiver's kind and state
    oldest_s: float | None = None
    receivers: tuple[Receiver, ...] = ()


def read_outbox(settings: AlertSettings, control: ControlDatabase, now_ns: int) -> OutboxFigures:
    """Return the figures of this moment; messages for receivers that are switched off or gone have no age."""
    targets, health = all_targets(settings, control), list_health(control)
    known = {name: health.get(name, Health(since_ns=now_ns)) for name in targets}
    active = [name for name, target in targets.items() if is_active(target, known[name])]
    oldest = oldest_waiting(control, active)
    return OutboxFigures(
        _by_kind(count_undelivered(control), targets),
        max(0, now_ns - oldest[1]) / NS_PER_S if oldest else 0.0,
        _worst(targets, known),
    )


def _by_kind(found: Mapping[tuple[str, str], int], targets: Mapping[str, Target]) -> dict[tuple[str, str], int]:
    """Return messages by kind and state, with a nought for what does well."""
    kinds = {target.kind for target in targets.values()}
    counted: Tally[tuple[str, str]] = Tally({(kind, state): 0 for kind in kinds for state in _STATES.values()})
    for (name, state), count in found.items():
        counted[targets[name].kind if name in targets else _REMOVED, _STATES[state]] += count
    return dict(counted)


def _worst(targets: Mapping[str, Target], health: Mapping[str, Health]) -> tuple[Receiver, ...]:
    """Return receivers that are wanted, the worst first, no more than may be named."""
    wanted = [
        Receiver(
            name, target.kind, health[name].failures_in_row, is_disabled=health[name].disabled_because is not None
        )
        for name, target in targets.items()
        if target.enabled
    ]
    return tuple(sorted(wanted, key=lambda each: (not each.is_disabled, -each.failures, each.name))[:MOST_NAMED])
