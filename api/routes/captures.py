"""Captures: a job's last minutes or an incident as a case file, case files brought in, and judged anew."""

import subprocess
import tempfile
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import structlog
from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import Field

from api.auth import Actor, Admin, Reader
from api.captures import CaptureFolder, Replay, StoredCapture, replay_apart
from api.dependencies import Held, Identity, JobName, KnownParameters, Page, Paged, Parts, parts_of
from lockstep.capture.exchange import export_capture
from lockstep.capture.files import CaptureWriter
from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import GatewayFull, LockstepError, NotPresent
from lockstep.state.documents import record
from lockstep.state.incidents import get_incident
from lockstep.verdict import Frozen

_log = structlog.get_logger("api")

_KEPT = 200  # operations that can be looked up after their end; a restart forgets them all
_MOST_WAITING = 8

Started = Callable[["subprocess.Popen[bytes]"], None]
Work = Callable[[Started], Replay]  # tells of the process that it starts, so that it can be ended with us


class Operation(Frozen):
    """One piece of work and how far it is."""

    id: str
    kind: Literal["replay"] = "replay"
    subject: str = Field(description="what it is done to")
    state: Literal["waiting", "running", "done", "failed"]
    began_ns: int
    ended_ns: int | None = None
    result: Replay | None = Field(None, description="once it is done")
    problem: str | None = Field(None, description="one sentence, where it failed")


class Operations:
    """What was begun of late; safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[str, Operation] = OrderedDict()
        self._guard = threading.Lock()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="operation")
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def begin(self, subject: str, work: Work) -> Operation:
        """Put work in the queue and return how it can be looked up; GatewayFull where too much waits already."""
        made = Operation(id=uuid.uuid4().hex, subject=subject, state="waiting", began_ns=self._clock.now_ns())
        with self._guard:
            if sum(each.state in ("waiting", "running") for each in self._known.values()) >= _MOST_WAITING:
                raise GatewayFull(f"{_MOST_WAITING} captures wait to be judged already: come again later")
            self._known[made.id] = made
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._worker.submit(self._run, made, work)
        return made

    def find(self, identity: str) -> Operation:
        """Return an operation as it stands, or raise NotPresent."""
        with self._guard:
            found = self._known.get(identity)
        if found is None:
            raise NotPresent(f"there is no operation {identity!r}; those before the last restart are forgotten")
        return found

    def close(self) -> None:
        """End what runs and forget what waits."""
        self._closed = True
        self._worker.shutdown(wait=False, cancel_futures=True)
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
        self._worker.shutdown(wait=True)

    def _run(self, operation: Operation, work: Work) -> None:
        self._note(operation, state="running")
        try:
            result = work(self._started)
            self._note(operation, state="done", ended_ns=self._clock.now_ns(), result=result)
        except LockstepError as error:
            self._note(operation, state="failed", ended_ns=self._clock.now_ns(), problem=str(error))
        except Exception as error:  # noqa: BLE001  # whoever waits for the operation must see its end
            _log.error("operation failed", id=operation.id, subject=operation.subject, exc_info=error)
            self._note(operation, state="failed", ended_ns=self._clock.now_ns(), problem="the server's log says more")

    def _started(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        if self._closed:
            child.kill()

    def _note(self, operation: Operation, **changes: object) -> None:
        with self._guard:
            if operation.id in self._known:
                self._known[operation.id] = self._known[operation.id].model_copy(update=changes)


router = APIRouter(prefix="/api/v1", dependencies=[KnownParameters], tags=["captures"])

_CHUNK = 1 << 20
_MOST_EXPORTS = 4  # at once: each holds a thread and a disk for as long as the store takes
_exports = threading.BoundedSemaphore(_MOST_EXPORTS)
_DAY_S = 86_400
_BEFORE_NS = 120 * NS_PER_S  # of an incident: what was usual before it belongs to the case
_LONGEST_NS = 3600 * NS_PER_S  # of an incident: the fault's last hour shows what its first day did
_ZSTD = "application/zstd"
_ARCHIVE = {"content": {_ZSTD: {"schema": {"type": "string", "format": "binary"}}}, "description": "a .tar.zst"}
_BODY = {"requestBody": {"required": True, "content": {_ZSTD: {"schema": {"type": "string", "format": "binary"}}}}}


class _Archive(StreamingResponse):
    media_type = _ZSTD


@router.get(
    "/jobs/{job:path}/capture",  # a job's id may hold slashes
    dependencies=[Reader],
    summary="Export a job's last minutes",
    response_class=_Archive,
    responses={200: _ARCHIVE},
)
def job_capture(
    parts: Held, job: JobName, since_s: Annotated[int, Query(ge=1, le=_DAY_S)] = 600
) -> StreamingResponse:
    """Return what the store knows of the job's last `since_s` seconds as a .tar.zst."""
    now_ns = parts.clock.now_ns()
    start_ns = now_ns - since_s * NS_PER_S
    return _stream(lambda writer: export_capture(parts.store, writer, job, start_ns, now_ns, parts.topology))


