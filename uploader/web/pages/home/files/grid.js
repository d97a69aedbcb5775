// The rows of files and folders as a grid: what mouse, finger and keyboard do to it. What an action does is the view's.

import { VirtualList } from "../../virtual-list.js";

const LONG_PRESS_MS = 450;
const TREMBLE_PIXELS = 10;
const TYPING_MS = 700;

export class Grid {
  #entries = [];
  #pressed = null; // {timer, x, y} while a finger rests on a row
  #pointer = "mouse";
  #swallowsClick = false;
  #typed = { text: "", at: 0 };

  /** `row(entry, view)` draws one. `view` has `selection`, and is told: open(entry), menu(entry, at), act(name, entry), remove(),
   * up(), more(); where entries can be renamed or dragged, rename(entry), prepare(entry). */
  constructor(container, view, row) {
    Object.assign(this, { container, view, selection: view.selection });
    this.list = new VirtualList(container, {
      make: (entry) => row(entry, view),
      key: (entry) => entry.key,
      onEnd: () => view.more(),
      grid: true,
    });
    container.setAttribute("aria-multiselectable", "true");
    container.addEventListener("pointerdown", (event) => this.#down(event));
    for (const kind of ["pointerup", "pointercancel", "scroll"]) container.addEventListener(kind, () => this.#lift(), { passive: true });
    container.addEventListener("pointermove", (event) => this.#moved(event), { passive: true });
    container.addEventListener("click", (event) => this.#clicked(event));
    container.addEventListener("dblclick", (event) => this.#clickedTwice(event));
    container.addEventListener("contextmenu", (event) => this.#contextMenu(event));
    container.addEventListener("keydown", (event) => this.#key(event));
    container.addEventListener("focus", () => this.#entered());
  }

  set entries(entries) {
    this.#entries = entries;
    this.list.items = entries;
    this.#tellActive();
  }

  redraw() {
    this.list.redraw();
  }

  /** The selection has changed. */
  refresh() {
    this.list.refresh();
    this.#tellActive();
  }

  toTop() {
    this.container.scrollTop = 0;
  }

  rowOf(entry) {
    return this.list.rootOf(entry.key);
  }

  #tellActive() {
    // The row may be made with the next frame only.
    requestAnimationFrame(() => {
      const { active } = this.selection;
      const root = active === null ? null : this.list.rootOf(active);
      if (root) this.container.setAttribute("aria-activedescendant", root.id);
      else this.container.removeAttribute("aria-activedescendant");
    });
  }

  #entryAt(event) {
    return event.target.closest?.(".row")?.entry ?? null;
  }

  // Mouse and finger

  #down(event) {
    this.#pointer = event.pointerType;
    this.#swallowsClick = false;
    const entry = this.#entryAt(event);
    if (!entry) return;
    const root = event.target.closest(".row");
    root.draggable = Boolean(this.view.prepare) && !entry.isHeld && event.pointerType === "mouse" && !event.target.closest("input");
    if (root.draggable) this.view.prepare(entry);
    if (event.pointerType === "mouse" || event.target.closest("button[data-act], input")) return;
    const timer = setTimeout(() => {
      this.#pressed = null;
      this.#swallowsClick = true;
      navigator.vibrate?.(10);
      this.selection.toggle(entry.key);
    }, LONG_PRESS_MS);
    this.#pressed = { timer, x: event.clientX, y: event.clientY };
  }

  #lift() {
    clearTimeout(this.#pressed?.timer);
    this.#pressed = null;
  }

  #moved({ clientX, clientY }) {
    if (this.#pressed && Math.hypot(clientX - this.#pressed.x, clientY - this.#pressed.y) > TREMBLE_PIXELS) this.#lift();
  }

  #clicked(event) {
    const entry = this.#entryAt(event);
    if (this.#swallowsClick) {
      this.#swallowsClick = false;
      event.preventDefault();
      return;
    }
    if (!entry || event.target.closest("input.rename, [data-prefix]")) return;
    const action = event.target.closest("[data-act]")?.dataset.act;
    if (action === "more") this.view.menu(entry, event.target.closest("[data-act]"));
    else if (action) this.view.act(action, entry);
    else this.#chosen(event, entry);
  }

  #chosen(event, entry) {
    const isCheck = event.target.matches(".check");
    const isName = event.target.closest(".name");
    const isTouch = this.#pointer !== "mouse";
    if (event.shiftKey) this.selection.reachTo(entry.key, this.#entries);
    else if (isCheck || event.ctrlKey || event.metaKey || (isTouch && this.selection.size)) this.selection.toggle(entry.key);
    else if (isName || isTouch) this.view.open(entry);
    else this.selection.only(entry.key);
    if (isName || !isCheck) event.preventDefault();
    this.container.focus({ preventScroll: true });
    if (isCheck) this.refresh(); // the box shows what is selected, whatever the click did to it
  }

  #clickedTwice(event) {
    const entry = this.#entryAt(event);
    if (entry && !event.target.closest("button, input, a") && this.#pointer === "mouse") this.view.open(entry);
  }

  #contextMenu(event) {
    const entry = this.#entryAt(event);
    if (!entry || event.target.closest("input.rename")) return;
    event.preventDefault();
    if (this.#pointer === "mouse") this.view.menu(entry, { x: event.clientX, y: event.clientY });
  }

  // Keyboard

  /** From outside: to where it was, or to the first row. */
  #entered() {
    if (this.selection.active === null && this.#entries.length) this.selection.goTo(this.#entries[0].key);
  }

  #key(event) {
    if (event.target.closest("input.rename") || event.altKey) return;
    const onRow = event.target === this.container || event.target.closest(".row");
    if (onRow && this.#act(event)) event.preventDefault();
  }

  /** Whether the key means something here. */
  #act(event) {
    const { key, shiftKey } = event;
    const withCtrl = event.ctrlKey || event.metaKey;
    const entry = this.#entries.find((each) => each.key === this.selection.active);
    const target = this.#targetOf(key);
    if (target !== null) this.#goTo(target, shiftKey, withCtrl);
    else if (withCtrl && key.toLowerCase() === "a") this.selection.all(this.#entries);
    else if (key === "Escape" && this.selection.size) this.selection.clear();
    else if (key === "Backspace") this.view.up();
    else if (key === "Delete" && this.selection.size) this.view.remove();
    else if (entry && key === " ") this.selection.toggle(entry.key);
    else if (entry && key === "Enter") this.view.open(entry);
    else if (entry && key === "F2" && this.view.rename) this.view.rename(entry);
    else if (entry && (key === "ContextMenu" || (shiftKey && key === "F10"))) this.view.menu(entry, this.rowOf(entry));
    else if (key.length === 1 && !withCtrl) this.#typeTo(key);
    else return false;
    return true;
  }

  /** The number of the row that a key leads to; null: it leads nowhere. */
  #targetOf(key) {
    if (!this.#entries.length) return null;
    const place = this.#entries.findIndex((entry) => entry.key === this.selection.active);
    const rowHeight = parseFloat(getComputedStyle(this.container).getPropertyValue("--row"));
    const page = Math.max(1, Math.floor(this.container.clientHeight / rowHeight) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
    if (key === "Home") return 0;
    if (key === "End") return this.#entries.length - 1;
    if (!(key in steps)) return null;
    return place < 0 ? 0 : Math.max(0, Math.min(this.#entries.length - 1, place + steps[key]));
  }

  #goTo(number, reaches, keeps) {
    const { key } = this.#entries[number];
    if (reaches) this.selection.reachTo(key, this.#entries);
    else if (keeps) this.selection.goTo(key);
    else this.selection.only(key);
    this.list.show(number);
    this.#tellActive();
  }

  /** The next entry whose name starts with what is typed. */
  #typeTo(key) {
    const now = performance.now();
    this.#typed = { text: (now - this.#typed.at < TYPING_MS ? this.#typed.text : "") + key.toLowerCase(), at: now };
    const number = this.#entries.findIndex(({ name }) => name.toLowerCase().startsWith(this.#typed.text));
    if (number >= 0) this.#goTo(number, false, false);
  }
}
