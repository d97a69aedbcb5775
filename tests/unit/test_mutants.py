"""The mutants fit the source: one that does not would prove nothing when it is killed."""

import ast
import re

import pytest

from tests.mutants.places import edited, read
from tests.mutants.table import MACHINE, MUTANTS, PACKAGE, Mutant

SOURCES = read(PACKAGE)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_changes_is_in_the_source_exactly_once(mutant: Mutant) -> None:
    sources = SOURCES
    for edit in mutant.edits:
        before, sources = sources, edited(sources, edit)
        (changed,) = (path for path in sources if sources[path] != before[path])
        if changed.suffix == ".py":
            ast.parse(sources[changed])


async def test_mutants_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


async def test_the_page_about_reliability_tells_every_mutant_and_what_catches_it() -> None:
    page = (PACKAGE.parent / "docs/reliability.md").read_text()
    told = re.findall(r"^\| (.+) \| (the state machine|`tests/.+`) \|$", page, flags=re.MULTILINE)
    by = {MACHINE: "the state machine"}
    assert told == [(mutant.name, by.get(mutant.tests, f"`{mutant.tests}`")) for mutant in MUTANTS]
