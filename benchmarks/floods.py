"""Measures a server under floods of small requests that make it work: `python -m benchmarks.floods`.

Three times 16 clients of one user send, again and again and all at once: archives of 10,000 empty files; deltas of 13 bytes
that make 64 MiB and are refused at their end; final uploads of tus that name a part of 16 MiB 16 times. Beside them `/livez`
is asked ten times a second, and ten ordinary users send files of 100 bytes.

With `--rows`, in place of that: what one user leaves in the database without a byte of quota, by empty files with names of
1,000 bytes, and by creations of tus with 4 KB of metadata that are deleted again.
"""

import argparse
import asyncio
import base64
import http.client
import io
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path

from benchmarks import fairness, interpreter, report
from tests.support.waiting import wait_for

_MIB = 1 << 20
_CLIENTS = 16
_LIVEZ_SECONDS = 0.1
_BODY_BUDGET_MIB = 512
_NAMED_FILES, _DELETED_UPLOADS = 30_000, 3_000
_FILES_OF_A_BATCH = 10_000
_REMEMBERED_UPLOADS = 1_000
# Closed uploads go with the next look of the job that removes them.
_CLEANUP_SECONDS = 300


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floods", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rows", action="store_true", help="what stays in the database")
    parser.add_argument("--flood", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.flood:
        port, token, seconds, clients = arguments.flood
        asyncio.run(_flood(int(port), token, float(seconds), int(clients)))
        return
    interpreter.choose()
    print(f"{report.machine(())}.\n\n{measure_rows() if arguments.rows else measure(arguments.seconds)}")


def measure(seconds: float, clients: int = _CLIENTS) -> str:
    """Return the table."""
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True) as directory,
        fairness.running(Path(directory), None, {"FREE_SPACE_FLOOR": "0"}) as (server, tokens),
    ):
        greedy, *ordinary = tokens
        alone = asyncio.run(fairness.be_ordinary(server.port, ordinary, seconds / 2, "alone"))
        told = (str(server.port), greedy, str(seconds + 2), str(clients))
        command = [sys.executable, "-m", "benchmarks.floods", "--flood", *told]
        before_mib = _memory_mib(server.process.pid, "VmRSS")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flood:
            time.sleep(2)
            beside, lived = asyncio.run(_beside(server.port, ordinary, seconds))
            answered, _ = flood.communicate()
        grown_mib = _memory_mib(server.process.pid, "VmHWM") - before_mib
        server.stop()
    rows = [
        report.at_most("`/livez`, the longest of all", 250, [max(lived)], "ms"),
        report.compared("100 bytes of ten ordinary users, p99, alone", [report.percentile(alone, 0.99)], "ms"),
        report.compared("… beside the floods", [report.percentile(beside, 0.99)], "ms"),
        report.at_most("growth of the server's memory at its peak", _BODY_BUDGET_MIB, [grown_mib], "MiB"),
        report.compared("requests of the floods that were answered", [float(answered)], ""),
    ]
    return report.table(rows)


