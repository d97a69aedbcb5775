// How one file of this device becomes a file on the server: a small one is hashed first, and sent whole if it is one chunk; a
// large one is opened first. Rows and buttons: transfer.js; many small files: batch.js; bytes: sending.js.

import { Problem, Retrying } from "./api.js";
import { HASH_FIRST_BYTES, fileOf } from "./plan.js";
import { Part, Sending } from "./sending.js";
import { Gate } from "./waiting.js";

// How many uploads under one key may have ended before the file is opened by its digests instead.
const KEY_ATTEMPTS = 20;
const MOST_NAMESAKES = 1000;
const NOT_THERE = new Set(["upload-not-found", "upload-gone", "file-not-found", "not-found"]);
const BAD_BYTES = new Set(["md5-mismatch", "sha256-mismatch", "md5-conflict", "sha256-conflict", "bytes-conflict"]);

/** Whether an upload ended, or can't go on, for a reason that a new one does not have. */
function beginsAnew(problem) {
  const reason = problem.code === "upload-gone" ? problem.fields.reason : problem.code;
  return reason === "expired" || BAD_BYTES.has(reason);
}

export class Uploading {
  #told = new Gate(false); // the server has the digests, or has to do without
  #hashing = null;
  #sending;

  /** `shared`: {api, hasher, slots, locks, offers}. `expected`: the upload that the person chose the file for, or null.
   * `there`: the server's files of this name and size; with `isInDoubt`, nothing is sent if all of them have other content.
   * `ifExists`: what happens to others of this name: `keep`, `replace` or `fail`. `meter` is told what happens; nothing new is
   * begun while `gate` is closed; `signal` ends it all. */
  constructor(shared, { file, name, expected, modifiedAt, there, isInDoubt, ifExists = "keep", meter, gate, signal }) {
    Object.assign(this, { ...shared, file, name, expected, modifiedAt, there, isInDoubt, ifExists, meter, gate, signal });
    this.#sending = new Sending(this, this.#told);
  }

  /** The file it became. Throws Problem, or AbortError. */
  async run() {
    if (this.ifExists !== "keep" && !this.offers.times) throw new Problem("server-too-old"); // rather than do something else
    const onHashed = (bytes) => this.meter.hashed(bytes);
    this.#hashing = this.hasher.digests(this.file, { signal: this.signal, onHashed });
    try {
      return await this.#runOnceOrTwice();
    } catch (problem) {
      // What has arrived of the file as it was is of no use to anybody.
      if (problem.code === "file-changed" && this.#sending.uploadId) await this.#cancel(this.#sending.uploadId);
      throw problem;
    }
  }

  async #runOnceOrTwice() {
    try {
      return await this.#run();
    } catch (problem) {
      if (!(problem instanceof Problem) || !beginsAnew(problem)) throw problem;
      // The bytes that were sent before were others, or the upload expired under our hands: once more.
      await this.#sending.check();
      if (this.#sending.uploadId) await this.#cancel(this.#sending.uploadId); // it holds other bytes, too
      this.expected = null;
      this.meter.beginAnew();
      return this.#run();
    }
  }

  async #run() {
    const { expected, file } = this;
    if (expected && expected.size !== file.size) throw new Problem("other-size", { fields: { size: expected.size } });
    const opensFirst = expected ? !expected.md5 : file.size > HASH_FIRST_BYTES && !this.isInDoubt;
    const made = opensFirst ? await this.#openedFirst() : await this.#hashedFirst(await this.#hashing.both);
    const digests = await this.#hashing.both;
    if (made.sha256 !== digests.sha256 || made.size !== file.size) throw new Problem("content-differs");
    return made;
  }

  /** What is told of the file when it is opened. */
  get #facts() {
    return { name: this.name, size: this.file.size, ...(this.offers.times ? this.#wishes : {}) };
  }

  /** What the server is asked beyond keeping the bytes. */
  get #wishes() {
    return { modified_at: this.modifiedAt, ...(this.ifExists === "keep" ? {} : { if_exists: this.ifExists }) };
  }

  // Hashed first

  async #hashedFirst(digests) {
    const same = this.there.find((file) => file.sha256 === digests.sha256);
    if (same) {
      this.meter.found(same);
      return same;
    }
    if (this.isInDoubt) throw new Problem("name-taken");
    if (this.expected || this.file.size > this.offers.wholeBytes) return this.#byDigests(digests);
    return this.locks.hold(digests.md5, this.signal, () => this.#whole(digests));
  }

