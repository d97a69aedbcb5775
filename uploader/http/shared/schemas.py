"""The types that go over the wire in more than one protocol.

Types are strict: a missing field, an unknown one, `null`, `"12"` or `1e3` for a number are refused while decoding. In the
OpenAPI document a type whose name ends with `Schema` goes without that.
"""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

MAX_SIZE_BYTES = 2**63 - 1

Size = Annotated[int, Meta(ge=0, le=MAX_SIZE_BYTES, description="Bytes.")]


class FieldError(Struct):
    """What is wrong with one field."""

    field: str
    reason: str


class Problem(Struct, kw_only=True):
    """Any error (RFC 9457). Some codes come with further members."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    request_id: str
    errors: list[FieldError] | UnsetType = UNSET