def measure_rows(files: int = _NAMED_FILES, uploads: int = _DELETED_UPLOADS) -> str:
    """Return the table."""
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True) as directory,
        fairness.running(Path(directory), None, {"FREE_SPACE_FLOOR": "0"}) as (server, tokens),
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)) as connection,
        closing(sqlite3.connect(Path(directory) / "data" / "uploader.db")) as database,
    ):
        sent_bytes = 0

        def send(request: str, content: bytes = b"", headers: Mapping[str, str] = {}) -> dict[str, str]:
            nonlocal sent_bytes
            told = {"Authorization": f"Bearer {tokens[0]}", **headers}
            sent_bytes += len(request) + len(content) + sum(len(name) + len(value) for name, value in told.items())
            method, path = request.split()
            connection.request(method, path, content, told)
            with connection.getresponse() as answer:
                answer.read()
                assert answer.status < 300, answer.status
                return dict(answer.getheaders())

        def used_bytes() -> int:
            pages, free, size = (
                database.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            return int((pages - free) * size)

        def remembered() -> int:
            return int(database.execute("SELECT COUNT(*) FROM upload").fetchone()[0])

        at_first = used_bytes()
        for first in range(0, files, _FILES_OF_A_BATCH):
            names = (
                "/".join(["x" * 200] * 4 + [f"{number:0200}"]) for number in range(first, files)[:_FILES_OF_A_BATCH]
            )
            send("POST /files/batch", _archive(names))
        of_files, after_files = sent_bytes, used_bytes()
        tus = {"Tus-Resumable": "1.0.0"}
        metadata = f"filename {base64.b64encode(b'a').decode()},note {'YWFh' * 1000}"
        for _ in range(uploads):
            made = send("POST /resumable", headers={**tus, "Upload-Length": "5", "Upload-Metadata": metadata})
            send(f"DELETE {made['location']}", headers=tus)
        rows_at_once = remembered()
        wait_for(lambda: remembered() <= _REMEMBERED_UPLOADS, _CLEANUP_SECONDS, "the end of closed uploads")
        after_uploads, remembered_rows = used_bytes(), remembered()
        server.stop()
    rows = [
        report.compared(f"{files:,} empty files with names of 1,000 bytes: sent", [of_files / _MIB], "MiB"),
        report.compared("… the database grows by", [(after_files - at_first) / _MIB], "MiB"),
        report.compared(
            f"{uploads:,} uploads with 4 KB of metadata, deleted: sent", [(sent_bytes - of_files) / _MIB], "MiB"
        ),
        report.compared("… rows of them at once", [rows_at_once], ""),
        report.at_most("… rows that stay", _REMEMBERED_UPLOADS, [remembered_rows], ""),
        report.compared("… the database grows by", [(after_uploads - after_files) / _MIB], "MiB"),
    ]
    return report.table(rows)


def _memory_mib(pid: int, kind: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{kind}:")[2].split()[0]) / 1024


async def _beside(port: int, ordinary: list[str], seconds: float) -> tuple[list[float], list[float]]:
    lived: list[float] = []

    async def ask_livez() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            await fairness.ask(reader, writer, "GET /livez", "")
            lived.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(_LIVEZ_SECONDS)
        writer.close()

    beside, _ = await asyncio.gather(fairness.be_ordinary(port, ordinary, seconds, "beside"), ask_livez())
    return beside, lived


async def _flood(port: int, token: str, seconds: float, clients: int) -> None:
    """Print how many requests were answered."""
    answered, end = 0, time.monotonic() + seconds
    authorization = f"Authorization: Bearer {token}\r\n"

    async def send(request: str, headers: str = "", content: bytes = b"") -> tuple[str, bytes]:
        nonlocal answered
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"{request} HTTP/1.1\r\nHost: a\r\n{authorization}{headers}Content-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(answer.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
        body = await reader.readexactly(length)
        writer.close()
        answered += 1
        return answer, body

    async def again_and_again(begin: Callable[[int], Awaitable[Callable[[], Awaitable[object]]]], number: int) -> None:
        once = await begin(number)
        while time.monotonic() < end:
            await once()

    async def batch(number: int) -> Callable[[], Awaitable[object]]:
        content = _archive(map(str, range(_FILES_OF_A_BATCH)))
        return lambda: send(f"POST /files/batch?to=batch-{number}", "", content)

    base = bytes(64 * _MIB)
    _, opened = await send("POST /uploads", "", b'{"name": "base", "size": 67108864, "chunk_size": 67108864}')
    _, made = await send(f"PUT /uploads/{_id_of(opened)}/chunks/0", "", base)
    base_id = _id_of(made)

    async def delta(number: int) -> Callable[[], Awaitable[object]]:
        told = b'{"name": "made", "size": 67108864, "chunk_size": 67108864}'
        _, upload = await send("POST /uploads", "", told)
        copy = b"\0" + (0).to_bytes(8, "big") + (64 * _MIB).to_bytes(4, "big")
        wrong = f"Content-MD5: {base64.b64encode(bytes(16)).decode()}\r\n"
        path = f"PUT /uploads/{_id_of(upload)}/chunks/0?base={base_id}"
        return lambda: send(path, wrong, copy)

    async def final(number: int) -> Callable[[], Awaitable[object]]:
        tus = "Tus-Resumable: 1.0.0\r\n"

        async def concatenate() -> None:
            answer, _ = await send("POST /resumable", f"{tus}Upload-Length: {16 * _MIB}\r\nUpload-Concat: partial\r\n")
            part = answer.lower().partition("location: ")[2].partition("\r\n")[0]
            path = part[part.index("/resumable") :]
            offset = f"{tus}Upload-Offset: 0\r\nContent-Type: application/offset+octet-stream\r\n"
            await send(f"PATCH {path}", offset, bytes(16 * _MIB))
            answer, _ = await send("POST /resumable", f"{tus}Upload-Concat: final;{' '.join([path] * 16)}\r\n")
            whole = answer.lower().partition("location: ")[2].partition("\r\n")[0]
            if whole:
                await send(f"DELETE {whole[whole.index('/resumable') :]}", tus)

        return concatenate

    kinds = (batch, delta, final)
    working = [again_and_again(kind, number) for kind in kinds for number in range(clients)]
    await asyncio.gather(*working, return_exceptions=True)
    print(answered)


def _archive(names: Iterable[str]) -> bytes:
    """Make a tar of empty files."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    return written.getvalue()


def _id_of(answer: bytes) -> str:
    return answer.decode().partition('"id":"')[2].partition('"')[0]


if __name__ == "__main__":
    main()
