"""The health check that ft_launcher asks before every rendezvous: is this host excluded?

`lockstep nvrx health` serves it on a training host, from the planner's notes (nvrx.py) or from what a Lockstep server
says is out of service, whoever the controller is.

gRPC `nvhcd.HealthCheckService/RunHealthCheck` on a Unix socket, named to the launcher with
`--ft-node-health-check-endpoint`. The message is four fields, so it is written by hand here and needs no generated
code (nvhcd.proto: success = 1 bool, exit_code = 2 int32, output = 3 string, error = 4 string). When nobody can say
what is excluded, the host is healthy: the launcher judges a missing health check in the same way, and a server that
is away must not empty a whole job.
"""

import json
import os
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput, LockstepError
from lockstep.execution import OUT_OF_SERVICE, Isolated
from planner.controllers.nvrx import Exclusion, read_exclusion

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
