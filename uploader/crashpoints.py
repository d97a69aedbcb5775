"""Places between two durable effects where a test can let the process end. Refuses to do anything unless it is armed.

`UPLOADER_TEST_CRASH_AT=<name>[:<nth>]` arms the nth passing (the first by default) of one point. It is read once, and is
no setting: unarmed, a point costs next to nothing.
"""

import itertools
import os
import signal
from collections.abc import Callable

NAMES = (
    "migrate.after_statement",
    "directory.after_mkdir",
    "installation.after_proposal",
    "installation.after_fact",
    "installation.after_mark",
    "owner.after_token_file",
    "user.after_commit",
    "sweep.after_claim",
    "sweep.after_rebuild",
    "open.after_mkdir",
    "open.after_data_file",
    "open.after_digest_file",
    "open.after_map_file",
    "open.after_directory_sync",
    "open.after_create",
    "open.after_commit",
    "tell.after_commit",
    "order.after_commit",
    "join.after_link",
    "join.after_maps",
    "join.after_commit",
    "hydrate.after_rebuild",
    "chunk.after_data_write",
    "chunk.after_data_sync",
    "chunk.after_map_record",
    "chunk.after_map_sync",
    "chunk.after_record",
    "tail.after_map_record",
    "tail.after_map_sync",
    "tail.after_record",
    "grow.after_commit",
    "length.after_commit",
    "length.after_data",
    "length.after_map_record",
    "length.after_map",
    "frontier.after_save",
    "flush.after_claim",
    "flush.after_commit",
    "flush.after_ack",
    "merge.after_account",
    "merge.after_data_sync",
    "merge.after_digest_write",
    "blob.after_link",
    "blob.after_own_link",
    "blob.after_rename",
    "blob.after_directory_sync",
    "arrival.after_write",
    "arrival.after_sync",
    "signature.after_draft",
    "blob.after_draft",
    "whole.after_commit",
    "merge.after_commit",
    "instant.after_commit",
    "withdraw.after_commit",
    "withdraw.after_digest",
    "withdraw.after_tail",
    "withdraw.after_map_record",
    "withdraw.after_map",
    "close.after_announce",
    "close.after_commit",
    "clear.after_forget",
    "discard.after_unlink",
    "delete.after_commit",
    "collect.after_unlink",
    "tidy.after_forget",
    "remove.after_unlink",
    "month.after_rmdir",
    "stray.after_unlink",
    "trash.after_link",
    "trash.after_rename",
    "trash.after_purge",
    "md5.after_blob",
    "heal.after_restore",
    "repair.after_commit",
    "reset.after_key",
    "reset.after_keys",
    "backup.after_dump",
    "backup.after_blobs",
    "backup.after_note",
    "backup.after_removal",
    "restore.after_mark",
    "restore.after_blobs",
    # Of a store on S3.
    "mark.after_proposal",
    "mark.after_mark",
    "object.after_multipart",
    "object.after_open",
    "object.after_part",
    "object.after_row",
    "object.after_tail",
    "object.after_last_part",
    "object.after_freeze",
    "object.after_parts",
    "object.after_complete",
    "object.after_digest",
    "object.after_remove",
    "join.after_complete",
    "join.after_pieces",
    "arrival.after_put",
    "signature.after_put",
    "trash.after_delete",
)

_name, _, _nth = os.environ.get("UPLOADER_TEST_CRASH_AT", "").partition(":")
_passings = itertools.count(1)


def _end_at(name: str) -> None:
    """End this process as a kill would, if this point is armed."""
    if name == _name and next(_passings) == int(_nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)


# Unarmed it is a built-in function that looks at the name and does nothing.
crash_point: Callable[[str], object] = _end_at if _name else bool
