"""What `ls` does: one level of folders, or all of them, or what has some text in its name."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence

from uploader.cli.client.connecting import worst_of
from uploader.cli.client.naming.words import Meaning, look_up, told
from uploader.cli.client.showing.events import Listed, ListedFolder, Noted
from uploader.cli.client.showing.reporters import Reporter
from uploader.client import AsyncClient, ClientError, File, Folder, ServerTooOld


async def list_all(
    client: AsyncClient, reporter: Reporter, words: Sequence[str], *, recursive: bool, part: str | None
) -> int:
    """Tell of all that the words mean, or of all there is; the exit code."""
    codes = set()
    for word in words or ("",):
        try:
            found = await look_up(client, word) if word else Meaning("", folder="")
            if recursive or part is not None:
                async for file in found.all_files(client, part=part):
                    reporter.show(Listed(file))
            else:
                await _list_level(client, reporter, found)
        except ClientError as error:
            codes.add(told(reporter, word, error))
    return worst_of(codes)


async def _list_level(client: AsyncClient, reporter: Reporter, found: Meaning) -> None:
    try:
        async for each in _level(client, found):
            reporter.show(ListedFolder(each) if isinstance(each, Folder) else Listed(each))
    except ServerTooOld as error:
        reporter.show(Noted(f"{error.detail}: this is all that is below it"))
        async for file in client.files(found.folder):
            reporter.show(Listed(file))


async def _level(client: AsyncClient, found: Meaning) -> AsyncIterator[File | Folder]:
    for file in found.files:
        yield file
    for each in _matched(found.matches):
        yield each
    if found.folder is not None:
        async for below in client.level(found.folder):
            yield below


def _matched(matches: Iterable[tuple[str, File]]) -> list[File | Folder]:
    """Files that a pattern matched, and the folders that it matched with what is in them; by name."""
    found: list[File | Folder] = []
    folders: dict[str, list[File]] = defaultdict(list)
    for matched, file in matches:
        if matched == file.name:
            found.append(file)
        else:
            folders[matched].append(file)
    found += [Folder(name, len(files), sum(file.size for file in files)) for name, files in folders.items()]
    return sorted(found, key=lambda each: each.name.encode())
