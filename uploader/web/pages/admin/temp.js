// Unfinished bytes by the month in which their uploads began: old months show what nobody comes back for.

import { element } from "../dom.js";
import { formatBytes, formatCount } from "../format.js";
import { locale, onLanguage, t } from "../i18n.js";
import { showAsOf } from "./card.js";
import { ColumnChart } from "./chart.js";
import { table } from "./tables.js";

export class Temp {
  #summary = null;

  constructor(card) {
    this.card = card;
    this.picture = card.querySelector(".chart");
    this.chart = new ColumnChart(this.picture);
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
    this.picture.hidden = temp.length === 0;
    const months = temp.length > 0 ? table(t("temp.title"), columns(), temp) : element("p", { class: "muted" }, t("temp.none"));
    this.card.querySelector(".table").replaceChildren(months);
    if (temp.length === 0) return;
    this.chart.showColumns(temp.map(({ month }) => formatMonth(month)), temp.map((row) => row.disk_bytes), () => t("temp.picture"));
  }
}

function formatMonth(month) {
  return new Intl.DateTimeFormat(locale(), { year: "numeric", month: "short", timeZone: "UTC" }).format(new Date(`${month}-01`));
}

function columns() {
  return [
    { label: t("temp.month"), header: true, cell: (row) => formatMonth(row.month) },
    { label: t("temp.uploads"), number: true, wide: true, cell: (row) => formatCount(row.open_uploads) },
    { label: t("temp.disk"), number: true, cell: (row) => formatBytes(row.disk_bytes) },
    { label: t("temp.quota"), number: true, cell: (row) => formatBytes(row.quota_bytes) },
  ];
}
