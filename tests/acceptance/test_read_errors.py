"""A disk that can't read some files, by a library that is preloaded: they are away for a while, and nothing is lost."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.content import KIB, Content
from tests.support.failing_disk import FailingDisk
from tests.support.layout import blob_path
from tests.support.problems import problem
from tests.support.process import Server, client_of_owner, ended, run_cli, run_program, wait_for

# One is compared block by block, one read at one go.
CONTENTS = (Content(1000 * KIB, name="large"), Content(100, seed=1, name="small"))
RANGE = {"Range": "bytes=50-59"}
OTHER = Content(300 * KIB, seed=2, name="other")


pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None and "CI" not in os.environ, reason="no compiler: gcc, libc6-dev"
)


def test_what_the_disk_can_not_read_is_away_and_comes_back(tmp_path: Path) -> None:
    disk, data = FailingDisk(tmp_path), tmp_path / "data"
    settings = {"DATA": str(data), "FREE_SPACE_FLOOR": "0", **disk.settings}
    server = Server(tmp_path / "log", settings)
    with ended(server), client_of_owner(server.url, data) as client:
        paths = {}
        for content in (*CONTENTS, OTHER):
            sent = client.post("/me/files", params={"name": content.name}, content=content.data)
            paths[content] = f"/me/files/{sent.json()['file']['id']}"
        disk.fail(reads=tuple(content.sha256 for content in CONTENTS))
        for content in CONTENTS:
            for more in ({}, RANGE):
                refused = client.get(f"{paths[content]}/content", headers=more)
                assert problem(refused, 503, "unavailable")["retryable"]
                assert refused.headers["retry-after"]
        assert client.get(f"{paths[OTHER]}/content").content == OTHER.data
        scrubbed = run_cli(settings, "scrub")
        assert (scrubbed.returncode, scrubbed.stdout.count("unreadable: ")) == (1, len(CONTENTS)), scrubbed.stderr
        wait_for(lambda: "can't be read: 2" in (client.get("/readyz").json()["checks"]["content"]["reason"] or ""))
        for content in CONTENTS:
            assert "damaged" not in client.get(paths[content]).json()
            assert blob_path(data, content.sha256).stat().st_size == content.size
        disk.heal()
        for content in CONTENTS:
            assert client.get(f"{paths[content]}/content").content == content.data
            assert client.get(f"{paths[content]}/content", headers=RANGE).content == content.data[50:60]


def test_a_sqlite_that_can_not_be_read_for_a_while_is_damaged_no_longer_than_that(tmp_path: Path) -> None:
    disk, data = FailingDisk(tmp_path), tmp_path / "data"
    server = Server(tmp_path / "log", {"DATA": str(data), **disk.settings})
    with ended(server), client_of_owner(server.url, data) as client:

        def told() -> str:
            return client.get("/readyz").json()["checks"]["database"]["reason"] or ""

        sent = client.post("/me/files", params={"name": OTHER.name}, content=OTHER.data)
        disk.fail(reads=(f"{data}/uploader.db",))
        assert problem(client.get("/me/files"), 503, "unavailable")["retryable"]
        wait_for(lambda: "the database is damaged" in told())
        disk.heal()
        wait_for(lambda: not told())
        assert client.get("/me/files").json()["files"] == [sent.json()["file"]]


# Its first page is read, and then none for a while.
_CHECK = """
import os, re, sqlite3, sys
from pathlib import Path
from uploader.database import damage

path, faults, opened = Path(sys.argv[1]), Path(os.environ["UPLOADER_TEST_DISK"]), damage.opened

def opened_and_failing(*arguments):
    faults.unlink(missing_ok=True)
    connection = opened(*arguments)
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    faults.write_text(f"r 5 {path}")
    return connection

def say():
    try:
        print(damage.damage_of(path))
    except sqlite3.Error as error:
        print(error)

damage.opened = opened_and_failing
say()
damage._CODE = re.compile("no code ([0-9])")  # as of a page whose error SQLite does not tell
say()
faults.unlink()
damage.opened = opened
say()
"""


def test_a_check_of_a_sqlite_takes_no_error_of_the_disk_for_damage(
    anyio_backend: str, tmp_path: Path, sqlite_template: Path
) -> None:
    """Else a start would end its server, and have somebody bring back a copy."""
    disk, path = FailingDisk(tmp_path), tmp_path / "uploader.db"
    shutil.copy(sqlite_template, path)
    library, faults = disk.settings["TEST_PRELOAD"], disk.settings["TEST_DISK"]
    environment = os.environ | {"LD_PRELOAD": library, "UPLOADER_TEST_DISK": faults}
    checked = run_program([sys.executable, "-c", _CHECK, path], env=environment)
    assert checked.stdout == "the disk can't read it\nthe disk can't read it\n[]\n"
