// All files on their way, and the open uploads of the server.

import { Addition } from "./addition.js";
import { Elsewhere } from "./elsewhere.js";
import { FreeSpace } from "./free-space.js";
import { Hasher } from "./hasher.js";
import { Lanes } from "./lanes.js";
import { Offers } from "./offers.js";
import { fileOf, isUnchanged } from "./plan.js";
import { Rate } from "./rate.js";
import { totalsOf } from "./totals.js";
import { Transfer } from "./transfer.js";
import { CONNECTIONS } from "./sending.js";
import { Breath, Locks, Slots } from "./waiting.js";

const ON_THE_SERVER = new Set(["unfinished", "elsewhere"]);
const ANSWERS = ["replace", "keep", "skip"];
const TOLD = ["complete", "failed", "asked"];

const nowSeconds = () => performance.now() / 1000;

/** What all uploads to one server share: connections, workers, contents on their way. */
export function sharedBy(api) {
  return { api, hasher: new Hasher(), slots: new Slots(CONNECTIONS), locks: new Locks(), offers: null };
}

export class Transfers extends EventTarget {
  all = [];
  rate = new Rate();
  hashRate = new Rate();
  lists = true; // whether the caller may know which files are there
  asks = false; // whether a person answers what becomes of names that are there, and is told unread what has no room
  #shared;
  #offers;
  #lanes;
  #elsewhere = new Elsewhere();
  #dismissed = new Set(); // ids of uploads that the person does not want to see
  #finding = 0; // how many folders and the like are still being looked through
  #isTouched = false;

  /** `shared`: what several of these have in common. */
  constructor(api, shared = sharedBy(api)) {
    super();
    this.#shared = shared;
    this.#offers = new Offers(api);
    const told = { moved: (bytes) => this.rate.add(bytes), ended: (transfers) => this.#ended(transfers) };
    this.#lanes = new Lanes(this.#shared, told);
  }

  // Adding

  /** Take files in as they are found, in batches: [{file, name, size}]; with `into`, if they come to a folder of the server;
   * with `problem` and without a file, if they can't be read. */
  async take(picked) {
    const addition = new Addition(this.#shared.api);
    const sorting = [];
    this.#found(1);
    try {
      for await (const some of picked) sorting.push(this.#add(some, addition));
    } finally {
      addition.listings.end();
      const asked = (await Promise.all(sorting)).flat();
      this.#found(-1);
      this.#ended(asked);
      this.#lanes.schedule();
    }
  }

  #found(change) {
    this.#finding += change;
    this.#lanes.isFinding = this.#finding > 0;
  }

  #add(picked, addition) {
    const added = picked.map((facts) => this.#make({ ...facts, addition }));
    for (const { prefix, file } of added) if (file) addition.listings.want(prefix);
    this.all.push(...added);
    this.#told("list");
    this.#ended(added.filter(({ phase }) => phase === "failed"));
    const read = added.filter(({ phase }) => phase !== "failed");
    return read.length ? this.#sort(read) : [];
  }

  /** Go on with what lacks its file, with the one that the person chose for it. */
  async goOn(transfer, file) {
    const { name, expected, ifExists } = transfer;
    const made = this.#make({ file, name, size: file.size, expected });
    Object.assign(made, { uploadId: expected?.id ?? null, ifExists });
    this.#forget(transfer);
    this.all.push(made);
    this.#told("list");
    await this.#askForOffers(made);
    if (!transfer.file) this.#mayAsk(made);
    await this.#admit([made], null);
  }

  #mayAsk(transfer) {
    if (this.asks && this.#shared.offers.times) transfer.ifExists = "ask";
  }

  /** Complete unchanged files, queue the others, and return those that the person is asked about. */
  async #sort(transfers) {
    await this.#askForOffers(transfers[0]);
    const breath = new Breath();
    const open = [];
    for (const transfer of transfers) {
      await breath.take();
      this.#mayAsk(transfer);
      if (this.lists) transfer.namesakes = await transfer.addition.listings.named(transfer.name, transfer.prefix);
      if (transfer.isOver) continue; // it was cancelled
      const same = transfer.there.find((file) => isUnchanged(file, transfer.file));
      if (same) transfer.found(same);
      else open.push(transfer);
    }
    const { answer } = transfers[0].addition;
    const asked = open.filter((transfer) => transfer.isOther && !answer);
    for (const transfer of asked) transfer.ask();
    for (const transfer of open) if (transfer.isOther && answer) this.#choose(transfer, answer);
    this.#ended(transfers.filter((transfer) => transfer.phase === "complete"));
    await this.#admit(open.filter((transfer) => !transfer.isOver), transfers[0].addition);
    return asked;
  }

  /** Queue those that fit into the quota; fail the others unread. */
  async #admit(transfers, addition) {
    if (!transfers.length) return;
    const freeSpace = this.asks ? (addition?.freeSpace ?? (await this.#freeSpace(transfers[0]))) : null;
    if (addition) addition.freeSpace = freeSpace;
    const breath = new Breath();
    for (const transfer of transfers) {
      await breath.take();
      if (transfer.isOver) continue;
      const problem = transfer.expected ? null : freeSpace?.promise(transfer);
      if (problem) transfer.fail(problem);
      else this.#lanes.put(transfer);
    }
    this.#ended(transfers.filter((transfer) => transfer.phase === "failed"));
    this.#lanes.schedule();
  }

  async #freeSpace(first) {
    const onRetry = (problem) => first.retrying(problem);
    const usage = await this.#shared.api.request("GET", "/me/usage", { patienceSeconds: Infinity, onRetry });
    first.answered();
    return new FreeSpace(usage, this.all);
  }

  async #askForOffers(first) {
    const onRetry = (problem) => first.retrying(problem);
    this.#shared.offers ??= await this.#offers.ask({ patienceSeconds: Infinity, onRetry });
    first.answered();
  }

