"""The server as its users run it: real processes, started by the console script and killed when a test wants it."""

import contextlib
import http.client
import os
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import httpx2

from tests.support import forkserver, waiting
from tests.support.servers import free_port
from tests.support.waiting import SERVER_SECONDS

UPLOADER = Path(sys.executable).with_name("uploader")
wait_for = waiting.wait_for
Settings = Mapping[str, str]
# Where silence is tried, a test says how long it is waited for.
_STORES_TIME = {"DATABASE_TIMEOUT": "60s", "REDIS_TIMEOUT": "60s"}


def environment(settings: Settings) -> dict[str, str]:
    """The environment of a process: nothing of UPLOADER_* but `settings`, given by their names without the prefix, and
    time for servers on a busy machine."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("UPLOADER_")}
    return clean | {f"UPLOADER_{name}": value for name, value in (_STORES_TIME | dict(settings)).items()}


def run_cli(settings: Settings, *arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    return run_to_end(arguments, environment(settings), cwd=cwd, timeout_seconds=SERVER_SECONDS)


def run_elsewhere(
    place: str, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, stdin: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, as on a machine where the server can't run (`tests/support/elsewhere.py`)."""
    words = [sys.executable, "-m", "tests.support.elsewhere", place, *arguments]
    env = {**environment, "PYTHONPATH": str(Path(__file__).parents[2])}
    return run_program(words, env=env, cwd=cwd, input=stdin, timeout=SERVER_SECONDS, check=False)


def can_mount() -> bool:
    """In a namespace of its own, where nobody else sees it."""
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


def clamd_program() -> str | None:
    """ClamAV's daemon, which scans for viruses."""
    return shutil.which("clamd", path=f"{os.environ['PATH']}:/usr/sbin")


def run_mounted(mounts: str, settings: Settings, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that sees what a shell has mounted for it alone."""
    script = f"{mounts} && exec {shlex.join([str(UPLOADER), *command])}"
    program = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
    return run_program(program, env=environment(settings), check=False, timeout=SERVER_SECONDS)


def run_to_end(
    arguments: Sequence[str | Path],
    environment: Mapping[str, str],
    *,
    cwd: Path | None = None,
    stdin: str = "",
    program: Sequence[str | Path] = (UPLOADER,),
    timeout_seconds: float,
) -> "subprocess.CompletedProcess[str]":
    """Run a command in this environment to its end. Raises subprocess.TimeoutExpired."""
    with TemporaryFile("w+") as given, TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        given.write(stdin)
        given.seek(0)
        process = forkserver.start([*program, *arguments], environment, [given, stdout, stderr], cwd)
        try:
            code = process.wait(timeout=timeout_seconds)
        finally:
            process.kill()
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess([*arguments], code, stdout.read(), stderr.read())


def run_program(words: Sequence[str | Path], *, check: bool = True, **how: Any) -> "subprocess.CompletedProcess[str]":
    """Run any program to its end; what it printed. `how`: what else subprocess.run() takes."""
    return subprocess.run(words, capture_output=True, text=True, check=check, **how)


class Process:
    """`uploader serve` or `uploader work`, and what it printed."""

    def __init__(
        self, log: Path, settings: Settings, *arguments: str, program: Sequence[str | Path] | None = None
    ) -> None:
        """`program`: what a new interpreter is to run, where it matters that it is one."""
        self.log = log
        self.process: subprocess.Popen[bytes] | forkserver.Forked
        with log.open("ab") as output, Path(os.devnull).open() as nothing:
            standard: list[IO[Any]] = [nothing, output, output]
            env = environment(settings)
            if program is None:
                self.process = forkserver.start([UPLOADER, *arguments], env, standard)
            else:
                how: dict[str, Any] = dict(zip(("stdin", "stdout", "stderr"), standard, strict=True))
                self.process = subprocess.Popen([*program, *arguments], env=env, start_new_session=True, **how)

    def kill(self) -> None:
        """SIGKILL to this process alone; what it started has to notice by itself."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(timeout=SERVER_SECONDS)

    def output(self) -> str:
        return self.log.read_text()


def answers(port: int, *, secure: bool = False) -> bool:
    """Whether the server on this port is ready, whatever its certificate."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SERVER_SECONDS)
    if secure:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=SERVER_SECONDS, context=context)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Server(Process):
    """`uploader serve` on a port of its own, ready when this returns."""

    def __init__(
        self,
        log: Path,
        settings: Settings,
        *arguments: str,
        port: int | None = None,
        program: Sequence[str | Path] | None = None,
    ) -> None:
        self.port = port or free_port()
        self._is_secure = "TLS_CERTIFICATE" in settings
        self.url = f"{'https' if self._is_secure else 'http'}://127.0.0.1:{self.port}"
        super().__init__(log, settings, "serve", "--port", str(self.port), *arguments, program=program)
        wait_for(self._is_ready, SERVER_SECONDS, "the server")

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.output()
        return answers(self.port, secure=self._is_secure)


def owner_token(data: Path) -> str:
    """The token that the first start left for the owner."""
    return (data / "owner.token").read_text().strip()


def client_of_owner(url: str, data: Path) -> httpx2.Client:
    """To a server on this data directory; the caller closes it."""
    return httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {owner_token(data)}"})


@contextlib.contextmanager
def ended(*processes: Process) -> Iterator[None]:
    """Whatever happens, none of these outlives the test."""
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.process.pid, signal.SIGKILL)
            process.process.wait()


class Mortal:
    """A server that a test kills, and starts again in the same place."""

    def __init__(self, directory: Path, *, prefix: str = "", **settings: str) -> None:
        """`prefix`: below which clients see it."""
        directory.mkdir(exist_ok=True)
        port = free_port()
        if prefix:
            settings["PUBLIC_URL"] = f"http://127.0.0.1:{port}{prefix}"
        self._log = directory / "log"
        self._settings = {"DATA": str(directory / "data"), "FREE_SPACE_FLOOR": "0", "CHUNK_SIZE": "1MiB", **settings}
        self.server = Server(self._log, self._settings, port=port)
        self.url = f"{self.server.url}{prefix}"
        self.token = owner_token(directory / "data")

    def kill_and_start(self) -> None:
        """SIGKILL to all of it, and another one in its place."""
        self.end()
        self.server = Server(self._log, self._settings, port=self.server.port)

    def end(self) -> None:
        with ended(self.server):
            pass


def workers_of(server: Process) -> list[int]:
    """The server processes of several, without the Valkey that the one that started them runs as well."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return [int(child) for child in children if "spawn_main" in _command_line(child)]


def _command_line(pid: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def processes_in(directory: Path) -> list[int]:
    """The processes that run in a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == directory.absolute():
                found.append(int(process.name))
    return found
