// Files of this device, however the person brings them: chosen, dropped or pasted, alone or in folders.

import { Breath } from "./waiting.js";

// So many of a folder's entries are opened at once. The browser answers all of them in one task, between whose answers others
// take the processor: with fifty it was the longest of all.
const OPENED_AT_ONCE = 16;
// Of so many items that are dropped, those with a type of their own are taken for files unasked.
const MANY = 500;

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

/** From a drop or a paste, folders with all that is in them, in batches: [{file, name, size}]. Must be called in the event
 * itself: what is dropped can't be had later. */
export function fromTransfer(dataTransfer) {
  const items = [...dataTransfer.items].filter((item) => item.kind === "file");
  const isMany = items.length > MANY;
  const { files } = dataTransfer;
  const taken = (item, number) => (isMany && item.type ? files[number] : (item.webkitGetAsEntry?.() ?? item.getAsFile()));
  const found = items.map(taken).filter((each) => each !== null);
  return inBatches(found);
}

async function* inBatches(found) {
  const breath = new Breath();
  let batch = [];
  for await (const picked of opened(found)) {
    batch.push(picked);
    if (!breath.isDue) continue;
    yield batch;
    batch = [];
    await breath.take();
  }
  if (batch.length) yield batch;
}

/** Files, and the files behind entries. */
async function* opened(found) {
  const breath = new Breath();
  for (let first = 0; first < found.length; first += OPENED_AT_ONCE) {
    const some = found.slice(first, first + OPENED_AT_ONCE);
    const files = await Promise.all(some.map((each) => (each.isFile ? fileOf(each) : each)));
    for (const [number, file] of files.entries()) {
      if (some[number].isDirectory) yield* below(some[number]);
      else yield named(file, some[number].fullPath?.replace(/^\//, "") ?? (file.webkitRelativePath || file.name));
    }
    await breath.take();
  }
}

async function* below(folder) {
  const reader = folder.createReader();
  for (;;) {
    const entries = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (entries.length === 0) return;
    yield* opened(entries);
  }
}

function fileOf(entry) {
  return new Promise((resolve, reject) => entry.file(resolve, reject));
}
