// Who did what to whom, the newest first: of everybody or of one user, page by page, and as CSV.

import "./words.js";
import { element } from "../../dom.js";
import { formatBytes, formatTime } from "../../format.js";
import { onLanguage, t } from "../../i18n.js";
import { attempt, saveCsv, showAsOf } from "../card.js";
import { PagedTable } from "../tables.js";

const TYPING_MS = 300;

export class Audit {
  #asOf = null;

  constructor(card, api) {
    Object.assign(this, { card, api });
    this.search = card.querySelector("input");
    this.table = new PagedTable(card.querySelector(".table"), {
      load: (asked) => this.#load(asked), describe: () => ({ caption: t("audit.caption"), columns: columns(), none: t("audit.none") }),
    });
    this.table.changed = () => this.reload();
    let timer;
    this.search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => attempt(card, () => this.table.restart()), TYPING_MS);
    });
    card.querySelector("button").addEventListener("click", () => attempt(card, () => saveCsv(api, `/admin/audit?${this.#query()}`, "audit.csv")));
    onLanguage(() => this.#draw());
  }

  reload() {
    return attempt(this.card, () => this.table.reload());
  }

  #query() {
    const user = this.search.value.trim();
    return new URLSearchParams(user ? { user_id: user } : {});
  }

  async #load({ after, limit }) {
    const query = this.#query();
    query.set("limit", limit);
    if (after) query.set("after", after);
    const page = await this.api.request("GET", `/admin/audit?${query}`);
    this.#asOf = page.as_of;
    showAsOf(this.card, this.#asOf);
    return { items: page.acts, next: page.next };
  }

  #draw() {
    if (this.#asOf) showAsOf(this.card, this.#asOf);
    this.table.draw();
  }
}

function columns() {
  return [
    { label: t("audit.when"), header: true, className: "moment", cell: (act) => formatTime(act.created_at) },
    { label: t("audit.what"), cell: (act) => t(`audit.${act.action}`) },
    { label: t("audit.subject"), cell: subject },
    { label: t("audit.who"), cell: who },
    { label: t("audit.address"), wide: true, cell: (act) => act.address ?? t("none") },
    { label: t("audit.details"), wide: true, cell: details },
  ];
}

function subject({ subject: name, user_id: user }) {
  const of = user !== null && user !== name && element("div", { class: "muted" }, t("audit.of", { user }));
  return element("div", {}, name, of);
}

/** The actor, and how it came to act: with which token, by a command, as a job. */
function who({ actor, via, token_id: id, token_made_by: maker }) {
  const how = id === null ? t(`audit.${via}`) : maker === null ? t("audit.token", { id }) : t("audit.token-made", { id, maker });
  return element("div", {}, actor ?? t("none"), element("div", { class: "muted" }, how));
}

/** What else its transaction knew, in its own words. */
function details({ action, details: facts }) {
  if (action === "quota.changed") return `${formatBytes(facts.from)} → ${formatBytes(facts.to)}`;
  const said = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
  return Object.entries(facts).map(([name, value]) => `${name}: ${said(value)}`).join(", ");
}
