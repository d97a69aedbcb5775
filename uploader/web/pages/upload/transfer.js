// One file on its way, as the page shows it: how far it is, and what a person may do with it.

import { Problem } from "../api.js";
import { Rate } from "./rate.js";
import { Uploading } from "./uploading.js";
import { Gate } from "./waiting.js";

const NEEDS_FILE = new Set(["other-size", "other-content", "file-changed", "unreadable"]);

let lastId = 0;

/** Phases: `waiting` → `hashing` → `uploading` → `merging` → `complete`; or `failed`; or `cancelled`. And `unfinished`:
 * open on the server, without a file of this device. */
export class Transfer {
  id = (lastId += 1);
  phase = "waiting";
  paused = false;
  hashedBytes = 0;
  receivedBytes = 0;
  movingBytes = 0;
  mergedBytes = 0;
  retry = null; // the problem that is waited out
  problem = null;
  uploadId = null;
  there = []; // the server's files of this name and size: what it need not be sent for
  made = null; // the file it became
  unchanged = false; // `made` was there before
  rate = new Rate();
  #controller = null;
  #gate = new Gate(true);

  /** `changed()` is called whenever something is to be drawn; `moved(bytes)` as bytes leave; `taken()` when the server has
   * said which upload this is. */
  constructor({ file = null, name, size, expected = null, changed, moved, taken }) {
    Object.assign(this, { file, name, size, expected, changed, moved, taken });
  }

  /** When the file was changed, as the server is told. */
  get modifiedAt() {
    return new Date(this.file.lastModified).toISOString();
  }

  get isRunning() {
    return this.#controller !== null;
  }

  get isOver() {
    return ["complete", "failed", "cancelled", "unfinished"].includes(this.phase);
  }

  /** Whether it failed in a way that only another file, or the same one chosen again, can mend. */
  get needsFile() {
    return this.phase === "failed" && NEEDS_FILE.has(this.problem.code);
  }

  get canPause() {
    return ["waiting", "hashing", "uploading"].includes(this.phase);
  }

  /** Bytes that have left this device or need not. */
  get doneBytes() {
    return this.phase === "complete" ? this.size : Math.min(this.size, this.receivedBytes + this.movingBytes);
  }

  get secondsLeft() {
    const perSecond = this.rate.perSecond;
    return perSecond > 0 ? (this.size - this.doneBytes) / perSecond : null;
  }

  /** Bring the file to the server; resolves when it is over, however it ends. */
  async run(shared) {
    this.#controller = new AbortController();
    const { file, name, expected, modifiedAt, there } = this;
    this.phase = "hashing";
    this.problem = null;
    this.beginAnew();
    try {
      const what = { file, name, expected, modifiedAt, there, meter: this, gate: this.#gate, signal: this.#controller.signal };
      this.succeed(await new Uploading(shared, what).run());
    } catch (error) {
      if (this.phase !== "cancelled") this.fail(error);
    } finally {
      this.#controller.abort(); // whatever still hashes
      this.#controller = null;
      this.retry = null;
      this.changed();
    }
  }

  // In a batch

  /** It is sent with others. */
  joined() {
    this.phase = "uploading";
    this.retry = null;
    this.changed();
  }

  /** It was not sent after all. */
  left() {
    this.phase = "waiting";
    this.retry = null;
    this.changed();
  }

  // How it ends

  succeed(file) {
    this.complete(file);
    this.phase = "complete";
    this.retry = null;
  }

  /** It was there before: nothing was sent. */
  found(file) {
    this.unchanged = true;
    this.succeed(file);
  }

  fail(error) {
    this.problem = error instanceof Problem ? error : new Problem("failed");
    if (!(error instanceof Problem)) console.error(error);
    this.phase = "failed";
    this.retry = null;
    this.changed();
  }

  // What a person may do

  /** Begin no further chunk; those that are on their way arrive. */
  setPaused(paused) {
    if (!this.canPause || this.paused === paused) return;
    this.#setGate(paused);
    this.rate.clear();
    this.changed();
  }

  #setGate(paused) {
    this.paused = paused;
    this.#gate.set(!paused);
  }

  /** End it, on the server too. */
  async cancel(api) {
    this.phase = "cancelled";
    this.#controller?.abort();
    this.changed();
    if (!this.uploadId) return;
    try {
      await api.request("DELETE", `/uploads/${this.uploadId}`);
    } catch (problem) {
      if (!["upload-not-found", "upload-gone"].includes(problem.code)) throw problem;
    }
  }

  /** As if it were new. */
  reset() {
    this.phase = "waiting";
    this.problem = null;
    this.#setGate(false);
    this.changed();
  }

  // What the upload tells

  hashed(bytes) {
    this.hashedBytes = bytes;
    this.changed();
  }

  /** It is sent whole, without an upload that could be gone on with. */
  sending() {
    this.phase = "uploading";
    this.changed();
  }

  opened(upload) {
    if (this.uploadId !== upload.id) {
      this.uploadId = upload.id;
      this.taken();
    }
    this.phase = "uploading";
    this.receivedBytes = upload.received_bytes;
    this.changed();
  }

  /** A chunk that leaves: `progress` is told how much of it has left, `landed` that it is no longer on its way. */
  moving() {
    let sent = 0;
    const advance = (bytes) => {
      this.movingBytes += bytes;
      sent += bytes;
    };
    return {
      progress: (bytes) => {
        const more = bytes - sent;
        advance(more);
        this.rate.add(more);
        this.moved(more);
        this.changed();
      },
      landed: () => {
        advance(-sent);
        this.changed();
      },
    };
  }

  answered(receivedBytes) {
    this.retry = null;
    if (receivedBytes > this.receivedBytes) this.receivedBytes = receivedBytes;
  }

  retrying(problem) {
    this.retry = problem;
    this.rate.clear();
    this.changed();
  }

  merging(mergedBytes) {
    this.phase = "merging";
    this.#setGate(false); // all bytes are there: the rest is not this device's
    this.mergedBytes = mergedBytes ?? 0;
    this.changed();
  }

  complete(file) {
    this.made = file;
    this.#setGate(false);
    this.receivedBytes = this.size;
    this.changed();
  }

  beginAnew() {
    this.receivedBytes = 0;
    this.mergedBytes = 0;
    this.uploadId = this.expected?.id ?? null;
    this.made = null;
    this.unchanged = false;
    this.rate.clear();
    this.changed();
  }
}
