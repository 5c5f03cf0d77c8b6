"""A site's own commands, by a script that keeps its state in a folder, and its own webhook."""

import base64
import hashlib
import hmac
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lockstep.clock import NS_PER_S, ManualClock
from lockstep.errors import BadInput, ControllerDown
from planner.controllers.protocol import JobView, Node, Restart
from planner.controllers.site import CommandController, CommandOptions, WebhookController, WebhookOptions
from tests.planner.controllers.contract import Rig, check_contract

SCRIPT = r"""#!/bin/sh
# A site's own tool. Called as: tool STATE_DIR isolate|release NODE MARK [REASON]
state=$1 act=$2 node=$3 mark=$4 reason=$5 file=$1/$3
held=$(cat "$file.mark" 2>/dev/null)
if [ -e "$file.mark" ] && [ "$held" != "$mark" ]; then echo "$node is held by ${held:-others}"; exit 4; fi
case $act in
isolate)
    if [ -e "$file.mark" ]; then echo "$node is isolated"; exit 3; fi
    printf '%s' "$reason" > "$file.reason"; printf '%s' "$mark" > "$file.mark" ;;
release)
    if [ ! -e "$file.mark" ]; then echo "$node is in service"; exit 3; fi
    rm "$file.mark" "$file.reason" ;;
esac
echo "looking at $node"
echo "$act of $node is done"
"""


def write_tool(folder: Path, text: str = SCRIPT) -> str:
    tool = folder / "tool"
    tool.write_text(text)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return str(tool)


def test_commands_keep_the_contract_of_controllers(tmp_path: Path) -> None:
    tool, state = write_tool(tmp_path), tmp_path / "state"
    state.mkdir()
    isolate = (tool, str(state), "isolate", "{node}", "{mark}", "{reason}")
    release = (tool, str(state), "release", "{node}", "{mark}")

    def reset() -> None:
        for path in state.iterdir():
            path.unlink()

    check_contract(
        Rig(
            make=lambda dry: CommandController(CommandOptions(isolate, release, dry_run=dry)),
            look=lambda: {path.name: path.read_text() for path in state.iterdir()},
            node="h1",
            other="h2",
            reset=reset,
            occupy=lambda node: (state / f"{node}.mark").write_text(""),
        )
    )


def test_exit_code_is_the_outcome_and_the_last_line_the_sentence() -> None:
    for code, outcome in ((0, "done"), (3, "already"), (4, "refused"), (1, "failed"), (9, "failed")):
        release = ("sh", "-c", f"echo first; echo so; exit {code}")
        report = CommandController(CommandOptions(release=release)).release("h1", "m")
        what = f"sh ended with {code}: first so" if outcome == "failed" else "so"
        assert (report.outcome, report.what) == (outcome, what)


def test_reason_stays_one_argument_and_is_no_shell(tmp_path: Path) -> None:
    write_tool(tmp_path, '#!/bin/sh\nprintf "%s|" "$@"\n')
    reason = "two words; $(touch /nowhere) 'and' \"quotes\" {node}"
    controller = CommandController(
        CommandOptions(isolate=(str(tmp_path / "tool"), "{node}", "why={reason}", "{mark}"))
    )
    assert controller.isolate("h1", "mark-1", reason).what == f"h1|why={reason}|mark-1|"


def test_restart_fills_in_the_order_and_hands_variables_on(tmp_path: Path) -> None:
    write_tool(tmp_path, '#!/bin/sh\necho "$* TP=$TP from=$LOCKSTEP_RESUME_FROM job=llm-2"\n')
    restart = (str(tmp_path / "tool"), "{job}", "-x{exclude}", "-N{nnodes}", "-c{checkpoint}", "{mark}")
    order = Restart("mark-1", "llm", ("h1", "h3"), 2, "/c/step-400", {"TP": "2"})
    report = CommandController(CommandOptions(restart=restart)).restart(order)
    assert report.what == "llm -xh1,h3 -N2 -c/c/step-400 mark-1 TP=2 from=/c/step-400 job=llm-2"
    assert report.job == "llm-2"
    again = CommandController(CommandOptions(restart=("true",))).restart(Restart("mark-1", "llm"))
    assert again.job == "llm"


