"""The screenshots of the docs: `python -m tests.support.screenshots` takes them anew, of a real server in Chromium, and
records which pages they show."""

import asyncio
import contextlib
import hashlib
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import sqlalchemy as sa
from playwright.async_api import Browser, expect

import uploader
from tests.support.browser import Held, Visitor, running_chromium, visiting
from tests.support.content import KIB, MIB, Content
from tests.support.process import Server, client_of_owner, ended, owner_token
from tests.support.rows import digests
from tests.support.sites import a_file
from uploader.database import models
from uploader.service.ids import new_id

IMAGES = Path(__file__).parents[2] / "docs" / "images"
RECORD = IMAGES / "sources.txt"
# Of each image, the part of the pages that nothing else shows.
PARTS = {"admin-page.png": "admin", "web-page.png": "home"}
GIB = 1 << 30
# A picture of one pixel.
_GIF = bytes.fromhex("47494638396101000100800000000000ffffff2c00000000010001000002024401003b")
FILES = {
    "Annual report 2026.pdf": 385 * KIB,
    "backup-2026-11.tar.gz": 3 * MIB,
    "Budget.xlsx": 48 * KIB,
    "Cabin at the lake.gif": len(_GIF),
    "Holiday in Norway/fjord.jpg": 900 * KIB,
    "Holiday in Norway/hut.jpg": 700 * KIB,
    "Interview.mp4": 6 * MIB,
    "Letter to the council.docx": 32 * KIB,
    "Music/morning.mp3": 4 * MIB,
    "Projects/bridge/plan.svg": 12 * KIB,
}
USERS = ("design", "quality", "board", "films", "marketing", "bob", "carol", "archive", "lab", "press")


