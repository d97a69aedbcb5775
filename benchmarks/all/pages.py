"""The answers as Markdown: the tables of `docs/performance.md`, and a page about the machine of whoever measures."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import uploader
from benchmarks.all.questions import QUESTIONS
from benchmarks.tables import Table

_CHECKOUT = Path(__file__).parents[2]
# What makes a figure another one.
_MEASURED = ("uploader", "benchmarks", "pyproject.toml")
READING = (
    "A figure is the median of its rounds, with the lowest and the highest in parentheses, and beside it what was to be "
    "reached (≤, ≥). Contenders take turns within a round. CPU is that of all processes of a server until nothing is left "
    "to do. The last column says what a contender does with the bytes beside moving them. Digests find damage, a sync keeps "
    "what was acknowledged through a power cut, and both cost time. Folders, changes and the end of an upload are measured "
    "on the disk, the rest in memory where there is enough; there a sync costs nothing."
)


def commit() -> str:
    """The commit that is measured, and whether files were changed since."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        is_changed = bool(_git("status", "--porcelain", "--", *_MEASURED))
    except (OSError, subprocess.CalledProcessError):
        return f"version {uploader.__version__}"
    return f"commit {head}{', with changes' if is_changed else ''}"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_CHECKOUT), "-c", "safe.directory=*", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def section(machine: str, answers: Mapping[str, Table]) -> str:
    """Of the documentation: the medians alone."""
    commands = ["| question | `python -m benchmarks.all --only` | more by |", "|---|---|---|"]
    for name, question in QUESTIONS.items():
        more = f"`{question.more}`" if question.more else "–"
        commands.append(f"| {question.asks} | `{name}` | {more} |")
    return "\n\n".join([machine, "\n".join(commands), *_tables(answers, spread=False)])


def markdown(facts: Sequence[str], answers: Mapping[str, Table]) -> str:
    """A page of its own."""
    return "\n\n".join(["# uploader beside others, on this machine", *facts, *_tables(answers, spread=True)]) + "\n"


def _tables(answers: Mapping[str, Table], *, spread: bool) -> list[str]:
    return [f"## {table.heading}\n\n{table.markdown(spread=spread)}" for table in answers.values()]
