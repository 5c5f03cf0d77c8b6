"""What the web process is made of; handed to every route, so that tests can hand over others."""

from dataclasses import dataclass, field

from fastapi import Request

from api.gateway.gateway import Gateway
from lockstep.clock import Clock
from lockstep.config import Settings
from lockstep.control.database import ControlDatabase
from lockstep.store.layout import Layout
from lockstep.store.store import Store
from lockstep.topology import Topology


@dataclass(frozen=True)
class Parts:
    """The services behind the routes."""

    settings: Settings
    store: Store
    layout: Layout
    control: ControlDatabase
    gateway: Gateway
    clock: Clock
    topology: Topology | None = None
    notice: str = field(default="")  # a sentence for the first page, such as that this is a demo


def parts_of(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts
