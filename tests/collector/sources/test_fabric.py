"""Exporters on real sockets, well and ill: rows come from those that answer, whatever the others do."""

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from collector.sources import fabric, fabric_ports
from collector.sources.fabric import FabricSource
from lockstep.arrow import schema_of
from lockstep.clock import Clock
from lockstep.errors import NotPresent
from lockstep.tables import TABLE_BY_NAME
from tests.builders import T0
from tests.collector.sources.test_fabric_ports import SNMP, UFM
from tests.http_serving import Quiet, serving
from tests.waiting import HastyClock, eventually

Answer = Callable[[Quiet], None]

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Exporter:
    """Where the server is, and the headers of the requests it had."""

    def __init__(self, answer: Answer) -> None:
        self.url, self.answer = "", answer
        self.asked: list[dict[str, str]] = []
        self.released = threading.Event()  # for answers that hang until the test ends


def says(body: str | bytes, *, status: int = 200, **headers: str) -> Answer:
    data = body.encode() if isinstance(body, str) else body
    return lambda request: request.reply(status, data, **({"Content_Type": TEXT} | headers))


@contextmanager
def exporter(answer: Answer) -> Iterator[Exporter]:
    """Give an exporter for the length of a block; `answer` may be replaced meanwhile."""
    running = Exporter(answer)

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            running.asked.append(dict(self.headers))
            with suppress(OSError):  # the other side had enough
                running.answer(self)

    with serving(Handler) as url:
        running.url = f"{url}/metrics"
        try:
            yield running
        finally:
            running.released.set()


def hangs(running: Callable[[], Exporter], drip: bytes = b"") -> Answer:
    """Answer nothing until the test ends, or a byte now and then, so that no single read ever waits long."""

    def answer(request: Quiet) -> None:
        if drip:
            begin_text(request)
        while not running().released.wait(0.02):
            request.wfile.write(drip)
            request.wfile.flush()

    return answer


def begin_text(request: Quiet) -> None:
    request.send_response(200)
    request.send_header("Content-Type", TEXT)
    request.end_headers()


Row = dict[str, Any]  # Any: what a row holds
SERVED = "exporter of switches cannot be read in full"


def toml_of(url: str, **settings: object) -> str:
    words = {"url": url, "profile": "snmp_if_mib", "switch": "leaf1", "every_s": 0.1, "timeout_s": 60} | settings
    return "[[target]]\n" + "".join(f"{name} = {value!r}\n" for name, value in words.items())


@contextmanager
def source_of(folder: Path, *targets: str, clock: Clock | None = None) -> Iterator[FabricSource]:
    """Give the source over these targets; at the end it is closed as the agent would."""
    file = folder / "fabric.toml"
    file.write_text("".join(targets), encoding="utf-8")
    source = FabricSource("head", file, clock)
    try:
        yield source
    finally:
        source.close()


def rows_until(source: FabricSource, least: int = 1) -> list[Row]:
    """Read until so many rows have come."""
    rows: list[Row] = []

    def enough() -> bool:
        reading = source.read(T0, ())
        assert reading.tables["fabric_counters"].schema == schema_of(TABLE_BY_NAME["fabric_counters"])
        assert reading.watermark_ns == T0
        rows.extend(reading.tables["fabric_counters"].to_pylist())
        return len(rows) >= least

    eventually(enough)
    return rows


def complaint_of(folder: Path, url: str, clock: Clock | None = None, **settings: object) -> str:
    """Return the one complaint that the log has about a target once it was asked twice in vain."""
    with (
        patch.object(fabric._Scraper, "_ask", autospec=True, side_effect=fabric._Scraper._ask) as asked,
        capture_logs() as logs,
        source_of(folder, toml_of(url, **settings), clock=clock) as source,
    ):
        source.read(T0, ())
        eventually(lambda: asked.call_count > 2)
        assert source.read(T0, ()).tables["fabric_counters"].num_rows == 0
    # A thread of the test before, which nobody waits for, may still have a word about its own exporter.
    (line,) = [line for line in logs if line["event"] == SERVED and line["target"] == url]
    assert line["log_level"] == "warning"
    return str(line["problem"])


def test_exporter_that_hangs_or_drips_delays_nobody_and_is_given_up(tmp_path: Path) -> None:
    with (
        exporter(says(SNMP)) as well,
        exporter(hangs(lambda: stuck)) as stuck,
        exporter(hangs(lambda: slow, b"#")) as slow,
    ):
        targets = [toml_of(stuck.url, timeout_s=300), toml_of(slow.url, timeout_s=300), toml_of(well.url)]
        with source_of(tmp_path, *targets) as source:
            source.read(T0, ())
            eventually(lambda: stuck.asked and slow.asked)
            rows_until(source, 4)
            assert (len(stuck.asked), len(slow.asked)) == (1, 1)
        assert complaint_of(tmp_path, stuck.url, timeout_s=0.3).startswith("ReadTimeout")
        # On a hasty clock the whole answer may take 0.6 s, and each byte, which httpx times by itself, a minute.
        assert complaint_of(tmp_path, slow.url, HastyClock(), timeout_s=60) == "its answer took too long"