  /** Send it in one request, unless the server has some of its bytes. */
  async #whole(digests) {
    const { md5, sha256 } = digests;
    const query = new URLSearchParams({ name: this.name, sha256, ...this.#wishes });
    const retrying = new Retrying(this.#sending.options(this.signal));
    for (;;) {
      await this.gate.wait(this.signal);
      const states = await this.#sending.call("POST", "/files/status", { md5s: [md5] });
      if (states[md5].state !== "absent") return this.#byDigestsAlone(digests);
      this.meter.sending();
      try {
        return fileOf(await this.slots.hold(this.signal, () => this.#sending.put(`/files/${md5}?${query}`, this.file, this.signal)));
      } catch (problem) {
        if (problem.code === "unreachable") await this.#sending.check();
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
    const made = await this.#sending.finish(await this.#openByDigests(digests), this.signal);
    if (made.name === this.name) return made;
    // An upload of the same bytes was resumed, under the name it had; now they are there for ours, too.
    return this.expected ? made : this.#sending.finish(await this.#openByDigests(digests), this.signal);
  }

  async #openByDigests(digests) {
    await this.gate.wait(this.signal);
    const open = (instant) =>
      this.#sending.call("POST", `/files/${digests.md5}`, { ...this.#facts, sha256: digests.sha256, instant });
    const opened = await open(true);
    if (opened.state !== "challenge") return opened;
    return (await this.#prove(`/files/${digests.md5}`, digests, opened.challenge)) ?? open(false);
  }

  /** The answer that has the file, if the proof is taken; null: the bytes have to be sent. */
  async #prove(place, digests, challenge) {
    if (challenge.algorithm !== "hmac-sha256") return null;
    const proof = await this.hasher.proof(this.file, digests.sha256, challenge, { signal: this.signal });
    try {
      return await this.#sending.call("POST", `${place}/proof`, { id: challenge.id, name: this.name, proof });
    } catch (problem) {
      if (problem.code !== "proof-failed") throw problem;
      return null;
    }
  }

  // Opened first

  async #openedFirst() {
    await this.gate.wait(this.signal);
    const opened = this.expected ? await this.#sending.standing(this.expected.id) : await this.#openByKey();
    if (!opened) return this.#byDigests(await this.#hashing.both);
    if (opened.file) return fileOf(opened);
    this.#told.set(false);
    const sending = new Part(this.signal, (signal) => this.#sending.finish(opened, signal));
    try {
      this.#endIfThere(sending).catch(() => {}); // then the digests will tell
      const hashed = this.#hashing.both.then(() => false);
      const sent = sending.promise.then(() => true, (error) => (sending.ended ? hashed : Promise.reject(error)));
      if (await Promise.race([sent, hashed])) return await sending.promise;
      const digests = await this.#hashing.both;
      if (this.locks.held(digests.md5)) await sending.end(); // somebody sends the same bytes at this moment
      const work = () => this.#tellAndFinish(opened.upload, digests, sending);
      return await this.locks.hold(digests.md5, this.signal, work);
    } finally {
      await sending.end();
    }
  }

  /** The MD5 finds a content of the caller long before the SHA-256 confirms it. */
  async #endIfThere(sending) {
    const md5 = await this.#hashing.md5;
    const states = await this.#sending.call("POST", "/files/status", { md5s: [md5] });
    if (!["complete", "held"].includes(states[md5].state) || this.#told.open) return;
    this.meter.comparing();
    await sending.end();
  }

  /** The upload under this file's key; null if only the digests can help. */
  async #openByKey() {
    const key = await this.hasher.resumeKey(this.file, this.name, { signal: this.signal });
    for (let attempt = 0; attempt < KEY_ATTEMPTS; attempt += 1) {
      const headers = { "Idempotency-Key": `${key}-${attempt}` };
      try {
        const opened = await this.#sending.call("POST", "/uploads", this.#facts, { headers });
        if (!opened.file) return opened;
        if (opened.file.sha256 === (await this.#hashing.both).sha256) return opened.file.name === this.name ? opened : null;
      } catch (problem) {
        if (["quota-exceeded", "too-many-files"].includes(problem.code) && (await this.#mayBeThere())) return null;
        if (!NOT_THERE.has(problem.code)) throw problem;
        // it was cancelled, has expired, or its file was deleted
      }
    }
    return null;
  }

  /** Whether what does not fit may be there already, or be on its way: else its digests can't help either. */
  async #mayBeThere() {
    const { uploads } = await this.#sending.call("GET", "/uploads");
    if (uploads.some(({ size }) => size === this.file.size)) return true;
    const query = new URLSearchParams({ prefix: this.name, delimiter: "/", limit: MOST_NAMESAKES });
    const { files } = await this.#sending.call("GET", `/me/files?${query}`);
    const takesItsPlace = this.ifExists === "replace"; // then the difference has to fit
    return files.some(({ name, size }) => name === this.name && (takesItsPlace || size === this.file.size));
  }

  async #tellAndFinish(upload, digests, sending) {
    let told;
    try {
      told = await this.#sending.call("PATCH", `/uploads/${upload.id}`, digests);
    } catch (problem) {
      if (problem.code === "upload-exists") return this.#meet(problem.fields.id, upload, digests, sending);
      throw problem;
    }
    if (told.state === "challenge") {
      const place = `/uploads/${upload.id}`;
      told = (await this.#prove(place, digests, told.challenge)) ?? (await this.#sending.standing(upload.id));
    }
    this.#told.set(true);
    if (!told.file) return sending.outcome(() => this.#sending.finish(told, this.signal));
    await sending.end();
    return told.file.name === this.name ? fileOf(told) : this.#byDigestsAlone(digests);
  }

  /** Go on with the fuller of two open uploads of this content. */
  async #meet(otherId, upload, digests, sending) {
    const [own, other] = await Promise.all([this.#sending.standing(upload.id), this.#sending.standing(otherId)]);
    const received = (standing) => standing.upload?.received_bytes ?? 0;
    if (own.state === "uploading" && (other.state !== "uploading" || received(other) >= received(own))) {
      await sending.end();
      await this.#cancel(upload.id);
      return this.#byDigestsAlone(digests);
    }
    // The other one is left to its device. The server computes the digests of ours; `#run` compares them.
    this.#told.set(true);
    return sending.outcome(() => this.#sending.finish(own, this.signal));
  }

  async #cancel(uploadId) {
    try {
      await this.#sending.call("DELETE", `/uploads/${uploadId}`);
    } catch (problem) {
      if (!NOT_THERE.has(problem.code)) throw problem;
    }
  }
}
