"""What rounds did and found, as docs/reliability.md shows it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class Result:
    """Of one round. Nothing is wrong with it if nothing is `wrong`; of what it `found`, too, each is 0 then."""

    fault: str
    on: str
    seed: int | str
    seconds: float = 0.0
    done: Mapping[str, float] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)  # which says more of a machine that had nothing else to do
    # What is worth a look, and is no fault.
    more: list[str] = field(default_factory=list)


def as_table(results: Iterable[Result]) -> str:
    """Markdown."""
    lines = ["| fault | on | seconds, seed | done | found |", "|---|---|---|---|---|"]
    for each in results:
        lines.append(
            f"| {each.fault} | {each.on} | {each.seconds:,.0f}, {each.seed} | {_listed(each.done)} | "
            f"{_listed(each.found)} |"
        )
    return "\n".join(lines)


def _listed(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{figure:,g} {name}" if figure < 1 else f"{figure:,} {name}" for name, figure in figures.items())
