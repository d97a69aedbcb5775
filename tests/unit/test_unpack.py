"""What a client takes out of an archive of a server that it does not trust."""

import hashlib
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from uploader.client import BadAnswer, File, LocalFile, Unreachable, Unwritable
from uploader.client.unpack import Place, Unpacking
from uploader.domain.archive import END, FILE_ID, head_of_member, padding

MOMENT = datetime(2026, 5, 4, 3, 2, 1, 987654, tzinfo=UTC)
CONTENTS = [b"first", b"", b"x" * 1000, b"last", b"last"]


def places_in(directory: Path, contents: Sequence[bytes] = CONTENTS) -> list[Place]:
    files = [
        File(
            f"{number:032}", f"{number}", None, sha256(content), len(content), MOMENT, instant=False, modified_at=MOMENT
        )
        for number, content in enumerate(contents)
    ]
    return [Place(LocalFile(file.name, file.name, file.size, 0), file, str(directory), file.name) for file in files]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def member(number: int, content: bytes | None = None, **told: str) -> bytes:
    content = CONTENTS[number] if content is None else content
    records = {FILE_ID: f"{number:032}"} | {f"uploader.{key}".encode(): value for key, value in told.items()}
    return head_of_member("../out", len(content), 0, records) + content + padding(len(content))


def names(places: Sequence[Place]) -> list[str]:
    return [place.name for place in places]


@pytest.mark.parametrize("step", [1, 700, 1 << 20])
def test_files_appear_with_their_times_under_the_names_chosen_here(tmp_path: Path, step: int) -> None:
    unpacking = Unpacking(places_in(tmp_path))
    archive = b"".join(map(member, range(5))) + END
    for start in range(0, len(archive), step):
        unpacking.take(archive[start : start + step])
    unpacking.check_end()
    outcomes = unpacking.save()
    assert [(outcome.how, outcome.local.name) for outcome in outcomes] == [("fetched", f"{n}") for n in range(5)]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        f"{number}": content for number, content in enumerate(CONTENTS)
    }
    microseconds = (MOMENT - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert {path.stat().st_mtime_ns for path in tmp_path.iterdir()} == {microseconds * 1000}
    assert not (unpacking.waiting or unpacking.left_over)


LIES = {
    "no id": head_of_member("0", 5, 0, {}) + padding(1),
    "one not asked for": member(0) + member(3, b"fifth", id="f" * 32),
    "one that came before": member(1) + member(0),
    "longer": member(0, b"first and more"),
    "shorter": member(0, b"fir"),
    "bytes and a problem": member(0, problem="content-damaged"),
    "no archive": b"<html>".ljust(1024),
    "no end": member(0) + head_of_member("g", 2000, 0, {}) * 30_000,
    "zeros without end": member(0) + bytes(3 << 20),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_what_was_not_asked_for_is_refused_and_what_came_before_stays(tmp_path: Path, lie: bytes) -> None:
    unpacking = Unpacking(places_in(tmp_path))
    with pytest.raises(BadAnswer):
        for start in range(0, len(lie), 1 << 16):
            unpacking.take(lie[start : start + (1 << 16)])
    saved = [outcome.local.name for outcome in unpacking.save()]
    assert sorted(os.listdir(tmp_path)) == sorted(saved)  # noqa: PTH208 (names)
    # Whatever is not here is asked for alone.
    assert sorted([*saved, *names(unpacking.left_over), *names(list(unpacking.waiting))]) == ["0", "1", "2", "3", "4"]


def test_what_an_archive_does_not_bring_is_left_over(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    (tmp_path / f".uploader-{places[3].file.sha256[:32]}.part").write_bytes(
        b"la"
    )  # of an earlier run, or of another one
    unpacking = Unpacking(places)
    unpacking.take(member(0, b"FIRST") + member(2, b"", problem="unavailable") + member(3))
    with pytest.raises(Unreachable):
        unpacking.check_end()
    assert unpacking.save() == []
    assert (names(unpacking.left_over), names(list(unpacking.waiting))) == (["0", "1", "2", "3"], ["4"])


def test_a_file_that_can_not_be_written_harms_no_other(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    (tmp_path / "0" / "full").mkdir(parents=True)
    places[2] = Place(places[2].local, places[2].file, str(tmp_path / "gone"), "2")
    unpacking = Unpacking(places)
    unpacking.take(b"".join(map(member, range(5))) + END)
    outcomes = {outcome.local.name: outcome.error for outcome in unpacking.save()}
    assert {name for name, error in outcomes.items() if isinstance(error, Unwritable)} == {"0", "2"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "3", "4"]