def digest_of(image: str) -> str:
    """Return the SHA-256 of the scripts, styles and texts of the pages that the image shows."""
    pages = Path(uploader.__file__).parent / "web" / "pages"
    shown = sorted([*pages.glob("*.*"), *(pages / PARTS[image]).rglob("*.*")])
    found = hashlib.sha256()
    for path in shown:
        found.update(f"{path.relative_to(pages).as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()


def record_of(directory: Path) -> str:
    """Return a line for each image: its SHA-256, that of the pages it shows, its name."""
    images = sorted(PARTS)
    lines = [
        f"{hashlib.sha256((directory / name).read_bytes()).hexdigest()} {digest_of(name)} {name}" for name in images
    ]
    return "\n".join(lines) + "\n"


async def take(browser: Browser, directory: Path) -> None:
    """Take all screenshots into a directory."""
    with tempfile.TemporaryDirectory() as made:
        there = Path(made)
        data = there / "data"
        server = Server(there / "log", {"DATA": str(data), "CHUNK_SIZE": str(MIB)}, "--no-jobs")
        with ended(server):
            with client_of_owner(server.url, data) as client:
                _fill(client, data)
            token = owner_token(data)
            size: dict[str, Any] = {"viewport": {"width": 1100, "height": 760}}
            async with (
                visiting(browser, server.url, token=token, color_scheme="light", **size) as visitor,
                _uploads(visitor, there),
            ):
                await visitor.page.screenshot(path=directory / "web-page.png")
            size = {"viewport": {"width": 1280, "height": 1500}}
            async with visiting(browser, server.url, color_scheme="light", **size) as visitor:
                await visitor.sign_in(token, "/admin/")
                await expect(visitor.page.locator("#users tbody tr")).to_have_count(len(USERS) + 1)
                await expect(visitor.page.locator("[aria-busy='true']")).to_have_count(0)
                await visitor.page.screenshot(path=directory / "admin-page.png")
            server.stop()  # and its Valkey, before their directory goes


@contextlib.asynccontextmanager
async def _uploads(visitor: Visitor, there: Path) -> AsyncIterator[None]:
    """Drop a film, a disk image and an album, of which a chunk passes now and then."""
    film = a_file(there / "film.mkv", Content(40 * MIB, seed=1))
    image = a_file(there / "disk image with a rather long name.iso", Content(24 * MIB, seed=2))
    for number in range(40):
        a_file(there / "album" / f"{number}.jpg", Content(200 * KIB, seed=number))
    chunks, batches = Held(), Held(1)
    await visitor.page.route("**/chunks/*", chunks)
    await visitor.page.route("**/files/batch*", batches)
    line = asyncio.create_task(_a_slow_line(chunks))
    try:
        await visitor.drop(film, image, there / "album")
        await expect(visitor.row(film.name, "uploading")).to_contain_text("MiB/s")
        await expect(visitor.row(image.name, "uploading")).to_be_visible()
        await expect(visitor.total).to_contain_text("MiB/s")
        yield
    finally:
        line.cancel()


async def _a_slow_line(chunks: Held) -> None:
    while True:
        chunks.let_pass(1)
        await asyncio.sleep(0.4)


def _fill(client: httpx2.Client, data: Path) -> None:
    """Give the owner files, and the server users and days of before. Their contents are rows alone, as nobody reads them."""
    for seed, (name, size) in enumerate(FILES.items()):
        content = _GIF if name.endswith(".gif") else Content(size, seed=seed).data
        client.post("/me/files", params={"name": name}, content=content).raise_for_status()
    engine = sa.create_engine(f"sqlite:///{data / 'uploader.db'}")
    with engine.begin() as connection:
        for table, rows in _rows():
            connection.execute(sa.insert(table), rows)
    engine.dispose()


def _rows() -> Iterator[tuple[sa.Table, list[dict[str, Any]]]]:
    chance, now = random.Random(58), datetime.now(UTC)
    users, files, blobs, uploads = [], [], dict[str, dict[str, Any]](), []
    for place, user_id in enumerate(USERS):
        mine = []
        for number in range(60):
            same = digests(f"{chance.randrange(400)}")
            blob = blobs.setdefault(
                same["sha256"], {**same, "size": chance.randrange(GIB // 2), "refs": 0, "created_at": now}
            )
            blob["refs"] += 1
            row = {"id": new_id(), "user_id": user_id, "name": f"{number}.bin", "size": blob["size"], **same}
            mine.append({**row, "instant": False, "created_at": now})
        opened = [
            {"size": size, "flushed_bytes": size // (number + 2)}
            for number, size in enumerate(chance.choices(range(GIB // 4, GIB, MIB), k=1 + place % 4))
        ]
        for facts in opened:
            row = {"id": new_id(), "user_id": user_id, "name": "film.mkv", "chunk_size": 8 * MIB, "state": "OPEN"}
            moments = {"created_at": now, "updated_at": now, "open_flag": 1}
            uploads.append({**row, **facts, **moments, "md5": digests(row["id"])["md5"], "temp_path": row["id"]})
        figures = {
            "total_space": 50 * GIB,
            "use_space_finished": sum(file["size"] for file in mine),
            "use_space_unfinished": sum(each["flushed_bytes"] for each in opened),
            "reserved": sum(each["size"] for each in opened),
        }
        users.append({"user_id": user_id, **figures, "files": len(mine) + len(opened)})
        files += mine
    yield models.user_info, users
    yield models.blob, list(blobs.values())
    yield models.file, files
    yield models.upload, uploads
    physical = sum(blob["size"] for blob in blobs.values())
    logical = sum(file["size"] for file in files)
    unfinished = sum(each["flushed_bytes"] for each in uploads)
    days = []
    for ago in range(1, 41):
        share = 1 - ago / 100 + chance.random() / 100
        facts = {"physical_bytes": int(physical * share), "logical_bytes": int(logical * share)}
        taken_at = now - timedelta(days=ago)
        days.append(
            {"day": taken_at.date(), "taken_at": taken_at, **facts, "use_space_unfinished": int(unfinished * share)}
        )
    yield models.usage_daily, days


async def _main() -> None:
    async with running_chromium() as browser:
        await take(browser, IMAGES)
    RECORD.write_text(record_of(IMAGES))


if __name__ == "__main__":
    asyncio.run(_main())
