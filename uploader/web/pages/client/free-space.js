// Whether files that are added can fit, before any of their bytes is read. Refuses only what the server is sure to refuse.

import { Problem } from "./api.js";

/** What the server will charge at the least before it takes the file. */
function leastBytes({ size, namesakes, ifExists }, openSizes) {
  // The same file again costs nothing, and one that is open has its bytes reserved: by its content it may be either.
  if (openSizes.has(size) || namesakes.some((file) => file.size === size)) return 0;
  if (ifExists !== "replace") return size;
  return Math.max(0, size - namesakes.reduce((sum, file) => sum + file.size, 0));
}

/** The space of a person for what is added at one time. */
export class FreeSpace {
  #promisedBytes;

  /** `usage`: the answer of `GET /me/usage`; `transfers`: all that there are. */
  constructor(usage, transfers) {
    this.usage = usage;
    const waiting = transfers.filter(({ phase, uploadId }) => ["waiting", "hashing"].includes(phase) && !uploadId);
    this.#promisedBytes = waiting.reduce((sum, transfer) => sum + transfer.promisedBytes, 0);
    this.openSizes = new Set(transfers.filter(({ expected }) => expected).map(({ size }) => size));
  }

  /** Promise the transfer its bytes; the problem, if there is not enough. */
  promise(transfer) {
    const bytes = leastBytes(transfer, this.openSizes);
    if (bytes > this.usage.available - this.#promisedBytes) return this.#refused(transfer);
    transfer.promisedBytes = bytes;
    this.#promisedBytes += bytes;
    return null;
  }

  #refused({ size }) {
    const fields = { ...this.usage, requested: size };
    if (!this.#promisedBytes) return new Problem("quota-exceeded", { fields });
    return new Problem("no-room", { fields: { ...fields, promised: this.#promisedBytes } });
  }
}
