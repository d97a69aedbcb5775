// Files of this device, however the person brings them: chosen, dropped or pasted, alone or in folders.

import { Problem } from "./api.js";
import { Breath } from "./waiting.js";

// So many of a folder's entries are opened at once. The browser answers all of them in one task, between whose answers others
// take the processor: with fifty it was the longest of all.
const OPENED_AT_ONCE = 16;
// Of so many items that are dropped, those with a type of their own are taken for files unasked.
const MANY = 500;

/** An entry that can't be read, in place of its files. */
function unread(entry, code) {
  return { file: null, name: pathOf(entry).normalize("NFC"), size: 0, problem: new Problem(code) };
}

// Of a file that was chosen, the browser looks up the size when it is asked for it first.
function named(file, path) {
  return { file, name: path.normalize("NFC"), size: file.size };
}

/** The same, put into a folder: a prefix that is empty or ends with a slash. */
export async function* into(prefix, batches) {
  for await (const batch of batches) yield batch.map((picked) => ({ ...picked, into: prefix, name: prefix + picked.name }));
}

/** From an <input type=file>, in batches: [{file, name, size}]. */
export function fromInput(input) {
  return inBatches([...input.files]);
}

export function carriesFiles(dataTransfer) {
  return dataTransfer?.types.includes("Files") ?? false;
}

/** From a drop or a paste, folders with all that is in them, in batches: [{file, name, size}], and [{file: null, name, size,
 * problem}] for each file or folder that can't be read; `onEmpty(name)` is told of folders in which there is nothing. Must be called in the event itself: what is dropped can't be had later. */
export function fromTransfer(dataTransfer, { onEmpty = () => {} } = {}) {
  const items = [...dataTransfer.items].filter((item) => item.kind === "file");
  const isMany = items.length > MANY;
  const { files } = dataTransfer;
  const taken = (item, number) => (isMany && item.type ? files[number] : (item.webkitGetAsEntry?.() ?? item.getAsFile()));
  const found = items.map(taken).filter((each) => each !== null);
  return inBatches(found, onEmpty);
}

async function* inBatches(found, onEmpty) {
  const breath = new Breath();
  let batch = [];
  for await (const picked of opened(found, onEmpty)) {
    batch.push(picked);
    if (!breath.isDue) continue;
    yield batch;
    batch = [];
    await breath.take();
  }
  if (batch.length) yield batch;
}

/** Files, the files behind entries, and the entries that can't be read. */
async function* opened(found, onEmpty) {
  const breath = new Breath();
  for (let first = 0; first < found.length; first += OPENED_AT_ONCE) {
    const some = found.slice(first, first + OPENED_AT_ONCE);
    const files = await Promise.all(some.map((each) => (each.isFile ? fileOf(each).catch(() => null) : each)));
    for (const [number, file] of files.entries()) {
      if (some[number].isDirectory) yield* below(some[number], onEmpty);
      else if (file === null) yield unread(some[number], "unreadable");
      else yield named(file, pathOf(some[number]) ?? (file.webkitRelativePath || file.name));
    }
    await breath.take();
  }
}

async function* below(folder, onEmpty) {
  const reader = folder.createReader();
  for (let isEmpty = true; ; isEmpty = false) {
    const entries = await new Promise((resolve) => reader.readEntries(resolve, () => resolve(null)));
    if (entries === null) {
      yield unread(folder, "unreadable-folder");
      return;
    }
    if (entries.length === 0) {
      if (isEmpty) onEmpty(pathOf(folder).normalize("NFC"));
      return;
    }
    yield* opened(entries, onEmpty);
  }
}

/** From the folder that was dropped on; undefined where it is no entry. */
function pathOf({ fullPath }) {
  return fullPath?.replace(/^\//, "");
}

function fileOf(entry) {
  return new Promise((resolve, reject) => entry.file(resolve, reject));
}
