"""`uploader put` and `sync` of a large file that changed a little: over a real connection, and back again."""

from tests.support.commands import Commands, tree_in, write_tree
from tests.support.content import KIB, MIB, Content

OLD = Content(9 * MIB, seed=97)
NEW = b"x" + OLD.data[: 6 * MIB] + b"y" * 5000 + OLD.data[6 * MIB :]


def test_only_what_changed_is_sent_unless_all_is_wanted_and_that_is_told(commands: Commands) -> None:
    folder = commands.home / "images"

    def changed(content: bytes) -> None:
        """It is there as it was, and changed a little here."""
        write_tree(folder, {"disk.img": OLD.data})
        assert commands.run("sync", "images", ":images", "--checksum").returncode == 0
        write_tree(folder, {"disk.img": content}, 0)

    changed(NEW)
    summary = commands.events("put", "images", "--delta")[-1]
    assert (summary["sent"], summary["replaced"]) == (1, 1)
    assert summary["moved_bytes"] < 500 * KIB
    assert summary["moved_bytes"] + summary["spared_bytes"] == len(NEW)
    assert commands.run("get", "images", "-o", "copy").returncode == 0
    assert tree_in(commands.home / "copy") == {"images/disk.img": NEW}
    # Each time another content, which the server has not had.
    for number, command in enumerate((["put", "images/disk.img", "--to", "images"], ["sync", "images", ":images"])):
        changed(b"%d" % number + NEW)
        told = commands.run(*command, "--delta")
        assert (told.returncode, "8.9 MiB not sent, as the server had them" in told.stderr) == (0, True)
    changed(b"all" + NEW)
    summary = commands.events("put", "images", "--no-delta")[-1]
    assert (summary["moved_bytes"], summary["spared_bytes"]) == (len(NEW) + 3, 0)
