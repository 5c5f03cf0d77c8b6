"""A job's last minutes are saved whole, and the verdict on them is right, alone on standard output."""

import json
import os
import pickle
from pathlib import Path

import pytest

from cli.capture import parse_since
from lockstep.capture.files import CaptureInfo, CaptureWriter, read_capture
from lockstep.errors import BadInput
from lockstep.fabrics import leaf_spine
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from tests.api.build import running_api
from tests.api.fake_store import FakeStore
from tests.api.routes.test_captures import store_job
from tests.cli.answering import answering, unused_address
from tests.cli.commands import Outcome, Run, check_failure, run_process
from tests.importers.traces.test_flight_recorder import dump, entry
from tests.importers.traces.test_gpud import component, event
from tests.lockstep.state.build import incident
from tests.tiers import long_except

SERVER = "--server"


@pytest.mark.slow
def test_slow_nic_is_the_one_verdict_and_progress_is_on_standard_error(tmp_path: Path) -> None:
    target = str(tmp_path / "slow.tar.zst")
    told = run_process("simulate", "nic-half-speed", "--out", target, "--ranks", "32", state=tmp_path)
    slow_nic = run_process("diagnose", target, "--json", state=tmp_path)
    assert (told.code, told.out, slow_nic.code) == (0, "", 0)
    (verdict,) = json.loads(slow_nic.out)
    assert (verdict["class"], verdict["component"]) == ("comm_slow", "nic:h3/eth1")
    assert verdict["job"] == "nic-half-speed"
    began_s = verdict["since_ns"] / 1e9 - 1_700_000_000
    assert 15 <= began_s <= 25, "the NIC is slow from second 20 on, and windows have five seconds"
    lines = slow_nic.err.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["reading", "analysing"]
    told_of = ("rows loaded: ", "windows evaluated: ")
    loaded, evaluated = ([line for line in lines if line.startswith(what)] for what in told_of)
    assert 1 <= len(loaded) <= 4
    assert len(evaluated) == 4, "a line each quarter, where nobody looks at a terminal"
    assert len({part.split(" of ")[1] for part in evaluated}) == 1


def test_capture_that_is_none_is_one_sentence(lockstep: Run, tmp_path: Path) -> None:
    for name in ("a.tar.zst", "a.zip"):
        (tmp_path / name).write_bytes(b"garbage")
    for name, reason in (("absent.tar.zst", "there is no such file or directory"), ("a.tar.zst", ""), ("a.zip", "")):
        outcome = lockstep("diagnose", tmp_path / name)
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err.splitlines()[-1].startswith("lockstep: ")
        assert reason in outcome.err.splitlines()[-1]
        assert "Traceback" not in outcome.err
    for arguments in ([], ["capture", "--job", "j1"]):
        outcome = lockstep("diagnose", *arguments)
        check_failure(outcome, "give a capture, or --job with the name of a running job", code=2)


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
        "  1 % of the job's hosts sent no telemetry",
    ]
    assert (nobody.code, nobody.out.split(":")[0]) == (0, "no verdict")
    check_failure(refused, "this needs a token: send Authorization: Bearer <token>")


