// Digests, keys, proofs and batches of files, from workers: one for small files, one for large ones, one for what is short,
// and one for batches.

import { Problem } from "../api.js";
import { HASH_FIRST_BYTES } from "./plan.js";

class Lane {
  #worker = null;
  #jobs = new Map();
  #nextId = 1;

  run(job, facts, { signal, onHashed } = {}) {
    signal?.throwIfAborted();
    this.#worker ??= this.#start();
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      const settle = (action, value) => {
        this.#jobs.delete(id);
        signal?.removeEventListener("abort", aborted);
        action(value);
      };
      const aborted = () => {
        this.#worker?.postMessage({ cancel: id });
        settle(reject, signal.reason);
      };
      this.#jobs.set(id, {
        onHashed,
        resolve: (result) => settle(resolve, result),
        reject: (problem) => settle(reject, problem),
      });
      signal?.addEventListener("abort", aborted);
      this.#worker.postMessage({ id, job, ...facts });
    });
  }

  #start() {
    const worker = new Worker("/static/pages/upload/hash-worker.js", { type: "module" });
    worker.onmessage = ({ data }) => {
      const job = this.#jobs.get(data.id);
      if (!job) return; // it was cancelled
      if (data.hashedBytes !== undefined) job.onHashed?.(data.hashedBytes);
      else if (data.problem) job.reject(new Problem(data.problem));
      else job.resolve(data.result);
    };
    worker.onerror = () => {
      this.#worker = null;
      for (const job of [...this.#jobs.values()]) job.reject(new Problem("unreadable"));
    };
    return worker;
  }
}

export class Hasher {
  #small = new Lane();
  #large = new Lane();
  #short = new Lane();
  #packs = new Lane();

  /** `{md5, sha256}`; `onHashed` is told how many bytes are done. Throws Problem, or AbortError. */
  digests(file, options) {
    const lane = file.size <= HASH_FIRST_BYTES ? this.#small : this.#large;
    return lane.run("digests", { file }, options);
  }

  /** `{archive, outcomes}`: the archive of those of `members` ({file, name, sha256s}) whose SHA-256 is not among theirs, and
   * for each of all members `{packed, sha256}`, or the code of its `problem`. */
  pack(members, options) {
    return this.#packs.run("pack", { members }, options);
  }

  resumeKey(file, name, options) {
    return this.#short.run("resumeKey", { file, name }, options);
  }

  proof(file, sha256, challenge, options) {
    return this.#short.run("proof", { file, sha256, challenge }, options);
  }
}
