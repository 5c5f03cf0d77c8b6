"""Receivers of alerts: made, changed, tried out and listened to; their secrets go in and never come out."""

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field, JsonValue, ValidationError

from api.alerts.active import trouble_alert
from api.alerts.formats import headline
from api.alerts.notifier import make_notifier
from api.alerts.service import all_targets
from api.alerts.transport import check_allowed
from api.auth import Admin, Reader
from api.dependencies import (
    Cursor,
    Held,
    KnownParameters,
    Limit,
    Page,
    Parts,
    add_link,
    cut_page,
    parts_of,
    read_cursor,
)
from lockstep.alerts import Notification, Target
from lockstep.errors import BadInput, NotPresent
from lockstep.state.deliveries import Delivery, DeliveryState, Try, list_deliveries, replay_delivery
from lockstep.state.documents import record
from lockstep.state.targets import (
    Health,
    LostTarget,
    change_target,
    create_target,
    delete_target,
    enable_target,
    list_health,
    list_targets,
)
from lockstep.verdict import Frozen

router = APIRouter(prefix="/api/v1/webhooks", dependencies=[KnownParameters], tags=["alerts"])

Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", description="of the receiver")]
Event = Annotated[str, Path(pattern=r"^evt_[0-9a-f]{26}$", description="id of the message")]
Why = Annotated[str, Query(max_length=1000, description="reason, kept in the audit")]


class TargetView(Frozen):
    """A receiver as everybody may see it."""

    name: str
    kind: str
    url: str = Field(description="without what may be a secret")
    username: str
    sender: str | None
    recipients: tuple[str, ...]
    events: tuple[str, ...]
    grades: tuple[str, ...]
    severities: tuple[str, ...]
    jobs: tuple[str, ...]
    watchdog: bool
    enabled: bool
    secrets: int = Field(description="how many it has")
    origin: Literal["settings", "api"] = Field(description="settings: it is changed in the settings file only")
    health: Health | None = Field(description="None: nobody has tried to send to it yet")


class DeliveryView(Frozen):
    """A message and what became of it."""

    id: str
    kind: str
    key: str = Field(description="what belongs together: mostly an incident")
    title: str
    state: DeliveryState
    created_ns: int
    due_ns: int = Field(description="when it is tried next, while it waits")
    tries: int
    log: tuple[Try, ...]


class Tested(Frozen):
    """What a receiver said to a test."""

    delivered: bool
    status: int | None
    said: str


@router.get("", dependencies=[Reader])
def targets(parts: Held) -> Page[TargetView]:
    """Return all receivers, by name; there are few, so this is always one page."""
    health = list_health(parts.control)
    found = all_targets(parts.settings.alerts, parts.control)
    return Page(items=tuple(_view(parts, found[name], health.get(name)) for name in sorted(found)), next=None)


@router.post("", status_code=201)
def create(parts: Held, target: Target, admin: Admin, why: Why = "") -> TargetView:
    """Make a receiver; from now on it gets what is open and what follows."""
    _check_made_here(parts, target)
    if target.name in {each.name for each in parts.settings.alerts.targets}:
        raise BadInput(f"there is a target {target.name!r} in the settings already")
    create_target(parts.control, target, who=admin, why=why, now_ns=parts.clock.now_ns())
    return _view(parts, target, None)


@router.get("/{name}", dependencies=[Reader])
def target(parts: Held, name: Name) -> TargetView:
    """Return one receiver and how it answers."""
    return _view(parts, _find(parts, name), list_health(parts.control).get(name))


@router.patch("/{name}")
def change(parts: Held, name: Name, changes: dict[str, JsonValue], admin: Admin, why: Why = "") -> TargetView:
    """Change what is given and leave the rest; `secrets` replaces all of them, so name both while changing keys."""
    old = _find_made_here(parts, name)
    if changes.get("name", name) != name:
        raise BadInput(f"a target keeps its name: make another one, and delete {name!r}")
    changed = _validated(parts, _document(old, changes) | changes)
    if old.secrets and "secrets" not in changes and _recipient(changed) != _recipient(old):
        raise BadInput("its secrets were given for another receiver: give `secrets` anew with its new address")
    change_target(parts.control, changed, who=admin, why=why, now_ns=parts.clock.now_ns())
    return _view(parts, changed, list_health(parts.control).get(name))


@router.delete("/{name}")
def delete(parts: Held, name: Name, admin: Admin, why: Why = "") -> dict[str, str]:
    """Forget a receiver, with its log and what it has not got yet."""
    _find_made_here(parts, name)
    delete_target(parts.control, name, who=admin, why=why, now_ns=parts.clock.now_ns())
    return {"deleted": name}


@router.post("/{name}/enable")
def enable(parts: Held, name: Name, admin: Admin, why: Why = "") -> TargetView:
    """Send again to a receiver that was disabled because it said that it is gone."""
    found = _find_whole(parts, name)
    enable_target(parts.control, name, who=admin, why=why, now_ns=parts.clock.now_ns())
    return _view(parts, found, list_health(parts.control).get(name))


