// Who is told of events: what waits for each sink, what it has not taken and why, and telling it once more.

import "./words.js";
import { element, setText } from "../../dom.js";
import { formatDuration } from "../../format.js";
import { onLanguage, t } from "../../i18n.js";
import { attempt, counted, showAsOf } from "../card.js";
import { table } from "../tables.js";

export class Sinks {
  #answer = null;

  /** The card is hidden while there is nobody to be told. */
  constructor(card, api) {
    Object.assign(this, { card, api });
    this.container = card.querySelector(".table");
    this.container.tabIndex = -1; // where the focus goes when its button is gone
    onLanguage(() => this.#draw());
  }

  async reload() {
    const asked = await attempt(this.card, async () => {
      this.#answer = await this.api.request("GET", "/admin/events");
      this.#draw();
    });
    if (!asked) this.card.hidden = false;
  }

  #draw() {
    if (!this.#answer) return;
    const { as_of: asOf, sinks } = this.#answer;
    this.card.hidden = sinks.length === 0;
    showAsOf(this.card, asOf);
    this.container.replaceChildren(table(t("sinks.caption"), this.#columns(), sinks));
  }

  #columns() {
    return [
      { label: t("sinks.sink"), header: true, cell: (row) => element("div", {}, row.sink, element("div", { class: "narrow-only" }, described(row))) },
      { label: t("sinks.condition"), wide: true, cell: described },
      { label: t("sinks.waiting"), number: true, cell: (row) => counted(row.waiting) },
      { label: t("sinks.lag"), number: true, className: "widest-only", cell: (row) => (row.waiting > 0 ? formatDuration(row.lag_seconds) : "–") },
      { label: t("sinks.dead"), number: true, cell: (row) => element("span", { class: row.dead > 0 ? "drift" : null }, counted(row.dead)) },
      { label: element("span", { class: "visually-hidden" }, t("sinks.replay")), number: true, cell: (row) => this.#button(row) },
    ];
  }

  #button({ sink, dead, condition }) {
    if (dead === 0 || condition === "unnamed") return "";
    const attributes = { type: "button", class: "small", "aria-label": t("sinks.replay-one", { sink }), onclick: () => this.#replay(sink) };
    return element("button", attributes, t("sinks.replay"));
  }

  async #replay(sink) {
    const outcome = this.card.querySelector(".outcome");
    setText(outcome, "");
    await attempt(this.card, async () => {
      const { deliveries } = await this.api.request("POST", "/admin/events/replay", { body: { sink } });
      setText(outcome, t("sinks.replayed", { count: deliveries, sink }));
      this.container.focus();
      this.#answer = await this.api.request("GET", "/admin/events");
      this.#draw();
    });
  }
}

/** In what condition a sink is, and its last error. */
function described({ sink, condition, last_error: error }) {
  return element("div", {}, t(`sinks.${condition}`, { sink }), error !== null && element("p", { class: "hint" }, error));
}
