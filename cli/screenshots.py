"""lockstep screenshots: pictures of the dashboard's pages, as the README shows them, from a server that runs."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlencode

import httpx
import typer
from playwright.sync_api import Browser, sync_playwright

from cli.setup import err, out
from lockstep.errors import NotPresent

_WIDE, _HIGH = 1280, 860
_SETTLED_MS = 1_500  # until charts are drawn


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture."""

    name: str
    path: str
    theme: Literal["light", "dark"] = "light"
    high: int = _HIGH  # pixels; what is below is cut off


def command(
    url: Annotated[str, typer.Option(help="A server whose reads are open, such as `lockstep up --demo`.")] = (
        "http://127.0.0.1:8642"
    ),
    folder: Annotated[Path, typer.Option("--out", help="Where the pictures go.")] = Path("docs/screenshots"),
) -> None:
    """Take the README's pictures of a running demo; it must have found its fault."""
    shots = list(choose_shots(*_find_incident(url)))
    program = shutil.which("chromium")
    if program is None:
        raise NotPresent("no chromium is installed to take pictures with")
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for shot in shots:
            _take(browser, url, shot, folder)
            err.print(f"took {shot.name}.png", style="dim")
        browser.close()
    out.print(f"{len(shots)} pictures are in {folder}")


def choose_shots(incident: str, job: str) -> Iterator[Shot]:
    """Yield the pictures of a server on which this incident of this job is open."""
    about = urlencode({"job": job})
    yield Shot("overview", "/")
    yield Shot("incident", f"/incidents/{incident}", high=1500)
    yield Shot("incident-dark", f"/incidents/{incident}", theme="dark", high=1000)
    yield Shot("matrix", f"/matrix?{about}", high=920)
    yield Shot("arrivals", f"/lags?{about}", high=760)
    yield Shot("topology", "/topology", theme="dark", high=760)
    yield Shot("what-if", f"/what-if?{about}&is_asked=true&can_restart=true&spares=1&what=hung&price=2.5", high=900)
    yield Shot("job", f"/job?{about}", theme="dark", high=760)


def _find_incident(url: str) -> tuple[str, str]:
    """Return id and job of an open incident; NotPresent where there is none yet."""
    try:
        answer = httpx.get(f"{url}/api/v1/incidents", params={"state": "open", "limit": 1}, trust_env=False)
        items = answer.raise_for_status().json()["items"]
    except httpx.HTTPError as error:
        raise NotPresent(f"no server with open reads is at {url}: {error}") from error
    if not items:
        raise NotPresent(f"{url} has no open incident yet: wait until the demo has found its fault")
    return items[0]["id"], items[0]["job"]


def _take(browser: Browser, url: str, shot: Shot, folder: Path) -> None:
    page = browser.new_page(viewport={"width": _WIDE, "height": shot.high}, color_scheme=shot.theme)
    page.goto(url + shot.path)
    page.wait_for_timeout(_SETTLED_MS)
    page.screenshot(path=folder / f"{shot.name}.png")
    page.close()
