"""get, ls, rm and mv of folders, patterns and several names; and what a lying server can't do."""

import os
import subprocess
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import NOON, Commands, tree_in, write_tree
from tests.support.content import MIB, Content
from tests.support.lying import claimed, lying
from tests.support.process import UPLOADER, run_program

TREE = {
    "manual/README.md": b"read me",
    "manual/api.md": b"api",
    "manual/images/logo.png": b"logo",
    "manual/images/deep/down.png": b"down",
    "manual/übung ß.md": b"",
    "manual.txt": b"beside",
    "photos/2025/x.jpg": b"x25",
    "photos/2026/x.jpg": b"x26",
}


@pytest.fixture
def filled(commands: Commands, tmp_path: Path) -> Commands:
    """With the tree on the server, and nothing here."""
    write_tree(tmp_path / "source", TREE)
    sources = (tmp_path / "source" / name for name in ("manual", "manual.txt", "photos"))
    assert commands.run("put", *sources).returncode == 0
    return commands


def test_thousands_of_files_come_down_through_kills(commands: Commands) -> None:
    small = {f"{number % 7}/{number}": b"%d" % number for number in range(2000)}
    write_tree(commands.home / "many", small | {f"large{seed}": Content(MIB, seed=seed).data for seed in range(3)})
    assert commands.run("put", "many").returncode == 0
    there, seen = commands.home / "there", 0
    for _ in range(3):
        command = [str(UPLOADER), "get", "many", "-o", "there", "--limit-rate", "2M"]
        with subprocess.Popen(command, env=commands.environment, cwd=commands.home) as process:
            while files_in(there) == seen and process.poll() is None:
                time.sleep(0.02)
            process.kill()
        seen = files_in(there)
    summary = commands.events("get", "many", "-o", "there")[-1]
    assert (summary["complete"], summary["failed"], summary["present"] >= seen) == (2003, 0, True)
    assert tree_in(there / "many") == tree_in(commands.home / "many")


def files_in(directory: Path) -> int:
    return sum(path.is_file() and not path.name.startswith(".uploader-") for path in directory.rglob("*"))


def put(commands: Commands, name: str, content: bytes) -> str:
    """Another file of this name; its id."""
    source = commands.home.parent / "one"
    source.write_bytes(content)
    folder, _, own_name = name.rpartition("/")
    events = commands.events("put", source, "--name", own_name, "--to", folder, "--if-exists", "keep")
    file_id: str = events[-2]["file"]["id"]
    return file_id


# get


def test_what_is_named_comes_down_as_a_tree_with_its_times(filled: Commands) -> None:
    manual = {name: content for name, content in TREE.items() if name.startswith("manual/")}
    table: list[tuple[list[str], dict[str, bytes]]] = [
        (["manual"], manual),
        (["manual/"], manual),
        (["photos/2026"], {"2026/x.jpg": b"x26"}),
        (["manual/*.md"], {"README.md": b"read me", "api.md": b"api", "übung ß.md": b""}),
        (["manual/im*"], {"images/logo.png": b"logo", "images/deep/down.png": b"down"}),
        (["**/x.jpg"], {"photos/2025/x.jpg": b"x25", "photos/2026/x.jpg": b"x26"}),
        (["*"], TREE),
        (["manual/api.md", "manual.txt"], {"api.md": b"api", "manual.txt": b"beside"}),
        (
            ["photos/2025/", "manual.txt", "manual/a*"],
            {"2025/x.jpg": b"x25", "manual.txt": b"beside", "api.md": b"api"},
        ),
    ]
    for number, (words, expected) in enumerate(table):
        got = filled.run("get", *words, "-o", str(number))
        assert got.returncode == 0, got.stderr
        assert tree_in(filled.home / str(number)) == expected, words
    # One file may get a name of its own.
    assert filled.run("get", "manual/api.md", "-o", "copy.md").returncode == 0
    assert filled.run("get", "manual/api.md", "-o", "new/").returncode == 0
    assert ((filled.home / "copy.md").read_bytes(), tree_in(filled.home / "new")) == (b"api", {"api.md": b"api"})
    assert {path.stat().st_mtime_ns for path in filled.home.rglob("*") if path.is_file()} == {NOON}


