"""When a message is tried again, what answers mean, and to which addresses nothing is sent."""

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.alerts.formats import Sending, render_mail
from api.alerts.transport import (
    DELAYS_S,
    JITTER,
    Answer,
    Outside,
    Post,
    Reply,
    find_address,
    is_allowed,
    judge,
    next_try_ns,
    parse_retry_after,
    resolve,
    send_mail,
    send_post,
)
from lockstep.clock import NS_PER_S, SystemClock
from lockstep.errors import BadInput, ReceiverAway
from tests.api.alerts.build import LOOPBACK, make_notification, target
from tests.api.alerts.receivers import (
    PASSWORD,
    USER,
    Behaviour,
    answer,
    cut_short,
    garbage,
    hang_up,
    mail_server,
    make_certificate,
    receiving,
)


def test_schedule_is_that_of_standard_webhooks_and_nothing_comes_back_together() -> None:
    assert list(DELAYS_S[:4]) == [0, 5, 300, 1800]
    assert [delay / 3600 for delay in DELAYS_S[4:]] == [2, 5, 10, 14, 20, 24]
    assert next_try_ns("evt", len(DELAYS_S), 0) is None
    assert len({next_try_ns(f"evt_{number}", 2, 0) for number in range(20)}) == 20


@given(st.text(max_size=20), st.integers(1, len(DELAYS_S) - 1), st.floats(0, 10**6))
def test_nobody_is_tried_earlier_than_schedule_or_receiver_say(event: str, tries: int, wait_s: float) -> None:
    due_ns = next_try_ns(event, tries, 0, wait_s)
    assert due_ns is not None
    asked_s = min(wait_s, 24 * 3600)
    assert due_ns / NS_PER_S >= max(DELAYS_S[tries], asked_s) - 1e-6
    assert due_ns / NS_PER_S <= max(DELAYS_S[tries] * (1 + JITTER), asked_s) + 1e-6
    assert due_ns == next_try_ns(event, tries, 0, wait_s), "a restart computes the same"


def test_status_decides_and_the_receiver_s_words_and_patience_are_bounded() -> None:
    results = {200: "delivered", 204: "delivered", 301: "failed", 307: "failed", 404: "failed", 410: "gone"}
    assert {status: judge(Answer(status, {}, b""), 0).result for status in results} == results
    said = judge(Answer(500, {"retry-after": "7"}, b"x" * 10_000), 0)
    assert (said.wait_s, len(said.sentence)) == (7.0, len("HTTP 500 ") + 200)
    for value in ("", "-5", "soon", "1e3", "٣", "Thu, 99 Jan 1970 00:00:00 GMT"):
        assert parse_retry_after(value, 0) is None
    assert parse_retry_after("Thu, 01 Jan 1970 00:00:10 GMT", 20 * NS_PER_S) == 0.0
    assert parse_retry_after("9" * 400, 0) == 999_999_999.0


POST = {"Content-Type": "text/plain"}


def outside(timeout_s: float = 60.0, **fields: object) -> Outside:
    return Outside(SystemClock(), ("127.0.0.1/32",), timeout_s, **fields)  # type: ignore[arg-type]  # as tests need


def test_answer_comes_back_from_the_checked_address_and_not_to_its_endless_end() -> None:
    with receiving(answer(418, b"teapot", X_Kind="short")) as receiver:
        got = send_post(Post(f"{receiver.url}/a?b=c", b"hello", POST), outside())
    assert (got.status, got.headers["x-kind"], got.body) == (418, "short", b"teapot")
    assert (receiver.got[0].path, receiver.got[0].body) == ("/a?b=c", b"hello")
    with receiving(answer(200, b"x" * (1 << 20))) as receiver:
        got = send_post(Post(receiver.url, b"", POST), outside())
    assert got.status == 200
    assert len(got.body) < 1 << 18
    with receiving() as receiver:
        port = receiver.url.rpartition(":")[2]
        way = outside(lookup=lambda host, port: ["127.0.0.1"])
        send_post(Post(f"http://receiver.example:{port}/", b"", POST), way)
    assert receiver.got[0].headers["host"] == f"receiver.example:{port}"


LIARS = [(reply, "properly") for reply in (cut_short, hang_up, garbage)]


@pytest.mark.parametrize(
    ("reply", "says"), [*LIARS, *((way, "in full within 0\\.3 s") for way in ("hang", "trickle"))]
)
def test_liar_is_not_believed_and_who_takes_its_time_is_left(reply: Behaviour | str, says: str) -> None:
    with receiving() as receiver:
        receiver.reply = getattr(receiver, reply) if isinstance(reply, str) else reply
        with pytest.raises(ReceiverAway, match=rf"did not answer {says}"):
            send_post(Post(receiver.url, b"", POST), outside(0.3 if isinstance(reply, str) else 60.0))


