// A new user, in a dialog: an id, how much they may store, and, where tokens let people in, the first one.

import { Problem } from "../client/api.js";
import { element, setText } from "../dom.js";
import { t } from "../i18n.js";
import { messageOf } from "../problems.js";
import { spaceFields } from "./quota-form.js";

export class NewUser {
  /** `made(userId, token)` is called when the user is there; `token` is the answer that tells it, or null. */
  constructor(api, { hasTokens, made }) {
    Object.assign(this, { api, hasTokens, made });
    this.id = element("input", { id: "new-id", type: "text", required: true, maxlength: 255, autocomplete: "off", autocapitalize: "off", spellcheck: "false", "aria-describedby": "new-error" });
    this.space = spaceFields("new-space", null, "new-error");
    this.admin = element("input", { id: "new-admin", type: "checkbox" });
    this.error = element("p", { class: "error", id: "new-error", role: "alert" });
    this.submit = element("button", { type: "submit", class: "primary" }, t("new.make"));
    this.dialog = this.#make();
    document.body.append(this.dialog);
    this.dialog.addEventListener("close", () => this.dialog.remove());
    this.dialog.showModal();
    this.id.focus();
  }

  #make() {
    const form = element("form", { novalidate: true },
      element("h2", { id: "new-title" }, t("new.title")),
      element("label", { for: "new-id" }, t("new.id")),
      this.id,
      element("label", { for: "new-space" }, t("new.space")),
      element("div", { class: "secret" }, this.space.input, this.space.unit),
      this.hasTokens && element("p", { class: "hint" }, t("new.space-hint")),
      this.hasTokens && element("label", { class: "check", for: "new-admin" }, this.admin, element("span", {}, t("tokens.admin"))),
      element("p", { class: "hint" }, t(this.hasTokens ? "new.token-hint" : "new.jwt-hint")),
      this.error,
      element("div", { class: "actions" },
        element("button", { type: "button", onclick: () => this.dialog.close() }, t("dialog.back")), this.submit),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
    return element("dialog", { "aria-labelledby": "new-title" }, form);
  }

  async #save() {
    const userId = this.id.value.trim();
    const wanted = this.space.input.value.trim() === "" && this.hasTokens ? undefined : this.space.read();
    if (userId === "") return this.#refuse(t("new.no-id"), this.id);
    if (Number.isNaN(wanted)) return this.#refuse(t("user.bad-quota"), this.space.input);
    this.submit.disabled = true;
    try {
      if (await this.#isThere(userId)) return this.#refuse(t("new.there", { user: userId }), this.id);
      const token = await this.#create(userId, wanted);
      this.dialog.close();
      this.made(userId, token);
    } catch (problem) {
      if (!(problem instanceof Problem)) console.error(problem);
      this.#refuse(messageOf(problem), this.id);
    } finally {
      this.submit.disabled = false;
    }
  }

  #refuse(text, field) {
    setText(this.error, text);
    field.focus();
  }

  async #isThere(userId) {
    try {
      await this.api.request("GET", `/admin/users/${encodeURIComponent(userId)}`);
      return true;
    } catch (problem) {
      if (problem.code === "not-found") return false;
      throw problem;
    }
  }

  async #create(userId, wanted) {
    const path = `/admin/users/${encodeURIComponent(userId)}`;
    if (this.hasTokens) return this.api.requestOnce("POST", `${path}/tokens`, { body: { admin: this.admin.checked, total_space: wanted } });
    await this.api.request("PUT", path, { body: { total_space: wanted } });
    return null;
  }
}
