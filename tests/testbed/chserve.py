"""The child process behind `tests.testbed.clickhouse`: runs the HTTP and TCP listeners inside the chdb-core wheel.

`chdb._chdb.query` is private. It runs clickhouse-local's server, which since 26.7 obeys SYSTEM START LISTEN; the
last statement reads a FIFO, so the engine lives until our standard input closes, also when the parent dies.
"""

import os
import sys
import threading
import time
from pathlib import Path

_POLL_S = 0.02


def serve(data: Path, run: Path) -> None:
    """Serve the data directory with run/config.xml until standard input ends; print the two ports first."""
    from chdb import _chdb  # before chdir: the import opens an engine that would read run/config.xml

    os.chdir(run)
    hold, ports = run / "hold", run / "ports.tsv"
    ports.unlink(missing_ok=True)
    if not hold.exists():
        os.mkfifo(hold)
    threading.Thread(target=_hold_until_end_of_input, args=(hold,), daemon=True).start()
    threading.Thread(target=_announce, args=(ports,), daemon=True).start()
    result = _chdb.query(  # type: ignore[attr-defined]  # compiled, so mypy sees nothing in it
        "SYSTEM START LISTEN QUERIES ALL; "
        f"SELECT getServerPort('http_port'), getServerPort('tcp_port') INTO OUTFILE '{ports}' FORMAT TSV; "
        f"SELECT count(s) FROM file('{hold}', 'LineAsString', 's String')",
        "TSV",
        path=str(data),
    )
    if result.has_error():
        sys.exit(f"the engine stopped: {result.error_message()}")


def _hold_until_end_of_input(hold: Path) -> None:
    with open(hold, "wb"):  # blocks until the engine opens the other end
        sys.stdin.buffer.read()


def _announce(ports: Path) -> None:
    while not (ports.exists() and ports.stat().st_size):
        time.sleep(_POLL_S)
    sys.stdout.write(ports.read_text())
    sys.stdout.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
