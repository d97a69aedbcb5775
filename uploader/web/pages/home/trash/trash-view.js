// The trash of a person: what they deleted or replaced, newest first, to be brought back or to be ended.

import "./words.js";
import { confirmed } from "../../dialogs.js";
import { element, setText } from "../../dom.js";
import { onLanguage, t } from "../../i18n.js";
import { messageOf } from "../../problems.js";
import { Grid } from "../files/grid.js";
import { drawPath } from "../files/path-view.js";
import { glyph } from "../files/pictures.js";
import { folderOf } from "../files/place.js";
import { Selection } from "../files/selection.js";
import { SelectionBar } from "../files/selection-bar.js";
import { openMenu } from "../menu.js";
import { Restores } from "./restores.js";
import { saveTrashed } from "./saving.js";
import { entryOfTrashed, isUsable, trashRow } from "./trash-row.js";

const PAGE = 1000;
// So many requests at once.
const LANES = 4;

const $ = (id) => document.getElementById(id);

export class TrashView {
  #entries = [];
  #next = null;
  #loading = null;

  /** `changed(files)` is called when these are back; `go(place)` leads to where they are; `tell(text)` reads a text out. */
  constructor(api, { toasts, changed, go, tell }) {
    Object.assign(this, { api, toasts, changed, go, tell });
    this.selection = new Selection(() => this.#drawSelection());
    this.grid = new Grid($("trash-list"), this, trashRow);
    this.bar = new SelectionBar($("trash-selection"), this.selection, [
      { key: "trash.restore", picture: "restore", run: (entries) => this.restore(entries), suits: (entries) => usable(entries).length > 0 },
      { key: "trash.remove", picture: "remove", run: (entries) => this.end(entries), classes: "danger-choice" },
    ]);
    this.headings = element("div", { class: "headings", role: "rowgroup" });
    $("trash-list").prepend(this.headings);
    $("trash-empty").addEventListener("click", () => this.empty());
    onLanguage(() => this.#redraw());
    this.#redraw();
  }

  /** Anew, from the first page. */
  async show() {
    this.#refused("");
    this.selection.clear();
    this.#entries = [];
    this.#next = undefined;
    this.grid.toTop();
    await this.more();
  }

  more() {
    if (this.#next === null) return Promise.resolve();
    this.#loading ??= this.#load().finally(() => {
      this.#loading = null;
    });
    return this.#loading;
  }

  async #load() {
    await this.#attempt(async () => {
      const asked = new URLSearchParams({ limit: PAGE, ...(this.#next ? { after: this.#next } : {}) });
      const { files, next } = await this.api.request("GET", `/me/trash?${asked}`);
      const known = new Set(this.#entries.map(({ key }) => key));
      this.#entries = [...this.#entries, ...files.map(entryOfTrashed).filter(({ key }) => !known.has(key))];
      this.#next = next;
    });
    this.#draw();
  }

  async #attempt(work) {
    this.#refused("");
    try {
      await work();
      return true;
    } catch (problem) {
      this.#refused(messageOf(problem));
      return false;
    }
  }

  #refused(text) {
    setText($("trash-error"), text);
  }

  // What a person does

  open(entry) {
    this.menu(entry, this.grid.rowOf(entry));
  }

  act(_name, entry) {
    this.restore([entry]);
  }

