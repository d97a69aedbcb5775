"""Two contents with one MD5 and one size: the collision that Wang and Yu published (EUROCRYPT 2005), and what follows it.

MD5 goes block by block, so whatever is appended to both of a colliding pair collides, too.
"""

from dataclasses import dataclass
from functools import cached_property

from tests.support.content import KIB, Content

_ONE = bytes.fromhex(
    "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f89"
    "55ad340609f4b30283e488832571415a085125e8f7cdc99fd91dbdf280373c5b"
    "d8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0"
    "e99f33420f577ee8ce54b67080a80d1ec69821bcb6a8839396f9652b6ff72a70"
)
_OTHER = bytes.fromhex(
    "d131dd02c5e6eec4693d9a0698aff95c2fcab50712467eab4004583eb8fb7f89"
    "55ad340609f4b30283e4888325f1415a085125e8f7cdc99fd91dbd7280373c5b"
    "d8823e3156348f5bae6dacd436c919c6dd53e23487da03fd02396306d248cda0"
    "e99f33420f577ee8ce54b67080280d1ec69821bcb6a8839396f965ab6ff72a70"
)


@dataclass(frozen=True)
class _Twin(Content):
    head: bytes = b""

    @cached_property
    def data(self) -> bytes:
        return self.head + Content(self.size - len(self.head), self.seed).data


def twins(size: int = 3 * 64 * KIB - 100, seed: int = 0) -> tuple[Content, Content]:
    """Two contents of `size` bytes that differ in the first 128."""
    return _Twin(size, seed, head=_ONE), _Twin(size, seed, head=_OTHER)
