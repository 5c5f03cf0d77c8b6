"""ft_launcher's exclusions: notes in a directory, and a real gRPC health check."""

import json
import socket as socketlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lockstep.errors import BadInput, ControllerDown, ServerAway
from planner.controllers import nvrx
from planner.controllers.nvrx import Exclusion, NvrxController, NvrxOptions
from planner.controllers.protocol import Restart
from tests.planner.build import isolated
from tests.planner.controllers.contract import Rig, check_contract
from tests.waiting import LIMIT_S


def test_it_keeps_the_contract_of_controllers(tmp_path: Path) -> None:
    def reset() -> None:
        for path in tmp_path.iterdir():
            path.unlink()

    check_contract(
        Rig(
            make=lambda dry: NvrxController(NvrxOptions(tmp_path, dry)),
            look=lambda: {path.name: path.read_text() for path in tmp_path.iterdir()},
            node="h1",
            other="h2",
            reset=reset,
            occupy=lambda node: (tmp_path / f"{node}.json").write_text('{"reason": "burn-in"}'),
        )
    )


def test_restart_is_left_to_the_launcher(tmp_path: Path) -> None:
    controller = NvrxController(NvrxOptions(tmp_path))
    report = controller.restart(Restart("mark-1", "llm"))
    assert report.outcome == "already"
    assert "restarts its workers by itself" in report.what
    assert "93" in report.what
    assert controller.reattempt("llm", "mark-1").outcome == "refused"
    assert controller.job("llm") is None


def test_directory_may_come_later_but_must_be_one(tmp_path: Path) -> None:
    controller = NvrxController(NvrxOptions(tmp_path / "later"))
    assert controller.nodes() == []
    assert controller.isolate("h1", "mark-1", "xid 79").outcome == "done"
    for node in ("../h1", "", "h1/h2", "h1,h2"):
        with pytest.raises(BadInput, match="no name of a node"):
            controller.isolate(node, "mark-1", "xid 79")
    (tmp_path / "file").write_text("")
    with pytest.raises(ControllerDown, match="Not a directory"):
        NvrxController(NvrxOptions(tmp_path / "file")).isolate("h1", "mark-1", "xid 79")


def test_note_that_nobody_understands_excludes_and_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "h1.json").write_text("{")
    controller = NvrxController(NvrxOptions(tmp_path))
    (node,) = controller.nodes()
    assert (node.is_usable, node.mark) == (False, None)
    assert controller.release("h1", "mark-1").outcome == "refused"


def decode(message: bytes) -> dict[int, Any]:
    """Return the fields of a protobuf message: an own reading, after the encoding's description."""
    fields: dict[int, Any] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 0:
            fields[key >> 3] = number()
        else:
            size = number()
            fields[key >> 3] = message[at : at + size].decode()
            at += size
    return fields


@given(some.text(max_size=300))
def test_any_reason_survives_the_encoding(reason: str) -> None:
    fields = decode(nvrx.encode_answer(Exclusion("h1", "mark-1", reason)))
    assert fields[4] == reason
    assert fields[2] == 1
    assert 1 not in fields, "success is left out, and so false"


def test_host_is_known_by_any_of_its_names_and_takes_part_when_it_is_back(tmp_path: Path) -> None:
    NvrxController(NvrxOptions(tmp_path)).isolate("h1", "mark-1", "xid 79")
    assert nvrx.find_noted(tmp_path, ["h1.cluster.local", "h1"]) == Exclusion("h1", "mark-1", "xid 79")
    assert nvrx.find_noted(tmp_path, ["h11"]) is None
    listed = [isolated("h1", state="returned"), isolated("h2", state="testing")]
    assert nvrx.find_isolated(listed, ["h1"]) is None
    assert nvrx.find_isolated(listed, ["h2", "h2.cluster.local"]) == Exclusion("h2", "d1", "slow")


def test_host_that_cannot_ask_is_healthy_and_says_why(tmp_path: Path) -> None:
    def find() -> Exclusion | None:
        raise ServerAway("no Lockstep server answers at http://head")

    (tmp_path / "file").write_text("")
    for ask, why in (
        (find, "at http://head"),
        (lambda: nvrx.find_noted(tmp_path / "file", ["h1"]), "Not a directory"),
    ):
        fields = decode(nvrx.check_host(ask))
        assert (fields[1], json.loads(fields[3])["fail_count"]) == (1, 0)
        assert why in fields[4]


def test_real_client_is_told_of_the_exclusion_and_of_its_end_but_no_file_is_overwritten(tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc", reason="needs the extra lockstep[nvrx]")
    (tmp_path / "precious").write_text("data")
    with pytest.raises(BadInput, match="it is no socket"):
        nvrx.serve_health(lambda: None, tmp_path / "precious")
    assert (tmp_path / "precious").read_text() == "data"
    socket, directory = tmp_path / "nvhcd.sock", tmp_path / "excluded"
    with socketlib.socket(socketlib.AF_UNIX) as dead:  # of a service that died
        dead.bind(str(socket))
    controller = NvrxController(NvrxOptions(directory))
    server = nvrx.serve_health(lambda: nvrx.find_noted(directory, ["h1"]), socket)
    try:
        with grpc.insecure_channel(f"unix://{socket}") as channel:
            ask = channel.unary_unary(f"/{nvrx.SERVICE}/{nvrx.METHOD}")
            request = b"\x0a\x0a--no-slurm"  # HealthCheckRequest(args=["--no-slurm"]), as the launcher sends it
            assert decode(ask(request, timeout=LIMIT_S)) == {1: 1, 3: '{"fail_count": 0}'}
            controller.isolate("h1", "mark-1", "xid 79 on GPU 3")
            reported = decode(ask(request, timeout=LIMIT_S))
            assert (reported.get(1, 0), reported[2], reported[4]) == (0, 1, "xid 79 on GPU 3")
            assert json.loads(reported[3])["fail_count"] == 1
            controller.release("h1", "mark-1")
            assert decode(ask(request, timeout=LIMIT_S))[1] == 1
    finally:
        server.stop(0).wait()
