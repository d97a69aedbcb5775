"""`uploader put` and `sync` of a large file that changed a little: over a real connection, and back again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Commands, serving, token_of_somebody
from tests.support.content import KIB, MIB, Content

OLD = Content(9 * MIB, seed=97)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with serving(tmp_path_factory.mktemp("server")) as server:
        yield Commands(tmp_path_factory.mktemp("home"), server.url, token_of_somebody(server))


@pytest.fixture
def image(commands: Commands) -> Path:
    """A file that is there as it was, and changed a little here."""
    path = commands.home / "images" / "disk.img"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(OLD.data)
    assert commands.run("sync", "images", ":images").returncode == 0
    path.write_bytes(b"x" + OLD.data[: 6 * MIB] + b"y" * 5000 + OLD.data[6 * MIB :])
    return path


def test_put_sends_only_what_changed_and_says_so(commands: Commands, image: Path) -> None:
    summary = commands.events("put", "images")[-1]
    assert (summary["sent"], summary["replaced"]) == (1, 1)
    assert summary["moved_bytes"] < 500 * KIB
    assert summary["moved_bytes"] + summary["spared_bytes"] == image.stat().st_size
    assert commands.run("get", "images/disk.img", "-o", "copy").returncode == 0
    assert (commands.home / "copy").read_bytes() == image.read_bytes()
    (commands.home / "copy").unlink()


def test_people_are_told_how_much_was_not_sent(commands: Commands, image: Path) -> None:
    assert "MiB not sent, as the server had them" in commands.run("put", "images/disk.img", "--to", "images").stderr


def test_sync_sends_only_what_changed_and_says_so(commands: Commands, image: Path) -> None:
    told = commands.run("sync", "images", ":images")
    assert told.returncode == 0
    assert "8.86 MiB not sent, as the server had them" in told.stderr


def test_everything_is_sent_on_demand(commands: Commands, image: Path) -> None:
    summary = commands.events("put", "images", "--no-delta")[-1]
    assert (summary["moved_bytes"], summary["spared_bytes"]) == (image.stat().st_size, 0)
