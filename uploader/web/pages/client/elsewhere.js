// Which of a person's open uploads somebody works on, in another tab or on another device: those that move between two looks
// at the server's list. Pure but for what it remembers.

// So long after its last byte an upload is taken for interrupted; a slow one, whose chunks take longer, has three times as
// long as its chunks took.
const QUIET_SECONDS = 20;
const LONGEST_QUIET_SECONDS = 600;
// So long one that was not seen before is looked at closely.
const NEW_SECONDS = 8;

export class Elsewhere {
  #seen = new Map();

  /** Learn the server's list of open uploads as it was at `now`, in seconds. */
  look(uploads, now) {
    const seen = new Map();
    for (const upload of uploads) seen.set(upload.id, this.#noted(upload, now));
    this.#seen = seen;
  }

  #noted({ id, received_bytes: bytes, expires_at: expiresAt, state }, now) {
    const before = this.#seen.get(id);
    if (!before) return { bytes, expiresAt, state, since: now, movedAt: null, quietSeconds: QUIET_SECONDS, moved: 0 };
    const moved = bytes - before.bytes;
    if (moved <= 0 && expiresAt === before.expiresAt) return { ...before, state, moved: 0 };
    const gap = now - (before.movedAt ?? before.since);
    const quietSeconds = Math.min(LONGEST_QUIET_SECONDS, Math.max(before.quietSeconds, 3 * gap));
    return { ...before, bytes, expiresAt, state, moved: Math.max(0, moved), movedAt: now, quietSeconds };
  }

  isRunning(id, now) {
    const seen = this.#seen.get(id);
    if (!seen) return false;
    return seen.state === "merging" || (seen.movedAt !== null && now - seen.movedAt <= seen.quietSeconds);
  }

  /** How many of its bytes came between the last two looks. */
  movedBytes(id) {
    return this.#seen.get(id)?.moved ?? 0;
  }

  /** Whether another look is worth it soon. */
  isBusy(now) {
    return [...this.#seen].some(([id, { since }]) => now - since < NEW_SECONDS || this.isRunning(id, now));
  }
}
