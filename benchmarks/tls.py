"""What TLS costs the server: the same chunks with and without it, in turns: `python -m benchmarks.tls`.

With TLS a body takes the ordinary way, through the parser, where it goes from the socket into its place without. A client in
C, curl, costs little beside the server; its processor time is not counted.
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import httpx2

from benchmarks import report
from benchmarks.ingest.places import memory_directory
from benchmarks.ingest.processes import cpu_seconds, wait_until_quiet
from benchmarks.report import Row
from tests.support.certificates import self_signed
from tests.support.process import Server, ended, owner_token

PAGE = Path(__file__).parents[1] / "docs" / "tls.md"
SECTION = "tls"

_WAYS = ("without TLS", "with TLS")
_CHUNK_BYTES, _GIB = 8 << 20, 1 << 30


class Way:
    """A server as it is shipped, with or without TLS."""

    def __init__(self, server: Server, data: Path, certificate: Path) -> None:
        self._server, self._certificate = server, certificate
        self._bearer = f"Bearer {owner_token(data)}"
        self.cpu_per_gib: list[float] = []
        self.rates: list[float] = []

    def send(self, chunk: Path, chunks: int) -> None:
        """One upload, over one connection, of which the last chunk stays missing."""
        pids, md5 = [self._server.process.pid], f"{len(self.rates):032x}"
        opening = {"name": md5, "size": (chunks + 1) * _CHUNK_BYTES, "chunk_size": _CHUNK_BYTES}
        httpx2.post(
            self._url(md5), json=opening, headers={"Authorization": self._bearer}, verify=False
        ).raise_for_status()
        wait_until_quiet(pids)
        used, began = cpu_seconds(pids), time.monotonic()
        puts = [word for number in range(chunks) for word in ("-T", str(chunk), self._url(f"{md5}/chunks/{number}"))]
        trust = ["-sSf", "-o", "/dev/null", "--cacert", str(self._certificate), "-H", "Expect:"]
        subprocess.run(["curl", *trust, "-H", f"Authorization: {self._bearer}", *puts], check=True, capture_output=True)
        took = time.monotonic() - began
        wait_until_quiet(pids)
        sent = chunks * _CHUNK_BYTES
        self.cpu_per_gib.append((cpu_seconds(pids) - used) * _GIB / sent)
        self.rates.append(sent / took / (1 << 20))
        httpx2.delete(self._url(md5), headers={"Authorization": self._bearer}, verify=False).raise_for_status()

    def forget(self) -> None:
        """What was measured so far was to warm up."""
        self.cpu_per_gib.clear()
        self.rates.clear()

    def _url(self, path: str) -> str:
        return f"{self._server.url}/files/{path}"

    def rows(self, way: str) -> list[Row]:
        return [
            report.compared(f"processor time of a GiB of chunks of 8 MiB, {way}", self.cpu_per_gib, "s"),
            report.compared(f"one connection, {way}", self.rates, "MiB/s"),
        ]


def measure(rounds: int, chunks: int) -> Sequence[Row]:
    """Rounds of both, the one after the other, after one that is not counted."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tls-", dir=memory_directory())))
        certificate, key = self_signed(directory, "127.0.0.1")
        chunk = directory / "chunk"
        chunk.write_bytes(bytes(range(256)) * (_CHUNK_BYTES // 256))
        ways = {}
        for way in _WAYS:
            settings = {"DATA": str(directory / way), "DEFAULT_TOTAL_SPACE": "1TiB", "FREE_SPACE_FLOOR": "0"}
            if way == "with TLS":
                settings |= {"TLS_CERTIFICATE": str(certificate), "TLS_KEY": str(key)}
            server = Server(directory / f"{way}.log", settings)
            stack.enter_context(ended(server))
            ways[way] = Way(server, directory / way, certificate)
        for number in range(rounds + 1):
            for server_of_way in ways.values():
                server_of_way.send(chunk, chunks)
                if not number:
                    server_of_way.forget()
        return [row for way in _WAYS for row in ways[way].rows(way)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tls", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round; the page stays as it is")
    quick = parser.parse_args().quick
    machine = report.machine([f"{name} {version(name)}" for name in ("uvicorn", "uvloop")])
    rows = measure(1, 4) if quick else measure(5, 32)
    section = f"{machine}.\n\n{report.table(rows)}"
    print(section)
    if not quick:
        report.write(PAGE, SECTION, section)


if __name__ == "__main__":
    main()
