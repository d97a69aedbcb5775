"""Measures what slow clients cost honest ones, and writes the table of `docs/capacity.md`:
`python -m benchmarks.slow_clients`."""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import interpreter, report
from benchmarks.report import Row
from benchmarks.slow_clients.honest import send_for
from benchmarks.slow_clients.installation import Installation, running_installation

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"
SECTION = "slow clients"
_SLOW_USERS = 40
_MEMORY_GROWTH_MIB = 256.0


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    clients: int
    rounds: int
    seconds: float


FULL = Scale(clients=2000, rounds=3, seconds=15)
QUICK = Scale(clients=200, rounds=1, seconds=4)


@dataclass
class Figures:
    """One for each round."""

    idle_p99_ms: list[float] = field(default_factory=list)
    slowed_p99_ms: list[float] = field(default_factory=list)
    idle_median_ms: list[float] = field(default_factory=list)
    slowed_median_ms: list[float] = field(default_factory=list)
    growth_mib: list[float] = field(default_factory=list)
    connected: list[float] = field(default_factory=list)
    failures: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_clients", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="200 clients for seconds, to see that it runs; the page stays as it is"
    )
    quick = parser.parse_args().quick
    interpreter.choose()
    section = measure(QUICK if quick else FULL)
    print(section)
    if not quick:
        report.write(PAGE, SECTION, section)


def measure(scale: Scale) -> str:
    """The section of the page."""
    machine = report.machine(())
    figures = Figures()
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True) as directory,
        running_installation(Path(directory), _SLOW_USERS) as installation,
    ):
        _send(installation, scale, "warm")
        for number in range(scale.rounds):
            _measure_round(installation, scale, figures, f"{number}")
    return f"{machine}.\n\n{report.table(_rows(scale, figures))}"


def _measure_round(installation: Installation, scale: Scale, figures: Figures, salt: str) -> None:
    idle, failures = _send(installation, scale, f"{salt}/idle")
    before = installation.memory_bytes()
    with _slow_clients(installation, scale.clients) as crowd:
        slowed, more_failures = _send(installation, scale, f"{salt}/slowed")
        after = installation.memory_bytes()
    figures.idle_p99_ms.append(report.percentile(idle, 0.99))
    figures.slowed_p99_ms.append(report.percentile(slowed, 0.99))
    figures.idle_median_ms.append(report.percentile(idle, 0.5))
    figures.slowed_median_ms.append(report.percentile(slowed, 0.5))
    figures.growth_mib.append((after - before) / (1 << 20))
    figures.connected.append(crowd["connected"])
    figures.failures += failures + more_failures + crowd["refused"]


def _send(installation: Installation, scale: Scale, salt: str) -> tuple[list[float], int]:
    return asyncio.run(send_for(scale.seconds, installation.server.port, installation.honest, salt))


@contextmanager
def _slow_clients(installation: Installation, count: int) -> Iterator[dict[str, int]]:
    """A crowd of them; filled in at the end with how many were connected then, and refused all in all."""
    told = {
        "port": installation.server.port,
        "tokens": installation.slow,
        "file_id": installation.file_id,
        "count": count,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.slow_clients.slow"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    crowd: dict[str, int] = {}
    try:
        process.stdin.write(json.dumps(told) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "connected\n"
        yield crowd
        process.stdin.close()
        crowd.update(json.loads(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()


def _rows(scale: Scale, figures: Figures) -> list[Row]:
    ratios = [slowed / idle for slowed, idle in zip(figures.slowed_p99_ms, figures.idle_p99_ms, strict=True)]
    return [
        report.at_least("slow connections at the end of each round", 0.9 * scale.clients, figures.connected, ""),
        report.compared("honest chunks of 256 KiB alone, median", figures.idle_median_ms, "ms"),
        report.compared("… beside slow clients, median", figures.slowed_median_ms, "ms"),
        report.compared("honest chunks alone, p99", figures.idle_p99_ms, "ms"),
        report.compared("… beside slow clients, p99", figures.slowed_p99_ms, "ms"),
        report.at_most("p99 beside slow clients to p99 alone", 2, ratios, "times"),
        report.at_most("honest requests that failed, and connections refused", 0, [figures.failures], ""),
        report.at_most("growth of the server's memory", _MEMORY_GROWTH_MIB, figures.growth_mib, "MiB"),
    ]


if __name__ == "__main__":
    main()
