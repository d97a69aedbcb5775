// How much of their space a person uses, in the header: finished files, what has arrived of unfinished ones, what is promised
// to them. In few words, and in all of them for whoever asks.

import { element } from "../dom.js";
import { formatBytes } from "../format.js";
import { onLanguage, t } from "../i18n.js";

// From here on it is said in another colour.
const NEARLY_FULL = 0.9;

export class Quota {
  root = element("div", { id: "quota", hidden: true });
  #usage = null;
  #isOpen = false;

  constructor() {
    onLanguage(() => this.#draw());
    this.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.#isOpen) return;
      this.#open(false);
      this.root.querySelector("button").focus();
    });
    addEventListener("pointerdown", (event) => this.#isOpen && !this.root.contains(event.target) && this.#open(false));
  }

  /** The answer of `GET /me/usage`. */
  set usage(usage) {
    if (JSON.stringify(usage) === JSON.stringify(this.#usage)) return; // nothing is drawn anew under somebody's pointer
    this.#usage = usage;
    this.#draw();
  }

  #open(isOpen) {
    this.#isOpen = isOpen;
    this.root.querySelector("button").setAttribute("aria-expanded", isOpen);
    this.root.querySelector(".panel").hidden = !isOpen;
  }

  #draw() {
    if (!this.#usage) return;
    const { total_space: total, use_space_finished: finished, use_space_unfinished: unfinished, reserved, available } = this.#usage;
    const parts = [
      ["finished", finished],
      ["unfinished", unfinished],
      ["reserved", Math.max(0, reserved - unfinished)],
    ];
    const bar = element("span", { class: "quota-bar", "aria-hidden": "true" });
    for (const [kind, bytes] of parts) {
      const part = element("span", { class: kind });
      part.style.width = `${total > 0 ? Math.min(100, (100 * bytes) / total) : 0}%`;
      if (bytes) part.style.minWidth = "3px";
      bar.append(part);
    }
    const free = t("quota.free", { available: formatBytes(available), total: formatBytes(total) });
    const used = t("quota.used", { used: formatBytes(total - available), total: formatBytes(total) });
    const button = element("button", { type: "button", class: "quiet", title: free, "aria-expanded": this.#isOpen, "aria-controls": "quota-panel", onclick: () => this.#open(!this.#isOpen) },
      bar, element("span", { class: "quota-words" }, used));
    const focused = this.root.contains(document.activeElement);
    this.root.hidden = false;
    this.root.dataset.full = total - available >= NEARLY_FULL * total;
    this.root.replaceChildren(button,
      element("div", { class: "panel", id: "quota-panel", role: "group", "aria-label": t("quota.title"), hidden: !this.#isOpen },
        element("p", { class: "panel-title" }, t("quota.title")), element("p", {}, free), bar.cloneNode(true),
        element("ul", { class: "legend" },
          ...parts.map(([kind, bytes]) =>
            element("li", { "data-kind": kind }, element("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), `${t(`quota.${kind}`)}: ${formatBytes(bytes)}`)))));
    if (focused) button.focus();
  }
}
