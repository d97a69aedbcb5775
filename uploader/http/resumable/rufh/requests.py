"""What requests of resumable uploads of HTTP say."""

from uploader.domain.digest import parse_content_digest
from uploader.errors import (
    FileTooLarge,
    InvalidRequest,
    LengthExceeded,
    SizeMismatch,
    UnsupportedMediaType,
)
from uploader.http.resumable.metadata import name_of, parse_metadata
from uploader.http.resumable.rufh.drafts import Draft, filename_in, integer_in
from uploader.http.shared.operation import Call
from uploader.service.ids import new_id
from uploader.service.results import Opening

# Kept as the metadata of an upload whose client is to say which bytes are the last, until it has.
INCOMPLETE = "incomplete"


def opening_of(call: Call, complete: bool) -> Opening:
    """What a creation asks for. Raises InvalidRequest, SizeMismatch, LengthExceeded, UnsupportedMediaType."""
    headers, upload_id = call.request.headers, new_id()
    call.claims()
    if headers.get("content-type", "").lower().startswith("multipart/"):
        raise UnsupportedMediaType("The body is the file itself, not a form.")
    filename, metadata = filename_in(headers), headers.get("upload-metadata")
    told = {"filename": filename} if filename else parse_metadata(metadata or "")
    digests, length = _repr_digests(headers.getlist("repr-digest")), _length(call, complete)
    # Each of them says what the file is; only the weaker one leads to what else has it.
    md5 = digests.get("md5") if "sha-256" not in digests else None
    if md5 is not None and length is None:
        raise InvalidRequest.field("Repr-Digest", "is an MD5 without Upload-Length: tell that, or SHA-256")
    return Opening(
        user_id=call.user_id,
        md5=md5,
        sha256=digests.get("sha-256"),
        name=name_of(told, upload_id),
        size=length or 0,
        length_known=length is not None,
        chunk_size=None,
        instant=False,
        id=upload_id,
        metadata=None if complete else INCOMPLETE,
        computes_md5=False,
        brings_bytes=content_length(call) != 0,
    )


def _repr_digests(headers: list[str]) -> dict[str, str]:
    """In hexadecimal, by their algorithm. Raises InvalidRequest."""
    try:
        return {name: digest.hex() for header in headers for name, digest in parse_content_digest(header).items()}
    except ValueError as error:
        raise InvalidRequest.field("Repr-Digest", str(error)) from error


def _length(call: Call, complete: bool) -> int | None:
    """Of an upload, as its creation tells it. Raises SizeMismatch, LengthExceeded."""
    content, told = content_length(call), integer_in(call.request.headers, "Upload-Length")
    if complete and content is not None:
        if told not in (None, content):
            raise SizeMismatch("Upload-Length and Content-Length differ, and nothing is to follow.", size=told)
        return content
    if told is not None and (content or 0) > told:
        raise LengthExceeded(limit=told)
    return told


def content_length(call: Call) -> int | None:
    """Of the content of a request; None if it was not told."""
    declared = call.intake.body_of(call.request).declared_bytes
    return 0 if declared is None and "transfer-encoding" not in call.request.headers else declared


async def has_content(call: Call) -> bool:
    content = content_length(call)
    if content is not None:
        return content > 0
    try:
        body = await call.intake.body_of(call.request).receive_up_to(call.user_id, 0)
    except FileTooLarge:
        return True
    body.close()
    return False


def completes(call: Call, draft: Draft) -> bool:
    """Whether what is appended is the last. Raises InvalidRequest."""
    headers = call.request.headers
    complete = draft.completes(headers)
    if complete is not None or draft.is_inverted:
        return complete is not False
    # tus-js-client 4 ends a stream so.
    if content_length(call) == 0 and integer_in(headers, "Upload-Length") is not None:
        return False
    raise InvalidRequest.field("Upload-Complete", "is neither ?0 nor ?1")
