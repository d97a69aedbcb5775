"""`python -m tests.support.macos ARGUMENTS`: the command line on a Python without what Linux alone has."""

import fcntl
import importlib
import os
import select
import signal
import socket
import sys
import sysconfig
from types import ModuleType

_ONLY_LINUX: dict[ModuleType, tuple[str, ...]] = {
    os: (
        *("O_DIRECT", "O_NOATIME", "O_PATH", "O_TMPFILE", "RWF_DSYNC", "RWF_NOWAIT", "POSIX_FADV_DONTNEED"),
        *("POSIX_FADV_SEQUENTIAL", "posix_fadvise", "posix_fallocate", "fdatasync", "copy_file_range", "splice"),
        *("sched_getaffinity", "sched_setaffinity", "memfd_create", "eventfd", "pidfd_open", "getrandom", "pipe2"),
        *("getxattr", "listxattr", "setxattr", "removexattr", "getresuid", "setns", "unshare"),
    ),
    fcntl: ("F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW", "F_ADD_SEALS", "F_SETPIPE_SZ", "F_SETLEASE", "F_NOTIFY"),
    select: ("epoll",),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGRTMIN", "SIGPWR"),
    socket: (
        *("SO_PEERCRED", "SO_BINDTODEVICE", "TCP_CORK", "TCP_INFO", "TCP_KEEPIDLE", "TCP_QUICKACK"),
        "TCP_USER_TIMEOUT",
    ),
}


def main() -> None:
    for module, names in _ONLY_LINUX.items():
        for name in names:
            vars(module).pop(name, None)
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on, and there by the one that is gone
        os.process_cpu_count = os.cpu_count
    # Python's own parts look at the platform, too, and this Python was built for Linux: they look before.
    for name in ("asyncio", "urllib.request"):
        importlib.import_module(name)
    sysconfig.get_config_vars()
    sys.platform = "darwin"
    from uploader.cli import main as command_line

    command_line(prog_name="uploader")


if __name__ == "__main__":
    main()
