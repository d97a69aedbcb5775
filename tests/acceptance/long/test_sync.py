"""sync, both ways: the target is as the source, nothing is sent in vain, and nothing deleted that should not be."""

import os
import signal
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.commands import NOON, Commands, token_of_somebody, tree_in, write_tree
from tests.support.content import MIB, Content
from tests.support.process import UPLOADER, Server

# More than the server lists at once.
FILES = 1100


def tree_there(commands: Commands) -> dict[str, int]:
    """Sizes by name; no name may be there twice."""
    files = [event["file"] for event in commands.events("ls", "-r") if event["event"] == "file"]
    assert len({file["name"] for file in files}) == len(files)
    return {file["name"]: file["size"] for file in files}


def folders_there(commands: Commands) -> set[str]:
    """The names of those that are empty."""
    return {event["folder"]["name"] for event in commands.events("ls", "-r") if event["event"] == "folder"}


def synced(commands: Commands, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    """The summary of a run, with its other events."""
    *events, summary = commands.events("sync", *arguments, code=code)
    assert summary["event"] == "sync-summary"
    return summary | {"events": events}


def counts(summary: dict[str, Any]) -> tuple[int, int, int, int]:
    return summary["moved"], summary["present"], summary["deleted"], summary["failed"]


def deleted(summary: dict[str, Any]) -> list[str]:
    here = [event["path"] for event in summary["events"] if event["event"] == "deleted-here"]
    return sorted(here + [event["file"]["name"] for event in summary["events"] if event["event"] == "deleted"])


def codes(summary: dict[str, Any]) -> list[str]:
    return [event["code"] for event in summary["events"] if event["event"] == "failed"]


def test_a_changed_tree_goes_up_and_comes_down_the_same(commands: Commands, server: Server) -> None:
    source = commands.home / "source"
    names = [f"{number % 50}/{number % 7}/f{number}" for number in range(FILES)]
    write_tree(source, {name: name.encode() for name in names} | {"large": Content(3 * MIB, seed=1).data})
    assert commands.run("put", "source", "--quiet").returncode == 0
    changed = dict.fromkeys(names[:9], b"changed") | {"large": Content(3 * MIB, seed=2).data}
    write_tree(source, changed, NOON + 10**9)
    write_tree(source, {f"new/{number}": b"new" for number in range(5)})
    for name in names[100:105]:
        (source / name).unlink()
    first = synced(commands, "source", ":source", "--delete")
    assert (first["files"], *counts(first)) == (FILES + 1, 15, FILES + 1 - 15, 5, 0)
    assert first["bytes"] == 3 * MIB + 9 * 7 + 5 * 3
    down = synced(commands, ":source", "there")
    assert counts(down) == (FILES + 1, 0, 0, 0)
    assert tree_in(commands.home / "there") == tree_in(source)
    usage = commands.events("usage")[0]["usage"]
    assert usage["use_space_finished"] == sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    assert (usage["use_space_unfinished"], usage["reserved"]) == (0, 0)
    # And again, both ways: nothing is sent, and what is there is asked for by the thousand.
    for arguments in (["source", ":source"], [":source", "there"]):
        before = server.log.read_text().count("method=")
        again = synced(commands, *arguments, "--delete")
        assert (counts(again), again["bytes"], again["events"][1:]) == ((0, FILES + 1, 0, 0), 0, [])
        assert server.log.read_text().count("method=") - before <= 4  # and one for empty folders


def test_dry_runs_say_what_is_done_and_change_nothing(commands: Commands) -> None:
    home = commands.home
    write_tree(home / "a", {"new": b"n", "other": b"xx", "same": b"s", "touched": b"t", "in/deep": b"d"})
    write_tree(home / "b", {"other": b"old", "same": b"s", "extra": b"e", "gone/extra": b"ee"})
    write_tree(home / "b", {"touched": b"t"}, NOON + 10**9)
    assert commands.run("sync", "b", ":b").returncode == 0

    def would(*arguments: str) -> set[tuple[str, str]]:
        events = synced(commands, *arguments, "--dry-run")["events"]
        return {(event["action"], event["path"]) for event in events if event["event"] == "would"}

    moves = {("send", "b/new"), ("replace", "b/other"), ("send", "b/in/deep")}
    deletions = {("delete", "b/extra"), ("delete", "b/gone/extra")}
    assert would("a", ":b") == moves
    assert would("a", ":b", "--delete", "--checksum") == moves | deletions
    told = commands.run("sync", "a", ":b", "-n", "--delete")
    assert "would delete b/extra  (1 B)\n" in told.stdout
    assert told.stderr.startswith(
        "uploader: 5 files: 3 to be moved, 2 there already, 2 to be deleted; 4 B to be moved; nothing was changed"
    )
    assert tree_there(commands) == {"b/other": 3, "b/same": 1, "b/extra": 1, "b/gone/extra": 2, "b/touched": 1}
    assert synced(commands, "a", ":a")["moved"] == 5
    before = tree_in(home / "b")
    fetches = {("fetch", "b/new"), ("fetch", "b/other"), ("fetch", "b/in/deep")}
    assert would(":a", "b", "--delete") == fetches | deletions
    assert tree_in(home / "b") == before
    done = synced(commands, ":a", "b", "--delete")
    assert counts(done) == (3, 2, 2, 0)
    assert deleted(done) == ["b/extra", "b/gone/", "b/gone/extra"]
    assert tree_in(home / "b") == tree_in(home / "a")
    # A time alone was set, so nothing has to be compared again.
    assert synced(commands, ":a", "b", "--dry-run")["present"] == 5


def test_content_that_changed_without_its_time_is_found_by_checksum(commands: Commands) -> None:
    for content, runs in (
        (b"one", [(["a", ":"], (1, 0, 0, 0))]),
        (b"two", [(["a", ":"], (0, 1, 0, 0)), ([":", "a"], (0, 1, 0, 0)), (["a", ":", "--checksum"], (1, 0, 0, 0))]),
        (b"333", [([":", "a", "--checksum"], (1, 0, 0, 0))]),
    ):
        write_tree(commands.home / "a", {"x": content})
        for arguments, expected in runs:
            assert counts(synced(commands, *arguments)) == expected
    assert tree_in(commands.home / "a") == {"x": b"two"}


def test_nothing_is_deleted_unless_it_is_sure_to_be_missing(commands: Commands, server: Server) -> None:
    home = commands.home
    write_tree(home / "a", {"x": b"x", "kept/y": b"y"})
    assert synced(commands, "a", ":a")["moved"] == 2
    # A source that has nothing: an empty folder, and none at all.
    (home / "empty").mkdir()
    assert codes(synced(commands, "empty", ":a", "--delete", code=6)) == ["source-empty"]
    assert counts(synced(commands, "empty", ":a")) == (0, 0, 0, 0)
    assert commands.run("sync", "missing", ":a", "--delete").returncode == 2
    missing = commands.run("sync", ":missing", "a", "--delete")
    assert (missing.returncode, "file-not-found" in missing.stderr) == (6, True)
    nobody = Commands(home, server.url, token_of_somebody(server))
    assert codes(synced(nobody, ":", "a", "--delete", code=6)) == ["source-empty"]
    assert tree_in(home / "a") == {"x": b"x", "kept/y": b"y"}
    # Something that fails: a name that the server refuses, a folder that can't be read.
    for spoil in (_refused, _unreadable):
        (home / "a/x").unlink()
        mend = spoil(home / "a")
        failed = synced(commands, "a", ":a", "--delete", code=6)
        assert counts(failed)[2:] == (0, failed["failed"])
        assert any("none of 1 file" in event.get("detail", "") for event in failed["events"])
        assert tree_there(commands) == {"a/x": 1, "a/kept/y": 1}
        mend()
        assert synced(commands, ":a", "a")["moved"] == 1
    # And now it is sure.
    (home / "a/x").unlink()
    assert deleted(synced(commands, "a", ":a", "--delete")) == ["a/x"]


def _refused(directory: Path) -> Callable[[], None]:
    spoilt = [directory / name for name in ("a\\b", os.fsdecode(b"\xff"))]
    for path in spoilt:
        path.write_bytes(b"")

    def mend() -> None:
        for path in spoilt:
            path.unlink()

    return mend


def _unreadable(directory: Path) -> Callable[[], None]:
    """For root, too: its path is longer than the system takes."""
    opened = os.open(directory, os.O_RDONLY)
    deep = [opened]
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=deep[-1])
        deep.append(os.open("d" * 250, os.O_RDONLY, dir_fd=deep[-1]))

    def mend() -> None:
        for above, below in reversed(list(pairwise(deep))):
            os.close(below)
            os.rmdir("d" * 250, dir_fd=above)
        os.close(opened)

    return mend


