"""`ls`, `rm`, `mv`, `trash`, `restore`, `usage`, `uploads` and `cancel`: commands for files on the server."""

import shlex
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import click

from uploader.cli.client import events
from uploader.cli.client.connection import run_client, with_client
from uploader.cli.client.names import (
    InTheWay,
    Meaning,
    NoSuchFile,
    complete_names,
    is_id,
    look_up,
    one_thing,
    one_thing_each,
    told,
)
from uploader.cli.client.options import shown_options
from uploader.cli.client.reporters import Reporter
from uploader.cli.terminal import EXIT_OK, EXIT_USAGE, fail
from uploader.client import AmbiguousName, AsyncClient, ClientError, DeletedFile, File, Folder, IfExists, ServerTooOld
from uploader.units import human_bytes


@click.command()
@click.argument("words", metavar="[NAME]...", nargs=-1, shell_complete=complete_names)
@click.option(
    "--recursive", "-r", is_flag=True, help="List all files below a folder, newest first, then empty folders."
)
@click.option("--versions", is_flag=True, help="List the earlier versions of files, too, with their ids.")
@click.option("--find", "part", metavar="TEXT", help="List files of all folders that have TEXT in their name.")
@with_client
async def ls(
    client: AsyncClient, reporter: Reporter, words: tuple[str, ...], recursive: bool, versions: bool, part: str | None
) -> int:
    """List files: id, date, size, name. Of a folder, or of all there is, one level, by name, with what is
    in the folders. NAME is a name, an id, a folder, or a pattern such as 'photos/*.jpg', in quotes.
    """
    codes = set()
    if versions and not words:
        fail("--versions is of files: name them", EXIT_USAGE)
    for word in words or ("",):
        try:
            if versions:
                await _list_versions(client, reporter, word)
                continue
            found = await look_up(client, word) if word else Meaning("", folder="")
            if recursive or part is not None:
                async for file in found.all_files(client, part=part):
                    reporter.show(events.Listed(file))
                async for folder in found.empty_folders(client):
                    if part is None or part in folder:
                        reporter.show(events.ListedFolder(Folder(folder, 0, 0)))
            else:
                await _list_level(client, reporter, found)
        except ClientError as error:
            codes.add(told(reporter, word, error))
    return events.worst_of(codes)


@click.command()
@click.argument("words", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_names)
@click.option("--recursive", "-r", is_flag=True, help="Delete folders with all that is in them.")
@click.option("--yes", is_flag=True, help="Really delete folders, and files that match patterns.")
@with_client
async def rm(client: AsyncClient, reporter: Reporter, words: tuple[str, ...], recursive: bool, yes: bool) -> int:
    """Delete files and folders. NAME is a name, an id, a folder, or a pattern in quotes.

    `uploader restore` brings deleted files back.

    Without --yes it deletes only files that are named, and else prints their number and size. Name files that share their
    name by their ids.
    """
    found, codes = await one_thing_each(client, reporter, words)
    removals: list[_Removal] = []
    for each in found:
        removals += [_Removal(each.folder)] if each.folder else [_Removal(file.name, file) for file in each.files]
        removals += [
            _Removal(name, file if name == file.name else None, by_pattern=True) for name, file in each.matches
        ]
    removals = list(dict.fromkeys(removals))
    if not recursive:
        for folder in [removal for removal in removals if removal.file is None]:
            removals.remove(folder)
            detail = f"{folder.name} is a folder: say -r to delete all that is in it"
            error = ClientError(detail, code="is-a-folder")
            codes.add(told(reporter, folder.name, error))
    if not yes and any(removal.file is None or removal.by_pattern for removal in removals):
        sizes: dict[str, int] = {}
        for removal in removals:
            below = [file async for file in client.files(removal.name)] if removal.file is None else [removal.file]
            sizes |= {file.id: file.size for file in below}
        count, size = events.count_of_files(len(sizes)), human_bytes(sum(sizes.values()))
        fail(f"this deletes {count}, {size}; say --yes", EXIT_USAGE)
    deleted = []
    for removal in removals:
        try:
            if removal.file is None:
                reporter.show(events.DeletedFolder(removal.name, await client.delete_folder(removal.name)))
            else:
                await client.delete(removal.file.id)
                reporter.show(events.Deleted(removal.file))
            deleted.append(removal.name)
        except ClientError as error:
            codes.add(told(reporter, removal.name, error))
    if deleted:
        await _note_restore(client, reporter, deleted[0], len(deleted))
    return events.worst_of(codes)


