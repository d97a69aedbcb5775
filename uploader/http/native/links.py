"""Links: `/me/links` for owners, `/s/{slug}` for visitors, and all users' links for administrators. Each handler makes one
call of a service. Visitors upload like users, with the token of their session.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from uploader.domain.links import Limits, Link, LinkKind, Visit
from uploader.domain.names import CONTROL, Selection
from uploader.errors import FileNotFound, InvalidRequest, LinkNotFound, UploaderError
from uploader.http.auth.authenticator import WrongTokens
from uploader.http.native import schemas
from uploader.http.native.archive import archive
from uploader.http.native.download import download
from uploader.http.native.files import DELIMITER, FORMAT, SHOW, list_level, part_of_name
from uploader.http.shared.operation import (
    AFTER,
    LIMIT,
    PREFIX,
    Call,
    Operation,
    Parameter,
    checked_name,
    or_none,
    public_path,
)
from uploader.http.shared.problem import STATUS
from uploader.http.shared.proxies import Proxies
from uploader.http.shared.responses import Json
from uploader.service.files import Files
from uploader.service.links import Shared, Sharing, Visitors
from uploader.service.signed_urls import SignedUrls, visit_subject

_links = partial(Operation, tag="links")
_open = partial(_links, access="open", problems=("link-not-found", "link-gone", "too-many-requests"))
_visiting = partial(_links, access="visitor")
_admin = partial(Operation, tag="administration", access="admin")
_SIGNED = tuple(
    Parameter(name, "Of a signed URL: see `POST /s/{slug}/link`.") for name in ("visitor", "expires", "signature")
)
_URL_SECONDS = 60


@dataclass(frozen=True, slots=True)
class ShareHandlers:
    sharing: Sharing

    @_links(
        "POST /me/links",
        "Make a link by which strangers get or give files",
        on_rights=True,
        takes=schemas.ShareWith,
        responses={201: schemas.ShareSchema},
        problems=("refused", "file-not-found", "name-taken", "too-many-files", "too-many-links"),
    )
    async def make(self, call: Call) -> Response:
        told = await call.json(schemas.ShareWith)
        ending = "/" if told.name.endswith("/") else ""
        link = await self.sharing.make(
            call.user_id,
            LinkKind(told.kind),
            checked_name(told.name.removesuffix("/")) + ending,
            label=_checked_label(or_none(told.label) or ""),
            expires_at=schemas.moment_of(told.expires_at, "expires_at"),
            password=or_none(told.password),
            limits=Limits(
                max_downloads=or_none(told.max_downloads),
                max_files=or_none(told.max_files),
                max_bytes=or_none(told.max_bytes),
            ),
        )
        return Json(schemas.share_of(link), 201, {"Location": public_path(f"/me/links/{link.id}")})

    @_links("GET /me/links", "Your links, newest first", responses={200: schemas.ShareList})
    async def list(self, call: Call) -> Response:
        return Json(schemas.ShareList([schemas.share_of(link) for link in await self.sharing.list(call.user_id)]))

    @_links("GET /me/links/{id}", "One link", responses={200: schemas.ShareSchema}, problems=("link-not-found",))
    async def get(self, call: Call) -> Response:
        return Json(schemas.share_of(await self.sharing.get(call.user_id, call.in_path("id"))))

    @_links(
        "PATCH /me/links/{id}",
        "Change a link",
        on_rights=True,
        takes=schemas.ChangeShare,
        responses={200: schemas.ShareSchema},
        problems=("link-not-found", "too-many-links"),
    )
    async def change(self, call: Call) -> Response:
        told = await call.json(schemas.ChangeShare)
        changes = {
            name: value for name in told.__struct_fields__ if (value := getattr(told, name)) is not msgspec.UNSET
        }
        if "label" in changes:
            changes["label"] = _checked_label(changes["label"])
        if "expires_at" in changes:
            changes["expires_at"] = schemas.moment_of(changes["expires_at"], "expires_at")
        return Json(schemas.share_of(await self.sharing.change(call.user_id, call.in_path("id"), changes)))

    @_links(
        "DELETE /me/links/{id}", "Revoke a link", on_rights=True, responses={204: None}, problems=("link-not-found",)
    )
    async def revoke(self, call: Call) -> None:
        await self.sharing.revoke(call.user_id, call.in_path("id"))


@dataclass(frozen=True, slots=True)
class AdminLinkHandlers:
    sharing: Sharing

    @_admin("GET /admin/users/{user_id}/links", "The links of a user", responses={200: schemas.ShareList})
    async def list(self, call: Call) -> Response:
        found = await self.sharing.list(call.in_path("user_id"))
        return Json(schemas.ShareList([schemas.share_of(link) for link in found]))

    @_admin(
        "DELETE /admin/users/{user_id}/links/{id}",
        "Revoke a link of a user",
        responses={204: None},
        problems=("link-not-found",),
    )
    async def revoke(self, call: Call) -> None:
        await self.sharing.revoke(call.in_path("user_id"), call.in_path("id"))


def _checked_label(label: str) -> str:
    """Raises InvalidRequest."""
    if CONTROL.search(label) or not label.isprintable():
        raise InvalidRequest.field("label", "has control characters")
    return label


# Answers with the page for people, and with this status.
Page = Callable[[Request, int], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class VisitorHandlers:
    visitors: Visitors
    shared: Shared
    files: Files
    signed_urls: SignedUrls
    wrong_slugs: WrongTokens
    proxies: Proxies
    page: Page | None  # None if pages are off

    @_open(
        "GET /s/{slug}",
        "What a link is for: a page, or JSON for those who accept it",
        responses={200: schemas.SharedSchema},
        media_types=("text/html",),
    )
    async def describe(self, call: Call) -> Response:
        accepted = call.request.headers.get("accept", "")
        page = None if "application/json" in accepted else self.page
        try:
            link = await self._find(call)
        except UploaderError as error:
            if page is None or "text/html" not in accepted:
                raise
            return await page(call.request, STATUS[error.code])
        return (
            Json(schemas.shared_of(link), headers={"Vary": "Accept"}) if page is None else await page(call.request, 200)
        )

    async def _find(self, call: Call) -> Link:
        """Raises LinkNotFound, LinkGone, TooManyRequests."""
        party = await self._admit(call.request)
        try:
            return await self.visitors.find(call.in_path("slug"))
        except LinkNotFound:
            self.wrong_slugs.count(party)
            raise

    @_open(
        "POST /s/{slug}/session",
        "Begin a session, whose token all that follows needs",
        takes=schemas.BeginSession,
        takes_optional=True,
        responses={201: schemas.SessionSchema},
        problems=("link-not-found", "link-gone", "wrong-password", "too-many-requests"),
    )
    async def begin(self, call: Call) -> Response:
        party = await self._admit(call.request)
        told = await call.json(schemas.BeginSession, optional=True)
        try:
            token, expires_at = await self.visitors.begin(call.in_path("slug"), or_none(told.password))
        except LinkNotFound:
            self.wrong_slugs.count(party)
            raise
        return Json(schemas.SessionSchema(token, expires_at), 201)

    async def _admit(self, request: Request) -> str:
        """Return the party for which wrong slugs count. Raises TooManyRequests."""
        party = self.proxies.party(request)
        await self.wrong_slugs.slow_down(party)
        return party

    @_visiting(
        "GET /s/{slug}/files",
        "The files that a link shares, by their names below its folder",
        responses={200: schemas.FileList},
        parameters=(LIMIT, AFTER, PREFIX, DELIMITER),
    )
    async def list_files(self, call: Call) -> Response:
        link, limit = _visit(call).link, call.query_int(LIMIT)
        prefix, after = part_of_name(call, "prefix") or "", call.query("after")
        is_level = bool(call.query_word("delimiter", "", ("", "/")))
        if link.file_id is not None:
            file = await self.shared.get(link, link.file_id)
            found = [schemas.file_of(file)] if file.name.startswith(prefix) and after is None else []
            return Json(schemas.FileList(found, None, [] if is_level else msgspec.UNSET))
        if is_level:
            return await list_level(call, prefix, partial(self.shared.level, link))
        page, cursor = await self.shared.page(link, prefix, limit=limit, after=after)
        return Json(schemas.FileList([schemas.file_of(file) for file in page], cursor))

    @_visiting(
        "GET /s/{slug}/files/{id}/content",
        "Download a shared file, whole or in ranges",
        responses={200: None, 206: None, 304: None},
        problems=("file-not-found", "link-gone", "range-not-satisfiable", "content-damaged"),
        parameters=(*_SIGNED, SHOW),
    )
    async def get_content(self, call: Call) -> Response:
        visit = _visit(call)
        file = await self.shared.get(visit.link, call.in_path("id"))
        inline = call.query_word("show", "", ("", "inline")) == "inline" and not file.session
        if call.request.method != "HEAD":
            await self.visitors.count_download(visit)
        return await download(call.request, file, self.files, inline=inline)

    @_visiting(
        "GET /s/{slug}/archive",
        "Download all that a link shares, or one of its folders, as one zip or tar",
        problems=("file-not-found", "link-gone"),
        parameters=(FORMAT, PREFIX, *_SIGNED),
    )
    async def get_archive(self, call: Call) -> Response:
        visit, kind = _visit(call), call.query_word("format", "zip", ("zip", "tar"))
        link, prefix = visit.link, part_of_name(call, "prefix") or ""
        name, selection = link.name + prefix, Selection((), (link.name + prefix,))
        if link.file_id is not None:
            file = await self.shared.get(link, link.file_id)
            if not file.name.startswith(prefix):
                raise FileNotFound()
            name, selection = link.name, Selection((link.file_id,))
        if call.request.method != "HEAD":
            await self.visitors.count_download(visit)
        files = self.shared.read(link, selection)
        return archive(files, [name], kind, self.files, tells_ids=False)

    @_visiting(
        "POST /s/{slug}/link",
        "Make a URL of a file, or of an archive, that a browser can follow within a minute",
        takes=schemas.AskForUrl,
        takes_optional=True,
        responses={200: schemas.SignedUrl},
        problems=("file-not-found", "link-gone"),
    )
    async def make_url(self, call: Call) -> Response:
        visit, told = _visit(call), await call.json(schemas.AskForUrl, optional=True)
        file_id, kind, prefix = or_none(told.id), or_none(told.format), or_none(told.prefix)
        if file_id is not None:
            for field, value in (("format", kind), ("prefix", prefix)):
                if value is not None:
                    raise InvalidRequest.field(field, "is not for a single file")
            await self.shared.get(visit.link, file_id)
        kind, prefix = kind or "zip", prefix or ""
        if CONTROL.search(prefix):
            raise InvalidRequest.field("prefix", "has control characters, as no name has")
        subject = visit_subject(visit.session_id, file_id, kind, prefix)
        query = self.signed_urls.make_for(visit, subject, _URL_SECONDS)
        path = public_path(f"/s/{call.in_path('slug')}")
        if file_id is None:
            chosen = f"format={kind}" + (f"&prefix={quote(prefix)}" if prefix else "")
            return Json(schemas.SignedUrl(f"{path}/archive?{chosen}&{query}"))
        return Json(schemas.SignedUrl(f"{path}/files/{file_id}/content?{query}"))


def _visit(call: Call) -> Visit:
    visit = call.identity.visit
    assert visit is not None  # the access rule of the operation demands a visit
    return visit