  // What is open on the server

  /** Show the server's open uploads that nothing here works on. */
  setUnfinished(uploads) {
    this.#elsewhere.look(uploads, nowSeconds());
    const own = new Set(this.all.filter(({ phase }) => !ON_THE_SERVER.has(phase)).map(({ uploadId }) => uploadId));
    const open = new Map(uploads.filter(({ id }) => !own.has(id) && this.#isShown(id)).map((upload) => [upload.id, upload]));
    const gone = this.all.filter(({ phase, uploadId }) => ON_THE_SERVER.has(phase) && !open.has(uploadId));
    for (const transfer of gone) this.#left(transfer, own.has(transfer.uploadId));
    for (const transfer of this.all) {
      if (!ON_THE_SERVER.has(transfer.phase) || !open.has(transfer.uploadId)) continue;
      this.#describe(transfer, open.get(transfer.uploadId));
      open.delete(transfer.uploadId);
    }
    const added = [...open.values()].map((upload) => this.#describe(this.#make({ name: upload.name, size: upload.size }), upload));
    this.all.unshift(...added);
    if (added.length) this.#told("list");
    this.#touched();
  }

  /** Ask for that list. Throws Problem. */
  async look() {
    const { uploads } = await this.#shared.api.request("GET", "/uploads");
    this.setUnfinished(uploads);
  }

  /** Whether the list of open uploads is worth another look soon. */
  get isWatching() {
    return this.#elsewhere.isBusy(nowSeconds());
  }

  #isShown(id) {
    if (this.#elsewhere.isRunning(id, nowSeconds())) this.#dismissed.delete(id);
    return !this.#dismissed.has(id);
  }

  #describe(transfer, upload) {
    const isRunning = this.#elsewhere.isRunning(upload.id, nowSeconds());
    const bytes = this.#elsewhere.movedBytes(upload.id);
    if (bytes) transfer.rate.add(bytes);
    const facts = { uploadId: upload.id, expected: upload, receivedBytes: upload.received_bytes };
    return Object.assign(transfer, facts, { phase: isRunning ? "elsewhere" : "unfinished", mergedBytes: upload.merged_bytes ?? 0 });
  }

  /** It left the server's list: `isOurs`: this tab has it now; else it is a file, or was cancelled. */
  async #left(transfer, isOurs) {
    if (transfer.phase === "elsewhere" && !isOurs) {
      transfer.phase = "merging";
      try {
        const file = fileOf(await this.#shared.api.request("GET", `/uploads/${transfer.uploadId}`));
        if (file) transfer.succeed(file);
      } catch {
        // it was cancelled
      }
    }
    if (transfer.phase === "complete") this.#ended([transfer]);
    else this.remove(transfer);
  }

  #make(facts) {
    const transfer = new Transfer({
      ...facts,
      changed: () => this.#touched(),
      moved: (bytes) => this.rate.add(bytes),
      read: (bytes) => this.hashRate.add(bytes),
      taken: () => this.#taken(transfer),
    });
    return transfer;
  }

  #forget(transfer) {
    this.all = this.all.filter((other) => other !== transfer);
  }

