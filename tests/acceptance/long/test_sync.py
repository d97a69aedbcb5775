"""sync, both ways: the target is as the source, nothing is sent in vain, and nothing deleted that should not be."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Commands, serving, token_of_somebody
from tests.support.content import MIB, Content
from tests.support.lying import claimed, lying
from tests.support.process import UPLOADER, Server, run_cli

FILES = 3000
NOON = 1_500_000_000_123_456_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture
def commands(server: Server, tmp_path: Path) -> Commands:
    """Of a user for this test alone."""
    here = tmp_path / "here"
    here.mkdir()
    return Commands(here, server.url, token_of_somebody(server))


def write(directory: Path, tree: dict[str, bytes], time_ns: int = NOON) -> None:
    for name, content in tree.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(time_ns, time_ns))


def tree_in(directory: Path) -> dict[str, bytes | None]:
    """All files with their content, and all empty folders."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
        if path.is_file() or path.is_symlink() or not any(path.iterdir())
    }


def tree_there(commands: Commands) -> dict[str, int]:
    """Sizes by name; no name may be there twice."""
    files = [event["file"] for event in commands.events("ls", "-r")]
    assert len({file["name"] for file in files}) == len(files)
    return {file["name"]: file["size"] for file in files}


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


def test_a_changed_tree_goes_up_and_comes_down_the_same(commands: Commands, server: Server) -> None:
    source = commands.home / "source"
    write(source, {f"{number % 50}/{number % 7}/f{number}": b"%d" % number for number in range(FILES)})
    write(source, {"large": Content(3 * MIB, seed=1).data})
    assert commands.run("put", "source", "--quiet").returncode == 0
    write(source, {f"{number % 50}/{number % 7}/f{number}": b"changed" for number in range(9)}, NOON + 10**9)
    write(source, {"large": Content(3 * MIB, seed=2).data}, NOON + 10**9)
    write(source, {f"new/{number}": b"new" for number in range(5)})
    for number in range(100, 105):
        (source / f"{number % 50}/{number % 7}/f{number}").unlink()
    first = synced(commands, "source", ":source", "--delete")
    assert (first["files"], *counts(first)) == (FILES + 1, 15, FILES + 1 - 15, 5, 0)
    assert first["bytes"] == 3 * MIB + 9 * 7 + 5 * 3
    down = synced(commands, ":source", "there")
    assert counts(down) == (FILES + 1, 0, 0, 0)
    assert subprocess.run(["diff", "-r", source, commands.home / "there"], check=False).returncode == 0
    usage = commands.events("usage")[0]["usage"]
    assert usage["use_space_finished"] == sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    assert (usage["use_space_unfinished"], usage["reserved"]) == (0, 0)
    # And again, both ways: nothing is sent, and what is there is asked for by the thousand.
    for arguments in (["source", ":source"], [":source", "there"]):
        before = server.log.read_text().count("method=")
        again = synced(commands, *arguments, "--delete")
        assert (counts(again), again["bytes"], again["events"][1:]) == ((0, FILES + 1, 0, 0), 0, [])
        assert server.log.read_text().count("method=") - before <= 5


def test_dry_runs_say_what_is_done_and_change_nothing(commands: Commands) -> None:
    write(commands.home / "a", {"new": b"n", "other": b"xx", "same": b"s", "touched": b"t", "in/deep": b"d"})
    write(commands.home / "b", {"other": b"old", "same": b"s", "extra": b"e", "gone/extra": b"ee"})
    write(commands.home / "b", {"touched": b"t"}, NOON + 10**9)
    assert commands.run("sync", "b", ":b").returncode == 0

    def would(*arguments: str) -> set[tuple[str, str]]:
        events = synced(commands, *arguments, "--dry-run")["events"]
        return {(event["action"], event["path"]) for event in events if event["event"] == "would"}

    moves = {("send", "b/new"), ("replace", "b/other"), ("send", "b/in/deep")}
    deletions = {("delete", "b/extra"), ("delete", "b/gone/extra")}
    assert would("a", ":b") == moves
    assert would("a", ":b", "--delete") == moves | deletions
    assert would("a", ":b", "--delete", "--checksum") == moves | deletions
    assert tree_there(commands) == {"b/other": 3, "b/same": 1, "b/extra": 1, "b/gone/extra": 2, "b/touched": 1}
    told = commands.run("sync", "a", ":b", "-n", "--delete")
    assert "would delete b/extra  (1 B)\n" in told.stdout
    assert told.stderr.startswith(
        "uploader: 5 files: 3 to be moved, 2 there already, 2 to be deleted; 4 B to be moved; nothing was changed"
    )
    assert synced(commands, "a", ":a")["moved"] == 5
    before = tree_in(commands.home / "b")
    assert would(":a", "b", "--delete") == {
        ("fetch", "b/new"),
        ("fetch", "b/other"),
        ("fetch", "b/in/deep"),
        ("delete", "b/extra"),
        ("delete", "b/gone/extra"),
    }
    assert tree_in(commands.home / "b") == before
    done = synced(commands, ":a", "b", "--delete")
    assert counts(done) == (3, 2, 2, 0)
    assert deleted(done) == ["b/extra", "b/gone/", "b/gone/extra"]
    assert tree_in(commands.home / "b") == tree_in(commands.home / "a")
    # A time alone was set, so nothing has to be compared again.
    assert synced(commands, ":a", "b", "--dry-run")["present"] == 5


