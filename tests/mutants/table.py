"""The mutants: faults that others made, or that this design rules out, each as a small change of the source.

`mutants.txt` has them: below the file of the tests that have to see it a name, and below that its edits, `where: pattern →
new` (see `places.Edit`); what has no room there goes on further in, from line to line.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.mutants.places import Edit, Sources, edited, read

PACKAGE = Path(__file__).parents[2] / "uploader"
MACHINE = "tests/stateful/test_accounting_machine.py"


@dataclass(frozen=True)
class Mutant:
    """A fault, and the tests that have to see it."""

    name: str
    edits: tuple[Edit, ...]
    tests: str


def _all() -> list[Mutant]:
    tests = ""
    found: list[tuple[str, str, list[str]]] = []
    for line in Path(__file__).with_name("mutants.txt").read_text().splitlines():
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            tests = line
        elif depth == 2:
            found.append((line.strip(), tests, []))
        elif depth == 4:
            found[-1][2].append(line.strip())
        else:
            found[-1][2][-1] += f"\n{line[6:]}"
    return [Mutant(name, tuple(map(_edit, edits)), tests) for name, tests, edits in found]


def _edit(told: str) -> Edit:
    where, _, change = told.partition(": ")
    pattern, arrow, new = change.partition(" →")
    assert arrow, f"{told!r} is no edit"
    return Edit(where, pattern, new[1:])


MUTANTS = _all()


def mutated(sources: Sources, mutant: Mutant) -> Sources:
    """Raises ValueError if the source is not as the mutant knows it."""
    for edit in mutant.edits:
        sources = edited(sources, edit)
    return sources


def apply(mutant: Mutant, package: Path) -> None:
    """Change a copy of the package. Raises ValueError as `mutated`."""
    sources = read(package)
    for path, source in mutated(sources, mutant).items():
        if source != sources[path]:
            path.write_text(source)
