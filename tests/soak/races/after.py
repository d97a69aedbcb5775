"""How it stands when rounds have ended, in a word for each: Alice's upload or file, then Bob's if he has any."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select

from tests.soak.races.rounds import ALICE, BOB, Round
from tests.support.layout import blob_path
from tests.support.maps import parsed_map
from uploader.bootstrap import Services
from uploader.database import models
from uploader.database.engine import Connection


@dataclass(frozen=True)
class _Rows:
    """The rows of a user under a name."""

    files: list[tuple[str, str]]  # MD5 and SHA-256
    uploads: list[tuple[str, str, str | None]]  # state, path and reason, the newest last


async def look(services: Services, rounds: Sequence[Round]) -> list[str]:
    """In the order of the rounds."""
    rows = await services.database.read(_read)
    standings = []
    for round_ in rounds:
        alice, bob = (_standing(services, round_, rows[user_id, round_.content.name]) for user_id in (ALICE, BOB))
        standings.append(alice if bob == "nothing" else f"{alice}, {bob}")
    return standings


async def _read(connection: Connection) -> dict[tuple[str, str], _Rows]:
    rows: dict[tuple[str, str], _Rows] = defaultdict(lambda: _Rows([], []))
    files, uploads = models.file.c, models.upload.c
    for user_id, name, *digests in await connection.execute(select(files.user_id, files.name, files.md5, files.sha256)):
        rows[user_id, name].files.append(tuple(digests))
    columns = (uploads.user_id, uploads.name, uploads.state, uploads.temp_path, uploads.close_reason)
    for user_id, name, *facts in await connection.execute(select(*columns).order_by(uploads.id)):
        rows[user_id, name].uploads.append(tuple(facts))
    return rows


def _standing(services: Services, round_: Round, rows: _Rows) -> str:
    open_uploads = [path for state, path, _ in rows.uploads if state == "OPEN"]
    if len(rows.files) + len(open_uploads) > 1:
        return f"{len(rows.files)} files and {len(open_uploads)} open uploads"
    if rows.files:
        return _file(services, round_, *rows.files[0])
    if open_uploads:
        present = parsed_map((services.settings.data / open_uploads[0] / "map").read_bytes()).present
        return f"open {[number for number, there in enumerate(present) if there]}"
    # One that became a file which was deleted since has no reason.
    return next((reason for _, _, reason in reversed(rows.uploads) if reason), "nothing")


def _file(services: Services, round_: Round, md5: str, sha256: str) -> str:
    """What is downloaded has to be what was hashed."""
    content = blob_path(services.settings.data, sha256).read_bytes()
    if (hashlib.md5(content).hexdigest(), hashlib.sha256(content).hexdigest()) != (md5, sha256):
        return "a file that is not what was hashed"
    return {round_.content.data: "file", round_.lie.data: "file of the lie"}.get(content, "a file of other bytes")
