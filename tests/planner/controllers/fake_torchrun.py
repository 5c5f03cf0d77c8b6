"""An elastic agent that trains nothing: it has one worker, starts it again when it dies, and ends both on SIGTERM."""

import os
import signal
import subprocess
import sys

MOST_RESTARTS = 1
# Lives no longer than its agent, which may be killed before it knows that it has one.
STRAY = "FAKE_STRAY" in os.environ  # it outlives its agent, which was told to end while it began
WORKER = (
    "import time; time.sleep(60)"
    if STRAY
    else "import os, time; agent = os.getppid()\nwhile os.getppid() == agent: time.sleep(0.1)"
)


def main() -> None:
    signal.signal(signal.SIGTERM, end)
    for restarts in range(MOST_RESTARTS + 1):
        reported = {"LOCAL_RANK": "0", "TORCHELASTIC_RESTART_COUNT": str(restarts)}
        reported["TORCHELASTIC_MAX_RESTARTS"] = str(MOST_RESTARTS)
        reported["TORCHELASTIC_RUN_ID"] = sys.argv[1].removeprefix("--rdzv-id=")
        global worker
        worker = subprocess.Popen([sys.executable, "-c", WORKER], env=os.environ | reported)
        worker.wait()


def end(*_: object) -> None:
    if not STRAY:
        worker.kill()
    os._exit(0)


worker: "subprocess.Popen[bytes]"
if __name__ == "__main__":
    main()