def test_files_become_folders_and_folders_files(commands: Commands) -> None:
    home = commands.home
    write_tree(home / "old", {"a": b"file", "b/x": b"in", "b/y/z": b"deep", "same": b"s"})
    write_tree(home / "new", {"a/x": b"in", "b": b"file", "same": b"s"})
    assert synced(commands, "old", ":up")["moved"] == 4
    assert synced(commands, "new", ":new")["moved"] == 3
    both_ways = (["new", ":up"], [":new", "old"])
    # Without --delete what is in the way stays, and that is told.
    for arguments in both_ways:
        assert counts(synced(commands, *arguments, code=6)) == (0, 1, 0, 2)
    assert tree_in(home / "old")["a"] == b"file"
    assert len(tree_there(commands)) == 7
    # What is protected from being deleted is in the way, too.
    for arguments in both_ways:
        assert synced(commands, *arguments, "--delete", "--exclude", "z", code=6)["failed"] >= 1
    for arguments in both_ways:
        assert synced(commands, *arguments, "--delete")["failed"] == 0
    assert tree_in(home / "old") == tree_in(home / "new")
    assert {name for name in tree_there(commands) if name.startswith("up/")} == {"up/a/x", "up/b", "up/same"}
    # A file of the folder's own name.
    refused = commands.run("sync", "new", ":up/b")
    assert (refused.returncode, "name-taken" in refused.stderr) == (6, True)


