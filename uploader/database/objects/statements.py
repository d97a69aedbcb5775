"""The statements of what a store on S3 writes down, put together once."""

from typing import Any

from sqlalchemy import BindParameter, and_, bindparam, delete, insert, or_, select, union_all, update

from uploader.database.models import blob, chunk, multipart, piece, put_away

# Uploads

_rows = multipart.c
_OF_UPLOAD = _rows.upload_id == bindparam("of_upload")
READ = select(multipart).where(_OF_UPLOAD)
# Nobody changes its chunks meanwhile, and others may read, too.
READ_SHARED = READ.with_for_update(read=True)
LOCK = READ.with_for_update()
APPENDER = select(_rows.appender).where(_OF_UPLOAD)
OPENED_BEFORE = (
    select(multipart)
    .where(_rows.opened_at < bindparam("moment"), _rows.upload_id > bindparam("after"))
    .order_by(_rows.upload_id)
    .limit(bindparam("most"))
)
OPEN = insert(multipart)
FORGET = delete(multipart).where(_OF_UPLOAD)

_CHANGE = update(multipart).where(_OF_UPLOAD)
_BYTES: dict[str, BindParameter[Any]] = {
    name: bindparam(f"new_{name}") for name in ("tail_key", "tail_number", "tail_length", "written_at")
}
NOTE_BYTES = _CHANGE.values(_BYTES)
CLAIM = _CHANGE.values(appender=bindparam("new_appender"))
FREEZE = _CHANGE.values(frozen=True, fence=_rows.fence + 1)

_NO_DIGEST = dict.fromkeys(("digest_position", "digest_state", "digest_md5", "digest_sha256"))
_DIGEST: dict[str, BindParameter[Any]] = {name: bindparam(f"new_{name}") for name in _NO_DIGEST}
NOTE_BYTES_AND_DIGEST = _CHANGE.values(_BYTES | _DIGEST)
FORGET_DIGEST = _CHANGE.values(_NO_DIGEST)
WITHDRAW = _CHANGE.values(
    {name: bindparam(f"new_{name}") for name in ("tail_key", "tail_number", "tail_length", "multipart_id")}
    | {"frozen": False, "fence": _rows.fence + 1}
    | _NO_DIGEST
)
_position = bindparam("new_digest_position", type_=_rows.digest_position.type)
_SAME_PLACE = and_(
    _rows.digest_position == _position,
    or_(_rows.digest_sha256.is_(None), bindparam("new_digest_sha256", type_=_rows.digest_sha256.type).is_not(None)),
)
# Only forwards.
SAVE_DIGEST = _CHANGE.where(
    _rows.fence == bindparam("of_fence"),
    or_(_rows.digest_position.is_(None), _rows.digest_position < _position, _SAME_PLACE),
).values(_DIGEST)

# Chunks

_chunks = chunk.c
_OF_CHUNKS = _chunks.upload_id == bindparam("of_upload")
CHUNKS = select(_chunks.number, _chunks.etag, _chunks.object_key).where(_OF_CHUNKS).order_by(_chunks.number)
HAS_CHUNK = select(_chunks.number).where(_OF_CHUNKS, _chunks.number == bindparam("of_number"))
CHUNK = CHUNKS.where(_chunks.number == bindparam("of_number"))
ADD_CHUNK = insert(chunk)
WITHDRAW_CHUNKS = delete(chunk).where(_OF_CHUNKS, _chunks.number.in_(bindparam("numbers", expanding=True)))
FORGET_CHUNKS = delete(chunk).where(_OF_CHUNKS)

# Pieces of wholes

_pieces = piece.c
_OF_WHOLE = _pieces.whole_id == bindparam("of_whole")
PIECES = select(_pieces.object_key, _pieces.size).where(_OF_WHOLE).order_by(_pieces.position)
ADD_PIECE = insert(piece)
FORGET_PIECES = delete(piece).where(_OF_WHOLE)

OTHER_OBJECTS = union_all(
    select(_chunks.object_key).where(_OF_CHUNKS, _chunks.object_key != bindparam("of_key")),
    select(_pieces.object_key).where(_OF_WHOLE),
)

# Contents

_KEYS: BindParameter[list[str]] = bindparam("keys", expanding=True)
LOCATIONS = select(blob.c.sha256, blob.c.location).where(
    blob.c.sha256.in_(bindparam("sha256s", expanding=True)), blob.c.location.is_not(None)
)
CONTENTS_AT = select(blob.c.location, blob.c.sha256).where(blob.c.location.in_(_KEYS))
# One statement, so that a key that moves from one place to another is seen in one of them.
NAMED = union_all(
    *(
        select(column).where(column.in_(_KEYS))
        for column in (
            blob.c.location,
            chunk.c.object_key,
            multipart.c.tail_key,
            _pieces.object_key,
            put_away.c.object_key,
        )
    )
)
KEPT = union_all(
    *(select(column).where(column.in_(_KEYS)) for column in (blob.c.location, put_away.c.object_key)),
    select(_pieces.object_key).where(_pieces.object_key.in_(_KEYS), _pieces.whole_id != bindparam("but_of")),
)
UPLOADS_OF = select(_rows.upload_id, _rows.multipart_id).where(
    _rows.upload_id.in_(bindparam("upload_ids", expanding=True))
)

# The trash

_kept = put_away.c
_OF_KEY = _kept.object_key == bindparam("of_key")
LOCK_CONTENT_AT = select(blob.c.sha256).where(blob.c.location == bindparam("of_key")).with_for_update()
ALL_PUT_AWAY = (
    select(put_away).where(_kept.object_key > bindparam("after")).order_by(_kept.object_key).limit(bindparam("most"))
)
COPIES = (
    select(put_away).where(_kept.name == bindparam("of_content")).order_by(_kept.created_at.desc(), _kept.object_key)
)
TAKE_OUT = delete(put_away).where(_OF_KEY)
