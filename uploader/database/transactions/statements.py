"""The statements that each file takes, put together once: to build one costs several times what it costs to run it."""

from typing import Any

from sqlalchemy import BigInteger, BindParameter, bindparam, delete, insert, select, update
from sqlalchemy.dialects.mysql import insert as mysql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from uploader.database.models import blob, file, put_away, upload, user_info


def _bytes(name: str) -> BindParameter[int]:
    return bindparam(name, type_=BigInteger)


_users = user_info.c
_OF_USER = update(user_info).where(_users.user_id == bindparam("of_user"))
_THAT_HAS_ROOM = _OF_USER.where(_users.total_space - _users.use_space_finished - _users.reserved >= _bytes("more"))
RESERVE = _THAT_HAS_ROOM.values(reserved=_users.reserved + _bytes("more"))
RELEASE = _OF_USER.values(reserved=_users.reserved - _bytes("less"))
ADD_FINISHED = _OF_USER.values(use_space_finished=_users.use_space_finished + _bytes("more"))
SETTLE_USER = _OF_USER.values(
    use_space_unfinished=_users.use_space_unfinished - _bytes("flushed"),
    reserved=_users.reserved - _bytes("size"),
    use_space_finished=_users.use_space_finished + _bytes("finished"),
)

INSERT_UPLOAD = insert(upload)
TELL_DIGESTS = (
    update(upload)
    .where(upload.c.id == bindparam("of_upload"))
    .values({name: bindparam(f"told_{name}") for name in ("md5", "sha256")})
)
RESIZE_UPLOAD = (
    update(upload)
    .where(upload.c.id == bindparam("of_upload"))
    .values({name: bindparam(f"new_{name}") for name in ("size", "length_known", "updated_at")})
)
CLOSE_UPLOAD = (
    update(upload)
    .where(upload.c.id == bindparam("of_upload"))
    .values(
        {name: bindparam(f"new_{name}") for name in ("state", "close_reason", "file_id", "md5", "closed_at")}
        | {"open_flag": None, "updated_at": bindparam("new_closed_at")}
    )
)

INSERT_FILE = insert(file)
DELETE_FILE = delete(file).where(file.c.id == bindparam("removed"))
# Of one that goes for its name: who renames it asks nobody, and then it is not the one that was meant.
DELETE_NAMED_FILE = DELETE_FILE.where(file.c.name == bindparam("of_name"))

_OF_BLOB = blob.c.sha256 == bindparam("of_blob")
LOCK_BLOB = select(blob.c.sha256).where(_OF_BLOB).with_for_update()
LOCK_REFS = select(blob.c.refs, blob.c.size, blob.c.location).where(_OF_BLOB).with_for_update()
DELETE_BLOB = delete(blob).where(_OF_BLOB)
LOCK_DAMAGED = select(blob.c.damaged).where(_OF_BLOB).with_for_update()
# Whoever adds a ref in this way places bytes of their own.
_PLACED: dict[str, Any] = {
    "damaged": False,
    "scrubbed_at": None,
    "reread_at": None,
    "created_at": bindparam("placed_at"),
}
_MORE = {"refs": blob.c.refs + 1, **_PLACED}
ADD_REF = {
    "sqlite": sqlite_insert(blob).on_conflict_do_update(index_elements=["sha256"], set_=_MORE),
    "mysql": mysql_insert(blob).on_duplicate_key_update(**_MORE),
}
# Where it was not known.
FILL_MD5 = {
    table.name: update(table)
    .where(table.c.sha256 == bindparam("of_content"), table.c.md5.is_(None))
    .values(md5=bindparam("computed"))
    for table in (blob, file)
}
TAKE_REF = update(blob).where(blob.c.sha256 == bindparam("taken"), blob.c.refs > 0).values(refs=blob.c.refs + 1)
# Where the bytes of contents lie, in a store that has locations.
LOCATED = select(blob.c.sha256, blob.c.size, blob.c.location).where(
    blob.c.sha256.in_(bindparam("of_contents", expanding=True)), blob.c.location.is_not(None)
)
RELOCATE = update(blob).where(blob.c.sha256 == bindparam("of_content")).values(location=bindparam("new_location"))
# One that is there stays.
PUT_AWAY = {
    "sqlite": sqlite_insert(put_away).on_conflict_do_nothing(index_elements=["object_key"]),
    "mysql": mysql_insert(put_away).on_duplicate_key_update(object_key=put_away.c.object_key),
}
BRING_BACK = delete(put_away).where(put_away.c.object_key.in_(bindparam("keys", expanding=True)))
DROP_REFS = update(blob).where(blob.c.sha256 == bindparam("dropped")).values(refs=blob.c.refs - _bytes("fewer"))
