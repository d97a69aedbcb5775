// Unfinished bytes by the month in which their uploads began: old months show what nobody comes back for.

import { element } from "../dom.js";
import { formatBytes, formatCount } from "../format.js";
import { format, t } from "../i18n.js";
import { bar, SummaryCard } from "./card.js";
import { table } from "./tables.js";

export class Temp extends SummaryCard {
  draw({ temp }) {
    const largest = Math.max(0, ...temp.map((row) => row.disk_bytes));
    const months = temp.length > 0 ? table(t("temp.title"), columns(largest), temp) : element("p", { class: "muted" }, t("temp.none"));
    this.card.querySelector(".table").replaceChildren(months);
  }
}

function formatMonth(month) {
  return format("DateTimeFormat", { year: "numeric", month: "short", timeZone: "UTC" }).format(new Date(`${month}-01`));
}

function columns(largest) {
  return [
    { label: t("temp.month"), header: true, cell: (row) => formatMonth(row.month) },
    { label: t("temp.uploads"), number: true, wide: true, cell: (row) => formatCount(row.open_uploads) },
    { label: t("temp.disk"), number: true, cell: ({ disk_bytes: bytes }) => element("div", {}, formatBytes(bytes), bar([{ kind: "unfinished", bytes }], largest)) },
    { label: t("temp.quota"), number: true, cell: (row) => formatBytes(row.quota_bytes) },
  ];
}
