// What to send and in which order, from what the server says. Pure; the same plan as that of the command line.

// Up to this size a file is hashed before anything is sent, because instant upload may save sending it.
export const HASH_FIRST_BYTES = 64 << 20;

const SAMPLE_BLOCK_BYTES = 4096;
const SAMPLE_BLOCKS = 256;

/** The chunks that one upload still has to send, in rising order: the server hashes along the contiguous prefix.
 *
 * With `holdLast` the last of them is kept back until `release`: it waits for the digests, so that the server can compare
 * before it makes a file of the bytes.
 */
export class Queue {
  #numbers = [];
  #next = 0;
  #held;

  constructor(missing, { holdLast = false } = {}) {
    for (const [first, last] of missing) for (let number = first; number <= last; number += 1) this.#numbers.push(number);
    this.#held = holdLast ? 1 : 0;
  }

  /** How many were not taken yet. */
  get length() {
    return this.#numbers.length - this.#next;
  }

  /** The next chunk to send; null if there is none, or only the one that is held. */
  take() {
    if (this.length <= this.#held) return null;
    this.#next += 1;
    return this.#numbers[this.#next - 1];
  }

  release() {
    this.#held = 0;
  }
}

export function isMissing(missing, number) {
  return missing.some(([first, last]) => first <= number && number <= last);
}

/** Those of the server's files of one name that a file of the device may be: then nothing has to be done for it. */
export function candidates(there, { size, ifExists }) {
  if (ifExists === "replace" && there.length > 1) return []; // the others have to go
  return there.filter((file) => file.size === size && !file.damaged);
}

/** The file that an upload became, as an answer tells; `held`: gates have yet to let it pass. None: it is no file so far. */
export function fileOf({ state, file }) {
  return state === "held" ? { ...file, held: true } : file;
}

/** Whether a file of the server, of the same name and size, is taken for this one of the device without a look inside.
 * Systems differ in the decimals of a second that they keep. */
export function isUnchanged({ modified_at: modifiedAt }, { lastModified }) {
  if (!modifiedAt) return false;
  const told = Date.parse(modifiedAt);
  return Math.abs(told - lastModified) <= 1 || told === Math.floor(lastModified / 1000) * 1000;
}

/** Offset and length of the blocks that stand for a file: evenly spread, the first and the last bytes among them. */
export function sampleRanges(size) {
  if (size <= SAMPLE_BLOCK_BYTES * SAMPLE_BLOCKS) return size ? [[0, size]] : [];
  const lastOffset = size - SAMPLE_BLOCK_BYTES;
  return Array.from({ length: SAMPLE_BLOCKS }, (_, number) => [
    Math.floor((number * lastOffset) / (SAMPLE_BLOCKS - 1)),
    SAMPLE_BLOCK_BYTES,
  ]);
}
