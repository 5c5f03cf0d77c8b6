"""Errors of pages as pages: whoever came with a browser reads a sentence and finds the way back."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from api.auth import Reader
from api.dashboard.rendering import render
from api.problems import classify
from lockstep.errors import LockstepError

_TITLES = {400: "That cannot be done", 403: "You may not do this", 404: "Not found", 503: "Not available now"}


class PageRoute(APIRoute):
    """A route that answers browsers with a page, also when something is wrong; programs get the problem document."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_as_page(request: Request) -> Response:
            try:
                return await handle(request)
            except (LockstepError, RequestValidationError) as error:
                if not _is_browser(request):
                    raise
                return _error_page(request, error)

        return handle_as_page


def page_router() -> APIRouter:
    """Return a router of pages that readers may see."""
    return APIRouter(route_class=PageRoute, dependencies=[Reader], include_in_schema=False)


def _is_browser(request: Request) -> bool:
    return "text/html" in request.headers.get("Accept", "")


def _error_page(request: Request, error: LockstepError | RequestValidationError) -> Response:
    if isinstance(error, RequestValidationError):
        status, sentence = 422, "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
    else:
        status, sentence = classify(error)[0], str(error)
    if status == 401:
        raise error  # the login page is not ours
    page = render(request, "error.html", "error", _TITLES.get(status, "This did not work"), sentence=sentence)
    page.status_code = status
    return page
