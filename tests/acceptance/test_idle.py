"""A server that nobody asks for anything sleeps, with all that it has started."""

import time
from pathlib import Path

from tests.support.content import KIB, Content
from tests.support.process import Server, client_of_owner, ended, wait_for
from tests.support.sending import send
from tests.support.wakeups import descendants, slept

# It is about seven, and was above fifty. Looked at for two ticks of what looks most seldom, but for once a minute.
_MOST_A_SECOND, _LOOKED_AT_SECONDS = 25.0, 10.0


def test_an_idle_server_wakes_up_seldom_and_at_once_for_a_request(tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = Server(tmp_path / "log", {"DATA": str(data), "FREE_SPACE_FLOOR": "0"})
    with ended(server):
        processes = [server.process.pid, *descendants(server.process.pid)]
        assert len(processes) == 2, "with Valkey"

        def sleeps() -> bool:
            before, began = sum(slept(each).wakeups for each in processes), time.monotonic()
            wait_for(lambda: time.monotonic() > began + _LOOKED_AT_SECONDS)
            wakeups = sum(slept(each).wakeups for each in processes) - before
            return wakeups / (time.monotonic() - began) <= _MOST_A_SECOND

        wait_for(sleeps)
        with client_of_owner(server.url, data) as client:
            send(client, Content(3 * 64 * KIB, chunk_size=64 * KIB))
            wait_for(lambda: len(client.get("/me/files").json()["files"]) == 1)
        assert server.stop() == 0
