// The files of a person: folders to walk through, what is found in them, and what can be done with what is there.

import { element, setText } from "../../dom.js";
import { formatBytes } from "../../format.js";
import { onLanguage, t } from "../../i18n.js";
import { messageOf } from "../../problems.js";
import { openMenu } from "../menu.js";
import { Actions } from "./actions.js";
import { choicesOf, choicesOfMany, deletable, free } from "./choices.js";
import { Deletions } from "./deletions.js";
import { Dragging } from "./dragging.js";
import { Grid } from "./grid.js";
import { fileRow } from "./file-row.js";
import { Headings } from "./headings.js";
import { Listing } from "./listing.js";
import { drawPath } from "./path-view.js";
import { folderOf, hashOf, isPlace, placeOf } from "./place.js";
import { contentsOf, preview } from "./preview.js";
import { Selection } from "./selection.js";
import { SelectionBar } from "./selection-bar.js";
import { showVersions } from "../trash/versions.js";

const TYPING_MS = 250;
// After uploads, once: counts of folders, and what was replaced.
const SETTLED_MS = 2000;
const REFRESHED_ENTRIES = 5000;

const $ = (id) => document.getElementById(id);

export class FilesView {
  renaming = null; // {key, input}
  listing = null;
  #settling = 0;

  /** `changed()` is called when the person has freed space, or taken some; `tell(text)` reads a text out; `hasTrash`: whether
   * what is deleted can be had back; `hasLinks`: whether files can be shared; `held`: those that wait for gates. */
  constructor(api, { toasts, changed, tell, hasTrash, hasLinks, held }) {
    Object.assign(this, { api, hasTrash, hasLinks, held, changed });
    this.selection = new Selection(() => this.#drawSelection());
    this.actions = new Actions(api, this, { toasts, tell, hasTrash });
    this.deletions = new Deletions(api, toasts, {
      hasTrash,
      restored: (files) => {
        if (files.length) tell(t("restore.done", { count: files.length }));
        this.restored(files);
      },
      failed: (entries, problem) => {
        this.refused(messageOf(problem));
        this.#notRemoved(entries);
      },
      refused: (problem) => this.refused(messageOf(problem)),
      deleted: changed,
    });
    this.headings = new Headings({
      sorted: (order) => this.listing.sort(order),
      all: (chosen) => (chosen ? this.selection.all(this.listing.entries) : this.selection.clear()),
    });
    $("file-list").append(this.headings.root);
    this.grid = new Grid($("file-list"), this, fileRow);
    this.bar = new SelectionBar($("selection-bar"), this.selection, choicesOfMany(this));
    this.dragging = new Dragging(api, this, [$("file-list"), $("path")]);
    this.#search();
    addEventListener("hashchange", () => this.#isElsewhere() && this.#arrive());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.#lookAgain());
    addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.target.closest("input, textarea, dialog, .menu")) return;
      event.preventDefault();
      this.selection.clear();
      $("files-search").focus();
    });
    onLanguage(() => {
      this.headings.redraw();
      this.grid.redraw();
      this.bar.redraw();
      this.#draw();
      drawPath($("path"), this.place);
    });
  }

  get place() {
    return this.listing.place;
  }

  /** The folder that what is brought now belongs into. */
  get prefix() {
    return this.listing?.place.prefix ?? "";
  }

  // Going about

  start() {
    return this.#arrive();
  }

  go(place) {
    const hash = hashOf(place);
    if (hash === location.hash) {
      this.refresh();
      return;
    }
    location.hash = hash;
    this.#arrive(); // the event comes later, and perhaps after the next key
  }

  #isElsewhere() {
    const { prefix, query } = placeOf(location.hash);
    return isPlace(location.hash) && (prefix !== this.place.prefix || query !== this.place.query);
  }

  up() {
    if (this.place.query) this.go({ prefix: this.prefix });
    else if (this.prefix) this.go({ prefix: folderOf(this.prefix) });
  }

  async #arrive() {
    const place = placeOf(location.hash);
    const before = this.listing?.place;
    const listing = this.#listingOf(place);
    this.listing = listing;
    this.renaming = null;
    this.refused("");
    drawPath($("path"), place);
    if (document.activeElement !== $("files-search")) $("files-search").value = place.query;
    $("file-list").setAttribute("aria-busy", "true");
    this.selection.clear();
    this.selection.active = null;
    await listing.more();
    await listing.hold(this.held.files);
    if (this.listing !== listing) return;
    $("file-list").removeAttribute("aria-busy");
    this.grid.toTop();
    this.#backAt(before, place);
    await listing.load();
  }

  /** Who goes up is where they came from. */
  #backAt(before, { prefix, query }) {
    if (!before || query || !before.prefix.startsWith(prefix) || before.prefix === prefix) return;
    const child = before.prefix.slice(0, before.prefix.indexOf("/", prefix.length) + 1);
    const number = this.listing.entries.findIndex(({ path, isFolder }) => isFolder && path === child);
    if (number < 0) return;
    this.selection.goTo(`/${child}`);
    this.grid.list.show(number);
  }

  #listingOf(place) {
    const changed = () => listing === this.listing && this.#draw();
    const listing = new Listing(this.api, place, this.headings.order, { changed, isLeaving: (entry) => this.deletions.covers(entry) });
    return listing;
  }

  /** Anew, in the place of what is shown: what is the same stays where it is. */
  async refresh() {
    const old = this.listing;
    const fresh = this.#listingOf(old.place);
    await fresh.load();
    await fresh.hold(this.held.files);
    while (fresh.order !== this.headings.order) await fresh.sort(this.headings.order); // it was changed meanwhile
    if (this.listing !== old || fresh.problem) return;
    this.listing = fresh;
    this.#draw();
  }

  more() {
    if (this.listing && (this.listing.isHuge || this.place.query)) this.listing.more();
  }

  #search() {
    const input = $("files-search");
    let timer = 0;
    const look = () => {
      const query = input.value.trim().normalize("NFC");
      if (query === this.place.query) return;
      // One step back leads out of the search, however much was typed.
      const place = { prefix: this.prefix, query };
      if (this.place.query && query) {
        history.replaceState(null, "", hashOf(place));
        this.#arrive();
      } else this.go(place);
    };
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(look, TYPING_MS);
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") look();
      if (event.key === "ArrowDown") $("file-list").focus();
      if (event.key === "Escape" && input.value) {
        event.preventDefault();
        input.value = "";
        look();
      }
    });
  }

  // What comes and goes

  /** Files that have just been made, in the order of their making. */
  add(files) {
    if (!files.length || !this.listing) return;
    this.listing.add(files);
    clearTimeout(this.#settling);
    this.#settling = setTimeout(() => this.#lookAgain(), SETTLED_MS);
  }

  /** What came from elsewhere, too; not where there is much to read. */
  #lookAgain() {
    if (this.#canRefresh) this.refresh();
  }

  get #canRefresh() {
    return this.listing?.isComplete && this.listing.entries.length <= REFRESHED_ENTRIES && !this.renaming;
  }

  /** There are others that are held. */
  showHeld() {
    this.listing?.hold(this.held.files);
  }

  /** Gates have let these pass, or refused them. */
  judged({ passed, refused }) {
    if (this.#canRefresh) {
      this.refresh();
      return;
    }
    this.listing?.remove(new Set([...passed, ...refused].map(({ id }) => id)));
    this.listing?.add(passed);
  }

  removed(entries) {
    const keys = new Set(entries.map(({ key }) => key));
    const place = this.listing.entries.findIndex(({ key }) => keys.has(key));
    this.selection.clear();
    this.held.forget(keys);
    this.listing.remove(keys).then(() => {
      const next = this.listing.entries[Math.min(place, this.listing.entries.length - 1)];
      this.selection.goTo(next?.key ?? null);
    });
  }

  /** Files are back from the trash. */
  restored(files) {
    this.held.add(files);
    this.changed();
    return this.refresh();
  }

  /** Whether the folder is there now. */
  async makeFolder(name) {
    try {
      await this.api.request("POST", "/me/folders", { body: { name } });
      await this.listing.addFolder(name);
      return true;
    } catch (problem) {
      this.refused(messageOf(problem));
      return false;
    }
  }

  #notRemoved(entries) {
    this.held.add(entries.flatMap(({ file }) => file ?? []));
    const { prefix, query } = this.place;
    if (query) this.refresh();
    else this.listing.restore(entries.filter(({ path }) => folderOf(path) === prefix));
  }

  // What a person does

  selected() {
    return this.selection.of(this.listing.entries);
  }

  prepare(entry) {
    this.dragging.prepare(entry);
  }

  open(entry) {
    if (entry.isFolder) {
      this.go({ prefix: entry.path });
      return;
    }
    if (entry.isHeld) {
      this.menu(entry, this.grid.rowOf(entry));
      return;
    }
    const files = free(this.listing.entries).filter(({ isFolder }) => !isFolder);
    const { actions } = this;
    const share = this.hasLinks ? (shown) => actions.share(shown) : null;
    preview(contentsOf(this.api), entry, files, { download: (shown) => actions.download([shown]), share });
  }

  remove() {
    const entries = deletable(this.selected());
    if (entries.length) this.actions.remove(entries);
  }

  moveInto(entries, prefix) {
    this.actions.moveInto(free(entries), prefix);
  }

  act(name, entry) {
    if (name === "share") this.actions.share(entry);
    else if (name === "delete") this.actions.remove([entry]);
    else this.actions.download([entry]);
  }

  /** For an entry; for all that are selected, where it is one of several. */
  menu(entry, at) {
    if (!this.selection.has(entry.key)) this.selection.goTo(entry.key);
    const several = this.selection.has(entry.key) && this.selection.size > 1 ? this.selected() : null;
    const entries = several ?? [entry];
    openMenu(choicesOf(entries, this), at, several ? t("selected.count", { count: several.length }) : entry.name);
  }

  /** In place: the name becomes a field. */
  rename(entry) {
    if (entry.isHeld) return;
    const stem = entry.isFolder ? entry.name.length : entry.name.replace(/\.[^.]+$/, "").length;
    const input = element("input", { type: "text", class: "rename", value: entry.name, maxlength: 1024, "aria-label": t("rename.label"), spellcheck: "false" });
    const end = async (isWanted) => {
      if (this.renaming?.input !== input) return;
      this.renaming = null;
      this.grid.refresh();
      const typed = input.value.trim();
      $("file-list").focus({ preventScroll: true });
      if (isWanted && typed && typed !== entry.name && (await this.actions.rename(entry, typed))) await this.refresh();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(true);
      if (event.key === "Escape") end(false);
    });
    input.addEventListener("blur", () => end(true));
    this.renaming = { key: entry.key, input };
    this.grid.list.show(this.listing.entries.findIndex(({ key }) => key === entry.key));
    input.focus();
    input.setSelectionRange(0, stem);
  }

  async versions(entry) {
    const restored = await showVersions(this.api, entry);
    if (restored.length) await this.restored(restored);
  }

  refused(text) {
    setText($("files-error"), text);
  }

  // What is seen

  #draw() {
    const { entries, isComplete, problem } = this.listing;
    this.selection.keep(entries);
    this.grid.entries = entries;
    if (problem) this.refused(messageOf(problem));
    const isEmpty = isComplete && entries.length === 0;
    const { prefix, query } = this.place;
    $("file-list").hidden = isEmpty;
    $("drop").hidden = !isEmpty || Boolean(query);
    $("files-empty").hidden = !isEmpty || !query;
    $("files-search").parentElement.hidden = isEmpty && !prefix && !query;
    $("upload").hidden = !$("drop").hidden && !prefix;
    const isTouch = matchMedia("(hover: none)").matches;
    setText($("drop-title"), t(prefix ? "drop.folder-title" : isTouch ? "drop.touch-title" : "drop.title"));
    setText($("drop-hint"), t(prefix ? "drop.folder-hint" : isTouch ? "drop.touch-hint" : "drop.hint"));
    setText($("files-note"), this.#note());
    this.#drawSelection();
  }

  #note() {
    const { entries, isComplete, isHuge } = this.listing;
    if (isHuge) return t("files.huge");
    if (!entries.length) return "";
    const folders = entries.filter(({ isFolder }) => isFolder).length;
    const bytes = entries.reduce((sum, { size }) => sum + size, 0);
    const parts = [folders && t("note.folders", { count: folders }), entries.length > folders && t("note.files", { count: entries.length - folders })];
    const words = [...parts.filter(Boolean), formatBytes(bytes)].join(" · ");
    return isComplete ? words : t("note.more", { words });
  }

  #drawSelection() {
    if (!this.listing) return;
    const { entries, canSort } = this.listing;
    this.grid.refresh();
    this.headings.update({ canSort, count: entries.length, selected: this.selection.size });
    this.bar.update(this.selected());
    $("files-bar").classList.toggle("covered", this.selection.size > 0);
  }
}