def test_links_are_neither_followed_nor_sent_nor_deleted(commands: Commands, tmp_path: Path) -> None:
    here, outside = commands.home / "a", tmp_path / "outside"
    write_tree(outside, {"secret": b"s"})
    write_tree(here, {"x": b"x", "sub/y": b"y"})
    assert synced(commands, "a", ":a")["moved"] == 2
    # What became a link here may be there for that reason: it stays.
    (here / "x").unlink()
    (here / "x").symlink_to("sub/y")
    up = synced(commands, "a", ":a", "--delete")
    assert (counts(up), [event["event"] for event in up["events"]]) == ((0, 1, 0, 0), ["skipped", "planned"])
    # Down: a link in a file's place is replaced, an extra one stays, one on the way is not followed.
    (here / "more").symlink_to(outside)
    (here / os.fsdecode(b"\xff")).write_bytes(b"no text")
    down = synced(commands, ":a", "a", "--delete")
    assert (counts(down), (here / "x").is_symlink(), (here / "more").is_symlink()) == ((1, 1, 1, 0), False, True)
    (here / "sub/y").unlink()
    (here / "sub").rmdir()
    (here / "sub").symlink_to(outside)
    write_tree(here, {"extra": b""})
    assert codes(synced(commands, ":a", "a", "--delete", code=6)) == ["leads-outside"]
    assert (tree_in(outside), (here / "extra").exists()) == ({"secret": b"s"}, True)


def test_empty_folders_go_both_ways_and_are_deleted_as_files_are(commands: Commands) -> None:
    home = commands.home
    write_tree(home, {"t/a/x": b"x", "t/z": b"z"})
    for path in ("t/e1", "t/a/e2/deep", "t/cut"):
        (home / path).mkdir(parents=True)
    empty = {"t/e1/", "t/a/e2/deep/", "t/cut/"}
    assert commands.run("sync", "t", ":t", "--exclude", "cut").returncode == 0
    assert folders_there(commands) == empty - {"t/cut/"}
    events = synced(commands, "t", ":t", "--dry-run")["events"]
    assert [event["path"] for event in events if event["event"] == "would"] == ["t/cut/"]
    for arguments in (["t", ":t"], [":t", "down"]):
        for made in (True, False):
            events = synced(commands, *arguments, "--delete")["events"]
            assert any(event["event"] == "folder-made" for event in events) is made
    assert folders_there(commands) == empty
    assert tree_in(home / "down") == tree_in(home / "t")
    assert tree_in(home / "down")["a/e2/deep"] is None
    # What is not there any more goes, with the folders that this empties; a file takes the place of a folder, and back.
    for path in ("e1", "a/e2/deep", "a/e2"):
        (home / "t" / path).rmdir()
    (home / "t/a/x").unlink()
    (home / "t/a").rmdir()
    (home / "t/z").unlink()
    write_tree(home, {"t/e1": b"file"})
    (home / "t/z").mkdir()
    assert synced(commands, "t", ":t", code=6)["failed"] == 1  # without --delete the folder is in the way
    for arguments in (["t", ":t"], [":t", "down"]):
        assert synced(commands, *arguments, "--delete")["failed"] == 0
    assert (folders_there(commands), tree_there(commands)) == ({"t/cut/", "t/z/"}, {"t/e1": 4})
    assert tree_in(home / "down") == tree_in(home / "t") == {"e1": b"file", "z": None, "cut": None}
    # Who wants none leaves those that are there alone.
    (home / "t/new").mkdir()
    (home / "down/cut").rmdir()
    for arguments in (["t", ":t"], [":t", "down"]):
        assert synced(commands, *arguments, "--delete", "--no-empty")["failed"] == 0
    assert folders_there(commands) == {"t/cut/", "t/z/"}
    assert tree_in(home / "down") == {"e1": b"file", "z": None}


