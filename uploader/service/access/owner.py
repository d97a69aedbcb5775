"""The owner: the administrator that the first start makes, whose token lies on disk."""

import os
from contextlib import suppress
from pathlib import Path

import aiofiles

from uploader.crashpoints import crash_point
from uploader.database.engine import Duplicate
from uploader.service.access.accounts import Accounts, new_token

OWNER = "owner"
OWNER_TOKEN_FILE = "owner.token"  # noqa: S105 (a file name)


async def owner_token(directory: Path, accounts: Accounts) -> str | None:
    """The owner's token, where it lies in `directory`; made if there are no tokens at all.

    The file comes first: a crash before the row leaves a token that the next start puts into force.
    """
    path = directory / OWNER_TOKEN_FILE
    if await accounts.tokens():
        return await _read_secret(path) if path.exists() else None
    if not path.exists():
        _write_secret(path, f"{new_token()}\n")
    crash_point("owner.after_token_file")
    token = await _read_secret(path)
    with suppress(Duplicate):  # another process starts at the same moment
        await accounts.add_token(token, OWNER, admin=True)
    return token


async def _read_secret(path: Path) -> str:
    async with aiofiles.open(path) as file:
        return (await file.read()).strip()


def _write_secret(path: Path, content: str) -> None:
    """Whole or not at all, for the owner's eyes only. Of two that write at once, the first one's stands."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    with suppress(FileExistsError):
        path.hardlink_to(draft)
    draft.unlink()
