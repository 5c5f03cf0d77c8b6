"""The verdict on a packaged scenario is right, alone on standard output; whatever else happens is one sentence."""

import json
from pathlib import Path

import pytest

from lockstep.capture.files import CaptureInfo, CaptureWriter
from lockstep.fabrics import leaf_spine
from lockstep.state.incidents import save_incidents
from tests.api.build import running_api
from tests.api.fake_store import FakeStore
from tests.cli.answering import answering, unused_address
from tests.cli.commands import Outcome, Run, check_failure, run_process
from tests.lockstep.state.build import incident

SERVER = "--server"


def simulate_and_diagnose(scenario: str, folder: Path, *options: str) -> Outcome:
    """Tell a scenario on half of its hosts, which halves the time, and return what diagnosis says about it."""
    target = folder / f"{scenario}.tar.zst"
    told = run_process("simulate", scenario, "--out", str(target), "--ranks", "32", state=folder)
    assert (told.code, told.out) == (0, "")
    return run_process("diagnose", str(target), *options, state=folder)


@pytest.fixture(scope="module")
def slow_nic(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return simulate_and_diagnose("nic-half-speed", tmp_path_factory.mktemp("slow"), "--json")


def test_slow_nic_is_the_one_verdict(slow_nic: Outcome) -> None:
    assert slow_nic.code == 0
    (verdict,) = json.loads(slow_nic.out)
    assert (verdict["class"], verdict["component"]) == ("comm_slow", "nic:h3/eth1")
    assert verdict["job"] == "nic-half-speed"
    began_s = verdict["since_ns"] / 1e9 - 1_700_000_000
    assert 15 <= began_s <= 25, "the NIC is slow from second 20 on, and windows have five seconds"


def test_progress_is_on_standard_error(slow_nic: Outcome) -> None:
    lines = slow_nic.err.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["reading", "analysing"]
    loaded, evaluated = (
        [line for line in lines if line.startswith(what)] for what in ("rows loaded: ", "windows evaluated: ")
    )
    assert 1 <= len(loaded) <= 4
    assert len(evaluated) == 4, "a line each quarter, where nobody looks at a terminal"
    assert len({part.split(" of ")[1] for part in evaluated}) == 1


@pytest.mark.slow
def test_healthy_cluster_has_no_verdict(tmp_path: Path) -> None:
    outcome = simulate_and_diagnose("healthy", tmp_path, "--json")
    assert (outcome.code, json.loads(outcome.out)) == (0, [])


def test_capture_that_is_not_there_is_one_sentence(lockstep: Run, tmp_path: Path) -> None:
    outcome = lockstep("diagnose", tmp_path / "absent.tar.zst")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.splitlines()[-1] == (
        f"lockstep: {tmp_path}/absent.tar.zst: there is no such file or directory"
    )


@pytest.mark.parametrize("name", ["a.tar.zst", "a.zip"])
def test_capture_that_is_none_is_one_sentence(lockstep: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"garbage")
    outcome = lockstep("diagnose", tmp_path / name)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.splitlines()[-1].startswith("lockstep: ")
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("arguments", [[], ["capture", "--job", "j1"]])
def test_neither_or_both_of_capture_and_job_is_bad_usage(lockstep: Run, arguments: list[str]) -> None:
    check_failure(lockstep("diagnose", *arguments), "give a capture, or --job with the name of a running job", code=2)


def test_running_job_is_asked_about_by_name(lockstep: Run, tmp_path: Path) -> None:
    with running_api(tmp_path, FakeStore()) as api:
        save_incidents(api.parts.control, [incident("i1", job="a"), incident("i2", job="b")], None)
        token, server = api.make_token("read"), str(api.client.base_url)
        as_json = lockstep("diagnose", "--job", "a", "--json", SERVER, server, LOCKSTEP_TOKEN=token)
        as_text = lockstep("diagnose", "--job", "a", SERVER, server, "--token", token)
        nobody = lockstep("diagnose", "--job", "c", SERVER, server, "--token", token)
        refused = lockstep("diagnose", "--job", "a", SERVER, server)
    assert [verdict["job"] for verdict in json.loads(as_json.out)] == ["a"]
    lines = [line.rstrip() for line in as_text.out.splitlines()]
    assert lines[1].split()[:6] == ["1", "nic:h3/eth1", "tx", "comm_slow", "97", "%"]
    assert lines[3:] == [
        "1 nic:h3/eth1 slows what it sends since 1970-01-01 00:00 UTC: steps take 1.42 times as long, 255 ranks wait",
        "  h3's eth1 sends at a tenth of its rate, says Zoë",
        "  might as well be link:h3/eth1--leaf1",
        "  not link:leaf1--spine2: others cross it at full rate",
        "  1 % of the job's hosts told nothing",
    ]
    assert (nobody.code, nobody.out.split(":")[0]) == (0, "no verdict")
    check_failure(refused, "this needs a token: send Authorization: Bearer <token>")


def test_reason_is_printed_as_it_is(lockstep: Run, tmp_path: Path) -> None:
    with running_api(tmp_path, FakeStore()) as api:
        told = incident("i1", job="a")
        odd = told.verdict.model_copy(update={"reason": "[/x] [red]:smile:", "component": "nic:[/a]/eth1"})
        save_incidents(api.parts.control, [told.model_copy(update={"verdict": odd})], None)
        token, server = api.make_token("read"), str(api.client.base_url)
        outcome = lockstep("diagnose", "--job", "a", SERVER, server, "--token", token)
    assert outcome.code == 0
    assert "\n1 nic:[/a]/eth1 slows what it sends" in outcome.out
    assert "\n  [/x] [red]:smile:" in outcome.out


def test_page_is_written_beside_what_is_printed(lockstep: Run, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    with running_api(tmp_path, FakeStore()) as api:
        save_incidents(api.parts.control, [incident("i1", job="a")], None)
        token, server = api.make_token("read"), str(api.client.base_url)
        outcome = lockstep("diagnose", "--job", "a", "--json", "--html", page, SERVER, server, "--token", token)
    assert (outcome.code, outcome.err) == (0, f"wrote {page}\n")
    assert json.loads(outcome.out)[0]["component"] == "nic:h3/eth1"
    assert "nic:h3/eth1 tx" in page.read_text(encoding="utf-8")


def test_page_that_cannot_be_written_is_one_sentence(lockstep: Run, tmp_path: Path) -> None:
    with running_api(tmp_path, FakeStore()) as api:
        token, server = api.make_token("read"), str(api.client.base_url)
        page = tmp_path / "absent" / "report.html"
        outcome = lockstep("diagnose", "--job", "a", "--html", page, SERVER, server, "--token", token)
    check_failure(outcome, f"lockstep: {page}: No such file or directory")


@pytest.mark.parametrize("has_topology", [True, False])
def test_empty_capture_has_no_verdict(lockstep: Run, tmp_path: Path, has_topology: bool) -> None:
    with CaptureWriter(tmp_path / "empty") as writer:
        writer.finish(CaptureInfo(job="a", start_ns=0, end_ns=1), leaf_spine(2, 1, 1, 1) if has_topology else None)
    outcome = lockstep("diagnose", tmp_path / "empty", "--html", tmp_path / "page.html")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("no verdict: ")
    assert "no verdict: " in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_server_that_is_not_there_is_one_sentence(lockstep: Run) -> None:
    server = unused_address()
    check_failure(lockstep("diagnose", "--job", "a", SERVER, server), f"no Lockstep server answers at {server}")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"items": [{}]}', b'{"items": [{"verdict": {"id": "v"}}]}'])
def test_server_that_is_not_ours_is_one_sentence(lockstep: Run, body: bytes) -> None:
    with answering(200, body) as server:
        outcome = lockstep("diagnose", "--job", "a", SERVER, server)
    check_failure(outcome, f"what answers at {server} is no Lockstep server of this version")
