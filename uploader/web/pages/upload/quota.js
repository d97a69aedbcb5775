// How much of their space a person uses: finished files, what has arrived of unfinished ones, what is promised to them.

import { element } from "../dom.js";
import { formatBytes } from "../format.js";
import { onLanguage, t } from "../i18n.js";

export class Quota {
  #usage = null;

  constructor(card) {
    this.card = card;
    onLanguage(() => this.#draw());
  }

  /** The answer of `GET /me/usage`. */
  set usage(usage) {
    this.#usage = usage;
    this.#draw();
  }

  #draw() {
    if (!this.#usage) return;
    const { total_space: total, use_space_finished: finished, use_space_unfinished: unfinished, reserved, available } = this.#usage;
    const parts = [
      ["finished", finished],
      ["unfinished", unfinished],
      ["reserved", Math.max(0, reserved - unfinished)],
    ];
    const summary = t("quota.free", { available: formatBytes(available), total: formatBytes(total) });
    const bar = element("div", { class: "quota-bar", "aria-hidden": "true" });
    for (const [kind, bytes] of parts) {
      const part = element("span", { class: kind });
      part.style.width = `${total > 0 ? Math.min(100, (100 * bytes) / total) : 0}%`;
      bar.append(part);
    }
    this.card.replaceChildren(
      element("div", { class: "head" }, element("h2", { id: "quota-title" }, t("quota.title")), element("p", { id: "quota-free" }, summary)),
      bar,
      element("ul", { class: "legend" },
        ...parts.map(([kind, bytes]) =>
          element("li", { "data-kind": kind }, element("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), `${t(`quota.${kind}`)}: ${formatBytes(bytes)}`))),
    );
  }
}
