// One file on its way, as the page shows it.

import { Problem } from "./api.js";
import { candidates } from "./plan.js";
import { Rate } from "./rate.js";
import { Uploading } from "./uploading.js";
import { Gate } from "./waiting.js";

const NEEDS_FILE = new Set(["other-size", "other-content", "file-changed", "unreadable"]);
// Phases in which nothing of it is on its way from here.
const OVER = new Set(["asked", "complete", "failed", "cancelled", "skipped", "unfinished", "elsewhere"]);

/** Whether other content is there under this name, and stays there. */
function isTaken({ code, fields }) {
  return code === "name-taken" || (code === "upload-gone" && fields.reason === "name-taken");
}

let lastId = 0;

/** Phases: `waiting` → `hashing` → `uploading` → `merging` → `complete`; or `failed`; or `cancelled`. `asked`: its name is taken,
 * the person decides; `skipped`: the name stays taken. Open on the server without a file of this tab: `elsewhere` while it
 * moves, else `unfinished`. */
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
  namesakes = []; // the server's files of this name
  promisedBytes = 0; // what it takes of the person's space
  hashesAlone = false; // not in a batch
  made = null; // the file it became
  unchanged = false; // `made` was there before
  rate = new Rate();
  hashRate = new Rate();
  #controller = null;
  #gate = new Gate(true);

  /** `problem`: why there is no `file`; `into`: a folder on the server, empty or with a slash at its end; `addition`: all that was
   * added together; `ifExists`: `keep`, `replace`, `fail`, or `ask`. Calls `changed()` to be drawn, `moved(bytes)` as bytes
   * leave, `read(bytes)` as they are hashed, `taken()` once the server names the upload. */
  constructor(facts) {
    const { file = null, name, size, into = "", expected = null, addition = null, ifExists = "keep", problem = null } = facts;
    const { changed, moved, read = () => {}, taken } = facts;
    Object.assign(this, { file, name, size, expected, addition, ifExists, problem, changed, moved, read, taken });
    if (problem) this.phase = "failed";
    const slash = name.indexOf("/", into.length);
    this.folder = slash < 0 ? "" : name.slice(0, slash);
    this.prefix = slash < 0 ? into : name.slice(0, slash + 1);
  }

  /** When the file was changed, as the server is told. */
  get modifiedAt() {
    return new Date(this.file.lastModified).toISOString();
  }

  get isRunning() {
    return this.#controller !== null;
  }

  get isOver() {
    return OVER.has(this.phase);
  }

  /** Whether only a file that is chosen again can mend it. */
  get needsFile() {
    return this.phase === "failed" && NEEDS_FILE.has(this.problem.code);
  }

  get canRetry() {
    return this.phase === "failed" && this.file !== null;
  }

  /** The server's files of this name and size. */
  get there() {
    return candidates(this.namesakes, this);
  }

  /** What the server is told of those of its name. */
  get told() {
    return this.ifExists === "ask" ? "fail" : this.ifExists;
  }

  /** Whether only its hash tells if the person is asked. */
  get isInDoubt() {
    return this.ifExists === "ask" && this.there.length > 0 && !this.namesakes.some((file) => file.damaged);
  }

  /** Whether the person is asked in any case. */
  get isOther() {
    const isOther = !this.namesakes.some((file) => file.size === this.size);
    return this.ifExists === "ask" && this.namesakes.length > 0 && isOther;
  }

  /** Whether it is complete without a byte sent. */
  get wasThere() {
    return this.phase === "complete" && (this.unchanged || this.made.instant);
  }

  /** Whether gates have yet to let it pass. */
  get isHeld() {
    return this.phase === "complete" && this.made.held === true;
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

  /** Until both digests are computed; null: unknown. */
  get hashSecondsLeft() {
    const perSecond = this.hashRate.perSecond;
    return perSecond > 0 ? (this.size - this.hashedBytes) / perSecond : null;
  }

  /** Upload it; resolves at its end. */
  async run(shared) {
    this.#controller = new AbortController();
    const { file, name, expected, modifiedAt, there, told: ifExists, isInDoubt } = this;
    this.phase = "hashing";
    this.hashedBytes = 0;
    this.hashRate.clear();
    this.problem = null;
    this.beginAnew();
    try {
      const how = { meter: this, gate: this.#gate, signal: this.#controller.signal };
      const what = { file, name, expected, modifiedAt, there, ifExists, isInDoubt };
      this.succeed(await new Uploading(shared, { ...what, ...how }).run());
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

  /** Its name is taken: ask the person. */
  ask() {
    this.phase = "asked";
    this.retry = null;
    this.changed();
  }

  skip() {
    this.phase = "skipped";
    this.changed();
  }

  fail(error) {
    if (this.ifExists === "ask" && error instanceof Problem && isTaken(error)) {
      this.expected = null; // if it is gone on with, then as a new one
      this.ask();
      return;
    }
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

  /** End it here; what has arrived stays for the next one. */
  stop() {
    this.phase = "cancelled";
    this.#controller?.abort();
    this.changed();
  }

  /** End it, on the server too. */
  async cancel(api) {
    this.stop();
    await this.withdraw(api);
  }

  /** End what is open of it on the server. Throws Problem. */
  async withdraw(api) {
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
    this.promisedBytes = 0;
    this.#setGate(false);
    this.changed();
  }

  // What the upload tells

  hashed(bytes) {
    const more = Math.max(0, bytes - this.hashedBytes);
    this.hashRate.add(more);
    this.read(more);
    this.hashedBytes = bytes;
    this.changed();
  }

  /** The server seems to have these bytes: wait for the digests. */
  comparing() {
    this.phase = "hashing";
    this.rate.clear();
    this.changed();
  }

  /** It is sent whole, without an upload. */
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

  /** A chunk leaves: `progress` gets its bytes, `landed` its end. */
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
