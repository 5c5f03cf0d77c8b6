"""NVIDIA's ft_launcher (nvidia-resiliency-ext) as a controller: nodes are excluded, the launcher restarts by itself.

Before every rendezvous the launcher asks a health check on its own host (nvrx_health.py) whether to take part; a node
that is told no leaves, and a hot spare takes its place. The planner only leaves a note per excluded node in a
directory that the hosts can read, so that no planner need be alive when a host asks. A file for each node, because a
host then reads its own and nothing else, and two planners can never write over each other.
"""

import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput, ControllerDown, LockstepError
from lockstep.execution import OUT_OF_SERVICE, Isolated
from planner.controllers.protocol import NOT_IN_PLACE, JobView, Node, Report, Restart, check_mark, check_name

_SUFFIX = ".json"
_BY_ITSELF = (
    "ft_launcher restarts its workers by itself once they fail, up to --max-restarts; "
    "a job that ended with exit code 93 is meant to stay ended"
)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a node shall take no part. `mark` is None when somebody else wrote it."""

    node: str
    mark: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class NvrxOptions:
    """Where notes on excluded nodes are left."""

    directory: Path  # on a file system that planner and hosts share
    dry_run: bool = False


class NvrxController:
    """Excludes nodes by notes in a directory."""

    name = "nvrx"
    restarts_whole_job = False
    acts = NOT_IN_PLACE

    def __init__(self, options: NvrxOptions) -> None:
        self._directory, self._dry_run = options.directory, options.dry_run

    def nodes(self) -> Sequence[Node]:
        """Return the excluded nodes; of others nothing is known here."""
        try:
            names = sorted(path.stem for path in self._directory.glob("*" + _SUFFIX))
        except OSError as failure:
            raise ControllerDown(f"{self._directory} cannot be read: {failure.strerror}") from None
        found = [read_exclusion(self._directory, name) for name in names]
        return [Node(one.node, False, one.mark, one.reason) for one in found if one is not None]

    def job(self, job: str) -> JobView | None:
        """Return None: the launcher tells nobody about its job."""
        return None

    def isolate(self, node: str, mark: str, reason: str) -> Report:
        """Keep a node from the next rendezvous."""
        check_mark(mark)
        before = read_exclusion(self._directory, check_name(node, "node"))
        if before is None and self._dry_run:
            return Report("would", f"node {node} would be excluded from the next rendezvous: {reason}")
        if before is None and self._write(Exclusion(node, mark, reason)):
            return Report("done", f"node {node} is excluded from the next rendezvous: {reason}")
        before = before or read_exclusion(self._directory, node)
        if before is not None and before.mark == mark:
            return Report("already", f"node {node} is excluded under {mark}")
        return Report("refused", f"node {node} is excluded by {_name(before)}")

    def release(self, node: str, mark: str) -> Report:
        check_mark(mark)
        before = read_exclusion(self._directory, check_name(node, "node"))
        if before is None:
            return Report("already", f"node {node} is not excluded")
        if before.mark != mark:
            return Report("refused", f"node {node} is excluded by {_name(before)}, not under {mark}")
        if self._dry_run:
            return Report("would", f"node {node} would take part again")
        try:
            _path(self._directory, node).unlink(missing_ok=True)
        except OSError as failure:
            raise ControllerDown(f"the note on node {node} cannot be removed: {failure.strerror}") from None
        return Report("done", f"node {node} takes part from the next rendezvous on")

    def restart(self, order: Restart) -> Report:
        """Leave it to the launcher; a refusal would give the excluded node back."""
        return Report("already", f"{order.job} is not restarted from outside: {_BY_ITSELF}")

    def reattempt(self, job: str, mark: str) -> Report:
        """Refuse: nobody can ask the launcher for it."""
        return Report("refused", f"{job} is not restarted from outside: {_BY_ITSELF}")

    def _write(self, exclusion: Exclusion) -> bool:
        """Write a note, whole; return False when there is one already. A link, unlike a rename, replaces nothing."""
        path = _path(self._directory, exclusion.node)
        draft = path.with_suffix(f".draft-{os.getpid()}")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with open(draft, "w") as file:
                os.fchmod(file.fileno(), 0o644)  # hosts read it, whatever our umask
                json.dump({"mark": exclusion.mark, "reason": exclusion.reason}, file)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, path)
        except FileExistsError:
            return False
        except OSError as failure:
            raise ControllerDown(f"{path} cannot be written: {failure.strerror}") from None
        finally:
            draft.unlink(missing_ok=True)
        return True


def read_exclusion(directory: Path, node: str) -> Exclusion | None:
    """Return why a node is excluded; None when it is not. A note that cannot be understood still excludes."""
    try:
        text = _path(directory, node).read_text()
    except FileNotFoundError:
        return None
    except OSError as failure:
        raise ControllerDown(f"{_path(directory, node)} cannot be read: {failure.strerror}") from None
    try:
        message = json.loads(text)
        return Exclusion(node, message.get("mark"), str(message.get("reason", "no reason is given")))
    except (ValueError, AttributeError):
        return Exclusion(node, None, f"its note cannot be read: {text[:100]!r}")


def _path(directory: Path, node: str) -> Path:
    return directory / (node + _SUFFIX)


def _name(exclusion: Exclusion | None) -> str:
    return exclusion.mark if exclusion is not None and exclusion.mark else "somebody else"


Find = Callable[[], Exclusion | None]  # why this host is excluded; asked anew each time
SERVICE = "nvhcd.HealthCheckService"
METHOD = "RunHealthCheck"
_EXCLUDED = 1  # exit code of a check that says no
_ANYBODY = 0o666  # the job's user asks, and learns no more than its launcher acts on anyway
_VARINT, _BYTES = 0, 2  # protobuf's wire types


def find_noted(directory: Path, names: Iterable[str]) -> Exclusion | None:
    """Return the planner's note on a host, by any of its names; None: it is not excluded."""
    found = (read_exclusion(directory, name) for name in names)
    return next((one for one in found if one is not None), None)


