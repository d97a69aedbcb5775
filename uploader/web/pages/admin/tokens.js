// A user's tokens: which there are, a new one that is shown once, and one that is to be no good any more.

import { confirmed } from "../dialogs.js";
import { SERVER } from "../client/api.js";
import { element, setText } from "../dom.js";
import { formatTime } from "../format.js";
import { t } from "../i18n.js";
import { isLocal } from "../sign-in.js";
import { table } from "./tables.js";

const COPIED_MS = 2000;

export class Tokens {
  /** `attempt(work)` does something and tells what went wrong; `tell(text)` tells what was done. */
  constructor(api, userId, { attempt, tell, made }) {
    Object.assign(this, { api, userId, attempt, tell });
    this.path = `/admin/users/${encodeURIComponent(userId)}/tokens`;
    this.admin = element("input", { id: "token-admin", type: "checkbox" });
    this.shown = element("div", {});
    this.list = element("div", { class: "table", tabindex: "-1" });
    this.container = element("section", { "aria-labelledby": "tokens-title" },
      element("h3", { id: "tokens-title" }, t("tokens.title")),
      this.shown,
      element("div", { class: "sum" },
        element("label", { class: "check", for: "token-admin" }, this.admin, element("span", {}, t("tokens.admin"))),
        element("button", { type: "button", onclick: () => this.#make() }, t("tokens.make")),
      ),
      this.list,
    );
    if (made) this.#show(made);
  }

  async reload() {
    const { tokens } = await this.api.request("GET", this.path);
    const described = tokens.length > 0 ? table(t("tokens.title"), this.#columns(), tokens) : element("p", { class: "muted" }, t("tokens.none"));
    this.list.replaceChildren(described);
  }

  /** In one attempt: an answer that is lost must not leave a second token behind unseen. */
  #make() {
    return this.attempt(async () => {
      const made = await this.api.requestOnce("POST", this.path, { body: { admin: this.admin.checked } });
      this.admin.checked = false;
      this.#show(made);
      this.tell(t("tokens.made", { user: this.userId }));
      await this.reload();
    });
  }

  #show({ token }) {
    const link = `${SERVER}/#token=${encodeURIComponent(token)}`;
    const shown = element("div", { class: "made", role: "group", "aria-label": t("tokens.new") },
      element("p", {}, element("strong", {}, t("tokens.once"))),
      ...copied("made-token", t("session.token"), token),
      ...copied("made-link", t("tokens.link"), link),
      element("p", { class: "hint" }, t("tokens.hint", { user: this.userId })),
      isLocal() && element("p", { class: "hint" }, t("tokens.local")),
    );
    this.shown.replaceChildren(shown);
    queueMicrotask(() => shown.querySelector("button").focus());
  }

  #columns() {
    return [
      { label: t("tokens.id"), header: true, cell: (token) => element("code", {}, token.id) },
      { label: t("tokens.may"), cell: (token) => t(token.admin ? "tokens.of-admin" : token.scope === "metrics" ? "tokens.of-metrics" : "tokens.of-user") },
      { label: t("tokens.created"), wide: true, className: "moment", cell: made },
      { label: element("span", { class: "visually-hidden" }, t("tokens.revoke")), number: true, cell: (token) => this.#end(token) },
    ];
  }

  #end(token) {
    if (token.revoked_at) return element("span", { class: "muted" }, t("tokens.revoked", { time: formatTime(token.revoked_at) }));
    const attributes = { type: "button", class: "small", "aria-label": t("tokens.revoke-one", { id: token.id }), onclick: () => this.#revoke(token) };
    return element("button", attributes, t("tokens.revoke"));
  }

  async #revoke({ id, admin }) {
    const text = t(admin ? "tokens.ask-admin" : "tokens.ask-user", { id, user: this.userId });
    if (!(await confirmed({ title: t("tokens.ask"), text, confirm: t("tokens.revoke"), danger: true }))) return;
    await this.attempt(async () => {
      await this.api.request("DELETE", `/admin/tokens/${id}`);
      await this.reload();
      this.list.focus();
      this.tell(t("tokens.gone", { id }));
    });
  }
}

/** When a token was made, and by whom, if that is known. */
function made({ created_at: time, made_by: maker }) {
  return element("div", {}, formatTime(time), maker !== null && element("div", { class: "muted" }, t("tokens.made-by", { maker })));
}

/** A text with its name, and a button that copies it. */
function copied(id, name, text) {
  const field = element("input", { id, type: "text", readonly: true, value: text, onfocus: () => field.select() });
  const button = element("button", { type: "button", "aria-label": t("tokens.copy-what", { what: name }) }, t("tokens.copy"));
  button.addEventListener("click", async () => {
    setText(button, t((await copy(field)) ? "tokens.copied" : "tokens.by-hand"));
    setTimeout(() => setText(button, t("tokens.copy")), COPIED_MS);
  });
  return [element("label", { for: id }, name), element("div", { class: "secret" }, field, button)];
}

/** Whether it worked. Pages over plain HTTP have no clipboard but the old one. */
async function copy(field) {
  try {
    await navigator.clipboard.writeText(field.value);
    return true;
  } catch {
    field.focus();
    return document.execCommand("copy");
  }
}
