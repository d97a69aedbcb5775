// One user: what they store, their quota, their open uploads and their files, in a dialog.

import { confirmed } from "../dialogs.js";
import { element, iconButton, setText } from "../dom.js";
import { formatBytes, formatTime } from "../format.js";
import { t } from "../i18n.js";
import { attempt, bar, showAsOf, tile, whenTyped } from "./card.js";
import { LinksOfUser } from "./links.js";
import { quotaForm } from "./quota-form.js";
import { differences, verdict } from "./recount/recount.js";
import { expire, expireButton, outcome } from "./stale.js";
import { pageOf, PagedTable } from "./tables.js";
import { Tokens } from "./tokens.js";

/** Show a user until the dialog is closed; `changed()` is called when something about them was changed. `hasTokens`: whether
 * tokens of this server let people in; `made` is one that was just made for them; `hasLinks`: whether there are any. */
export class UserDialog {
  constructor(api, userId, { changed, hasTokens, hasLinks, made = null }) {
    Object.assign(this, { api, userId, changed });
    this.path = `/admin/users/${encodeURIComponent(userId)}`;
    this.content = element("div", { class: "content" });
    this.quota = element("div", {});
    this.outcome = element("p", { class: "outcome", role: "status" });
    this.differences = element("div", {});
    const how = { attempt: (work) => attempt(this.dialog, work), tell: (text) => setText(this.outcome, text) };
    this.tokens = hasTokens ? new Tokens(api, userId, { ...how, made }) : null;
    this.links = hasLinks ? new LinksOfUser(api, userId, how) : null;
    this.dialog = this.#make();
    document.body.append(this.dialog);
    this.dialog.addEventListener("close", () => this.dialog.remove());
    this.dialog.showModal();
    this.reload();
  }

  #make() {
    const dialog = element("dialog", { class: "wide", "aria-labelledby": "user-title" });
    const close = iconButton("cancel", t("user.close"), () => this.dialog.close());
    const recount = element("button", { type: "button", onclick: () => this.#recount() }, t("recount.button"));
    const tableOf = (how) => new PagedTable(dialog, element("div", { class: "table" }), how);
    this.uploads = tableOf({ load: (asked) => this.#loadUploads(asked), describe: () => this.#describeUploads() });
    this.files = tableOf({ load: (asked) => this.#loadFiles(asked), describe: describeFiles });
    this.prefix = element("input", { type: "search", "aria-label": t("user.prefix"), placeholder: t("user.prefix") });
    whenTyped(this.prefix, () => this.files.restart());
    dialog.append(
      element("div", { class: "dialog-head" }, element("div", {}, element("h2", { id: "user-title" }, this.userId), element("p", { class: "as-of" })), element("div", { class: "buttons" }, recount, close)),
      element("p", { class: "error", role: "alert" }),
      this.outcome,
      this.differences,
      this.content,
      element("h3", {}, t("user.quota")),
      this.quota,
      this.tokens?.container ?? "",
      this.links?.container ?? "",
      element("h3", {}, t("user.uploads")),
      this.uploads.container,
      element("div", { class: "sum" }, element("h3", {}, t("user.files")), this.prefix),
      this.files.container,
    );
    return dialog;
  }

  reload() {
    return attempt(this.dialog, async () => {
      const user = await this.api.request("GET", this.path);
      this.#show(user);
      await Promise.all([this.uploads.reload(), this.files.reload(), this.tokens?.reload(), this.links?.reload()]);
    });
  }

  #show(user) {
    showAsOf(this.dialog, user.as_of);
    const bytes = (key) => tile({ key, name: t(`users.${key}`), figure: formatBytes(user[key]) });
    const parts = [{ kind: "finished", bytes: user.use_space_finished }, { kind: "unfinished", bytes: user.use_space_unfinished }];
    this.content.replaceChildren(
      element("dl", { class: "tiles" }, ...["use_space_finished", "use_space_unfinished", "reserved", "available"].map(bytes)),
      bar(parts, user.total_space),
    );
    if (!this.quota.contains(document.activeElement)) this.quota.replaceChildren(quotaForm(user.total_space, (wanted) => this.#setQuota(user, wanted)));
  }

  async #setQuota({ total_space: before }, after) {
    const text = t("user.ask-text", { user: this.userId, before: formatBytes(before), after: formatBytes(after) });
    if (!(await confirmed({ title: t("user.ask"), text, confirm: t("user.save") }))) return;
    const worked = await attempt(this.dialog, () => this.api.request("PUT", this.path, { body: { total_space: after } }));
    if (!worked) return;
    this.quota.replaceChildren();
    await this.reload();
    setText(this.outcome, t("user.saved", { user: this.userId, total: formatBytes(after) }));
    this.changed();
  }

  async #recount() {
    await attempt(this.dialog, async () => {
      const found = await this.api.request("POST", "/admin/usage/recount", { body: { user_id: this.userId } });
      setText(this.outcome, verdict(found.drifts, t("recount.user-equal")));
      this.differences.replaceChildren(...differences(found));
    });
  }

  async #loadUploads(asked) {
    const query = new URLSearchParams({ user_id: this.userId });
    const { uploads: items, next } = await pageOf(this.api, "/admin/uploads", query, asked);
    return { items, next };
  }

  #describeUploads() {
    const columns = [
      { label: t("stale.name"), header: true, cell: (upload) => upload.name },
      { label: t("stale.since"), wide: true, className: "moment", cell: (upload) => formatTime(upload.updated_at) },
      { label: t("user.received"), number: true, cell: (upload) => formatBytes(upload.disk_bytes) },
      { label: t("user.size"), number: true, wide: true, cell: (upload) => formatBytes(upload.quota_bytes) },
      { label: element("span", { class: "visually-hidden" }, t("stale.expire")), number: true,
        cell: (upload) => expireButton(upload, () => this.#expire(upload)) },
    ];
    return { caption: t("user.uploads"), columns, none: t("user.no-uploads") };
  }

  async #expire(upload) {
    const expired = await expire(this.api, this.dialog, upload, 0);
    if (expired === null) return;
    await this.reload();
    setText(this.outcome, outcome(expired ? 1 : 0, expired ? 0 : 1));
    this.changed();
  }

  async #loadFiles(asked) {
    const prefix = this.prefix.value.normalize("NFC");
    const query = new URLSearchParams(prefix ? { prefix } : {});
    const { files: items, next } = await pageOf(this.api, `${this.path}/files`, query, asked);
    return { items, next };
  }
}

function describeFiles() {
  const columns = [
    { label: t("user.file"), header: true, cell: (file) => file.name },
    { label: t("user.created"), wide: true, className: "moment", cell: (file) => formatTime(file.created_at) },
    { label: t("user.size"), number: true, cell: (file) => formatBytes(file.size) },
  ];
  return { caption: t("user.files"), columns, none: t("user.no-files") };
}
