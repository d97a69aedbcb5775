// The links of a person: what each leads to, what came of it, changing it, and its end.

import "./words.js";
import { confirmed } from "../../dialogs.js";
import { element, setText } from "../../dom.js";
import { onLanguage, t } from "../../i18n.js";
import { messageOf } from "../../problems.js";
import { VirtualList } from "../../virtual-list.js";
import { drawPath } from "../files/path-view.js";
import { glyphButton, picture } from "../files/pictures.js";
import { folderOf, hashOf } from "../files/place.js";
import { saidOf } from "./sentences.js";
import { change, showLink } from "./share.js";

const $ = (id) => document.getElementById(id);

export class LinksView {
  #links = [];

  /** `tell(text)` reads a text out. */
  constructor(api, { tell }) {
    Object.assign(this, { api, tell });
    this.list = new VirtualList($("links-list"), { make: (link) => this.#row(link), key: ({ id }) => id });
    onLanguage(() => {
      this.list.redraw();
      this.#draw();
    });
  }

  /** Ask for them anew. */
  async show() {
    this.#draw();
    try {
      this.#links = (await this.api.request("GET", "/me/links")).links;
      setText($("links-error"), "");
    } catch (problem) {
      setText($("links-error"), messageOf(problem));
    }
    this.list.redraw();
    this.#draw();
  }

  #draw() {
    drawPath($("links-path"), { prefix: "", query: "", title: t("links.title") });
    this.list.items = this.#links;
    $("links-list").hidden = !this.#links.length;
    $("links-none").hidden = this.#links.length > 0;
  }

  #row(link) {
    const { name, label } = link;
    const button = (key, drawn, run) => glyphButton(drawn, t(key, { name: label || name }), { onclick: run });
    const prefix = name.endsWith("/") ? name : folderOf(name);
    const root = element("div", { class: "row" },
      element("span", { class: "kind" }, picture(name.endsWith("/") ? "folder" : "file")),
      element("div", { class: "what" },
        element("a", { class: "name", href: hashOf({ prefix }), title: name }, label ? `${label} · ${name}` : name),
        element("span", { class: "words" }, saidOf(link))),
      element("div", { class: "row-buttons" },
        button("links.show", "share", () => showLink(link)),
        button("links.change", "rename", () => this.#change(link)),
        button("links.revoke", "remove", () => this.#revoke(link))));
    return { root, update: () => {} };
  }

  async #change(link) {
    if (!(await change(this.api, link))) return;
    this.tell(t("links.changed", { name: link.label || link.name }));
    await this.show();
  }

  async #revoke(link) {
    const question = { title: t("links.revoke-title"), text: t("links.revoke-text", { name: link.label || link.name }), confirm: t("links.revoke-confirm"), danger: true };
    if (!(await confirmed(question))) return;
    try {
      await this.api.request("DELETE", `/me/links/${link.id}`);
      this.tell(t("links.revoked", { name: link.label || link.name }));
    } catch (problem) {
      if (!["link-not-found", "not-found"].includes(problem.code)) {
        setText($("links-error"), messageOf(problem));
        return;
      }
    }
    await this.show();
    $("links-list").focus({ preventScroll: true });
  }
}