def test_content_that_changed_without_its_time_is_found_by_checksum(commands: Commands) -> None:
    write(commands.home / "a", {"x": b"one"})
    assert synced(commands, "a", ":")["moved"] == 1
    write(commands.home / "a", {"x": b"two"})
    assert counts(synced(commands, "a", ":")) == (0, 1, 0, 0)
    assert counts(synced(commands, ":", "a")) == (0, 1, 0, 0)
    assert counts(synced(commands, "a", ":", "--checksum")) == (1, 0, 0, 0)
    write(commands.home / "a", {"x": b"333"})
    assert counts(synced(commands, ":", "a", "--checksum")) == (1, 0, 0, 0)
    assert tree_in(commands.home / "a") == {"x": b"two"}


def test_nothing_is_deleted_unless_it_is_sure_to_be_missing(commands: Commands, server: Server) -> None:
    home = commands.home
    write(home / "a", {"x": b"x", "kept/y": b"y"})
    assert synced(commands, "a", ":a")["moved"] == 2
    # A source that has nothing: an empty folder, and none at all.
    (home / "empty").mkdir()
    refused = synced(commands, "empty", ":a", "--delete", code=6)
    assert [event["code"] for event in refused["events"] if event["event"] == "failed"] == ["source-empty"]
    assert counts(synced(commands, "empty", ":a")) == (0, 0, 0, 0)
    assert commands.run("sync", "missing", ":a", "--delete").returncode == 2
    missing = commands.run("sync", ":missing", "a", "--delete")
    assert (missing.returncode, "file-not-found" in missing.stderr) == (6, True)
    data = str(server.log.parent / "data")
    nobody = Commands(home, server.url, run_cli({"DATA": data}, "token", "create", "nobody").stdout.split()[-1])
    assert "source-empty" in nobody.run("sync", ":", "a", "--delete").stderr
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
    write(home / "old", {"a": b"file", "b/x": b"in", "b/y/z": b"deep", "same": b"s"})
    write(home / "new", {"a/x": b"in", "b": b"file", "same": b"s"})
    assert synced(commands, "old", ":up")["moved"] == 4
    assert synced(commands, "new", ":new")["moved"] == 3
    # Without --delete what is in the way stays, and that is told.
    for arguments in (["new", ":up"], [":new", "old"]):
        failed = synced(commands, *arguments, code=6)
        assert counts(failed) == (0, 1, 0, 2)
    assert tree_in(home / "old")["a"] == b"file"
    assert len(tree_there(commands)) == 7
    # What is protected from being deleted is in the way, too.
    for arguments in (["new", ":up"], [":new", "old"]):
        assert synced(commands, *arguments, "--delete", "--exclude", "z", code=6)["failed"] >= 1
    for arguments in (["new", ":up"], [":new", "old"]):
        done = synced(commands, *arguments, "--delete")
        assert done["failed"] == 0
    assert tree_in(home / "old") == tree_in(home / "new")
    assert {name for name in tree_there(commands) if name.startswith("up/")} == {"up/a/x", "up/b", "up/same"}
    # A file of the folder's own name.
    refused = commands.run("sync", "new", ":up/b")
    assert (refused.returncode, "name-taken" in refused.stderr) == (6, True)


def test_links_are_neither_followed_nor_sent_nor_deleted(commands: Commands, tmp_path: Path) -> None:
    home, outside = commands.home, tmp_path / "outside"
    write(outside, {"secret": b"s"})
    write(home / "a", {"x": b"x", "sub/y": b"y"})
    assert synced(commands, "a", ":a")["moved"] == 2
    # What became a link here may be there for that reason: it stays.
    (home / "a/x").unlink()
    (home / "a/x").symlink_to("sub/y")
    up = synced(commands, "a", ":a", "--delete")
    assert (counts(up), [event["event"] for event in up["events"]]) == ((0, 1, 0, 0), ["skipped", "planned"])
    # Down: a link in a file's place is replaced, an extra one stays, one on the way is not followed.
    (home / "a/more").symlink_to(outside)
    (home / "a" / os.fsdecode(b"\xff")).write_bytes(b"no text")
    down = synced(commands, ":a", "a", "--delete")
    assert (counts(down), (home / "a/x").is_symlink(), (home / "a/more").is_symlink()) == ((1, 1, 1, 0), False, True)
    (home / "a/sub/y").unlink()
    (home / "a/sub").rmdir()
    (home / "a/sub").symlink_to(outside)
    write(home / "a", {"extra": b""})
    failed = synced(commands, ":a", "a", "--delete", code=6)
    assert [event["code"] for event in failed["events"] if event["event"] == "failed"] == ["leads-outside"]
    assert (tree_in(outside), (home / "a/extra").exists()) == ({"secret": b"s"}, True)


