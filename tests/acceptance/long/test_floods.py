"""Floods of sockets that ask for nothing, against a real server: new clients and probes are answered, nobody is reset."""

import http.client
import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.support.process import UPLOADER, Server, ended, owner_token
from tests.support.sockets import Answer

FEW_DESCRIPTORS = 1024
# Beside the sockets, in the process of the tests.
_OWN_DESCRIPTORS = 500
_PATIENCE_SECONDS = 60.0


@contextmanager
def flood(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many connections from one address."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            client = stack.enter_context(socket.socket())
            client.settimeout(_PATIENCE_SECONDS)
            client.connect(("127.0.0.1", port))
            made.append(client)
        yield made


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    """This process may open so many files meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[0] < count:
        if before[1] < count:
            pytest.skip(f"needs {count} open files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def asked(port: int, path: str, *, source: str, token: str = "") -> int:
    """The status of one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, _PATIENCE_SECONDS, (source, 0))
    with closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status


def told(client: socket.socket) -> Answer:
    """What a connection was told before it ended; it did not end by a reset."""
    answer = b""
    while piece := client.recv(65536):
        answer += piece
    head, _, body = answer.decode().partition("\r\n\r\n")
    lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    return Answer(int(lines[0].split()[1]), headers, body.encode())


def test_with_few_descriptors_probes_are_answered_and_refusals_are_read(tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data"), "MAX_CONNECTIONS_PER_ADDRESS": "4096"}
    limited = ("sh", "-c", f'ulimit -n {FEW_DESCRIPTORS} && exec "$0" "$@"', UPLOADER)
    server = Server(tmp_path / "log", settings, "--no-jobs", program=limited)
    with ended(server), descriptors(FEW_DESCRIPTORS + _OWN_DESCRIPTORS), ExitStack() as stack:
        token = owner_token(tmp_path / "data")
        head = f"POST /files/status HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nContent-Length: 11\r\n\r\n"
        at_work = stack.enter_context(flood(server.port, 192))  # as docs/limits.md has it, of 1,024
        for client in at_work:
            client.sendall(head.encode())
        beyond = stack.enter_context(flood(server.port, 300))
        for client in beyond:
            client.sendall(b"GET /config HTTP/1.1\r\nHost: a\r\n\r\n")
        for path in ("/livez", "/readyz"):
            assert asked(server.port, path, source="127.0.0.2") == 200
        answers = [told(client) for client in beyond]
        assert {(answer.status, answer.code) for answer in answers} == {(503, "unavailable")}
        at_work[0].sendall(b'{"md5s":[]}')
        assert json.loads(at_work[0].recv(65536).partition(b"\r\n\r\n")[2]) == {}
        log = server.output()
        assert "Too many open files" not in log and "request failed" not in log
