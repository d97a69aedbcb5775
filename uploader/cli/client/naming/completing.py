"""What is on the server, for the completion of names: one level of it, and nothing where that does not come at once."""

import asyncio
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from uploader.client import File, Folder

_SECONDS = 2.0
_MOST = 1000


def complete_names(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem[str]]":
    """The files and folders that may be meant."""
    from uploader.client import ClientError

    try:
        found = asyncio.run(_level(incomplete[: incomplete.rfind("/") + 1]))
    except (ClientError, OSError, TimeoutError, ValueError):
        return []  # whoever types a command is in no mood for messages
    return [CompletionItem(each.name, is_name=True) for each in found if each.name.startswith(incomplete)]


async def _level(folder: str) -> "list[Folder | File]":
    from uploader.cli.client.profile import load_profile
    from uploader.client import AsyncClient, Patience

    profile, found = load_profile(), list["Folder | File"]()
    if profile is None:
        return found
    async with (
        asyncio.timeout(_SECONDS),
        AsyncClient(profile.url, profile.token, patience=Patience(give_up_after_seconds=0)) as client,
    ):
        async for each in client.level(folder):
            found.append(each)
            if len(found) == _MOST:
                break
    return found
