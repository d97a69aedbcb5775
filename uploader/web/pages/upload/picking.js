// Files of this device, however the person brings them: chosen, dropped or pasted, alone or in folders.

const BATCH = 500;

function named(file, path) {
  return { file, name: path.normalize("NFC") };
}

/** From an <input type=file>, in batches: [{file, name}]. */
export function fromInput(input) {
  return inBatches([...input.files]);
}

export function carriesFiles(dataTransfer) {
  return dataTransfer?.types.includes("Files") ?? false;
}

/** From a drop or a paste, folders with all that is in them, in batches: [{file, name}]. Must be called in the event itself:
 * what is dropped can't be had later. */
export function fromTransfer(dataTransfer) {
  const items = [...dataTransfer.items].filter((item) => item.kind === "file");
  const found = items.map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile()).filter((each) => each !== null);
  return inBatches(found);
}

async function* inBatches(found) {
  let batch = [];
  for (const each of found) {
    for await (const picked of each instanceof File ? [named(each, each.webkitRelativePath || each.name)] : walk(each)) {
      batch.push(picked);
      if (batch.length < BATCH) continue;
      yield batch;
      batch = [];
      await new Promise((resolve) => setTimeout(resolve)); // the page is drawn meanwhile
    }
  }
  if (batch.length) yield batch;
}

async function* walk(entry) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    yield named(file, entry.fullPath.replace(/^\//, ""));
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const entries = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (entries.length === 0) return;
    for (const inner of entries) yield* walk(inner);
  }
}
