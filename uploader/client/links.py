"""The calls of a visitor, who comes by a link without an account: the addresses below `/s/`, and a session. The
session's token is kept for the next run, because another session can't see its uploads."""

import errno
import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from uploader.client import model
from uploader.client.api import Api
from uploader.client.errors import NotFound, Unauthenticated, WrongPassword

if TYPE_CHECKING:
    import httpx2

    from uploader.client.transport import Transport

Password = str | Callable[[], str]

_ADDRESS = re.compile(r"(https?://[^?#]+?)/s/([A-Za-z0-9_-]{16,128})/?")


class LinkAddress(Struct, frozen=True):
    """The server, and the slug, in the URL of a link."""

    server: str
    slug: str

    @property
    def url(self) -> str:
        return f"{self.server}/s/{self.slug}"

    @property
    def path(self) -> str:
        return f"/s/{self.slug}"


def link_address(url: str) -> LinkAddress | None:
    """Read the URL of a link; None for any other text."""
    found = _ADDRESS.fullmatch(url.strip())
    return LinkAddress(found[1], found[2]) if found else None


class LinkApi(Api):
    """The calls of a visitor. A link to download from lists its files as the caller's; a link to upload into has none."""

    has_account = False

    def __init__(self, transport: "Transport", address: LinkAddress, facts: model.LinkFacts) -> None:
        super().__init__(transport)
        self.files_path = f"{address.path}/files"
        self.facts = facts

    async def link(self) -> model.LinkFacts:
        return self.facts

    async def page(
        self, after: str | None, prefix: str | None, limit: int, *, part: str | None = None, one_level: bool = False
    ) -> model.FilePage:
        if self.facts.kind == "upload":
            return model.FilePage([], None, [] if one_level else None)
        return await super().page(after, prefix, limit, one_level=one_level)

    async def file(self, file_id: str) -> model.File:
        async for page in self.pages(None, 1000):
            for file in page.files:
                if file.id == file_id:
                    return file
        raise NotFound("there is no such file behind this link", code="file-not-found", status=404)

    async def empty_folders(self, prefix: str | None, limit: int) -> AsyncIterator[str]:
        """Yield nothing: a link does not list empty folders."""
        none: Sequence[str] = ()
        for name in none:
            yield name

    def archive_once(self, file_ids: Sequence[str]) -> "AbstractAsyncContextManager[httpx2.Response]":
        """Raises NotFound: a link gives no archive of selected files."""
        raise NotFound("a link gives no archive of some of its files", code="not-found", status=404)


async def enter(transport: "Transport", address: LinkAddress, password: Password | None, *, remember: bool) -> LinkApi:
    """Open a session of the link, or resume a kept session. Raises WrongPassword, NotFound, ClientError.

    A function for the password is only called if the link has one.
    """
    api = Api(transport)
    path = _kept_path(address.url) if remember else None
    kept = None if path is None else _kept(path)
    if kept is not None and await _is_known(transport, address, kept):
        return LinkApi(transport, address, kept.facts)
    transport.use_token(None)
    facts = await api.link_facts(address.path)
    given = None
    if facts.has_password:
        if password is None:
            raise WrongPassword("the link has a password, and none was given", code="wrong-password", status=403)
        given = password() if callable(password) else password
    session = await api.open_session(address.path, given)
    transport.use_token(session.token)
    if facts.has_password:
        facts = await api.link_facts(address.path)
    if path is not None:
        _keep(path, Kept(session.token, session.expires_at, facts))
    return LinkApi(transport, address, facts)


class Kept(Struct, frozen=True):
    """A kept session, with the facts of its link: a used-up link goes on for its sessions."""

    token: str
    expires_at: model.Moment
    facts: model.LinkFacts


async def _is_known(transport: "Transport", address: LinkAddress, kept: Kept) -> bool:
    """Return whether a session of this link is still valid; then the transport has its token."""
    transport.use_token(kept.token)
    try:
        if kept.facts.kind == "upload":
            await Api(transport).uploads()
        else:
            await LinkApi(transport, address, kept.facts).page(None, None, 1)
    except (Unauthenticated, NotFound):
        return False
    return True


# Sessions are kept beside the token of `uploader login`, each in a file of its own.


def configuration_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory for a user's configuration (XDG Base Directory Specification; relative paths are ignored).
    Raises FileNotFoundError if the environment names none."""
    configured = Path(environment.get("XDG_CONFIG_HOME") or "")
    try:
        return (configured if configured.is_absolute() else Path.home() / ".config") / "uploader"
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "HOME is not set", "~/.config/uploader") from None


def _kept_path(url: str) -> Path | None:
    with suppress(FileNotFoundError):
        return configuration_directory() / "links" / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"
    return None


def _kept(path: Path) -> Kept | None:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    except (OSError, msgspec.MsgspecError):
        return None
    return kept if kept.expires_at > datetime.now(UTC) else None


def _keep(path: Path, kept: Kept) -> None:
    """Keep a session in a private file, if possible; remove expired ones."""
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in path.parent.glob("*.json"):
            if _kept(other) is None:
                other.unlink(missing_ok=True)
        write_secret(path, msgspec.json.encode(kept).decode())


def write_secret(path: Path, text: str) -> None:
    """Write a file that only the user can read, in place of an existing file. On Windows the directory decides about
    readers: in a user's own directory, the user and administrators can read. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(new, "x", encoding="utf-8", opener=partial(os.open, mode=0o600)) as opened:
        opened.write(text)
    new.replace(path)
