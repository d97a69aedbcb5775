// A list of which only the rows in view exist, so that ten thousand cost no more than ten.

const BEYOND_ROWS = 4;

export class VirtualList {
  #rows = new Map(); // key → {root, update, item}
  #items = [];
  #frame = 0;
  #inner = document.createElement("div");

  /** `container` scrolls; its `--row` is the height of a row. `make(item)` gives {root, update(item)}; `key(item)` is the
   * same for the same row; `onEnd()` is called when the last rows come into view. */
  constructor(container, { make, key, onEnd = null }) {
    Object.assign(this, { container, make, key, onEnd });
    this.#inner.className = "rows";
    this.#inner.setAttribute("role", "list");
    container.setAttribute("role", "group");
    container.append(this.#inner);
    container.addEventListener("scroll", () => this.refresh(), { passive: true });
    new ResizeObserver(() => this.refresh()).observe(container);
  }

  set items(items) {
    this.#items = items;
    this.refresh();
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
    const rowHeight = parseFloat(getComputedStyle(this.container).getPropertyValue("--row"));
    const { scrollTop, clientHeight } = this.container; // read before anything is written: what is in view is laid out once
    this.#inner.style.height = `${items.length * rowHeight}px`;
    const first = Math.max(0, Math.floor(scrollTop / rowHeight) - BEYOND_ROWS);
    const last = Math.min(items.length, Math.ceil((scrollTop + clientHeight) / rowHeight) + BEYOND_ROWS);
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
    row.root.setAttribute("role", "listitem");
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
