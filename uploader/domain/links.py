"""A link, by which strangers get files of a user, or give some; the visitors of one, each a session and a stranger to the
others; and who calls: a user, or such a session.

`Caller` is the key of each look-up, limit and memory of uploads. It has no default, so that nothing forgets a part of it.
Refuses to know how a request shows who it is.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

LINK_ID_LENGTH = 32
_VISITORS = "visitors"
# Of a folder in which a link collects, with its slash, and of a name that a visitor sends: half of the longest name each
# (`names.py`), so that the longest name that is taken says nothing of the folder.
MAX_COLLECTING_BYTES = MAX_SENT_NAME_BYTES = 512


@dataclass(frozen=True, slots=True)
class Caller:
    """A user (`session` is empty), or a visitor of a link of that user."""

    user_id: str
    session: str

    @property
    def link_id(self) -> str | None:
        return link_of(self.session)

    @property
    def crowd(self) -> "Caller":
        """Return with whom a share is had of what strangers could use up for all: visitors of one user are one."""
        return Caller(self.user_id, _VISITORS) if self.session else self


def owner(user_id: str) -> Caller:
    """Return a user who calls for themself."""
    return Caller(user_id, "")


def session_word(link_id: str, session_id: str) -> str:
    """Return the word by which uploads and files name a session: it begins with the id of its link."""
    return link_id + session_id


def link_of(session: str) -> str | None:
    """Return the id of the link that a session is of; None of a user's own."""
    return session[:LINK_ID_LENGTH] or None


def hash_slug(slug: str) -> str:
    return hashlib.sha256(slug.encode(errors="surrogatepass")).hexdigest()


class LinkKind(StrEnum):
    DOWNLOAD = "download"
    UPLOAD = "upload"


class LinkEnd(StrEnum):
    """Why a link works no more, in the words of the API."""

    EXPIRED = "expired"
    REVOKED = "revoked"
    # As many visitors as it is for have downloaded.
    EXHAUSTED = "exhausted"
    # What it is to was deleted.
    DELETED = "deleted"


_ENDS = {end.value: end for end in LinkEnd}


def end_of(word: str | None) -> LinkEnd | None:
    """Return the end that a word stands for; of a damaged row it has ended, too."""
    return None if word is None else _ENDS.get(word, LinkEnd.REVOKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of a link; None: only those of its owner."""

    max_downloads: int | None = None
    max_files: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(Limits):
    """One row of `link`: to the file `file_id`, or else to the folder `name`, with a slash at its end."""

    id: str
    user_id: str
    # For its owner what its URL ends in; in its row that is encrypted, or empty where it is derived.
    slug: str = field(repr=False)
    slug_sha256: str = field(repr=False)
    kind: LinkKind
    # Of a file the one that it has now.
    name: str
    file_id: str | None
    label: str
    # A hash of it; None: it asks for none.
    password: str | None = field(repr=False)
    created_at: datetime
    expires_at: datetime
    ended: LinkEnd | None
    # What came, and is there; and of open uploads in full.
    downloads: int
    files: int
    bytes: int
    reserved_files: int
    reserved_bytes: int

    @property
    def folder(self) -> str | None:
        return self.name if self.file_id is None else None

    def end(self, now: datetime) -> LinkEnd | None:
        """Return why it works no more, for those who come now."""
        if self.ended is not None:
            return self.ended
        if self.expires_at <= now:
            return LinkEnd.EXPIRED
        if not self.has_room_for_names:  # made by an earlier version
            return LinkEnd.REVOKED
        if self.max_downloads is not None and self.downloads >= self.max_downloads:
            return LinkEnd.EXHAUSTED
        return None

    @property
    def has_room_for_names(self) -> bool:
        """Return whether the folder leaves room for each name that a visitor may send."""
        return self.kind is LinkKind.DOWNLOAD or len(self.name.encode()) <= MAX_COLLECTING_BYTES

    def takes(self, more_bytes: int, more_files: int) -> bool:
        """Return whether so much more may come by it. What takes the place of as much needs no room."""
        held_bytes, held_files = self.bytes + self.reserved_bytes, self.files + self.reserved_files
        has_bytes = self.max_bytes is None or more_bytes <= 0 or held_bytes + more_bytes <= self.max_bytes
        return has_bytes and (self.max_files is None or more_files <= 0 or held_files + more_files <= self.max_files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One row of `link_session`, with its link: `is_used` where its first download has counted, or it has sent anything."""

    session_id: str
    link: Link
    is_used: bool
    created_at: datetime
    expires_at: datetime

    @property
    def caller(self) -> Caller:
        return Caller(self.link.user_id, session_word(self.link.id, self.session_id))

    def link_end(self, now: datetime) -> LinkEnd | None:
        """Return why the link works no more for this visitor. A visitor whose download has counted goes on where others may
        not begin."""
        end = self.link.end(now)
        return None if end is LinkEnd.EXHAUSTED and self.is_used else end

    def end(self, now: datetime) -> LinkEnd | None:
        """Return why the visitor may begin nothing more."""
        end = self.link_end(now)
        return LinkEnd.EXPIRED if end is None and self.expires_at <= now else end


def is_slug_of(slug: str, link: Link) -> bool:
    """Tell in constant time."""
    return hmac.compare_digest(hash_slug(slug).encode(), link.slug_sha256.encode())
