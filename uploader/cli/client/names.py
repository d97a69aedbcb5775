"""Finds the file, the folder or the files of a pattern that a word names on the server, and completes such words. Never
chooses if a word is ambiguous: the error lists the ids to choose from.
"""

import asyncio
import unicodedata
from collections.abc import AsyncIterator, Sequence

import click
from click.shell_completion import CompletionItem
from msgspec import Struct

from uploader.cli.client.connection import Profile, load_profile
from uploader.cli.client.events import exit_code_of, failed
from uploader.cli.client.filters import Pattern, is_pattern
from uploader.cli.client.reporters import Reporter
from uploader.cli.terminal import shown
from uploader.client import AsyncClient, ClientError, File, Folder, Patience, errors
from uploader.client.files import ambiguous

_ID_LENGTH = 32

_SECONDS = 2.0
_MOST = 1000


class NoSuchFile(ClientError):
    """There is no such file."""

    code = "file-not-found"


class Meaning(Struct, frozen=True):
    """Everything that a word may mean: the files with this name or id, newest first; the folder with this name (final
    slash); the matches of a pattern, as matching part and file."""

    word: str
    files: Sequence[File] = ()
    folder: str | None = None
    pattern: Pattern | None = None
    matches: Sequence[tuple[str, File]] = ()

    @property
    def is_file(self) -> bool:
        return bool(self.files)

    @property
    def base(self) -> str:
        """The folder that contains the result; it is cut off the names for local paths."""
        if self.pattern is not None:
            return self.pattern.base
        if self.folder == "":
            return ""
        name = self.folder.rstrip("/") if self.folder else self.files[0].name
        return name[: name.rfind("/") + 1]

    async def all_files(self, client: AsyncClient, *, part: str | None = None) -> AsyncIterator[File]:
        """Yield all files; with `part`, only those with this text in their names."""
        for file in [*self.files, *(file for _, file in self.matches)]:
            if part is None or part in file.name:
                yield file
        if self.folder is not None:
            async for file in client.files(self.folder, part=part):
                yield file

    async def empty_folders(self, client: AsyncClient) -> AsyncIterator[str]:
        """Yield the empty folders."""
        if self.folder is not None:
            async for name in client.empty_folders(self.folder or None):
                yield name


def is_id(word: str) -> bool:
    return len(word) == _ID_LENGTH and set(word) <= set("0123456789abcdef")


async def look_up(client: AsyncClient, word: str) -> Meaning:
    """Raises NoSuchFile, ClientError."""
    if is_id(word):
        try:
            return Meaning(word, [await client.file(word)])
        except errors.NotFound:
            pass  # it may still be a name
    name = unicodedata.normalize("NFC", word)
    found = await _matching(client, name) if is_pattern(name) else await _named(client, name)
    if not (found.files or found.folder or found.matches):
        kind = "folder" if word.endswith("/") else "file"
        raise NoSuchFile(f"nothing matches {word!r}" if is_pattern(name) else f"there is no {kind} {word!r}")
    return found


async def _named(client: AsyncClient, name: str) -> Meaning:
    folder = name.rstrip("/") + "/"
    files = [] if name.endswith("/") or not name else await client.named(name)
    has_folder = folder != "/" and await client.has_folder(folder)
    return Meaning(name, files, folder if has_folder else None)


async def _matching(client: AsyncClient, name: str) -> Meaning:
    pattern = Pattern(name)
    matches = [
        (matched, file)
        async for file in client.files(pattern.prefix or None)
        if (matched := name if file.name == name else pattern.match(file.name)) is not None
    ]
    if matches and all(file.name == name for _, file in matches):
        return Meaning(name, [file for _, file in matches])  # a name that only looks like a pattern
    return Meaning(name, pattern=pattern, matches=matches)


def one_thing(found: Meaning) -> Meaning:
    """Return the meaning if it is unambiguous. Raises AmbiguousName."""
    if len(found.files) > 1:
        raise ambiguous(found.word, found.files)
    if found.files and found.folder:
        choice = f"say {found.folder!r}, or for the file {found.files[0].id}"
        raise errors.AmbiguousName(f"{found.word!r} is a folder, too: {choice}")
    literal = [file for matched, file in found.matches if file.name == matched == found.word]
    if literal:
        raise errors.AmbiguousName(
            f"{found.word!r} is a pattern, and the name of a file, too: for the file say {literal[0].id}"
        )
    return found


async def one_thing_each(
    client: AsyncClient, reporter: Reporter, words: Sequence[str]
) -> tuple[list[Meaning], set[int]]:
    """Look up each word. Report missing and ambiguous words, and return their exit codes."""
    found, codes = [], set()
    for word in dict.fromkeys(words):
        try:
            found.append(one_thing(await look_up(client, word)))
        except ClientError as error:
            codes.add(told(reporter, word, error))
    return found, codes


def told(reporter: Reporter, word: str, error: ClientError) -> int:
    """Report an error that concerns one word; return the exit code. Raises errors that would repeat for all words."""
    if isinstance(error, errors.Unauthenticated | errors.Unreachable):
        raise error
    reporter.show(failed(word, error))
    return exit_code_of(error)


class InTheWay(ClientError):
    """There is something of this name."""

    code = "name-taken"


def complete_names(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem[str]]":
    folder, found = incomplete[: incomplete.rfind("/") + 1], list["Folder | File"]()

    async def look(profile: Profile) -> None:
        patience = Patience(give_up_after_seconds=0)
        async with asyncio.timeout(_SECONDS), AsyncClient(profile.url, profile.token, patience=patience) as client:
            async for each in client.level(folder):
                found.append(each)
                if len(found) == _MOST:
                    return

    try:
        if profile := load_profile():
            asyncio.run(look(profile))
    except (ClientError, OSError, ValueError):
        return []  # messages would disturb a user who is typing
    names = [each.name for each in found if each.name.startswith(incomplete)]
    # Leave out names with hidden characters: shells print candidates unescaped, and split them into lines.
    return [CompletionItem(name, is_name=True) for name in names if name == shown(name)]