def test_a_folder_is_one_line_with_counts(filled: Commands) -> None:
    write_tree(filled.home, {"manual/api.md": b"api"})
    got = filled.run("get", "manual/", "manual.txt")
    assert got.returncode == 0
    folder, file = sorted(got.stdout.splitlines(), key=lambda line: line.endswith("fetched)"))
    assert folder == "manual/  (5 files, 18 B: 4 fetched, 1 there already)"
    assert file.endswith("manual.txt  (6 B, fetched)")
    told = filled.run("get", "manual/", "-v", "-o", "again").stdout
    assert len(told.splitlines()) == 5
    assert "manual/images/deep/down.png  (4 B, fetched)" in told
    events = filled.events("get", "manual", "-o", "third")
    completed = [event for event in events if event["event"] == "complete"]
    assert ({event["folder"] for event in completed}, len(completed)) == ({"manual/"}, 5)
    assert (events[-1]["files"], events[-1]["complete"], events[-1]["left"]) == (5, 5, 0)


def test_what_is_here_is_not_asked_for_again(filled: Commands) -> None:
    assert filled.run("get", "*").returncode == 0
    again = filled.events("get", "*")
    assert {event["how"] for event in again if event["event"] == "complete"} == {"present"}
    # The same size and time is believed, unless one asks to compare.
    write_tree(filled.home, {"manual/api.md": b"xxx"})
    assert filled.run("get", "*").returncode == 0
    assert (filled.home / "manual/api.md").read_bytes() == b"xxx"
    compared = filled.run("get", "*", "--checksum")
    assert (compared.returncode, "target-exists" in compared.stderr) == (6, True)
    # Another time and the same content: the time is set.
    os.utime(filled.home / "manual.txt", (0, 0))
    os.utime(filled.home / "manual/api.md", (0, 0))
    forced = filled.run("get", "manual", "manual.txt", "--force")
    assert forced.returncode == 0, forced.stderr
    assert (filled.home / "manual/api.md").read_bytes() == b"api"
    assert {path.stat().st_mtime_ns for path in filled.home.rglob("manual*") if path.is_file()} == {NOON}


def test_standard_output_has_the_file_and_nothing_else(commands: Commands) -> None:
    content = Content(3 * MIB + 5, seed=182)
    file_id = put(commands, "films/film", content.data)
    for word in ("films/film", file_id):
        got = commands.piped(b"", "get", word, "-o", "-")
        assert (got.returncode, got.stderr, sha256(got.stdout).hexdigest()) == (0, b"", content.sha256)
    assert tree_in(commands.home) == {}
    for arguments, code in (
        (("films", "-o", "-"), 2),
        (("films/*", "-o", "-"), 2),
        (("a", "b", "-o", "-"), 2),
        (("a", "-o", "-", "--json"), 2),
        (("missing", "-o", "-"), 6),
    ):
        refused = commands.run("get", *arguments)
        assert (refused.returncode, refused.stdout) == (code, "")
    # A reader who goes away is told on standard error alone.
    run = run_program(
        ["bash", "-c", f"{UPLOADER} get films/film -o - | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}"],
        env=commands.environment,
        check=False,
    )
    said = "uploader: films/film can't be written: Broken pipe [unwritable]\n"
    assert (run.returncode, run.stderr) == (6, said)


def test_what_fails_holds_up_nothing_else(filled: Commands) -> None:
    write_tree(filled.home, {"manual/api.md": b"mine", "manual/images": b"a file in the way"})
    got = filled.run("get", "manual", "missing", "nothing*", "no/folder/", "manual.txt")
    assert got.returncode == 6
    for told in ("there is no file 'missing'", "nothing matches 'nothing*'", "there is no folder 'no/folder/'"):
        assert f"uploader: {told} [" in got.stderr
    assert "target-exists" in got.stderr
    assert got.stderr.count("unwritable") == 2
    assert "3 of 6 files" in got.stderr
    assert "3 failed" in got.stderr
    assert (filled.home / "manual/README.md").read_bytes() == b"read me"
    assert (filled.home / "manual/api.md").read_bytes() == b"mine"


def test_nothing_is_chosen_in_silence(filled: Commands) -> None:
    # Two of different folders that would lie at one path here.
    both = filled.run("get", "photos/2025/x.jpg", "photos/2026/x.jpg")
    assert both.returncode == 6
    assert not (filled.home / "x.jpg").exists()
    # A pattern and a name.
    put(filled, "photos/*", b"a star")
    for words in ("get photos/*", "rm photos/* --yes"):
        refused = filled.run(*words.split())
        assert (refused.returncode, "ambiguous-name" in refused.stderr) == (6, True)
    assert "photos/*" in filled.names()


