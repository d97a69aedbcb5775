// Whether the books equal what is counted from all uploads and files, and where they do not.

import "./words.js";
import { element, setText } from "../../dom.js";
import { formatBytes, formatCount } from "../../format.js";
import { onLanguage, t } from "../../i18n.js";
import { attempt, showAsOf } from "../card.js";
import { table } from "../tables.js";

export class Recount {
  #found = null;

  constructor(card, api, button) {
    Object.assign(this, { card, api, button });
    button.addEventListener("click", () => this.#count());
    onLanguage(() => this.#draw());
  }

  async #count() {
    this.button.disabled = true;
    this.card.hidden = false;
    this.#found = null;
    this.card.querySelector(".as-of").replaceChildren();
    this.card.querySelector(".content").replaceChildren();
    setText(this.card.querySelector(".outcome"), t("recount.going"));
    const counted = await attempt(this.card, async () => {
      this.#found = await this.api.request("POST", "/admin/usage/recount", { body: {} });
      this.#draw();
    });
    if (!counted) setText(this.card.querySelector(".outcome"), "");
    this.button.disabled = false;
  }

  #draw() {
    const found = this.#found;
    if (!found) return;
    showAsOf(this.card, found.as_of);
    const { users, blobs } = found.checked;
    setText(this.card.querySelector(".outcome"), verdict(found.drifts, t("recount.equal", { users, blobs })));
    this.card.querySelector(".content").replaceChildren(...differences(found));
  }
}

/** Whether a kind of difference counts things; others count bytes. */
export function isCount(kind) {
  return /^(refs|([\w-]+-)?files)$/.test(kind);
}

export function verdict(drifts, equal) {
  return drifts.length === 0 ? equal : t("recount.drifts", { count: drifts.length });
}

/** Tables of what differs and of what is worth knowing. */
export function differences({ drifts, notes }) {
  const made = [];
  if (drifts.length > 0) made.push(table(t("recount.title"), columns(), drifts));
  if (notes.length > 0) made.push(element("p", {}, t("recount.notes")), table(t("recount.notes"), columns(), notes));
  return made;
}

function columns() {
  const value = (row, figure) => {
    if (figure === null) return "–";
    return isCount(row.kind) ? formatCount(figure) : formatBytes(figure);
  };
  // Bytes in full: what differs by one byte has to show.
  const exact = (row, figure) => element("span", { title: figure === null ? null : formatCount(figure) }, value(row, figure));
  return [
    { label: t("recount.kind"), header: true, cell: (row) => t(`recount.${row.kind}`) },
    { label: t("recount.subject"), cell: (row) => row.subject },
    { label: t("recount.expected"), number: true, cell: (row) => exact(row, row.expected) },
    { label: t("recount.actual"), number: true, className: "drift", cell: (row) => exact(row, row.actual) },
  ];
}
