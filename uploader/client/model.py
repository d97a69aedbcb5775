"""The messages between client and server. Unknown members are ignored, because a newer server may send more."""

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import force_setattr, replace

IfExists = Literal["keep", "replace", "fail"]
LinkKind = Literal["download", "upload"]
# A time needs a zone to be comparable.
Moment = Annotated[datetime, Meta(tz=True)]
# How a file came to its place: sent or fetched now; `instant`: the server had the content; `present`: it had this very
# file.
How = Literal["sent", "fetched", "instant", "present"]


class Digests(Struct, frozen=True):
    """Both digests of the same bytes, in lower-case hex."""

    md5: str
    sha256: str


class File(Struct, frozen=True):
    """A finished file. `instant`: made without sending the bytes. `damaged`: the server found bad bytes; sending the
    same content again heals the file. `modified_at`: when the original file was changed, if the client told."""

    id: str
    name: str
    md5: str | None
    sha256: str
    size: int
    created_at: Moment
    instant: bool
    damaged: bool = False
    modified_at: Moment | None = None
    # `held`: a gate has not decided yet, and until then the file is hidden from others.
    state: Literal["held"] | None = None

    @property
    def is_held(self) -> bool:
        return self.state is not None


class DeletedFile(File, frozen=True, kw_only=True):
    """A file in the trash: since `deleted_at`, until `expires_at`. `reason`: `deleted`, `replaced` by another file of
    its name, `refused`, or deleted by an administrator (`admin`)."""

    deleted_at: Moment
    expires_at: Moment
    reason: str
    # Why a gate refused the file.
    detail: str | None = None


class DeletedPage(Struct, frozen=True):
    """A page of deleted files. `next` is the cursor of the following page."""

    files: list[DeletedFile]
    next: Annotated[str, Meta(max_length=8192)] | None


class Upload(Struct, frozen=True):
    """An open upload. `missing` holds inclusive ranges of chunk numbers, in order."""

    id: str
    md5: str | None
    name: str
    size: int
    chunk_size: int
    chunk_count: int
    received_bytes: int
    missing: list[tuple[int, int]]
    state: str
    created_at: datetime
    expires_at: datetime
    merged_bytes: int = 0


class Usage(Struct, frozen=True):
    """The caller's accounts, in bytes."""

    total_space: int
    use_space_finished: int
    use_space_unfinished: int
    reserved: int
    available: int


class Folder(Struct, frozen=True):
    """A folder: a name ending with a slash, its number of files and their bytes; `at_least` if not all were counted."""

    name: str
    files: int
    bytes: int
    at_least: bool = False


class EmptyFolder(Struct, frozen=True):
    """An empty folder: a name that ends with a slash."""

    name: str


class EmptyFolders(Struct, frozen=True):
    """A page of empty folders. `next` is the cursor of the following page."""

    folders: list[EmptyFolder]
    next: Annotated[str, Meta(max_length=4096)] | None


class FilePage(Struct, frozen=True):
    """A page of files. `next` is the cursor of the following page. A page of one level has folders, too; an older
    server knows no levels, and sends no folders."""

    files: list[File]
    # The cursor goes into a URL; the longest holds a name and an id.
    next: Annotated[str, Meta(max_length=8192)] | None
    folders: list[Folder] | None = None


class Changed(Struct, frozen=True):
    files: int


class Link(Struct, frozen=True):
    """A link of the user. `download` gives a file or a folder (a name with a slash at the end) to anyone with the URL;
    `upload` takes files from them into a folder. `downloads`, `files` and `bytes` count what came through the link; the
    `max_` figures limit them, None: no limit of the link's own."""

    id: str
    kind: LinkKind
    url: str
    name: str
    created_at: Moment
    expires_at: Moment
    label: str | None = None
    has_password: bool = False
    downloads: int = 0
    files: int = 0
    bytes: int = 0
    max_downloads: int | None = None
    max_files: int | None = None
    max_bytes: int | None = None


class LinkList(Struct, frozen=True):
    links: list[Link]


class LinkFacts(Struct, frozen=True):
    """The facts of a link for people with its URL. `name`: its last part, and only without a password."""

    kind: LinkKind
    expires_at: Moment
    label: str | None = None
    has_password: bool = False
    name: str | None = None
    max_files: int | None = None
    max_bytes: int | None = None


class LinkSession(Struct, frozen=True):
    """A bearer token for one link."""

    token: str
    expires_at: Moment


class UploadList(Struct, frozen=True):
    uploads: list[Upload]


class State(Struct, frozen=True):
    """The state of a content of the caller: `complete`, `uploading`, `merging` or `absent`."""

    state: str


class ChunkSizes(Struct, frozen=True):
    """Chunk sizes, in bytes."""

    default: int
    max: int
    min: int = 64 << 10


class Config(Struct, frozen=True):
    chunk_size: ChunkSizes


def _note_held(told: "Line | RestoreLine | Held") -> None:
    """Copy the state `held` from an answer to its file."""
    if told.file is not None and (isinstance(told, Held) or told.state == "held"):
        force_setattr(told, "file", replace(told.file, state="held"))


class Line(Struct, frozen=True):
    """The outcome of one member of a batch: a file, or a problem."""

    name: str
    status: int
    state: Literal["held"] | None = None
    file: File | None = None
    problem: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _note_held(self)


class Lines(Struct, frozen=True):
    results: list[Line]


class RestoreLine(Struct, frozen=True):
    """The outcome of one deleted file: a file, a problem, or neither while its content is examined."""

    id: str
    status: int
    state: Literal["restoring", "held"] | None = None
    file: File | None = None
    problem: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _note_held(self)


class RestoreLines(Struct, frozen=True):
    results: list[RestoreLine]


class Challenge(Struct, frozen=True):
    """A request to prove possession of a content, by an HMAC over these ranges."""

    id: str
    nonce: str
    user_id: str
    ranges: list[tuple[int, int]]
    algorithm: str
    expires_at: datetime


# Answers about an upload, told apart by `state`.


class Open(Struct, frozen=True, tag_field="state", tag="uploading"):
    upload: Upload


class Merging(Struct, frozen=True, tag_field="state", tag="merging"):
    upload: Upload


class Complete(Struct, frozen=True, tag_field="state", tag="complete"):
    file: File


class Held(Complete, frozen=True, tag_field="state", tag="held"):
    """The upload is whole, and a gate has not decided on its file yet."""

    def __post_init__(self) -> None:
        _note_held(self)


class Challenged(Struct, frozen=True, tag_field="state", tag="challenge"):
    """The server has the content, and gives it for a proof."""

    challenge: Challenge


class Acknowledged(Struct, frozen=True, tag_field="state", tag="uploading"):
    received_bytes: int
    received_chunks: int
    chunk_count: int
    duplicate: bool


UploadStatus = Open | Merging | Complete | Held
Opened = Open | Merging | Complete | Held | Challenged
Sent = Acknowledged | Merging | Complete | Held
