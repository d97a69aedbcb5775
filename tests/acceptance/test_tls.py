"""TLS as an operator meets it: two settings, a client that trusts the authority, and a certificate that is renewed."""

import os
import signal
import socket
import ssl
from pathlib import Path

import httpx2

from tests.support.certificates import Authority, Certified
from tests.support.process import (
    Process,
    Server,
    answers,
    ended,
    environment,
    owner_token,
    run_to_end,
    wait_for,
    workers_of,
)
from tests.support.servers import free_port
from tests.support.waiting import PATIENCE_SECONDS

STARTED = "Application startup complete"  # each of the processes says so
CONNECTIONS = 12  # of two processes, so that each shows its certificate


def shows(server: Server, certified: Certified) -> bool:
    """Whether this is the certificate of every process."""
    wanted = certified.certificate.read_text()
    shown = [ssl.get_server_certificate(("127.0.0.1", server.port), timeout=60) for _ in range(CONNECTIONS)]
    return {ssl.PEM_cert_to_DER_cert(pem) for pem in shown} == {ssl.PEM_cert_to_DER_cert(wanted)}


def asked(connection: ssl.SSLSocket) -> bytes:
    connection.sendall(b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n")
    return connection.recv(4096)


def test_the_server_speaks_tls_and_reads_a_renewed_certificate_at_sighup(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    old, data = authority.issue("server"), tmp_path / "data"
    settings = {"DATA": str(data), "TLS_CERTIFICATE": str(old.certificate), "TLS_KEY": str(old.key)}
    server = Server(tmp_path / "log", settings, "--workers", "2")
    trust = ssl.create_default_context(cafile=authority.file)
    with ended(server):
        wait_for(lambda: "curl -H" in server.output() and f"{server.url}/me/usage" in server.output())
        wait_for(lambda: server.output().count(STARTED) == 2)
        photo = tmp_path / "photo.jpg"
        photo.write_bytes(bytes(range(256)) * 4096)
        client = environment({"URL": server.url, "TOKEN": owner_token(data)})
        put = ("put", str(photo))
        refused = run_to_end(put, client, timeout_seconds=PATIENCE_SECONDS)
        assert (refused.returncode, "SSL_CERT_FILE may name whom to trust" in refused.stderr) == (6, True)
        done = run_to_end(put, client | {"SSL_CERT_FILE": str(authority.file)}, timeout_seconds=PATIENCE_SECONDS)
        assert done.returncode == 0, done.stderr
        headers = {"Authorization": f"Bearer {owner_token(data)}"}
        (file,) = httpx2.get(f"{server.url}/me/files", headers=headers, verify=trust, timeout=60).json()["files"]
        assert file["size"] == photo.stat().st_size

        plain = socket.create_connection(("127.0.0.1", server.port))
        with trust.wrap_socket(plain, server_hostname="127.0.0.1") as kept:
            assert asked(kept).startswith(b"HTTP/1.1 200")
            before = Certified(tmp_path / "before.pem", old.key)
            before.certificate.write_bytes(old.certificate.read_bytes())
            key = old.key.read_bytes()
            old.key.write_bytes(b"none")
            server.process.send_signal(signal.SIGHUP)
            wait_for(lambda: server.output().count("the old one stays") == 2)
            assert shows(server, before)
            old.key.write_bytes(key)
            renewed = authority.issue("server")
            server.process.send_signal(signal.SIGHUP)
            wait_for(lambda: shows(server, renewed))
            assert asked(kept).startswith(b"HTTP/1.1 200")
        assert server.stop() == 0


def test_processes_that_are_just_being_started_hear_sighup(tmp_path: Path) -> None:
    certified, port = Authority(tmp_path / "authority").issue("server"), free_port()
    settings = {
        "DATA": str(tmp_path / "data"),
        "TLS_CERTIFICATE": str(certified.certificate),
        "TLS_KEY": str(certified.key),
    }
    server = Process(tmp_path / "log", settings, "serve", "--port", str(port), "--workers", "2")
    with ended(server):
        told = set[int]()

        def have_all_said_so() -> bool:
            """On a busy machine uvicorn takes those that start for hung, and starts others."""
            for worker in set(workers_of(server)) - told:
                os.kill(worker, signal.SIGHUP)
                told.add(worker)
            return server.output().count("certificate reloaded") >= 2

        wait_for(have_all_said_so)
        wait_for(lambda: answers(port, secure=True))
        assert set(workers_of(server)) <= told
        assert server.stop() == 0


def test_a_server_without_tls_goes_on_at_sighup(tmp_path: Path) -> None:
    server = Server(tmp_path / "log", {"DATA": str(tmp_path / "data")})
    with ended(server):
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: answers(server.port))
        assert server.process.poll() is None
