"""`share`, `links` and `unshare` of an owner; `put` and `get` of who has but a link: no account, no configuration."""

import json
from pathlib import Path
from urllib.parse import urljoin

import pytest

from tests.conftest import MakeStack
from tests.support.commands import Commands, checked_events, outcome, token_of_somebody, tree_in, write_tree
from tests.support.content import KIB, Content
from tests.support.lying import lying
from tests.support.process import Server
from tests.support.sites import CONNECTIONS, a_site

TREE = {"a.txt": b"alpha", "deep/b.txt": b"beta"}


@pytest.fixture
def owner(server: Server, tmp_path: Path) -> Commands:
    (tmp_path / "owner").mkdir()
    return Commands(tmp_path / "owner", server.url, token_of_somebody(server))


@pytest.fixture
def stranger(tmp_path: Path) -> Commands:
    (tmp_path / "stranger").mkdir()
    return Commands(tmp_path / "stranger")


def shared(owner: Commands, *arguments: str) -> str:
    """The URL of a link, as scripts take it."""
    run = owner.run("share", *arguments)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()[-1]


def test_what_is_collected_is_its_owners(owner: Commands, stranger: Commands) -> None:
    url = shared(
        owner, "inbox", "--upload", "--label", "Homework", "--expires", "2d", "--max-files", "3", "--max-bytes", "1KiB"
    )
    write_tree(stranger.home / "work", TREE)
    (stranger.home / "work" / "empty").mkdir()
    assert stranger.run("put", "work", "--to", url).returncode == 0
    assert stranger.run("put", "-", "--name", "c.txt", "--to", f"{url}/", stdin="gamma").returncode == 0
    assert owner.names() == {"inbox/work/a.txt", "inbox/work/deep/b.txt", "inbox/c.txt"}
    [listed] = owner.events("links")
    assert listed["link"]["url"] == url
    assert {name: listed["link"][name] for name in ("kind", "label", "files", "bytes", "max_files")} == {
        "kind": "upload",
        "label": "Homework",
        "files": 3,
        "bytes": 14,
        "max_files": 3,
    }
    assert "Homework" in owner.run("links").stdout
    [*_, failed, summary] = stranger.events("put", "work/a.txt", "--name", "d.txt", "--to", url, code=4)
    assert (failed["code"], summary["exit_code"]) == ("link-exhausted", 4)
    assert stranger.run("get", url).returncode == 2
    assert owner.run("unshare", url).stdout == "ended the link to inbox/\n"
    assert owner.events("links") == []
    # For a moment the server may believe who was there; what they send is refused all the same.
    ended = stranger.events("put", "work/a.txt", "--to", url, code=3)
    assert [event["code"] for event in ended if event["event"] == "failed"] == ["link-gone"]
    assert owner.events("unshare", url, code=6)[0]["code"] == "link-not-found"


def test_what_is_shared_comes_to_who_has_the_link(owner: Commands, stranger: Commands) -> None:
    write_tree(owner.home / "photos", TREE)
    assert owner.run("put", "photos").returncode == 0
    folder, file = shared(owner, "photos/", "--max-downloads", "1"), shared(owner, "photos/a.txt")
    assert stranger.run("get", folder).returncode == 0
    assert stranger.run("get", folder, "there").returncode == 0  # the same visit
    assert stranger.run("get", file, "alone").returncode == 0
    assert stranger.run("get", file, "-o", "copy.txt").returncode == 0
    assert stranger.piped(b"", "get", file, "-o", "-").stdout == TREE["a.txt"]
    found = {name: content for name, content in tree_in(stranger.home).items() if not name.startswith(".config/")}
    in_folders = {f"{folder}/{name}": content for folder in ("photos", "there") for name, content in TREE.items()}
    assert found == in_folders | {"alone/a.txt": b"alpha", "copy.txt": b"alpha"}
    for kept in (stranger.home / ".config" / "uploader" / "links").iterdir():
        kept.unlink()
    [refused] = stranger.events("get", folder, "late", code=3)
    assert refused["code"] == "link-gone"
    assert stranger.run("put", "copy.txt", "--to", file).returncode == 2


def test_hidden_names_of_strangers_come_only_if_they_are_allowed(owner: Commands, stranger: Commands) -> None:
    hidden = {".profile": b"p", "deep/.git/config": b"c", "NUL.txt": b"n"}
    trees = {"photos": TREE | hidden, ".ssh": {"authorized_keys": b"k"}, "-rf": {"a.txt": b"alpha"}}
    for folder, tree in trees.items():
        write_tree(owner.home / folder, tree)
    (owner.home / ".bashrc").write_bytes(b"b")
    assert owner.run("put", "--", "photos", ".ssh", "-rf", ".bashrc").returncode == 0
    photos, ssh, option, bashrc = (shared(owner, "--", name) for name in ("photos/", ".ssh/", "-rf/", ".bashrc"))

    def here() -> dict[str, bytes | None]:
        return {name: content for name, content in tree_in(stranger.home).items() if not name.startswith(".config/")}

    got = stranger.run("get", photos)
    assert got.returncode == 6
    assert "uploader: photos/.profile: left out, as '.profile' begins with a dot: --allow-hidden takes it" in got.stderr
    assert here() == {f"photos/{name}": content for name, content in TREE.items()}
    for link, directory in ((ssh, ()), (option, ()), (bashrc, ()), (bashrc, ("there",)), (bashrc, ("-o", "there/"))):
        failed = stranger.events("get", link, *directory, code=6)
        assert {event["code"] for event in failed if event["event"] == "failed"} == {"hidden-name"}
    assert here() == {f"photos/{name}": content for name, content in TREE.items()}
    # A person who names the place has chosen it.
    assert stranger.run("get", ssh, "keys").returncode == 0
    assert stranger.run("get", bashrc, "-o", "rc").returncode == 0
    for link in (photos, ssh, option, bashrc):
        assert stranger.run("get", link, "--allow-hidden").returncode == 0
    chosen = {"keys/authorized_keys": b"k", "rc": b"b", ".bashrc": b"b"}
    assert here() == chosen | {f"{name}/{below}": data for name, tree in trees.items() for below, data in tree.items()}
    # Names of one's own are one's own.
    assert owner.run("get", ".bashrc", "photos/.profile", "-o", "mine/").returncode == 0
    assert tree_in(owner.home / "mine") == {".bashrc": b"b", ".profile": b"p"}