def find_isolated(isolated: Iterable[Isolated], names: Collection[str]) -> Exclusion | None:
    """Return why a host is out of service, by any of its names; None: it is in service."""
    out = (each for each in isolated if each.node in names and each.state in OUT_OF_SERVICE)
    return next((Exclusion(each.node, each.decision, each.reason) for each in out), None)


def check_host(find: Find) -> bytes:
    """Return the answer for this host as it travels."""
    try:
        return encode_answer(find())
    except LockstepError as failure:
        return encode_answer(None, str(failure))


def encode_answer(exclusion: Exclusion | None, error: str = "") -> bytes:
    """Return a HealthCheckResponse in protobuf's encoding, in which what is zero or empty is left out.

    >>> encode_answer(None).hex()
    '08011a117b226661696c5f636f756e74223a20307d'
    """
    if exclusion is None:
        output = json.dumps({"fail_count": 0})
        return _number(1, 1) + _text(3, output) + (_text(4, error) if error else b"")
    failed = {"fail_count": 1, "failed_checks": ["lockstep"], "mark": exclusion.mark}
    return _number(2, _EXCLUDED) + _text(3, json.dumps(failed)) + _text(4, exclusion.reason)


def serve_health(find: Find, socket: Path) -> Any:
    """Return a running grpc.Server that answers for this host; `stop(grace)` ends it."""
    try:
        import grpc  # wanted only on hosts that run ft_launcher
    except ImportError as error:
        raise BadInput("the health check for ft_launcher needs gRPC: pip install 'lockstep[nvrx]'") from error
    handler = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: check_host(find),
        request_deserializer=bytes,  # its arguments are for a script, of which there is none
        response_serializer=bytes,
    )
    server = grpc.server(ThreadPoolExecutor(2, "health"))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    _make_room(socket)
    try:
        server.add_insecure_port(f"unix:{socket}")
    except RuntimeError as failure:
        server.stop(None)
        raise BadInput(f"the health check cannot listen on {socket}: {failure}") from None
    server.start()
    os.chmod(socket, _ANYBODY)
    return server


def _make_room(socket: Path) -> None:
    """Remove the socket of a service that died, and nothing that is no socket."""
    if socket.is_socket():
        socket.unlink()
    elif socket.exists():
        raise BadInput(f"{socket} is in the way: it is no socket")
    elif not socket.parent.is_dir():
        raise BadInput(f"there is no directory {socket.parent} for the socket of the health check")


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _text(field: int, value: str) -> bytes:
    encoded = value.encode()
    return _varint(field << 3 | _BYTES) + _varint(len(encoded)) + encoded


def _varint(value: int) -> bytes:
    """Return a number in groups of seven bits, lowest first; the top bit says that more follow."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])