def test_reason_is_printed_as_it_is_and_a_page_written_beside_it(lockstep: Run, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    with running_api(tmp_path, FakeStore()) as api:
        told = incident("i1", job="a")
        odd = told.verdict.model_copy(update={"reason": "[/x] [red]:smile:", "component": "nic:[/a]/eth1"})
        save_incidents(api.parts.control, [told.model_copy(update={"verdict": odd})], None)
        to = ("--job", "a", SERVER, str(api.client.base_url), "--token", api.make_token("read"))
        outcome = lockstep("diagnose", *to)
        written = lockstep("diagnose", "--json", "--html", page, *to)
        absent = lockstep("diagnose", "--html", tmp_path / "absent" / "report.html", "--json", *to)
    assert outcome.code == 0
    assert "\n1 nic:[/a]/eth1 slows what it sends" in outcome.out
    assert "\n  [/x] [red]:smile:" in outcome.out
    assert (written.code, written.err) == (0, f"wrote {page}\n")
    assert json.loads(written.out)[0]["component"] == "nic:[/a]/eth1"
    assert "nic:[/a]/eth1 tx" in page.read_text(encoding="utf-8")
    assert (absent.code, "absent/report.html: No such file or directory" in absent.err) == (1, True)


@pytest.mark.parametrize("has_topology", long_except([True], [True, False]))
def test_empty_capture_has_no_verdict(lockstep: Run, tmp_path: Path, has_topology: bool) -> None:
    with CaptureWriter(tmp_path / "empty") as writer:
        writer.finish(CaptureInfo(job="a", start_ns=0, end_ns=1), leaf_spine(2, 1, 1, 1) if has_topology else None)
    outcome = lockstep("diagnose", tmp_path / "empty", "--html", tmp_path / "page.html")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("no verdict: ")
    assert lockstep("diagnose", tmp_path / "empty", "--json").out == "[]\n"
    assert "no verdict: " in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_server_that_is_not_there_or_not_ours_is_one_sentence(lockstep: Run) -> None:
    nobody = unused_address()
    check_failure(lockstep("diagnose", "--job", "a", SERVER, nobody), f"no Lockstep server answers at {nobody}")
    for body in (b"<html>", b"[]", b'{"items": [{}]}', b'{"items": [{"verdict": {"id": "v"}}]}'):
        with answering(200, body) as server:
            outcome = lockstep("diagnose", "--job", "a", SERVER, server)
        check_failure(outcome, f"what answers at {server} is no Lockstep server of this version")


JOB = "team/run 1?#%2F"  # schedulers let people name jobs as they like


def test_what_cannot_be_captured_is_one_sentence_and_nothing_is_overwritten(lockstep: Run, tmp_path: Path) -> None:
    assert [parse_since(text) for text in ("90s", "10m", "2h", "0s")] == [90, 600, 7200, 0]
    for text in ("", "10", "m", "10 m", "-5m", "1.5h", "10d", "10mm", "soon"):
        with pytest.raises(BadInput, match="is no length of time: write 90s, 10m or 2h"):
            parse_since(text)

    def refusal(*more: str) -> Outcome:
        return lockstep("capture", "--job", "j1", "--out", tmp_path / "a", *more)

    check_failure(refusal("--since", "soon"), "'soon' is no length of time: write 90s, 10m or 2h")
    server = unused_address()
    check_failure(refusal("--server", server), f"no Lockstep server answers at {server}")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").write_text("precious")
    check_failure(refusal(), f"{tmp_path}/a exists already; captures are never overwritten")
    assert (tmp_path / "a").read_text() == "precious"


def test_running_job_is_saved_and_of_an_unknown_one_nothing_left(
    lockstep: Run, tmp_path: Path, embedded_store: Store
) -> None:
    new = tmp_path / "new"
    with running_api(tmp_path, embedded_store) as api:
        store_job(api, JOB, host="h0")
        to = ("--server", str(api.client.base_url), "--token", api.make_token("read"))
        targets = [new / name for name in ("a.tar.zst", "b")]
        outcomes = [lockstep("capture", "--job", JOB, "--out", target, *to) for target in targets]
        short = lockstep("capture", "--job", JOB, "--out", tmp_path / "c", "--since", "1s", *to)
        unknown = lockstep("capture", "--job", "nobody", "--out", new / "d", *to)
        too_long = lockstep("capture", "--job", "nobody", "--out", new / "d", "--since", "25h", *to)
    for target, outcome in zip(targets, outcomes, strict=True):
        assert (outcome.code, outcome.out, outcome.err) == (0, "", f"wrote {target}\n")
        capture = read_capture(target)
        assert (capture.info.job, capture.info.hosts) == (JOB, ("h0",))
        held = {name: table.num_rows for name, table in capture.tables.items()}
        assert held == {"comms": 1, "collectives": 1, "events": 1}
    assert short.code == 0
    assert set(read_capture(tmp_path / "c").tables) == {"comms"}
    check_failure(unknown, "the store knows no job 'nobody'")
    check_failure(too_long, "query.since_s: Input should be less than or equal to 86400")
    assert sorted(path.name for path in new.iterdir()) == ["a.tar.zst", "b"]


@pytest.mark.parametrize("name", ["a", "a.tar.zst"])
def test_answer_that_is_no_capture_leaves_nothing(lockstep: Run, tmp_path: Path, name: str) -> None:
    with answering(200, b"<html>please log in</html>") as server:
        outcome = lockstep("capture", "--job", "j1", "--out", tmp_path / name, "--server", server)
    check_failure(outcome, "capture.tar.zst: is not a whole .tar.zst")
    assert list(tmp_path.iterdir()) == []


def lay_dumps(folder: Path) -> None:
    """Lay down dumps of three of four ranks: two wait in an operation that rank 2 has not enqueued."""
    folder.mkdir()
    waits = entry(collective_seq_id=8, op_id=8, state="started")
    status = {"last_enqueued_collective": 8, "last_started_collective": 8, "last_completed_collective": 7}
    for rank, told in enumerate((dump(entry(), waits, pg_status={"0": status}),) * 2 + (dump(entry()),)):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(told, protocol=2))


def test_each_run_is_judged_by_itself_and_what_is_missing_is_named(lockstep: Run, tmp_path: Path) -> None:
    check_failure(lockstep("explain", tmp_path), "none of these files is a recording that Lockstep reads")
    check_failure(lockstep("explain", tmp_path / "absent"), "No such file or directory")
    lay_dumps(tmp_path / "night")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken.tar.zst").write_bytes(b"garbage")
    (tmp_path / "night" / "README").write_text("what happened")
    (tmp_path / "h3.json").write_text(json.dumps([component(event())]))
    (tmp_path / "bad_rank_0").write_bytes(pickle.dumps({"pg_config": 1}))
    told = lockstep("explain", tmp_path)
    assert told.code == 0
    assert f"{tmp_path / 'night'}: flight-recorder, 3 files" in told.out
    assert "rank 2 on rank-2 never entered" in told.out
    assert "of 1 of 4 ranks there is no file here (rank 3)" in told.out
    assert "host:h3: " in told.out, "what a health daemon reported"
    assert f"{tmp_path / 'bad_rank_0'}: " in told.err
    assert "broken.tar.zst" in told.err, "one bad capture keeps nothing else from being told"
    assert f"not a recording that Lockstep reads: {tmp_path / 'night' / 'README'}" in told.err
    page = tmp_path / "page.html"
    (tmp_path / "night").rename(tmp_path / "[b]night")
    assert f"{tmp_path}/[b]night: flight-recorder" in lockstep("explain", tmp_path / "[b]night").out
    told = lockstep("explain", tmp_path / "[b]night", "--json", "--html", page)
    (run,) = json.loads(told.out)
    assert [verdict["component"] for verdict in run["verdicts"]] == ["host:rank-2"]
    assert "rank-2" in page.read_text()
