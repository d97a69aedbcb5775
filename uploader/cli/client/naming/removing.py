"""What `rm` does: find what is meant, make sure that it is meant, and delete it."""

from collections.abc import Sequence
from dataclasses import dataclass

from uploader.cli.client.connecting import worst_of
from uploader.cli.client.naming.words import Meaning, one_thing_each, told
from uploader.cli.client.showing.events import Deleted, DeletedFolder
from uploader.cli.client.showing.reporters import Reporter
from uploader.cli.exits import EXIT_USAGE, fail
from uploader.cli.readable import human_bytes
from uploader.client import AsyncClient, ClientError, File


class IsFolder(ClientError):
    """It is a folder."""

    code = "is-a-folder"


@dataclass(frozen=True, slots=True)
class _Removal:
    """A file, or with a slash at the end of its name all that is in a folder."""

    name: str
    file: File | None = None
    by_pattern: bool = False


async def remove_all(
    client: AsyncClient, reporter: Reporter, words: Sequence[str], *, recursive: bool, sure: bool
) -> int:
    """Delete what the words mean; the exit code. To delete what was not named file by file one has to be sure."""
    found, codes = await one_thing_each(client, reporter, words)
    removals = list(dict.fromkeys(removal for each in found for removal in _removals(each)))
    if not recursive:
        for folder in [each for each in removals if each.file is None]:
            removals.remove(folder)
            error = IsFolder(f"{folder.name} is a folder: say -r to delete all that is in it")
            codes.add(told(reporter, folder.name, error))
    if not sure and any(each.file is None or each.by_pattern for each in removals):
        await _refuse(client, removals)
    for removal in removals:
        try:
            await _remove(client, reporter, removal)
        except ClientError as error:
            codes.add(told(reporter, removal.name, error))
    return worst_of(codes)


def _removals(found: Meaning) -> list[_Removal]:
    if found.folder is not None:
        return [_Removal(found.folder)]
    files = [_Removal(file.name, file) for file in found.files]
    return files + [
        _Removal(matched, file if matched == file.name else None, by_pattern=True) for matched, file in found.matches
    ]


async def _refuse(client: AsyncClient, removals: Sequence[_Removal]) -> None:
    sizes: dict[str, int] = {}
    for removal in removals:
        below = [file async for file in client.files(removal.name)] if removal.file is None else [removal.file]
        sizes |= {file.id: file.size for file in below}
    files = "1 file" if len(sizes) == 1 else f"{len(sizes)} files"
    fail(f"this deletes {files}, {human_bytes(sum(sizes.values()))}; say --yes", EXIT_USAGE)


async def _remove(client: AsyncClient, reporter: Reporter, removal: _Removal) -> None:
    if removal.file is None:
        reporter.show(DeletedFolder(removal.name, await client.delete_folder(removal.name)))
        return
    await client.delete(removal.file.id)
    reporter.show(Deleted(removal.file))
