// All files on their way: which of them run, what they come to together, and what the server knows of besides.

import { Batch, nextBatch } from "./batch.js";
import { Hasher } from "./hasher.js";
import { Listings } from "./listings.js";
import { Offers } from "./offers.js";
import { HASH_FIRST_BYTES, isUnchanged } from "./plan.js";
import { Rate } from "./rate.js";
import { Transfer } from "./transfer.js";
import { CONNECTIONS } from "./uploading.js";
import { Breath, Locks, Slots } from "./waiting.js";

// How many run at once. Large ones have places of their own, so that thousands of small ones do not wait for them.
const SMALL_AT_ONCE = 4;
const LARGE_AT_ONCE = 2;
// One batch is packed while another is on its way.
const BATCHES_AT_ONCE = 2;
const PLACES = { failed: 0, unfinished: 0, complete: 2 };

export class Transfers extends EventTarget {
  all = [];
  rate = new Rate();
  #shared;
  #offers;
  #waiting = { batched: new Set(), small: new Set(), large: new Set() };
  #running = { small: new Set(), large: new Set() };
  #batches = new Set();
  #finding = 0; // how many folders and the like are still being looked through
  #isTouched = false;

  constructor(api) {
    super();
    this.#shared = { api, hasher: new Hasher(), slots: new Slots(CONNECTIONS), locks: new Locks(), offers: null };
    this.#offers = new Offers(api);
  }

  // Adding

  /** Take files in as they are found, in batches: [{file, name, size}]. */
  async take(picked) {
    const listings = new Listings(this.#shared.api);
    const sorting = [];
    this.#finding += 1;
    try {
      for await (const some of picked) sorting.push(this.#add(some, listings));
    } finally {
      listings.end();
      await Promise.all(sorting);
      this.#finding -= 1;
      this.#schedule();
    }
  }

  #add(picked, listings) {
    const added = picked.map((facts) => this.#make(facts));
    for (const { name } of added) listings.want(name);
    this.all.push(...added);
    this.#told("list");
    return this.#sort(added, listings);
  }

  /** Go on with what lacks its file, with the one that the person chose for it. */
  goOn(transfer, file) {
    const { name, expected } = transfer;
    const made = this.#make({ file, name, size: file.size, expected });
    made.uploadId = expected?.id ?? null;
    this.#forget(transfer);
    this.all.push(made);
    this.#told("list");
    this.#sort([made], null);
  }

  /** Those that are there unchanged are done; the others wait for their turn. */
  async #sort(transfers, listings) {
    await this.#askForOffers(transfers[0]);
    const breath = new Breath();
    for (const transfer of transfers) {
      await breath.take();
      const there = transfer.expected || !listings ? [] : await listings.named(transfer.name);
      if (transfer.isOver) continue; // it was cancelled
      transfer.there = there.filter((file) => file.size === transfer.size && !file.damaged);
      const same = transfer.there.find((file) => isUnchanged(file, transfer.file));
      if (same) transfer.found(same);
      else this.#waiting[this.#lane(transfer)].add(transfer);
    }
    this.#ended(transfers);
    this.#schedule();
  }

  async #askForOffers(first) {
    const onRetry = (problem) => first.retrying(problem);
    this.#shared.offers ??= await this.#offers.ask({ patienceSeconds: Infinity, onRetry });
    first.answered();
  }

  /** The server's list of open uploads: those that nothing here works on are shown, too. */
  setUnfinished(uploads) {
    const open = new Map(uploads.map((upload) => [upload.id, upload]));
    for (const transfer of this.all) if (transfer.phase !== "unfinished") open.delete(transfer.uploadId);
    const shown = this.all.filter((transfer) => transfer.phase !== "unfinished" || open.has(transfer.uploadId));
    for (const transfer of shown) {
      if (transfer.phase !== "unfinished") continue;
      this.#describe(transfer, open.get(transfer.uploadId));
      open.delete(transfer.uploadId);
    }
    const added = [...open.values()].map((upload) => this.#describe(this.#make({ name: upload.name, size: upload.size }), upload));
    if (shown.length !== this.all.length || added.length) {
      this.all = [...added, ...shown];
      this.#told("list");
    }
  }

  #describe(transfer, upload) {
    const facts = { phase: "unfinished", uploadId: upload.id, expected: upload, receivedBytes: upload.received_bytes };
    return Object.assign(transfer, facts);
  }

