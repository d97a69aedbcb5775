"""The finished files of an `Uploader` in Django: users, a storage, and a form field.

Django is synchronous here: a thread waits for the event loop of the uploader. So this module is for synchronous views
and `sync_to_async`. Refuses to run in an event loop, and without a running uploader, as in `manage.py`.
"""

import asyncio
import errno
import io
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from django import forms
from django.conf import settings
from django.contrib import auth
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.files.base import File as DjangoFile
from django.core.files.storage import Storage, storages
from django.db import close_old_connections
from django.forms.utils import flatatt
from django.http import HttpRequest, parse_cookie
from django.utils import timezone
from django.utils.functional import lazy
from django.utils.html import format_html, format_html_join
from django.utils.module_loading import import_string
from django.utils.translation import get_language, gettext

from uploader.asgi import File, FileHeld, FileNotFound, Folder, Identity, Uploader, UploadUnfinished
from uploader.errors import UploaderError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["FinishedFile", "UploadField", "UploadInput", "UploaderStorage", "identify", "mount", "user_id_of"]

T = TypeVar("T")

_BUFFER_BYTES = 256 << 10
# Content that can't seek, or is text, is copied first; in memory up to this size.
_COPY_BYTES = 8 << 20


# The application


def mount(uploader: Uploader, prefix: str, application: Any) -> Any:
    """Serve an uploader below a path of a Django application. Django itself has neither mounts nor a lifespan."""

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        root_path = scope.get("root_path", "") + prefix
        if scope["type"] == "lifespan" or f"{scope['path']}/".startswith(f"{root_path}/"):
            await uploader({**scope, "root_path": root_path}, receive, send)
        else:
            await application(scope, receive, send)

    return mounted


# Users


def user_id_of(user: Any) -> str:
    """Return the uploader's id for a Django user: the primary key, which does not change when the user is renamed."""
    return str(user.pk)


async def identify(scope: Mapping[str, Any]) -> Identity | None:
    """Return the user of Django's session for a request, as in `Uploader(identify=identify)`. Superusers are
    administrators."""
    cookies = "; ".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie")
    session_key = parse_cookie(cookies).get(settings.SESSION_COOKIE_NAME)
    return await asyncio.to_thread(_identity_in, session_key) if session_key else None


def _identity_in(session_key: str) -> Identity | None:
    request = HttpRequest()
    close_old_connections()  # as Django does before and after its own requests
    try:
        request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
        user = auth.get_user(request)
        return Identity(user_id_of(user), admin=user.is_superuser) if user.is_authenticated else None
    finally:
        close_old_connections()


# Files


class _Content(io.RawIOBase):
    """The bytes of a finished file as a raw stream. Sequential reads use the same open content."""

    def __init__(self, storage: "UploaderStorage", stored: File) -> None:
        self._storage = storage
        self._stored = stored
        self._offset = 0
        self._pieces: AsyncIterator[bytes] | None = None
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._stored.size}[whence]
        if base + offset < 0:
            raise ValueError("a position before the first byte")
        if base + offset != self._offset:
            self._forget()
        self._offset = base + offset
        return self._offset

    def readinto(self, buffer: "WriteableBuffer") -> int:
        if not self._left:
            self._left = memoryview(self._next_piece())
        target = memoryview(buffer).cast("B")
        length = min(len(target), len(self._left))
        target[:length] = self._left[:length]
        self._left = self._left[length:]
        self._offset += length
        return length

    def _next_piece(self) -> bytes:
        """Raises OSError."""
        if self._offset >= self._stored.size:
            self._forget()  # a reader that reaches the end need not close the stream
            return b""
        if self._pieces is None:
            self._pieces = self._storage.uploader.files.read(self._stored, self._offset)
        try:
            return self._storage.wait(_next(self._pieces))
        except UploaderError as error:
            raise OSError(errno.EIO, error.detail, self._stored.name) from error

    def _forget(self) -> None:
        pieces, self._pieces, self._left = self._pieces, None, memoryview(b"")
        if pieces is not None:
            self._storage.wait(_close(pieces))

    def close(self) -> None:
        if not self.closed:
            self._forget()
        super().close()


