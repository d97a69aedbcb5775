"""Where downloads go: never outside of the directory that was chosen, and never two to one path in silence."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.cli.client.events import EXIT_FAILED
from uploader.cli.client.folders import make_here
from uploader.cli.client.reporters import Quiet
from uploader.client import AmbiguousName, File, InvalidName, LeadsOutside, Wanted, downloads, plan
from uploader.client.download import placed
from uploader.client.downloads import sorted_out
from uploader.client.system import why_not_on_windows


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


@pytest.mark.parametrize(
    "name",
    [
        *(
            "C:",
            "C:/x",
            "a:stream",
            "a\\b",
            "..\\a",
            "what?",
            "*",
            "a|b",
            "<a>",
            'a"b',
            "a\tb",
            "dot.",
            "folder./a",
            "space ",
            "...",
        ),
        *("CON", "con", "nul.txt", "aux .tar.gz", "a/PRN", "Com1", "lpt9.log", "COM¹", "conin$", "CONOUT$.x"),
    ],
)
def test_a_name_that_windows_can_not_have_is_refused_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_on_windows(name) is not None
    monkeypatch.setattr(plan, "why_not_here", why_not_on_windows)
    with pytest.raises(InvalidName):
        plan.checked_path(name)


@pytest.mark.parametrize(
    "name", ["console", "com", "com10", "a.con", "lpt/x", ".x", "a b", "日本.txt", "~1", "nulls/x", "COM.1"]
)
def test_a_name_like_those_is_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "why_not_here", why_not_on_windows)
    assert plan.checked_path(name) == name


def test_names_that_differ_in_capitals_are_one_path_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [("1", "Photo"), ("2", "photo"), ("3", "A"), ("4", "a/b"), ("5", "other")]
    assert len(sorted_out(wanted(*names))[0]) == len(names)
    monkeypatch.setattr(downloads, "same_here", str.lower)
    kept, refused = sorted_out(wanted(*names))
    assert [each.path for each in kept] == ["a/b", "other"]
    assert [(each.path, type(error)) for each, error in refused] == [("Photo", AmbiguousName), ("A", AmbiguousName)]


async def test_an_empty_folder_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    codes = await make_here(Quiet(), root, ["../evil", "a/../../evil", "good"])
    assert codes == {EXIT_FAILED}
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == ["root", "root/good"]


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
