// What the server has already below the folders that a person brings: asked for by the thousand, not file by file.

import { Gate } from "./waiting.js";

const PAGE = 1000;
// So few names of a large folder are asked for one by one.
const FEW = 20;

/** The finished files below one folder, as far as anybody asked. */
class Listing {
  wanted = 0;
  #byName = new Map();
  #listed = 0;
  #after = null;
  #ended = false;
  #loading = null;

  constructor(api, prefix, counted) {
    Object.assign(this, { api, prefix, counted });
  }

  async named(name) {
    while (!this.#byName.has(name) && !this.#ended) {
      // In a folder with far more files than were brought, to send what is there costs less than to read on.
      if (this.#listed <= 2 * this.wanted) await this.#load();
      else if (!this.counted.open) await this.counted.wait();
      else return this.wanted <= FEW ? this.#ask(name) : [];
    }
    return this.#byName.get(name) ?? [];
  }

  async #ask(name) {
    try {
      const { files } = await this.api.request("GET", `/me/files?${new URLSearchParams({ prefix: name })}`);
      return files.filter((file) => file.name === name);
    } catch {
      return []; // then it is sent, and the server says so if the name is taken
    }
  }

  #load() {
    this.#loading ??= this.#loadPage().finally(() => {
      this.#loading = null;
    });
    return this.#loading;
  }

  async #loadPage() {
    const query = new URLSearchParams({ limit: PAGE });
    if (this.prefix) query.set("prefix", this.prefix);
    if (this.#after) query.set("after", this.#after);
    try {
      const { files, next } = await this.api.request("GET", `/me/files?${query}`);
      for (const file of files) this.#take(file);
      this.#listed += files.length;
      this.#after = next;
      this.#ended = next === null;
    } catch {
      this.#ended = true; // then what it would have told is sent
    }
  }

  #take(file) {
    const namesakes = this.#byName.get(file.name);
    if (namesakes) namesakes.push(file);
    else this.#byName.set(file.name, [file]);
  }
}

/** For what was brought at once. */
export class Listings {
  #byFolder = new Map();
  #counted = new Gate(false);

  constructor(api) {
    this.api = api;
  }

  /** A name below `folder` will be asked for: empty, or with a slash at its end. */
  want(folder) {
    this.#of(folder).wanted += 1;
  }

  /** All that will be asked for is known. */
  end() {
    this.#counted.set(true);
  }

  /** The finished files of this name, as they were when its folder was first asked for. */
  async named(name, folder) {
    return this.#of(folder).named(name);
  }

  #of(folder) {
    if (!this.#byFolder.has(folder)) this.#byFolder.set(folder, new Listing(this.api, folder, this.#counted));
    return this.#byFolder.get(folder);
  }
}
