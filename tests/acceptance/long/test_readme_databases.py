"""The section of docs/installation.md about MySQL and Redis, word for word but for the ports, on real servers."""

import re
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import text

from tests.support.content import KIB, Content
from tests.support.process import UPLOADER, Process, answers, client_of_owner, ended, wait_for
from tests.support.sending import put, send
from tests.support.servers import PrivateDatabase, PrivateRedis, free_port
from tests.support.waiting import PATIENCE_SECONDS
from uploader.database.engine import Database

PAGE = Path(__file__).parents[3] / "docs/installation.md"
CONTENT = Content(300 * KIB)


def blocks() -> dict[str, list[str]]:
    """The lines of the section's blocks of code, by their language."""
    section = PAGE.read_text().split("\n## With MySQL and Redis\n", 1)[1].split("\n## ", 1)[0]
    return {kind: code.splitlines() for kind, code in re.findall(r"```(\w+)\n(.*?)```", section, flags=re.DOTALL)}


async def test_the_section_of_mysql_is_true(
    own_server: PrivateDatabase, own_redis: PrivateRedis, tmp_path: Path
) -> None:
    server = Database(own_server.url("mysql"))
    async with server.engine.connect() as connection:
        for statement in blocks()["sql"]:
            await connection.execute(text(statement.rstrip(";")))
    await server.close()

    *exports, upgrade, serve, work = (line.split("  #")[0].rstrip() for line in blocks()["bash"])
    assert (upgrade, serve.split()[:2], work) == ("uploader db upgrade", ["uploader", "serve"], "uploader work")
    ports = {"@127.0.0.1/": f"@127.0.0.1:{own_server.port}/", "127.0.0.1:6379": f"127.0.0.1:{own_redis.port}"}
    for usual, here in ports.items():
        assert sum(usual in line for line in exports) == 1
        exports = [line.replace(usual, here) for line in exports]
    port = free_port()
    exports += [f"export UPLOADER_PORT={port} UPLOADER_QUIET_INTERVAL=100ms"]

    with ExitStack() as terminals:

        def typed(command: str) -> Process:
            """A command, typed in a terminal of its own in which the settings were exported."""
            lines = [f"cd {tmp_path}", f"PATH={UPLOADER.parent}:$PATH", *exports, f"exec {command}"]
            process = Process(tmp_path / f"{command.split()[1]}.log", {}, program=("bash", "-ec", "\n".join(lines)))
            terminals.enter_context(ended(process))
            return process

        migrating = typed(upgrade)
        assert migrating.process.wait(timeout=PATIENCE_SECONDS) == 0, migrating.output()
        assert "the database is at revision" in migrating.output()
        serving, working = typed(serve), typed(work)
        wait_for(lambda: answers(port) or serving.process.poll() is not None)
        assert serving.process.poll() is None, serving.output()

        with client_of_owner(f"http://127.0.0.1:{port}", tmp_path / "data") as client:
            last = CONTENT.chunk_count - 1
            send(client, CONTENT, range(last))
            received = last * CONTENT.chunk_size
            # The worker's, since the server runs no jobs.
            wait_for(lambda: client.get("/me/usage").json()["use_space_unfinished"] == received)
            file = put(client, CONTENT, (last,)).json()["file"]
            assert client.get(f"/me/files/{file['id']}/content").content == CONTENT.data
        assert (serving.stop(), working.stop()) == (0, 0)
