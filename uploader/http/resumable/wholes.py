"""`Upload-Concat` of tus: parts, which it calls partial uploads, and wholes that are made of them, its final uploads."""

from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from starlette.responses import Response

from uploader.domain.upload import UploadKind
from uploader.errors import Forbidden, InvalidRequest
from uploader.http.auth.proxies import Proxies
from uploader.http.resumable.common import PREFIX
from uploader.http.resumable.metadata import name_of, parse_metadata
from uploader.http.shared.operation import Call
from uploader.service.concatenate import Concatenations, NewWhole
from uploader.service.ids import ID, new_id
from uploader.service.results import Target

PARTIAL = "partial"
_FINAL = "final;"
_HEADER = "Upload-Concat"
_MAX_PARTS = 250
_MAX_BYTES = 16384


@dataclass(frozen=True, slots=True)
class TusWholes:
    """Final uploads."""

    concatenations: Concatenations
    proxies: Proxies

    async def create(self, call: Call) -> Response:
        """Of the same parts in the same order it is the same one."""
        headers, upload_id = call.request.headers, new_id()
        if "upload-length" in headers:
            raise InvalidRequest.field("Upload-Length", "is that of the parts: it is not told")
        text, ordered = headers.get("upload-metadata"), headers[_HEADER]
        made = await self.concatenations.order(
            NewWhole(
                id=upload_id,
                user_id=call.user_id,
                name=name_of({} if text is None else parse_metadata(text), upload_id),
                metadata=text,
                ordered=ordered,
                part_ids=parse_parts(ordered),
            )
        )
        return Response(status_code=201, headers={"Location": self.proxies.absolute(call.request, f"{PREFIX}/{made}")})

    async def is_one(self, target: Target) -> bool:
        return await self.concatenations.is_whole(target)

    async def refuse(self, target: Target) -> None:
        """Raises Forbidden for a whole: nobody appends to it."""
        if await self.is_one(target):
            raise Forbidden("This upload is made of its parts alone.")

    async def head(self, target: Target) -> Response:
        status = await self.concatenations.status(target)
        facts = {_HEADER: status.ordered}
        facts |= {} if status.size is None else {"Upload-Length": str(status.size)}
        facts |= {} if status.metadata is None else {"Upload-Metadata": status.metadata}
        return Response(headers=facts | ({"Upload-Offset": str(status.size)} if status.finished else {}))

    async def delete(self, target: Target) -> None:
        await self.concatenations.cancel(target)


def kind_asked(call: Call) -> UploadKind | None:
    """What an upload that is created is to be. Raises InvalidRequest."""
    values = call.request.headers.getlist(_HEADER)
    if not values:
        return None
    if values == [PARTIAL]:
        return UploadKind.PART
    if len(values) == 1 and values[0].startswith(_FINAL):
        return UploadKind.WHOLE
    raise InvalidRequest.field(_HEADER, f"is neither {PARTIAL!r} nor {_FINAL!r} with a list of uploads")


def parse_parts(text: str) -> tuple[str, ...]:
    """The ids of the parts that a final upload names, by whatever address they are reached. Raises InvalidRequest."""
    urls = text.removeprefix(_FINAL).split()
    if not text.isascii() or not 1 <= len(urls) <= _MAX_PARTS or len(text) > _MAX_BYTES:
        raise InvalidRequest.field(
            _HEADER, f"names no uploads, or more than {_MAX_PARTS}, or in more than {_MAX_BYTES} bytes"
        )
    return tuple(_part_id(url) for url in urls)


def _part_id(url: str) -> str:
    try:
        found = urlsplit(urljoin(PREFIX, url))
    except ValueError:
        found = urlsplit("")
    parent, _, upload_id = found.path.rpartition("/")
    is_here = found.scheme in ("", "http", "https") and not (found.query or found.fragment)
    if not is_here or parent != PREFIX or not ID.fullmatch(upload_id):
        raise InvalidRequest.field(_HEADER, "names what is no upload of this server")
    return upload_id
