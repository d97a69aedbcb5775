"""Places between two durable effects where a test can let the process end. Refuses to do anything unless it is armed.

`UPLOADER_TEST_CRASH_AT=<name>[:<nth>]` arms the nth passing (the first by default) of one point. It is read once, and is
no setting: unarmed, a point costs next to nothing.
"""

import itertools
import os
import signal
from collections.abc import Callable

# What is done, and after which of its durable effects a process may end, in their order.
_EFFECTS = (
    ("migrate", "statement"),
    ("directory", "mkdir"),
    ("installation", "proposal fact mark"),
    ("owner", "token_file"),
    ("user", "commit"),
    ("sweep", "claim rebuild"),
    ("open", "mkdir data_file digest_file map_file directory_sync create commit"),
    ("tell", "commit"),
    ("order", "commit"),
    ("join", "link maps commit"),
    ("hydrate", "rebuild"),
    ("chunk", "data_write data_sync map_record map_sync record"),
    ("tail", "map_record map_sync record"),
    ("grow", "commit"),
    ("length", "commit data map_record map"),
    ("frontier", "save"),
    ("flush", "claim commit ack"),
    ("merge", "account data_sync digest_write commit"),
    ("blob", "link own_link rename checksums directory_sync draft"),
    ("checksums", "draft"),
    ("arrival", "write sync"),
    ("signature", "draft"),
    ("whole", "commit"),
    ("instant", "commit"),
    ("withdraw", "commit digest tail map_record map"),
    ("close", "announce commit"),
    ("clear", "forget"),
    ("discard", "unlink"),
    ("delete", "commit"),
    ("collect", "unlink"),
    ("bulk", "begin range"),
    ("undelete", "row place commit"),
    ("tidy", "forget"),
    ("remove", "unlink"),
    ("month", "rmdir"),
    ("stray", "unlink"),
    ("trash", "link rename purge"),
    ("md5", "blob"),
    ("heal", "restore"),
    ("repair", "commit"),
    ("reset", "key keys"),
    ("backup", "dump blobs note removal"),
    ("restore", "mark blobs draft part"),
    ("copy", "draft name"),
    # Of a store on S3.
    ("mark", "proposal mark"),
    ("object", "multipart open part row tail last_part freeze parts complete digest remove"),
    ("join", "complete pieces"),
    ("arrival", "put"),
    ("signature", "put"),
    ("trash", "delete"),
)
NAMES = tuple(f"{work}.after_{effect}" for work, effects in _EFFECTS for effect in effects.split())

_name, _, _nth = os.environ.get("UPLOADER_TEST_CRASH_AT", "").partition(":")
_passings = itertools.count(1)


def _end_at(name: str) -> None:
    if name == _name and next(_passings) == int(_nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)


# Unarmed it is a built-in function that looks at the name and does nothing.
crash_point: Callable[[str], object] = _end_at if _name else bool