  remove() {
    this.end(this.#selected());
  }

  up() {
    this.go({ prefix: "" });
  }

  menu(entry, at) {
    if (!this.selection.has(entry.key)) this.selection.goTo(entry.key);
    const entries = this.selection.has(entry.key) ? this.#selected() : [entry];
    const isOne = entries.length === 1;
    const isAny = usable(entries).length > 0;
    openMenu([
      ...(isAny ? [{ text: t("trash.restore"), picture: glyph("restore"), run: () => this.restore(entries) }] : []),
      ...(isOne && isAny ? [{ text: t("action.download"), picture: glyph("download"), run: () => this.#attempt(() => saveTrashed(this.api, entry.file)) }] : []),
      { text: t("trash.remove"), picture: glyph("remove"), run: () => this.end(entries), danger: true },
    ], at, isOne ? entry.name : t("selected.count", { count: entries.length }));
  }

  /** Those that can be: the others stay. */
  async restore(entries) {
    await this.#attempt(async () => {
      const { restored, problem } = await new Restores(this.api, { hasTrash: true }).restore(usable(entries).map(({ file }) => file));
      this.#gone(restored.map(({ id }) => id));
      if (restored.length) {
        const [{ name }] = restored;
        this.#say(t("restore.done", { count: restored.length }), { action: t("move.show"), run: () => this.go({ prefix: folderOf(name) }) });
        this.changed(restored);
      }
      if (problem) throw problem;
    });
  }

  /** For good. */
  async end(entries) {
    const count = entries.length;
    const question = { title: t("trash.remove-title"), text: t("trash.remove-text", { count }), confirm: t("trash.remove"), danger: true };
    if (!(await confirmed(question))) return;
    await this.#attempt(async () => {
      const waiting = [...entries];
      const lane = async () => {
        for (let entry = waiting.shift(); entry; entry = waiting.shift()) {
          await this.api.request("DELETE", `/me/trash/${entry.key}`).catch(passGone);
          this.#gone([entry.key]);
        }
      };
      await Promise.all(Array.from({ length: LANES }, lane));
      this.#say(t("trash.removed", { count }));
    });
  }

  async empty() {
    const question = { title: t("trash.empty-title"), text: t("trash.empty-text"), confirm: t("trash.empty"), danger: true };
    if (!(await confirmed(question))) return;
    if (await this.#attempt(() => this.api.request("DELETE", "/me/trash"))) this.#say(t("trash.emptied"));
    await this.show();
  }

  #say(text, more = {}) {
    this.tell(text);
    this.toasts.show(text, more);
  }

  #selected() {
    return this.selection.of(this.#entries);
  }

  #gone(keys) {
    const gone = new Set(keys);
    this.#entries = this.#entries.filter(({ key }) => !gone.has(key));
    this.#draw();
  }

  // What is seen

  #redraw() {
    drawPath($("trash-path"), { prefix: "", query: "", title: t("trash.title") });
    const all = element("input", { type: "checkbox", class: "check", "aria-label": t("selected.all"), onchange: () => (all.checked ? this.selection.all(this.#entries) : this.selection.clear()) });
    this.all = all;
    const heading = (column, key) => element("div", { role: "columnheader", class: `cell-${column}` }, element("span", {}, t(key)));
    this.headings.replaceChildren(element("div", { role: "row", "aria-rowindex": 1 },
      element("div", { role: "columnheader", class: "cell-check" }, all),
      heading("name", "column.name"), heading("size", "column.size"), heading("time", "column.deleted"),
      element("div", { role: "columnheader", class: "cell-actions" }, element("span", { class: "visually-hidden" }, t("column.actions")))));
    this.grid.redraw();
    this.bar.redraw();
    this.#draw();
  }

  #draw() {
    this.selection.keep(this.#entries);
    this.grid.entries = this.#entries;
    const count = this.#entries.length;
    const isEmpty = this.#next === null && !count;
    $("trash-list").hidden = !count;
    $("trash-none").hidden = !isEmpty;
    $("trash-empty").hidden = !count;
    const words = t("note.files", { count });
    setText($("trash-note"), count ? (this.#next === null ? words : t("note.more", { words })) : "");
    this.#drawSelection();
  }

  #drawSelection() {
    this.grid.refresh();
    const { size } = this.selection;
    this.all.checked = size > 0 && size === this.#entries.length;
    this.all.indeterminate = size > 0 && size < this.#entries.length;
    this.bar.update(this.#selected());
    $("trash-bar").classList.toggle("covered", size > 0);
  }
}

function usable(entries) {
  return entries.filter(({ file }) => isUsable(file));
}

/** It was ended elsewhere, or at its time. */
function passGone(problem) {
  if (problem.code !== "file-not-found") throw problem;
}
