"""sync deletes below a folder what it saw there, and nothing else."""

from pathlib import Path

import pytest

from uploader.cli.client.filters import Filters
from uploader.cli.client.local import Tree, read_tree
from uploader.cli.client.sync import delete_file, delete_folder
from uploader.client import FileChanged, LeadsOutside, Unwritable


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "root/sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        (tmp_path / "root" / name).write_text(name)
    return read_tree(tmp_path / "root", Filters())


def test_what_was_seen_is_deleted_and_what_is_gone_is_fine(tree: Tree) -> None:
    assert (set(tree.files), tree.folders) == ({"a", "b", "sub/c"}, ["sub"])
    assert not delete_folder(tree.root, "sub")
    (tree.root / "a").unlink()
    for path, status in tree.files.items():
        delete_file(tree.root, path, status)
    assert delete_folder(tree.root, "sub")
    assert not delete_folder(tree.root, "sub")
    assert list(tree.root.iterdir()) == []


def test_what_changed_since_it_was_seen_stays(tree: Tree) -> None:
    (tree.root / "a").write_text("changed")
    (tree.root / "b").unlink()
    (tree.root / "b").symlink_to("a")
    for path in ("a", "b"):
        with pytest.raises(FileChanged):
            delete_file(tree.root, path, tree.files[path])
    assert (tree.root / "a").read_text() == (tree.root / "b").read_text() == "changed"


def test_below_what_is_a_file_by_now_nothing_is_deleted(tree: Tree) -> None:
    with pytest.raises(Unwritable):
        delete_file(tree.root, "a/once/a/folder", tree.files["a"])
    assert (tree.root / "a").is_file()


def test_a_folder_that_became_a_link_leads_nowhere(tree: Tree, tmp_path: Path) -> None:
    (tree.root / "sub").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/deep").mkdir()
    (tree.root / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LeadsOutside):
        delete_file(tree.root, "sub/c", tree.files["sub/c"])
    with pytest.raises(LeadsOutside):
        delete_folder(tree.root, "sub/deep")
    assert (tmp_path / "elsewhere/c").exists()


def test_a_folder_that_is_not_there_has_nothing_in_it(tmp_path: Path) -> None:
    tree = read_tree(tmp_path / "missing", Filters())
    assert tree.is_empty
    assert not tree.unreadable