def test_empty_folders_are_made_listed_moved_brought_and_deleted(commands: Commands) -> None:
    here = commands.home
    assert commands.run("mkdir", "a/b/", "a/c").stdout == "made a/b/\nmade a/c/\n"
    again = commands.run("mkdir", "a/b")
    assert (again.returncode, again.stdout, "already" in again.stderr) == (0, "", True)
    write_tree(here, {"x": b"x"})
    assert commands.run("put", "x", "--to", "a/b").returncode == 0
    refused = commands.run("mkdir", "a/b/x/y")
    assert (refused.returncode, "name-taken" in refused.stderr) == (6, True)
    assert [event[event["event"]]["name"] for event in commands.events("ls", "a")] == ["a/b/", "a/c/"]
    assert commands.run("ls", "a/c").returncode == 0
    for arguments, brought in (([], True), (["--no-empty"], False), (["--exclude", "c"], False), (["a/c"], True)):
        target = here / "_".join(["to", *arguments]).replace("/", "_")
        words = arguments if arguments == ["a/c"] else ["a", *arguments]
        assert commands.run("get", *words, "-o", target).returncode == 0
        assert any(path.name == "c" and path.is_dir() for path in target.rglob("*")) is brought
    # What is in the way stays, and is told.
    write_tree(here / "blocked", {"a/c": b"a file"})
    blocked = commands.run("get", "a", "-o", "blocked")
    assert (blocked.returncode, "target-exists" in blocked.stderr) == (6, True)
    assert commands.run("mv", "a/c", "moved/").returncode == 0
    assert commands.run("rm", "moved/c").returncode == 6
    assert commands.run("rm", "-r", "--yes", "moved", "a/b").returncode == 0
    assert [event[event["event"]]["name"] for event in commands.events("ls", "-r")] == ["a/"]


# ls


