"""What was measured for one question: a line for each contender, a column for each quantity."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.report import amount

OURS = "this server"
# What contenders do with the bytes beside moving them.
BOTH_DIGESTS = "MD5, SHA-256, synced, resumes"
NOTHING = "no digest, no sync"
RESUMES = f"{NOTHING}, resumes"


@dataclass(frozen=True, slots=True)
class Column:
    """A quantity and its unit. Less is better, unless it says otherwise."""

    name: str
    more_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """The values of all rounds, and the bound that their median has to keep, if any."""

    values: Sequence[float]
    at_most: float | None = None
    at_least: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def bound(self) -> float | None:
        return self.at_least if self.at_most is None else self.at_most

    @property
    def is_met(self) -> bool:
        too_much = self.at_most is not None and self.median > self.at_most
        return not too_much and (self.at_least is None or self.median >= self.at_least)

    @property
    def demand(self) -> str:
        """`≤ 3`, and by how much it was missed."""
        if self.bound is None:
            return ""
        missed = "" if self.is_met else f", missed by {abs(self.median - self.bound) / self.bound:.0%}"
        return f"{'≥' if self.at_most is None else '≤'} {amount(self.bound)}{missed}"

    def text(self, *, spread: bool) -> str:
        between = f"{amount(min(self.values))} to {amount(max(self.values))}" if spread and len(self.values) > 1 else ""
        told = "; ".join(each for each in (between, self.demand) if each)
        return f"{amount(self.median)}{told and f' ({told})'}"


@dataclass(frozen=True, slots=True)
class Line:
    """A contender, what it does with the bytes beside taking or giving them, and its figures by the names of columns."""

    name: str
    does: str
    cells: dict[str, Cell] = field(default_factory=dict)
    problem: str = ""

    @property
    def is_ours(self) -> bool:
        return OURS in self.name or "uploader" in self.name


@dataclass(frozen=True, slots=True)
class Table:
    """Columns without a figure are left out."""

    heading: str
    columns: Sequence[Column]
    lines: Sequence[Line]

    @property
    def measured(self) -> list[Column]:
        return [column for column in self.columns if any(column.name in line.cells for line in self.lines)]

    def markdown(self, *, spread: bool) -> str:
        """`spread`: with the lowest and the highest of each figure."""
        rows = [[line.name, *self._texts(line, spread=spread), line.does] for line in self.lines]
        names = ["", *(column.name for column in self._shown), "does"]
        return "\n".join(_row(cells) for cells in (names, ["---"] * len(names), *rows))

    @property
    def _shown(self) -> list[Column]:
        """One at least, for why there is no figure."""
        return self.measured or list(self.columns[:1])

    def _texts(self, line: Line, *, spread: bool) -> Iterable[str]:
        if line.problem:
            return [f"not available: {line.problem}", *["–"] * (len(self._shown) - 1)]
        return [line.cells[each.name].text(spread=spread) if each.name in line.cells else "–" for each in self._shown]


def failed(heading: str, problem: str) -> Table:
    """Of a question that could not be measured."""
    return Table(heading, [Column("figure")], [Line("all", "–", {}, problem)])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
