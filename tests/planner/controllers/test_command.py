"""The command controller with real commands: a small script that keeps its state in a folder."""

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as bounds
from hypothesis import strategies as some

from lockstep.errors import BadInput, ControllerDown
from planner.controllers.command import CommandController, CommandOptions, fill
from planner.controllers.protocol import Restart
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


def test_it_keeps_the_contract_of_controllers(tmp_path: Path) -> None:
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


def test_last_line_is_the_sentence(tmp_path: Path) -> None:
    tool = write_tool(tmp_path)
    controller = CommandController(CommandOptions(isolate=(tool, str(tmp_path), "isolate", "{node}", "{mark}")))
    assert controller.isolate("h1", "mark-1", "xid 79").what == "isolate of h1 is done"


@pytest.mark.parametrize(
    ("code", "outcome"), [(0, "done"), (3, "already"), (4, "refused"), (1, "failed"), (9, "failed")]
)
def test_exit_code_is_the_outcome(code: int, outcome: str) -> None:
    controller = CommandController(CommandOptions(release=("sh", "-c", f"echo so; exit {code}")))
    report = controller.release("h1", "mark-1")
    assert report.outcome == outcome
    assert "so" in report.what


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


def test_act_without_a_command_is_refused() -> None:
    controller = CommandController(CommandOptions())
    assert controller.isolate("h1", "mark-1", "xid 79").what == "no command is configured to isolate"
    assert controller.reattempt("llm", "mark-1").outcome == "refused"
    assert list(controller.nodes()) == []
    assert controller.job("llm") is None


def test_nodes_and_jobs_are_read_from_what_commands_print() -> None:
    told = json.dumps({"nodes": [{"name": "h1", "is_usable": False, "mark": "mark-1", "reason": "xid 79"}]})
    job = ("sh", "-c", 'test "$0" = llm && echo \'{"id": "llm", "state": "failed"}\' || echo "{}"', "{job}")
    controller = CommandController(CommandOptions(nodes=("echo", told), job=job))
    assert controller.nodes()[0].mark == "mark-1"
    view = controller.job("llm")
    assert view is not None
    assert view.state == "failed"
    assert controller.job("gone") is None


def test_command_that_does_not_end_is_killed() -> None:
    controller = CommandController(CommandOptions(isolate=("sleep", "600"), timeout_s=0.05))
    with pytest.raises(ControllerDown, match=r"did not end within 0\.05 s"):
        controller.isolate("h1", "mark-1", "xid 79")


@pytest.mark.parametrize("nodes", [("false",), ("/no/such/tool",), ("echo", "nonsense")])
def test_look_that_fails_is_a_controller_that_is_down(nodes: tuple[str, ...]) -> None:
    with pytest.raises(ControllerDown):
        CommandController(CommandOptions(nodes=nodes)).nodes()


@pytest.mark.parametrize(
    ("templates", "complaint"),
    [
        (CommandOptions(release=("tool", "{reason}")), r"for release has \{reason\} in it; it can have: mark, node"),
        (CommandOptions(nodes=("tool", "{node}")), "it can have: none"),
        (CommandOptions(isolate=("{node}",)), "must be named, not filled in"),
    ],
)
def test_template_that_cannot_be_filled_in_stops_the_start(templates: CommandOptions, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        CommandController(templates)


@pytest.mark.parametrize("reason", ["--force", "a\0b"])
def test_value_that_would_be_an_option_is_bad_input(reason: str) -> None:
    controller = CommandController(CommandOptions(isolate=("echo", "{reason}")))
    with pytest.raises(BadInput, match="reason would be taken for an option"):
        controller.isolate("h1", "mark-1", reason)


@pytest.mark.parametrize("node", ["", "--all", "h1 h2", "h[1-4]"])
def test_name_that_is_not_one_node_is_bad_input(node: str) -> None:
    with pytest.raises(BadInput, match="is no name of a node"):
        CommandController(CommandOptions(isolate=("echo", "{node}"))).isolate(node, "mark-1", "xid 79")


@pytest.mark.parametrize("environment", [{"A=B": "1"}, {"": "1"}, {"A": "\0"}])
def test_variable_that_no_process_can_have_is_bad_input(environment: dict[str, str]) -> None:
    controller = CommandController(CommandOptions(restart=("true",)))
    with pytest.raises(BadInput, match="is no name of a variable"):
        controller.restart(Restart("mark-1", "llm", environment=environment))


@bounds(max_examples=100, deadline=None)
@given(
    some.text().filter(lambda text: not text.startswith("-") and "\0" not in text),
    some.lists(some.text(max_size=9), max_size=5),
)
def test_filling_in_never_changes_the_number_of_arguments(reason: str, rest: list[str]) -> None:
    plain = tuple(argument.replace("{", "").replace("}", "") for argument in rest)
    template = ("tool", "{reason}", *plain)
    assert fill(template, {"reason": reason}) == ("tool", reason, *plain)
