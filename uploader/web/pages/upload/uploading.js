// How one file of this device becomes a file on the server: hashed first if it is small, and sent whole where one chunk would
// do; opened first if it is large. The server's list of missing chunks is the truth at every step. Knows nothing of rows and
// buttons (transfer.js), nor of files so small that they share a request (batch.js).

import { Problem, Retrying } from "../api.js";
import { HASH_FIRST_BYTES, Queue, isMissing } from "./plan.js";
import { Gate } from "./waiting.js";

export const CONNECTIONS = 4;
// How many uploads under one key may have ended before the file is opened by its digests instead.
const KEY_ATTEMPTS = 20;
const ROUNDS = 10;
const FIRST_LOOK_SECONDS = 0.1;
const LONGEST_LOOK_SECONDS = 2;
const NOT_THERE = new Set(["upload-not-found", "upload-gone", "file-not-found", "not-found"]);
const BAD_BYTES = new Set(["md5-mismatch", "sha256-mismatch", "md5-conflict", "sha256-conflict"]);

/** Whether an upload ended, or can't go on, for a reason that a new one does not have. */
function beginsAnew(problem) {
  const reason = problem.code === "upload-gone" ? problem.fields.reason : problem.code;
  return reason === "expired" || BAD_BYTES.has(reason);
}

/** A part of the work that can be ended alone. */
class Part {
  ended = false;
  #controller = new AbortController();

  constructor(signal, work) {
    this.promise = work(AbortSignal.any([signal, this.#controller.signal]));
    this.promise.catch(() => {}); // whoever waits for it is told
  }

  async end() {
    this.ended = true;
    this.#controller.abort();
    await this.promise.catch(() => {});
  }

  /** What it came to; what `otherwise` makes of it, if it was ended before. */
  async outcome(otherwise) {
    try {
      return await this.promise;
    } catch (error) {
      if (!this.ended || error.name !== "AbortError") throw error;
      return otherwise();
    }
  }
}

export class Uploading {
  #told = new Gate(false); // the server has the digests, or has to do without
  #hashing = null;
  #uploadId = null; // of the upload that bytes were sent to

  /** `shared`: {api, hasher, slots, locks, offers}. `expected`: the upload that the person chose the file for, or null.
   * `there`: the server's files of this name and size. `meter` is told what happens; nothing new is begun while `gate` is
   * closed; `signal` ends it all. */
  constructor(shared, { file, name, expected, modifiedAt, there, meter, gate, signal }) {
    Object.assign(this, { ...shared, file, name, expected, modifiedAt, there, meter, gate, signal });
  }

  /** The file it became. Throws Problem, or AbortError. */
  async run() {
    const onHashed = (bytes) => this.meter.hashed(bytes);
    this.#hashing = this.hasher.digests(this.file, { signal: this.signal, onHashed });
    this.#hashing.catch(() => {}); // whoever waits for it is told
    try {
      return await this.#runOnceOrTwice();
    } catch (problem) {
      // What has arrived of the file as it was is of no use to anybody.
      if (problem.code === "file-changed" && this.#uploadId) await this.#cancel(this.#uploadId);
      throw problem;
    }
  }

  async #runOnceOrTwice() {
    try {
      return await this.#run();
    } catch (problem) {
      if (!(problem instanceof Problem) || !beginsAnew(problem)) throw problem;
      // The bytes that were sent before were others, or the upload expired under our hands: once more.
      await this.#check();
      this.expected = null;
      this.meter.beginAnew();
      return this.#run();
    }
  }

  async #run() {
    const { expected, file } = this;
    if (expected && expected.size !== file.size) throw new Problem("other-size", { fields: { size: expected.size } });
    const opensFirst = expected ? !expected.md5 : file.size > HASH_FIRST_BYTES;
    const made = opensFirst ? await this.#openedFirst() : await this.#hashedFirst(await this.#hashing);
    const digests = await this.#hashing;
    if (made.sha256 !== digests.sha256 || made.size !== file.size) throw new Problem("content-differs");
    return made;
  }

  /** Throws if the file is no longer what it was when it was chosen. */
  async #check() {
    try {
      await this.file.slice(0, 1).arrayBuffer();
    } catch {
      throw new Problem("file-changed");
    }
  }

  // The calls

  #options(signal) {
    const onRetry = (problem, seconds) => this.meter.retrying(problem, seconds);
    return { signal, onRetry, patienceSeconds: Infinity };
  }

  async #call(method, path, body, { signal = this.signal, headers } = {}) {
    const answer = await this.api.request(method, path, { ...this.#options(signal), body, headers });
    this.meter.answered();
    return answer;
  }

  async #standing(uploadId, signal) {
    return this.#call("GET", `/uploads/${uploadId}`, undefined, { signal });
  }

