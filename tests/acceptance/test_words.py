"""What goes wrong, in the words of who reads it: which host or file, what to do, with figures, and said but once."""

import contextlib
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import self_signed
from tests.support.commands import Commands
from tests.support.content import KIB, MIB
from tests.support.process import Server, ended, owner_token, run_cli
from tests.support.servers import free_port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose disk is all but 16 MiB reserve, so that there is room for nothing."""
    directory = tmp_path_factory.mktemp("server")
    floor_bytes = shutil.disk_usage(directory).total - 16 * MIB
    made = Server(directory / "log", {"DATA": str(directory / "data"), "FREE_SPACE_FLOOR": str(floor_bytes)})
    with ended(made):
        yield made


@pytest.fixture
def token(server: Server) -> str:
    return owner_token(server.log.parent / "data")


@contextlib.contextmanager
def speaking(answer: bytes, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of something that is no upload server: it answers anybody so, or only who speaks TLS."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), connection:
                    if tls is not None:
                        connection = tls.wrap_socket(connection, server_side=True)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):  # or what is unread at the end would take the answer along
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def said(home: Path, url: str, token: str | None = "token", *, codes: tuple[int, ...] = (5, 6)) -> str:
    """What a command says on a URL that it can't work with."""
    (home / "a").write_bytes(b"a")
    ended = Commands(home, url, token).run("put", "a", "--patience", "300ms")
    assert ended.returncode in codes
    told = [line for line in ended.stderr.splitlines() if "(trying again)" not in line and " of 1 file: " not in line]
    assert len(told) == 1, ended.stderr
    assert ended.stderr.count("(trying again)") == (1 if ended.returncode == 5 else 0), ended.stderr
    return told[0]


def test_a_wrong_or_missing_token_is_told_as_the_command_line_has_it(
    server: Server, token: str, tmp_path: Path
) -> None:
    wrong, missing, broken = (said(tmp_path, server.url, each, codes=(3,)) for each in ("wrong", None, "line\nfeed"))
    assert f"{server.url} does not know the token" in wrong
    assert "it is the one of UPLOADER_TOKEN" in wrong
    assert "the token holds characters that no token has; it is the one of UPLOADER_TOKEN" in broken
    assert f"{server.url} asks for a token, and none was given; `uploader login` asks for one" in missing
    commands = Commands(tmp_path)
    refused = commands.run("login", server.url, stdin="wrong\n")
    assert f"{server.url} does not know the token" in refused.stderr
    assert "login" not in refused.stderr, "that is what they do"
    assert commands.run("login", server.url, stdin=token).returncode == 0
    assert "Authorization" not in wrong + missing + refused.stderr


def test_a_url_that_leads_elsewhere_is_told_once_with_what_to_look_at(server: Server, tmp_path: Path) -> None:
    port = server.port
    assert f"https://127.0.0.1:{port} does not speak TLS: is it {server.url}" in said(
        tmp_path, f"https://127.0.0.1:{port}"
    )
    assert "the host nosuch.invalid can't be looked up" in said(tmp_path, "http://nosuch.invalid")
    assert f"nothing at {server.url}/elsewhere/" in said(tmp_path, f"{server.url}/elsewhere")
    closed = f"http://127.0.0.1:{free_port()}"
    assert f"{closed} refuses connections: does the server run" in said(tmp_path, closed, codes=(5,))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*self_signed(tmp_path, "127.0.0.1"))
    with speaking(b"", tls) as port:
        assert f"127.0.0.1:{port} is not trusted: self-signed" in said(tmp_path, f"https://127.0.0.1:{port}")
        assert "without an answer: is it https://" in said(tmp_path, f"http://127.0.0.1:{port}")
    with speaking(b"SSH-2.0-OpenSSH_9.2\r\n\r\n") as port:
        assert "does not speak HTTP: is the port right?" in said(tmp_path, f"http://127.0.0.1:{port}")
    plain = b"The plain HTTP request was sent to HTTPS port"
    # Who does not say that it closes may be asked once more, in the moment before it does.
    close = b"Connection: close\r\nContent-Length: %d\r\n\r\n%s"
    with speaking(b"HTTP/1.1 400 Bad Request\r\n" + close % (len(plain), plain)) as port:
        assert "speaks TLS: the URL begins with https://" in said(tmp_path, f"http://127.0.0.1:{port}")
    with speaking(b"HTTP/1.1 200 OK\r\n" + close % (2, b"hi")) as port:
        assert "is not answered as an upload server does" in said(tmp_path, f"http://127.0.0.1:{port}")


def test_a_file_that_does_not_fit_is_told_with_figures(server: Server, token: str, tmp_path: Path) -> None:
    data = server.log.parent / "data"
    commands = Commands(tmp_path, server.url, token)
    for name, size in (("small", 300 * KIB), ("middle", 17 * MIB), ("large", 25 * MIB)):
        with (tmp_path / name).open("wb") as opened:
            opened.truncate(size)
    assert run_cli({"DATA": str(data)}, "user", "set-quota", "owner", "20MiB").returncode == 0
    told = commands.run("put", "large")
    assert told.returncode == 4
    assert "not enough space: the file needs 25 MiB, and 20 MiB of your 20 MiB are free" in told.stderr
    told = commands.run("put", "middle", "--patience", "1h")
    assert told.returncode == 6, "trying again does not help, so it was not tried"
    assert "disk is too small for this file: it needs 17 MiB, and at most 16 MiB fit" in told.stderr
    told = commands.run("put", "small", "--patience", "300ms")
    assert told.returncode == 5
    assert "disk is full: the file needs 300 KiB, and 0 B are free" in told.stderr
