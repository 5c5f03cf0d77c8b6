"""What a hostile reader, receiver, upload or neighbour tried, and got nothing by."""

import sqlite3
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.capture_check import check_capture
from api.captures import _MOST_VERDICTS, _check_past, _read_verdicts
from api.routes import stream
from lockstep.capture.files import Capture, CaptureInfo, dump_info, pack
from lockstep.config import Settings
from lockstep.errors import BadInput
from lockstep.records import TransferStat
from lockstep.sections import ApiSettings
from lockstep.state import idempotency
from lockstep.state.deliveries import list_deliveries
from lockstep.state.incidents import save_incidents
from lockstep.state.tokens import match_token_id, revoke_token
from tests.api.alerts import build as alerts_build
from tests.api.alerts.build import alerting, fault, target
from tests.api.alerts.receivers import Got, answer, receiving
from tests.api.build import bearer, check_problem, running_api
from tests.api.fake_store import FakeStore
from tests.api.test_limits import StillClock
from tests.builders import T0, make, rows
from tests.fixtures.control import opened_control
from tests.http_serving import Quiet
from tests.lockstep.state.build import incident
from tests.tiers import long_except


def test_message_whose_outcome_was_not_written_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts_build, "opened_control", partial(opened_control, lock_wait_ms=50))
    with receiving() as receiver, alerting(tmp_path, target(url=receiver.url, events=("incident",))) as alerts:
        alerts.round()
        other = sqlite3.connect(tmp_path / "control.db", isolation_level=None, check_same_thread=False)

        def refuse(handler: Quiet, got: Got) -> None:
            other.execute("BEGIN IMMEDIATE")  # a neighbour is stuck in the middle of a write
            answer(500)(handler, got)

        receiver.reply = refuse
        alerts.happen(fault())
        alerts.round()
        other.execute("ROLLBACK")
        assert [each.state for each in list_deliveries(alerts.control, "ops")] == ["sending"]
        receiver.reply = answer(200)
        alerts.round(1)
        assert [each.state for each in list_deliveries(alerts.control, "ops")] == ["delivered"]
        assert len({got.headers["webhook-id"] for got in receiver.got}) == 1
        other.close()


@pytest.mark.slow
def test_long_queue_of_one_receiver_hides_nothing_from_another(tmp_path: Path) -> None:
    only = ("incident",)
    with (
        receiving(answer(500)) as dead,
        receiving() as well,
        alerting(tmp_path, target("a", url=dead.url, events=only), target("b", url=well.url, events=only)) as alerts,
    ):
        alerts.happen(*(fault(f"i{number}", job=f"j{number}") for number in range(520)))
        for _ in range(27):
            alerts.round()
        assert len({got.headers["webhook-id"] for got in well.got}) == 520


def test_secret_of_a_receiver_does_not_move_to_another_address_nor_is_its_path_shown(tmp_path: Path) -> None:
    with running_api(tmp_path, FakeStore()) as api:
        admin = bearer(api.make_token("admin"))
        am = {"name": "am", "kind": "alertmanager", "url": "https://am.example", "secrets": ["bearer-1"]}
        chat = {"name": "chat", "kind": "webhook", "url": "https://chat.example/hooks/1/hidden"}
        for made in (am, chat):
            assert api.client.post("/api/v1/webhooks", json=made, headers=admin).status_code == 201
        for url in ("https://evil.example", "http://am.example"):
            refused = api.client.patch("/api/v1/webhooks/am", json={"url": url}, headers=admin)
            assert "give `secrets` anew" in check_problem(refused, 400, "bad-input")
        both = {"url": "https://new.example", "secrets": ["bearer-2"]}
        assert api.client.patch("/api/v1/webhooks/am", json=both, headers=admin).status_code == 200
        assert api.get("/api/v1/webhooks/chat").json()["url"] == "https://chat.example/…"
        answered = api.client.post("/login", content="&".join(f"a{number}=1" for number in range(11)))
        check_problem(answered, 400, "bad-input")  # too many fields