@router.get(
    "/incidents/{incident_id}/capture",
    dependencies=[Reader],
    summary="Export an incident",
    response_class=_Archive,
    responses={200: _ARCHIVE},
)
def incident_capture(parts: Held, incident_id: Identity) -> StreamingResponse:
    """Return the telemetry around an incident as a .tar.zst with its verdict, for a ticket or to be judged anew."""
    found = get_incident(parts.control, incident_id)
    end_ns = (found.closed_ns or max(found.updated_ns, found.verdict.last_seen_ns)) + NS_PER_S
    start_ns = max(min(found.verdict.since_ns, found.opened_ns) - _BEFORE_NS, end_ns - _LONGEST_NS, 0)

    def write(writer: CaptureWriter) -> object:
        return export_capture(parts.store, writer, found.job, start_ns, end_ns, parts.topology, [found.verdict])

    return _stream(write)


@router.get("/captures", dependencies=[Reader], summary="List imported captures")
def captures(parts: Held, page: Paged) -> Page[StoredCapture]:
    """Return the captures that were brought in, by the name of their job."""
    after = page.after(str)
    found = _folder(parts).list()
    return page.cut_sorted(found, after, lambda each: (each.job,))


@router.post("/captures", status_code=201, summary="Import a capture", openapi_extra=_BODY)
async def import_capture(
    request: Request,
    admin: Admin,
    job: Annotated[str, Query(min_length=1, max_length=100, description="what its job is called here; must be new")],
) -> StoredCapture:
    """Take a .tar.zst as a new job: its ranks, matrix and lags can be read like those of any other."""
    parts = parts_of(request)
    folder = _folder(parts)
    upload = await run_in_threadpool(folder.new_file)
    try:
        with open(upload, "wb") as file:  # opening a local file does not wait
            async for piece in request.stream():
                await run_in_threadpool(file.write, piece)
        return await run_in_threadpool(_take, parts, folder, upload, job, admin)
    finally:
        upload.unlink(missing_ok=True)


@router.delete("/captures/{job}", status_code=204, summary="Delete an imported capture")
def delete_capture(parts: Held, job: JobName, admin: Admin) -> None:
    """Forget the archive; the rows of its job end by their retention."""
    _folder(parts).delete(job)
    record(parts.control, who=admin, what="delete_capture", subject=job, why="", now_ns=parts.clock.now_ns())


@router.post("/captures/{job}/replay", status_code=202, summary="Judge an imported capture anew")
def replay(request: Request, response: Response, job: JobName, actor: Actor) -> Operation:
    """Begin to diagnose a capture with this version; the Location header leads to its verdicts."""
    archive = _folder(parts_of(request)).find(job)
    operations: Operations = request.app.state.operations
    begun = operations.begin(job, partial(replay_apart, archive))
    response.headers["Location"] = f"{router.prefix}/operations/{begun.id}"
    return begun


@router.get("/operations/{operation_id}", dependencies=[Reader], summary="Read an operation")
def operation(request: Request, operation_id: Identity) -> Operation:
    """Return how far something is that was begun with 202, and its result once it is done."""
    operations: Operations = request.app.state.operations
    return operations.find(operation_id)


def _folder(parts: Parts) -> CaptureFolder:
    return CaptureFolder(parts.settings.state_dir / "captures")


def _take(parts: Parts, folder: CaptureFolder, upload: Path, job: str, who: str) -> StoredCapture:
    now_ns = parts.clock.now_ns()
    taken = folder.take(parts.store, upload, job, now_ns)
    record(parts.control, who=who, what="import_capture", subject=job, why=taken.original_job, now_ns=now_ns)
    return taken


def _stream(write: Callable[[CaptureWriter], object]) -> StreamingResponse:
    """Return an archive that is written whole before its first byte is sent, and deleted after its last."""
    if not _exports.acquire(blocking=False):
        raise GatewayFull(f"{_MOST_EXPORTS} captures are being written already: come again later")
    folder = tempfile.TemporaryDirectory(prefix="lockstep-export-")
    try:
        archive = Path(folder.name) / "capture.tar.zst"
        with CaptureWriter(archive) as writer:
            write(writer)
    except BaseException:
        folder.cleanup()
        raise
    finally:
        _exports.release()
    return StreamingResponse(_read_and_delete(archive, folder), media_type=_ZSTD)


def _read_and_delete(archive: Path, folder: "tempfile.TemporaryDirectory[str]") -> Iterator[bytes]:
    with folder, open(archive, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
