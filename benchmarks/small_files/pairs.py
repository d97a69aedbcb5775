"""Servers, each with the client that was made for it: a folder here becomes one there by a single command."""

import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.ingest import installing, peers, processes
from benchmarks.ingest.ours import Mode, Ours, ours
from benchmarks.report import amount
from benchmarks.small_files import folders
from benchmarks.small_files.scale import SIZE_BYTES
from benchmarks.storage.client import Connection
from tests.support.process import UPLOADER, environment

_LIMIT_SECONDS = 900.0
# Its documentation has a client for one file: here it sends several at once, as its authors' other client does.
_TUSPY = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tusclient.client import TusClient

def send(path):
    TusClient(sys.argv[1]).uploader(str(path), chunk_size=1 << 20).upload()

with ThreadPoolExecutor(16) as pool:
    list(pool.map(send, [path for path in Path(sys.argv[2]).rglob("*") if path.is_file()]))
"""


@dataclass(frozen=True, slots=True)
class Pair:
    """A server that runs, and how its client is called."""

    pids: Sequence[int]
    # The command that puts a folder into one of the server.
    command: Callable[[Path, str], Sequence[str | Path]]
    environment: Mapping[str, str]
    # How many files the server has.
    stored: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Sent:
    """What a command did, and what that cost on both sides."""

    files: int
    seconds: float
    cpu_seconds: float
    server_cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.files / self.seconds

    def costs(self) -> str:
        server, client = (seconds * 1e6 / self.files for seconds in (self.server_cpu_seconds, self.cpu_seconds))
        return f"a file costs the server {amount(server)} µs of CPU, the client {amount(client)} µs"


def put(pair: Pair, folder: Path, into: str) -> Sent:
    """Put a folder, from the start of the command to its end. Raises RuntimeError unless all of it is there afterwards."""
    before, expected = pair.stored(), folders.count(folder)
    sent = run(pair, folder, into, expected)
    if (stored := pair.stored() - before) != expected:
        raise RuntimeError(f"{stored} of {expected} files were stored")
    return sent


def run(pair: Pair, folder: Path, into: str, files: int) -> Sent:
    """Run the client, whatever it has to send. Raises RuntimeError if it says that something went wrong."""
    processes.wait_until_quiet(pair.pids)
    server_before, client_before = processes.cpu_seconds(pair.pids), _children_seconds()
    began = time.perf_counter()
    done = subprocess.run(
        pair.command(folder, into),
        env=pair.environment,
        capture_output=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    seconds, client = time.perf_counter() - began, _children_seconds() - client_before
    if done.returncode:
        raise RuntimeError(f"{(done.stderr or done.stdout).decode(errors='replace')[-300:]}")
    processes.wait_until_quiet(pair.pids)
    return Sent(files, seconds, client, processes.cpu_seconds(pair.pids) - server_before)


def _children_seconds() -> float:
    """The CPU of all children that have ended; servers go on."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def uploader(directory: Path) -> Iterator[Pair]:
    """This server as shipped, and `uploader put`."""
    with ours(directory, Mode(), users=1) as server:
        yield of(server)


def of(server: Ours) -> Pair:
    """`uploader put` to a server of this project."""
    return Pair(
        server.pids,
        lambda folder, into: [UPLOADER, "put", "--quiet", folder, "--to", into],
        environment({"URL": f"http://127.0.0.1:{server.port}", "TOKEN": server.tokens[0]}),
        lambda: _files_of_the_user(server),
    )


def _files_of_the_user(server: Ours) -> int:
    with Connection(server.port) as connection:
        usage = connection.expect({200}, "GET", "/me/usage", b"", server.bearer(0)).json()
    return int(usage["use_space_finished"]) // SIZE_BYTES


@contextmanager
def tus(directory: Path) -> Iterator[Pair]:
    """tuspyserver, and tuspy with sixteen threads."""
    with peers.tuspyserver(directory) as server:
        url = f"http://127.0.0.1:{server.port}/files"
        command: list[str | Path] = [installing.python(), "-c", _TUSPY, url]
        yield Pair(
            server.pids, lambda folder, _: [*command, folder], environment({}), lambda: folders.count(server.files)
        )


@contextmanager
def copyparty(directory: Path) -> Iterator[Pair]:
    """copyparty, and its own client as fast as it gets: no status panel, one look at the target in place of one a file."""
    with peers.copyparty(directory) as server:
        url = f"http://127.0.0.1:{server.port}"
        command: list[str | Path] = [installing.python().with_name("u2c"), "-ns", "-z"]
        yield Pair(
            server.pids,
            lambda folder, into: [*command, f"{url}/{into}/", folder],
            environment({}),
            lambda: folders.count(server.files),
        )


UPLOADER_PUT, COPYPARTY = "`uploader put`", "u2c to copyparty"


# A folder that is there, and comes from it


@contextmanager
def uploader_get(folder: Path, directory: Path) -> Iterator[Pair]:
    """This server as shipped, and `uploader get`."""
    with uploader(directory) as pair:
        put(pair, folder, "all")
        options = ["--quiet", "--no-empty", "all/"]
        yield replace(pair, command=lambda target, _: [UPLOADER, "get", *options, "-o", target])


@contextmanager
def rsync_get(folder: Path, directory: Path) -> Iterator[Pair]:
    """rsync, and its daemon."""
    with peers.rsync(directory, folder) as (port, pid):
        command: list[str | Path] = [installing.program("rsync"), "-a", f"rsync://127.0.0.1:{port}/files/"]
        yield Pair([pid], lambda target, _: [*command, target], environment({}), lambda: 0)


@contextmanager
def rclone_get(folder: Path, directory: Path) -> Iterator[Pair]:
    """rclone from another one that serves HTTP, with sixteen files at once."""
    program = installing.program("rclone")
    with peers.rclone(directory, folder) as (port, pid):
        options = ["--config", "", "--transfers", "16", "--checkers", "16", "--http-url", f"http://127.0.0.1:{port}"]
        yield Pair([pid], lambda target, _: [program, "copy", *options, ":http:", target], environment({}), lambda: 0)


@contextmanager
def tar_get(folder: Path, directory: Path) -> Iterator[Pair]:
    """copyparty, which sends a folder as a tar, and curl with tar."""
    with peers.copyparty(directory) as server:
        shutil.copytree(folder, server.files / "folder")
        script = f'curl -sSf "http://127.0.0.1:{server.port}/folder/?tar" | tar -x -C "$1"'
        command = ["bash", "-o", "pipefail", "-c", script, "tar"]
        yield Pair(server.pids, lambda target, _: [*command, target], environment({}), lambda: 0)
