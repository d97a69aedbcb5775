// The users whose requests cost most of late.

import { element } from "../dom.js";
import { format, onLanguage, t } from "../i18n.js";
import { attempt, showAsOf } from "./card.js";
import { PagedTable } from "./tables.js";

const USERS = 20;
// With as many digits each, so that they stand below each other.
const MILLISECONDS = { minimumFractionDigits: 3, maximumFractionDigits: 3 };

export class Cost {
  #answer = { users: [] };

  /** `open(userId)` shows one user. */
  constructor(card, api, { open }) {
    Object.assign(this, { card, api, open });
    this.table = new PagedTable(card.querySelector(".table"), {
      load: () => ({ items: this.#answer.users, next: null }), describe: () => this.#describe(),
    });
    onLanguage(() => this.#draw());
  }

  reload() {
    return attempt(this.card, async () => {
      this.#answer = await this.api.request("GET", `/admin/cost?limit=${USERS}`);
      this.#draw();
      await this.table.reload();
    });
  }

  #draw() {
    if (!this.#answer.as_of) return;
    showAsOf(this.card, this.#answer.as_of);
    this.table.draw();
  }

  #describe() {
    const columns = [
      { label: t("users.user_id"), header: true, cell: ({ user_id: userId }) => this.#link(userId) },
      { label: t("cost.seconds"), number: true, cell: ({ cpu_seconds: seconds }) => format("NumberFormat", MILLISECONDS).format(seconds) },
    ];
    return { caption: t("cost.caption"), columns, none: t("cost.none") };
  }

  #link(userId) {
    const attributes = { type: "button", class: "link", "aria-haspopup": "dialog", "data-user": userId, onclick: () => this.open(userId) };
    return element("button", attributes, userId);
  }
}