async def _note_restore(client: AsyncClient, reporter: Reporter, name: str, count: int) -> None:
    """Tell how to restore deleted files, if they are in the trash. Older servers have no trash."""
    with suppress(ClientError):
        async for file in client.deleted(name=None if name.endswith("/") else name):
            if file.name.startswith(name):
                others = " (and the others by their names)" if count > 1 else ""
                way = f"`uploader restore {shlex.quote(name)}` brings it back{others}"
                reporter.show(events.Noted(f"{way}, until {file.expires_at:%Y-%m-%d %H:%M}"))
            return


@click.command()
@click.argument("name", shell_complete=complete_names)
@click.argument("new_name", shell_complete=complete_names)
@click.option("--force", is_flag=True, help="Move it even if NEW_NAME exists; both stay, what is moved with a number.")
@with_client
async def mv(client: AsyncClient, reporter: Reporter, name: str, new_name: str, force: bool) -> int:
    """Rename or move a file or a folder. Folders are what names have before a `/`; a NEW_NAME that ends with a `/` is the
    folder to move it into."""
    found = one_thing(await look_up(client, name))
    if found.matches:
        raise AmbiguousName(f"{name!r} is a pattern: only one file or folder is moved at a time")
    old = found.files[0].name if found.folder is None else found.folder.rstrip("/")
    whole = new_name.lstrip("/") + old.rpartition("/")[2] if new_name.endswith("/") else new_name
    if not force and whole != old:
        if await client.has_folder(whole):
            into = f"say {whole + '/'!r} to move into it, or --force"
            raise InTheWay(f"there is a folder {whole}/ already: {into}")
        if found.is_file and (files := await client.named(whole)):
            which = f"there is a file {whole!r} already ({files[0].id})"
            raise InTheWay(f"{which}: delete it first, or say --force to keep both")
    if_exists: IfExists = "keep" if force else "fail"
    if found.folder is None:
        file = await client.rename(found.files[0].id, whole, if_exists=if_exists)
        reporter.show(events.Renamed(file, old_name=old))
    else:
        moved = await client.move_folder(found.folder, whole, if_exists=if_exists)
        reporter.show(events.MovedFolder(f"{whole}/", found.folder, moved))
    return EXIT_OK


@click.command()
@with_client
async def usage(client: AsyncClient, reporter: Reporter) -> int:
    """Show used and free space."""
    reporter.show(events.ListedUsage(await client.usage()))
    return EXIT_OK


async def _list_versions(client: AsyncClient, reporter: Reporter, word: str) -> None:
    """Raises NoSuchFile, ClientError."""
    earlier = [file async for file in client.deleted(name=word)]
    present = await client.named(word)
    if not (present or earlier):
        raise NoSuchFile(f"there is no file {word!r}, and no earlier version of it")
    for file in present:
        reporter.show(events.Listed(file))
    for version in earlier:
        reporter.show(events.ListedDeleted(version))


@click.command()
@click.argument("words", metavar="NAME...", nargs=-1, required=True)
@click.option("--version", "version_id", metavar="ID", help="Restore this version, in the place of the present file.")
@with_client
async def restore(client: AsyncClient, reporter: Reporter, words: tuple[str, ...], version_id: str | None) -> int:
    """Restore deleted files. NAME is a name, a folder with a `/` at its end, or an id of `uploader trash`.

    Of a name the version that was deleted last comes back, unless a file has the name. An earlier version takes its place
    with --version and its id, as `uploader ls --versions NAME` lists them; the present file goes to the trash then.
    """
    if version_id is not None and len(words) > 1:
        fail("--version is of one file", EXIT_USAGE)
    codes = set()
    for word in words:
        try:
            deleted = await _deleted_by(client, word, version_id)
            if version_id is not None:
                reporter.show(events.Restored(await client.restore(version_id, if_exists="replace")))
                continue
            names = {file.id: file.name for file in deleted}
            async for file_id, outcome in client.restore_many(names):
                if isinstance(outcome, ClientError):
                    codes.add(told(reporter, names[file_id], outcome))
                else:
                    reporter.show(events.Restored(outcome))
        except ClientError as error:
            codes.add(told(reporter, word, error))
    return events.worst_of(codes)