async def _next(pieces: AsyncIterator[bytes]) -> bytes:
    return await anext(pieces, b"")


async def _close(pieces: Any) -> None:
    await pieces.aclose()


class FinishedFile(DjangoFile):
    """A finished file of a user, for reading. `name` is its name in the storage; `stored` has further facts, such as
    the `sha256` and the name that the owner sees."""

    mode = "rb"
    _file: BinaryIO | None

    def __init__(self, storage: "UploaderStorage", stored: File) -> None:
        super().__init__(None, f"{stored.user_id}/{stored.name}")
        self.storage = storage
        self.stored = stored
        self.size = stored.size

    @property
    def id(self) -> str:
        """The id of the file, which stays when the file is renamed."""
        return self.stored.id

    @property
    def url(self) -> str:
        """A signed URL to download the file for a limited time."""
        return self.storage.url_of(self.stored)

    @property
    def file(self) -> BinaryIO:
        if self._file is None or self._file.closed:
            self._file = cast("BinaryIO", io.BufferedReader(_Content(self.storage, self.stored), _BUFFER_BYTES))
        return self._file

    @file.setter
    def file(self, opened: BinaryIO | None) -> None:
        self._file = opened

    @property
    def closed(self) -> bool:
        return self._file is None or self._file.closed

    def open(self, mode: str | None = "rb") -> "FinishedFile":
        """Start reading at the first byte."""
        _check_mode(mode or "rb")
        self.file.seek(0)
        return self

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _check_mode(mode: str) -> None:
    if mode != "rb":
        raise ValueError(f"finished files can be read, as 'rb': they don't open as {mode!r}")


