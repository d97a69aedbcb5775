// In which order uploads are listed, and which of them share a row: what needs the person first, then what runs, then what
// waits, then leftovers, what is done last. Files of one folder are one row, wherever the most urgent of them belongs.

import { sumOf } from "../../client/totals.js";

const PLACES = { asked: 0, failed: 1, hashing: 2, uploading: 2, merging: 2, elsewhere: 2, waiting: 3, unfinished: 4, complete: 5, skipped: 5 };
// So many that need the person are shown below a folder that is folded.
const MOST_SHOWN = 20;

function placeOf(transfer) {
  return PLACES[transfer.phase] ?? 2;
}

/** Files of one folder that were brought here. */
class Folder {
  constructor(name, members) {
    Object.assign(this, { name, members, key: `folder ${name}`, sum: sumOf(members) });
  }

  get place() {
    const { asked, failed, running, going, complete } = this.sum;
    if (asked) return PLACES.asked;
    if (failed) return PLACES.failed;
    if (running || (going && complete)) return PLACES.uploading;
    return going ? PLACES.waiting : PLACES.complete;
  }

  /** As the row of one file would be. */
  get phase() {
    const { asked, failed, going, paused, complete } = this.sum;
    if (going) return going === paused ? "paused" : "uploading";
    if (asked) return "asked";
    if (failed) return "failed";
    return complete ? "complete" : "skipped";
  }
}

function inOrder(items, place) {
  const places = [[], [], [], [], [], []];
  for (const item of items) places[place(item)].push(item);
  return places.flat();
}

function needsPerson({ phase }) {
  return phase === "asked" || phase === "failed";
}

/** The rows: {key, transfer, isBelow} and {key, folder, isUnfolded}. `unfolded` has the names of folders. */
export function arranged(transfers, unfolded) {
  const byFolder = new Map();
  const alone = [];
  for (const transfer of transfers) {
    const { folder } = transfer;
    if (!folder || !transfer.file) alone.push(transfer);
    else if (byFolder.has(folder)) byFolder.get(folder).push(transfer);
    else byFolder.set(folder, [transfer]);
  }
  const listed = [...alone];
  for (const [name, members] of byFolder) listed.push(...(members.length > 1 ? [new Folder(name, members)] : members));
  return inOrder(listed, (item) => item.place ?? placeOf(item)).flatMap((item) => (item.members ? below(item, unfolded) : row(item)));
}

function row(transfer, isBelow = false) {
  return { key: transfer.id, transfer, isBelow };
}

function below(folder, unfolded) {
  const isUnfolded = unfolded.has(folder.name);
  const shown = isUnfolded ? inOrder(folder.members, placeOf) : needed(folder);
  return [{ key: folder.key, folder, isUnfolded }, ...shown.map((transfer) => row(transfer, true))];
}

function needed({ members, sum }) {
  if (!sum.asked && !sum.failed) return [];
  return inOrder(members.filter(needsPerson), placeOf).slice(0, MOST_SHOWN);
}