def test_nobody_listening_is_said_and_an_address_inside_is_not_connected_to() -> None:
    with pytest.raises(ReceiverAway, match="did not answer properly"):
        send_post(Post("http://127.0.0.1:1", b"", POST), outside())
    with receiving() as receiver, pytest.raises(BadInput, match=r"alerts\.allow"):
        send_post(Post(receiver.url, b"", POST), Outside(SystemClock()))
    assert receiver.got == []
    with mail_server() as (box, port), pytest.raises(BadInput, match=r"alerts\.allow"):
        send_mail(f"smtp-plain://mail.example:{port}", "", "", letter(), replace(OUTSIDE, allow=()))
    assert box.mails == []


def test_certificate_is_checked_against_the_name_and_no_tls_is_not_taken_for_tls(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "receiver.example")
    way = outside(lookup=lambda host, port: ["127.0.0.1"], ca_file=certificate)
    with receiving(certificate=certificate) as receiver:
        port = receiver.url.rpartition(":")[2]
        assert send_post(Post(f"https://receiver.example:{port}/", b"hello", POST), way).status == 200
        for url, trusted in ((f"https://other.example:{port}/", way), (receiver.url, outside())):
            with pytest.raises(ReceiverAway, match="CERTIFICATE_VERIFY_FAILED"):
                send_post(Post(url, b"", POST), trusted)
    assert [got.body for got in receiver.got] == [b"hello"]
    with receiving() as receiver, pytest.raises(ReceiverAway, match="did not answer properly"):
        send_post(Post(receiver.url.replace("http:", "https:"), b"", POST), outside())
    with pytest.raises(BadInput, match=r"alerts\.ca_file"):
        outside(ca_file=tmp_path / "none.pem").trust()


OUTSIDE = Outside(SystemClock(), LOOPBACK, 60.0, lookup=lambda host, port: ["127.0.0.1"])


def letter(*recipients: str) -> EmailMessage:
    receiver = target(kind="email", recipients=recipients or ("b@example.com",))
    return render_mail(receiver, make_notification(), Sending(0, "http://head"))


def test_mail_is_handed_over_encrypted_with_a_login(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "mail.example")
    outside = replace(OUTSIDE, ca_file=certificate)
    with mail_server(certificate) as (box, port):
        said = send_mail(f"smtp://mail.example:{port}", USER, PASSWORD, letter(), outside)
        refused = send_mail(f"smtp://mail.example:{port}", USER, "wrong", letter(), outside)
    assert said == Reply("delivered", "the server took it", 250)
    assert (refused.result, refused.status) == ("failed", 535)
    assert PASSWORD not in refused.sentence
    assert (len(box.mails), box.logins) == (1, [USER])
    assert box.mails[0]["Message-ID"] == f"<{make_notification().id}@example.com>"
    certificate = make_certificate(tmp_path, "mail.example")
    with mail_server(certificate, from_the_start=True) as (box, port):
        url = f"smtps://mail.example:{port}"
        said = send_mail(url, USER, PASSWORD, letter(), replace(OUTSIDE, ca_file=certificate))
        with pytest.raises(ReceiverAway, match="CERTIFICATE_VERIFY_FAILED"):
            send_mail(url, USER, PASSWORD, letter(), OUTSIDE)
    assert (said.result, box.logins) == ("delivered", [USER])


@pytest.mark.parametrize("name", ["other.example", "mail.example"])
def test_server_that_is_not_who_it_should_be_gets_nothing(tmp_path: Path, name: str) -> None:
    certificate = make_certificate(tmp_path, name)
    trusted = replace(OUTSIDE, ca_file=certificate if name == "other.example" else None)
    with mail_server(certificate) as (box, port), pytest.raises(ReceiverAway, match="CERTIFICATE_VERIFY_FAILED"):
        send_mail(f"smtp://mail.example:{port}", USER, PASSWORD, letter(), trusted)
    assert (box.mails, box.logins) == ([], [])


