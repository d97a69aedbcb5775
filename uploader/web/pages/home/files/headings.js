// The row of headings above the files: what each column is, how they are sorted, and one box for all of them.

import { element, setAttribute } from "../../dom.js";
import { t } from "../../i18n.js";
import { openMenu } from "../menu.js";
import { glyph } from "./pictures.js";

const COLUMNS = ["name", "size", "time"];
const KEY = "uploader.order";

export function savedOrder() {
  try {
    const { by, descending } = JSON.parse(localStorage.getItem(KEY)) ?? {};
    if (COLUMNS.includes(by)) return { by, descending: descending === true };
  } catch {
    // storage is closed to this page, or holds something else
  }
  return { by: "name", descending: false };
}

function save(order) {
  try {
    localStorage.setItem(KEY, JSON.stringify(order));
  } catch {
    // then it holds until the page is closed
  }
}

export class Headings {
  /** `told`: sorted(order), all(chosen). */
  constructor(told) {
    this.told = told;
    this.order = savedOrder();
    this.root = element("div", { class: "headings", role: "rowgroup" });
    this.redraw();
  }

  redraw() {
    const all = element("input", { type: "checkbox", class: "check", "aria-label": t("selected.all"), onchange: () => this.told.all(all.checked) });
    this.check = all;
    this.buttons = Object.fromEntries(COLUMNS.map((by) => [by, element("button", { type: "button", onclick: () => this.#sort(by) }, t(`column.${by}`), glyph("down"))]));
    this.cells = Object.fromEntries(COLUMNS.map((by) => [by, element("div", { role: "columnheader", class: `cell-${by}` }, this.buttons[by])]));
    const short = element("button", { type: "button", class: "sort-menu", "aria-haspopup": "menu", onclick: () => this.#openMenu(short) }, glyph("sort"), element("span"));
    this.short = short;
    this.cells.name.append(short);
    this.root.replaceChildren(element("div", { role: "row", "aria-rowindex": 1 },
      element("div", { role: "columnheader", class: "cell-check" }, all),
      ...COLUMNS.map((by) => this.cells[by]),
      element("div", { role: "columnheader", class: "cell-actions" }, element("span", { class: "visually-hidden" }, t("column.actions")))));
    this.#mark(true);
  }

  /** `canSort`: all of the place is known; of `count` entries, `selected` are. */
  update({ canSort, count, selected }) {
    this.check.checked = count > 0 && selected === count;
    this.check.indeterminate = selected > 0 && selected < count;
    for (const button of [...Object.values(this.buttons), this.short]) button.disabled = !canSort;
    if (canSort !== this.canSort) this.#mark(canSort);
    this.root.hidden = count === 0;
  }

  #sort(by) {
    this.order = { by, descending: this.order.by === by ? !this.order.descending : by !== "name" };
    save(this.order);
    this.#mark(true);
    this.told.sorted(this.order);
  }

  #mark(canSort) {
    this.canSort = canSort;
    const { by, descending } = this.order;
    for (const column of COLUMNS) {
      setAttribute(this.cells[column], "aria-sort", canSort && column === by ? (descending ? "descending" : "ascending") : null);
    }
    this.short.lastChild.textContent = t(`column.${by}`);
    this.short.setAttribute("aria-label", `${t("column.sort")}: ${t(`column.${by}`)}`);
  }

  #openMenu(button) {
    const { by, descending } = this.order;
    const arrow = (column) => (column === by ? glyph(descending ? "down" : "up") : glyph("sort"));
    openMenu(COLUMNS.map((column) => ({ text: t(`column.${column}`), picture: arrow(column), run: () => this.#sort(column) })), button, t("column.sort"));
  }
}
