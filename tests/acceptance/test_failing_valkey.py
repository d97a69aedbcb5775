"""The disk of the embedded Valkey's file fails: the server says so, and goes on by itself once the disk works."""

import os
import shutil
import time
from pathlib import Path

import httpx2
import pytest

from tests.support.content import KIB, Content
from tests.support.failing_disk import FailingDisk
from tests.support.process import Server, client_of_owner, ended, processes_in, run_cli, wait_for
from tests.support.sending import put, send
from uploader.domain import reasons

FILES = "/redis/appendonlydir/"
CONTENT = Content(200 * 64 * KIB)
# Long enough for a restart in vain.
LASTS_SECONDS = 15.0
# As promised: the longest pause before a restart, and the start.
RECOVERS_SECONDS = 60.0
# What each process says once: the first restart is news, too.
BEGINS, RESTARTS, ENDS = (
    "Redis refuses what it is asked",
    "embedded Valkey can't write, and is restarted",
    "Redis takes everything again",
)

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None and "CI" not in os.environ, reason="no compiler: gcc, libc6-dev"
)


def told(client: httpx2.Client) -> tuple[int, str]:
    ready = client.get("/readyz")
    return ready.status_code, ready.json()["checks"]["redis"]["reason"] or ""


@pytest.mark.parametrize(("call", "processes"), [("syncs", 1), ("syncs", 2), ("writes", 2)])
def test_valkey_is_restarted_until_its_disk_works_and_chunks_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, processes: int
) -> None:
    disk, data = FailingDisk(tmp_path), tmp_path / "data"
    # Of Valkey alone: a server of tests is a fork, which preloads nothing.
    monkeypatch.setenv("LD_PRELOAD", disk.settings["TEST_PRELOAD"])
    settings = {"DATA": str(data), "FREE_SPACE_FLOOR": "0", "WORKERS": str(processes)}
    settings["TEST_DISK"] = disk.settings["TEST_DISK"]
    server = Server(tmp_path / "log", settings)
    with ended(server), client_of_owner(server.url, data) as client:
        client.timeout = 60
        send(client, CONTENT, (0,))
        missing = list(range(1, CONTENT.chunk_count))

        def put_next() -> int:
            number = missing[0]
            answer = client.put(f"/files/{CONTENT.md5}/chunks/{number}", content=CONTENT.chunk(number))
            if answer.status_code == 200:
                missing.pop(0)
            else:
                assert (answer.status_code, answer.headers["retry-after"] > "0") == (503, True), answer.text
            return answer.status_code

        (first,) = processes_in(data / "redis")
        disk.fail(**{call: (FILES,)})
        wait_for(lambda: put_next() == 503)
        wait_for(lambda: told(client) == (503, reasons.spell([reasons.EMBEDDED_MISCONF()])))
        # On a busy machine it may look while Valkey is restarted.
        wait_for(lambda: reasons.EMBEDDED_MISCONF().what in run_cli(settings, "doctor").stdout)
        until, seen = time.monotonic() + LASTS_SECONDS, {first}
        while time.monotonic() < until:
            put_next()
            seen |= {*processes_in(data / "redis")}
            time.sleep(0.4)
        assert len(seen) > 1, "it was restarted"
        disk.heal()
        wait_for(lambda: put_next() == 200, RECOVERS_SECONDS)
        wait_for(lambda: told(client) == (200, ""))
        wait_for(lambda: server.output().count(ENDS) == server.output().count(BEGINS))
        said = server.output()
        assert 1 <= said.count(BEGINS) <= processes
        assert 1 <= said.count(RESTARTS) <= processes
        assert "is started again" not in said
        put(client, CONTENT, missing)
        wait_for(lambda: len(client.get("/me/files").json()["files"]) == 1)
        checked = run_cli(settings, "reconcile")
        assert (checked.returncode, checked.stdout.partition(",")[0]) == (0, "0 drifts"), checked.stdout
        assert server.stop() == 0
