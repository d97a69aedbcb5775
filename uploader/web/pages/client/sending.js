// What is said to the server of one file, and how its bytes get there: four chunks at once, each until it counts. The server's
// list of missing chunks is the truth at every step.

import { Problem, Retrying } from "./api.js";
import { Queue, fileOf, isMissing } from "./plan.js";

export const CONNECTIONS = 4;
const ROUNDS = 10;
const FIRST_LOOK_SECONDS = 0.1;
const LONGEST_LOOK_SECONDS = 2;

/** A part of the work that can be ended alone. */
export class Part {
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

export class Sending {
  /** Of the upload that bytes were sent to. */
  uploadId = null;

  /** What Uploading has of these; the last chunk waits until `told` is open. */
  constructor({ api, slots, file, meter, gate, signal }, told) {
    Object.assign(this, { api, slots, file, meter, gate, signal, told });
  }

  /** Throws if the file is no longer what it was when it was chosen. */
  async check() {
    try {
      await this.file.slice(0, 1).arrayBuffer();
    } catch {
      throw new Problem("file-changed");
    }
  }

  options(signal) {
    const onRetry = (problem, seconds) => this.meter.retrying(problem, seconds);
    return { signal, onRetry, patienceSeconds: Infinity };
  }

  async call(method, path, body, { signal = this.signal, headers } = {}) {
    const answer = await this.api.request(method, path, { ...this.options(signal), body, headers });
    this.meter.answered();
    return answer;
  }

  async standing(uploadId, signal) {
    return this.call("GET", `/uploads/${uploadId}`, undefined, { signal });
  }

  /** Send what is missing until the upload is a file. */
  async finish(standing, signal) {
    let rounds = 0;
    while (!standing.file) {
      const { upload } = standing;
      this.uploadId = upload.id;
      this.meter.opened(upload);
      if (standing.state === "merging") standing = await this.#waitForMerge(upload.id, signal);
      else if (rounds === ROUNDS) throw new Problem("content-differs");
      else if (upload.missing.length) {
        rounds += 1;
        standing = await this.#sendMissing(upload, signal);
      } else standing = await this.#merge(upload.id, signal);
    }
    const file = fileOf(standing);
    this.meter.complete(file);
    return file;
  }

  async #waitForMerge(uploadId, signal) {
    let pauseSeconds = FIRST_LOOK_SECONDS;
    for (;;) {
      const standing = await this.standing(uploadId, signal);
      if (standing.state !== "merging") return standing;
      this.meter.merging(standing.upload.merged_bytes);
      await new Promise((resolve) => setTimeout(resolve, pauseSeconds * 1000));
      pauseSeconds = Math.min(pauseSeconds * 2, LONGEST_LOOK_SECONDS);
    }
  }

  async #merge(uploadId, signal) {
    try {
      return await this.call("POST", `/uploads/${uploadId}/merge`, undefined, { signal });
    } catch (problem) {
      if (problem.code !== "chunks-missing") throw problem;
      return this.standing(uploadId, signal);
    }
  }

  /** Send all chunks that the server misses; where it stands then. The first error ends the others. */
  async #sendMissing(upload, signal) {
    const queue = new Queue(upload.missing, { holdLast: !this.told.open });
    const count = Math.min(CONNECTIONS, queue.length);
    const workers = Array.from({ length: count }, () => new Part(signal, (own) => this.#sendFrom(queue, upload, own)));
    try {
      const standings = await Promise.all(workers.map((worker) => worker.promise));
      return standings.find((standing) => standing) ?? (await this.standing(upload.id, signal));
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
        await this.told.wait(signal);
        queue.release();
        continue;
      }
      const answer = await this.slots.hold(signal, () => this.#send(upload, number, signal));
      standing = answer.file || answer.state === "merging" ? answer : null;
    }
    return standing;
  }

  /** One chunk, until it counts. After a failure the server is asked first: the answer alone may have been lost. */
  async #send(upload, number, signal) {
    const retrying = new Retrying(this.options(signal));
    for (;;) {
      try {
        return await this.#sendOnce(upload, number, signal);
      } catch (problem) {
        if (problem.code === "unreachable") await this.check();
        if (problem.code !== "chunks-missing") await retrying.pause(problem); // else others are missing: ours counts
      }
      const standing = await this.standing(upload.id, signal);
      if (standing.state !== "uploading" || !isMissing(standing.upload.missing, number)) return { ...standing };
    }
  }

  async #sendOnce(upload, number, signal) {
    const offset = number * upload.chunk_size;
    const blob = this.file.slice(offset, Math.min(offset + upload.chunk_size, upload.size));
    return this.put(`/uploads/${upload.id}/chunks/${number}`, blob, signal);
  }

  async put(path, blob, signal) {
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
