"""Delivers over HTTP or SMTP to the address that was checked, within one deadline; what answers mean, retries."""

import ipaddress
import random
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpcore

from lockstep.clock import NS_PER_S, Clock
from lockstep.config import trusted
from lockstep.errors import BadInput, ReceiverAway

# Seconds from one try to the next, as Standard Webhooks propose; after the last the message has failed.
DELAYS_S = (0, 5, 5 * 60, 30 * 60, *(hours * 3600 for hours in (2, 5, 10, 14, 20, 24)))
JITTER = 0.2  # at most this much later, so that messages that failed together do not come back together
_LONGEST_WAIT_S = 24 * 3600  # a receiver that asks for more patience gets this much

Result = Literal["delivered", "failed", "refused", "gone"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a try: `refused` is for good, `gone` is for the receiver as a whole."""

    result: Result
    sentence: str
    status: int | None = None
    wait_s: float | None = None  # what the receiver asked for


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver answered over HTTP; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body[:200].decode(errors="replace").strip()


def next_try_ns(event: str, tries: int, now_ns: int, wait_s: float | None = None) -> int | None:
    """Return when a message that was tried so often is due again; None once it has been tried often enough."""
    if tries >= len(DELAYS_S):
        return None
    # Seeded by the message, so that a restart computes the same.
    jitter = 1 + JITTER * random.Random(f"{event}/{tries}").random()  # noqa: S311  # no secret
    delay_s = max(DELAYS_S[tries] * jitter, min(wait_s or 0.0, _LONGEST_WAIT_S))
    return now_ns + round(delay_s * NS_PER_S)


def judge(answer: Answer, now_ns: int) -> Reply:
    """Return what an HTTP answer means where the receiver has no rules of its own."""
    status = answer.status
    if 200 <= status < 300:
        return Reply("delivered", f"HTTP {status}", status)
    if status == 410:
        return Reply("gone", "HTTP 410: the receiver says that it is gone for good", status)
    if 300 <= status < 400:
        return Reply("failed", f"HTTP {status}: it redirects, and redirects are not followed", status)
    wait_s = parse_retry_after(answer.headers.get("retry-after", ""), now_ns)
    return Reply("failed", f"HTTP {status} {answer.text}".rstrip(), status, wait_s)


def parse_retry_after(value: str, now_ns: int) -> float | None:
    """Return the seconds that a Retry-After header asks for, given as a number or a date; None: nothing readable.

    >>> parse_retry_after("120", 0), parse_retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 0), parse_retry_after("x", 0)
    (120.0, 60.0, None)
    """
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        timestamp = parsedate_to_datetime(text)
    except ValueError:
        return None
    zoned = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
    return max(0.0, (zoned - datetime.fromtimestamp(now_ns / NS_PER_S, UTC)).total_seconds())


# A receiver has no address inside the site unless that is allowed, so that nobody reaches it through us (SSRF). The
# connection goes to the very address that was checked: a name that answers differently the second time gains nothing.
Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Lookup = Callable[[str, int], Sequence[str]]

_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
# Inside a site as well, yet global to some versions of Python: RFC 6890 (with Oracle's metadata), 3879, 7526, 9637.
_INSIDE = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "fec0::/10", "192.88.99.0/24", "3fff::/20")))
# Clouds answer here with credentials of the machine. Public by number (Alibaba) or inside a private network (AWS).
_METADATA = frozenset(map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "fd00:ec2::254")))


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host, in the order of the system's preference."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ReceiverAway(f"{host} cannot be looked up: {error}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def find_address(host: str, port: int, allow: Sequence[str], lookup: Lookup = resolve) -> str:
    """Return the first address of the host that may be connected to; BadInput says how to allow it."""
    addresses = lookup(host, port)
    for address in addresses:
        if is_allowed(host, address, allow):
            return address
    shown = addresses[0] if addresses else "nowhere"
    raise BadInput(
        f"{host} is {shown}, an address inside the site, and nothing is sent there unless allowed: "
        f"""set LOCKSTEP_ALERTS_ALLOW='["{shown}"]' (alerts.allow), or name the host or its network there"""
    )


def check_allowed(url: str, allow: Sequence[str]) -> None:
    """Raise BadInput where a receiver is inside the site and not allowed; one that has no address now may get one."""
    parts = urlsplit(url)
    with suppress(ReceiverAway):
        find_address(parts.hostname or "", parts.port or 0, allow)


def is_allowed(host: str, address: str, allow: Sequence[str]) -> bool:
    """Return whether an address is out in the world, or the settings allow it by network or by the host's name.

    >>> is_allowed("example.com", "93.184.216.34", ()), is_allowed("x", "127.0.0.1", ())
    (True, False)
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    return any(_fits(host, ip, rule) for rule in allow) or all(_is_public(each) for each in _meant_by(ip))


