// What is listed: folders and files, in the order that a person chose.

import { Breath } from "../../client/waiting.js";
import { format } from "../../i18n.js";
import { lastSegment } from "./place.js";

const SORTED_AT_ONCE = 1000;
const LOOKED_AT_ONCE = 256;

/** `at_least`: the server did not count all of its files; `held`: there are none but held ones in it. */
export function entryOfFolder({ name, files, bytes, at_least: more = false, held: isHeld = false }) {
  return { key: `/${name}`, isFolder: true, path: name, name: lastSegment(name), files, size: bytes, time: 0, more, isHeld };
}

export function entryOfFile(file) {
  const time = Date.parse(file.modified_at ?? file.created_at);
  return { key: file.id, isFolder: false, path: file.name, name: lastSegment(file.name), size: file.size, time, file, isHeld: file.held === true };
}

const MEASURES = { name: () => 0, size: (entry) => entry.size, time: (entry) => entry.time };

/** Folders first; then by `by` ("name", "size", "time"), and by name what is equal. */
export function orderOf({ by, descending }) {
  const collator = format("Collator", { numeric: true });
  const measure = MEASURES[by];
  const sign = descending ? -1 : 1;
  return (one, other) => {
    if (one.isFolder !== other.isFolder) return one.isFolder ? -1 : 1;
    const difference = measure(one) - measure(other);
    if (difference) return sign * difference;
    return (by === "name" ? sign : 1) * (collator.compare(one.name, other.name) || (one.key < other.key ? -1 : 1));
  };
}

/** Two lists that are in order, as one: a little at a time. */
export async function merged(one, other, order) {
  const breath = new Breath();
  const all = [];
  let [left, right] = [0, 0];
  while (left < one.length && right < other.length) {
    all.push(order(one[left], other[right]) <= 0 ? one[left++] : other[right++]);
    if (all.length % LOOKED_AT_ONCE === 0) await breath.take();
  }
  while (left < one.length) all.push(one[left++]);
  while (right < other.length) all.push(other[right++]);
  return all;
}

/** In order, a little at a time. */
export async function sorted(entries, order) {
  const breath = new Breath();
  let runs = [];
  for (let first = 0; first < entries.length; first += SORTED_AT_ONCE) {
    runs.push(entries.slice(first, first + SORTED_AT_ONCE).sort(order));
    await breath.take();
  }
  while (runs.length > 1) {
    const longer = [];
    for (let number = 0; number < runs.length; number += 2) longer.push(await merged(runs[number], runs[number + 1] ?? [], order));
    runs = longer;
  }
  return runs[0] ?? [];
}
