"""How a host begins to report to a head node and how it stops: its token, its settings and the unit, in their places.

A join token is good for many hosts and for nothing but this. It is exchanged for a token of the host's own and is not
kept here.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

from lockstep.client.server import Server
from lockstep.errors import BadInput, NotPresent

UNIT = "lockstep-collector.service"
TOKEN = Path("etc/lockstep/collector.token")
SETTINGS = Path("etc/default/lockstep-collector")
UNIT_FILE = Path("etc/systemd/system") / UNIT
_FILES = {  # of those that come with us, what goes where: users of the unit, and where jobs leave what they record
    "lockstep.sysusers": Path("usr/lib/sysusers.d/lockstep.conf"),
    "lockstep.tmpfiles": Path("usr/lib/tmpfiles.d/lockstep.conf"),
    UNIT: UNIT_FILE,
}
_START = (
    ["systemd-sysusers"],
    ["systemd-tmpfiles", "--create", "lockstep.conf"],
    ["systemctl", "daemon-reload"],
    ["systemctl", "enable", "--now", UNIT],
)
_SYSTEMD = Path("run/systemd/system")  # is there where systemd is the first process
_INSTALLED = "/opt/lockstep/bin/lockstep"  # what the unit starts, unless we were started from elsewhere

Run = Callable[[list[str]], None]


def run_tool(command: list[str]) -> None:
    """Run a tool of the system, or raise BadInput with what it had to say."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or f"ended with {done.returncode}"
        raise BadInput(f"{' '.join(command)}: {said}")


def join(head: Server, host: str, ca_file: Path | None, root: Path = Path("/"), run: Run = run_tool) -> Iterator[str]:
    """Get the host a token of its own, put everything in place and start the collector; yield what was done."""
    if (root / TOKEN).exists():
        raise BadInput(f"this host has a token already, {root / TOKEN}: `lockstep host leave` gives it back")
    _check_writable(root)
    made = head.send("POST", "/api/v1/hosts/join", {"host": host})
    _write(root / TOKEN, f"{made['secret']}\n", 0o600)
    yield f"{head.url} knows {host} now; its token is in {root / TOKEN}"
    _write(root / SETTINGS, _settings(head.url, host, ca_file), 0o644)
    yield f"settings are in {root / SETTINGS}"
    if not (root / _SYSTEMD).is_dir():
        yield "no systemd here: start `lockstep collect` with these settings and collector.token_file yourself"
        return
    ours = str(Path(sys.argv[0]).resolve()) if Path(sys.argv[0]).name == "lockstep" else _INSTALLED
    for name, place in _FILES.items():
        text = (resources.files("collector") / "systemd" / name).read_text()
        _write(root / place, text.replace(_INSTALLED, ours), 0o644)
    for command in _START:
        run(command)
    yield f"{UNIT} runs, and will after each boot"


def leave(root: Path = Path("/"), run: Run = run_tool) -> Iterator[str]:
    """Stop the collector, have the head node forget the host's token, take away what `join` wrote; yield the same."""
    try:
        secret = (root / TOKEN).read_text().strip()
        settings = _read_settings((root / SETTINGS).read_text())
    except FileNotFoundError as error:
        raise NotPresent(f"this host has not joined: there is no {error.filename}") from None
    except PermissionError as error:
        raise BadInput(f"{error.filename} is root's: run this as root") from None
    if (root / UNIT_FILE).exists():
        run(["systemctl", "disable", "--now", UNIT])
        yield f"{UNIT} is stopped; it sent what it had"
    ca_file = settings.get("LOCKSTEP_COLLECTOR_CA_FILE")
    with Server(settings["LOCKSTEP_COLLECTOR_SERVER"], secret, ca_file=Path(ca_file) if ca_file else None) as head:
        head.send("POST", "/api/v1/hosts/leave", {})
    yield "its token is worth nothing from now on"
    for path in (TOKEN, SETTINGS, UNIT_FILE):
        (root / path).unlink(missing_ok=True)
    yield f"{TOKEN}, {SETTINGS} and the unit are gone"


def _settings(server: str, host: str, ca_file: Path | None) -> str:
    lines = [f"LOCKSTEP_COLLECTOR_SERVER={server}", f"LOCKSTEP_COLLECTOR_HOST={host}"]
    return "\n".join([*lines, *([f"LOCKSTEP_COLLECTOR_CA_FILE={ca_file.resolve()}"] if ca_file else []), ""])


def _read_settings(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    found = {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}
    if "LOCKSTEP_COLLECTOR_SERVER" not in found:
        raise BadInput(f"{SETTINGS} does not say LOCKSTEP_COLLECTOR_SERVER, so that nobody can be told of the leave")
    return found


def _check_writable(root: Path) -> None:
    """Refuse before the head node has made a token that could not be kept here."""
    for path in (TOKEN, SETTINGS):
        there = next(folder for folder in (root / path).parents if folder.exists())
        if not os.access(there, os.W_OK):
            raise BadInput(f"{there} cannot be written: run this as root")


def _write(path: Path, text: str, mode: int) -> None:
    """Write a file as a whole, readable for others only as the mode says, also for the moment before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    beside.replace(path)
