// A user's links: what each leads to, what came by it, and its end.

import "../home/links/words.js";
import { confirmed } from "../dialogs.js";
import { element } from "../dom.js";
import { saidOf } from "../home/links/sentences.js";
import { t } from "../i18n.js";
import { table } from "./tables.js";

export class LinksOfUser {
  /** `attempt(work)` does something and tells what went wrong; `tell(text)` tells what was done. */
  constructor(api, userId, { attempt, tell }) {
    Object.assign(this, { api, attempt, tell });
    this.path = `/admin/users/${encodeURIComponent(userId)}/links`;
    this.list = element("div", { class: "table", tabindex: "-1" });
    this.container = element("section", { "aria-labelledby": "links-title" }, element("h3", { id: "links-title" }, t("links.title")), this.list);
  }

  async reload() {
    const { links } = await this.api.request("GET", this.path);
    const described = links.length > 0 ? table(t("links.title"), this.#columns(), links) : element("p", { class: "muted" }, t("links.no-links"));
    this.list.replaceChildren(described);
  }

  #columns() {
    return [
      { label: t("links.leads-to"), header: true, cell: ({ name, label }) => element("div", {}, name, label && element("div", { class: "muted" }, label)) },
      { label: t("links.came"), wide: true, cell: saidOf },
      { label: element("span", { class: "visually-hidden" }, t("links.revoke-confirm")), number: true, cell: (link) => this.#button(link) },
    ];
  }

  #button(link) {
    const attributes = { type: "button", class: "small", "aria-label": t("links.revoke", { name: link.name }), onclick: () => this.#revoke(link) };
    return element("button", attributes, t("links.revoke-confirm"));
  }

  async #revoke({ id, name }) {
    const question = { title: t("links.revoke-title"), text: t("links.revoke-text", { name }), confirm: t("links.revoke-confirm"), danger: true };
    if (!(await confirmed(question))) return;
    await this.attempt(async () => {
      await this.api.request("DELETE", `${this.path}/${id}`);
      await this.reload();
      this.list.focus();
      this.tell(t("links.revoked", { name }));
    });
  }
}
