// Users by size: sorted, searched, page by page, and as CSV.

import { formatBytes, formatCount } from "../format.js";
import { onLanguage, t } from "../i18n.js";
import { attempt, bar, saveCsv, userButton, whenTyped } from "./card.js";
import { pageOf, PagedTable } from "./tables.js";

const $ = (id) => document.getElementById(id);

export class Users {
  /** `open(userId)` shows one user; `tell(text)` reads a text out. */
  constructor(card, api, { open, tell }) {
    Object.assign(this, { card, api, open, tell });
    this.table = new PagedTable(card, card.querySelector(".table"), {
      sort: "use_space_finished", order: "desc", load: (asked) => this.#load(asked), describe: (users) => this.#describe(users),
    });
    whenTyped($("users-search"), () => this.#search());
    $("users-csv").addEventListener("click", () => attempt(card, () => saveCsv(api, `/admin/usage?${this.#query()}`, "usage.csv")));
    onLanguage(() => this.table.draw());
  }

  reload() {
    return this.table.changed();
  }

  async #search() {
    await this.table.restart();
    this.tell(t("users.count", { count: this.card.querySelectorAll("tbody tr").length }));
  }

  #query() {
    const query = new URLSearchParams({ sort: this.table.sort, order: this.table.order });
    const wanted = $("users-search").value.trim();
    if (wanted) query.set("q", wanted);
    return query;
  }

  async #load(asked) {
    const query = this.#query();
    const { users: items, next, as_of: asOf } = await pageOf(this.api, "/admin/usage", query, asked);
    const alone = items.length === 1 && !next && !asked.after && !query.has("q");
    $("users-alone").hidden = !alone || $("new-user").hidden;
    return { items, next, asOf };
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
      { key: "user_id", label: t("users.user_id"), header: true, sort: "asc", cell: (user) => userButton(user.user_id, this.open) },
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
}
