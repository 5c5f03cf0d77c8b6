"""One HTTP answer read to its end, or to the end of its time: httpx alone bounds each piece, not the whole."""

import httpx

from lockstep.errors import ControllerDown
from planner.controllers.running import Deadline


def read_within(response: httpx.Response, deadline: Deadline, most_bytes: int) -> str:
    """Return the text of an answer that is being streamed; ControllerDown when it is too late or too much."""
    body = bytearray()
    for piece in response.iter_bytes():
        body += piece
        if len(body) > most_bytes:
            raise ControllerDown(f"{response.url} answered with more than {most_bytes} bytes")
        if not deadline.left_s:
            raise ControllerDown(f"{response.url} did not end its answer within {deadline.timeout_s:g} s")
    return body.decode(errors="replace")