  /** What is told of the file when it is opened. */
  get #facts() {
    const { name, file, modifiedAt, offers } = this;
    return { name, size: file.size, ...(offers.times ? { modified_at: modifiedAt } : {}) };
  }

  // Hashed first

  async #hashedFirst(digests) {
    const same = this.there.find((file) => file.sha256 === digests.sha256);
    if (same) {
      this.meter.found(same);
      return same;
    }
    if (this.expected || this.file.size > this.offers.wholeBytes) return this.#byDigests(digests);
    return this.locks.hold(digests.md5, this.signal, () => this.#whole(digests));
  }

  /** In one request, so that nothing stays open; unless the server has these bytes, or some of them. */
  async #whole(digests) {
    const { md5, sha256 } = digests;
    const query = new URLSearchParams({ name: this.name, sha256, modified_at: this.modifiedAt });
    const retrying = new Retrying(this.#options(this.signal));
    for (;;) {
      await this.gate.wait(this.signal);
      const states = await this.#call("POST", "/files/status", { md5s: [md5] });
      if (states[md5].state !== "absent") return this.#byDigestsAlone(digests);
      this.meter.sending();
      try {
        return (await this.slots.hold(this.signal, () => this.#put(`/files/${md5}?${query}`, this.file, this.signal))).file;
      } catch (problem) {
        if (problem.code === "unreachable") await this.#check();
        await retrying.pause(problem);
      }
    }
  }

  async #byDigests(digests) {
    if (this.expected?.md5 && this.expected.md5 !== digests.md5) throw new Problem("other-content");
    return this.locks.hold(digests.md5, this.signal, () => this.#byDigestsAlone(digests));
  }

  async #byDigestsAlone(digests) {
    this.#told.set(true);
    const made = await this.#finish(await this.#openByDigests(digests), this.signal);
    if (made.name === this.name) return made;
    // An upload of the same bytes was resumed, under the name it had; now they are there for ours, too.
    return this.expected ? made : this.#finish(await this.#openByDigests(digests), this.signal);
  }

  async #openByDigests(digests) {
    await this.gate.wait(this.signal);
    const open = (instant) =>
      this.#call("POST", `/files/${digests.md5}`, { ...this.#facts, sha256: digests.sha256, instant });
    const opened = await open(true);
    if (opened.state !== "challenge") return opened;
    return (await this.#prove(`/files/${digests.md5}`, digests, opened.challenge)) ?? open(false);
  }

  /** The answer that has the file, if the proof is taken; null: the bytes have to be sent. */
  async #prove(place, digests, challenge) {
    if (challenge.algorithm !== "hmac-sha256") return null;
    const proof = await this.hasher.proof(this.file, digests.sha256, challenge, { signal: this.signal });
    try {
      return await this.#call("POST", `${place}/proof`, { id: challenge.id, name: this.name, proof });
    } catch (problem) {
      if (problem.code !== "proof-failed") throw problem;
      return null;
    }
  }

  // Opened first

  async #openedFirst() {
    await this.gate.wait(this.signal);
    const opened = this.expected ? await this.#standing(this.expected.id) : await this.#openByKey();
    if (!opened) return this.#byDigests(await this.#hashing);
    if (opened.state === "complete") return opened.file;
    this.#told.set(false);
    const sending = new Part(this.signal, (signal) => this.#finish(opened, signal));
    try {
      const sent = sending.promise.then(() => true);
      const hashed = this.#hashing.then(() => false);
      if (await Promise.race([sent, hashed])) return await sending.promise;
      const digests = await this.#hashing;
      if (this.locks.held(digests.md5)) await sending.end(); // somebody sends the same bytes at this moment
      const work = () => this.#tellAndFinish(opened.upload, digests, sending);
      return await this.locks.hold(digests.md5, this.signal, work);
    } finally {
      await sending.end();
    }
  }

  /** The upload under this file's key, begun now or before, here or elsewhere; null if only the digests can help. */
  async #openByKey() {
    const key = await this.hasher.resumeKey(this.file, this.name, { signal: this.signal });
    for (let attempt = 0; attempt < KEY_ATTEMPTS; attempt += 1) {
      const headers = { "Idempotency-Key": `${key}-${attempt}` };
      try {
        const opened = await this.#call("POST", "/uploads", this.#facts, { headers });
        if (opened.state !== "complete") return opened;
        if (opened.file.sha256 === (await this.#hashing).sha256) return opened.file.name === this.name ? opened : null;
      } catch (problem) {
        if (problem.code === "quota-exceeded") return null; // the content may be there already
        if (!NOT_THERE.has(problem.code)) throw problem;
        // it was cancelled, has expired, or its file was deleted
      }
    }
    return null;
  }

  async #tellAndFinish(upload, digests, sending) {
    let told;
    try {
      told = await this.#call("PATCH", `/uploads/${upload.id}`, digests);
    } catch (problem) {
      if (problem.code === "upload-exists") return this.#meet(problem.fields.id, upload, digests, sending);
      if (problem.code && beginsAnew(problem)) {
        // An earlier run sent other bytes of the same size, name and sample: they are mixed with ours now.
        await sending.end();
        await this.#cancel(upload.id);
      }
      throw problem;
    }
    if (told.state === "challenge") {
      const place = `/uploads/${upload.id}`;
      told = (await this.#prove(place, digests, told.challenge)) ?? (await this.#standing(upload.id));
    }
    this.#told.set(true);
    if (told.state !== "complete") return sending.outcome(() => this.#finish(told, this.signal));
    await sending.end();
    return told.file.name === this.name ? told.file : this.#byDigestsAlone(digests);
  }

  /** The caller has another open upload of this content, perhaps from another device: go on with the fuller one. */
  async #meet(otherId, upload, digests, sending) {
    const [own, other] = await Promise.all([this.#standing(upload.id), this.#standing(otherId)]);
    const received = (standing) => standing.upload?.received_bytes ?? 0;
    if (own.state === "uploading" && (other.state !== "uploading" || received(other) >= received(own))) {
      await sending.end();
      await this.#cancel(upload.id);
      return this.#byDigestsAlone(digests);
    }
    // The other one is left to its device. The server computes the digests of ours; `#run` compares them.
    this.#told.set(true);
    return sending.outcome(() => this.#finish(own, this.signal));
  }

  async #cancel(uploadId) {
    try {
      await this.#call("DELETE", `/uploads/${uploadId}`);
    } catch (problem) {
      if (!NOT_THERE.has(problem.code)) throw problem;
    }
  }

  // Sending

  /** Send what is missing until the upload is a file. */
  async #finish(standing, signal) {
    let rounds = 0;
    while (standing.state !== "complete") {
      const { upload } = standing;
      this.#uploadId = upload.id;
      this.meter.opened(upload);
      if (standing.state === "merging") standing = await this.#waitForMerge(upload.id, signal);
      else if (rounds === ROUNDS) throw new Problem("content-differs");
      else if (upload.missing.length) {
        rounds += 1;
        standing = await this.#sendMissing(upload, signal);
      } else standing = await this.#merge(upload.id, signal);
    }
    this.meter.complete(standing.file);
    return standing.file;
  }

  async #waitForMerge(uploadId, signal) {
    let pauseSeconds = FIRST_LOOK_SECONDS;
    for (;;) {
      const standing = await this.#standing(uploadId, signal);
      if (standing.state !== "merging") return standing;
      this.meter.merging(standing.upload.merged_bytes);
      await new Promise((resolve) => setTimeout(resolve, pauseSeconds * 1000));
      pauseSeconds = Math.min(pauseSeconds * 2, LONGEST_LOOK_SECONDS);
    }
  }

  async #merge(uploadId, signal) {
    try {
      return await this.#call("POST", `/uploads/${uploadId}/merge`, undefined, { signal });
    } catch (problem) {
      if (problem.code !== "chunks-missing") throw problem;
      return this.#standing(uploadId, signal);
    }
  }

  /** Send all chunks that the server misses; where it stands then. The first error ends the others. */
  async #sendMissing(upload, signal) {
    const queue = new Queue(upload.missing, { holdLast: !this.#told.open });
    const count = Math.min(CONNECTIONS, queue.length);
    const workers = Array.from({ length: count }, () => new Part(signal, (own) => this.#sendFrom(queue, upload, own)));
    try {
      const standings = await Promise.all(workers.map((worker) => worker.promise));
      return standings.find((standing) => standing) ?? (await this.#standing(upload.id, signal));
    } finally {
      await Promise.all(workers.map((worker) => worker.end()));
    }
  }

  /** Send chunk after chunk; where the upload stands, if the last answer said it. */
  async #sendFrom(queue, upload, signal) {
    let standing = null;
    while (queue.length) {
      await this.gate.wait(signal);
      const number = queue.take();
      if (number === null) {
        await this.#told.wait(signal);
        queue.release();
        continue;
      }
      const answer = await this.slots.hold(signal, () => this.#send(upload, number, signal));
      standing = ["merging", "complete"].includes(answer.state) ? answer : null;
    }
    return standing;
  }

  /** One chunk, until it counts. After a failure the server is asked first: the answer alone may have been lost. */
  async #send(upload, number, signal) {
    const retrying = new Retrying(this.#options(signal));
    for (;;) {
      try {
        return await this.#sendOnce(upload, number, signal);
      } catch (problem) {
        if (problem.code === "unreachable") await this.#check();
        if (problem.code !== "chunks-missing") await retrying.pause(problem); // else others are missing: ours counts
      }
      const standing = await this.#standing(upload.id, signal);
      if (standing.state !== "uploading" || !isMissing(standing.upload.missing, number)) return { ...standing };
    }
  }

  async #sendOnce(upload, number, signal) {
    const offset = number * upload.chunk_size;
    const blob = this.file.slice(offset, Math.min(offset + upload.chunk_size, upload.size));
    return this.#put(`/uploads/${upload.id}/chunks/${number}`, blob, signal);
  }

  async #put(path, blob, signal) {
    const moving = this.meter.moving();
    try {
      const answer = await this.api.sendOnce("PUT", path, blob, { signal, onProgress: moving.progress });
      this.meter.answered(answer.received_bytes);
      return answer;
    } finally {
      moving.landed();
    }
  }
}