def test_two_files_of_one_name_are_never_one_in_silence(commands: Commands) -> None:
    home = commands.home
    for content in (b"one", b"other"):
        write(home, {"t/twin": content, "t/single": b"s"})
        assert commands.run("put", "t", "--if-exists", "keep").returncode == 0
    failed = synced(commands, ":t", "down", "--delete", code=6)
    assert (counts(failed), tree_in(home / "down")) == ((1, 0, 0, 1), {"single": b"s"})
    assert "2 files are" in next(event for event in failed["events"] if event["event"] == "failed")["detail"]
    # Of one that is here, too, the other is removed; two here, that would be one there, are told.
    assert counts(synced(commands, "t", ":t")) == (0, 2, 0, 0)
    assert tree_there(commands) == {"t/twin": 5, "t/single": 1}
    write(home, {"t/e\u0301": b"1", "t/\u00e9": b"2"})
    assert counts(synced(commands, "t", ":t", "--delete", code=6)) == (0, 2, 0, 2)
    assert len(tree_there(commands)) == 2


def test_what_is_excluded_or_not_listed_is_neither_moved_nor_deleted(commands: Commands) -> None:
    home = commands.home
    write(home / "a", {"x.jpg": b"x", "x.tmp": b"t", "sub/y.jpg": b"y", "raw/z.jpg": b"z"})
    filters = ["--exclude", "raw/", "--include", "*.jpg"]
    assert counts(synced(commands, "a", ":a", *filters, "--exclude", "*")) == (2, 0, 0, 0)
    assert set(tree_there(commands)) == {"a/x.jpg", "a/sub/y.jpg"}
    write(home / "there", {"mine.tmp": b"m", "old.jpg": b"o", "raw/mine.jpg": b"r"})
    (home / "there/empty").mkdir()
    down = synced(commands, ":a", "there", *filters, "--exclude", "*", "--delete")
    assert deleted(down) == ["there/old.jpg"]
    assert set(tree_in(home / "there")) == {"mine.tmp", "raw/mine.jpg", "x.jpg", "sub/y.jpg", "empty"}
    # Listed: these alone, and what is below them.
    write(home / "a", {"sub/y.jpg": b"new", "x.jpg": b"new"})
    (home / "list").write_text("./sub\n")
    write(home / "there", {"sub/more": b"m"})
    there = synced(commands, "there", ":b")
    assert there["moved"] == 5
    assert [event["detail"][:8] for event in there["events"] if event["event"] == "note"] == ["1 folder"]
    listed = synced(commands, "a", ":b", "--files-from", "list", "--delete")
    assert (listed["files"], counts(listed), deleted(listed)) == (1, (1, 0, 1, 0), ["b/sub/more"])
    (home / "list").write_text("sub\nmissing\n")
    assert counts(synced(commands, "there", ":b", "--files-from", "list", "--delete", code=6)) == (2, 0, 0, 0)
    assert commands.run("sync", "a", ":b", "--files-from", "-", stdin="../up\n").returncode == 2


def test_bad_usage_is_said_before_anything_is_done(commands: Commands) -> None:
    write(commands.home, {"a/x": b"x", "file": b"f"})
    for arguments in (["a", "b"], [":a", ":b"], ["file", ":a"], [":", "file"], ["a", ":../x"], ["a", ":a//b"]):
        refused = commands.run("sync", *arguments)
        assert (refused.returncode, refused.stdout) == (2, ""), arguments
    assert commands.run("sync", "a", ":a", "--exclude", "/").returncode == 2
    assert commands.run("sync", "a", ":a", "--limit-rate", "1").returncode == 2
    assert tree_there(commands) == {}


def test_names_that_lead_elsewhere_do_not(commands: Commands) -> None:
    hostile = ["../up", "/abs", "in/../../up", "fine"]
    with lying([claimed(name, name.encode()) for name in hostile]) as liar:
        liar_commands = Commands(commands.home, liar.url, "any")
        write(commands.home / "deep/there", {"extra": b"e"})
        run = liar_commands.run("sync", ":", "deep/there", "--delete")
    assert run.returncode == 6
    assert run.stderr.count("invalid-name") == 3
    assert tree_in(commands.home) == {"deep/there/extra": b"e", "deep/there/fine": b"fine"}


def test_interrupted_it_deletes_nothing_and_said_again_it_is_done(commands: Commands) -> None:
    home = commands.home
    write(home / "a", {"old": b"o"})
    assert synced(commands, "a", ":a")["moved"] == 1
    (home / "a/old").unlink()
    content = Content(3 * MIB, seed=7)
    write(home / "a", {"film": content.data, **{f"s{number}": b"%d" % number for number in range(20)}})
    for interrupted, again in ((["a", ":a"], ["a", ":a"]), ([":a", "b"], [":a", "b"])):
        write(home / "b", {"extra": b"e"})
        process = subprocess.Popen(
            [UPLOADER, "sync", *interrupted, "--delete", "--limit-rate", "256K", "--json"],
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
        assert interrupted[0] == ":a" or "a/old" in tree_there(commands)
        assert synced(commands, *again, "--delete")["failed"] == 0
    assert tree_in(home / "b") == tree_in(home / "a")
    assert len(tree_there(commands)) == 21
