"""`python -m tests.upgrades.make`: what the present version leaves in a data directory, as an archive beside this file."""

import json
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import httpx2

from tests.support.content import Content
from tests.support.layout import blob_path
from tests.support.process import Server, ended, owner_token, processes_in, run_cli, wait_for
from tests.support.rot import flip_bit
from tests.upgrades.held import DAMAGED, FILES, FLIPPED, FULL, OLD, OPEN, Held, pack
from uploader import __version__
from uploader.storage.local.chunks import MAP_RECORDS_OFFSET

_MONTH_SECONDS = 31 * 86_400


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        held = _fill(directory)
        (directory / "held.json").write_text(json.dumps(asdict(held), indent=2))
        archive = pack(__version__, directory)
    print(f"{archive}: {archive.stat().st_size:,} bytes")


def _fill(directory: Path) -> Held:
    data, clock, log = directory / "data", directory / "clock", directory / "log"
    settings = {"DATA": str(data), "FREE_SPACE_FLOOR": "0", "TEST_CLOCK": str(clock)}

    clock.write_text(str(-_MONTH_SECONDS))
    server = Server(log, settings)
    with ended(server):
        tokens = {"owner": owner_token(data)}
        for user_id in OPEN:
            tokens[user_id] = run_cli(settings, "token", "create", user_id).stdout.split()[-1]
        _send(server, tokens["alice"], OLD, OPEN["alice"][OLD])
        assert server.stop() == 0

    clock.write_text("0")
    server = Server(log, settings)
    with ended(server):
        for user_id, contents in FILES.items():
            for number, content in enumerate(contents):
                name = content.name if content not in contents[:number] else f"again {content.name}"
                _send(server, tokens[user_id], content, range(content.chunk_count), name)
        for user_id, uploads in OPEN.items():
            for content, chunks in uploads.items():
                if content != OLD:
                    _send(server, tokens[user_id], content, chunks[:-1] if content == FULL else chunks)
        usage = {user_id: _flushed_usage(server, user_id, token) for user_id, token in tokens.items()}
        damaged = _open(server, tokens["carol"], DAMAGED).json()["upload"]["id"]
        assert server.stop() == 0

    server = Server(log, settings | {"TEST_CRASH_AT": "chunk.after_record"})
    with ended(server):
        # The last one is recorded, and the server ends before it merges.
        with suppress(httpx2.TransportError):
            _send(server, tokens["bob"], FULL, OPEN["bob"][FULL][-1:])
        server.process.wait()
    wait_for(lambda: processes_in(data / "redis") == [])
    _damage(data, damaged)
    return Held(tokens, usage, damaged)


def _client(server: Server, token: str) -> httpx2.Client:
    return httpx2.Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"})


def _open(server: Server, token: str, content: Content, name: str | None = None) -> httpx2.Response:
    body = {"name": name or content.name, "size": content.size, "chunk_size": content.chunk_size}
    with _client(server, token) as client:
        return client.post(f"/files/{content.md5}", json=body)


def _send(server: Server, token: str, content: Content, chunks: "list[int] | range", name: str | None = None) -> None:
    if _open(server, token, content, name).json()["state"] == "complete":
        return
    with _client(server, token) as client:
        for number in chunks:
            response = client.put(f"/files/{content.md5}/chunks/{number}", content=content.chunk(number))
            assert response.status_code in (200, 201), response.text


def _flushed_usage(server: Server, user_id: str, token: str) -> dict[str, int]:
    chunks = [content.chunk(number) for content, held in OPEN.get(user_id, {}).items() for number in held]
    unfinished = sum(map(len, chunks)) - (len(FULL.chunk(OPEN["bob"][FULL][-1])) if user_id == "bob" else 0)
    with _client(server, token) as client:
        wait_for(lambda: client.get("/me/usage").json()["use_space_unfinished"] == unfinished)
        return dict(client.get("/me/usage").json())


def _damage(data: Path, upload_id: str) -> None:
    """A header of a map that is noise, and a byte of a blob that is another one."""
    (path,) = data.glob(f"temp/*/*/{upload_id}/map")
    with path.open("r+b") as chunk_map:
        chunk_map.write(b"\xa5" * MAP_RECORDS_OFFSET)
    flip_bit(blob_path(data, FLIPPED.sha256), bit=8 * (FLIPPED.size // 2))


if __name__ == "__main__":
    main()
