// Which files run and which wait for their turn: small ones share requests, large ones have places of their own, so that
// thousands of small ones do not wait for them.

import { Batch, nextBatch } from "./batch.js";
import { HASH_FIRST_BYTES } from "./plan.js";

const AT_ONCE = { small: 4, large: 2 };
// One batch is packed while another is on its way.
const BATCHES_AT_ONCE = 2;

export class Lanes {
  /** While more are being found, a batch waits until it is full. */
  isFinding = false;
  #waiting = { batched: new Set(), small: new Set(), large: new Set() };
  #running = { small: new Set(), large: new Set() };
  #batches = new Set();

  /** `shared` is what uploads work with (uploading.js); `moved(bytes)` is told what leaves; `ended(transfers)` which are over. */
  constructor(shared, { moved, ended }) {
    Object.assign(this, { shared, moved, ended });
  }

  put(transfer) {
    const lane = this.#laneOf(transfer);
    transfer.hashesAlone = lane !== "batched";
    this.#waiting[lane].add(transfer);
  }

  /** It is not to run any more. */
  drop(transfer) {
    for (const waiting of Object.values(this.#waiting)) waiting.delete(transfer);
  }

  /** None that waits is to run any more. */
  dropAll() {
    for (const waiting of Object.values(this.#waiting)) waiting.clear();
  }

  /** To be called when transfers were cancelled: a batch without any other is not sent. */
  endBatches() {
    for (const batch of this.#batches) batch.end();
  }

  schedule() {
    if (!this.shared.offers) return; // nothing is sorted yet
    while (this.#batches.size < BATCHES_AT_ONCE) {
      const { members, isFull } = nextBatch(this.#waiting.batched, this.shared.offers.batchBytes);
      if (!members.length || (this.isFinding && !isFull)) break;
      for (const transfer of members) this.#waiting.batched.delete(transfer);
      this.#runBatch(members);
    }
    for (const lane of ["small", "large"]) this.#fill(lane);
  }

  #laneOf({ size, expected }) {
    if (!expected && size <= this.shared.offers.memberBytes) return "batched";
    return size <= HASH_FIRST_BYTES ? "small" : "large";
  }

  #fill(lane) {
    const running = this.#running[lane];
    let free = AT_ONCE[lane] - [...running].filter((transfer) => !transfer.paused).length;
    for (const transfer of this.#waiting[lane]) {
      if (free <= 0) return;
      if (transfer.paused) continue;
      free -= 1;
      this.#waiting[lane].delete(transfer);
      this.#run(transfer, running);
    }
  }

  async #run(transfer, running) {
    running.add(transfer);
    await transfer.run(this.shared);
    running.delete(transfer);
    this.ended([transfer]);
    this.schedule();
  }

  async #runBatch(members) {
    const batch = new Batch(this.shared, members, { moved: this.moved, ended: this.ended });
    this.#batches.add(batch);
    await batch.run();
    this.#batches.delete(batch);
    for (const transfer of batch.transfers) this.#waiting.batched.add(transfer); // they were paused
    this.schedule();
  }
}
