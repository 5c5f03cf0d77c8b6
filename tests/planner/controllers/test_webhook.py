"""The webhook controller against a real receiver over HTTP, small enough to read."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest

from lockstep.clock import NS_PER_S, ManualClock
from lockstep.errors import BadInput, ControllerDown
from planner.controllers.protocol import Restart
from planner.controllers.webhook import WebhookController, WebhookOptions
from tests.http_serving import Quiet, serving
from tests.planner.controllers.contract import Rig, check_contract

SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes ....").decode()


class Receiver:
    """A site's own service: it keeps which node is isolated under which mark."""

    def __init__(self) -> None:
        self.isolated: dict[str, dict[str, str | None]] = {}
        self.seen: list[tuple[dict[str, str], dict[str, Any]]] = []

    def act(self, envelope: dict[str, Any]) -> dict[str, Any]:
        act, data = envelope["type"].removeprefix("dev.lockstep."), envelope["data"]
        if act == "restart":
            return {"outcome": "done", "what": "started", "job": data["job"] + "-2"}
        node, mark = data["node"], data["mark"]
        held = self.isolated.get(node)
        if held and held["mark"] != mark:
            return {"outcome": "refused", "what": f"{node} is held by {held['mark']}"}
        if (held is not None) == (act == "isolate"):
            return {"outcome": "already", "what": f"{node}: nothing to do"}
        if act == "isolate":
            self.isolated[node] = {"mark": mark, "reason": data["reason"]}
        else:
            del self.isolated[node]
        return {"outcome": "done", "what": f"{act} {node}"}

    def nodes(self) -> list[dict[str, Any]]:
        free = [{"name": name, "is_usable": True} for name in ("h1", "h2") if name not in self.isolated]
        return free + [{"name": name, "is_usable": False, **held} for name, held in self.isolated.items()]


@contextmanager
def listen(receiver: Receiver) -> Iterator[str]:
    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            receiver.seen.append((dict(self.headers), body))
            self._say(200, receiver.act(body))

        def do_GET(self) -> None:
            if self.path == "/nodes":
                self._say(200, {"nodes": receiver.nodes()})
            elif self.path == "/jobs/team%2Fllm":
                self._say(200, {"id": "team/llm", "state": "running", "nodes": ["h1", "h2"]})
            else:
                self._say(404, {})

        def _say(self, status: int, said: dict[str, Any]) -> None:
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with serving(Handler) as url:
        yield url


def answering(answer: Callable[[httpx.Request], httpx.Response], **options: Any) -> WebhookController:
    """Return a controller whose receiver is a function."""
    made = WebhookOptions("http://receiver/hook", **options)
    return WebhookController(made, ManualClock(1_700_000_000 * NS_PER_S), httpx.MockTransport(answer))


def saying(status: int = 200, **body: Any) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _request: httpx.Response(status, json=body)


def test_it_keeps_the_contract_of_controllers() -> None:
    receiver = Receiver()
    with listen(receiver) as url:
        options = WebhookOptions(url, SECRET, f"{url}/nodes", url + "/jobs/{job}")
        check_contract(
            Rig(
                make=lambda dry: WebhookController(replace(options, dry_run=dry)),
                look=lambda: dict(receiver.isolated),
                node="h1",
                other="h2",
                reset=receiver.isolated.clear,
                occupy=lambda node: receiver.isolated.update({node: {"mark": None, "reason": "burn-in"}}),
            )
        )


def test_order_is_signed_so_that_the_receiver_can_check_it() -> None:
    receiver = Receiver()
    with listen(receiver) as url:
        clock = ManualClock(1_700_000_000 * NS_PER_S)
        WebhookController(WebhookOptions(url, secret=SECRET), clock).isolate("h1", "mark-1", "xid 79")
    headers, body = receiver.seen[0]
    named = {key.lower(): value for key, value in headers.items()}
    assert named["webhook-id"] == body["id"] == "mark-1/isolate/h1"
    assert named["webhook-timestamp"] == "1700000000"
    text = f"mark-1/isolate/h1.1700000000.{json.dumps(body)}"
    expected = hmac.new(b"a secret of thirty-two bytes ....", text.encode(), hashlib.sha256).digest()
    assert named["webhook-signature"] == "v1," + base64.b64encode(expected).decode()


