"""Over TLS: a certificate that can be trusted, or no connection; never a word in plain."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Literal

import pytest
import trustme
from click.testing import CliRunner

from tests.support.proxy import HOST, Address, TlsProxy
from tests.support.server import Server
from tests.topology.life import BOTH_FACES, every_verb, through
from windlass import Windlass, errors
from windlass.cli import main

Certificate = Literal["good", "expired", "wrong_host", "untrusted"]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server that wants a password, so that there is something to give away."""
    with Server(config={"requirepass": "hunter2"}) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(guarded: Server) -> Iterator[TlsProxy]:
    with TlsProxy(guarded.address) as proxy:
        yield proxy


def secure_url(proxy: TlsProxy, options: str = "", host: str = HOST, scheme: str = "rediss") -> str:
    return f"{scheme}://:hunter2@{host}:{proxy.port}/0?ssl_ca_certs={proxy.ca_path}{options}"


@BOTH_FACES
@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_every_verb_over_tls(proxy: TlsProxy, face: type, scheme: str) -> None:
    with Windlass(secure_url(proxy, scheme=scheme), retry_for=5) as app:
        queue = through(face, app.queue("tls"))
        every_verb(queue)
        queue.close()  # type: ignore[attr-defined]


@BOTH_FACES
@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        ("untrusted", "(?i)certificate verify failed.*(self.signed|unable to get local issuer)"),
        ("wrong_host", "(?i)certificate verify failed.*(mismatch|not valid for)"),
        ("expired", "(?i)certificate verify failed.*expired"),
    ],
)
def test_a_certificate_that_cannot_be_trusted_is_refused(
    guarded: Server, face: type, certificate: Certificate, reason: str
) -> None:
    with TlsProxy(guarded.address, certificate=certificate) as proxy, Windlass(secure_url(proxy), retry_for=0.1) as app:
        queue = through(face, app.queue("tls"))
        with pytest.raises(errors.ServerUnreachable, match=reason) as refused:
            queue.enqueue(b"x")
        assert "hunter2" not in str(refused.value)
        queue.close()  # type: ignore[attr-defined]
        assert proxy.connections == 0, "a client that refused the certificate must not have spoken"


class OddProxy(TlsProxy):
    """A server whose certificate or protocol is of a kind that people make by hand, or that is long out of use."""

    def __init__(self, upstream: Address, odd: str) -> None:
        super().__init__(upstream)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca_path)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if odd == "self-signed":
            own = trustme.CA()
            both = self._folder / "own.pem"
            both.write_bytes(own.private_key_pem.bytes() + own.cert_pem.bytes())
            self._tls.load_cert_chain(both)
            return
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        begins, ends = (now + day, now + 2 * day) if odd == "not yet valid" else (now - day, now + day)
        authority.issue_cert(HOST, not_before=begins, not_after=ends).configure_cert(self._tls)
        if odd in ("TLS 1.1", "TLS 1.2"):
            self._tls.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            self._tls.maximum_version = ssl.TLSVersion.TLSv1_1 if odd == "TLS 1.1" else ssl.TLSVersion.TLSv1_2


@BOTH_FACES
@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ("self-signed", "(?i)certificate verify failed.*self.signed"),
        ("not yet valid", "(?i)certificate verify failed.*not yet valid"),
        ("TLS 1.1", "no connection to"),  # the reason depends on who hangs up first
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_made_by_hand_or_out_of_use_is_refused(guarded: Server, face: type, odd: str, reason: str) -> None:
    with OddProxy(guarded.address, odd) as proxy, Windlass(secure_url(proxy), retry_for=0.1) as app:
        queue = through(face, app.queue("tls"))
        with pytest.raises(errors.ServerUnreachable, match=reason) as refused:
            queue.enqueue(b"x")
        assert "hunter2" not in str(refused.value)
        queue.close()  # type: ignore[attr-defined]
        assert proxy.connections == 0, "a client that refused it must not have spoken"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tls_1_2_is_the_least(guarded: Server) -> None:
    with OddProxy(guarded.address, "TLS 1.2") as proxy, Windlass(secure_url(proxy), retry_for=5) as app:
        app.queue("tls").enqueue(b"x")
        assert app.queue("tls").purge() == 1


