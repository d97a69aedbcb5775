"""Which cores the threads of a real server run on, as the kernel has it."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.support.content import KIB, MIB, Content
from tests.support.process import Server, answers, client_of_owner, ended, processes_in, wait_for, workers_of
from tests.support.sending import send

_PROGRAM = (sys.executable, "-m", "tests.support.named_threads")
# By the beginnings of their names.
_SHORT = ("disk_", "hashing_", "reading_")
_SQL = ("reading databas", "writing databas")
_LONG = ("disk, long", "hashing, long", "digests", "sending", "default")


@contextmanager
def allowed(cores: set[int]) -> Iterator[None]:
    """What is started meanwhile may use these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def started(directory: Path, cores: set[int], *arguments: str, **settings: str) -> Server:
    with allowed(cores):
        return Server(directory / "log", {"DATA": str(directory / "data"), **settings}, *arguments, program=_PROGRAM)


def cores_of(pid: int) -> dict[str, list[set[int]]]:
    """Of each thread by its name; the event loop is the first thread of its process."""
    found: dict[str, list[set[int]]] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            name = "loop" if int(task.name) == pid else (task / "comm").read_text().strip()
            found.setdefault(name, []).append(os.sched_getaffinity(int(task.name)))
    return found


def of(threads: dict[str, list[set[int]]], *beginnings: str) -> list[set[int]]:
    """The cores of the threads that begin so; there has to be one for each beginning."""
    found = {
        each: [c for name, cores in threads.items() if name.startswith(each) for c in cores] for each in beginnings
    }
    assert all(found.values()), f"{found} of {sorted(threads)}"
    return [cores for each in found.values() for cores in each]


def work_all_threads(server: Server, data: Path) -> None:
    """Send a file of small chunks and one of large ones, with their digests, and read it."""
    with client_of_owner(server.url, data) as client:
        for content in (Content(3 * 64 * KIB, chunk_size=64 * KIB), Content(4 * MIB, chunk_size=MIB)):
            send(client, content)

        def files() -> list[dict[str, str]]:
            listed: list[dict[str, str]] = client.get("/me/files").json()["files"]
            return listed

        wait_for(lambda: len(files()) == 2)
        for file in files():
            assert client.get(f"/me/files/{file['id']}/content").status_code == 200


def test_short_work_shares_a_core_and_all_else_runs_anywhere(tmp_path: Path, two_cores: set[int]) -> None:
    server = started(tmp_path, two_cores)
    with ended(server):
        work_all_threads(server, tmp_path / "data")
        threads = cores_of(server.process.pid)
        (core,) = of(threads, "loop")
        assert len(core) == 1
        assert of(threads, *_SHORT) == [core] * len(of(threads, *_SHORT))
        for name in _SQL:  # beside those that prepared the installation, and are idle ever since
            assert core in of(threads, name)
        long = of(threads, *_LONG, "sha256")  # beside the MD5, where there are two cores
        assert long == [two_cores] * len(long)

        def valkeys() -> list[int]:
            return processes_in(tmp_path / "data" / "redis")

        (valkey,) = valkeys()
        assert os.sched_getaffinity(valkey) == two_cores
        os.kill(valkey, signal.SIGKILL)
        wait_for(lambda: valkeys() not in ([], [valkey]))
        assert [os.sched_getaffinity(process) for process in valkeys()] == [two_cores], "and the one in its place"
        wait_for(lambda: answers(server.port))


def test_each_of_two_workers_has_a_core_as_has_the_one_that_replaces_it(tmp_path: Path, two_cores: set[int]) -> None:
    server = started(tmp_path, two_cores, "--workers", "2")
    with ended(server):

        def loops() -> list[int]:
            return sorted(core for worker in workers_of(server) for core in os.sched_getaffinity(worker))

        def replaced(killed: int) -> bool:
            return killed not in workers_of(server) and loops() == sorted(two_cores)

        wait_for(lambda: loops() == sorted(two_cores))
        for killed in workers_of(server):
            os.kill(killed, signal.SIGKILL)
            wait_for(partial(replaced, killed))
        assert os.sched_getaffinity(server.process.pid) == two_cores, "who starts them is none of them"


@pytest.mark.parametrize(("count", "affinity"), [(1, "auto"), (2, "off")])
def test_on_one_core_or_switched_off_none_is(tmp_path: Path, two_cores: set[int], count: int, affinity: str) -> None:
    cores = set(sorted(two_cores)[:count])
    server = started(tmp_path, cores, CPU_AFFINITY=affinity)
    with ended(server):
        work_all_threads(server, tmp_path / "data")
        threads = cores_of(server.process.pid)
        every = of(threads, "loop", *_SHORT, *_SQL, *_LONG)
        assert every == [cores] * len(every)