def test_act_without_a_command_is_refused_and_what_commands_print_is_read() -> None:
    controller = CommandController(CommandOptions())
    assert controller.isolate("h1", "mark-1", "xid 79").what == "no command is configured to isolate"
    assert controller.reattempt("llm", "mark-1").outcome == "refused"
    assert (list(controller.nodes()), controller.job("llm")) == ([], None)
    reported = json.dumps({"nodes": [{"name": "h1", "is_usable": False, "mark": "mark-1", "reason": "xid 79"}]})
    job = ("sh", "-c", 'test "$0" = llm && echo \'{"id": "llm", "state": "failed"}\' || echo "{}"', "{job}")
    controller = CommandController(CommandOptions(nodes=("echo", reported), job=job))
    assert list(controller.nodes()) == [Node("h1", False, "mark-1", "xid 79")]
    assert controller.job("llm") == JobView("llm", "failed")
    assert controller.job("gone") is None


def test_command_that_does_not_end_or_a_look_that_fails_is_a_controller_that_is_down() -> None:
    controller = CommandController(CommandOptions(isolate=("sleep", "600"), timeout_s=0.05))
    with pytest.raises(ControllerDown, match=r"did not end within 0\.05 s"):
        controller.isolate("h1", "mark-1", "xid 79")
    for nodes in (("false",), ("/no/such/tool",), ("echo", "nonsense")):
        with pytest.raises(ControllerDown):
            CommandController(CommandOptions(nodes=nodes)).nodes()


def test_template_that_cannot_be_filled_in_stops_the_start() -> None:
    for templates, complaint in (
        (CommandOptions(release=("tool", "{reason}")), r"for release has \{reason\} in it; it can have: mark, node"),
        (CommandOptions(nodes=("tool", "{node}")), "it can have: none"),
        (CommandOptions(isolate=("{node}",)), "must be named, not filled in"),
    ):
        with pytest.raises(BadInput, match=complaint):
            CommandController(templates)


def test_value_that_would_be_an_option_or_no_name_is_bad_input() -> None:
    controller = CommandController(CommandOptions(isolate=("echo", "{node}", "{reason}"), restart=("true",)))
    option = "reason would be taken for an option"
    for node, reason, why in (("h1", "--force", option), ("h1", "a\0b", option), ("--all", "x", "no name of a node")):
        with pytest.raises(BadInput, match=why):
            controller.isolate(node, "mark-1", reason)
    with pytest.raises(BadInput, match="is no name of a variable"):
        controller.restart(Restart("mark-1", "llm", environment={"A=B": "1"}))


JOB_URL = "http://receiver/jobs/{job}"
SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes ....").decode()


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    return file


class Receiver:
    """A site's own service: it keeps which node is isolated under which mark."""

    def __init__(self) -> None:
        self.isolated: dict[str, dict[str, str | None]] = {}
        self.seen: list[httpx.Request] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            self.seen.append(request)
            return httpx.Response(200, json=self.act(json.loads(request.content)))
        known = {
            b"/nodes": {"nodes": self.nodes()},
            b"/jobs/team%2Fllm": {"id": "team/llm", "state": "running", "nodes": ["h1", "h2"]},
        }
        path = request.url.raw_path
        return httpx.Response(200, json=known[path]) if path in known else httpx.Response(404, json={})

    def act(self, envelope: dict[str, Any]) -> dict[str, Any]:
        act, data = envelope["type"].removeprefix("dev.lockstep."), envelope["data"]
        if act == "restart":
            return {"outcome": "done", "what": "started", "job": data["job"] + "-2"}
        node, held = data["node"], self.isolated.get(data["node"])
        if held and held["mark"] != data["mark"]:
            return {"outcome": "refused", "what": f"{node} is held by {held['mark']}"}
        if (held is not None) == (act == "isolate"):
            return {"outcome": "already", "what": f"{node}: nothing to do"}
        if act == "isolate":
            self.isolated[node] = {"mark": data["mark"], "reason": data["reason"]}
        else:
            del self.isolated[node]
        return {"outcome": "done", "what": f"{act} {node}"}

    def nodes(self) -> list[dict[str, Any]]:
        free = [{"name": name, "is_usable": True} for name in ("h1", "h2") if name not in self.isolated]
        return free + [{"name": name, "is_usable": False, **held} for name, held in self.isolated.items()]


def answering(answer: Callable[[httpx.Request], httpx.Response], **options: Any) -> WebhookController:
    made = WebhookOptions("http://receiver/hook", **options)
    return WebhookController(made, ManualClock(1_700_000_000 * NS_PER_S), httpx.MockTransport(answer))


def saying(status: int = 200, **body: Any) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _request: httpx.Response(status, json=body)