async def _deleted_by(client: AsyncClient, word: str, version_id: str | None) -> list[DeletedFile]:
    """Find the deleted files that a word names, the latest version of each name. Raises NoSuchFile, ClientError."""
    folder = word if word.endswith("/") else None
    found: dict[str, DeletedFile] = {}
    async for file in client.deleted(name=None if folder or is_id(word) else word):
        if version_id is not None and file.id == version_id:
            return [file]
        is_meant = file.name.startswith(folder) if folder else word in (file.name, file.id)
        if version_id is None and is_meant:
            found.setdefault(file.name, file)
    if not found:
        what = f"version {version_id} of {word!r}" if version_id else repr(word)
        raise NoSuchFile(f"the trash has no {what}")
    return list(found.values())


@click.group(invoke_without_command=True)
@shown_options
@click.pass_context
def trash(context: click.Context, /, **shown: Any) -> None:
    """List deleted files, or remove them for good. Replaced files are included: id, when it was, size, name, and until when
    `uploader restore` brings them back; the latest first."""
    if context.invoked_subcommand is None:

        async def work(client: AsyncClient, reporter: Reporter) -> int:
            async for file in client.deleted():
                reporter.show(events.ListedDeleted(file))
            return EXIT_OK

        run_client(work, **shown)


@trash.command()
@click.option("--yes", is_flag=True, help="Really do it.")
@with_client
async def empty(client: AsyncClient, reporter: Reporter, yes: bool) -> int:
    """Remove all deleted files for good."""
    sizes = [file.size async for file in client.deleted()]
    if not yes:
        fail(
            f"this removes {events.count_of_files(len(sizes))}, {human_bytes(sum(sizes))}, for good; say --yes",
            EXIT_USAGE,
        )
    await client.empty_trash()
    reporter.show(events.EmptiedTrash(len(sizes)))
    return EXIT_OK


async def _list_level(client: AsyncClient, reporter: Reporter, found: Meaning) -> None:
    for each in (*found.files, *_matched(found.matches)):
        reporter.show(_listed(each))
    if found.folder is None:
        return
    try:
        async for below in client.level(found.folder):
            reporter.show(_listed(below))
    except ServerTooOld as error:
        reporter.show(events.Noted(f"{error.detail}: this is all that is below it"))
        async for file in client.files(found.folder):
            reporter.show(events.Listed(file))


def _listed(each: File | Folder) -> events.Listed | events.ListedFolder:
    return events.ListedFolder(each) if isinstance(each, Folder) else events.Listed(each)


def _matched(matches: Iterable[tuple[str, File]]) -> list[File | Folder]:
    """Return matched files, and matched folders with number and size of their files; sorted by name."""
    found: list[File | Folder] = []
    folders: dict[str, list[File]] = defaultdict(list)
    for matched, file in matches:
        if matched == file.name:
            found.append(file)
        else:
            folders[matched].append(file)
    found += [Folder(name, len(files), sum(file.size for file in files)) for name, files in folders.items()]
    return sorted(found, key=lambda each: each.name.encode())


class _Removal(NamedTuple):
    """A file, or a folder with all its files (the name ends with a slash)."""

    name: str
    file: File | None = None
    by_pattern: bool = False


@click.command()
@with_client
async def uploads(client: AsyncClient, reporter: Reporter) -> int:
    """List your open uploads. Those of other devices are included: id, progress, expiry, name."""
    for upload in await client.uploads():
        reporter.show(events.ListedUpload(upload))
    return EXIT_OK


@click.command()
@click.argument("names_or_ids", metavar="NAME_OR_ID...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Cancel all open uploads.")
@shown_options
def cancel(names_or_ids: tuple[str, ...], everything: bool, **shown: Any) -> None:
    """Cancel open uploads. Their bytes are deleted, and their space is free again."""
    if everything == bool(names_or_ids):
        fail("name the uploads, or say --all", EXIT_USAGE)

    async def work(client: AsyncClient, reporter: Reporter) -> int:
        opened = await client.uploads()
        chosen = opened if everything else [each for each in opened if {each.id, each.name} & set(names_or_ids)]
        codes, known = set(), {word for upload in opened for word in (upload.id, upload.name)}
        for missing in [word for word in names_or_ids if word not in known]:
            codes.add(events.exit_code_of(ClientError()))
            reporter.show(events.Failed(missing, "upload-not-found", "there is no such open upload", retryable=False))
        for upload in chosen:
            try:
                await client.cancel(upload.id)
            except ClientError as error:
                codes.add(events.exit_code_of(error))
                reporter.show(events.failed(upload.name, error))
            else:
                reporter.show(events.CancelledUpload(upload))
        return events.worst_of(codes)

    run_client(work, **shown)
