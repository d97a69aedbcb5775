"""A short round of the flip harness. `tests/flips/run --flips N` makes longer ones."""

from pathlib import Path

from tests.flips.flipping import LIVE, STOPPED
from tests.flips.result import as_table
from tests.flips.round import run_round


async def test_bytes_that_flip_are_never_served_as_right_and_harm_nobody_else(tmp_path: Path) -> None:
    summary = await run_round(tmp_path / "round", flips=6, seed=1)
    print(as_table(summary))
    assert {flip.kind for flip in summary.flips} == {*LIVE, *STOPPED}
    assert summary.wrong_bytes == []
    assert summary.harmed == []
    assert summary.failed == []
    assert summary.unnamed == []
    assert summary.counts["downloads"] > 0
