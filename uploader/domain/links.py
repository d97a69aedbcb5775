"""Links, by which strangers download files of a user or send files; the visitors of a link; and callers: a user or a
visitor.

Each visitor is a session of a link, and knows nothing of other visitors. `Caller` is the key for look-ups, limits and
caches of uploads. The fields have no defaults: code that forgets a field fails. Refuses to know how a request is
authenticated.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

LINK_ID_LENGTH = 32
_VISITORS = "visitors"
# Bytes of a collecting folder with its slash, and of a name that a visitor sends. Each has half of the longest name
# (`names.py`), so that the longest accepted name reveals nothing about the folder.
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
        """Return the caller for limits on shared memory: the visitors of a user's links share as one caller."""
        return Caller(self.user_id, _VISITORS) if self.session else self


def owner(user_id: str) -> Caller:
    """Return the caller of a user."""
    return Caller(user_id, "")


def session_word(link_id: str, session_id: str) -> str:
    """Return the key of a session in uploads and files. It begins with the id of the link."""
    return link_id + session_id


def link_of(session: str) -> str | None:
    """Return the id of the link of a session. None: the user's own uploads and files have no session."""
    return session[:LINK_ID_LENGTH] or None


def hash_slug(slug: str) -> str:
    return hashlib.sha256(slug.encode(errors="surrogatepass")).hexdigest()


class LinkKind(StrEnum):
    DOWNLOAD = "download"
    UPLOAD = "upload"


class LinkEnd(StrEnum):
    """Why a link no longer works, in the words of the API."""

    EXPIRED = "expired"
    REVOKED = "revoked"
    # As many visitors have downloaded as the link allows.
    EXHAUSTED = "exhausted"
    # The file or folder of the link was deleted.
    DELETED = "deleted"


_ENDS = {end.value: end for end in LinkEnd}


def end_of(word: str | None) -> LinkEnd | None:
    """Return the end for a word from a row. An unknown word, from a damaged row, counts as revoked."""
    return None if word is None else _ENDS.get(word, LinkEnd.REVOKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a link. None: only the limits of the owner apply."""

    max_downloads: int | None = None
    max_files: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(Limits):
    """One row of `link`. It leads to the file `file_id`, or to the folder `name`, which ends with a slash."""

    id: str
    user_id: str
    # The last segment of the URL, for the owner. The row has it encrypted; or empty, if the slug derives from the
    # secret.
    slug: str = field(repr=False)
    slug_sha256: str = field(repr=False)
    kind: LinkKind
    # For a link to a file: the present name of the file.
    name: str
    file_id: str | None
    label: str
    # The hash of the password. None: the link has no password.
    password: str | None = field(repr=False)
    created_at: datetime
    expires_at: datetime
    ended: LinkEnd | None
    # Files and bytes that came by the link and are still there; `reserved_*`: the full sizes of open uploads.
    downloads: int
    files: int
    bytes: int
    reserved_files: int
    reserved_bytes: int

    @property
    def folder(self) -> str | None:
        return self.name if self.file_id is None else None

    def end(self, now: datetime) -> LinkEnd | None:
        """Return why the link no longer works for new visitors; None if it works."""
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
        """Return whether the folder name leaves space for every name that a visitor may send."""
        return self.kind is LinkKind.DOWNLOAD or len(self.name.encode()) <= MAX_COLLECTING_BYTES

    def takes(self, more_bytes: int, more_files: int) -> bool:
        """Return whether the link takes this many more bytes and files. Replacing as much needs no space."""
        held_bytes, held_files = self.bytes + self.reserved_bytes, self.files + self.reserved_files
        has_bytes = self.max_bytes is None or more_bytes <= 0 or held_bytes + more_bytes <= self.max_bytes
        return has_bytes and (self.max_files is None or more_files <= 0 or held_files + more_files <= self.max_files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One row of `link_session`, with its link. `is_used`: the visitor's first download was counted, or the visitor has
    sent a file."""

    session_id: str
    link: Link
    is_used: bool
    created_at: datetime
    expires_at: datetime

    @property
    def caller(self) -> Caller:
        return Caller(self.link.user_id, session_word(self.link.id, self.session_id))

    def link_end(self, now: datetime) -> LinkEnd | None:
        """Return why the link no longer works for this visitor. A visitor whose download was counted may continue at a
        link that takes no new visitors."""
        end = self.link.end(now)
        return None if end is LinkEnd.EXHAUSTED and self.is_used else end

    def end(self, now: datetime) -> LinkEnd | None:
        """Return why the visitor may begin nothing more; None if they may."""
        end = self.link_end(now)
        return LinkEnd.EXPIRED if end is None and self.expires_at <= now else end


def is_slug_of(slug: str, link: Link) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(hash_slug(slug).encode(), link.slug_sha256.encode())
