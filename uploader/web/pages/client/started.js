// Uploads that an application started, as it holds them in its hands: how far they are, what can be done, what they came to.

import { Offers } from "./offers.js";
import { Transfer } from "./transfer.js";
import { Transfers } from "./transfers.js";
import { Gate } from "./waiting.js";

const TELL_EVERY_MS = 100;

/** Calls `look` soon after something changed, and not more often than anybody can read. */
class Looking {
  #timer = 0;

  constructor(look) {
    this.look = look;
  }

  soon() {
    this.#timer ||= setTimeout(() => this.now(), TELL_EVERY_MS);
  }

  now() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.look();
  }
}

function stoppedBy(signal) {
  return signal?.aborted ? signal.reason : new DOMException("The upload was stopped.", "AbortError");
}

function progressOf(transfer) {
  const { name, size, phase: state, paused, receivedBytes, doneBytes: sentBytes, hashedBytes, mergedBytes, retry } = transfer;
  const bytesPerSecond = transfer.rate.perSecond || null;
  const seconds = { bytesPerSecond, secondsLeft: secondsLeftOf(transfer), retrying: retry };
  return { name, size, state, paused, receivedBytes, sentBytes, hashedBytes, mergedBytes, ...seconds };
}

/** The last chunk waits for the digests: what takes longer counts. */
function secondsLeftOf({ phase, size, hashedBytes, secondsLeft, hashSecondsLeft }) {
  const hashing = hashedBytes < size ? hashSecondsLeft : null;
  if (phase !== "uploading" || secondsLeft === null) return phase === "hashing" ? hashing : null;
  return Math.max(secondsLeft, hashing ?? 0);
}

function outcomeOf({ name, file: source, phase, made, unchanged, problem }) {
  if (phase === "complete") return { name, source, file: made, how: howOf(made, unchanged), problem: null };
  return { name, source, file: null, how: null, problem };
}

function howOf(made, unchanged) {
  if (unchanged) return "present";
  return made.instant ? "instant" : "sent";
}

/** Calls `stop` when `signal` aborts, until what comes of `over` is known. */
function stopWith(signal, stop, over) {
  signal?.addEventListener("abort", stop);
  const left = () => signal?.removeEventListener("abort", stop);
  over.then(left, left);
  if (signal?.aborted) stop();
}

export class OneUpload {
  #transfer;
  #shared;
  #asking = new AbortController();

  constructor(shared, picked, { onProgress, signal }) {
    this.#shared = shared;
    const looking = new Looking(() => onProgress?.(this.progress));
    this.#transfer = new Transfer({ ...picked, changed: () => onProgress && looking.soon(), moved() {}, taken() {} });
    this.result = this.#run(signal, looking);
    stopWith(signal, () => this.stop(), this.result);
  }