@pytest.mark.parametrize("certificate", ["untrusted", "wrong_host", "expired"])
def test_sentinels_are_not_believed_without_a_good_certificate(guarded: Server, certificate: Certificate) -> None:
    """Who answers in the place of a sentinel names the server that passwords go to."""
    with TlsProxy(guarded.address, certificate=certificate) as proxy:
        url = f"rediss+sentinel://:hunter2@{HOST}:{proxy.port}/main/0?sentinel_password=hunter2&ssl_ca_certs={proxy.ca_path}"
        with Windlass(url, retry_for=0.1) as app, pytest.raises(errors.ServerUnreachable, match="verify failed"):
            app.queue("tls").enqueue(b"x")
        assert proxy.connections == 0


def test_a_command_refuses_and_says_why(guarded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.cli.connect.RETRY_FOR_S", 0.1)
    with TlsProxy(guarded.address, certificate="expired") as proxy:
        result = CliRunner().invoke(main, ["status", "--url", secure_url(proxy)])
    assert result.exit_code == 4
    assert "certificate verify failed" in result.stderr
    assert "hunter2" not in result.output


@BOTH_FACES
def test_an_authority_nobody_knows_is_refused_without_any_option(proxy: TlsProxy, face: type) -> None:
    """The safe way is the default: no option is needed to have certificates checked."""
    with Windlass(f"rediss://:hunter2@{HOST}:{proxy.port}/0", retry_for=0.1) as app:
        queue = through(face, app.queue("tls"))
        with pytest.raises(errors.ServerUnreachable, match="certificate verify failed"):
            queue.enqueue(b"x")
        queue.close()  # type: ignore[attr-defined]


@BOTH_FACES
def test_the_host_name_can_be_left_unchecked_on_request_alone(guarded: Server, face: type) -> None:
    with (
        TlsProxy(guarded.address, certificate="wrong_host") as proxy,
        Windlass(secure_url(proxy, "&ssl_check_hostname=no"), retry_for=5) as app,
    ):
        queue = through(face, app.queue("tls"))
        queue.enqueue(b"x")
        assert queue.purge() == 1
        queue.close()  # type: ignore[attr-defined]


@BOTH_FACES
def test_a_client_certificate(guarded: Server, face: type) -> None:
    with TlsProxy(guarded.address, require_client_certificate=True) as proxy:
        own = f"&ssl_certfile={proxy.client_cert_path}&ssl_keyfile={proxy.client_cert_path}"
        with Windlass(secure_url(proxy, own), retry_for=5) as app:
            queue = through(face, app.queue("tls"))
            queue.enqueue(b"x")
            assert queue.purge() == 1
            queue.close()  # type: ignore[attr-defined]
        with Windlass(secure_url(proxy), retry_for=0.1) as app:
            queue = through(face, app.queue("tls"))
            with pytest.raises(errors.ServerUnreachable):
                queue.enqueue(b"x")
            queue.close()  # type: ignore[attr-defined]


class Eavesdropper:
    """Accepts connections, says nothing, and keeps the first bytes of each."""

    def __init__(self) -> None:
        self._socket = socket.create_server((HOST, 0))
        self.port: int = self._socket.getsockname()[1]
        self.heard: list[bytes] = []
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> Eavesdropper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                self.heard.append(connection.recv(4096))


@BOTH_FACES
def test_nothing_is_said_before_the_handshake(face: type) -> None:
    with Eavesdropper() as ear, Windlass(f"rediss://user:hunter2@{HOST}:{ear.port}/0", retry_for=0.1) as app:
        queue = through(face, app.queue("tls"))
        with pytest.raises(errors.ServerUnreachable):
            queue.enqueue(b"payload")
        queue.close()  # type: ignore[attr-defined]
    assert ear.heard
    for words in ear.heard:
        assert words[:2] == b"\x16\x03", "not a TLS handshake"
        assert b"hunter2" not in words
        assert b"payload" not in words


@BOTH_FACES
def test_a_server_without_tls_is_told(face: type) -> None:
    with Server(tcp=True) as plain, Windlass(f"rediss://{HOST}:{plain.port}/0", retry_for=0.1, call_timeout=0.3) as app:
        queue = through(face, app.queue("tls"))
        with pytest.raises(errors.ServerUnreachable, match=r"(?i)ssl|tls|closed|reset|timeout"):
            queue.enqueue(b"x")
        queue.close()  # type: ignore[attr-defined]


def test_tls_options_need_a_tls_url() -> None:
    with pytest.raises(errors.InvalidOption, match="rediss://"):
        Windlass(f"redis://{HOST}:6379/0?ssl_ca_certs=/nowhere")
