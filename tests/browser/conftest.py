"""A Chromium that looks at a whole web process, and tells of everything that a page does wrong."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from api.auth import SESSION_COOKIE
from lockstep.clock import NS_PER_S, SystemClock
from lockstep.fabrics import leaf_spine
from lockstep.records import Agent, Comm, TransferStat
from lockstep.state.decisions import save_decisions
from lockstep.state.incidents import save_incidents
from lockstep.state.tokens import Scope, Token, begin_session
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import Store, open_store
from tests.api.build import Api, running_api
from tests.api.dashboard.build import decision_of, incident_of
from tests.api.views.build import heartbeat, load_job, put
from tests.builders import SECOND, make

_WIDE, _HIGH = 1280, 900
_PATIENCE_MS = 120_000  # how long a busy machine may take; nothing here waits that long on its own
expect.set_options(timeout=_PATIENCE_MS)


@dataclass
class Window:
    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Load a page of ours; a page that is not 200 is a complaint."""
        self.page.goto(self.url + path)
        return self.page


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs a browser: install the package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=_PATIENCE_MS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A web process with a small job, one of 1,024 ranks, an incident, a decision and a fabric."""
    folder = tmp_path_factory.mktemp("browser")
    with open_store(f"chdb://{folder / 'store'}") as store:
        migrate(store, Layout(store.database), now_ns=1)
        clock = SystemClock()
        now_ns = clock.now_ns() // NS_PER_S * NS_PER_S
        load_job(store, "train", start_ns=now_ns - 20 * NS_PER_S)
        load_large_job(store, "large", 1024, now_ns - 20 * NS_PER_S)
        topology = leaf_spine(hosts=8, nics_per_host=2, leaves=2, spines=2)
        with running_api(folder, store, clock=clock, topology=topology) as running:
            save_incidents(running.parts.control, [incident_of("i1", "train", now_ns)], None)
            save_decisions(running.parts.control, [decision_of("d1", "i1", "train", now_ns)], None)
            yield running


@pytest.fixture
def window_of(chromium: Browser, site: Api) -> Iterator[Callable[[Scope], Window]]:
    """Opens windows of people who have logged in; at the end none may have complained."""
    opened: list[tuple[BrowserContext, Window]] = []

    def open_window(scope: Scope) -> Window:
        context = chromium.new_context(viewport={"width": _WIDE, "height": _HIGH}, reduced_motion="reduce")
        context.set_default_timeout(_PATIENCE_MS)
        url = str(site.client.base_url).rstrip("/")
        context.add_cookies([{"name": SESSION_COOKIE, "value": _session(site, scope), "url": url}])
        window = Window(context.new_page(), url)
        _listen(window)
        opened.append((context, window))
        return window

    yield open_window
    for context, _ in opened:
        context.close()
    assert [complaint for _, window in opened for complaint in window.complaints] == []


@pytest.fixture
def window(window_of: Callable[[Scope], Window]) -> Window:
    return window_of("read")


def _session(site: Api, scope: Scope) -> str:
    now_ns = site.parts.clock.now_ns()
    token = Token(id=f"t-{scope}", scope=scope, host=None, name=f"ada-{scope}", created_ns=now_ns)
    return begin_session(site.parts.control, token, now_ns, now_ns + 3600 * NS_PER_S)


def _listen(window: Window) -> None:
    """Write down console errors, scripts that fail, answers that are errors, and requests to anybody else."""
    page, say = window.page, window.complaints.append
    page.on("console", lambda message: say(f"console: {message.text}") if message.type == "error" else None)
    page.on("pageerror", lambda error: say(f"script: {error}"))
    page.on("response", lambda answer: say(f"{answer.status}: {answer.url}") if answer.status >= 400 else None)
    page.on(
        "request", lambda asked: None if asked.url.startswith((window.url, "data:")) else say(f"asks {asked.url}")
    )


PEERS = (1, 2, 4, 8, 16, 32, 64, 128)  # ranks that each sends to, as in trees and exchanges
SLOW = (700, 701)
_RANKS_PER_HOST = 8


def load_large_job(store: Store, job: str, ranks: int, start_ns: int) -> None:
    """Put a job into a store in which each rank sends to eight others, and one pair is slow."""
    who, sent = {"job": job, "attempt": 0, "comm": 9}, {"ts_ns": start_ns + SECOND, "bytes": 1 << 20}
    hosts = [f"{job}-h{rank // _RANKS_PER_HOST}" for rank in range(ranks)]
    members = [
        make(Comm, host=hosts[rank], rank=rank, world_rank=rank, gpu=rank % 8, nranks=ranks, init_ns=start_ns, **who)
        for rank in range(ranks)
    ]
    wires = [
        make(TransferStat, host=hosts[rank], rank=rank, peer=peer, wire_ns=_wire_ns(rank, peer), **who, **sent)
        for rank in range(ranks)
        for peer in ((rank + step) % ranks for step in PEERS)
    ]
    beats: list[Agent] = [heartbeat(host, start_ns + 10 * SECOND) for host in dict.fromkeys(hosts)]
    put(store, [*members, *wires, *beats])


def _wire_ns(rank: int, peer: int) -> int:
    return 5_000_000 if (rank, peer) == SLOW else 1_000_000 + (rank * 7919 + peer) % 50_000
