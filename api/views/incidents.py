"""Incidents for readers: the newest verdict, when it was opened and closed, and what it turned out to be."""

from dataclasses import dataclass, replace
from functools import lru_cache, partial

import anyio
from anyio import to_thread
from pydantic import Field

from api.dependencies import SortKey, show_timestamp, write_cursor
from api.sharing import Refreshed
from lockstep.clock import NS_PER_S, Clock
from lockstep.decision import Decision
from lockstep.execution import Outcome
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_decisions
from lockstep.state.documents import read_document
from lockstep.state.incidents import get_incident, outcomes_of, page_incidents, read_analysis, state_of_incidents
from lockstep.verdict import FaultClass, Frozen, Grade, Incident, Severity
from lockstep.words import analysis_words

_KEPT_NS = NS_PER_S
_ASK_AGAIN_S, _BELIEVED_S = 0.1, 0.5  # after the database was asked: no person sees the difference
_THREADS = 4
_LONGEST_QUERY = 1_024  # that is remembered
_MOST_PAGES = 64  # of 200 KB each
_KEPT = 4_096  # incidents that are remembered as they are shown: about 10 MB


class IncidentView(Incident):
    """An incident with its times as a person reads them, and what it turned out to be."""

    opened_at: str | None = None
    updated_at: str | None = None
    closed_at: str | None = None
    outcome: Outcome | None = Field(None, description="as somebody confirmed it; None: nobody has so far")


class IncidentDetail(IncidentView):
    """An incident and the decisions on it, the newest first."""

    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True)
class RenderedPage:
    """A page of incidents as it travels."""

    body: bytes  # JSON
    next: str | None
    analysis: str = ""  # how far behind the analysis was then; empty where it keeps up


class IncidentFilter(Frozen):
    """Which incidents are wanted; None: all."""

    job: str | None = None
    state: str | None = None
    fault_class: FaultClass | None = None
    component: str | None = None
    host: str | None = None
    grade: Grade | None = None
    severity: Severity | None = None
    from_ns: int | None = None
    to_ns: int | None = None


_Asked = tuple[IncidentFilter, int, SortKey | None]


def find_incident(control: ControlDatabase, incident: str) -> IncidentDetail:
    """Return one incident with its decisions, or raise NotPresent."""
    found = get_incident(control, incident)
    shown = view_incident(found, outcomes_of(control, [incident]).get(incident))
    return IncidentDetail(**dict(shown), decisions=tuple(list_decisions(control, incident=incident)))


def view_incident(incident: Incident, outcome: Outcome | None) -> IncidentView:
    """Return an incident as it is shown."""
    return IncidentView(
        **dict(incident),
        opened_at=show_timestamp(incident.opened_ns),
        updated_at=show_timestamp(incident.updated_ns),
        closed_at=show_timestamp(incident.closed_ns),
        outcome=outcome,
    )


@lru_cache(maxsize=_KEPT)
def _render(document: str, outcome: Outcome | None) -> str:
    return view_incident(read_document(Incident, document), outcome).model_dump_json(by_alias=True)


class IncidentPages:
    """Pages of incidents as they were last rendered.

    Every browser of a site asks for the same page again and again. As long as the control database says that nothing
    was written, a page is what it was. A process of the version before does not say so: hence nothing is kept longer
    than a second.
    """

    def __init__(self, control: ControlDatabase, clock: Clock) -> None:
        self._control, self._clock = control, clock
        self._kept = _Kept((-1, -1), 0, {})
        self._pages: dict[_Asked, Refreshed[RenderedPage]] = {}
        self._meanings: dict[bytes, _Asked] = {}
        self._threads = anyio.CapacityLimiter(_THREADS)  # slow readers may have taken all of the usual ones

    async def find(self, wanted: IncidentFilter, limit: int, after: SortKey | None) -> RenderedPage:
        """Return a page that was up to date a moment ago; for the requests of one event loop."""
        key, pages = (wanted, limit, after), self._pages  # once: another thread may forget at any moment
        if key not in pages:
            if len(pages) >= _MOST_PAGES:
                pages.clear()
            ask = partial(to_thread.run_sync, self.render, *key, limiter=self._threads)
            pages[key] = Refreshed(ask, self._clock, again_s=_ASK_AGAIN_S, believed_s=_BELIEVED_S)
        return await pages[key].get()

    def meaning_of(self, query: bytes) -> _Asked | None:
        """Return what a query string asks for, where it was read before."""
        return self._meanings.get(query)

    def learn(self, query: bytes, asked: _Asked) -> None:
        """Remember what a query string asks for."""
        if len(self._meanings) >= _MOST_PAGES:
            self._meanings = {}
        if len(query) <= _LONGEST_QUERY:
            self._meanings[query] = asked

    def forget(self) -> None:
        """Ask at the next request: something was written here."""
        self._pages = {}

    def render(self, wanted: IncidentFilter, limit: int, after: SortKey | None) -> RenderedPage:
        """Return a page as JSON, and the cursor of the following one; safe to call from several threads."""
        state, now_ns = state_of_incidents(self._control), self._clock.monotonic_ns()
        kept = self._kept
        if kept.state != state or now_ns - kept.since_ns > _KEPT_NS or len(kept.pages) >= _MOST_PAGES:
            kept = self._kept = _Kept(state, now_ns, {})
        key = (wanted, limit, after)
        if key not in kept.pages:
            known = read_analysis(self._control)
            behind = analysis_words(known.until_ns if known else None, self._clock.now_ns())
            kept.pages[key] = replace(render_page(self._control, wanted, limit, after), analysis=behind)
        return kept.pages[key]


@dataclass(frozen=True)
class _Kept:
    state: tuple[int, int]  # of the incidents when these pages were rendered, or before
    since_ns: int  # monotonic
    pages: dict[_Asked, RenderedPage]


def render_page(control: ControlDatabase, wanted: IncidentFilter, limit: int, after: SortKey | None) -> RenderedPage:
    """Return a page of incidents as JSON; incidents that did not change are not read, checked and written anew."""
    before = (int(after[0]), str(after[1])) if after else None
    stored = page_incidents(control, **dict(wanted), limit=limit + 1, before=before)
    shown = stored[:limit]
    outcomes = outcomes_of(control, [each.id for each in shown])
    following = write_cursor((shown[-1].opened_ns, shown[-1].id)) if len(stored) > limit else None
    items = ",".join(_render(each.document, outcomes.get(each.id)) for each in shown)
    quoted = f'"{following}"' if following else "null"
    return RenderedPage(f'{{"items":[{items}],"next":{quoted}}}'.encode(), following)
