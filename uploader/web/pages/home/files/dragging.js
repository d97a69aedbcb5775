// Entries that are dragged: onto a folder, which they go into, or out of the window, where the browser saves them.

import { element } from "../../dom.js";
import { t } from "../../i18n.js";

const TYPE = "application/x-uploader-entries";

export class Dragging {
  #link = { key: null, url: null }; // of what the pointer is on
  #over = null;

  /** `view` has `selection`, `selected()`, and is told: moveInto(entries, prefix). */
  constructor(api, view, areas) {
    Object.assign(this, { api, view });
    for (const area of areas) {
      area.addEventListener("dragstart", (event) => this.#start(event));
      area.addEventListener("dragover", (event) => this.#drag(event));
      area.addEventListener("dragleave", (event) => event.target === this.#over && this.#mark(null));
      area.addEventListener("drop", (event) => this.#drop(event));
      area.addEventListener("dragend", () => this.#end());
    }
  }

  /** A drag can't wait for a link: it is asked for when the button of the mouse goes down. */
  async prepare(entry) {
    if (entry.isFolder || this.#link.key === entry.key) return;
    this.#link = { key: entry.key, url: null };
    try {
      const { url } = await this.api.requestOnce("POST", `/me/files/${entry.key}/link`, { body: {} });
      if (this.#link.key === entry.key) this.#link.url = new URL(url, location.origin).href;
      setTimeout(() => this.#link.key === entry.key && (this.#link = { key: null, url: null }), 240_000);
    } catch {
      this.#link = { key: null, url: null }; // then it can be dragged within the page
    }
  }

  #start(event) {
    const entry = event.target.closest?.(".row")?.entry;
    if (!entry) return;
    if (!this.view.selection.has(entry.key)) this.view.selection.only(entry.key);
    const entries = this.view.selected();
    event.dataTransfer.effectAllowed = "copyMove";
    event.dataTransfer.setData(TYPE, "");
    if (entries.length === 1 && this.#link.key === entry.key && this.#link.url) {
      event.dataTransfer.setData("DownloadURL", `application/octet-stream:${entry.name.replaceAll(":", "_")}:${this.#link.url}`);
    }
    const words = entries.length === 1 ? entry.name : t("selected.count", { count: entries.length });
    const image = element("div", { class: "drag-image" }, words);
    document.body.append(image);
    event.dataTransfer.setDragImage(image, -12, -12);
    setTimeout(() => {
      image.remove();
      document.body.classList.add("dragging"); // the folders of the path are there to be dropped on
    });
  }

  /** The prefix of the folder that an event is at; null where there is none to drop on. */
  #folderAt(event) {
    if (!event.dataTransfer.types.includes(TYPE)) return null;
    const row = event.target.closest?.(".row");
    if (row?.entry) return row.entry.isFolder && !this.view.selection.has(row.entry.key) ? row.entry.path : null;
    return event.target.closest?.("[data-folder]")?.dataset.folder ?? null;
  }

  #drag(event) {
    const folder = this.#folderAt(event);
    this.#mark(folder === null ? null : event.target.closest(".row, [data-folder]"));
    if (folder === null) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "move";
  }

  #drop(event) {
    const folder = this.#folderAt(event);
    this.#mark(null);
    if (folder === null) return;
    event.preventDefault();
    this.view.moveInto(this.view.selected(), folder);
  }

  #end() {
    this.#mark(null);
    document.body.classList.remove("dragging");
  }

  #mark(node) {
    if (this.#over === node) return;
    this.#over?.classList.remove("drop-target");
    this.#over = node;
    node?.classList.add("drop-target");
  }
}
