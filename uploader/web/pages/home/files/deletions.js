// What a person deleted and may still want back: it is deleted some seconds later, or when the page is left.
// To leave is no change of mind: what was said to be deleted is not there the next time.

import { t } from "../../i18n.js";
import { bodiesOf } from "./selected.js";

const UNDO_SECONDS = 8;
// What browsers let a page send while it is left: 64 KiB in all.
const PARTING_BYTES = 60_000;

export class Deletions {
  #pending = new Set();

  /** `restored(entries)`: they are wanted back; `failed(entries, problem)`: they could not be deleted; `deleted()`. */
  constructor(api, toasts, told) {
    Object.assign(this, { api, toasts, told });
    addEventListener("pagehide", () => this.#part());
    addEventListener("keydown", (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z" || event.target.closest("input, dialog")) return;
      const last = [...this.#pending].at(-1);
      if (!last) return;
      last.away();
      this.#undo(last);
    });
  }

  /** Whether these are too many to be wanted back: then a person is better asked before. */
  isTooMuch(entries) {
    return JSON.stringify(bodiesOf(entries)).length > PARTING_BYTES;
  }

  /** Whether an entry is on its way out. */
  covers({ key, path }) {
    for (const { keys, folders } of this.#pending) if (keys.has(key) || folders.some((folder) => path.startsWith(folder))) return true;
    return false;
  }

  /** Delete entries in some seconds, unless somebody takes that back; `text` says so. */
  add(entries, text) {
    const bodies = bodiesOf(entries);
    const deletion = {
      entries,
      bodies,
      bytes: JSON.stringify(bodies).length,
      keys: new Set(entries.map(({ key }) => key)),
      folders: entries.filter(({ isFolder }) => isFolder).map(({ path }) => path),
    };
    for (const earlier of this.#pending) {
      if (deletion.bytes + this.#bytes() <= PARTING_BYTES) break;
      earlier.away();
      this.#carryOut(earlier);
    }
    this.#pending.add(deletion);
    deletion.away = this.toasts.show(text, {
      action: t("delete.undo"),
      seconds: UNDO_SECONDS,
      run: () => this.#undo(deletion),
      ended: () => this.#carryOut(deletion),
    });
  }

  /** Delete entries now. */
  async addNow(entries) {
    this.#tell(entries, await this.#delete(bodiesOf(entries)));
  }

  #bytes() {
    return [...this.#pending].reduce((sum, { bytes }) => sum + bytes, 0);
  }

  #undo(deletion) {
    this.#pending.delete(deletion);
    this.told.restored(deletion.entries);
  }

  async #carryOut(deletion) {
    const problem = await this.#delete(deletion.bodies);
    this.#pending.delete(deletion);
    this.#tell(deletion.entries, problem);
  }

  /** What kept them from being deleted, or null. */
  async #delete(bodies) {
    try {
      for (const body of bodies) await this.api.request("POST", "/me/files/delete", { body });
      return null;
    } catch (problem) {
      return problem;
    }
  }

  #tell(entries, problem) {
    if (problem) this.told.failed(entries, problem);
    else this.told.deleted();
  }

  /** The page is left: no answer will be heard. */
  #part() {
    const headers = { "Content-Type": "application/json" };
    if (this.api.token) headers.Authorization = `Bearer ${this.api.token}`;
    for (const deletion of this.#pending) {
      for (const body of deletion.bodies) fetch("/me/files/delete", { method: "POST", headers, body: JSON.stringify(body), keepalive: true });
      deletion.away();
    }
    this.#pending.clear();
  }
}
