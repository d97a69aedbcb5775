"""Places between two durable effects where a test can let the process end. Refuses to do anything unless it is armed.

`UPLOADER_TEST_CRASH_AT=<name>[:<nth>]` arms the nth passing (the first by default) of one point. It is read once, and is
no setting: unarmed, a point costs one comparison.
"""

import itertools
import os
import signal

NAMES = (
    "owner.after_token_file",
    "open.after_mkdir",
    "open.after_data_file",
    "open.after_digest_file",
    "open.after_map_file",
    "open.after_directory_sync",
    "open.after_create",
    "open.after_commit",
    "hydrate.after_rebuild",
    "chunk.after_data_write",
    "chunk.after_data_sync",
    "chunk.after_map_record",
    "chunk.after_map_sync",
    "chunk.after_record",
    "flush.after_claim",
    "flush.after_commit",
    "flush.after_ack",
    "merge.after_data_sync",
    "merge.after_digest_write",
    "merge.after_digest_saved",
    "blob.after_link",
    "blob.after_own_link",
    "blob.after_rename",
    "blob.after_directory_sync",
    "merge.after_commit",
    "instant.after_commit",
    "close.after_announce",
    "close.after_commit",
    "clear.after_forget",
    "discard.after_unlink",
    "delete.after_commit",
    "collect.after_unlink",
)

_name, _, _nth = os.environ.get("UPLOADER_TEST_CRASH_AT", "").partition(":")
_passings = itertools.count(1)


def crash_point(name: str) -> None:
    """End this process as a kill would, if this point is armed."""
    if name == _name and next(_passings) == int(_nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)
