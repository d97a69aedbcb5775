"""What the caller has on the server already, under the names that are to be uploaded; and what is unchanged of it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import takewhile

from uploader.client.api import Api
from uploader.client.many.files import LocalFile
from uploader.client.model import File, IfExists
from uploader.client.transfers.plan import moment_of

_PAGE_FILES = 1000
# A page costs a server about as much as so many small files; more of them are not worth what they may spare.
_FILES_OF_A_PAGE = 100
_FIRST_PAGES = 4
_MOST_PREFIXES = 4
# What is lost of a time on its way: decimals that a file system or a database has not.
_SAME_TIME = timedelta(milliseconds=1)


class There:
    """Files of the caller by their names. Some may be missing: they are sent, and the server says that it has them."""

    def __init__(self, files: Iterable[File], if_exists: IfExists) -> None:
        self._by_name: dict[str, list[File]] = defaultdict(list)
        for file in files:
            self._by_name[file.name].append(file)
        self._alone = if_exists == "replace"

    def candidates(self, name: str, size: int) -> Sequence[File]:
        """Those that a file of this name and size may be: then nothing has to be done for it."""
        files = self._by_name.get(name, ())
        if self._alone and len(files) > 1:
            return ()  # the others have to go
        return [file for file in files if file.size == size and not file.damaged]

    def replaced_by(self, file: File) -> Sequence[File]:
        """Those that are gone now that this one is there."""
        if not self._alone:
            return ()
        return [other for other in self._by_name.get(file.name, ()) if other.id != file.id]

    def unchanged(self, local: LocalFile) -> File | None:
        """The file that this one is, by name, size and time of modification."""
        for file in self.candidates(local.name, local.size):
            if _is_same_time(file, local.modified_ns):
                return file
        return None


def _is_same_time(file: File, modified_ns: int) -> bool:
    here, there = moment_of(modified_ns), file.modified_at
    if here is None or there is None:
        return False
    return abs(here - there) <= _SAME_TIME or here.replace(microsecond=0) == there


async def read_target(api: Api, names: Sequence[str], if_exists: IfExists) -> There:
    """Ask the server once, in at most as many questions as it would be worth."""
    found: list[File] = []
    pages_left = _FIRST_PAGES + len(names) // _FILES_OF_A_PAGE
    for prefix in prefixes_of(names):
        async for page in api.pages(prefix or None, _PAGE_FILES):
            found += page.files
            pages_left -= 1
            if pages_left <= 0:
                return There(found, if_exists)
    return There(found, if_exists)


def prefixes_of(names: Sequence[str]) -> list[str]:
    """With what all names begin: each by itself if they are few, or in few folders, as others may lie between."""
    shared = _beginning(names)
    folder = shared[: shared.rfind("/") + 1]
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[name[len(folder) :].partition("/")[0]].append(name)
        if len(groups) > _MOST_PREFIXES:
            return [shared]
    return [_beginning(group) for group in groups.values()]


def _beginning(names: Sequence[str]) -> str:
    """Character by character: what the first and the last in order share, all between them share."""
    first, last = min(names, default=""), max(names, default="")
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(character for character, _ in same)
