// What is stored in all, what deduplication saves, and how full the disk is.

import { element } from "../dom.js";
import { formatBytes, formatCount, formatPercent } from "../format.js";
import { t } from "../i18n.js";
import { bar, SummaryCard, tile } from "./card.js";

export class Totals extends SummaryCard {
  draw(summary) {
    const damaged = summary.damaged_blobs ? [warning(summary.damaged_blobs)] : [];
    const tiles = element("dl", { class: "tiles" }, ...figures(summary));
    this.card.querySelector(".content").replaceChildren(...damaged, tiles, disk(summary.disk));
  }
}

function warning(count) {
  return element("p", { class: "error", role: "status" }, t("totals.damaged", { count }));
}

function figures(summary) {
  const { blobs, files, open_uploads: uploads, logical_bytes: logical, saved_bytes: saved } = summary;
  const bytes = (key, value, note, more = {}) =>
    tile({ key, name: t(`totals.${key}`), figure: formatBytes(value), note, ...more });
  return [
    bytes("physical", summary.physical_bytes, t("totals.physical.note", { count: blobs })),
    bytes("logical", logical, t("totals.logical.note", { count: files })),
    bytes("saved", saved, t("totals.saved.note", { percent: formatPercent(saved, Math.max(logical, 1)) }), { telling: saved > 0 }),
    bytes("unfinished", summary.use_space_unfinished, t("totals.unfinished.note", { count: uploads })),
    bytes("reserved", summary.reserved, t("totals.reserved.note")),
    tile({
      key: "users", name: t("totals.users"), figure: formatCount(summary.users),
      note: t("totals.users.note", { total: formatBytes(summary.total_space) }),
    }),
  ];
}

/** The disk from what is used to what is left. */
function disk({ total_bytes: total, free_bytes: free, trash_bytes: trash, promised_bytes: promised, floor_bytes: floor, available_bytes: available }) {
  // What is promised and what is kept come out of what is free, as far as that goes.
  const kept = Math.min(floor, Math.max(0, free - available));
  const parts = [
    { kind: "finished", name: "used", bytes: total - free, shown: total - free },
    { kind: "promised", name: "promised", bytes: promised, shown: Math.max(0, free - available - kept) },
    { kind: "floor", name: "floor", bytes: floor, shown: kept },
    { kind: "free", name: "available", bytes: available, shown: available },
  ];
  const legend = parts.map(({ kind, name, bytes }) =>
    element("li", {}, element("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), `${t(`disk.${name}`)}: ${formatBytes(bytes)}`));
  return element("div", { class: "disk" },
    element("h3", {}, t("disk.title")),
    element("p", {}, t("disk.summary", { available: formatBytes(available), total: formatBytes(total) })),
    bar(parts.map(({ kind, shown }) => ({ kind, bytes: shown })), total),
    element("ul", { class: "legend" }, ...legend),
    ...(trash ? [element("p", { class: "hint" }, t("disk.trash", { bytes: formatBytes(trash) }))] : []),
  );
}
