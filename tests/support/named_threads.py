"""The command line with the names of its threads told to the kernel, as Python 3.14 does it by itself:
`python -m tests.support.named_threads serve`. Server processes that it starts import this, too. However busy this machine
is, they let go of no core.
"""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from uploader.runtime import cores

_start = threading.Thread.start


def _start_and_name(thread: threading.Thread, *arguments: Any) -> None:
    _start(thread, *arguments)
    with suppress(OSError):  # it has ended already
        Path(f"/proc/self/task/{thread.native_id}/comm").write_text(thread.name)


threading.Thread.start = _start_and_name  # type: ignore[method-assign,assignment]

cores._CONTENDED = 2.0

if __name__ == "__main__":
    from uploader.cli import main

    main()