def test_links_are_followed_when_asked_and_circles_are_told(commands: Commands) -> None:
    home = commands.home
    write_tree(home, {"t/a/x": b"x", "elsewhere/y": b"y"})
    links = {
        "t/folder": "../elsewhere",
        "t/file": "a/x",
        "t/a/up": "..",
        "t/nothing": "nowhere",
        "elsewhere/back": "../t",
    }
    for path, target in links.items():
        (home / path).symlink_to(target)
    for command in (["put", "-L", "t"], ["sync", "-L", "t", ":t"]):
        skipped = [event for event in commands.events(*command) if event["event"] == "skipped"]
        assert {event["path"] for event in skipped} == {"t/a/up", "t/nothing", "t/folder/back"}
        assert sum("to t, which it lies in" in event["reason"] for event in skipped) == 2
        assert tree_there(commands) == {"t/a/x": 1, "t/folder/y": 1, "t/file": 1}
        assert commands.run("rm", "-r", "t", "--yes").returncode == 0
    refused = commands.run("sync", "-L", ":t", "t")
    assert (refused.returncode, "-L follows" in refused.stderr) == (2, True)


def test_two_files_here_that_would_be_one_there_are_told(commands: Commands) -> None:
    home = commands.home
    write_tree(home, {"t/twin": b"other", "t/single": b"s"})
    assert counts(synced(commands, "t", ":t")) == (2, 0, 0, 0)
    write_tree(home, {"t/e\u0301": b"1", "t/\u00e9": b"2"})
    assert counts(synced(commands, "t", ":t", "--delete", code=6)) == (0, 2, 0, 2)
    assert len(tree_there(commands)) == 2


def test_what_is_excluded_or_not_listed_is_neither_moved_nor_deleted(commands: Commands) -> None:
    home = commands.home
    write_tree(home / "a", {"x.jpg": b"x", "x.tmp": b"t", "sub/y.jpg": b"y", "raw/z.jpg": b"z"})
    filters = ["--exclude", "raw/", "--include", "*.jpg", "--exclude", "*"]
    assert counts(synced(commands, "a", ":a", *filters)) == (2, 0, 0, 0)
    assert set(tree_there(commands)) == {"a/x.jpg", "a/sub/y.jpg"}
    write_tree(home / "there", {"mine.tmp": b"m", "old.jpg": b"o", "raw/mine.jpg": b"r"})
    (home / "there/empty").mkdir()
    assert deleted(synced(commands, ":a", "there", *filters, "--delete")) == ["there/old.jpg"]
    assert set(tree_in(home / "there")) == {"mine.tmp", "raw/mine.jpg", "x.jpg", "sub/y.jpg", "empty"}
    # Listed: these alone, and what is below them.
    write_tree(home / "a", {"sub/y.jpg": b"new", "x.jpg": b"new"})
    (home / "list").write_text("./sub\n")
    write_tree(home / "there", {"sub/more": b"m"})
    there = synced(commands, "there", ":b")
    assert there["moved"] == 5
    assert [event["detail"][:8] for event in there["events"] if event["event"] == "note"] == ["made: 1 "]
    listed = synced(commands, "a", ":b", "--files-from", "list", "--delete")
    assert (listed["files"], counts(listed), deleted(listed)) == (1, (1, 0, 1, 0), ["b/sub/more"])
    (home / "list").write_text("sub\nmissing\n")
    assert counts(synced(commands, "there", ":b", "--files-from", "list", "--delete", code=6)) == (2, 0, 0, 0)


def test_bad_usage_is_said_before_anything_is_done(commands: Commands) -> None:
    write_tree(commands.home, {"a/x": b"x", "file": b"f"})
    bad = ["a b", ":a :b", "file :a", ": file", "a :../x", "a :a//b"]
    bad += ["a :a --exclude /", "a :a --limit-rate 1", "a :a --files-from -"]
    for words in bad:
        refused = commands.run("sync", *words.split(), stdin="../up\n")
        assert (refused.returncode, refused.stdout) == (2, ""), words
    assert tree_there(commands) == {}


def test_interrupted_it_deletes_nothing_and_said_again_it_is_done(commands: Commands) -> None:
    home = commands.home
    write_tree(home / "a", {"old": b"o"})
    assert synced(commands, "a", ":a")["moved"] == 1
    (home / "a/old").unlink()
    small = {f"s{number}": b"%d" % number for number in range(20)}
    write_tree(home / "a", {"film": Content(3 * MIB, seed=7).data, **small})
    for arguments in (["a", ":a"], [":a", "b"]):
        write_tree(home / "b", {"extra": b"e"})
        process = subprocess.Popen(
            [UPLOADER, "sync", *arguments, "--delete", "--limit-rate", "256K", "--json"],
            env=commands.environment,
            cwd=home,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert any(b'"progress"' in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        assert (process.wait(), b'"interrupted"' in process.stdout.read()) == (130, True)
        process.stdout.close()
        assert (home / "b/extra").exists()
        assert arguments[0] == ":a" or "a/old" in tree_there(commands)
        assert synced(commands, *arguments, "--delete")["failed"] == 0
    assert tree_in(home / "b") == tree_in(home / "a")
    assert len(tree_there(commands)) == 21
