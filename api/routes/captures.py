"""A job's last minutes as a capture, for diagnosis elsewhere and for tickets."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from api.auth import Reader
from api.parts import parts_of
from lockstep.capture.exchange import export_capture
from lockstep.capture.writing import CaptureWriter
from lockstep.clock import NS_PER_S

router = APIRouter(prefix="/api/v1", dependencies=[Reader])

_CHUNK = 1 << 20
_DAY_S = 86_400


@router.get("/jobs/{job:path}/capture")  # a job's id may hold slashes
def capture(request: Request, job: str, since_s: Annotated[int, Query(ge=1, le=_DAY_S)] = 600) -> StreamingResponse:
    """Return what the store knows of the job's last `since_s` seconds as a .tar.zst."""
    parts = parts_of(request)
    now_ns = parts.clock.now_ns()
    folder = tempfile.TemporaryDirectory(prefix="lockstep-export-")
    try:
        archive = Path(folder.name) / "capture.tar.zst"
        with CaptureWriter(archive) as writer:
            export_capture(parts.store, writer, job, now_ns - since_s * NS_PER_S, now_ns, parts.topology)
    except BaseException:
        folder.cleanup()
        raise
    return StreamingResponse(_read_and_delete(archive, folder), media_type="application/zstd")


def _read_and_delete(archive: Path, folder: "tempfile.TemporaryDirectory[str]") -> Iterator[bytes]:
    with folder, open(archive, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
