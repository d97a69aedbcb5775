"""Folders: names are paths, and what some of them have in common, up to a slash, is one."""

from dataclasses import dataclass

from uploader.domain.upload import File

# Where a list that is ordered by name goes on: a name, and the id of a file, because names repeat; of a folder it is empty.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Folder:
    """What lies below a prefix that ends with a slash."""

    name: str
    files: int
    bytes: int


def place_of(found: Folder | File) -> Place:
    return found.name, found.id if isinstance(found, File) else ""
