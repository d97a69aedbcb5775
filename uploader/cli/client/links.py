"""`share`, `links` and `unshare`: commands for the user's own links. Also the use of another user's link by `put`
and `get`.
"""

import os
import sys
from datetime import UTC, datetime, timedelta
from typing import NoReturn

import click

from uploader.cli.client import events
from uploader.cli.client.connection import with_client
from uploader.cli.client.names import Meaning, complete_names, told
from uploader.cli.client.reporters import Reporter
from uploader.cli.terminal import DURATION, EXIT_OK, EXIT_USAGE, SIZE, ask, fail
from uploader.client import AsyncClient, ClientError, LinkFacts, errors
from uploader.client.links import LinkAddress, link_address
from uploader.client.plan import checked_name

# Not an argument, because other users of the machine can see arguments.
_PASSWORD_VARIABLE = "UPLOADER_LINK_PASSWORD"  # noqa: S105


@click.command()
@click.argument("name", shell_complete=complete_names)
@click.option("--upload", is_flag=True, help="Let others upload into this folder, and see nothing of it.")
@click.option(
    "--expires",
    "lifetime_seconds",
    type=DURATION,
    metavar="DURATION",
    help="How long it works, such as 7d.",
)
@click.option("--password", "asks", is_flag=True, help="Ask for a password.")
@click.option("--label", help="What its page says.")
@click.option("--max-bytes", type=SIZE, help="Most bytes it takes, with --upload.")
@click.option("--max-files", type=click.IntRange(1), metavar="N", help="Most files it takes, with --upload.")
@click.option("--max-downloads", type=click.IntRange(1), metavar="N", help="Most visitors that download.")
@with_client
async def share(
    client: AsyncClient,
    reporter: Reporter,
    name: str,
    upload: bool,
    lifetime_seconds: float | None,
    asks: bool,
    label: str | None,
    max_bytes: int | None,
    max_files: int | None,
    max_downloads: int | None,
) -> int:
    """Make a link to a file or a folder. Anyone with the URL, the last printed word, needs no account. A folder has
    a `/` at its end."""
    if upload and max_downloads is not None:
        fail("--max-downloads is of a link to download from", EXIT_USAGE)
    if not upload and (max_bytes is not None or max_files is not None):
        fail("--max-bytes and --max-files are of a link to upload into: say --upload", EXIT_USAGE)
    link = await client.make_link(
        f"{name.rstrip('/')}/" if upload else name,
        "upload" if upload else "download",
        label=label,
        expires_at=None if lifetime_seconds is None else datetime.now(UTC) + timedelta(seconds=lifetime_seconds),
        password=_asked(confirm=True) if asks else None,
        max_bytes=max_bytes,
        max_files=max_files,
        max_downloads=max_downloads,
    )
    reporter.show(events.MadeLink(link))
    return EXIT_OK


@click.command()
@with_client
async def links(client: AsyncClient, reporter: Reporter) -> int:
    """List your links, newest first."""
    for link in await client.links():
        reporter.show(events.ListedLink(link))
    return EXIT_OK


@click.command()
@click.argument("words", metavar="URL_OR_ID...", nargs=-1, required=True)
@with_client
async def unshare(client: AsyncClient, reporter: Reporter, words: tuple[str, ...]) -> int:
    """End links, and what runs by them."""
    own, codes = await client.links(), set[int]()
    by_word = {word: link for link in own for word in (link.id, _slug_of(link.url))}
    for word in dict.fromkeys(words):
        address = link_address(word)
        link = by_word.get(address.slug if address else word)
        try:
            if link is None:
                raise errors.NotFound(f"you have no link {word!r}", code="link-not-found", status=404)
            await client.revoke_link(link.id)
        except ClientError as error:
            codes.add(told(reporter, word, error))
        else:
            reporter.show(events.RevokedLink(link))
    return events.worst_of(codes)


def _slug_of(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]


# Links of other users


def link_of(word: str | None) -> LinkAddress | None:
    """Return the link that a word of `put` or `get` names, if any. A URL that is not a link is bad usage: as a name, it
    would make folders."""
    if word is None or not word.startswith(("http://", "https://")):
        return None
    address = link_address(word)
    return address if address is not None else fail(f"{word} is not the URL of a link: it ends in /s/…", EXIT_USAGE)


async def need(client: AsyncClient, kind: str) -> LinkFacts:
    """Return the facts of the client's link. Exits if the link is of another kind."""
    facts = await client.link()
    if facts is None or facts.kind != kind:
        _refuse_kind(kind)
    return facts


async def behind(client: AsyncClient) -> Meaning:
    """Return the file or folder behind the client's link; the folder's name becomes the word. Raises InvalidName."""
    facts = await need(client, "download")
    name = checked_name((facts.name or "download").rstrip("/"))
    if "/" in name:
        raise errors.InvalidName(f"the link's name {name!r} is no name of a file or a folder, but a path")
    page = await client.page(limit=2)
    # The facts name a folder without its slash, and hide the name if there is a password. A single file counts as the link's
    # file.
    if len(page.files) == 1 and page.next is None and facts.name in (None, page.files[0].name):
        return Meaning(name, page.files)
    return Meaning(f"{name}/", folder="")


def _refuse_kind(kind: str) -> NoReturn:
    other = (
        "to download from: `uploader get` takes it"
        if kind == "upload"
        else "to upload into: `uploader put --to` takes it"
    )
    fail(f"this link is one {other}", EXIT_USAGE)


def ask_password() -> str:
    """Return the password of a link, from the environment or the terminal."""
    return _asked(confirm=False)


def _asked(*, confirm: bool) -> str:
    if given := os.environ.get(_PASSWORD_VARIABLE):
        return given
    if not sys.stdin.isatty():
        fail(f"put the password of the link into {_PASSWORD_VARIABLE}", EXIT_USAGE)
    try:
        return ask("Password of the link", hidden=True, confirm=confirm)
    except click.Abort:
        sys.exit(events.EXIT_INTERRUPTED)
