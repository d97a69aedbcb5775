"""What goes over the wire about many files at once."""

import unicodedata
from typing import Annotated, Literal

from msgspec import Meta, Struct

from uploader.domain.names import Selection

# Of one request, so that its body stays small.
_MAX_SELECTED = 5000


class SelectionSchema(Struct, forbid_unknown_fields=True):
    """Files by their ids, and all that is below prefixes. Ids that are none of your files' are passed over."""

    ids: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=_MAX_SELECTED)] = []
    prefixes: Annotated[list[Annotated[str, Meta(max_length=1024)]], Meta(max_length=_MAX_SELECTED)] = []


class ArchiveSchema(SelectionSchema, forbid_unknown_fields=True):
    """What is to be in an archive, and of which kind that is."""

    format: Literal["zip", "tar"] = "zip"


class MoveInto(SelectionSchema, forbid_unknown_fields=True, kw_only=True):
    """What goes into a folder, which is there from then on; `""` is the top."""

    to: Annotated[
        str, Meta(max_length=1024, pattern="^(.*/)?$", description="A prefix that ends with a slash, or nothing.")
    ]


def selection_of(told: SelectionSchema) -> Selection:
    """Prefixes in the form that names have."""
    return Selection.of(told.ids, (unicodedata.normalize("NFC", prefix) for prefix in told.prefixes))