  #make(facts) {
    const transfer = new Transfer({
      ...facts,
      changed: () => this.#touched(),
      moved: (bytes) => this.rate.add(bytes),
      taken: () => this.#taken(transfer),
    });
    return transfer;
  }

  #forget(transfer) {
    this.all = this.all.filter((other) => other !== transfer);
  }

  // Running

  #lane({ size, expected }) {
    if (!expected && size <= this.#shared.offers.memberBytes) return "batched";
    return size <= HASH_FIRST_BYTES ? "small" : "large";
  }

  #schedule() {
    if (!this.#shared.offers) return; // nothing is sorted yet
    while (this.#batches.size < BATCHES_AT_ONCE) {
      const { members, isFull } = nextBatch(this.#waiting.batched, this.#shared.offers.batchBytes);
      if (!members.length || (this.#finding && !isFull)) break;
      for (const transfer of members) this.#waiting.batched.delete(transfer);
      this.#runBatch(members);
    }
    for (const [lane, atOnce] of [["small", SMALL_AT_ONCE], ["large", LARGE_AT_ONCE]]) {
      const running = this.#running[lane];
      let free = atOnce - [...running].filter((transfer) => !transfer.paused).length;
      for (const transfer of this.#waiting[lane]) {
        if (free <= 0) break;
        if (transfer.paused) continue;
        free -= 1;
        this.#waiting[lane].delete(transfer);
        this.#run(transfer, running);
      }
    }
  }

  async #run(transfer, running) {
    running.add(transfer);
    await transfer.run(this.#shared);
    running.delete(transfer);
    this.#ended([transfer]);
    this.#schedule();
  }

  async #runBatch(members) {
    const told = { moved: (bytes) => this.rate.add(bytes), ended: (transfers) => this.#ended(transfers) };
    const batch = new Batch(this.#shared, members, told);
    this.#batches.add(batch);
    await batch.run();
    this.#batches.delete(batch);
    for (const transfer of members) if (!transfer.isOver) this.#waiting.batched.add(transfer); // it was paused
    this.#schedule();
  }

  #ended(transfers) {
    for (const phase of ["complete", "failed"]) {
      const such = transfers.filter((transfer) => transfer.phase === phase);
      if (such.length) this.#told(phase, such);
    }
  }

  /** Two rows for one upload: it was on the server's list, and the person brought the file. */
  #taken(transfer) {
    const twin = this.all.find((other) => other.phase === "unfinished" && other.uploadId === transfer.uploadId);
    if (!twin) return;
    this.#forget(twin);
    this.#told("list");
  }

  /** However many change at once, it is told once. */
  #touched() {
    if (this.#isTouched) return;
    this.#isTouched = true;
    queueMicrotask(() => {
      this.#isTouched = false;
      this.#told("change");
    });
  }

  #told(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  // What a person may do

  setPaused(transfer, paused) {
    transfer.setPaused(paused);
    this.#schedule();
  }

  setAllPaused(paused) {
    for (const transfer of this.all) transfer.setPaused(paused);
    this.#schedule();
  }

  /** End it, here and on the server. Throws Problem if the server can't be told: then it is there still. */
  async cancel(transfer) {
    for (const waiting of Object.values(this.#waiting)) waiting.delete(transfer);
    const cancelled = transfer.cancel(this.#shared.api);
    for (const batch of this.#batches) batch.end();
    await cancelled;
    this.#forget(transfer);
    this.#told("list");
    this.#told("cancelled", transfer);
    this.#schedule();
  }

  async cancelAll() {
    for (const waiting of Object.values(this.#waiting)) waiting.clear();
    const going = this.all.filter((transfer) => !transfer.isOver);
    const begun = going.filter((transfer) => transfer.isRunning || transfer.uploadId);
    this.all = this.all.filter((transfer) => transfer.isOver || transfer.isRunning);
    for (const transfer of going) if (!transfer.isRunning) transfer.phase = "cancelled";
    for (const batch of this.#batches) batch.end();
    this.#told("list");
    await Promise.allSettled(begun.map((transfer) => this.cancel(transfer)));
  }

  retry(transfer) {
    transfer.reset();
    this.#waiting[this.#lane(transfer)].add(transfer);
    this.#schedule();
  }

  retryAll() {
    for (const transfer of this.all) if (transfer.phase === "failed") this.retry(transfer);
  }

  /** Take what is over off the list. */
  remove(transfer) {
    this.#forget(transfer);
    this.#told("list");
  }

  clear() {
    this.all = this.all.filter((transfer) => transfer.phase !== "complete");
    this.#told("list");
  }

  /** As they are listed: what needs the person first, what is done last, else as they came. */
  listed() {
    const places = [[], [], []];
    for (const transfer of this.all) places[PLACES[transfer.phase] ?? 1].push(transfer);
    return places.flat();
  }

  // What it comes to

  totals() {
    const totals = { count: 0, complete: 0, failed: 0, going: 0, paused: 0, unfinished: 0, size: 0, done: 0, hashing: 0 };
    totals.offline = false;
    for (const transfer of this.all) {
      if (transfer.phase === "unfinished") totals.unfinished += 1;
      if (["unfinished", "cancelled"].includes(transfer.phase)) continue;
      totals.count += 1;
      totals.complete += transfer.phase === "complete";
      totals.failed += transfer.phase === "failed";
      if (transfer.phase === "failed") continue;
      totals.size += transfer.size;
      totals.done += transfer.doneBytes;
      if (transfer.isOver) continue;
      totals.going += 1;
      totals.paused += transfer.paused;
      totals.hashing += transfer.phase === "hashing";
      totals.offline ||= transfer.retry?.code === "unreachable";
    }
    const perSecond = this.rate.perSecond;
    return { ...totals, perSecond, secondsLeft: perSecond > 0 ? (totals.size - totals.done) / perSecond : null };
  }
}