class UploaderStorage(Storage):
    """The finished files of all users. The name of a file is the id of its owner, a slash, and the owner's name for it.
    `uploader` is an `Uploader` or its dotted path. `base_url` is the address of its mount, by default
    UPLOADER_PUBLIC_URL. URLs from `url` work for `link_lifetime_seconds`, at most for UPLOADER_LINK_LIFETIME."""

    def __init__(
        self, uploader: Uploader | str, base_url: str | None = None, link_lifetime_seconds: int = 3600
    ) -> None:
        self._uploader = uploader
        self._base_url = base_url
        self._link_lifetime_seconds = link_lifetime_seconds

    @property
    def uploader(self) -> Uploader:
        """Raises ImproperlyConfigured."""
        found = import_string(self._uploader) if isinstance(self._uploader, str) else self._uploader
        if not isinstance(found, Uploader):
            raise ImproperlyConfigured(f"UploaderStorage: {self._uploader!r} is no Uploader")
        self._uploader = found
        return found

    @property
    def base_url(self) -> str:
        """The address of the server for browsers, without a slash at its end. Raises ImproperlyConfigured."""
        found = self.uploader.settings.public_url if self._base_url is None else self._base_url
        if found is None:
            raise ImproperlyConfigured("UploaderStorage: `base_url` has to say where the uploader is mounted")
        return found.rstrip("/")

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work in the uploader's event loop. Raises RuntimeError in an event loop."""
        return self.uploader.wait(work)

    # Methods of Django's Storage

    def exists(self, name: str) -> bool:
        return self._named(name) is not None

    def size(self, name: str) -> int:
        return self._get(name).size

    def url(self, name: str) -> str:
        return self.url_of(self._get(name))

    def get_created_time(self, name: str) -> datetime:
        return _told(self._get(name).created_at)

    def get_modified_time(self, name: str) -> datetime:
        """Return when the user's local file was last modified, as the client said; else when it was uploaded."""
        file = self._get(name)
        return _told(file.modified_at or file.created_at)

    def listdir(self, path: str) -> tuple[list[str], list[str]]:
        user_id, _, folder = path.strip("/").partition("/")
        if not user_id:
            raise NotImplementedError("UploaderStorage lists no users: begin the path with the id of one")
        prefix = f"{folder}/" if folder else ""
        return self.wait(self._list_level(user_id, prefix))

    def delete(self, name: str) -> None:
        """Delete a file as its owner would. Do nothing if there is no such file."""
        file = self._named(name)
        if file is not None:
            with suppress(FileNotFound):  # it was deleted just now
                self.wait(self.uploader.files.delete(file.user_id, file.id))

    def _open(self, name: str, mode: str = "rb") -> FinishedFile:
        _check_mode(mode)
        return FinishedFile(self, self._get(name))

    def _save(self, name: str, content: Any) -> str:
        """Upload content as its owner would: the quota counts, and the pre-create hook is asked. A finished file of the
        same uploader is not copied and keeps its name. A held file appears after the gate lets it pass. Raises
        ClientError."""
        if isinstance(content, FinishedFile) and content.storage.uploader is self.uploader:
            return str(content.name)
        user_id, _, own_name = name.replace("\\", "/").partition("/")
        if not own_name:
            raise ValueError(f"{name!r} names no user: names begin with the id of a user and a slash")
        with _source(content) as source:
            file = self.wait(self.uploader.files.upload(user_id, source, own_name))
        return f"{file.user_id}/{file.name}"

    # By stored file

    def find(self, user_id: str, told_id: str) -> FinishedFile:
        """Return a file of a user by its id, or by the id of its upload. Raises FileNotFound, FileHeld,
        UploadUnfinished."""
        return FinishedFile(self, self.wait(self.uploader.files.find(user_id, told_id)))

    def url_of(self, stored: File) -> str:
        return self.base_url + self.wait(self.uploader.files.link(stored, self._link_lifetime_seconds))

    def _named(self, name: str) -> File | None:
        user_id, _, own_name = name.partition("/")
        return self.wait(self.uploader.files.named(user_id, own_name))

    def _get(self, name: str) -> File:
        file = self._named(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", name)
        return file

    async def _list_level(self, user_id: str, prefix: str) -> tuple[list[str], list[str]]:
        folders, files, after = list[str](), list[str](), None
        while True:
            page, after = await self.uploader.files.level(user_id, prefix, after=after)
            for found in page:
                (folders if isinstance(found, Folder) else files).append(found.name.removeprefix(prefix).rstrip("/"))
            if after is None:
                return folders, files


def _told(moment: datetime) -> datetime:
    return moment if settings.USE_TZ else timezone.make_naive(moment)


@contextmanager
def _source(content: Any) -> Iterator[BinaryIO]:
    """Open content from its first byte. Text, and content that can't seek, is copied first."""
    if content.seekable() and not isinstance(content.file, io.TextIOBase):
        content.seek(0)
        yield content.file
        return
    with tempfile.SpooledTemporaryFile(_COPY_BYTES) as copied:
        for piece in content.chunks():
            copied.write(piece.encode() if isinstance(piece, str) else piece)
        copied.seek(0)
        yield cast("BinaryIO", copied)


# Forms

_WORDS = {
    "invalid": "This file is not there, or is not yours. Upload it again.",
    "unfinished": "This upload is not finished. Wait until it is, and send the form again.",
    "held": "This file is being checked. Send the form again later.",
}
_CHINESE = {
    _WORDS["invalid"]: "此文件不存在，或者不属于您。请重新上传。",
    _WORDS["unfinished"]: "上传尚未完成。请等待完成后再提交表单。",
    _WORDS["held"]: "此文件正在检查中。请稍后再提交表单。",
}


def _say(words: str) -> str:
    """Translate by the project's own catalogues, or else into the language of our pages."""
    told = gettext(words)
    return _CHINESE[words] if told == words and (get_language() or "").startswith("zh") else told


_said: Callable[[str], Any] = lazy(_say, str)


class UploadInput(forms.Widget):
    """The form element `<uploader-drop>`. `form.media` has the script for it; `attrs` are attributes such as
    `accept`."""

    def __init__(
        self, script: Callable[[], str], attrs: Mapping[str, Any] | None = None, *, multiple: bool = False
    ) -> None:
        super().__init__({**(attrs or {}), "multiple": multiple})
        self._script = script

    @property
    def media(self) -> forms.Media:
        return forms.Media(js=[forms.Script(self._script(), type="module")])

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[str]:
        return data.getlist(name) if hasattr(data, "getlist") else _listed(data.get(name))

    def value_omitted_from_data(self, data: Any, files: Any, name: str) -> bool:
        return False  # an emptied list sends nothing

    def render(self, name: str, value: Any, attrs: Mapping[str, Any] | None = None, renderer: Any = None) -> str:
        shown = self.build_attrs(self.attrs, {**(attrs or {}), "name": name})
        # After an error the form is shown again with the same files, if they were found.
        told = [] if shown.get("aria-invalid") else [getattr(each, "id", each) for each in _listed(value)]
        if told:
            shown.pop("required", None)
        kept = format_html_join("", '<input type="hidden" name="{}" value="{}">', ((name, each) for each in told))
        return str(format_html("{}<uploader-drop{}></uploader-drop>", kept, flatatt(shown)))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value] if value else []


