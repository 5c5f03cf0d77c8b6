"""What the web process is made of; handed to every route, so that tests can hand over others."""

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from api.alerts.notifier import DeliveryCounts
from api.ingest.gateway import Gateway
from lockstep.clock import NS_PER_S, Clock
from lockstep.config import Settings
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import read_analysis
from lockstep.store.migrations import Layout
from lockstep.store.store import Store
from lockstep.topology import Topology
from lockstep.words import analysis_words


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
    duties: tuple[str, ...] = ()  # that this process does whenever no other does them
    notice: str = field(default="")  # a sentence for the first page, such as that this is a demo
    delivered: DeliveryCounts = field(default_factory=DeliveryCounts)  # by the alerts of this process

    def analysis(self) -> str:
        """Return how far behind the analysis is, as a sentence; empty where it keeps up."""
        known = read_analysis(self.control)
        return analysis_words(known.until_ns if known else None, self.clock.now_ns())

    def second_ns(self) -> int:
        """Return when this second ends: all who ask within it ask the same, and miss nothing that is there."""
        return (self.clock.now_ns() // NS_PER_S + 1) * NS_PER_S


def parts_of(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


async def hold_parts(request: Request) -> Parts:  # async: else it would need a thread, and readers may have all
    return parts_of(request)


Held = Annotated[Parts, Depends(hold_parts)]
