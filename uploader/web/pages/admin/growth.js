// How what is stored has grown, and when the disk will be full.

import { element, setText } from "../dom.js";
import { formatBytes } from "../format.js";
import { format, t } from "../i18n.js";
import { attempt, showAsOf, SummaryCard, tile } from "./card.js";
import { LineChart } from "./chart.js";
import { table } from "./tables.js";

const DAYS = [7, 30, 365];
const FAR_DAYS = 3650;

const $ = (id) => document.getElementById(id);

export class Growth extends SummaryCard {
  #history = null;
  #days = 30;
  #isYoung = false; // there is no day yet to compare this one with

  constructor(card, api) {
    super(card);
    this.api = api;
    this.chart = new LineChart($("growth-chart"));
    this.#drawChoice();
  }

  reload() {
    return attempt(this.card, async () => {
      const days = this.#days;
      const history = await this.api.request("GET", `/admin/usage/history?days=${days}`);
      if (days !== this.#days) return;
      this.#history = history;
      this.#drawHistory();
    });
  }

  #drawChoice() {
    for (const days of DAYS) {
      const radio = element("input", { type: "radio", name: "days", value: days, checked: days === this.#days, onchange: () => {
        this.#days = days;
        this.reload();
      } });
      $("growth-days").append(element("label", {}, radio, element("span", { "data-days": days })));
    }
  }

  draw({ growth }) {
    for (const span of $("growth-days").querySelectorAll("[data-days]")) {
      setText(span, t("growth.choice", { days: Number(span.dataset.days) }));
    }
    this.#isYoung = growth.every(({ physical_bytes: bytes }) => bytes === null);
    // Until there is something to compare with, none of them would say anything.
    const tiles = this.#isYoung ? "" : element("dl", { class: "tiles" }, ...growth.map((period) => tile(inWords(period))));
    this.card.querySelector(".content").replaceChildren(tiles);
    this.#drawHistory();
  }

  #drawHistory() {
    if (!this.#history) return;
    const { as_of: asOf, days: rows } = this.#history;
    showAsOf(this.card, asOf);
    const few = rows.length < 2;
    const empty = rows.every((row) => !row.physical_bytes && !row.logical_bytes && !row.use_space_unfinished);
    $("growth-chart").hidden = few || empty;
    $("growth-none").hidden = !$("growth-chart").hidden;
    setText($("growth-none"), t(few ? "growth.none" : "growth.empty"));
    $("growth-details").hidden = few || empty;
    $("growth-days").hidden = few && this.#isYoung;
    $("growth-details").querySelector(".table").replaceChildren(table(t("growth.title"), columns(), [...rows].reverse()));
    if (few || empty) return;
    const [first, last] = [rows[0], rows.at(-1)];
    const values = (field) => rows.map((row) => row[field]);
    this.chart.show(() => ({
      label: t("growth.picture", {
        from: formatDay(first.day), to: formatDay(last.day), before: formatBytes(first.physical_bytes), after: formatBytes(last.physical_bytes),
      }),
      days: values("day"),
      lines: [
        { label: t("growth.physical"), colour: "accent", filled: true, values: values("physical_bytes") },
        { label: t("growth.logical"), colour: "good", dashed: true, values: values("logical_bytes") },
        { label: t("growth.unfinished"), colour: "hash", values: values("use_space_unfinished") },
      ],
    }));
  }
}

function formatDay(day) {
  return format("DateTimeFormat", { dateStyle: "medium", timeZone: "UTC" }).format(new Date(day));
}

function inWords({ days, physical_bytes: bytes, physical_bytes_per_day: perDay, days_until_full: left }) {
  const name = t("growth.period", { days });
  const key = `growth-${days}`;
  if (bytes === null) return { key, name, figure: "–", note: t("growth.young") };
  const sign = bytes > 0 ? "+" : "";
  return { key, name, figure: `${sign}${formatBytes(bytes)}`, note: `${t("growth.day", { bytes: formatBytes(perDay) })} · ${untilFull(left)}` };
}

function untilFull(days) {
  if (days === null) return t("growth.never");
  if (days < 1) return t("growth.soon");
  return days > FAR_DAYS ? t("growth.far") : t("growth.full", { count: Math.floor(days) });
}

function columns() {
  const bytes = (name, field, wide = false) => ({ label: t(`growth.${name}`), number: true, wide, cell: (row) => formatBytes(row[field]) });
  return [
    { label: t("growth.date"), header: true, cell: (row) => formatDay(row.day) },
    bytes("physical", "physical_bytes"),
    bytes("logical", "logical_bytes"),
    bytes("unfinished", "use_space_unfinished", true),
    bytes("free", "free_disk_bytes", true),
  ];
}
