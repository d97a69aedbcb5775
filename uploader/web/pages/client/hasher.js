// Digests, keys, proofs and batches of files, from workers: one for small files, one for each digest of large ones, one for
// what is short, and one for batches.

import { Api, Problem } from "./api.js";
import { HASH_FIRST_BYTES } from "./plan.js";

// One that does not start although the server gives its module never will.
const STARTS = 3;
const WORKER = new URL("./hash-worker.js", import.meta.url);
// A page of another origin may start no worker from here, but one of its own that imports this one.
const STARTED = WORKER.origin === location.origin ? WORKER : URL.createObjectURL(importing(WORKER));

function importing(url) {
  return new Blob([`import ${JSON.stringify(url.href)};`], { type: "text/javascript" });
}

function failed() {
  return new Problem("worker-failed", { detail: `${WORKER.href} is missing, or forbidden by the policy (CSP) of this page.` });
}

class Lane {
  #worker = null;
  #jobs = new Map();
  #nextId = 1;
  // In a row.
  #failures = 0;

  run(job, facts, { signal, onHashed } = {}) {
    signal?.throwIfAborted();
    this.#worker ??= this.#start();
    const id = this.#nextId++;
    const message = { id, job, ...facts };
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
        message,
        onHashed,
        resolve: (result) => settle(resolve, result),
        reject: (problem) => settle(reject, problem),
      });
      signal?.addEventListener("abort", aborted);
      this.#worker.postMessage(message);
    });
  }

  #start() {
    const worker = new Worker(STARTED, { type: "module" });
    worker.onmessage = ({ data }) => {
      this.#failures = 0;
      const job = this.#jobs.get(data.id);
      // It was cancelled.
      if (!job) return;
      if (data.hashedBytes !== undefined) job.onHashed?.(data.hashedBytes);
      else if (data.problem) job.reject(data.problem === "worker-failed" ? failed() : new Problem(data.problem));
      else job.resolve(data.result);
    };
    worker.onerror = () => this.#startAgain();
    return worker;
  }

  /** No browser says why a worker did not start. Mostly the network went while its modules came: then when it is back. */
  async #startAgain() {
    this.#failures += 1;
    try {
      if (this.#failures === STARTS) throw failed();
      await new Api({ base: WORKER.href }).request("GET", "", { raw: true, patienceSeconds: Infinity });
      this.#worker = this.#start();
      for (const { message } of this.#jobs.values()) this.#worker.postMessage(message);
    } catch {
      [this.#worker, this.#failures] = [null, 0];
      for (const job of [...this.#jobs.values()]) job.reject(failed());
    }
  }
}

export class Hasher {
  #small = new Lane();
  #md5 = new Lane();
  #sha256 = new Lane();
  #short = new Lane();
  #packs = new Lane();

  /** Promises: `md5`, of a large file long before the other, and `both`, {md5, sha256}. `onHashed` is told how many bytes are
   * done with. They fail with Problem, or AbortError. */
  digests(file, options) {
    return file.size <= HASH_FIRST_BYTES ? this.#atOnce(file, options) : this.#sideBySide(file, options);
  }

  #atOnce(file, options) {
    const both = this.#small.run("digests", { file }, options);
    return handled({ md5: both.then(({ md5 }) => md5), both });
  }

  #sideBySide(file, { signal, onHashed } = {}) {
    const hashedBytes = { md5: 0, sha256: 0 };
    const run = (lane, job) => {
      const told = (bytes) => {
        hashedBytes[job] = bytes;
        onHashed?.(Math.min(hashedBytes.md5, hashedBytes.sha256));
      };
      return lane.run(job, { file }, { signal, onHashed: told });
    };
    const [md5, sha256] = [run(this.#md5, "md5"), run(this.#sha256, "sha256")];
    return handled({ md5, both: Promise.all([md5, sha256]).then(([md5, sha256]) => ({ md5, sha256 })) });
  }

  /** `{archive, outcomes}`: the archive of those of `members` ({file, name, isInDoubt, sha256s}) whose SHA-256 is not among
   * theirs, and that are not in doubt; and for each of all members `{packed, sha256}`, or the code of its `problem`. */
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

/** Whoever waits for them is told how they fail; that nobody does is no error. */
function handled(promises) {
  for (const promise of Object.values(promises)) promise.catch(() => {});
  return promises;
}
