"""The mutants fit the source: one that does not would prove nothing when it is killed."""

import re

import pytest

from tests.mutants.table import MACHINE, MUTANTS, PACKAGE, Edit, source

EDITS = [
    pytest.param(edit, id=f"{mutant.name}-{number}") for mutant in MUTANTS for number, edit in enumerate(mutant.edits)
]


@pytest.mark.parametrize("edit", EDITS)
async def test_what_a_mutant_changes_is_in_the_source_exactly_once(edit: Edit) -> None:
    assert source(edit).count(edit.old) == 1
    assert edit.old != edit.new


async def test_mutants_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


async def test_the_page_about_reliability_tells_every_mutant_and_what_catches_it() -> None:
    page = (PACKAGE.parent / "docs/reliability.md").read_text()
    told = re.findall(r"^\| (.+) \| (the state machine|`tests/.+`) \|$", page, flags=re.MULTILINE)
    by = {MACHINE: "the state machine"}
    assert told == [(mutant.name, by.get(mutant.tests, f"`{mutant.tests}`")) for mutant in MUTANTS]