def test_stream_of_a_revoked_token_ends_while_much_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.0)
    with running_api(tmp_path, FakeStore()) as api:
        token = api.make_token("read")
        with api.client.stream("GET", "/api/v1/incidents/stream", headers=bearer(token)) as answered:
            lines = answered.iter_lines()
            assert next(lines).startswith("retry")
            revoke_token(api.parts.control, match_token_id(token), 1)
            save_incidents(api.parts.control, [incident("i1")], None)
            assert not [line for line in lines if line.startswith("data")]


@pytest.mark.parametrize("path", long_except(["/"], ["/nothing-here", "/"]))
def test_made_up_secrets_are_bounded_whatever_they_are_answered(tmp_path: Path, path: str) -> None:
    with running_api(tmp_path, FakeStore(), clock=StillClock()) as api:
        cookies = [{"Cookie": f"lockstep_session=x{number}", "Accept": "text/html"} for number in range(110)]
        for cookie in cookies:
            api.client.get(path, headers=cookie)
        tries = [api.client.get("/api/v1/incidents", headers={"Cookie": each["Cookie"]}) for each in cookies]
        assert sum(each.status_code == 401 for each in tries) <= 100


def test_blanks_make_no_second_caller(tmp_path: Path) -> None:
    settings = Settings(api=ApiSettings(requests_per_s=1.5))
    with running_api(tmp_path, FakeStore(), settings=settings, clock=StillClock()) as api:
        token = api.make_token("read")
        padded = [{"Authorization": f"Bearer {' ' * number}{token}"} for number in range(4)]
        asked = [api.client.get("/api/v1/incidents", headers=each).status_code for each in padded]
        assert asked == [200, 200, 200, 429]


@pytest.mark.slow
def test_small_archive_that_unpacks_to_gigabytes_is_refused_in_another_process(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    (folder / "capture.json").write_text(dump_info(CaptureInfo(job="j", start_ns=0, end_ns=1)))
    again = pa.DictionaryArray.from_arrays(pa.array([0] * 200_000, pa.int32()), pa.array(["x" * 65_536]))
    pq.write_table(pa.table({"message": again}), folder / "events.parquet", store_schema=False)
    pack(folder, tmp_path / "bomb.tar.zst")
    assert (tmp_path / "bomb.tar.zst").stat().st_size < 10_000
    with pytest.raises(BadInput, match=r"events\.parquet"):
        check_capture(tmp_path / "bomb.tar.zst", 64 << 20)


def test_verdicts_of_a_capture_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "verdicts.json").write_bytes(b" " * (_MOST_VERDICTS + 1))
    with pytest.raises(BadInput, match="more than 4 MiB"):
        _read_verdicts(tmp_path / "verdicts.json")


def test_reader_pushes_out_no_answer_that_others_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MOST", 3)
    with running_api(tmp_path, FakeStore()) as api:
        reader, actor = bearer(api.make_token("read")), bearer(api.make_token("act")) | {"Idempotency-Key": "k"}
        save_incidents(api.parts.control, [incident()], None)
        act = api.client.build_request("PUT", "/api/v1/incidents/i1/outcome", json={"was_right": True}, headers=actor)
        first = api.client.send(act)
        for number in range(5):
            api.client.post("/api/v1/nothing", headers=reader | {"Idempotency-Key": f"r{number}"})
        second = api.client.send(act)
        assert (second.json(), second.headers["Idempotency-Replayed"]) == (first.json(), "true")


def test_capture_of_a_job_that_would_look_alive_is_refused() -> None:
    told = rows(make(TransferStat, job="there", comm=1, rank=0, peer=1, host="h0", ts_ns=T0))
    capture = Capture(CaptureInfo(job="there", start_ns=0, end_ns=1), None, {"transfer_stats": told})
    with pytest.raises(BadInput, match="once it is ten minutes old"):
        _check_past(capture, T0 + 599 * 10**9)
    _check_past(capture, T0 + 601 * 10**9)
