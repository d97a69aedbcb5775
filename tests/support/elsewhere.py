"""`python -m tests.support.elsewhere PLACE ARGUMENTS`: the command line as on a machine where the server can't run: on
macOS, on Windows, beside musl in place of glibc, on a Python of 32 bits."""

import errno
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
# Whole modules of Python that Windows lacks.
_ONLY_POSIX = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")


def _without_linux(platform: str) -> None:
    for module, names in _ONLY_LINUX.items():
        for name in names:
            vars(module).pop(name, None)
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on, and there by the one that is gone
        os.process_cpu_count = os.cpu_count
    # Python's own parts look at the platform, too, and this Python was built for Linux: they look before.
    for name in ("asyncio", "click", "urllib.request"):
        importlib.import_module(name)
    sysconfig.get_config_vars()
    sys.platform = platform


def _as_musl_answers(_name: str | int) -> str | None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def be(place: str) -> None:
    if place == "macos":
        _without_linux("darwin")
    elif place == "windows":
        _without_linux("win32")
        sys.modules.update(dict.fromkeys(_ONLY_POSIX))  # type: ignore[arg-type]  # importing such a module fails
    elif place == "musl":
        os.confstr = _as_musl_answers
    elif place == "32-bit":
        sys.maxsize = (1 << 31) - 1
    else:
        raise ValueError(place)


def main() -> None:
    be(sys.argv.pop(1))
    from uploader.cli import main as command_line

    command_line(prog_name="uploader")


if __name__ == "__main__":
    main()