def _fits(host: str, ip: Ip, rule: str) -> bool:
    try:
        return ip in ipaddress.ip_network(rule)
    except ValueError:
        return fnmatchcase(host.lower().rstrip("."), rule.lower())


def _meant_by(ip: Ip) -> list[Ip]:
    """Return the address and the ones inside it, which is where its packets end."""
    if isinstance(ip, ipaddress.IPv4Address):
        return [ip]
    if ip.ipv4_mapped:
        return [ip.ipv4_mapped]
    inner = [ip.sixtofour, ip.teredo[1] if ip.teredo else None]
    if ip in _NAT64:
        inner.append(ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF))
    return [ip, *(each for each in inner if each is not None)]


def _is_public(ip: Ip) -> bool:
    is_inside = ip in _METADATA or any(ip in network for network in _INSIDE)
    return ip.is_global and not ip.is_multicast and not ip.is_reserved and not is_inside


_MOST_BYTES = 64 << 10  # of an answer: a sentence is enough
_USER_AGENT = "Lockstep"


@dataclass(frozen=True, slots=True)
class Post:
    """What is sent."""

    url: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Outside:
    """The way to receivers: which addresses are allowed, who signs certificates, how long it may take."""

    clock: Clock
    allow: tuple[str, ...] = ()
    timeout_s: float = 15.0
    ca_file: Path | None = None
    lookup: Lookup = resolve

    def trust(self) -> ssl.SSLContext:
        """Return what certificates are checked with: the system's authorities, and those of the site."""
        return trusted(self.ca_file, "alerts.ca_file")


def send_post(post: Post, outside: Outside) -> Answer:
    """Return what the receiver answered; ReceiverAway where it did not, or not whole, or not in time."""
    parts = urlsplit(post.url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    address = find_address(host, port, outside.allow, outside.lookup)
    until_ns = outside.clock.monotonic_ns() + round(outside.timeout_s * NS_PER_S)
    wire = _TimedBackend(address, until_ns, outside.clock)
    context = outside.trust() if parts.scheme == "https" else None
    try:
        with httpcore.ConnectionPool(ssl_context=context, network_backend=wire, retries=0) as pool:
            return _exchange(pool, post)
    except httpcore.TimeoutException:
        raise ReceiverAway(f"{host} did not answer in full within {outside.timeout_s:g} s") from None
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol, OSError) as error:
        raise ReceiverAway(f"{host} did not answer properly: {str(error) or type(error).__name__}") from None


def _exchange(pool: httpcore.ConnectionPool, post: Post) -> Answer:
    named = {"User-Agent": _USER_AGENT, "Connection": "close", **post.headers}
    headers = [(name.encode(), value.encode()) for name, value in named.items()]
    with pool.stream("POST", post.url, headers=headers, content=post.body) as response:
        body = bytearray()
        for piece in response.iter_stream():
            body += piece
            if len(body) > _MOST_BYTES:
                break
        names = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        return Answer(response.status, names, bytes(body))


