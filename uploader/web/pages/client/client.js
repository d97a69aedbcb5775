// The client as applications have it: the same uploads as on the page, and the files of the caller. What each method does is
// said in client.d.ts; they are called as those of the Python client.

import { Api, Problem, SERVER, unreachable } from "./api.js";
import { fileOf } from "./plan.js";
import { OneUpload, ManyUploads } from "./started.js";
import { sharedBy } from "./transfers.js";

const PAGE = 1000;

export class Client {
  #api;
  #shared;

  constructor({ server = SERVER, token = null } = {}) {
    const base = String(server).replace(/\/+$/, "");
    this.#api = typeof token === "function" ? asking(base, token) : new Api({ base, token });
    this.#shared = sharedBy(this.#api);
  }

  // Uploading

  async upload(file, options) {
    return this.start(file, options).result;
  }

  start(file, options = {}) {
    return new OneUpload(this.#shared, picked(file, options), options);
  }

  async uploadMany(files, options) {
    return this.startMany(files, options).result;
  }

  startMany(files, options = {}) {
    return new ManyUploads(this.#shared, inBatches(files, options), options);
  }

  async uploads() {
    return (await this.#call("GET", "/uploads")).uploads;
  }

  async cancel(uploadId) {
    await this.#call("DELETE", `/uploads/${uploadId}`);
  }

  // Files and folders

  async *files(prefix = "", { part = "" } = {}) {
    for (let after; after !== null; ) {
      const { files, next } = await this.page({ after, prefix, part });
      yield* files;
      after = next;
    }
  }

  async page({ after, prefix, part, limit = PAGE } = {}) {
    return this.#list({ after, prefix, q: part, limit });
  }

  async *level(folder = "") {
    for (let after; after !== null; ) {
      const { folders, files, next } = await this.#list({ after, prefix: below(folder), delimiter: "/", limit: PAGE });
      yield* [...folders, ...files];
      after = next;
    }
  }

  async named(name) {
    const { files } = await this.#list({ prefix: name, delimiter: "/", limit: PAGE });
    return files.filter((file) => file.name === name.normalize("NFC"));
  }

  async file(id) {
    const told = await this.#call("GET", `/me/files/${id}`);
    return fileOf(told) ?? told;
  }

  async link(id, { lifetimeSeconds } = {}) {
    const link = await this.#call("POST", `/me/files/${id}/link`, { expires_in: lifetimeSeconds });
    return { ...link, url: new URL(link.url, `${this.#api.base}/`).href };
  }

  async rename(id, name, { ifExists } = {}) {
    return this.#call("PATCH", `/me/files/${id}`, { name, if_exists: ifExists });
  }

  async delete(id) {
    await this.#call("DELETE", `/me/files/${id}`);
  }

  async makeFolder(folder) {
    await this.#call("POST", "/me/folders", { name: below(folder).slice(0, -1) });
  }

  async moveFolder(folder, newFolder, { ifExists } = {}) {
    const told = { prefix: below(newFolder), if_exists: ifExists };
    return (await this.#call("PATCH", `/me/files?${query({ prefix: below(folder) })}`, told)).files;
  }

  async deleteFolder(folder) {
    return (await this.#call("DELETE", `/me/files?${query({ prefix: below(folder) })}`)).files;
  }

  async usage() {
    return this.#call("GET", "/me/usage");
  }

  #list(facts) {
    return this.#call("GET", `/me/files?${query(facts)}`);
  }

  #call(method, path, body) {
    return this.#api.request(method, path, { body });
  }
}

/** With the tokens that the application's function gives: one serves until it is refused; all calls wait for the next. */
function asking(base, source) {
  let asked = null;
  const renew = (problem, again) => {
    if (again) throw problem; // a new one is refused, too
    asked ??= askFor(source)
      .then((token) => {
        api.token = token;
      })
      .finally(() => {
        asked = null;
      });
    return asked;
  };
  const api = new Api({ base, renew });
  api.token = undefined; // not asked for yet
  return api;
}

/** Throws Problem. */
async function askFor(source) {
  let token;
  try {
    token = await source();
  } catch (error) {
    if (error instanceof TypeError) throw unreachable(); // fetch found nobody
    throw error instanceof Problem ? error : new Problem("no-token", { detail: `${error}` });
  }
  if (/^[!-~]+$/.test(token)) return token;
  throw new Problem("no-token", { detail: "What the application gave is no token." });
}

function query(facts) {
  return new URLSearchParams(Object.entries(facts).filter(([, value]) => value !== undefined && value !== ""));
}

/** What the names of all files in a folder begin with. */
function below(folder) {
  const name = folder.replace(/\/+$/, "");
  return name && `${name}/`;
}

async function* inBatches(files, options) {
  const batches = files[Symbol.asyncIterator] ? files : [[...files]];
  for await (const some of batches) if (some.length) yield some.map((each) => picked(each, options));
}

/** One file as uploads know it: a Blob, or {file, name}; or an entry that could not be read: {file: null, name, problem}. Throws Problem. */
function picked(given, { name: asked, to = "", ifExists, modifiedAt, expected }) {
  const { file, name: ownName, problem = null } = given instanceof Blob ? { file: given } : given;
  const path = asked ?? ownName ?? (file.webkitRelativePath || file.name);
  if (!path) throw new Problem("invalid-name", { detail: "What is uploaded has no name of its own: give one." });
  const name = `${below(to)}${path}`.normalize("NFC");
  if (problem) return { file, name, size: 0, problem };
  return { file: dated(file, modifiedAt), name, size: file.size, ifExists, expected: expected?.(name, file.size) ?? null };
}

/** The same bytes, not copied, as a file that was changed at that time. */
function dated(file, modifiedAt) {
  if (file instanceof File && modifiedAt === undefined) return file;
  return new File([file], file.name ?? "", { lastModified: modifiedAt === undefined ? undefined : Number(new Date(modifiedAt)) });
}