def test_the_webhook_keeps_the_contract_of_controllers(secret_file: Path) -> None:
    receiver = Receiver()
    options = {"secret_file": secret_file, "nodes_url": "http://receiver/nodes", "job_url": JOB_URL}
    check_contract(
        Rig(
            make=lambda dry: answering(receiver.answer, dry_run=dry, **options),
            look=lambda: dict(receiver.isolated),
            node="h1",
            other="h2",
            reset=receiver.isolated.clear,
            occupy=lambda node: receiver.isolated.update({node: {"mark": None, "reason": "burn-in"}}),
        )
    )


def test_order_is_signed_so_that_the_receiver_can_check_it_and_the_same_act_has_the_same_id(
    secret_file: Path,
) -> None:
    receiver = Receiver()
    for file in (secret_file, None):
        answering(receiver.answer, secret_file=file).isolate("h1", "mark-1", "xid 79")
    signed, unsigned = receiver.seen
    named = signed.headers
    assert named["webhook-id"] == unsigned.headers["webhook-id"] == "mark-1/isolate/h1"
    assert json.loads(signed.content)["id"] == named["webhook-id"]
    assert named["webhook-timestamp"] == "1700000000"
    text = b"mark-1/isolate/h1.1700000000." + signed.content
    expected = hmac.new(b"a secret of thirty-two bytes ....", text, hashlib.sha256).digest()
    assert named["webhook-signature"] == "v1," + base64.b64encode(expected).decode()
    assert "webhook-signature" not in unsigned.headers
    secret_file.write_text("whsec_!!!")
    with pytest.raises(BadInput, match="not base64"):
        answering(saying(), secret_file=secret_file)


def test_restart_carries_the_whole_order_and_brings_the_new_job_back_which_is_asked_for_by_its_name() -> None:
    receiver = Receiver()
    order = Restart("mark-1", "llm", ("h1",), 3, "/c/step-400", {"TP": "2"})
    controller = answering(receiver.answer, job_url=JOB_URL)
    report = controller.restart(order)
    view = controller.job("team/llm")
    assert view is not None
    assert (view.state, view.nodes) == ("running", ("h1", "h2"))
    assert controller.job("gone") is None
    assert (report.outcome, report.job) == ("done", "llm-2")
    assert json.loads(receiver.seen[0].content)["data"] == {
        "mark": "mark-1", "job": "llm", "exclude": ["h1"], "nnodes": 3, "checkpoint": "/c/step-400",
        "environment": {"TP": "2"},
    }  # fmt: skip


def test_receiver_that_tells_nothing_is_down_not_empty_but_without_addresses_nothing_is_known() -> None:
    controller = answering(saying(401), nodes_url="http://receiver/nodes", job_url="http://receiver/{job}")
    with pytest.raises(ControllerDown, match="does not describe job llm: HTTP 401"):
        controller.job("llm")
    with pytest.raises(ControllerDown, match="does not list its nodes: HTTP 401"):
        controller.nodes()
    controller = answering(saying())
    assert list(controller.nodes()) == []
    assert controller.job("llm") is None


def test_receiver_that_is_in_trouble_or_times_out_is_down_and_a_redirect_refused() -> None:
    def hang(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("timed out", request=request)

    nowhere = WebhookController(WebhookOptions("http://127.0.0.1:9/hook"))
    for controller, why in (
        *((answering(saying(status)), f"HTTP {status}") for status in (408, 429, 500, 503)),
        (answering(hang), "does not answer: timed out"),
        (nowhere, r"127\.0\.0\.1:9/hook does not answer"),  # over the network
    ):
        with pytest.raises(ControllerDown, match=why):
            controller.isolate("h1", "mark-1", "xid 79")
    moved = answering(lambda _: httpx.Response(307, headers={"Location": "http://elsewhere/"}))
    report = moved.isolate("h1", "mark-1", "xid 79")
    assert (report.outcome, "HTTP 307" in report.what) == ("refused", True)


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


def test_answer_that_makes_no_sense_is_a_failure_and_of_nodes_a_controller_that_is_down() -> None:
    for body in ("", "[]", "{}", '{"outcome": "maybe", "what": "x"}', '{"outcome": "done"}', "<html>"):
        answer = httpx.Response(200, text=body)
        report = answering(lambda _: answer).isolate("h1", "mark-1", "xid 79")  # noqa: B023  # called at once
        assert (report.outcome, "cannot be understood" in report.what) == ("failed", True)
    for reported in ({}, {"nodes": [{"name": "h1"}]}, {"nodes": 3}):
        controller = answering(saying(**reported), nodes_url="http://receiver/nodes")
        with pytest.raises(ControllerDown, match="cannot be understood"):
            controller.nodes()
