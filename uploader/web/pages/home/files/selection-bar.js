// What can be done with all that is selected, in the place of the path.

import { element, setText } from "../../dom.js";
import { formatBytes } from "../../format.js";
import { t } from "../../i18n.js";
import { glyph } from "./pictures.js";

export class SelectionBar {
  #entries = [];

  /** `choices`: {key, picture, run(entries), classes, suits(entries)}, from the left to the right. */
  constructor(node, selection, choices) {
    Object.assign(this, { node, selection, choices });
    this.redraw();
  }

  redraw() {
    const button = ({ key, picture, run, classes = "" }) =>
      element("button", { type: "button", class: classes, "aria-label": t(key), title: t(key), onclick: () => run(this.#entries) },
        glyph(picture), element("span", { "aria-hidden": "true" }, t(key)));
    this.count = element("span");
    this.bytes = element("span", { class: "wide-only" });
    this.buttons = this.choices.map(button);
    this.node.replaceChildren(
      button({ key: "selected.none", picture: "close", run: () => this.selection.clear(), classes: "icon-only" }),
      element("p", { class: "count" }, this.count, this.bytes), ...this.buttons);
    this.update(this.#entries);
  }

  update(entries) {
    this.#entries = entries;
    this.node.hidden = entries.length === 0;
    const bytes = entries.reduce((sum, { size }) => sum + size, 0);
    setText(this.count, t("selected.count", { count: entries.length }));
    setText(this.bytes, ` · ${formatBytes(bytes)}`);
    for (const [number, { suits = () => true }] of this.choices.entries()) this.buttons[number].hidden = !suits(entries);
  }
}