def test_a_folder_of_many_is_sent_moved_deleted_and_restored_as_it_was(commands: Commands, tmp_path: Path) -> None:
    source, count = tmp_path / "many", int(os.environ.get("UPLOADER_TEST_FILES", "300"))
    for number in range(count // 2):
        # Equal contents in one folder; and those of every third folder are the same as elsewhere.
        folder, own = f"many/{number // 20 % 10}/ü{number // 20}", number if number // 20 % 3 else number % 20
        names = [f"{folder}/x{number % 20}.jpg", f"{folder}/x{number % 20} (2).jpg"]
        write_tree(tmp_path, dict.fromkeys(names[:: 1 - number % 2 * 2], b"%d" % own))
    expected = tree_in(source)
    steps: tuple[tuple[str | Path, ...], ...] = (
        ("put", source),
        ("put", source, "--if-exists", "keep"),
        ("mv", "many", "moved/"),
        ("rm", "-r", "moved", "--yes"),
        ("restore", "moved/"),
        ("get", "moved/many", "-o", "back"),
    )
    for step in steps:
        done = commands.run(*step)
        assert done.returncode == 0, done.stderr
    assert len(expected) == count // 2 * 2
    assert tree_in(commands.home / "back/many") == expected


def test_levels_patterns_and_parts_of_names_are_listed(filled: Commands) -> None:
    def listed(*arguments: str) -> list[str]:
        return [event[event["event"]]["name"] for event in filled.events("ls", *arguments)]

    assert listed() == ["manual.txt", "manual/", "photos/"]
    assert filled.events("ls")[1]["folder"] == {"name": "manual/", "files": 5, "bytes": 18, "at_least": False}
    level = ["manual/README.md", "manual/api.md", "manual/images/", "manual/übung ß.md"]
    lines = filled.run("ls", "manual").stdout.splitlines()
    assert [line.split("  ")[-1] for line in lines] == level
    assert "2 files" in lines[2]
    assert filled.run("ls", "manual/").stdout.splitlines() == lines
    for words, expected in (
        ("-r", set(TREE)),
        ("-r photos", {"photos/2025/x.jpg", "photos/2026/x.jpg"}),
        ("manual/*", set(level)),
        ("man* photos/2025", {"manual.txt", "manual/", "photos/2025/x.jpg"}),
        ("--find x.j", {"photos/2025/x.jpg", "photos/2026/x.jpg"}),
        ("--find u\u0308b", {"manual/übung ß.md"}),
        ("photos/2026 --find x", {"photos/2026/x.jpg"}),
        ("manual.txt --find nothing", set()),
    ):
        assert set(listed(*words.split())) == expected, words
    missing = filled.run("ls", "missing", "photos/")
    assert (missing.returncode, len(missing.stdout.splitlines())) == (6, 2)
    assert "file-not-found" in missing.stderr


# rm


def test_folders_and_patterns_are_deleted_when_one_is_sure(filled: Commands) -> None:
    refused = filled.run("rm", "manual")
    assert (refused.returncode, refused.stdout) == (6, "")
    assert "is a folder: say -r" in refused.stderr
    for arguments, told in (
        (["-r", "manual"], "5 files, 18 B"),
        (["manual/*.md"], "3 files, 10 B"),
        (["-r", "photos/*", "manual"], "7 files, 24 B"),
    ):
        unsure = filled.run("rm", *arguments)
        assert (unsure.returncode, unsure.stdout) == (2, "")
        assert unsure.stderr == f"uploader: this deletes {told}; say --yes\n"
    assert filled.names() == set(TREE)
    # A pattern deletes folders with -r only.
    only_files = filled.run("rm", "manual/*", "--yes")
    assert (only_files.returncode, "manual/images/ is a folder: say -r" in only_files.stderr) == (6, True)
    images = {"manual/images/logo.png", "manual/images/deep/down.png"}
    assert filled.names() == {"manual.txt", "photos/2025/x.jpg", "photos/2026/x.jpg"} | images
    deleted = filled.run("rm", "-r", "manual", "--yes")
    assert (deleted.returncode, deleted.stdout) == (0, "deleted manual/ (2 files)\n")
    by_pattern = filled.run("rm", "**/2025/x.jpg", "manual.txt", "--yes")
    assert (by_pattern.returncode, len(by_pattern.stdout.splitlines())) == (0, 2)
    [event, _] = filled.events("rm", "-r", "--yes", "photos/*")
    assert (event["event"], event["name"], event["files"]) == ("folder-deleted", "photos/2026/", 1)
    assert filled.names() == set()
    assert filled.events("usage")[0]["usage"]["use_space_finished"] == 0


# mv


def test_folders_and_files_are_moved(filled: Commands) -> None:
    moved = filled.run("mv", "photos/2025", "old/pictures")
    assert (moved.returncode, moved.stdout) == (0, "photos/2025/ is old/pictures/ now (1 file)\n")
    [event] = filled.events("mv", "photos/2026/", "old/")
    assert event == {"event": "folder-moved", "name": "old/2026/", "old_name": "photos/2026/", "files": 1}
    assert filled.run("mv", "manual/api.md", "old/").stdout == "manual/api.md is old/api.md now\n"
    assert filled.run("mv", "old/2026", "/").returncode == 0
    assert filled.run("mv", "old/api.md", "/").returncode == 0
    elsewhere = {name for name in filled.names() if not name.startswith("manual")}
    assert elsewhere == {"old/pictures/x.jpg", "2026/x.jpg", "api.md"}


def test_nothing_is_mixed_by_moving_but_on_purpose(filled: Commands) -> None:
    for name, new_name in (
        ("manual.txt", "manual/api.md"),
        ("manual.txt", "photos"),
        ("photos/2025", "photos/2026"),
        ("photos/2025", "manual"),
        ("photos/2025/x.jpg", "photos/2026/"),
        ("photos/2025", "photos/2025/x.jpg"),
        ("photos/*", "x/"),
    ):
        refused = filled.run("mv", name, new_name)
        assert (refused.returncode, refused.stdout) == (6, "")
    assert filled.names() == set(TREE)
    assert filled.run("mv", "photos/2025", "photos/2026", "--force").returncode == 0
    assert {"photos/2026/x.jpg", "photos/2026/x (2).jpg"} < filled.names()
    assert filled.run("mv", "manual.txt", "manual/api.md", "--force").returncode == 0
    assert {"manual/api.md", "manual/api (2).md"} < filled.names()


# Servers that lie, and old ones

EVIL = b"evil"


def asked(tmp_path: Path, url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    here = tmp_path / "deep" / "here"
    here.mkdir(parents=True, exist_ok=True)
    return Commands(here, url, "token").run(*arguments)


HOSTILE = ["a/../../../evil", "a/../evil", "a/./evil", "a//evil", "a/..\\evil", "a/\x1b[2Jevil", "a/evil\nb"]


@pytest.mark.parametrize("name", [*HOSTILE, "a/" + "../" * 12 + "tmp/evil", "a/..", "a/"])
def test_no_name_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    files = [claimed(name, EVIL), claimed("a/good", b"good")]
    with lying(files) as server:
        for words in (["a/"], ["a/**"], ["*"], [files[0]["id"]]):
            got = asked(tmp_path, server.url, "get", *words)
            assert got.returncode == 6, got.stdout
            assert "\x1b" not in got.stdout + got.stderr
            assert "Traceback" not in got.stderr
    assert EVIL not in tree_in(tmp_path).values()
    assert (tmp_path / "deep/here/a/good").read_bytes() == b"good"


def test_no_name_moves_the_cursor_or_forges_a_line(tmp_path: Path) -> None:
    with lying([claimed("a/\x1b[2Jevil\nforged", EVIL)]) as server:
        listed = asked(tmp_path, server.url, "ls", "-r")
        assert listed.stdout.splitlines()[0].endswith("a/\\u001b[2Jevil\\u000aforged")
        assert listed.stdout.count("\n") == 1


def test_what_was_not_asked_for_is_not_taken(tmp_path: Path) -> None:
    for name in ("/etc/evil", "../evil", "b/evil", ".bashrc", ""):
        with lying([claimed("a/good", b"good"), claimed(name, EVIL)]) as server:
            for word in ("a", "a/", "a/*"):
                got = asked(tmp_path, server.url, "get", word)
                assert (got.returncode, "bad-answer" in got.stderr) == (6, True), (name, word)
    assert tree_in(tmp_path) == {"deep/here": None}


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    here, outside = tmp_path / "deep/here", tmp_path / "outside"
    write_tree(outside, {"mine": b"mine"})
    (here / "a").mkdir(parents=True)
    for link, target in (("link", outside), ("file", outside / "mine"), ("dangling", outside / "nothing")):
        (here / "a" / link).symlink_to(target)
    with lying([claimed(f"a/{name}", EVIL) for name in ("link/evil", "file", "dangling")]) as server:
        got = asked(tmp_path, server.url, "get", "a/")
        assert got.returncode == 6
        assert "leads-outside" in got.stderr
        assert got.stderr.count("target-exists") == 2
        assert (here / "a/dangling").is_symlink()
        forced = asked(tmp_path, server.url, "get", "a/", "--force")
        assert "leads-outside" in forced.stderr
    assert tree_in(outside) == {"mine": b"mine"}
    assert not (here / "a/file").is_symlink()  # replaced, as it was asked for


def test_figures_that_are_lies_bring_no_file_and_odd_times_no_harm(tmp_path: Path) -> None:
    lies: list[dict[str, Any]] = [
        {"sha256": "../../../../../evil"},
        {"sha256": "f" * 64},
        *({"size": size} for size in (-1, 3, 5)),
        {"modified_at": "2020-01-01T00:00:00"},
        {"created_at": "now"},
    ]
    for lie in lies:
        with lying([claimed("a/evil", EVIL, **lie)]) as server:
            got = asked(tmp_path, server.url, "get", "a/", "--patience", "500ms")
        assert got.returncode in (5, 6), lie
        assert "Traceback" not in got.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".part"] == []
    # Times out of any calendar do no harm.
    ends = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", None]
    files = [claimed(f"a/{number}", b"%d" % number, modified_at=end) for number, end in enumerate(ends)]
    with lying(files) as server:
        assert asked(tmp_path, server.url, "get", "a/").returncode == 0
    got_in = tmp_path / "deep/here/a"
    assert [(got_in / f"{number}").read_bytes() for number in range(3)] == [b"0", b"1", b"2"]


def test_an_old_server_does_what_it_could(tmp_path: Path) -> None:
    files = [claimed("a/b", b"1"), claimed("a/c/d", b"2")]
    with lying(files, old=True) as server:
        assert asked(tmp_path, server.url, "get", "a/").returncode == 0
        assert tree_in(tmp_path / "deep/here") == {"a/b": b"1", "a/c/d": b"2"}
        assert asked(tmp_path, server.url, "get", "a/b", "-o", "one").returncode == 0
        listed = asked(tmp_path, server.url, "ls", "a")
        assert (listed.returncode, len(listed.stdout.splitlines())) == (0, 2)
        assert "too old to list one level" in listed.stderr
        found = asked(tmp_path, server.url, "ls", "--find", "d")
        assert [line.split()[-1] for line in found.stdout.splitlines()] == ["a/c/d"]
        for words, verb in (("rm -r a --yes", "delete"), ("mv a b", "move")):
            refused = asked(tmp_path, server.url, *words.split())
            assert refused.returncode == 6
            assert f"too old to {verb} folders" in refused.stderr
            assert "server-too-old" in refused.stderr
