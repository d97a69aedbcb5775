"""Where files of the server go below a directory here. What is decided by names alone is pure; `placed` asks the disk."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from uploader.client.errors import AmbiguousName, ClientError, InvalidName, LeadsOutside
from uploader.client.model import File
from uploader.client.transfers.names import checked_name, checked_path


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file of the server, and where it goes: a relative path with slashes, which may have what no name on a server has."""

    file: File
    path: str


Refused = tuple[Wanted, ClientError]


def sorted_out(wanted: Iterable[Wanted]) -> tuple[list[Wanted], list[Refused]]:
    """Those that can go where they are to go, each once; and the others, one for each path, and why.

    Refused are names that are no relative paths, paths that several files are to become, and files where others need a
    folder: nothing decides in silence which of them it is.
    """
    by_path: dict[str, dict[str, Wanted]] = defaultdict(dict)
    refused: list[Refused] = []
    for each in wanted:
        try:
            checked_name(each.file.name)
            checked = replace(each, path=checked_path(each.path))
        except InvalidName as error:
            refused.append((each, error))
        else:
            by_path[checked.path][each.file.id] = checked
    folders = {folder for path in by_path for folder in _folders_of(path)}
    kept = []
    for path, several in by_path.items():
        first = next(iter(several.values()))
        if len(several) > 1:
            refused.append((first, ambiguous(path, [each.file for each in several.values()])))
        elif path in folders:
            refused.append((first, AmbiguousName(f"{path!r} is a file and a folder; get {first.file.id} by its id")))
        else:
            kept.append(first)
    return kept, refused


def _folders_of(path: str) -> Iterable[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def ambiguous(name: str, files: Sequence[File]) -> AmbiguousName:
    """The error that tells how to choose one of them."""
    choices = ", ".join(
        f"{file.id} ({file.name}, {file.created_at:%Y-%m-%d %H:%M}, {file.size} bytes)" for file in files
    )
    return AmbiguousName(f"{len(files)} files are {name!r}; say which by its id: {choices}")


def placed(root: Path, path: str) -> Path:
    """The path below the root, whose directories are there now. Raises LeadsOutside, OSError.

    A symbolic link on the way may lead anywhere, so none is followed; the root itself was chosen by the caller.
    """
    root.mkdir(parents=True, exist_ok=True)
    directory = root
    *folders, last = path.split("/")
    for folder in folders:
        directory /= folder
        if directory.is_symlink():
            raise LeadsOutside(f"{directory} is a symbolic link: {path} would lead elsewhere")
        directory.mkdir(exist_ok=True)
    return directory / last
