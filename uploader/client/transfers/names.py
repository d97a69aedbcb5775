"""Names of files, as the server keeps them."""

import unicodedata

from uploader.client.errors import InvalidName
from uploader.domain.names import normalise_name


def checked_name(name: str | None) -> str:
    """The name as the server keeps it. Raises InvalidName, so that nothing is hashed for a name that is refused."""
    if name is None:
        raise InvalidName("what is uploaded has no name of its own: give one")
    try:
        return normalise_name(name)
    except ValueError as error:
        raise InvalidName(f"the name {name!r} {error}") from error


def checked_path(path: str) -> str:
    """A relative path that leads nowhere but below. Raises InvalidName."""
    path = unicodedata.normalize("NFC", path)
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidName(f"the path {path!r} is not a relative path without empty, '.' or '..' segments")
    return path


def folder_name(folder: str) -> str:
    """What the names of all files in it begin with: a slash at its end, but nothing for the folder of all."""
    folder = unicodedata.normalize("NFC", folder).rstrip("/")
    return f"{folder}/" if folder else ""
