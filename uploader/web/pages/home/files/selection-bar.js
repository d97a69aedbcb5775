// What can be done with all that is selected, in the place of the path.

import { element, setText } from "../../dom.js";
import { formatBytes } from "../../format.js";
import { t } from "../../i18n.js";
import { glyph } from "./pictures.js";

export class SelectionBar {
  #entries = [];

  constructor(node, view) {
    Object.assign(this, { node, view });
    this.redraw();
  }

  redraw() {
    const { actions, selection } = this.view;
    const button = (key, picture, run, classes = "") =>
      element("button", { type: "button", class: classes, "aria-label": t(key), title: t(key), onclick: run }, glyph(picture), element("span", { "aria-hidden": "true" }, t(key)));
    this.count = element("span");
    this.bytes = element("span", { class: "wide-only" });
    this.words = element("p", { class: "count" }, this.count, this.bytes);
    this.share = button("action.share", "share", () => actions.share(this.#entries[0]), "wide-only");
    this.rename = button("action.rename", "rename", () => this.view.rename(this.#entries[0]), "wide-only");
    this.node.replaceChildren(
      button("selected.none", "close", () => selection.clear(), "icon-only"), this.words,
      button("action.download", "download", () => actions.download(this.#entries)),
      this.share, this.rename,
      button("action.move", "move", () => actions.move(this.#entries)),
      button("action.delete", "remove", () => actions.remove(this.#entries), "danger-choice"));
    this.update(this.#entries);
  }

  update(entries) {
    this.#entries = entries;
    this.node.hidden = entries.length === 0;
    const bytes = entries.reduce((sum, { size }) => sum + size, 0);
    setText(this.count, t("selected.count", { count: entries.length }));
    setText(this.bytes, ` · ${formatBytes(bytes)}`);
    this.rename.hidden = entries.length !== 1;
    this.share.hidden = entries.length !== 1 || entries[0].isFolder;
  }
}
