// Who did what to whom, the newest first: of everybody or of one user, page by page, and as CSV.

import "./words.js";
import { element } from "../../dom.js";
import { formatBytes, formatCount, formatTime } from "../../format.js";
import { has, onLanguage, t } from "../../i18n.js";
import { attempt, saveCsv, whenTyped } from "../card.js";
import { isCount } from "../recount/recount.js";
import { pageOf, PagedTable } from "../tables.js";

const BYTES = /^(total_space|size|reserved|use_space_\w+|(\w+_)?bytes)$/;

export class Audit {
  constructor(card, api) {
    Object.assign(this, { card, api });
    this.search = card.querySelector("input");
    this.table = new PagedTable(card, card.querySelector(".table"), {
      load: (asked) => this.#load(asked), describe: () => ({ caption: t("audit.caption"), columns: columns(), none: t("audit.none") }),
    });
    whenTyped(this.search, () => this.table.restart());
    card.querySelector("button").addEventListener("click", () => attempt(card, () => saveCsv(api, `/admin/audit?${this.#query()}`, "audit.csv")));
    onLanguage(() => this.table.draw());
  }

  reload() {
    return this.table.changed();
  }

  #query() {
    const user = this.search.value.trim();
    return new URLSearchParams(user ? { user_id: user } : {});
  }

  async #load(asked) {
    const { acts: items, next, as_of: asOf } = await pageOf(this.api, "/admin/audit", this.#query(), asked);
    return { items, next, asOf };
  }
}

function columns() {
  return [
    { label: t("audit.when"), header: true, className: "moment", cell: (act) => formatTime(act.created_at) },
    { label: t("audit.what"), cell: (act) => t(`audit.${act.action}`) },
    { label: t("audit.subject"), cell: subject },
    { label: t("audit.who"), cell: who },
    { label: t("audit.address"), wide: true, cell: (act) => act.address ?? "" },
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
  return element("div", {}, actor ?? "", element("div", { class: "muted" }, how));
}

/** What else its transaction knew, without what it did not know. */
function details({ action, details: facts }) {
  if (action === "quota.changed") return valueOf("total_space", facts, facts);
  const known = Object.entries(facts).filter(([, value]) => value !== null);
  return known.map(([name, value]) => `${labelOf(name)}: ${valueOf(name, value, facts)}`).join(", ");
}

function labelOf(name) {
  return has(`audit.detail.${name}`) ? t(`audit.detail.${name}`) : name;
}

function valueOf(name, value, facts) {
  const same = (each) => valueOf(name, each, facts);
  if (typeof value === "boolean") return t(value ? "audit.yes" : "audit.no");
  if (typeof value === "number") return isBytes(name, facts) ? formatBytes(value) : formatCount(value);
  if (Array.isArray(value)) return value.map((each) => (name === "changed" ? labelOf(each) : same(each))).join(", ");
  if (typeof value === "object") return `${same(value.from)} → ${same(value.to)}`;
  if (name === "kind") return labelOf(value);
  return name === "made_at" ? formatTime(value) : value;
}

function isBytes(name, { kind }) {
  return ["expected", "actual"].includes(name) ? !isCount(kind) : BYTES.test(name);
}