def test_symbolic_link_with_the_name_of_a_strangers_folder_is_not_followed(owner: Commands, stranger: Commands) -> None:
    write_tree(owner.home / "photos", TREE)
    assert owner.run("put", "photos").returncode == 0
    elsewhere = stranger.home.parent / "elsewhere"
    elsewhere.mkdir()
    (stranger.home / "photos").symlink_to(elsewhere)
    failed = stranger.events("get", shared(owner, "photos/"), code=6)
    assert {event["code"] for event in failed if event["event"] == "failed"} == {"leads-outside"}
    assert tree_in(elsewhere) == {}


def test_a_password_is_no_argument(owner: Commands, stranger: Commands) -> None:
    owner.environment["UPLOADER_LINK_PASSWORD"] = "open sesame"
    url = shared(owner, "inbox/", "--upload", "--password")
    (stranger.home / "a").write_bytes(b"a")
    unasked = stranger.run("put", "a", "--to", url)
    assert (unasked.returncode, unasked.stderr) == (
        2,
        "uploader: put the password of the link into UPLOADER_LINK_PASSWORD\n",
    )
    stranger.environment["UPLOADER_LINK_PASSWORD"] = "wrong"
    assert stranger.events("put", "a", "--to", url, code=3)[0]["code"] == "wrong-password"
    stranger.environment["UPLOADER_LINK_PASSWORD"] = "open sesame"
    assert stranger.run("put", "a", "--to", url).returncode == 0
    assert owner.names() == {"inbox/a"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["share", "inbox/", "--upload", "--max-downloads", "1"],
        ["share", "inbox/", "--max-files", "1"],
        ["put", "a", "--to", "https://uploads.example.org/inbox"],
        ["put", "a", "--to", "https://uploads.example.org/s/abcdefghijklmnopqrstuv", "--if-exists", "replace"],
        ["get", "https://uploads.example.org/s/abcdefghijklmnopqrstuv", "a", "b"],
    ],
)
def test_what_makes_no_sense_is_bad_usage(owner: Commands, arguments: list[str]) -> None:
    (owner.home / "a").write_bytes(b"a")
    run = owner.run(*arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("uploader: ")


async def test_a_stranger_who_was_killed_goes_on_where_it_was(make_stack: MakeStack, tmp_path: Path) -> None:
    async with a_site(make_stack) as site:
        made = await site.stack.client.post("/me/links", json={"kind": "upload", "name": "inbox/"})
        stranger, content = Commands(tmp_path), Content(32 * 64 * KIB - 1)
        (tmp_path / "film").write_bytes(content.data)
        url = urljoin(site.url, made.json()["url"])
        arguments = ["put", "film", "--to", url, "--chunk-size", "64KiB", "--hash-first", "64KiB", "--json"]
        site.gate.close(but=9)
        killed = await stranger.start(*arguments)
        await site.gate.wait_until_ended(9)
        await site.gate.wait_until_held(1)
        killed.kill()
        await killed.wait()
        site.gate.open()
        code, output = await outcome(await stranger.start(*arguments))
        assert code == 0, output
        assert [event["file"]["sha256"] for event in checked_events(output) if event["event"] == "complete"] == [
            content.sha256
        ]
        assert site.gate.begun.total() - content.chunk_count <= CONNECTIONS


def test_the_name_of_a_link_leads_nowhere_else(tmp_path: Path) -> None:
    facts = {"kind": "download", "expires_at": "2099-01-01T00:00:00Z"}
    session = {"token": "token", "expires_at": "2099-01-01T00:00:00Z"}
    home = tmp_path / "home"
    home.mkdir()
    for name in ("../evil", f"{tmp_path}/evil", "a/../../evil", "..", "a/b", "a\x1b[2J", "a\0b"):

        def says(target: str, name: str = name) -> tuple[int, dict[str, str], list[bytes]]:
            listed: dict[str, object] = {"files": [], "next": None}
            told = session if target.endswith("/session") else listed if "/files" in target else {**facts, "name": name}
            return 200, {"Content-Type": "application/json"}, [json.dumps(told).encode()]

        with lying(says=says) as server:
            got = Commands(home).run("get", f"{server.url}/s/{'a' * 22}")
        assert (got.returncode, got.stdout) == (6, "")
        assert "[invalid-name]" in got.stderr
        assert list(tmp_path.iterdir()) == [home]
