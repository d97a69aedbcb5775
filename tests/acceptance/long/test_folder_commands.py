"""get, ls, rm and mv of folders, patterns and several names, on a server of its own; and what a lying server can't do."""

import os
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Commands, serving, token_of_somebody
from tests.support.content import MIB, Content
from tests.support.lying import claimed, lying
from tests.support.process import UPLOADER, Server

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


def write_tree(directory: Path, tree: dict[str, bytes]) -> None:
    for name, content in tree.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(NOON, NOON))


def tree_in(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() or path.is_symlink()
    }


@pytest.fixture
def filled(commands: Commands, tmp_path: Path) -> Commands:
    """With the tree on the server, and nothing here."""
    write_tree(tmp_path / "source", TREE)
    assert (
        commands.run("put", *(tmp_path / "source" / name for name in ("manual", "manual.txt", "photos"))).returncode
        == 0
    )
    return commands


def names(commands: Commands) -> set[str]:
    return {event["file"]["name"] for event in commands.events("ls", "-r")}


def put(commands: Commands, name: str, content: bytes) -> str:
    """Another file of this name; its id."""
    source = commands.home.parent / "one"
    source.write_bytes(content)
    arguments = ("--name", name.rpartition("/")[2], "--to", name.rpartition("/")[0], "--if-exists", "keep")
    [complete] = [event for event in commands.events("put", source, *arguments) if event["event"] == "complete"]
    file_id: str = complete["file"]["id"]
    return file_id


# get


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["manual"], {name: TREE[name] for name in TREE if name.startswith("manual/")}),
        (["manual/"], {name: TREE[name] for name in TREE if name.startswith("manual/")}),
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
    ],
)
def test_what_is_named_comes_down_as_a_tree_with_its_times(
    filled: Commands, words: list[str], expected: dict[str, bytes]
) -> None:
    got = filled.run("get", *words, "-o", "there")
    assert got.returncode == 0, got.stderr
    there = filled.home / "there"
    assert tree_in(there) == expected
    assert {path.stat().st_mtime_ns for path in there.rglob("*") if path.is_file()} == {NOON}


def test_a_folder_is_one_line_with_counts(filled: Commands) -> None:
    (filled.home / "manual").mkdir()
    write_tree(filled.home, {"manual/api.md": b"api"})
    got = filled.run("get", "manual/", "manual.txt")
    assert got.returncode == 0
    lines = sorted(got.stdout.splitlines())
    assert len(lines) == 2
    assert lines[0].endswith("manual.txt  (6 B, fetched)")
    assert lines[1] == "manual/  (5 files, 18 B: 4 fetched, 1 there already)"
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
    assert compared.returncode == 6
    assert "target-exists" in compared.stderr
    # Another time and the same content: the time is set.
    os.utime(filled.home / "manual.txt", (0, 0))
    os.utime(filled.home / "manual/api.md", (0, 0))
    forced = filled.run("get", "manual", "manual.txt", "--force")
    assert forced.returncode == 0, forced.stderr
    assert (filled.home / "manual/api.md").read_bytes() == b"api"
    assert {path.stat().st_mtime_ns for path in filled.home.rglob("manual*") if path.is_file()} == {NOON}


def test_a_partial_download_of_a_folder_goes_on(filled: Commands) -> None:
    content = Content(3 * MIB, seed=181)
    put(filled, "films/film", content.data)
    put(filled, "films/twin", content.data)
    (filled.home / "films").mkdir()
    partial = filled.home / "films" / f".uploader-{content.sha256[:32]}.part"
    partial.write_bytes(content.data[: 2 * MIB])
    assert filled.run("get", "films").returncode == 0
    assert tree_in(filled.home / "films") == {"film": content.data, "twin": content.data}


def test_one_file_may_get_a_name_of_its_own(filled: Commands) -> None:
    assert filled.run("get", "manual/api.md", "-o", "copy.md").returncode == 0
    assert filled.run("get", "manual/api.md", "-o", "new/").returncode == 0
    assert tree_in(filled.home) == {"copy.md": b"api", "new/api.md": b"api"}
    assert (filled.home / "copy.md").stat().st_mtime_ns == NOON