  get progress() {
    return progressOf(this.#transfer);
  }

  pause() {
    this.#transfer.setPaused(true);
  }

  resume() {
    this.#transfer.setPaused(false);
  }

  stop() {
    if (!this.#transfer.isOver) this.#transfer.stop();
    this.#asking.abort();
  }

  async cancel() {
    if (this.#transfer.isOver) return;
    this.#asking.abort();
    await this.#transfer.cancel(this.#shared.api);
  }

  async #run(signal, looking) {
    const transfer = this.#transfer;
    const options = { signal: this.#asking.signal, patienceSeconds: Infinity, onRetry: (problem) => transfer.retrying(problem) };
    try {
      this.#shared.offers ??= await new Offers(this.#shared.api).ask(options);
      if (!transfer.isOver) await transfer.run(this.#shared);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    } finally {
      looking.now();
    }
    if (transfer.phase === "complete") return transfer.made;
    throw transfer.problem ?? stoppedBy(signal);
  }
}

/** One of many. */
class Member {
  #transfers;
  #transfer;

  constructor(transfers, transfer) {
    this.#transfers = transfers;
    this.#transfer = transfer;
  }

  get progress() {
    return progressOf(this.#transfer);
  }

  get outcome() {
    return this.#transfer.isOver ? outcomeOf(this.#transfer) : null;
  }

  pause() {
    this.#transfers.setPaused([this.#transfer], true);
  }

  resume() {
    this.#transfers.setPaused([this.#transfer], false);
  }

  async cancel() {
    if (!this.#transfer.isOver) await this.#transfers.cancel(this.#transfer);
  }

  retry() {
    if (this.#transfer.phase === "failed") this.#transfers.retry([this.#transfer]);
  }
}

export class ManyUploads {
  #transfers;
  #members = new Map();
  #isPaused = false;
  #isTaken = false; // or nothing more is wanted
  #problem = null; // with what was to be taken
  #over = new Gate(false);
  #looking;

  constructor(shared, picked, { onProgress, onFile, signal }) {
    this.#transfers = new Transfers(shared.api, shared);
    this.#looking = new Looking(() => {
      this.#over.set(this.#isTaken && this.#transfers.all.every((transfer) => transfer.isOver));
      onProgress?.(this.progress);
    });
    this.#transfers.addEventListener("list", () => this.#isPaused && this.#transfers.setPaused(this.#transfers.all, true));
    for (const kind of ["change", "list"]) this.#transfers.addEventListener(kind, () => this.#looking.soon());
    for (const kind of ["complete", "failed"]) {
      this.#transfers.addEventListener(kind, ({ detail }) => detail.forEach((transfer) => onFile?.(outcomeOf(transfer))));
    }
    this.#take(picked);
    stopWith(signal, () => this.stop(), this.#over.wait());
  }

  async #take(picked) {
    try {
      await this.#transfers.take(this.#wanted(picked));
    } catch (problem) {
      this.#problem = problem;
    }
    this.#end();
  }

  async *#wanted(picked) {
    for await (const some of picked) {
      if (this.#isTaken) return;
      yield some;
    }
  }

  #end() {
    this.#isTaken = true;
    this.#looking.now();
  }

  /** Of all, as soon as nothing of them is going on. */
  get result() {
    return this.#over.wait().then(() => {
      if (this.#problem) throw this.#problem;
      return this.#transfers.all.filter(({ phase }) => ["complete", "failed"].includes(phase)).map(outcomeOf);
    });
  }

  /** Each file, as long as it was not cancelled. */
  get transfers() {
    for (const transfer of this.#transfers.all) {
      if (!this.#members.has(transfer)) this.#members.set(transfer, new Member(this.#transfers, transfer));
    }
    return this.#transfers.all.map((transfer) => this.#members.get(transfer));
  }

  get progress() {
    const all = this.#transfers.all.filter(({ phase }) => phase !== "cancelled");
    const sum = (figure) => all.reduce((total, transfer) => total + figure(transfer), 0);
    const [size, sentBytes] = [sum((transfer) => transfer.size), sum((transfer) => transfer.doneBytes)];
    const bytesPerSecond = this.#transfers.rate.perSecond || null;
    return {
      files: all.length,
      complete: sum(({ phase }) => phase === "complete"),
      failed: sum(({ phase }) => phase === "failed"),
      size,
      sentBytes,
      bytesPerSecond,
      secondsLeft: bytesPerSecond && (size - sentBytes) / bytesPerSecond,
      retrying: all.find(({ retry }) => retry)?.retry ?? null,
    };
  }

  pause() {
    this.#setPaused(true);
  }

  resume() {
    this.#setPaused(false);
  }

  #setPaused(paused) {
    this.#isPaused = paused;
    this.#transfers.setPaused(this.#transfers.all, paused);
  }

  stop() {
    this.#transfers.stopAll();
    this.#end();
  }

  async cancel() {
    const cancelled = this.#transfers.cancelAll();
    this.#end();
    await cancelled;
  }

  /** Those that failed, once more. */
  retry() {
    this.#over.set(false);
    this.#transfers.retry();
    this.#looking.soon();
  }
}
