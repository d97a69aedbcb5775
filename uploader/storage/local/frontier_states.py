"""What the follower of an upload does at a time, as a literal table, and from which figures on. Pure.

The follower is the one task of a process that brings the digests of an open upload up with its chunks (`frontier.py`).
"""

from enum import StrEnum

# Smaller chunks are gathered until there are so many bytes: to take up the digests costs more than to hash one such chunk.
GATHERED_BYTES = 1 << 20
# The sender of a chunk that begins further ahead of the digests waits until they are near, so that little is left to hash
# when the last chunk comes; or until they have come so much nearer.
NEAR_BYTES = 16 << 20
NEARER_BYTES = 128 << 20
# So many looks have to find the digests of another process where they were before the follower takes them to stand still.
LOOKS_IN_VAIN = 10


class FollowerState(StrEnum):
    """What a follower does."""

    GATHERING = "gathering"  # it waits until enough bytes came to take up the digests for
    HASHING = "hashing"  # it takes up the digests, if no other process has them, and advances them
    WATCHING = "watching"  # another process has the digests; the follower looks how far they come
    ENDED = "ended"  # it is done, or what it does failed; the next chunk starts another follower


# From each state, the states that may follow. Each may end, because the process stops or the upload is gone.
TRANSITIONS: dict[FollowerState, frozenset[FollowerState]] = {
    FollowerState.GATHERING: frozenset({FollowerState.HASHING, FollowerState.ENDED}),
    FollowerState.HASHING: frozenset({FollowerState.GATHERING, FollowerState.WATCHING, FollowerState.ENDED}),
    FollowerState.WATCHING: frozenset({FollowerState.HASHING, FollowerState.GATHERING, FollowerState.ENDED}),
    FollowerState.ENDED: frozenset(),
}
