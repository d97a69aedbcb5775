"""Points between two durable effects where a test can kill the process. They do nothing unless a test arms one.

`UPLOADER_TEST_CRASH_AT=<name>[:<nth>]` arms the nth passing (by default the first) of one point. It is read once, and
is not a setting. Unarmed points cost next to nothing.
"""

import itertools
import os
import signal
from collections.abc import Callable

# Each operation with its durable effects, in order. A process may be killed after each effect.
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
    # For a store on S3.
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


# Unarmed, a built-in function that does nothing with the name.
crash_point: Callable[[str], object] = _end_at if _name else bool