def test_server_without_encryption_is_used_only_when_told_and_what_it_says_decides() -> None:
    with mail_server() as (box, port):
        with pytest.raises(ReceiverAway, match="STARTTLS"):
            send_mail(f"smtp://mail.example:{port}", "", "", letter(), OUTSIDE)
        with pytest.raises(BadInput, match=r"no password is sent to mail\.example in the open"):
            send_mail(f"smtp-plain://mail.example:{port}", USER, PASSWORD, letter(), OUTSIDE)
        assert send_mail(f"smtp-plain://mail.example:{port}", "", "", letter(), OUTSIDE).result == "delivered"
    assert len(box.mails) == 1
    with mail_server() as (box, port):
        url = f"smtp-plain://mail.example:{port}"
        box.reply = "451 try again later"
        said = send_mail(url, "", "", letter(), OUTSIDE)
        assert (said.result, said.status, said.sentence) == ("failed", 451, "mail.example said 451 try again later")
        box.reply, box.refused = "250 OK", "b@example.com"
        assert send_mail(url, "", "", letter(), OUTSIDE).sentence == "mail.example refuses b@example.com"
        said = send_mail(url, "", "", letter("b@example.com", "c@example.com"), OUTSIDE)
        assert (said.result, said.sentence) == ("delivered", "mail.example refuses b@example.com, the others have it")


@contextmanager
def trickling() -> Iterator[int]:
    """Give the port of a server that greets one byte at a time and never ends."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                while not over.wait(0.02):
                    try:
                        connection.sendall(b"2")
                    except OSError:
                        return

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join()


def test_server_that_trickles_is_left_also_when_the_time_was_over_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with trickling() as port, pytest.raises(ReceiverAway, match="did not take the mail"):
        send_mail(f"smtp-plain://mail.example:{port}", "", "", letter(), replace(OUTSIDE, timeout_s=1.0))
    monkeypatch.setattr(threading, "Timer", OverAtOnce)
    with trickling() as port, pytest.raises(ReceiverAway, match="the time was over"):
        send_mail(f"smtp-plain://mail.example:{port}", "", "", letter(), OUTSIDE)


class OverAtOnce:
    """A timer whose time is over as soon as it starts, which is before there is a socket to shut."""

    def __init__(self, _: float, act: Callable[[], None]) -> None:
        self.daemon, self._act = False, act

    def start(self) -> None:
        self._act()

    def cancel(self) -> None:
        """Do nothing: it is over."""


INSIDE = """
127.0.0.1 127.8.9.10 0.0.0.0 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 100.100.100.200
168.63.129.16 224.0.0.1 239.1.1.1 255.255.255.255 240.0.0.1 :: ::1 fe80::1 fe80::1%eth0 fd00:ec2::254 ff02::1
::ffff:127.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 2002:7f00:1::1
2001:0:4136:e378:8000:63bf:3fff:fdd2 192.0.0.192 fec0::1 192.88.99.1 3fff::1
"""  # Python calls the last four global, and they are not


def test_address_inside_is_denied_and_one_in_the_world_allowed() -> None:
    world = ["93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1"]
    assert [address for address in INSIDE.split() + world if is_allowed("receiver.example", address, ())] == world


@pytest.mark.parametrize(
    ("host", "address", "rule"),
    [
        ("am", "127.0.0.1", "127.0.0.1"),
        ("am", "127.0.0.1", "127.0.0.0/8"),
        ("am", "10.2.3.4", "10.0.0.0/8"),
        ("am", "fd00::7", "fd00::/8"),
        ("Alerts.Site.", "10.2.3.4", "alerts.site"),
        ("alerts.site", "10.2.3.4", "*.site"),
    ],
)
def test_settings_allow_networks_and_names(host: str, address: str, rule: str) -> None:
    assert is_allowed(host, address, (rule,))
    assert not is_allowed("elsewhere", "192.168.0.9", (rule,))


def test_name_is_looked_up_once_and_its_first_allowed_address_is_taken() -> None:
    with pytest.raises(BadInput, match=r"""am is 127\.0\.0\.1.*LOCKSTEP_ALERTS_ALLOW='\["127\.0\.0\.1"\]'"""):
        find_address("am", 9093, (), lambda host, port: ["127.0.0.1"])
    found = find_address("both", 443, (), lambda host, port: ["10.0.0.1", "1.1.1.1"])
    assert found == "1.1.1.1"
    answers = iter([["1.1.1.1"], ["127.0.0.1"]])
    assert find_address("rebinds", 443, (), lambda host, port: next(answers)) == "1.1.1.1"
    with pytest.raises(ReceiverAway, match="cannot be looked up"):
        resolve("no-such-host.invalid", 443)
    assert resolve("2130706433", 80) == ["127.0.0.1"], "the system reads it as an address, and so do we"


@given(st.ip_addresses(v=4))
def test_address_wrapped_into_ipv6_is_judged_as_itself(address: ipaddress.IPv4Address) -> None:
    plain = is_allowed("x", str(address), ())
    assert is_allowed("x", f"::ffff:{address}", ()) == plain
    if not plain:
        assert not is_allowed("x", str(ipaddress.IPv6Address((0x64FF9B << 96) | int(address))), ())
