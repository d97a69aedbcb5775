"""Where downloads go: never outside of the directory that was chosen, and never two to one path in silence."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.client import AmbiguousName, File, InvalidName, LeadsOutside, Wanted
from uploader.client.download import placed
from uploader.client.downloads import sorted_out


def file(file_id: str, name: str) -> File:
    return File(file_id, name, None, "0" * 64, 3, datetime(2026, 11, 22, 10, tzinfo=UTC), instant=False)


def wanted(*pairs: tuple[str, str]) -> list[Wanted]:
    return [Wanted(file(file_id, path), path) for file_id, path in pairs]


def test_a_path_that_leads_elsewhere_is_refused() -> None:
    hostile = ("../a", "a/../../b", "/etc/passwd", "..", ".", "", "a//b", "a/./b", "a\0b", "a\nb", "..\\a", "a/\x1b[2J")
    for path in (*hostile, "a/"):
        kept, [(refused, error)] = sorted_out(wanted(("1", path), ("2", "good")))
        assert [each.path for each in kept] == ["good"]
        assert (refused.path, type(error)) == (path, InvalidName)


@given(st.lists(st.text(alphabet="a./\\\0~é", max_size=8), max_size=4))
def test_whatever_the_names_are_the_paths_stay_below(names: list[str]) -> None:
    root = Path("/target")
    kept, refused = sorted_out(wanted(*((str(number), name) for number, name in enumerate(names))))
    assert len(kept) + len(refused) <= len(names)
    for each in kept:
        assert ".." not in each.path.split("/")
        assert (root / each.path).is_relative_to(root)
        assert (root / each.path) != root


def test_what_several_files_would_become_is_refused_once_with_their_ids() -> None:
    kept, [(_, error)] = sorted_out(wanted(("1", "x"), ("2", "x"), ("3", "y")))
    assert [each.path for each in kept] == ["y"]
    assert isinstance(error, AmbiguousName)
    assert error.detail == (
        "2 files are 'x'; say which by its id: 1 (x, 2026-11-22 10:00, 3 bytes), 2 (x, 2026-11-22 10:00, 3 bytes)"
    )


@pytest.mark.parametrize(
    ("names", "kept", "refused"),
    [
        ([("1", "é"), ("2", "e\u0301")], [], ["é"]),  # the same letters
        ([("1", "a"), ("2", "a/b/c"), ("3", "ab")], ["a/b/c", "ab"], ["a"]),  # where others need a folder
        ([("1", "a"), ("1", "a")], ["a"], []),  # the same file twice is one
    ],
)
def test_two_names_that_are_one_path(names: list[tuple[str, str]], kept: list[str], refused: list[str]) -> None:
    taken, left_out = sorted_out(wanted(*names))
    assert [each.path for each in taken] == kept
    assert [(each.path, type(error)) for each, error in left_out] == [(path, AmbiguousName) for path in refused]


def test_no_symbolic_link_below_the_root_is_followed(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (tmp_path / "real").mkdir()
    root.symlink_to(tmp_path / "real")  # chosen by the caller
    (root / "link").symlink_to(outside)
    (root / "dangling").symlink_to(tmp_path / "nowhere")
    for path in ("link/a", "link/deeper/a", "dangling/a"):
        with pytest.raises(LeadsOutside):
            placed(root, path)
    assert placed(root, "a/b/c") == root / "a/b/c"
    assert (tmp_path / "real/a/b").is_dir()
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "nowhere").exists()
