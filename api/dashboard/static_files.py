"""Styles, scripts and pictures of the pages; browsers keep them for as long as their address is the same."""

from importlib import resources
from os import PathLike, stat_result

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_FOR_EVER = "public, max-age=31536000, immutable"  # the address has the file's digest in it
_ASK_AGAIN = "public, no-cache"


class CachedFiles(StaticFiles):
    """Static files that say how long they may be kept."""

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["Cache-Control"] = _FOR_EVER if b"v=" in scope["query_string"] else _ASK_AGAIN
        return response


def make_static() -> CachedFiles:
    """Return the app that serves the files of the package."""
    return CachedFiles(directory=str(resources.files("api").joinpath("static")))
