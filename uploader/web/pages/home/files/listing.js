// What is in one place: read from the server page by page, in the person's order, with what comes and goes meanwhile.

import { entryOfFile, entryOfFolder, merged, orderOf, sorted } from "./entries.js";

const PAGE = 1000;
const FOUND_AT_ONCE = 200;
// A folder with more is listed as the server has it, by name, as far as somebody scrolls.
const MOST_WHOLE = 20_000;

export class Listing {
  entries = [];
  isComplete = false;
  isHuge = false;
  problem = null;
  #keys = new Set();
  #next = null;
  #loading = null;
  #changes = Promise.resolve();

  /** `path` is where the server lists them; `changed()` is called whenever there is something else to show; what
   * `isLeaving(entry)` is not listed. */
  constructor(api, place, order, { path = "/me/files", changed, isLeaving }) {
    Object.assign(this, { api, place, order, path, changed, isLeaving });
  }

  /** The first page, and the rest of a folder behind it. */
  async load() {
    await this.more();
    while (!this.isComplete && !this.isHuge && !this.place.query && !this.problem) await this.more();
  }

  /** The page that follows, if there is one. */
  more() {
    if (this.isComplete) return Promise.resolve();
    this.#loading ??= this.#loadPage().finally(() => {
      this.#loading = null;
    });
    return this.#loading;
  }

  async #loadPage() {
    const { prefix, query } = this.place;
    const asked = new URLSearchParams(query ? { q: query, limit: FOUND_AT_ONCE } : { delimiter: "/", prefix, limit: PAGE });
    if (this.#next) asked.set("after", this.#next);
    try {
      const page = await this.api.request("GET", `${this.path}?${asked}`);
      const found = [...(page.folders ?? []).map(entryOfFolder), ...page.files.map(entryOfFile)];
      this.problem = null;
      this.#next = page.next;
      this.isComplete = page.next === null;
      const isResorted = query && this.isComplete && this.entries.length; // it was listed newest first until now
      await this.#insert(found);
      if (isResorted) await this.sort(this.order);
      if (!this.isComplete && this.entries.length >= MOST_WHOLE) await this.#becomeHuge();
    } catch (problem) {
      this.problem = problem;
    }
    this.changed();
  }

  get canSort() {
    return !this.isHuge && (this.isComplete || !this.place.query);
  }

  get #order() {
    if (this.isHuge) return (one, other) => (one.path < other.path ? -1 : 1);
    return this.place.query && !this.isComplete ? (one, other) => (one.key > other.key ? -1 : 1) : orderOf(this.order);
  }

  async #becomeHuge() {
    this.isHuge = true;
    this.entries = await sorted(this.entries, this.#order);
  }

  sort(order) {
    this.order = order;
    return this.#then(async () => {
      this.entries = await sorted(this.entries, this.#order);
    });
  }

  /** Files that were made just now. */
  add(files) {
    const { prefix, query } = this.place;
    if (query) return Promise.resolve();
    const { direct, deeper } = split(files, prefix);
    return this.#insert(direct.map(entryOfFile)).then(() => this.#deepen(deeper));
  }

  /** All files that are held: those of here are listed, and folders that have none but such. */
  hold(files) {
    const { prefix, query } = this.place;
    if (query) return Promise.resolve();
    const { direct, deeper } = split(files, prefix);
    const folders = foldersOf(deeper, prefix);
    for (const entry of this.entries) {
      const held = entry.isHeld && folders.get(entry.path);
      if (held) Object.assign(entry, { files: held.files, size: held.bytes });
    }
    return this.#insert([...direct.map(entryOfFile), ...[...folders.values()].map((folder) => entryOfFolder({ ...folder, held: true }))]);
  }

  /** An empty folder that was made just now; of one that lies deeper, the folder that is here. */
  addFolder(name) {
    const { prefix, query } = this.place;
    if (query || !name.startsWith(prefix)) return Promise.resolve();
    const [own] = name.slice(prefix.length).split("/");
    return this.#insert([entryOfFolder({ name: `${prefix}${own}/`, files: 0, bytes: 0 })]);
  }

  #insert(found) {
    return this.#then(async () => {
      const added = found.filter((entry) => !this.#keys.has(entry.key) && !this.isLeaving(entry));
      if (!added.length) return;
      for (const { key } of added) this.#keys.add(key);
      this.entries = await merged(this.entries, await sorted(added, this.#order), this.#order);
    });
  }

  /** The folders of files that lie deeper, with what these add to them. */
  #deepen(files) {
    const folders = foldersOf(files, this.place.prefix);
    for (const entry of this.entries) {
      const more = entry.isFolder && folders.get(entry.path);
      if (more) Object.assign(entry, { files: entry.files + more.files, size: entry.size + more.bytes });
    }
    return this.#insert([...folders.values()].map(entryOfFolder));
  }

  /** One after the other, each on what the one before left. */
  #then(work) {
    this.#changes = this.#changes.then(work).then(() => this.changed());
    return this.#changes;
  }

  remove(keys) {
    return this.#then(async () => {
      this.entries = this.entries.filter(({ key }) => !keys.has(key));
      for (const key of keys) this.#keys.delete(key);
    });
  }

  /** Entries that were taken out, and are there after all. */
  restore(entries) {
    return this.#insert(entries);
  }
}

/** Those right below a folder, and those in folders of it. */
function split(files, prefix) {
  const here = files.filter(({ name }) => name.startsWith(prefix));
  const isDeeper = ({ name }) => name.indexOf("/", prefix.length) >= 0;
  return { direct: here.filter((file) => !isDeeper(file)), deeper: here.filter(isDeeper) };
}

/** The folders below `prefix` that files lie in, by their names. */
function foldersOf(files, prefix) {
  const folders = new Map();
  for (const { name, size } of files) {
    const folder = name.slice(0, name.indexOf("/", prefix.length) + 1);
    const { files: count = 0, bytes = 0 } = folders.get(folder) ?? {};
    folders.set(folder, { name: folder, files: count + 1, bytes: bytes + size });
  }
  return folders;
}