@router.post("/{name}/test")
def test(parts: Held, name: Name, admin: Admin) -> Tested:
    """Send a message at once that says it is a test, and return what the receiver said; it is not tried again."""
    found, now_ns = _find_whole(parts, name), parts.clock.now_ns()
    record(parts.control, who=admin, what="test_target", subject=name, why="", now_ns=now_ns)
    reply = make_notifier(parts.settings, parts.clock).deliver(found, _test_notification(admin, now_ns))
    return Tested(delivered=reply.result == "delivered", status=reply.status, said=reply.sentence)


@router.get("/{name}/deliveries", dependencies=[Reader])
def deliveries(
    request: Request,
    response: Response,
    name: Name,
    state: DeliveryState | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[DeliveryView]:
    """Return messages to a receiver, newest first, with every try."""
    parts = parts_of(request)
    _find(parts, name)
    after = read_cursor(cursor, int)
    before = int(after[0]) if after else None
    found = list_deliveries(parts.control, name, state=state, limit=limit + 1, before=before)
    page = cut_page(found, limit, lambda delivery: (delivery.number,))
    shown: Page[DeliveryView] = Page(items=tuple(_delivery_view(each) for each in page.items), next=page.next)
    return add_link(request, response, shown)


@router.post("/{name}/deliveries/{event}/replay", status_code=202)
def replay(parts: Held, name: Name, event: Event, admin: Admin, why: Why = "") -> DeliveryView:
    """Send a message once more, under its old id, whatever became of it."""
    _find(parts, name)
    return _delivery_view(
        replay_delivery(parts.control, name, event, who=admin, why=why, now_ns=parts.clock.now_ns())
    )


def _find(parts: Parts, name: str) -> Target:
    found = all_targets(parts.settings.alerts, parts.control).get(name)
    if found is None:
        raise NotPresent(f"there is no target {name!r}")
    return found


def _find_made_here(parts: Parts, name: str) -> Target:
    _find(parts, name)
    if name in {each.name for each in parts.settings.alerts.targets}:
        raise BadInput(f"target {name!r} is in the settings: change it there")
    return next(each for each in list_targets(parts.control) if each.name == name)


def _find_whole(parts: Parts, name: str) -> Target:
    """Return a receiver whose address and secrets are known."""
    found = _find(parts, name)
    if isinstance(found, LostTarget):
        raise BadInput(found.lost_because)
    return found


def _document(old: Target, changes: dict[str, JsonValue]) -> dict[str, Any]:  # Any: as pydantic dumps it
    """Return what is left as it was; of a receiver that was lost, address and secrets must come anew."""
    if isinstance(old, LostTarget) and not {"url", "secrets"} <= changes.keys():
        raise BadInput(old.lost_because)
    return old.model_dump(mode="json", exclude={"lost_because"})


def _validated(parts: Parts, document: dict[str, Any]) -> Target:  # Any: not yet checked
    try:
        target = Target.model_validate(document)
    except ValidationError as error:  # without the values, which may be secrets
        complaints = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise BadInput(complaints.removeprefix(": ")) from None
    _check_made_here(parts, target)
    return target


def _recipient(target: Target) -> tuple[str, str, str, str]:
    """Return to whom a target's secrets are shown."""
    parts = urlsplit(target.address)
    return target.kind, parts.scheme, parts.netloc.lower(), target.username


def _check_made_here(parts: Parts, target: Target) -> None:
    if target.secret_files:  # whoever may use the API must not read files of the server by way of a receiver
        raise BadInput("secret_files are for the settings file; give `secrets`")
    check_allowed(target.address, parts.settings.alerts.allow)


def _test_notification(who: str, now_ns: int) -> Notification:
    alert = trouble_alert("test", f"a test that {who} asked for: nothing is wrong", now_ns)
    fields = {"fault_class": "test", "grade": "note", "severity": "info", "headline": f"asked for by {who}"}
    calm = alert.model_copy(update=fields)
    return Notification(
        id=f"evt_{now_ns:026x}", kind="lockstep.test", key="lockstep:test", ts_ns=now_ns, alerts=(calm,)
    )


def _view(parts: Parts, target: Target, health: Health | None) -> TargetView:
    is_set = target.name in {each.name for each in parts.settings.alerts.targets}
    shown: dict[str, Any] = target.model_dump(exclude={"url", "secrets", "secret_files", "lost_because"})
    return TargetView(
        **shown,
        url=target.shown_address,
        secrets=len(target.secrets) + len(target.secret_files),
        origin="settings" if is_set else "api",
        health=_health_of(target, health),
    )


def _health_of(target: Target, health: Health | None) -> Health | None:
    """Return how a receiver does; that it was lost is over as soon as its key is back, so it is not written down."""
    if not isinstance(target, LostTarget):
        return health
    return (health or Health(since_ns=0)).model_copy(update={"disabled_because": target.lost_because})


def _delivery_view(delivery: Delivery) -> DeliveryView:
    notification = delivery.tries.notification
    return DeliveryView(
        id=delivery.event,
        kind=notification.kind,
        key=notification.key,
        title=headline(notification),
        state=delivery.state,
        created_ns=delivery.created_ns,
        due_ns=delivery.due_ns,
        tries=delivery.tries.count,
        log=delivery.tries.log,
    )