class UploadField(forms.Field):
    """A form field for a finished file, or for several if `multiple`, from `<uploader-drop>`. The form sends ids, and
    `cleaned_data` has a `FinishedFile`. Set `user_id` before the form is validated:
    `form.fields["film"].user_id = user_id_of(request.user)`.

    `to` is the folder to upload into. `storage` is an `UploaderStorage`, or its alias in STORAGES.
    """

    default_error_messages: Mapping[str, Any] = {name: _said(words) for name, words in _WORDS.items()}
    user_id: str | None = None

    def __init__(
        self,
        *,
        storage: UploaderStorage | str = "uploads",
        to: str = "",
        multiple: bool = False,
        attrs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._storage = storage
        self.multiple = multiple
        attributes = {**({"to": to} if to else {}), **(attrs or {})}
        options.setdefault("widget", UploadInput(self._script, attributes, multiple=multiple))
        super().__init__(**options)

    @property
    def storage(self) -> UploaderStorage:
        return storages[self._storage] if isinstance(self._storage, str) else self._storage

    def _script(self) -> str:
        return f"{self.storage.base_url}/drop.js"

    def to_python(self, value: Any) -> Sequence[str]:
        told = dict.fromkeys(str(each) for each in _listed(value) if each)  # without duplicates
        return list(told) if self.multiple else list(told)[-1:]

    def clean(self, value: Any) -> Any:
        """Raises ValidationError."""
        told = self.to_python(value)
        self.validate(told)
        found = [self._find(each) for each in told]
        self.run_validators(found)
        return found if self.multiple else found[0] if found else None

    def run_validators(self, found: Iterable[FinishedFile]) -> None:
        for each in found:
            super().run_validators(each)

    def _find(self, told_id: str) -> FinishedFile:
        if self.user_id is None:
            raise ImproperlyConfigured("UploadField: its `user_id` has to say whose files the form may name")
        try:
            return self.storage.find(self.user_id, told_id)
        except FileNotFound as error:
            raise self._refusal("invalid") from error
        except UploadUnfinished as error:
            raise self._refusal("unfinished") from error
        except FileHeld as error:
            raise self._refusal("held") from error

    def _refusal(self, code: str) -> ValidationError:
        return ValidationError(self.error_messages[code], code=code)

    def has_changed(self, initial: Any, data: Any) -> bool:
        return [getattr(each, "id", each) for each in _listed(initial)] != self.to_python(data)
