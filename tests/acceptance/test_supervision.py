"""A service manager hears of a start, a stop and a hung event loop; load balancers and proxies of a stop."""

import asyncio
import errno
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
import uvicorn

from tests.support.process import Process, Server, ended, run_cli, workers_of
from tests.support.sending import get
from tests.support.servers import accepts, free_port
from tests.support.waiting import PATIENCE_SECONDS, SERVER_SECONDS, wait_for
from uploader.bootstrap.processes import ServerProcesses, _ServerProcess, begin_no_connection
from uploader.bootstrap.systemd import watchdog_seconds, watched_loop
from uploader.http.app import STOP_STATE

CLIENTS = 8
# Half of it is the interval.
_WATCHDOG_SECONDS = 0.1
_PID = struct.Struct("3i")


class ServiceManager:
    """The end of systemd: a datagram socket, and what its service may say there (`NotifyAccess=main`)."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0"))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.settimeout(SERVER_SECONDS)

    def close(self) -> None:
        self._socket.close()

    def hears(self, assignment: str, service: Process | None = None) -> set[str]:
        """Wait for an assignment of this process; all that came until then."""
        pid = os.getpid() if service is None else service.process.pid
        heard: set[str] = set()
        while assignment not in heard:
            message, credentials, _, _ = self._socket.recvmsg(4096, 64)
            assert _PID.unpack(credentials[0][2])[0] == pid
            heard.update(message.decode().split("\n"))
        return heard

    def hears_nothing(self) -> bool:
        """Whether nothing comes in five intervals, after what came before."""
        while select.select([self._socket], [], [], 0)[0]:
            self._socket.recv(4096)
        return not select.select([self._socket], [], [], 5 * _WATCHDOG_SECONDS)[0]


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServiceManager]:
    address = "notify" if request.param == "path" else f"@uploader-{os.getpid()}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOTIFY_SOCKET", address if address.startswith("@") else str(tmp_path / address))
    monkeypatch.setenv("WATCHDOG_USEC", str(round(_WATCHDOG_SECONDS * 1e6)))
    with closing(ServiceManager(address)) as made:
        yield made


def knock(port: int, ended: threading.Event) -> list[str]:
    """Ask on one new connection after the other; what was not answered, of the connections that began."""
    lost = []
    while not ended.is_set():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2) as connection:
            try:
                connection.settimeout(SERVER_SECONDS)
                connection.sendall(b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n")
                answer = connection.recv(4096)
            except OSError as error:
                answer = repr(error).encode()
            if not answer.startswith(b"HTTP/1.1 200"):
                lost.append(answer.decode())
        time.sleep(0.002)
    return lost


@pytest.mark.parametrize(("manager", "workers"), [("path", 1), ("abstract", 2)], indirect=["manager"])
def test_messages_of_a_server_to_its_service_manager(manager: ServiceManager, workers: int, tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data"), "DRAIN_TIME": "1h", "TRUSTED_PROXIES": "127.0.0.1"}
    server = Server(tmp_path / "log", settings, "--workers", str(workers))
    with ended(server):
        manager.hears("READY=1", server)
        manager.hears("WATCHDOG=1", server)
        for hanging in workers_of(server)[:1]:
            os.kill(hanging, signal.SIGSTOP)
            wait_for(manager.hears_nothing)
            os.kill(hanging, signal.SIGCONT)
        assert "STOPPING=1" not in manager.hears("WATCHDOG=1", server)
        os.kill(server.process.pid, signal.SIGTERM)
        manager.hears("STOPPING=1", server)
        wait_for(lambda: get(f"{server.url}/readyz").status_code == 503)
        drained = get(f"{server.url}/readyz")
        assert drained.json() == {"checks": {"process": {"ok": False, "reason": "the process stops"}}}
        answer = get(f"{server.url}/config")
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        has_ended = threading.Event()
        with ThreadPoolExecutor(CLIENTS) as clients:
            knocking = [clients.submit(knock, server.port, has_ended) for _ in range(CLIENTS)]
            try:
                assert server.stop() == 0
            finally:
                has_ended.set()
        assert [lost for each in knocking for lost in each.result()] == []


@pytest.mark.parametrize("manager", ["abstract"], indirect=True)
def test_probes_on_the_port_of_a_worker(manager: ServiceManager, tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data")}
    port = free_port()
    worker = Process(tmp_path / "log", settings, "work", "--listen", f"127.0.0.1:{port}")
    url = f"http://127.0.0.1:{port}"
    with ended(worker):
        manager.hears("READY=1", worker)
        manager.hears("WATCHDOG=1", worker)
        paths = ("/livez", "/readyz", "/metrics", "/me/files", "/")
        assert [get(url + path).status_code for path in paths] == [200, 200, 401, 404, 404]
        token = run_cli(settings, "token", "create", "prometheus", "--metrics").stdout.split()[-1]
        assert b"uploader_open_uploads 0.0" in get(f"{url}/metrics", token).content
        os.kill(worker.process.pid, signal.SIGTERM)
        manager.hears("STOPPING=1", worker)
        assert worker.process.wait(SERVER_SECONDS) == 0


def test_a_worker_that_waits_for_its_database_is_live_and_not_ready(tmp_path: Path) -> None:
    away = {"DATABASE_URL": f"mysql+asyncmy://user@127.0.0.1:{free_port()}/none", "REDIS_URL": "redis://127.0.0.1:1"}
    port = free_port()
    settings = {"DATA": str(tmp_path / "data"), "WORK_LISTEN": f"127.0.0.1:{port}", **away}
    worker = Process(tmp_path / "log", settings, "work")
    with ended(worker):
        wait_for(lambda: accepts(port))
        assert get(f"http://127.0.0.1:{port}/livez").status_code == 200
        ready = get(f"http://127.0.0.1:{port}/readyz")
        assert (ready.status_code, list(ready.json()["checks"])) == (503, ["start"])
        assert worker.stop() == 0


def test_a_worker_refuses_an_address_that_it_cannot_have(tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data")}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        for listen, more, reason in (
            (place, {}, f"can't listen on {place}: Address already in use; --listen chooses another address"),
            ("8001", {}, "UPLOADER_WORK_LISTEN: not an address and a port such as 127.0.0.1:8001 or [::1]:8001"),
            ("0.0.0.0:0", {"AUTH": "none"}, "it is refused on 0.0.0.0, which is not a loopback address"),
        ):
            refused = run_cli(settings | more, "work", "--listen", listen)
            assert (refused.returncode, refused.stdout) == (2, "")
            assert reason in refused.stderr


@pytest.mark.parametrize("manager", ["path"], indirect=True)
async def test_a_hanging_event_loop_does_not_feed_the_watchdog(
    manager: ServiceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_fed() -> bool:
        return await asyncio.to_thread(manager.hears, "WATCHDOG=1") == {"WATCHDOG=1"}

    with watched_loop():
        assert await is_fed()
        assert manager.hears_nothing(), "which blocks the loop"
        assert await is_fed()
    assert await asyncio.to_thread(manager.hears_nothing)
    for pid, seconds in ((os.getpid(), _WATCHDOG_SECONDS / 2), (os.getppid(), None)):
        monkeypatch.setenv("WATCHDOG_PID", str(pid))
        assert watchdog_seconds() == seconds


def test_a_server_process_does_not_answer_for_an_event_loop_that_hangs() -> None:
    process = _ServerProcess(uvicorn.Config("none"), [])
    hangs, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        goes_on.wait()

    async def app(_scope: object, _receive: object, _send: object) -> None: ...

    async def stop() -> None:
        """Do nothing: there are no requests."""

    server = process.server
    server.config = uvicorn.Config(app, log_config=None, lifespan="off")
    serving = threading.Thread(target=server.run, args=([],))
    serving.start()
    wait_for(lambda: server._loop is not None)
    loop = server._loop
    assert loop is not None
    server.lifespan.state[STOP_STATE] = stop
    threading.Thread(target=process.always_pong, daemon=True).start()
    try:
        assert process.ping(PATIENCE_SECONDS)
        loop.call_soon_threadsafe(hang)
        assert hangs.wait(PATIENCE_SECONDS)
        assert not process.ping(0.2)
        goes_on.set()
        assert process.parent_conn.poll(PATIENCE_SECONDS)
    finally:
        goes_on.set()
        server.handle_exit(signal.SIGTERM, None)
        serving.join(PATIENCE_SECONDS)


def test_the_port_is_closed_before_the_requests_of_several_processes_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signal, "signal", lambda _number, _handler: None)
    listener = socket.create_server(("127.0.0.1", 0))
    processes = ServerProcesses(uvicorn.Config("none", workers=0), [listener], 0.0)
    processes.should_exit.set()
    closed = []
    monkeypatch.setattr(processes, "join_all", lambda: closed.append(listener.fileno() == -1))
    processes.run()
    assert closed == [True]


def test_no_connection_that_has_begun_is_lost_when_the_port_closes() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as begun, socket.socket() as late:
        begin_no_connection(listener)
        late.setblocking(False)
        assert late.connect_ex(listener.getsockname()) == errno.EINPROGRESS
        accepted, _ = listener.accept()
        with accepted:
            begun.sendall(b"request")
            assert accepted.recv(7) == b"request"
        assert select.select([], [late], [], 0.1)[1] == []
        listener.close()
        assert select.select([], [late], [], PATIENCE_SECONDS)[1] == [late]
        assert late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
