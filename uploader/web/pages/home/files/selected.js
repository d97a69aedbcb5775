// What is selected, as the server is asked for it.

// As many ids and folders as one request may name, and as much of it as the server reads, in bytes.
const MOST_CHANGED = { count: 5000, bytes: 240 * 1024 };
const MOST_ARCHIVED = { count: 10000, bytes: 500 * 1024 };
const MOST_PREFIXES = 100;
// Of an id, or around a prefix: quotes and a comma.
const ID_BYTES = 36;

const encoder = new TextEncoder();

/** Lists of entries, each of as many as one request may name. */
export function partsOf(entries, most = MOST_CHANGED) {
  const parts = [];
  let [bytes, folders] = [0, 0];
  for (const entry of entries) {
    const { isFolder, path } = entry;
    const own = isFolder ? encoder.encode(JSON.stringify(path)).length + 1 : ID_BYTES;
    if (!parts.length || parts.at(-1).length === most.count || bytes + own > most.bytes || (isFolder && folders === MOST_PREFIXES)) {
      parts.push([]);
      bytes = folders = 0;
    }
    bytes += own;
    folders += isFolder ? 1 : 0;
    parts.at(-1).push(entry);
  }
  return parts;
}

/** {ids, prefixes} of entries. */
export function bodyOf(entries) {
  const ids = entries.filter(({ isFolder }) => !isFolder).map(({ key }) => key);
  const prefixes = entries.filter(({ isFolder }) => isFolder).map(({ path }) => path);
  return { ids, prefixes };
}

/** For a browser to save, as one zip: the form goes to a link that is bound to just this, and nothing of the answer comes
 * through the page. `failed()` is called if there is none after all. Throws Problem. */
export async function saveAsZip(api, body, failed) {
  const { url } = await api.request("POST", "/me/archive/link", { body });
  const frame = document.createElement("iframe");
  frame.hidden = true;
  frame.name = `save-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
  document.body.append(frame);
  frame.addEventListener("load", () => {
    frame.remove(); // what is saved is no document
    failed();
  });
  const form = document.createElement("form");
  Object.assign(form, { method: "post", action: url, target: frame.name, hidden: true });
  const field = Object.assign(document.createElement("input"), { type: "hidden", name: "selection", value: JSON.stringify(body) });
  form.append(field);
  document.body.append(form);
  form.submit();
  form.remove();
}

/** What all of a folder, or these entries, are; null where they are too many for one archive. */
export function archiveBody(entries, listing) {
  const isAll = listing.isComplete && !listing.place.query && entries.length === listing.entries.length;
  if (isAll && entries.length > 1) return { prefixes: [listing.place.prefix] };
  return partsOf(entries, MOST_ARCHIVED).length === 1 ? bodyOf(entries) : null;
}