def test_standard_output_has_the_file_and_nothing_else(filled: Commands) -> None:
    content = Content(3 * MIB + 5, seed=182)
    file_id = put(filled, "films/film", content.data)
    for word in ("films/film", file_id):
        run = subprocess.run(
            [UPLOADER, "get", word, "-o", "-"],
            env=filled.environment,
            cwd=filled.home,
            capture_output=True,
            check=True,
        )
        assert sha256(run.stdout).hexdigest() == content.sha256
        assert run.stderr == b""
    assert tree_in(filled.home) == {}
    for arguments in (
        ("manual", "-o", "-"),
        ("manual/*", "-o", "-"),
        ("a", "b", "-o", "-"),
        ("a", "-o", "-", "--json"),
    ):
        refused = filled.run("get", *arguments)
        assert (refused.returncode, refused.stdout) == (2, "")
    missing = filled.run("get", "missing", "-o", "-")
    assert (missing.returncode, missing.stdout) == (6, "")


def test_a_reader_who_goes_away_is_told_on_standard_error_alone(filled: Commands) -> None:
    put(filled, "film", bytes(3 * MIB))
    run = subprocess.run(
        f"{UPLOADER} get film -o - | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        env=filled.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 6
    assert run.stderr == "uploader: film can't be written: Broken pipe [unwritable]\n"


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
    ids = [put(filled, "manual/api.md", b"other"), *ids_of(filled, "manual/api.md")]
    for command in (["get", "manual/api.md"], ["rm", "manual/api.md"], ["mv", "manual/api.md", "x"]):
        refused = filled.run(*command)
        assert refused.returncode == 6
        assert all(file_id in refused.stderr for file_id in ids), refused.stderr
    in_folder = filled.run("get", "manual")
    assert in_folder.returncode == 6
    assert all(file_id in in_folder.stderr for file_id in ids)
    assert "4 of 5 files" in in_folder.stderr
    assert "not begun" not in in_folder.stderr
    assert not (filled.home / "manual/api.md").exists()
    assert (filled.home / "manual/README.md").exists()
    assert filled.run("get", ids[0], "-o", "chosen").returncode == 0
    assert (filled.home / "chosen").read_bytes() == b"other"
    # Two of different folders that would lie at one path here.
    both = filled.run("get", "photos/2025/x.jpg", "photos/2026/x.jpg")
    assert both.returncode == 6
    assert not (filled.home / "x.jpg").exists()
    # A file and a folder, a pattern and a name.
    put(filled, "manual", b"a file")
    put(filled, "photos/*", b"a star")
    for command in (
        ["get", "manual"],
        ["rm", "-r", "--yes", "manual"],
        ["get", "photos/*"],
        ["rm", "photos/*", "--yes"],
    ):
        refused = filled.run(*command)
        assert refused.returncode == 6
        assert "ambiguous-name" in refused.stderr
    assert filled.run("get", "manual/", "-o", "there").returncode == 6  # api.md is still two
    assert len(list((filled.home / "there").rglob("*.png"))) == 2


def ids_of(commands: Commands, name: str) -> list[str]:
    return [event["file"]["id"] for event in commands.events("ls", name)]


# ls


def listed_name(event: dict[str, Any]) -> str:
    name: str = event[event["event"]]["name"]
    return name


def test_one_level_is_listed_by_name(filled: Commands) -> None:
    top = filled.events("ls")
    assert [listed_name(event) for event in top] == ["manual.txt", "manual/", "photos/"]
    assert top[1]["folder"] == {"name": "manual/", "files": 5, "bytes": 18}
    lines = filled.run("ls", "manual").stdout.splitlines()
    assert [line.split("  ")[-1] for line in lines] == [
        "manual/README.md",
        "manual/api.md",
        "manual/images/",
        "manual/übung ß.md",
    ]
    assert "2 files" in lines[2]
    assert filled.run("ls", "manual/").stdout.splitlines() == lines


def test_all_levels_patterns_and_parts_of_names_are_listed(filled: Commands) -> None:
    def listed(*arguments: str) -> set[str]:
        return {listed_name(event) for event in filled.events("ls", *arguments)}

    assert listed("-r") == set(TREE)
    assert listed("-r", "photos") == {"photos/2025/x.jpg", "photos/2026/x.jpg"}
    assert listed("manual/*") == {"manual/README.md", "manual/api.md", "manual/images/", "manual/übung ß.md"}
    assert listed("man*", "photos/2025") == {"manual.txt", "manual/", "photos/2025/x.jpg"}
    assert listed("--find", "x.j") == {"photos/2025/x.jpg", "photos/2026/x.jpg"}
    assert listed("--find", "u\u0308b") == {"manual/übung ß.md"}
    assert listed("photos/2026", "--find", "x") == {"photos/2026/x.jpg"}
    assert listed("manual.txt", "--find", "nothing") == set()
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
    assert names(filled) == set(TREE)
    deleted = filled.run("rm", "-r", "manual", "--yes")
    assert (deleted.returncode, deleted.stdout) == (0, "deleted manual/ (5 files)\n")
    assert names(filled) == {"manual.txt", "photos/2025/x.jpg", "photos/2026/x.jpg"}
    by_pattern = filled.run("rm", "**/x.jpg", "manual.txt", "--yes")
    assert by_pattern.returncode == 0
    assert len(by_pattern.stdout.splitlines()) == 3
    assert names(filled) == set()
    assert filled.events("usage")[0]["usage"]["use_space_finished"] == 0


def test_a_pattern_deletes_folders_with_r_only(filled: Commands) -> None:
    only_files = filled.run("rm", "manual/*", "--yes")
    assert only_files.returncode == 6
    assert "manual/images/ is a folder: say -r" in only_files.stderr
    assert {name for name in names(filled) if name.startswith("manual/")} == {
        "manual/images/logo.png",
        "manual/images/deep/down.png",
    }
    events = filled.events("rm", "-r", "--yes", "photos/*")
    assert [(event["event"], event["name"], event["files"]) for event in events] == [
        ("folder-deleted", "photos/2026/", 1),
        ("folder-deleted", "photos/2025/", 1),
    ]


# mv


def test_folders_and_files_are_moved(filled: Commands) -> None:
    moved = filled.run("mv", "photos/2025", "old/pictures")
    assert (moved.returncode, moved.stdout) == (0, "photos/2025/ is old/pictures/ now (1 file)\n")
    assert filled.events("mv", "photos/2026/", "old/")[0] == {
        "event": "folder-moved",
        "name": "old/2026/",
        "old_name": "photos/2026/",
        "files": 1,
    }
    assert filled.run("mv", "manual/api.md", "old/").stdout == "manual/api.md is old/api.md now\n"
    assert filled.run("mv", "old/2026", "/").returncode == 0
    assert filled.run("mv", "old/api.md", "/").returncode == 0
    assert {name for name in names(filled) if not name.startswith("manual")} == {
        "old/pictures/x.jpg",
        "2026/x.jpg",
        "api.md",
    }


@pytest.mark.parametrize(
    ("name", "new_name"),
    [
        ("manual.txt", "manual/api.md"),
        ("manual.txt", "photos"),
        ("photos/2025", "photos/2026"),
        ("photos/2025", "manual"),
        ("photos/2025/x.jpg", "photos/2026/"),
        ("photos/2025", "photos/2025/x.jpg"),
    ],
)
def test_nothing_is_mixed_by_moving(filled: Commands, name: str, new_name: str) -> None:
    refused = filled.run("mv", name, new_name)
    assert (refused.returncode, refused.stdout) == (6, "")
    assert names(filled) == set(TREE)


def test_what_is_mixed_on_purpose_is_kept_both(filled: Commands) -> None:
    assert filled.run("mv", "photos/*", "x/").returncode == 6
    assert filled.run("mv", "photos/2025", "photos/2026", "--force").returncode == 0
    assert len(ids_of(filled, "photos/2026/x.jpg")) == 2
    assert filled.run("mv", "manual.txt", "manual/api.md", "--force").returncode == 0
    assert len(ids_of(filled, "manual/api.md")) == 2


# Servers that lie, and old ones

EVIL = b"evil"


def asked(tmp_path: Path, url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    here = tmp_path / "deep" / "here"
    here.mkdir(parents=True, exist_ok=True)
    return Commands(here, url, "token").run(*arguments)


@pytest.mark.parametrize(
    "name",
    [
        "a/../../../evil",
        "a/../evil",
        "a/./evil",
        "a//evil",
        "a/..\\evil",
        "a/\x1b[2Jevil",
        "a/evil\nb",
        "a/" + "../" * 12 + "tmp/evil",
        "a/..",
        "a/",
    ],
)
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


@pytest.mark.parametrize("name", ["/etc/evil", "../evil", "b/evil", ".bashrc", ""])
def test_what_was_not_asked_for_is_not_taken(tmp_path: Path, name: str) -> None:
    with lying([claimed("a/good", b"good"), claimed(name, EVIL)]) as server:
        for word in ("a", "a/", "a/*"):
            got = asked(tmp_path, server.url, "get", word)
            assert got.returncode == 6
            assert "bad-answer" in got.stderr
    assert tree_in(tmp_path) == {}


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    here, outside = tmp_path / "deep/here", tmp_path / "outside"
    outside.mkdir()
    (here / "a").mkdir(parents=True)
    (here / "a/link").symlink_to(outside)
    (outside / "mine").write_bytes(b"mine")
    (here / "a/file").symlink_to(outside / "mine")
    (here / "a/dangling").symlink_to(outside / "nothing")
    with lying([claimed(f"a/{name}", EVIL) for name in ("link/evil", "file", "dangling")]) as server:
        got = asked(tmp_path, server.url, "get", "a/")
        assert got.returncode == 6
        assert "leads-outside" in got.stderr
        assert got.stderr.count("target-exists") == 2
        assert (here / "a/dangling").is_symlink()
        forced = asked(tmp_path, server.url, "get", "a/", "--force")
        assert "leads-outside" in forced.stderr
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"mine": b"mine"}
    assert not (here / "a/file").is_symlink()  # replaced, as it was asked for


@pytest.mark.parametrize(
    "lies",
    [
        {"sha256": "../../../../../evil"},
        {"sha256": "f" * 64},
        {"size": -1},
        {"size": 3},
        {"size": 5},
        {"modified_at": "2020-01-01T00:00:00"},
        {"created_at": "now"},
    ],
    ids=str,
)
def test_figures_that_are_lies_bring_no_file(tmp_path: Path, lies: dict[str, Any]) -> None:
    with lying([claimed("a/evil", EVIL, **lies)]) as server:
        got = asked(tmp_path, server.url, "get", "a/", "--patience", "500ms")
    assert got.returncode in (5, 6)
    assert "Traceback" not in got.stderr
    assert [name for name in tree_in(tmp_path) if not name.endswith(".part")] == []


def test_times_out_of_any_calendar_do_no_harm(tmp_path: Path) -> None:
    ends = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", None]
    files = [claimed(f"a/{number}", b"%d" % number, modified_at=end) for number, end in enumerate(ends)]
    with lying(files) as server:
        assert asked(tmp_path, server.url, "get", "a/").returncode == 0
    assert tree_in(tmp_path / "deep/here/a") == {"0": b"0", "1": b"1", "2": b"2"}


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
        for arguments, verb in ((("rm", "-r", "a", "--yes"), "delete"), (("mv", "a", "b"), "move")):
            refused = asked(tmp_path, server.url, *arguments)
            assert refused.returncode == 6
            assert f"too old to {verb} folders" in refused.stderr
            assert "server-too-old" in refused.stderr
