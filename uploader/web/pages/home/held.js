// The files of a person that gates hold: which there are, and what becomes of them. The server is asked while there are any and
// somebody looks, less and less often.

import { Problem } from "../client/api.js";
import { t } from "../i18n.js";
import { lastSegment, TRASH } from "./files/place.js";

// Of the newest, and of what was deleted last: with more, the others are as they were known until there are fewer.
const LOOKED_AT = 1000;
const FIRST_LOOK_MS = 1000;
const LONGEST_PAUSE_MS = 30_000;
const SLOWER = 1.5;
// So many refusals are told one by one.
const TOLD_ALONE = 3;
const TOLD_SECONDS = 15;

export class Held {
  files = [];
  #forgotten = new Set(); // ids
  #timer = 0;
  #pauseMs = FIRST_LOOK_MS;
  #looking = null;

  /** `changed()` is called when there are others; `judged({passed, refused})` with those that are held no longer. */
  constructor(api, { hasTrash, changed, judged }) {
    Object.assign(this, { api, hasTrash, changed, judged });
    document.addEventListener("visibilitychange", () => (document.visibilityState === "visible" ? this.look() : this.#pause()));
  }

  /** Those of `files` that are held: they were sent, or restored, just now. */
  add(files) {
    const known = new Set(this.files.map(({ id }) => id));
    const added = files.filter(({ id, held }) => held && !known.has(id));
    if (!added.length) return;
    for (const { id } of added) this.#forgotten.delete(id);
    this.files = [...added, ...this.files];
    this.#pauseMs = FIRST_LOOK_MS;
    this.#lookLater();
    this.changed();
  }

  /** The person has deleted them. */
  forget(ids) {
    const forgotten = this.files.filter(({ id }) => ids.has(id));
    for (const { id } of forgotten) this.#forgotten.add(id);
    if (forgotten.length) this.files = this.files.filter(({ id }) => !ids.has(id));
  }

  look() {
    this.#looking ??= this.#look().finally(() => {
      this.#looking = null;
      this.#lookLater();
    });
    return this.#looking;
  }

  #pause() {
    clearTimeout(this.#timer);
    this.#timer = 0;
  }

  #lookLater() {
    if (!this.files.length || document.visibilityState === "hidden") return;
    this.#timer ||= setTimeout(() => {
      this.#timer = 0;
      this.look();
    }, this.#pauseMs);
  }

  async #look() {
    this.#pause();
    let found, gone, said;
    try {
      [found, gone] = await this.#compare();
      said = gone.length ? await this.#fates(gone) : null;
    } catch {
      this.#pauseMs = LONGEST_PAUSE_MS; // the next look will tell
      return;
    }
    const known = new Set([...found, ...gone].map(({ id }) => id));
    const held = found.filter(({ id }) => !this.#forgotten.has(id)).map((file) => ({ ...file, held: true }));
    this.files = [...this.files.filter(({ id }) => !known.has(id)), ...held];
    if (said) this.judged(said);
    else this.#pauseMs = Math.min(LONGEST_PAUSE_MS, this.#pauseMs * SLOWER);
    this.changed();
  }

  /** Those that are held, and those that were until now. Throws Problem. */
  async #compare() {
    const before = this.files;
    const { files, next } = await this.api.request("GET", `/me/files?state=held&limit=${LOOKED_AT}`);
    const found = new Set(files.map(({ id }) => id));
    const isSeen = ({ id }) => next === null || id > files.at(-1).id;
    return [files, before.filter((file) => !found.has(file.id) && isSeen(file) && !this.#forgotten.has(file.id))];
  }

  /** What became of those that are held no longer. Throws Problem. */
  async #fates(gone) {
    const ended = this.hasTrash ? (await this.api.request("GET", `/me/trash?limit=${LOOKED_AT}`)).files : await this.#missing(gone);
    const byId = new Map(ended.map((file) => [file.id, file]));
    const passed = gone.filter(({ id }) => !byId.has(id)).map((file) => ({ ...file, held: false }));
    const refused = gone.map(({ id }) => byId.get(id)).filter((file) => file?.reason === "refused");
    return { passed, refused };
  }

  /** Where nothing is kept: those that are not there, as if they lay in the trash. */
  async #missing(gone) {
    const missing = [];
    for (const file of gone) {
      try {
        await this.api.request("GET", `/me/files/${file.id}`);
      } catch (problem) {
        if (problem.code !== "file-not-found") throw problem;
        missing.push({ ...file, reason: "refused" });
      }
    }
    return missing;
  }
}

/** Say what gates have said: in the rows of the tray, and of what was refused in words, too. */
export function tellOf({ passed, refused }, { transfers, toasts, tell, hasTrash }) {
  const [files, refusals] = [passed, refused].map((some) => new Map(some.map((file) => [file.id, file])));
  for (const transfer of transfers.all.filter(({ isHeld }) => isHeld)) {
    const { id } = transfer.made;
    if (files.has(id)) transfer.complete(files.get(id));
    else if (refusals.has(id)) transfer.fail(refusal(refusals.get(id).detail));
  }
  for (const text of wordsOf(refused)) {
    tell(text);
    toasts.show(text, { action: hasTrash ? t("move.show") : null, seconds: TOLD_SECONDS, run: () => (location.hash = TRASH) });
  }
}

function refusal(reason) {
  return reason ? new Problem("file-refused", { fields: { reason } }) : new Problem("file-refused-unsaid");
}

function wordsOf(refused) {
  if (refused.length > TOLD_ALONE) return [t("held.refused-many", { count: refused.length })];
  return refused.map(({ name, detail }) => t(detail ? "held.refused" : "held.refused-unsaid", { name: lastSegment(name), detail }));
}
