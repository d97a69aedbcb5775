"""The mutants fit the source: one that does not would prove nothing when it is killed."""

import pytest

from tests.mutants.table import MUTANTS, Edit, source

EDITS = [
    pytest.param(edit, id=f"{mutant.name}-{number}") for mutant in MUTANTS for number, edit in enumerate(mutant.edits)
]


@pytest.mark.parametrize("edit", EDITS)
async def test_what_a_mutant_changes_is_in_the_source_exactly_once(edit: Edit) -> None:
    assert source(edit).count(edit.old) == 1
    assert edit.old != edit.new


async def test_mutants_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
