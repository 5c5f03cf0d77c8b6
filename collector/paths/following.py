"""The path plan on its way to the programs of a host: fetched, written where path_shim reads it, and answered.

While the server is away, or has nothing new, all stays as it is: the last plan is at worst a choice by chance. What
the server told is kept beside the file, so that an agent that starts meanwhile knows the roads, too; and so are the
ports of queue pairs, for net plugins that care (lockstep/queue_pair_file.py).
"""

import threading
from collections.abc import Sequence
from pathlib import Path

import httpx
import structlog
from pydantic import ValidationError

from collector.paths.reports import PathReports
from lockstep.clock import Clock
from lockstep.errors import BadInput, LeaseLost, LockstepError
from lockstep.host_paths import HostPaths, PathChoice, PathCount
from lockstep.path_file import read_plan, write_plan
from lockstep.queue_pair_file import advise_queue_pairs, write_queue_pairs

_log = structlog.get_logger("paths")

_TIMEOUT_S = 5.0
POLL_S = 1.0  # a link that fails should be left within seconds; an unchanged plan costs an empty answer


class PathFollower:
    """Keeps the plan file of one host up to date."""

    def __init__(self, client: httpx.Client, host: str, file: Path, reports: Path, clock: Clock) -> None:
        """`client` knows the server and this host's token."""
        self._client, self._clock = client, clock
        self._path = f"/api/v1/paths/hosts/{host}"
        self._file, self._kept, self._reports = file, file.with_name(f"{file.name}.json"), PathReports(reports)
        self._held = _read_kept(self._kept)
        self._told: PathCount | None = None
        self.trouble: str | None = None  # why the plan cannot be followed at the moment

    @property
    def roads(self) -> Sequence[PathChoice]:
        """Return the roads of this host as they were told last."""
        return self._held.choices if self._held and self._held.is_enforceable else ()

    def follow(self, stop: threading.Event) -> None:
        """Go on until told to stop."""
        while not stop.is_set():
            self.follow_once()
            self._clock.wait(stop, POLL_S)

    def follow_once(self) -> None:
        """Fetch the plan if there is a new one, and tell how the programs of this host keep to it."""
        try:
            self._fetch()
            self._tell()
            self._note(None)
        except (httpx.HTTPError, LockstepError, OSError) as error:
            self._note(str(error) or type(error).__name__)

    def _fetch(self) -> None:
        headers = {"If-None-Match": f'"{self._held.generation}"'} if self._held else {}
        answer = self._client.get(self._path, headers=headers)
        if answer.status_code in (304, 404):  # nothing new, or no plan has named this host yet
            return
        answer.raise_for_status()
        self._take(_parse(answer.content))

    def _take(self, told: HostPaths) -> None:
        """Put a plan in force; its roads first, because whoever reads the new file asks for them at once."""
        before, self._held = self._held, told
        try:
            write_plan(self._file, told.as_file())
            write_queue_pairs(self._file.with_name(f"{self._file.name}.queue-pairs"), advise_queue_pairs(told))
            self._kept.write_text(told.model_dump_json(), encoding="utf-8")
        except LeaseLost as error:  # an older planner's word, or a server restored from a backup
            self._held = before
            _log.warning("path plan is older than the one in force, and left", reason=str(error))
        except (LockstepError, OSError):
            self._held = before  # so that it is fetched again
            raise

    def _tell(self) -> None:
        generation = _read_generation(self._file)
        if generation is None:
            return
        count = self._reports.count(generation)
        self._reports.tidy(self._clock.now_ns())
        if count != self._told:
            self._client.post(f"{self._path}/count", json=count.model_dump()).raise_for_status()
            self._told = count

    def _note(self, trouble: str | None) -> None:
        if trouble and not self.trouble:
            _log.warning("path plan cannot be followed, the last one stays", reason=trouble)
        self.trouble = trouble


def make_client(server: str, token: str) -> httpx.Client:
    """Return a client for the server, which this host's token opens."""
    if not server.startswith(("http://", "https://")):
        raise BadInput(f"{server!r} is not the address of a server; expected http(s)://host:port")
    return httpx.Client(base_url=server, headers={"Authorization": f"Bearer {token}"}, timeout=_TIMEOUT_S)


def _parse(content: bytes) -> HostPaths:
    try:
        return HostPaths.model_validate_json(content)
    except ValidationError as error:
        raise BadInput(f"the server's path plan makes no sense: {error.errors()[0]['msg']}") from None


def _read_kept(file: Path) -> HostPaths | None:
    """Return what an earlier agent was told; None where there is nothing, or nothing of use."""
    try:
        return _parse(file.read_bytes())
    except (OSError, BadInput):
        return None


def _read_generation(file: Path) -> int | None:
    """Return the generation of the plan in force on this host; None without one."""
    try:
        plan = read_plan(file)
    except BadInput:
        return None
    return plan.generation if plan else None