def test_same_act_has_the_same_id_and_no_secret_means_no_signature() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"outcome": "done", "what": "so"})

    for _ in range(2):
        answering(answer).isolate("h1", "mark-1", "xid 79")
    assert {request.headers["webhook-id"] for request in seen} == {"mark-1/isolate/h1"}
    assert "webhook-signature" not in seen[0].headers


def test_restart_carries_the_whole_order_and_brings_the_new_job_back() -> None:
    receiver = Receiver()
    order = Restart("mark-1", "llm", ("h1",), 3, "/c/step-400", {"TP": "2"})
    with listen(receiver) as url:
        report = WebhookController(WebhookOptions(url)).restart(order)
    assert (report.outcome, report.job) == ("done", "llm-2")
    assert receiver.seen[0][1]["data"] == {
        "mark": "mark-1", "job": "llm", "exclude": ["h1"], "nnodes": 3, "checkpoint": "/c/step-400",
        "environment": {"TP": "2"},
    }  # fmt: skip


def test_job_is_asked_for_by_its_name_whatever_is_in_it() -> None:
    with listen(Receiver()) as url:
        controller = WebhookController(WebhookOptions(url, job_url=url + "/jobs/{job}"))
        view = controller.job("team/llm")
        assert view is not None
        assert (view.state, view.nodes) == ("running", ("h1", "h2"))
        assert controller.job("gone") is None


def test_receiver_that_tells_nothing_is_down_not_empty() -> None:
    controller = answering(saying(401), nodes_url="http://receiver/nodes", job_url="http://receiver/{job}")
    with pytest.raises(ControllerDown, match="does not tell about job llm: HTTP 401"):
        controller.job("llm")
    with pytest.raises(ControllerDown, match="does not tell its nodes: HTTP 401"):
        controller.nodes()


def test_without_addresses_to_look_at_nothing_is_known() -> None:
    controller = answering(saying())
    assert list(controller.nodes()) == []
    assert controller.job("llm") is None


def test_redirect_is_refused() -> None:
    moved = answering(lambda _: httpx.Response(307, headers={"Location": "http://elsewhere/"}))
    report = moved.isolate("h1", "mark-1", "xid 79")
    assert report.outcome == "refused"
    assert "HTTP 307" in report.what


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_receiver_in_trouble_is_down(status: int) -> None:
    with pytest.raises(ControllerDown, match=f"HTTP {status}"):
        answering(saying(status)).isolate("h1", "mark-1", "xid 79")


def test_receiver_that_times_out_is_down() -> None:
    def hang(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("timed out", request=request)

    with pytest.raises(ControllerDown, match="does not answer: timed out"):
        answering(hang).isolate("h1", "mark-1", "xid 79")


class Endless(httpx.SyncByteStream):
    """An answer that goes on, a piece at a time, each taking a second."""

    def __init__(self, clock: ManualClock, size: int) -> None:
        self._clock, self._size = clock, size

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self._clock.advance(1)
            yield b" " * self._size


@pytest.mark.parametrize(
    ("size", "complaint"), [(1, "did not end its answer"), (5 << 20, "more than 16777216 bytes")]
)
def test_answer_without_end_is_cut_off(size: int, complaint: str) -> None:
    clock = ManualClock()
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Endless(clock, size)))
    with pytest.raises(ControllerDown, match=complaint):
        WebhookController(WebhookOptions("http://receiver"), clock, transport).isolate("h1", "mark-1", "xid 79")


@pytest.mark.parametrize(
    "body", ["", "[]", "{}", '{"outcome": "maybe", "what": "x"}', '{"outcome": "done"}', "<html>"]
)
def test_answer_that_makes_no_sense_is_a_failure(body: str) -> None:
    report = answering(lambda _: httpx.Response(200, text=body)).isolate("h1", "mark-1", "xid 79")
    assert report.outcome == "failed"
    assert "cannot be understood" in report.what


@pytest.mark.parametrize("told", [{}, {"nodes": [{"name": "h1"}]}, {"nodes": 3}])
def test_nodes_that_make_no_sense_are_a_controller_that_is_down(told: dict[str, Any]) -> None:
    controller = answering(saying(**told), nodes_url="http://receiver/nodes")
    with pytest.raises(ControllerDown, match="cannot be understood"):
        controller.nodes()


def test_secret_that_is_not_base64_is_bad_input() -> None:
    with pytest.raises(BadInput, match="not base64"):
        answering(saying(), secret="whsec_!!!")
