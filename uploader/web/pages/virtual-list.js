// A list of which only the rows in view exist, so that ten thousand cost no more than ten.

const BEYOND_ROWS = 4;
const LIST = { container: "group", inner: "list", row: "listitem" };
const GRID = { container: "grid", inner: "rowgroup", row: "row" };

export class VirtualList {
  #rows = new Map(); // key → {root, update, item}
  #items = [];
  #frame = 0;
  #scrollTop = 0;
  #height = 0;
  #rowHeight = 1;
  #inner = document.createElement("div");

  /** `container` scrolls; its `--row` is the height of a row. `make(item)` gives {root, update(item)}; `key(item)` is the
   * same for the same row; `onEnd()` is called when the last rows come into view. With `grid` it is a grid, below a row of
   * headings that the container has already. */
  constructor(container, { make, key, onEnd = null, grid = false }) {
    Object.assign(this, { container, make, key, onEnd, roles: grid ? GRID : LIST });
    this.#inner.className = "rows";
    this.#inner.setAttribute("role", this.roles.inner);
    container.setAttribute("role", this.roles.container);
    container.append(this.#inner);
    container.addEventListener("scroll", () => this.#measure(), { passive: true });
    new ResizeObserver(() => this.#measure()).observe(container);
  }

  /** Where it is laid out anyway: to ask while rows are drawn would have the page laid out once more. */
  #measure() {
    this.#scrollTop = this.container.scrollTop;
    this.#height = this.container.clientHeight;
    this.#rowHeight = parseFloat(getComputedStyle(this.container).getPropertyValue("--row"));
    this.refresh();
  }

  set items(items) {
    this.#items = items;
    if (this.roles === GRID) this.container.setAttribute("aria-rowcount", items.length + 1);
    this.refresh();
  }

  /** The element of a row, if it is in view. */
  rootOf(key) {
    return this.#rows.get(key)?.root ?? null;
  }

  /** Scroll as little as it takes to have a row in view, and draw it. */
  show(number) {
    this.#measure();
    const rowHeight = this.#rowHeight;
    const top = number * rowHeight;
    const above = this.#inner.offsetTop; // what is fixed above the rows covers them
    const { scrollTop, clientHeight } = this.container;
    if (top < scrollTop) this.container.scrollTop = top;
    else if (top + rowHeight + above > scrollTop + clientHeight) this.container.scrollTop = top + rowHeight + above - clientHeight;
    this.#scrollTop = this.container.scrollTop;
    this.#draw();
  }

  /** Draw what is in view, with the next frame. */
  refresh() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
    });
  }

  /** Make all rows again: the language has changed. */
  redraw() {
    for (const { root } of this.#rows.values()) root.remove();
    this.#rows.clear();
    this.refresh();
  }

  #draw() {
    const items = this.#items;
    const rowHeight = this.#rowHeight;
    this.#inner.style.height = `${items.length * rowHeight}px`;
    const first = Math.max(0, Math.floor(this.#scrollTop / rowHeight) - BEYOND_ROWS);
    const last = Math.min(items.length, Math.ceil((this.#scrollTop + this.#height) / rowHeight) + BEYOND_ROWS);
    const stale = new Map(this.#rows);
    let before = null;
    for (let number = first; number < last; number += 1) {
      const item = items[number];
      const key = this.key(item);
      stale.delete(key);
      const row = this.#rows.get(key) ?? this.#make(key, item);
      this.#place(row, number, rowHeight, before);
      row.update(item);
      before = row.root;
    }
    for (const [key, row] of stale) this.#drop(key, row);
    if (this.onEnd && last === items.length) this.onEnd();
  }

  #make(key, item) {
    const row = this.make(item);
    row.root.setAttribute("role", this.roles.row);
    this.#rows.set(key, row);
    return row;
  }

  #place(row, number, rowHeight, before) {
    const { root } = row;
    // In the order of the list, for the keyboard and for screen readers; what has its place is not moved, or it would lose
    // the focus.
    const place = before ? before.nextSibling : this.#inner.firstChild;
    if (!root.isConnected || (root !== place && !root.contains(document.activeElement))) this.#inner.insertBefore(root, place);
    if (row.number !== number || row.rowHeight !== rowHeight) root.style.transform = `translateY(${number * rowHeight}px)`;
    Object.assign(row, { number, rowHeight });
    if (this.roles === GRID) {
      root.setAttribute("aria-rowindex", number + 2);
      return;
    }
    root.setAttribute("aria-posinset", number + 1);
    root.setAttribute("aria-setsize", this.#items.length);
  }

  #drop(key, row) {
    const focused = row.root.contains(document.activeElement);
    row.root.remove();
    this.#rows.delete(key);
    if (focused) this.container.focus({ preventScroll: true });
  }
}
