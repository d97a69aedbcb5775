// The users whose requests cost most of late.

import { format, onLanguage, t } from "../i18n.js";
import { userButton } from "./card.js";
import { PagedTable } from "./tables.js";

const USERS = 20;
// With as many digits each, so that they stand below each other.
const MILLISECONDS = { minimumFractionDigits: 3, maximumFractionDigits: 3 };

export class Cost {
  /** `open(userId)` shows one user. */
  constructor(card, api, { open }) {
    Object.assign(this, { card, api, open });
    this.table = new PagedTable(card, card.querySelector(".table"), { load: () => this.#load(), describe: () => this.#describe() });
    onLanguage(() => this.table.draw());
  }

  reload() {
    return this.table.changed();
  }

  async #load() {
    const { users: items, as_of: asOf } = await this.api.request("GET", `/admin/cost?limit=${USERS}`);
    return { items, next: null, asOf };
  }

  #describe() {
    const columns = [
      { label: t("users.user_id"), header: true, cell: ({ user_id: userId }) => userButton(userId, this.open) },
      { label: t("cost.seconds"), number: true, cell: ({ cpu_seconds: seconds }) => format("NumberFormat", MILLISECONDS).format(seconds) },
    ];
    return { caption: t("cost.caption"), columns, none: t("cost.none") };
  }
}
