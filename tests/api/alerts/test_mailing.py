"""Mail goes encrypted and with a login, to a server whose certificate is right; whatever it says is a sentence."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path

import pytest

from api.alerts.mailing import send_mail
from api.alerts.posting import Outside
from api.alerts.retrying import Said
from api.alerts.sinks import mail
from api.alerts.wording import Sending
from lockstep.clock import SystemClock
from lockstep.errors import BadInput, ReceiverAway
from tests.api.alerts.build import LOOPBACK, news, target
from tests.api.alerts.mail_server import PASSWORD, USER, mail_server, make_certificate

OUTSIDE = Outside(SystemClock(), LOOPBACK, 60.0, lookup=lambda host, port: ["127.0.0.1"])


def letter(*recipients: str) -> EmailMessage:
    receiver = target(kind="email", recipients=recipients or ("b@example.com",))
    return mail.render(receiver, news(), Sending(0, "http://head"))


def test_mail_is_handed_over_encrypted_with_a_login(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "mail.example")
    outside = replace(OUTSIDE, ca_file=certificate)
    with mail_server(certificate) as (box, port):
        said = send_mail(f"smtp://mail.example:{port}", USER, PASSWORD, letter(), outside)
        refused = send_mail(f"smtp://mail.example:{port}", USER, "wrong", letter(), outside)
    assert said == Said("delivered", "the server took it", 250)
    assert (refused.result, refused.status) == ("failed", 535)
    assert PASSWORD not in refused.sentence
    assert (len(box.mails), box.logins) == (1, [USER])
    assert box.mails[0]["Message-ID"] == f"<{news().id}@example.com>"


def test_mail_is_handed_over_encrypted_from_the_start(tmp_path: Path) -> None:
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


def test_server_without_encryption_is_used_only_when_told_and_never_with_a_password() -> None:
    with mail_server() as (box, port):
        with pytest.raises(ReceiverAway, match="STARTTLS"):
            send_mail(f"smtp://mail.example:{port}", "", "", letter(), OUTSIDE)
        with pytest.raises(BadInput, match=r"no password is sent to mail\.example in the open"):
            send_mail(f"smtp-plain://mail.example:{port}", USER, PASSWORD, letter(), OUTSIDE)
        assert send_mail(f"smtp-plain://mail.example:{port}", "", "", letter(), OUTSIDE).result == "delivered"
    assert len(box.mails) == 1


def test_what_the_server_says_decides() -> None:
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


def test_server_that_trickles_is_left() -> None:
    with trickling() as port, pytest.raises(ReceiverAway, match="did not take the mail"):
        send_mail(f"smtp-plain://mail.example:{port}", "", "", letter(), replace(OUTSIDE, timeout_s=1.0))


class OverAtOnce:
    """A timer whose time is over as soon as it starts, which is before there is a socket to shut."""

    def __init__(self, _: float, act: Callable[[], None]) -> None:
        self.daemon, self._act = False, act

    def start(self) -> None:
        self._act()

    def cancel(self) -> None:
        """Do nothing: it is over."""


def test_server_is_left_also_when_the_time_was_over_before_it_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Timer", OverAtOnce)
    with trickling() as port, pytest.raises(ReceiverAway, match="the time was over"):
        send_mail(f"smtp-plain://mail.example:{port}", "", "", letter(), OUTSIDE)


def test_address_inside_is_not_connected_to() -> None:
    with mail_server() as (box, port), pytest.raises(BadInput, match=r"alerts\.allow"):
        send_mail(f"smtp-plain://mail.example:{port}", "", "", letter(), replace(OUTSIDE, allow=()))
    assert box.mails == []
