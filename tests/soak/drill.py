"""Does to a scratch installation what disks, crashes and people do to real ones, and tells how it came back:
`.venv/bin/python -m tests.soak.drill DIRECTORY`, by hand.

Knows the server by its processes, its files and its HTTP contract.
"""

import errno
import hashlib
import inspect
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

import click
import httpx2

from uploader.cli.server.services import EXIT_FAILED, require_server
from uploader.cli.terminal import EXIT_OK, EXIT_USAGE, fail, fail_lines, human_seconds, say

_CHUNK_BYTES = 64 << 10
_FILE_BYTES = 16 * _CHUNK_BYTES + 1
# A disk that is filled is no larger, so that it takes a moment and nobody else's room.
_SMALL_DISK_BYTES = 1 << 30
_SCRATCH_DISK = "128m"
_REQUEST_SECONDS, _HEALED_SECONDS, _POLL_SECONDS = 60.0, 180.0, 0.2
_LOCKED_SECONDS = 2.0
_MAIN = "from uploader.cli import main; main(prog_name='uploader')"
_BEGIN = "from tests.soak.drill import begin_scratch; begin_scratch({!r}); "


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one fault. `healed_seconds`: from its end until all worked again; None: it did not, or was not tried."""

    fault: str
    seen: list[str]
    healed_seconds: float | None = None
    lost: list[str] = field(default_factory=list)
    left_out: str | None = None

    @property
    def is_good(self) -> bool:
        return self.left_out is not None or (self.healed_seconds is not None and not self.lost)


def begin_scratch(list_path: str) -> None:
    """Prepare the process of a scratch server, before that begins: it ends with the drill, and opens no file whose path ends
    in a line of a list, as if its disk could not read it. An audit hook may refuse what it is told of (PEP 578)."""
    from uploader.runtime.embedded import end_with_parent

    end_with_parent()

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if (
            event == "open"
            and isinstance(arguments[0], str | bytes)
            and (path := os.fsdecode(arguments[0])) != list_path
        ):
            with suppress(FileNotFoundError):
                if path.endswith(tuple(Path(list_path).read_text().split())):
                    raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    sys.addaudithook(refuse)


class Scratch:
    """A server of the drill's own, and what it has acknowledged."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.unreadable = directory / "unreadable"
        self._log = directory / "log"
        # None of the settings in force: they may name a database, a Redis or a bucket that is in use.
        clean = {name: value for name, value in os.environ.items() if not name.startswith("UPLOADER_")}
        self._environment = clean | {
            "UPLOADER_DATA": str(self.data),
            "UPLOADER_FREE_SPACE_FLOOR": "0",
            "UPLOADER_MIN_CHUNK_SIZE": str(_CHUNK_BYTES),
            "UPLOADER_CHUNK_SIZE": str(_CHUNK_BYTES),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx2.Client(timeout=_REQUEST_SECONDS, trust_env=False)
        # Of each file that was acknowledged, by name.
        self.files: dict[str, dict[str, Any]] = {}

    def run(self, *arguments: str) -> str:
        """Run a command on the installation. Its output. Raises subprocess.CalledProcessError."""
        command = [sys.executable, "-c", _MAIN, *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def begin(self) -> None:
        """Make a token, and start."""
        self._client.headers["Authorization"] = f"Bearer {self.run('token', 'create', 'drill').split()[-1]}"
        self.start()

    def start(self) -> None:
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            port = chosen.getsockname()[1]
        self._client.base_url = httpx2.URL(f"http://127.0.0.1:{port}")
        command = [sys.executable, "-c", _BEGIN.format(str(self.unreadable)) + _MAIN, "serve", "--port", str(port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if not _until(lambda: _told(lambda: self.ask("GET", "/livez")) == "200"):
            raise DrillFailed(f"the server does not start: see {self._log}")

    def kill(self) -> None:
        """End all of it at once, Valkey, too."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for process_id in self.valkeys():
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)

    def valkeys(self) -> list[int]:
        """The processes of the embedded Valkey: those that work in its directory."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (entry / "cwd").readlink() == (self.data / "redis").resolve():
                    found.append(int(entry.name))
        return found

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return self._client.request(method, path, **options)

    @property
    def is_dead(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def close(self) -> None:
        self.kill()
        self._client.close()

    # Files

    def upload(self, content: bytes) -> dict[str, Any]:
        """Send a new file whole. Raises httpx2.HTTPError."""
        self.try_upload(content).raise_for_status()
        return self.files[hashlib.sha256(content).hexdigest()]

    def try_upload(self, content: bytes) -> httpx2.Response:
        md5, sha256 = hashlib.md5(content, usedforsecurity=False).hexdigest(), hashlib.sha256(content).hexdigest()
        answer = self.ask("PUT", f"/files/{md5}", content=content, params={"name": sha256})
        if answer.is_success:
            self.files[sha256] = answer.json()["file"]
        return answer

    def delete(self, file: dict[str, Any]) -> httpx2.Response:
        answer = self.ask("DELETE", f"/me/files/{file['id']}")
        if answer.is_success:
            del self.files[file["name"]]
        return answer

    def blob(self, content: bytes) -> Path:
        sha256 = hashlib.sha256(content).hexdigest()
        return self.data / "blobs" / sha256[:2] / sha256[2:4] / sha256

    def download(self, name: str) -> httpx2.Response:
        return self.ask("GET", f"/me/files/{self.files[name]['id']}/content")

    def lost(self) -> list[str]:
        """The acknowledged files whose bytes don't come as they were sent. Raises httpx2.HTTPError."""
        return [name for name in self.files if not self._is_as_sent(name)]

    def _is_as_sent(self, name: str) -> bool:
        answer = self.download(name)
        if answer.status_code == httpx2.codes.SERVICE_UNAVAILABLE:
            answer.raise_for_status()  # it is only away
        return answer.is_success and hashlib.sha256(answer.content).hexdigest() == self.files[name]["sha256"]


class DrillFailed(Exception):
    """The drill itself can't go on."""


class Opened:
    """An upload of which one chunk was acknowledged before the fault."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch, self._content = scratch, os.urandom(2 * _CHUNK_BYTES + 1)
        told = {"name": f"{os.urandom(6).hex()}.bin", "size": len(self._content), "chunk_size": _CHUNK_BYTES}
        answer = scratch.ask("POST", "/uploads", json=told)
        answer.raise_for_status()
        self.path = f"/uploads/{answer.json()['upload']['id']}"
        self.send(0).raise_for_status()

    def ended(self) -> bool:
        """Send what is missing, and compare the file. Raises httpx2.HTTPError where nobody answers, or not well."""
        answer = self._scratch.ask("GET", self.path)
        answer.raise_for_status()
        missing = [number for first, last in answer.json()["upload"]["missing"] for number in range(first, last + 1)]
        if 0 in missing:
            raise Lost(f"the acknowledged chunk 0 of {self.path}")
        for number in missing:
            self.send(number).raise_for_status()
        ended = self._scratch.ask("POST", f"{self.path}/merge")
        ended.raise_for_status()
        file = ended.json().get("file")
        if file is None:
            return False
        if file["sha256"] != hashlib.sha256(self._content).hexdigest():
            raise Lost(f"bytes of {self.path}")
        self._scratch.files[file["name"]] = file
        return True

    def send(self, number: int) -> httpx2.Response:
        chunk = self._content[number * _CHUNK_BYTES : (number + 1) * _CHUNK_BYTES]
        return self._scratch.ask("PUT", f"{self.path}/chunks/{number}", content=chunk)


class Lost(Exception):
    """Something that was acknowledged is not there."""


# The faults. Each is there within its context; what it yields was seen by itself. The docstring is for operators.

Fault = Callable[[Scratch, Path, bytes], AbstractContextManager[list[str]]]


@contextmanager
def _killed(scratch: Scratch, _directory: Path, _content: bytes) -> Iterator[list[str]]:
    """Kill everything."""
    scratch.kill()
    yield []
    scratch.start()


@contextmanager
def _torn_log(scratch: Scratch, _directory: Path, _content: bytes) -> Iterator[list[str]]:
    """Kill everything, and tear the end off Valkey's log."""
    scratch.kill()
    logs = sorted(scratch.data.glob("redis/appendonlydir/*.incr.aof"))
    for log in logs:
        with log.open("r+b") as torn:
            torn.truncate(max(0, log.stat().st_size - 20))
            torn.seek(0, os.SEEK_END)
            torn.write(os.urandom(64))
    yield [f"torn: {', '.join(log.name for log in logs)}"]
    scratch.start()


@contextmanager
def _flipped_byte(scratch: Scratch, _directory: Path, content: bytes) -> Iterator[list[str]]:
    """Flip a bit of a file; its owner sends it again."""
    _flip(scratch.blob(content))
    yield []
    scratch.upload(content)


@contextmanager
def _flipped_byte_with_a_copy(scratch: Scratch, _directory: Path, content: bytes) -> Iterator[list[str]]:
    """Flip a bit of a file; the trash has a copy."""
    file = scratch.upload(content)  # once more: it is there
    scratch.delete(file).raise_for_status()
    if not _until(lambda: not scratch.blob(content).exists()):
        raise DrillFailed("a deleted content does not leave for the trash")
    scratch.upload(content)
    _flip(scratch.blob(content))
    yield []


def _flip(blob: Path) -> None:
    with blob.open("r+b") as opened:
        first = opened.read(1)[0]
        opened.seek(0)
        opened.write(bytes([first ^ 1]))
        opened.flush()
        os.fsync(opened.fileno())


@contextmanager
def _unreadable_file(scratch: Scratch, _directory: Path, content: bytes) -> Iterator[list[str]]:
    """Make a file unreadable for a while."""
    scratch.unreadable.write_text(scratch.blob(content).name)
    yield []
    scratch.unreadable.unlink()


@contextmanager
def _lost_directory(scratch: Scratch, directory: Path, _content: bytes) -> Iterator[list[str]]:
    """Take the directory of contents away for a while."""
    blobs, elsewhere = scratch.data / "blobs", directory / "blobs.elsewhere"
    blobs.rename(elsewhere)
    yield []
    if blobs.is_dir():  # what came meanwhile
        shutil.copytree(blobs, elsewhere, dirs_exist_ok=True)
        shutil.rmtree(blobs)
    elsewhere.rename(blobs)


@contextmanager
def _stopped_redis(scratch: Scratch, _directory: Path, _content: bytes) -> Iterator[list[str]]:
    """Stop Valkey for a while."""
    for process_id in scratch.valkeys():
        os.kill(process_id, signal.SIGSTOP)
    yield []
    for process_id in scratch.valkeys():
        os.kill(process_id, signal.SIGCONT)


@contextmanager
def _locked_database(scratch: Scratch, _directory: Path, _content: bytes) -> Iterator[list[str]]:
    """Hold the database's lock for two seconds."""
    database = scratch.data / "uploader.db"
    with closing(sqlite3.connect(database, isolation_level=None, check_same_thread=False)) as held:
        held.execute("BEGIN IMMEDIATE")
        release = Timer(_LOCKED_SECONDS, held.execute, ["ROLLBACK"])
        release.start()
        yield []
        release.join()


@contextmanager
def _full_disk(scratch: Scratch, directory: Path, content: bytes) -> Iterator[list[str]]:
    """Fill the disk, with nothing in the trash."""
    from uploader.storage.ballast import NAME, Ballast

    Ballast(scratch.data / NAME).fill()  # as the server does in its first minute
    spare, opened, filler = scratch.upload(os.urandom(_FILE_BYTES)), Opened(scratch), directory / "filler"
    with filler.open("wb", buffering=0) as filling:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while filling.write(bytes(size)):
                    pass
    cancelled, deleted = _told(lambda: scratch.ask("DELETE", opened.path)), _told(lambda: scratch.delete(spare))
    yield [f"cancel {cancelled}", f"delete {deleted}"]
    filler.unlink()


FAULTS: dict[str, Fault] = {
    "kill": _killed,
    "torn-log": _torn_log,
    "flipped-byte": _flipped_byte,
    "flipped-byte-with-a-copy": _flipped_byte_with_a_copy,
    "read-error": _unreadable_file,
    "lost-directory": _lost_directory,
    "stopped-redis": _stopped_redis,
    "locked-database": _locked_database,
    "full-disk": _full_disk,
}


def _said_of(fault: str) -> str:
    """Return what a fault does, in words."""
    said = inspect.getdoc(FAULTS[fault]) or ""
    return said[:1].lower() + said[1:].rstrip(".")


_LINES = "\n".join(f"{name:26} {_said_of(name)}" for name in FAULTS)
_HELP = f"""Cause faults in a scratch installation, and print how it came back.

DIRECTORY is new or empty, and gets a data directory with an embedded Valkey and SQLite, which stays. With --backup, the
newest backup in there is restored into it first.

\b
{_LINES}

A full disk needs a small filesystem: DIRECTORY's own, or one that may be mounted.

Exit codes: 0 all came back, nothing was lost; 1 otherwise; 2 bad usage.
"""


@click.command(help=_HELP)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--backup", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Restore this backup first."
)
@click.option(
    "--fault",
    "chosen",
    type=click.Choice([*FAULTS]),
    metavar="FAULT",
    multiple=True,
    help="Only FAULT; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list of objects.")
def drill(directory: Path, backup: Path | None, chosen: tuple[str, ...], as_json: bool) -> None:
    require_server()
    if directory.exists() and any(each.name != "lost+found" for each in directory.iterdir()):
        fail(f"{directory} is not empty: a drill is for a scratch installation", EXIT_USAGE)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    outcomes, scratch = [], Scratch(directory.absolute())
    with closing(scratch):
        try:
            if backup is not None:
                scratch.run("restore-backup", str(backup.absolute()))
            scratch.begin()
            for name in chosen or FAULTS:
                if not as_json:
                    say(f"{name}: {_said_of(name)}")
                outcomes.append(_tried(scratch, directory.absolute(), name))
                if not as_json:
                    _print(outcomes[-1])
            drift = _drift(scratch)
        except DrillFailed as error:
            fail(str(error), EXIT_FAILED)
        except subprocess.CalledProcessError as error:
            fail_lines(f"{error.cmd[-2]} {error.cmd[-1]}: {error.stderr.strip()}".split("\n"), EXIT_FAILED)
    if as_json:
        say(json.dumps([asdict(outcome) for outcome in outcomes]))
    for line in drift:
        say(f"a figure drifted: {line}", err=as_json)
    is_good = not drift and all(outcome.is_good for outcome in outcomes)
    if not as_json:
        end = "all came back by itself, nothing was lost, and no figure drifted" if is_good else "NOT ALL IS WELL"
        say(f"In the end {end}. The installation stays in {directory}; the server's log is {directory / 'log'}.")
    sys.exit(EXIT_OK if is_good else EXIT_FAILED)


def _tried(scratch: Scratch, directory: Path, name: str) -> Outcome:
    if name == "full-disk" and shutil.disk_usage(directory).free > _SMALL_DISK_BYTES:
        return _on_small_disk(directory)
    content, wrong, lost = os.urandom(_FILE_BYTES), list[str](), list[str]()
    try:
        scratch.upload(content)
        opened, known = Opened(scratch), _reasons(scratch.ask("GET", "/readyz"))
        with FAULTS[name](scratch, directory, content) as own:
            seen = own + _seen(scratch, content, opened, wrong, known)
            began_at = time.monotonic()

        def is_healed() -> bool:
            with suppress(httpx2.HTTPError):
                lost[:] = scratch.lost()
                return not lost and opened.ended() and scratch.ask("GET", "/readyz").is_success
            return False

        is_well = _until(is_healed)
    except Lost as error:
        return Outcome(name, [], lost=[str(error)])
    except httpx2.HTTPError as error:  # before it or after it, where all should work
        return Outcome(name, [f"the server refuses, or is away: {error}"], lost=wrong)
    return Outcome(name, seen, time.monotonic() - began_at if is_well else None, wrong + lost)


def _seen(scratch: Scratch, content: bytes, opened: Opened, wrong: list[str], known: list[str]) -> list[str]:
    """Ask for what users ask for, and for the health, of which the reasons `known` are nothing new."""
    if scratch.is_dead:
        return ["nobody answers"]
    name = hashlib.sha256(content).hexdigest()

    def download() -> httpx2.Response:
        answer = scratch.download(name)
        if answer.status_code == 200 and answer.content != content:
            wrong.append(f"wrong bytes of {name} were sent")
        return answer

    asked = {
        "download": download,
        "upload": lambda: scratch.try_upload(os.urandom(_CHUNK_BYTES)),
        "chunk": lambda: opened.send(1),
        "/readyz": lambda: scratch.ask("GET", "/readyz"),
    }
    return [f"{what} {_told(ask, known)}" for what, ask in asked.items()]


def _reasons(ready: httpx2.Response) -> list[str]:
    return [f"({name}: {check['reason']})" for name, check in ready.json()["checks"].items() if check["reason"]]


def _told(ask: Callable[[], httpx2.Response], known: Collection[str] = ()) -> str:
    """Say how something was answered: its status, and the code of its problem or the new reasons of the health; or why
    not."""
    try:
        answer = ask()
    except httpx2.HTTPError as error:
        return type(error).__name__
    words = [str(answer.status_code)]
    if "problem" in answer.headers.get("content-type", ""):
        words.append(answer.json()["code"])
    elif answer.url.path == "/readyz":
        words += [reason for reason in _reasons(answer) if reason not in known]
    return " ".join(words)


def _on_small_disk(directory: Path) -> Outcome:
    """Fill a filesystem in memory that only this command sees; where even root may not mount, the fault is left out."""
    small = directory / "small"
    small.mkdir()
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    mounted = f'mount -t tmpfs -o size={_SCRATCH_DISK} drill "$0" && exec "$@"'
    again = [sys.executable, "-m", "tests.soak.drill", "--fault", "full-disk", "--json", str(small)]
    command = ["unshare", "--mount", *rights, "sh", "-c", mounted, str(small), *again]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        (told,) = json.loads(done.stdout)
    except (OSError, ValueError):
        why = "no small filesystem can be mounted here: give DIRECTORY on one of less than 1 GiB"
        return Outcome("full-disk", [], left_out=why)
    return Outcome(**told)


def _drift(scratch: Scratch) -> list[str]:
    try:
        scratch.run("reconcile")
    except subprocess.CalledProcessError as error:
        return str(error.stdout).strip().splitlines() or [error.stderr.strip()]
    return []


def _print(outcome: Outcome) -> None:
    if outcome.left_out is not None:
        end = f"left out: {outcome.left_out}"
    elif outcome.lost:
        end = f"LOST: {', '.join(outcome.lost)}"
    elif outcome.healed_seconds is None:
        end = f"DID NOT COME BACK within {human_seconds(_HEALED_SECONDS)}"
    else:
        end = f"came back after {human_seconds(outcome.healed_seconds)}, nothing lost"
    if outcome.seen:
        say(f"  meanwhile: {'; '.join(outcome.seen)}")
    say(f"  {end}")


def _until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _HEALED_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


if __name__ == "__main__":
    drill()
