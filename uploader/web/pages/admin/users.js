// Users by size: sorted, searched, page by page, and as CSV.

import { element } from "../dom.js";
import { formatBytes, formatCount } from "../format.js";
import { onLanguage, t } from "../i18n.js";
import { attempt, bar, saveCsv, showAsOf } from "./card.js";
import { PagedTable } from "./tables.js";

const TYPING_MS = 300;

const $ = (id) => document.getElementById(id);

export class Users {
  #asOf = null;

  /** `open(userId)` shows one user; `tell(text)` reads a text out. */
  constructor(card, api, { open, tell }) {
    Object.assign(this, { card, api, open, tell });
    this.table = new PagedTable(card.querySelector(".table"), {
      sort: "use_space_finished", order: "desc", load: (asked) => this.#load(asked), describe: (users) => this.#describe(users),
    });
    this.table.changed = () => this.reload();
    let timer;
    $("users-search").addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.#search(), TYPING_MS);
    });
    $("users-csv").addEventListener("click", () => attempt(card, () => saveCsv(api, `/admin/usage?${this.#query()}`, "usage.csv")));
    onLanguage(() => this.#draw());
  }

  reload() {
    return attempt(this.card, () => this.table.reload());
  }

  async #search() {
    await attempt(this.card, () => this.table.restart());
    this.tell(t("users.count", { count: this.card.querySelectorAll("tbody tr").length }));
  }

  #query() {
    const query = new URLSearchParams({ sort: this.table.sort, order: this.table.order });
    const wanted = $("users-search").value.trim();
    if (wanted) query.set("q", wanted);
    return query;
  }

  async #load({ after, limit }) {
    const query = this.#query();
    query.set("limit", limit);
    if (after) query.set("after", after);
    const page = await this.api.request("GET", `/admin/usage?${query}`);
    this.#asOf = page.as_of;
    showAsOf(this.card, this.#asOf);
    const alone = page.users.length === 1 && !page.next && !after && !query.has("q");
    $("users-alone").hidden = !alone || $("new-user").hidden;
    return { items: page.users, next: page.next };
  }

  #draw() {
    if (this.#asOf) showAsOf(this.card, this.#asOf);
    this.table.draw();
  }

  #describe(users) {
    const largest = Math.max(0, ...users.map((user) => user.use_space_finished + user.use_space_unfinished));
    const bytes = (key, wide = false) => ({ key, label: t(`users.${key}`), number: true, sort: "desc", wide, cell: (user) => formatBytes(user[key]) });
    const count = (key) => ({ ...bytes(key), className: "widest-only", cell: (user) => formatCount(user[key]) });
    const parts = (user) => [
      { kind: "finished", bytes: user.use_space_finished },
      { kind: "unfinished", bytes: user.use_space_unfinished },
    ];
    const columns = [
      { key: "user_id", label: t("users.user_id"), header: true, sort: "asc", cell: (user) => this.#link(user.user_id) },
      { label: t("users.share"), className: "bar-column", wide: true, cell: (user) => bar(parts(user), largest) },
      bytes("use_space_finished"),
      bytes("use_space_unfinished"),
      bytes("reserved", true),
      bytes("total_space", true),
      count("files"),
      count("open_uploads"),
    ];
    return { caption: t("users.caption"), columns, none: t("users.none") };
  }

  #link(userId) {
    const attributes = { type: "button", class: "link", "aria-haspopup": "dialog", "data-user": userId, onclick: () => this.open(userId) };
    return element("button", attributes, userId);
  }
}
