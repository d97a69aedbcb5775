// Unfinished bytes by the month in which their uploads began: old months show what nobody comes back for.

import { element } from "../dom.js";
import { formatBytes, formatCount } from "../format.js";
import { format, onLanguage, t } from "../i18n.js";
import { bar, showAsOf } from "./card.js";
import { table } from "./tables.js";

export class Temp {
  #summary = null;

  constructor(card) {
    this.card = card;
    onLanguage(() => this.#draw());
  }

  /** The answer of `GET /admin/usage/summary`. */
  set summary(summary) {
    this.#summary = summary;
    this.#draw();
  }

  #draw() {
    if (!this.#summary) return;
    const { as_of: asOf, temp } = this.#summary;
    showAsOf(this.card, asOf);
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