class _TimedStream(httpcore.NetworkStream):
    """A connection on which everything together has one deadline."""

    def __init__(self, inner: httpcore.NetworkStream, left: "_TimedBackend") -> None:
        self._inner, self._backend = inner, left

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._backend.left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._backend.left_s())

    def close(self) -> None:
        with suppress(OSError):
            self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        inner = self._inner.start_tls(ssl_context, server_hostname, self._backend.left_s())
        return _TimedStream(inner, self._backend)

    def get_extra_info(self, info: str) -> Any:  # Any: as the interface has it
        return self._inner.get_extra_info(info)


class _TimedBackend(httpcore.NetworkBackend):
    """Connects to the address that was checked, whatever name is asked for."""

    def __init__(self, address: str, until_ns: int, clock: Clock) -> None:
        self._address, self._until_ns, self._clock = address, until_ns, clock
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        return _TimedStream(self._backend.connect_tcp(self._address, port, self.left_s()), self)

    def left_s(self) -> float:
        """Return what is left of the time, or raise a timeout."""
        left_ns = self._until_ns - self._clock.monotonic_ns()
        if left_ns <= 0:
            raise httpcore.ReadTimeout
        return left_ns / NS_PER_S


_PORTS = {"smtp": 587, "smtps": 465, "smtp-plain": 25}


def send_mail(url: str, username: str, password: str, mail: EmailMessage, outside: Outside) -> Reply:
    """Return what the server said; it has taken the mail for all its recipients, or it counts as failed."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    if username and parts.scheme == "smtp-plain":
        raise BadInput(f"no password is sent to {host} in the open: use smtp:// or smtps://")
    address = find_address(host, port, outside.allow, outside.lookup)
    try:
        with _connected(parts.scheme, host, port, address, outside) as server:
            if username:
                server.login(username, password)
            refused = server.send_message(mail)
    except smtplib.SMTPResponseException as error:
        answer = error.smtp_error
        text = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
        return Reply("failed", f"{host} said {error.smtp_code} {text}"[:300], error.smtp_code)
    except smtplib.SMTPRecipientsRefused as error:
        return Reply("failed", f"{host} refuses {', '.join(sorted(error.recipients))}"[:300])
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise ReceiverAway(f"{host} did not take the mail: {str(error) or type(error).__name__}") from None
    if refused:  # the others have it; trying again would send it to them twice, so it is said and left at that
        return Reply("delivered", f"{host} refuses {', '.join(sorted(refused))}, the others have it", 250)
    return Reply("delivered", "the server took it", 250)


@contextmanager
def _connected(scheme: str, host: str, port: int, address: str, outside: Outside) -> Iterator[smtplib.SMTP]:
    """Give a session; when the time is over its socket is shut, whatever the server trickles."""
    server = _Server(scheme, host, address, outside)
    timer = threading.Timer(outside.timeout_s, server.shut)
    timer.daemon = True
    timer.start()
    try:
        server.connect(host, port)
        if scheme == "smtp":
            server.starttls(context=outside.trust())
        yield server
        with suppress(smtplib.SMTPException, OSError):
            server.quit()
    finally:
        timer.cancel()
        server.close()


class _Server(smtplib.SMTP):
    """A session with the host by its checked address; certificates are checked against its name."""

    def __init__(self, scheme: str, host: str, address: str, outside: Outside) -> None:
        self._address = address
        self._context = outside.trust() if scheme == "smtps" else None
        self._raw: socket.socket | None = None
        self._is_over = False
        super().__init__(timeout=outside.timeout_s)
        self._host = host  # what STARTTLS and smtplib's own class for TLS compare certificates with

    def _get_socket(self, host: str, port: int, timeout: float) -> Any:  # Any: as the base class has it
        self._raw = socket.create_connection((self._address, port), timeout)
        if self._context:
            self._raw = self._context.wrap_socket(self._raw, server_hostname=host)
        if self._is_over:  # before there was a socket to shut
            self._raw.close()
            raise TimeoutError("the time was over before the server answered")
        return self._raw

    def shut(self) -> None:
        self._is_over = True
        if self._raw is not None:
            with suppress(OSError):
                self._raw.shutdown(socket.SHUT_RDWR)