def test_no_target_is_an_answer_and_nobody_there_is_said_once(tmp_path: Path) -> None:
    with closing(FabricSource("head")) as source, pytest.raises(NotPresent, match="no exporter of a switch is named"):
        source.read(T0, ())
    with socket.socket() as held:  # so that nobody else gets the port
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/metrics"
        assert complaint_of(tmp_path, url).startswith("ConnectError")


def test_healthy_exporter_is_read_again_and_again_also_packed_with_gzip_or_in_openmetrics(tmp_path: Path) -> None:
    answer = packed(gzip.compress(SNMP.encode()))
    with exporter(answer) as switch, source_of(tmp_path, toml_of(switch.url)) as source:
        first, second = rows_until(source, 2)[:2]
    found = (first["host"], first["switch"], first["port"], first["rx_bytes"])
    assert found == ("head", "leaf1", "Eth1/1", 15 * 10**11)
    assert 0 < first["ts_ns"] < second["ts_ns"]
    assert switch.asked[0]["Accept-Encoding"] == "gzip"
    lines = SNMP.replace("ifHCInOctets{", "ifHCInOctets_total{").replace("ifHCOutOctets{", "ifHCOutOctets_total{")
    kept = "\n".join(line for line in lines.splitlines() if any(word in line for word in ("Octets", "ifOperStatus")))
    strict = says(kept.strip() + "\n# EOF\n", Content_Type="application/openmetrics-text; version=1.0.0")
    with exporter(strict) as switch, source_of(tmp_path, toml_of(switch.url)) as source:
        row = rows_until(source)[0]
    assert (row["rx_bytes"], row["tx_bytes"], row["up"]) == (15 * 10**11, 200, True)


def endless(request: Quiet) -> None:
    begin_text(request)
    while True:
        request.wfile.write(b"# more\n" * 10_000)


def packed(body: bytes) -> Answer:
    return says(body, Content_Encoding="gzip")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (says("sorry", status=500), "it answers with status 500"),
        (says("", status=302, Location="http://127.0.0.1:1/"), "it answers with status 302"),
        (says(b'ifHCInOctets{ifName="a"} \xff\xfe\n'), "its answer is not text"),
        (says(b'ifHCInOctets{ifName="a" 1\n'), "its answer is not in the Prometheus format"),
        (says(b"ifHCInOctets{" + b"x" * 70_000), "a line of its answer is longer than 64 KiB"),
        (packed(b"not gzip"), "its answer "),
        (packed(gzip.compress(SNMP.encode(), mtime=0)[:-9]), "its answer "),
        (says(b"", Content_Encoding="br"), "its answer is packed as 'br', which nobody asked for"),
        (packed(gzip.compress(b"#\n" * (1 << 20))), "its answer is larger than 1 MiB"),
        (endless, "its answer is larger than 1 MiB"),
    ],
)
def test_answer_that_is_none_is_refused_and_said_once(tmp_path: Path, answer: Answer, problem: str) -> None:
    with exporter(answer) as ill:
        assert complaint_of(tmp_path, ill.url, max_mb=1).startswith(problem)


def test_more_wanted_lines_than_are_kept_are_refused_and_an_authority_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabric_ports, "MOST_KEPT_BYTES", 500)
    with exporter(says(SNMP)) as large:
        assert "of what the profile wants" in complaint_of(tmp_path, large.url)
        problem = complaint_of(tmp_path, large.url, ca_file=str(tmp_path / "ca.pem"))
        assert problem.startswith("FileNotFoundError")


def test_exporter_that_recovers_is_read_again_with_its_authorization_and_what_nobody_takes_is_dropped_and_counted(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "authorization"
    secret.write_text("Bearer one\n")
    away, named = says("", status=503), {"authorization_file": str(secret)}
    with (
        capture_logs() as logs,
        exporter(away) as switch,
        source_of(tmp_path, toml_of(switch.url, **named)) as source,
    ):
        source.read(T0, ())
        eventually(lambda: logs)
        secret.write_text("Bearer two\n")
        switch.answer = says(SNMP)
        rows_until(source)
        eventually(lambda: any(line["log_level"] == "info" for line in logs))
        eventually(lambda: switch.asked[-1]["Authorization"] == "Bearer two")
        asked = len(switch.asked)
        eventually(lambda: len(switch.asked) >= asked + 7)
        reading = source.read(T0, ())
    assert (switch.asked[0]["Authorization"], logs[0]["log_level"]) == ("Bearer one", "warning")
    assert reading.tables["fabric_counters"].num_rows == 4
    assert reading.dropped >= 1


def test_same_samples_of_an_exporter_that_stamps_them_are_no_new_rows(tmp_path: Path) -> None:
    named = {"profile": "ufm_telemetry"}
    with exporter(says(UFM)) as ufm, source_of(tmp_path, toml_of(ufm.url, **named)) as source:
        rows_until(source, 1)
        asked = len(ufm.asked)
        eventually(lambda: len(ufm.asked) > asked + 1)
        assert source.read(T0, ()).tables["fabric_counters"].num_rows == 0
        ufm.answer = says(UFM.replace("1628683905941", "1628683906941"))
        assert len(rows_until(source, 1)) == 1
