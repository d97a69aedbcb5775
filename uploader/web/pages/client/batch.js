// Small files that share a request: packed beside the page, sent together, each with an answer of its own.

import { Problem, Retrying } from "./api.js";
import { fileOf } from "./plan.js";

const LARGEST_COUNT = 500;
// What a member costs besides its bytes: two headers, a pax record, and the rest of a block.
const MEMBER_BYTES = 2048;

/** As many of the waiting transfers as one batch has room for, in their order, and whether it has no room for another; those
 * that are paused stay, and those for which another answer holds than for the first. */
export function nextBatch(waiting, batchBytes) {
  const members = [];
  let bytes = 0;
  for (const transfer of waiting) {
    if (transfer.paused || (members.length && transfer.ifExists !== members[0].ifExists)) continue;
    bytes += transfer.size + MEMBER_BYTES;
    if (members.length && bytes > batchBytes) return { members, isFull: true };
    members.push(transfer);
    if (members.length === LARGEST_COUNT) return { members, isFull: true };
  }
  return { members, isFull: false };
}

export class Batch {
  #controller = new AbortController();

  /** `shared`: {api, hasher, slots}. `moved(bytes)` is told what leaves; `ended(transfers)` which of them are over: they leave
   * the batch, and may be begun anew elsewhere. */
  constructor(shared, transfers, { moved, ended }) {
    Object.assign(this, { ...shared, transfers, moved, tell: ended });
  }

  /** Until each member is over, or paused. */
  async run() {
    const onRetry = (problem) => {
      for (const transfer of this.#going()) transfer.retrying(problem);
    };
    const retrying = new Retrying({ signal: this.#controller.signal, onRetry, patienceSeconds: Infinity });
    try {
      for (let members = this.#going(); members.length; members = this.#going()) {
        const problem = await this.#attempt(members);
        if (problem) await retrying.pause(problem);
      }
    } catch (error) {
      this.#fail(error);
    }
    this.transfers = this.#open();
    for (const transfer of this.transfers) transfer.left();
  }

  /** To be called when members were cancelled: without any, nothing more is sent. */
  end() {
    if (!this.#open().length) this.#controller.abort();
  }

  #open() {
    return this.transfers.filter((transfer) => !transfer.isOver);
  }

  #going() {
    return this.#open().filter((transfer) => !transfer.paused);
  }

  #fail(error) {
    if (error.name === "AbortError") return;
    const open = this.#open();
    for (const transfer of open) transfer.fail(error);
    this.#ended(open);
  }

  #ended(transfers) {
    const over = new Set(transfers);
    this.transfers = this.transfers.filter((transfer) => !over.has(transfer));
    this.tell(transfers);
  }

  /** Send them once; the problem of those for which it may help to send them again, if there are any. */
  async #attempt(members) {
    for (const transfer of members) transfer.joined();
    const { archive, outcomes } = await this.#pack(members);
    const sent = members.filter((_, number) => outcomes[number].packed);
    this.#settleUnsent(members, outcomes);
    if (!sent.length) return null;
    try {
      const { results } = await this.slots.hold(this.#controller.signal, () => this.#send(archive, sent));
      return this.#settle(sent, results);
    } catch (problem) {
      if (!problem.retryable) throw problem;
      return problem;
    }
  }

  #pack(members) {
    const facts = members.map(({ file, name, there, isInDoubt }) => {
      return { file, name, isInDoubt, sha256s: there.map(({ sha256 }) => sha256) };
    });
    return this.hasher.pack(facts, { signal: this.#controller.signal });
  }

  /** Those that could not be read, those whose bytes turned out to be there, and those of which others are. */
  #settleUnsent(members, outcomes) {
    const settled = members.filter((_, number) => !outcomes[number].packed);
    members.forEach((transfer, number) => {
      const { packed, problem, sha256 } = outcomes[number];
      if (packed || transfer.isOver) return;
      const same = transfer.there.find((file) => file.sha256 === sha256);
      if (problem) transfer.fail(new Problem(problem));
      else if (same) transfer.found(same);
      else transfer.ask();
    });
    this.#ended(settled);
  }

  async #send(archive, sent) {
    const size = sent.reduce((sum, transfer) => sum + transfer.size, 0);
    let [leftBytes, gone, goneBytes] = [0, 0, 0];
    const onProgress = (bytes) => {
      const left = Math.min(1, bytes / archive.size) * size;
      this.moved(left - leftBytes);
      leftBytes = left;
      for (; gone < sent.length && goneBytes + sent[gone].size <= left; gone += 1) {
        goneBytes += sent[gone].size;
        sent[gone].movingBytes = sent[gone].size;
      }
    };
    const [{ told }] = sent;
    const path = told === "keep" ? "/files/batch" : `/files/batch?if_exists=${told}`;
    try {
      return await this.api.sendOnce("POST", path, archive, { signal: this.#controller.signal, onProgress });
    } finally {
      for (const transfer of sent) transfer.movingBytes = 0;
    }
  }

  #settle(sent, results) {
    let again = null;
    sent.forEach((transfer, number) => {
      const result = results[number] ?? { problem: { code: "bad-answer" } };
      const [{ status, problem }, file] = [result, fileOf(result)];
      if (transfer.phase === "cancelled") this.#undo(status, file);
      else if (file) transfer.succeed(file);
      else {
        const told = new Problem(problem.code, { ...problem, fields: problem });
        if (told.retryable) again = told;
        else transfer.fail(told);
      }
    });
    this.#ended(sent.filter((transfer) => transfer.isOver));
    return again;
  }

  /** It was cancelled while it was on its way. */
  async #undo(status, file) {
    if (status !== 201) return;
    try {
      await this.api.request("DELETE", `/me/files/${file.id}`);
    } catch {
      // then it stays, as if it had been cancelled too late
    }
  }
}
