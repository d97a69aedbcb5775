"""What `mv` does: one file or one folder gets another name, and nothing that has that name is mixed with it in silence."""

from uploader.cli.client.naming.words import Meaning, look_up, one_thing
from uploader.cli.client.showing.events import MovedFolder, Renamed
from uploader.cli.client.showing.reporters import Reporter
from uploader.cli.exits import EXIT_OK
from uploader.client import AmbiguousName, AsyncClient, ClientError


class InTheWay(ClientError):
    """There is something of this name."""

    code = "name-taken"


async def move_one(client: AsyncClient, reporter: Reporter, word: str, new_name: str, *, force: bool) -> int:
    """Rename it, or move it into a folder if the new name ends with a slash; the exit code."""
    found = one_thing(await look_up(client, word))
    if found.matches:
        raise AmbiguousName(f"{word!r} is a pattern: only one file or folder is moved at a time")
    name = _name_of(found)
    whole = new_name.lstrip("/") + name.rpartition("/")[2] if new_name.endswith("/") else new_name
    if not force and whole != name:
        await _check_free(client, whole, as_folder=not found.is_file)
    if found.folder is None:
        file = await client.rename(found.files[0].id, whole)
        reporter.show(Renamed(file, old_name=found.files[0].name))
    else:
        files = await client.move_folder(found.folder, whole)
        reporter.show(MovedFolder(f"{whole}/", found.folder, files))
    return EXIT_OK


def _name_of(found: Meaning) -> str:
    return found.files[0].name if found.folder is None else found.folder.rstrip("/")


async def _check_free(client: AsyncClient, name: str, *, as_folder: bool) -> None:
    """Raises InTheWay."""
    if (await client.page(prefix=f"{name}/", limit=1)).files:
        raise InTheWay(f"there is a folder {name}/ already: say {name + '/'!r} to move into it, or --force")
    if not as_folder and (files := await client.named(name)):
        raise InTheWay(
            f"there is a file {name!r} already ({files[0].id}): delete it first, or say --force to keep both"
        )
