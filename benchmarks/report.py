"""What a benchmark says: the machine it ran on, and a table of figures, each with its target."""

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import interpreter


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `met` is None where nothing is to be reached, only compared."""

    figure: str
    target: str
    measured: str
    met: bool | None = None
    missed_by: str = ""

    def __str__(self) -> str:
        return f"{self.figure}: {self.measured} ({self.verdict})"

    @property
    def verdict(self) -> str:
        if self.met is None:
            return "–"
        return "met" if self.met else f"missed{self.missed_by and f': {self.missed_by}'}"


def at_most(figure: str, target: float, measured: Sequence[float], unit: str, more: str = "") -> Row:
    """A figure whose median must not exceed its target."""
    median = statistics.median(measured)
    return Row(
        figure, f"≤ {amount(target)} {unit}", _spread(measured, unit, more), *_judge(median <= target, median, target)
    )


def at_least(figure: str, target: float, measured: Sequence[float], unit: str, more: str = "") -> Row:
    """A figure whose median must reach its target."""
    median = statistics.median(measured)
    return Row(
        figure, f"≥ {amount(target)} {unit}", _spread(measured, unit, more), *_judge(median >= target, median, target)
    )


def compared(figure: str, measured: Sequence[float], unit: str, more: str = "") -> Row:
    """A figure without a target."""
    return Row(figure, "–", _spread(measured, unit, more))


def _judge(met: bool, measured: float, target: float) -> tuple[bool, str]:
    return met, "" if met else f"{measured / target:.2f} times the target"


def _spread(measured: Sequence[float], unit: str, more: str) -> str:
    median, lowest, highest = statistics.median(measured), min(measured), max(measured)
    spread = f" ({amount(lowest)} to {amount(highest)})" if len(measured) > 1 else ""
    return f"{amount(median)} {unit}{spread}{more and f'; {more}'}"


def amount(value: float) -> str:
    """Three digits are enough; whole numbers in groups of three."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(rows: Sequence[Row]) -> str:
    """The figures as Markdown."""
    lines = ["| figure | must reach | measured: median (lowest to highest) | verdict |", "|---|---|---|---|"]
    lines += [f"| {row.figure} | {row.target} | {row.measured} | {row.verdict} |" for row in rows]
    return "\n".join(lines)


def machine(versions: Sequence[str]) -> str:
    """Where it ran, in one line."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    load = os.getloadavg()[0]
    facts = [f"{os.cpu_count()} cores ({model})", f"{memory_gib:.0f} GiB", f"Linux {platform.release()}"]
    return ", ".join([*facts, f"load {load:.1f} at the start", interpreter.described(), *versions])


def write(page: Path, name: str, text: str) -> None:
    """Put `text` into a page between the markers of a benchmark."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.read_text().partition(begin)
    assert rest, f"{page} has no marker {begin}"
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
