"""What an append costs the server's processor, with both digests and with SHA-256 alone: `python -m benchmarks.appends`.

One server as it is by default takes one large body after the other, each by one `PATCH` of tus; every other one goes to an
upload that was opened by `POST /uploads`, which needs an MD5 as well. So all else is the same.
"""

import argparse
import http.client
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import interpreter, report
from benchmarks.report import Row
from benchmarks.storage.uploading import serving

PAGE = Path(__file__).parents[1] / "docs" / "capacity.md"
SECTION = "appends"

_PIECE = os.urandom(1 << 20)
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_TUS = {"Tus-Resumable": "1.0.0"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.appends", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small bodies, one round; the page stays as it is")
    parser.add_argument("--directory", type=Path, help="measure on the disk of this directory")
    arguments = parser.parse_args()
    interpreter.choose()
    machine = report.machine(())
    mib, rounds = (64, 1) if arguments.quick else (128, 11)
    section = f"{machine}\n\n{report.table(_rows(arguments.directory, mib, rounds))}"
    print(section)
    if not arguments.quick:
        report.write(PAGE, SECTION, section)


def _rows(directory: Path | None, mib: int, rounds: int) -> list[Row]:
    both: list[_Cost] = []
    alone: list[_Cost] = []
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-", dir=directory) as root,
        serving(Path(root) / "served") as server,
    ):
        pid = server.process.pid
        for with_md5 in (True, False):
            _append(server.port, pid, mib, with_md5=with_md5)  # what is done once in a process
        for _ in range(rounds):
            both.append(_append(server.port, pid, mib, with_md5=True))
            alone.append(_append(server.port, pid, mib, with_md5=False))
    ratios = [one.cpu_ms / other.cpu_ms for one, other in zip(alone, both, strict=True)]
    rows = []
    for what, costs in (("MD5 and SHA-256", both), ("SHA-256 alone", alone)):
        rows.append(report.compared(f"CPU of a body of {mib} MiB, {what}", [cost.cpu_ms for cost in costs], "ms/MiB"))
        rows.append(report.compared(f"rate of the same, {what}", [cost.mib_a_second for cost in costs], "MiB/s"))
    return [*rows, report.compared("CPU with SHA-256 alone, against both", ratios, "times")]


@dataclass(frozen=True, slots=True)
class _Cost:
    """Of an append, from the head of the request to the answer: the server's processor for each MiB, and how fast it was."""

    cpu_ms: float
    mib_a_second: float


def _append(port: int, pid: int, mib: int, *, with_md5: bool) -> _Cost:
    """The answer is that of the file, so that all is hashed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    path = _opened(connection, mib << 20, with_md5=with_md5)
    facts = {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream", "Content-Length": str(mib << 20)}
    begun, at = _cpu_seconds(pid), time.perf_counter()
    connection.request("PATCH", path, _body(mib), _TUS | facts)
    reply = connection.getresponse()
    reply.read()
    spent, took = _cpu_seconds(pid) - begun, time.perf_counter() - at
    assert reply.status == 204, reply.status
    connection.close()
    return _Cost(spent * 1000 / mib, mib / took)


def _opened(connection: http.client.HTTPConnection, size: int, *, with_md5: bool) -> str:
    """The path to append to."""
    if with_md5:
        connection.request("POST", "/uploads", json.dumps({"name": f"{time.time_ns()}", "size": size}))
        upload: dict[str, str] = json.loads(connection.getresponse().read())["upload"]
        return f"/resumable/{upload['id']}"
    connection.request("POST", "/resumable", headers=_TUS | {"Upload-Length": str(size)})
    reply = connection.getresponse()
    reply.read()
    return "/resumable/" + str(reply.headers["Location"]).rpartition("/")[2]


def _body(mib: int) -> Iterator[bytes]:
    """Other bytes than any before."""
    yield os.urandom(len(_PIECE))
    for _ in range(mib - 1):
        yield _PIECE


def _cpu_seconds(pid: int) -> float:
    """Of all threads of a process, in its own code and in the kernel (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) * _TICK_SECONDS


if __name__ == "__main__":
    main()
