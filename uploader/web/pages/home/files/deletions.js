// What a person deletes: it is deleted at once, and comes back from the trash for as long as the server keeps that.

import { t } from "../../i18n.js";
import { Restores } from "../trash/restores.js";
import { bodyOf, partsOf } from "./selected.js";

const UNDO_SECONDS = 8;
const PAGE = 1000;
// What browsers let a page send while it is left.
const PARTING_BYTES = 60_000;

export class Deletions {
  #running = new Set();
  #done = []; // the last one at the end
  #queue = Promise.resolve();

  /** `restored(files)`: they are back; `failed(entries, problem)`: they could not be deleted; `refused(problem)`: they could
   * not be brought back; `deleted()`. */
  constructor(api, toasts, { hasTrash, ...told }) {
    Object.assign(this, { api, toasts, hasTrash, told });
    addEventListener("keydown", (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z" || event.target.closest("input, dialog")) return;
      const last = this.#done.at(-1);
      if (last) this.#undo(last);
    });
  }

  /** Whether an entry is on its way out. */
  covers({ key, path }) {
    for (const { keys, folders } of this.#running) if (keys.has(key) || folders.some((folder) => path.startsWith(folder))) return true;
    return false;
  }

  /** Delete entries; `text` says so, with an undo. */
  add(entries, text) {
    const keys = new Set(entries.map(({ key }) => key));
    const deletion = { entries, keys, folders: bodyOf(entries).prefixes, files: 0, newest: null, away: () => {} };
    this.#running.add(deletion);
    this.#queue = this.#queue.then(() => this.#carryOut(deletion)); // one after the other, as they lie in the trash
    deletion.end = this.#queue;
    const undo = this.hasTrash ? { action: t("delete.undo"), seconds: UNDO_SECONDS, run: () => this.#undo(deletion) } : {};
    if (this.hasTrash) this.#done.push(deletion);
    deletion.away = this.toasts.show(text, undo);
  }

  async #carryOut(deletion) {
    try {
      for (const part of partsOf(deletion.entries)) {
        const body = bodyOf(part);
        const keepalive = JSON.stringify(body).length < PARTING_BYTES;
        deletion.files += (await this.api.request("POST", "/me/files/delete", { body, keepalive })).files;
      }
      if (this.hasTrash && deletion.folders.length) [deletion.newest] = (await this.api.request("GET", "/me/trash?limit=1")).files;
      this.told.deleted();
    } catch (problem) {
      this.#forget(deletion);
      this.told.failed(deletion.entries, problem);
    } finally {
      this.#running.delete(deletion);
    }
  }

  #forget(deletion) {
    deletion.away();
    this.#done = this.#done.filter((each) => each !== deletion);
  }

  async #undo(deletion) {
    await deletion.end;
    if (!this.#done.includes(deletion)) return; // it failed, or was taken back
    this.#forget(deletion);
    try {
      for (const { path, files, isFolder } of deletion.entries) {
        if (isFolder && !files) await this.api.request("POST", "/me/folders", { body: { name: path.slice(0, -1) } });
      }
      const trashed = deletion.folders.length ? await this.#trashed(deletion) : deletion.entries.map(({ file }) => file);
      const { restored, problem } = await new Restores(this.api, this).restore(trashed);
      this.told.restored(restored);
      if (problem) this.told.refused(problem);
    } catch (problem) {
      this.told.refused(problem);
    }
  }

  /** The files of it in the trash: so many, from the newest of them on, that were selected or lay in its folders. */
  async #trashed({ keys, folders, files, newest }) {
    const found = [];
    if (!newest) return found;
    let isReached = false;
    for (let after; after !== null && found.length < files; ) {
      const asked = new URLSearchParams({ limit: PAGE, ...(after ? { after } : {}) });
      const page = await this.api.request("GET", `/me/trash?${asked}`);
      for (const file of page.files) {
        isReached ||= file.id === newest.id || Date.parse(file.deleted_at) < Date.parse(newest.deleted_at);
        const isOne = keys.has(file.id) || (file.reason === "deleted" && folders.some((folder) => file.name.startsWith(folder)));
        if (isReached && isOne && found.length < files) found.push(file);
      }
      after = page.next;
    }
    return found;
  }
}
