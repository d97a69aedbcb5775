"""What the follower of an upload does at a time, as a literal table, and what it knows. Pure: no tasks, files or clocks.

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


class State(StrEnum):
    """What a follower does."""

    GATHERING = "gathering"  # it waits until enough bytes came to take up the digests for
    HASHING = "hashing"  # it takes up the digests, if no other process has them, and advances them
    WATCHING = "watching"  # another process has the digests; the follower looks how far they come
    ENDED = "ended"  # it is done, or what it does failed; the next chunk starts another follower


# From each state, the states that may follow. Each may end, because the process stops or the upload is gone.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.GATHERING: frozenset({State.HASHING, State.ENDED}),
    State.HASHING: frozenset({State.GATHERING, State.WATCHING, State.ENDED}),
    State.WATCHING: frozenset({State.HASHING, State.GATHERING, State.ENDED}),
    State.ENDED: frozenset(),
}


def is_gathered(chunk_size: int) -> bool:
    """Whether chunks of this size are gathered; larger ones are hashed from memory while they are written."""
    return chunk_size < GATHERED_BYTES


class Progress:
    """The state of one follower, and the facts that decide about the next one."""

    def __init__(self) -> None:
        self.state = State.GATHERING
        # Whether the merge, or the end of the process, waits for the follower to end.
        self.hurried = False
        # How far the digests are, in bytes; None while no process is known to bring them any further.
        self.position: int | None = None
        self._waiting_bytes = 0
        self._looks_in_vain = 0

    def enter(self, state: State) -> None:
        """The one place where the state changes."""
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state
        if state is State.HASHING:
            self._waiting_bytes = 0  # those are what it hashes now; chunks that come from here on need another round

    def grow(self, length: int) -> None:
        """A chunk was stored, or is about to be."""
        self._waiting_bytes += length

    def has_enough(self) -> bool:
        """Whether a follower that gathers should hash now."""
        return self.hurried or self._waiting_bytes >= GATHERED_BYTES

    def after_hashing(self, *, had_digests: bool) -> State:
        """What to do after a round of hashing; `had_digests` is False if another process has them."""
        return self._after_round() if had_digests else State.WATCHING

    def look(self, position: int) -> bool:
        """Note how far another process is; returns whether to try for the digests once more, because they still move."""
        self._looks_in_vain = self._looks_in_vain + 1 if position == self.position else 0
        self.position = position
        return self._looks_in_vain < LOOKS_IN_VAIN and not self.hurried

    def after_watching(self, *, once_more: bool) -> State:
        return State.HASHING if once_more else self._after_round()

    def _after_round(self) -> State:
        return State.GATHERING if self._waiting_bytes else State.ENDED

    def keeps_waiting(self, offset: int, begun: int) -> bool:
        """Whether the sender of the chunk at `offset` has to wait on; the digests were at `begun` when it began to."""
        if self.position is None:
            return False
        return offset - self.position > NEAR_BYTES and self.position - begun < NEARER_BYTES
