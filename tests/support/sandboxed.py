"""Runs a program as a unit of systemd lets it call the kernel: `python sandboxed.py UNIT PROGRAM ARGUMENT…`.

What SystemCallFilter and MemoryDenyWriteExecute mean, as systemd 252 has it, by the same library (seccomp_rule_add(3)).
"""

import errno
import os
import subprocess
import sys
from collections.abc import Iterable
from ctypes import CDLL, Structure, c_char_p, c_int, c_uint, c_uint32, c_uint64, c_void_p
from pathlib import Path

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_MASKED_EQUAL = 7
_WRITE, _EXECUTE, _SHM_EXECUTE = 2, 4, 0o100000


class _Comparison(Structure):
    _fields_ = (("arg", c_uint), ("op", c_int), ("mask", c_uint64), ("value", c_uint64))


class _Filter:
    def __init__(self, otherwise: int) -> None:
        self._library = CDLL("libseccomp.so.2", use_errno=True)
        self._library.seccomp_init.restype = c_void_p
        self._context = c_void_p(self._library.seccomp_init(c_uint32(otherwise)))

    def add(self, action: int, call: str, argument: int | None = None, bits: int = 0) -> None:
        """For a call; if one of its arguments has all of these bits."""
        resolve = self._library.seccomp_syscall_resolve_name
        resolve.argtypes = (c_char_p,)
        number = resolve(call.encode())
        if number < 0:  # there is none of this name here
            return
        compared = (_Comparison * 1)(_Comparison(argument or 0, _MASKED_EQUAL, bits, bits))
        count = 0 if argument is None else 1
        result = self._library.seccomp_rule_add_array(
            self._context, c_uint32(action), c_int(number), c_uint(count), compared
        )
        assert result == 0, f"{call}: {os.strerror(-result)}"

    def load(self) -> None:
        assert self._library.seccomp_load(self._context) == 0


def _calls_of(names: Iterable[str]) -> set[str]:
    """Of groups, which begin with an @, and of single calls."""
    calls = set()
    for name in names:
        if not name.startswith("@"):
            calls.add(name)
            continue
        said = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True)
        members = [line.strip() for line in said.stdout.splitlines()[1:]]
        calls |= _calls_of(member for member in members if member and not member.startswith("#"))
    return calls


def _values(unit: str, name: str) -> list[str]:
    return [line.removeprefix(f"{name}=") for line in unit.splitlines() if line.startswith(f"{name}=")]


def main(unit: str, program: str, *arguments: str) -> None:
    text = Path(unit).read_text()
    allowed: set[str] = set()
    for value in _values(text, "SystemCallFilter"):
        named = _calls_of(value.removeprefix("~").split())
        allowed = allowed - named if value.startswith("~") else allowed | named
    assert allowed
    calls = _Filter(_REFUSE)
    for call in allowed:
        calls.add(_ALLOW, call)
    memory = _Filter(_ALLOW)
    if _values(text, "MemoryDenyWriteExecute") == ["yes"]:
        memory.add(_REFUSE, "mmap", 2, _WRITE | _EXECUTE)
        memory.add(_REFUSE, "mprotect", 2, _EXECUTE)
        memory.add(_REFUSE, "pkey_mprotect", 2, _EXECUTE)
        memory.add(_REFUSE, "shmat", 2, _SHM_EXECUTE)
    memory.load()
    calls.load()
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