  /** They are over. An answer for all that came with them holds for late ones, too. */
  #ended(transfers) {
    for (const answer of ANSWERS) {
      const such = transfers.filter(({ phase, addition }) => phase === "asked" && addition?.answer === answer);
      if (such.length) this.answer(such, answer);
    }
    for (const phase of TOLD) {
      const such = transfers.filter((transfer) => transfer.phase === phase);
      if (such.length) this.#told(phase, such);
    }
  }

  /** Join two rows of one upload. */
  #taken(transfer) {
    const twin = this.all.find((other) => ON_THE_SERVER.has(other.phase) && other.uploadId === transfer.uploadId);
    if (twin) this.remove(twin);
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

  setPaused(transfers, paused) {
    for (const transfer of transfers) transfer.setPaused(paused);
    this.#lanes.schedule();
  }

  /** `answer`: `replace`, `keep` (both) or `skip`; `forAll`: for all that was added together. */
  async answer(transfers, answer, { forAll = false } = {}) {
    const open = [];
    for (const transfer of transfers) {
      if (forAll && transfer.addition) transfer.addition.answer = answer;
      if (transfer.phase !== "asked") continue;
      this.#choose(transfer, answer);
      if (transfer.phase === "waiting") open.push(transfer);
    }
    await this.#admit(open, null);
  }

  #choose(transfer, answer) {
    if (answer === "skip") {
      transfer.skip();
      transfer.withdraw(this.#shared.api).catch(() => {}); // then it stays as a leftover
      return;
    }
    transfer.reset();
    transfer.ifExists = answer;
  }

  /** End it, here and on the server. Throws Problem: then it is there still. */
  async cancel(transfer) {
    this.#lanes.drop(transfer);
    const cancelled = transfer.cancel(this.#shared.api);
    this.#lanes.endBatches();
    await cancelled;
    this.#forget(transfer);
    this.#told("list");
    this.#told("cancelled", transfer);
    this.#lanes.schedule();
  }

  /** All of `transfers` that are not over. */
  async cancelAll(transfers = this.all) {
    const going = new Set(transfers.filter((transfer) => !transfer.isOver || transfer.phase === "asked"));
    const begun = [...going].filter((transfer) => transfer.isRunning || transfer.uploadId);
    for (const transfer of going) this.#lanes.drop(transfer);
    this.all = this.all.filter((transfer) => !going.has(transfer) || transfer.isRunning);
    for (const transfer of going) if (!transfer.isRunning) transfer.phase = "cancelled";
    this.#lanes.endBatches();
    this.#told("list");
    await Promise.allSettled(begun.map((transfer) => this.cancel(transfer)));
    this.#lanes.schedule();
  }

  /** Those of `transfers` that failed, and have a file. */
  async retry(transfers = this.all) {
    const failed = transfers.filter((transfer) => transfer.canRetry);
    for (const transfer of failed) transfer.reset();
    await this.#admit(failed, null);
  }

  /** End all here; what has arrived stays for the next time. */
  stopAll() {
    this.#lanes.dropAll();
    for (const transfer of this.all) if (!transfer.isOver) transfer.stop();
    this.#lanes.endBatches();
  }

  /** Take what is over off the list. */
  remove(...transfers) {
    const removed = new Set(transfers);
    this.all = this.all.filter((transfer) => !removed.has(transfer));
    this.#told("list");
  }

  clear() {
    this.remove(...this.all.filter(({ phase }) => phase === "complete" || phase === "skipped"));
  }

  /** Show nothing of what is over, nor of what only waits for its file. */
  dismiss() {
    const over = this.all.filter((transfer) => transfer.isOver && transfer.phase !== "asked");
    for (const { phase, uploadId } of over) if (phase === "unfinished") this.#dismissed.add(uploadId);
    this.remove(...over);
  }

  // What it comes to

  totals() {
    return totalsOf(this.all, this);
  }
}
