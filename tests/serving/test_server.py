"""The server: its port, its encryption, and how it ends."""

import asyncio
import http.client
import shutil
import socket
import ssl
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from rookery.errors import InvalidInputError
from rookery.serving.limits import Limits
from rookery.serving.server import Server, check_address, renew
from rookery.serving.tls import Renewal, Tls
from tests.served import Echo, connect, served, tls_files, trusting_context


def test_a_taken_port_is_one_clear_error() -> None:
    with served() as server, pytest.raises(InvalidInputError, match=f"{server.port}: Address already in use.*--port"):
        Server(Echo(), "127.0.0.1", server.port, Limits()).bind()


def test_an_unknown_host_is_one_clear_error() -> None:
    with pytest.raises(InvalidInputError, match=r"cannot listen on 192\.0\.2\.1 port 0"):
        Server(Echo(), "192.0.2.1", 0, Limits()).bind()


@pytest.mark.parametrize("port", [-1, 65536, 70_000])
def test_a_port_beyond_the_range_is_one_clear_error(port: int) -> None:
    with pytest.raises(InvalidInputError, match=f"port={port}: expected 1 to 65535"):
        Server(Echo(), "127.0.0.1", port, Limits()).bind()


def test_a_failed_look_at_tls_files_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookery.serving.server.RENEWAL_SECONDS", 0.0)
    checked = asyncio.Event()

    class FaultyOnce:
        num_checks = 0

        def check(self) -> None:
            self.num_checks += 1
            if self.num_checks == 1:
                raise RuntimeError("planted")
            checked.set()

    async def scenario() -> None:
        task = asyncio.create_task(renew(FaultyOnce()))
        await asyncio.wait_for(checked.wait(), 20.0)
        task.cancel()

    asyncio.run(scenario())


def test_a_server_that_stops_tells_how_many_requests_still_wait() -> None:
    echo = Echo()
    with served(echo) as server:
        echo.num_open_steps = 2
        assert server.stop(0.0) == 2


def test_connections_wait_between_bind_and_start() -> None:
    server = Server(Echo(), "localhost", 0, Limits())
    server.bind()
    with socket.create_connection(("localhost", server.port), timeout=20.0) as connection:
        connection.sendall(b"GET /early HTTP/1.1\r\nhost: localhost\r\n\r\n")
        server.start()
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    server.stop(0.0)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_this_machine_may_connect_without_token_and_encryption(host: str) -> None:
    check_address(host, has_tokens=False, has_tls=False, is_insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org", "localhost.example.org"])
def test_other_machines_need_a_token_and_encryption(host: str) -> None:
    check_address(host, has_tokens=True, has_tls=True, is_insecure=False)
    check_address(host, has_tokens=False, has_tls=False, is_insecure=True)
    with pytest.raises(InvalidInputError, match=r"needs TLS \(--tls-cert, --tls-key\): give it, or --insecure"):
        check_address(host, has_tokens=True, has_tls=False, is_insecure=False)
    with pytest.raises(InvalidInputError, match="needs a token: "):
        check_address(host, has_tokens=False, has_tls=True, is_insecure=False)


def test_requests_are_encrypted(tmp_path: Path) -> None:
    with served(tls=tls_files(tmp_path)) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        client = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=20.0, context=trusting_context())
        client.request("POST", "/", b"secret")
        assert client.getresponse().read() == b"secret"
        client.close()


def test_tls_before_1_2_is_refused(tmp_path: Path) -> None:
    with served(tls=tls_files(tmp_path)) as server:
        for version, is_refused in ((ssl.TLSVersion.TLSv1_1, True), (ssl.TLSVersion.TLSv1_2, False)):
            context = trusting_context()
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, version
            refusal = (
                pytest.raises(ssl.SSLError, match=r"UNEXPECTED_EOF|PROTOCOL_VERSION") if is_refused else nullcontext()
            )
            with connect(server.port) as connection, refusal:
                context.wrap_socket(connection, server_hostname="127.0.0.1").close()


@pytest.mark.parametrize("mode", [0o644, 0o640])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    tls = tls_files(tmp_path)
    tls.key_file.chmod(mode)
    with pytest.raises(InvalidInputError, match=r"TLS key: others may read .*chmod 600"):
        tls.new_context()


def test_a_key_of_another_certificate_and_an_encrypted_one_are_refused(tmp_path: Path) -> None:
    tls = tls_files(tmp_path)
    new_key(tls)
    with pytest.raises(InvalidInputError, match="cannot use the certificate"):
        tls.new_context()
    new_key(tls, "-aes-128-cbc", "-pass", "pass:secret")
    with pytest.raises(InvalidInputError, match="the key is encrypted"):
        tls.new_context()


def test_renewed_files_are_used_by_the_connections_to_come(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tls = tls_files(tmp_path)
    context = tls.new_context()
    renewal = Renewal(tls, context)
    old_key = tls.key_file.read_bytes()
    new_key(tls)
    certify(tls)
    renewed_key = tls.key_file.read_bytes()
    # The certificate is renewed before its key.
    tls.key_file.write_bytes(old_key)
    renewal.check()
    renewal.check()
    assert caplog.text.count("the renewed TLS files are not used") == 1
    assert handshake(context)
    tls.key_file.write_bytes(renewed_key)
    renewal.check()
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(context)
    assert handshake(context, tls.cert_file)


def new_key(tls: Tls, *options: str) -> None:
    openssl(
        "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", str(tls.key_file), *options
    )


def certify(tls: Tls) -> None:
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    openssl("req", "-x509", "-key", str(tls.key_file), "-days", "2", "-out", str(tls.cert_file), *names)


def openssl(*arguments: str) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def handshake(context: ssl.SSLContext, trusted: Path | None = None) -> bool:
    """Let a client and a server shake hands in memory; True if both are content."""
    client_context = ssl.create_default_context(cafile=str(trusted)) if trusted else trusting_context()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    finished = set()
    for side in (client, server) * 3:
        try:
            side.do_handshake()
            finished.add(side)
        except ssl.SSLWantReadError:
            continue
    return len(finished) == 2
