// Tables of figures: plain ones, and ones that come from the server page by page, sorted.

import { element } from "../dom.js";
import { t } from "../i18n.js";
import { attempt, showAsOf } from "./card.js";

const PAGE = 20;

/** A column: {key, label, number, wide, header, cell(item), sort: "asc" | "desc" (its first order) or nothing}. */
export function table(caption, columns, items, { sort = null, order = null, onSort = null } = {}) {
  return element("div", { class: "table-area", role: "region", "aria-label": caption, tabindex: "0" },
    element("table", {},
      element("caption", { class: "visually-hidden" }, caption),
      element("thead", {}, element("tr", {}, ...columns.map((column) => head(column, { sort, order, onSort })))),
      element("tbody", {}, ...items.map((item) => element("tr", {}, ...columns.map((column) => cell(column, item))))),
    ),
  );
}

const classOf = ({ number, wide, className }) =>
  [number ? "number" : "text", wide && "wide-only", className].filter(Boolean).join(" ");

function head(column, { sort, order, onSort }) {
  const attributes = { scope: "col", class: classOf(column) };
  if (!column.sort || !onSort) return element("th", attributes, column.label);
  const sorted = column.key === sort;
  if (sorted) attributes["aria-sort"] = order === "asc" ? "ascending" : "descending";
  const arrow = sorted && element("span", { "aria-hidden": "true" }, order === "asc" ? "▲" : "▼");
  const button = { type: "button", class: "sort", "data-sort": column.key, onclick: () => onSort(column) };
  return element("th", attributes, element("button", button, column.label, arrow));
}

function cell(column, item) {
  const content = column.cell(item);
  return column.header
    ? element("th", { scope: "row", class: classOf(column) }, content)
    : element("td", { class: classOf(column) }, content);
}

/** A page of a list of the server. */
export async function pageOf(api, path, query, { after, limit }) {
  query.set("limit", limit);
  if (after) query.set("after", after);
  return api.request("GET", `${path}?${query}`);
}

/** A page of items that the server tells all at once. */
export function pageOfAll(items, { after, limit }) {
  const end = (after ?? 0) + limit;
  return { items: items.slice(after ?? 0, end), next: end < items.length ? end : null };
}

/** A table in `container` that holds one page of what `load` gives: `load({sort, order, after, limit})` →
 * {items, next, asOf}; `describe()` → {caption, columns, none}. `card` tells `asOf`, and what goes wrong with other pages. */
export class PagedTable {
  #pages = [null]; // the cursor of each page up to the one that is shown
  #shown = null;
  #asked = 0;

  constructor(card, container, { load, describe, sort = null, order = null, limit = PAGE }) {
    Object.assign(this, { card, container, load, describe, sort, order, limit });
    container.tabIndex = -1; // where the focus goes when what had it is gone
  }

  /** The first page again. */
  restart() {
    this.#pages = [null];
    return this.changed();
  }

  /** The page that is shown, as it is now. */
  async reload() {
    const asked = (this.#asked += 1);
    const after = this.#pages.at(-1);
    const page = await this.load({ sort: this.sort, order: this.order, after, limit: this.limit });
    if (asked !== this.#asked) return; // somebody has asked for another page meanwhile
    if (page.items.length === 0 && this.#pages.length > 1) {
      this.#pages.pop(); // what was on it has gone
      await this.reload();
      return;
    }
    this.#shown = page;
    this.draw();
  }

  draw() {
    if (!this.#shown) return;
    const { items, asOf } = this.#shown;
    if (asOf) showAsOf(this.card, asOf);
    const { caption, columns, none } = this.describe(items);
    const focused = this.#focused();
    const { sort, order } = this;
    const content = items.length > 0
      ? table(caption, columns, items, { sort, order, onSort: (column) => this.#sortBy(column) })
      : element("p", { class: "muted" }, none);
    this.container.replaceChildren(content, this.#pager(items.length));
    if (focused) (this.container.querySelector(focused) ?? this.container.querySelector("[tabindex]") ?? this.container).focus();
  }

  /** A selector of the control that has the focus and is about to be made again. */
  #focused() {
    const active = this.container.contains(document.activeElement) ? document.activeElement : null;
    if (!active) return null;
    if (active.dataset.sort) return `[data-sort="${active.dataset.sort}"]`;
    return active.dataset.pager ? `[data-pager="${active.dataset.pager}"]:enabled` : "[tabindex]";
  }

  #pager(count) {
    const first = (this.#pages.length - 1) * this.limit + 1;
    const button = (name, disabled, turn) =>
      element("button", { type: "button", "data-pager": name, disabled, onclick: turn }, t(`pager.${name}`));
    return element("div", { class: "pager" },
      element("span", { class: "muted" }, t("pager.place", { first, last: first + count - 1 })),
      button("before", this.#pages.length === 1, () => {
        this.#pages.pop();
        this.changed();
      }),
      button("after", !this.#shown.next, () => {
        this.#pages.push(this.#shown.next);
        this.changed();
      }),
    );
  }

  #sortBy({ key, sort }) {
    if (this.sort === key) this.order = this.order === "asc" ? "desc" : "asc";
    else Object.assign(this, { sort: key, order: sort });
    this.restart();
  }

  /** The page that is shown, as it is now, or in the card why not. */
  changed() {
    return attempt(this.card, () => this.reload());
  }
}
