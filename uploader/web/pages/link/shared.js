// Sharing: a file, or a folder to walk through; previews where that is safe, downloads by links that work for a minute, so that
// the browser saves what it gets and nothing of it goes through the page.

import "../home/files/words.js";
import { element, setText } from "../dom.js";
import { formatBytes, formatTime } from "../format.js";
import { pictureOf, shownAs } from "../home/files/kinds.js";
import { Listing } from "../home/files/listing.js";
import { glyph, picture } from "../home/files/pictures.js";
import { hashOf, placeOf, stepsTo } from "../home/files/place.js";
import { preview } from "../home/files/preview.js";
import { onLanguage, t, translate } from "../i18n.js";
import { messageOf } from "../problems.js";
import { VirtualList } from "../virtual-list.js";

const ORDER = { by: "name", descending: false };

const $ = (id) => document.getElementById(id);

export async function show(visit, { end }) {
  const view = new SharedView(visit, end);
  translate($("shared"));
  $("shared").hidden = false;
  await view.arrive();
}

class SharedView {
  #listing = null;

  constructor(visit, end) {
    Object.assign(this, { visit, end, isFolder: true });
    this.list = new VirtualList($("file-list"), { make: (entry) => this.#row(entry), key: ({ key }) => key, onEnd: () => this.#listing?.isHuge && this.#listing.more() });
    $("download-all").prepend(glyph("download"));
    $("download-all").addEventListener("click", () => this.#save(this.isFolder ? { format: "zip", prefix: this.#place.prefix } : { id: this.#listing.entries[0]?.key }));
    addEventListener("hashchange", () => this.arrive());
    onLanguage(() => {
      this.list.redraw();
      this.#draw();
    });
  }

  get #place() {
    return { prefix: this.isFolder ? placeOf(location.hash).prefix : "", query: "" };
  }

  async arrive() {
    const changed = () => listing === this.#listing && this.#draw();
    const listing = new Listing(this.visit.api, this.#place, ORDER, { path: `${this.visit.path}/files`, changed, isLeaving: () => false });
    this.#listing = listing;
    $("file-list").setAttribute("aria-busy", "true");
    await listing.load();
    if (listing !== this.#listing) return;
    this.isFolder = !this.#isFile;
    this.#draw();
    $("file-list").removeAttribute("aria-busy");
    $("file-list").scrollTop = 0;
  }

  /** A folder's name is told without its slash, and none where there is a password: one file alone is taken for itself. */
  get #isFile() {
    const { entries, isComplete, place } = this.#listing;
    const isAlone = isComplete && entries.length === 1 && !entries[0].isFolder && !place.prefix;
    return isAlone && (this.visit.facts.name ?? entries[0].path) === entries[0].path;
  }

  #draw() {
    const { entries, isComplete, problem } = this.#listing;
    if (problem?.code.startsWith("link-")) {
      this.end(problem);
      return;
    }
    setText($("trouble"), problem ? messageOf(problem) : "");
    this.list.items = entries;
    const isEmpty = isComplete && !entries.length;
    $("download-all").hidden = isEmpty;
    setText($("download-all").querySelector("span"), t(this.isFolder ? "shared.all" : "action.download"));
    $("file-list").hidden = isEmpty;
    setText($("files-note"), isEmpty ? t("shared.empty") : this.isFolder ? this.#note() : "");
    this.#drawPath();
  }

  #note() {
    const { entries, isComplete } = this.#listing;
    const files = entries.reduce((sum, { isFolder, files: below }) => sum + (isFolder ? below : 1), 0);
    const bytes = entries.reduce((sum, { size }) => sum + size, 0);
    const words = t("note.files", { count: files }) + ` · ${formatBytes(bytes)}`;
    return isComplete ? words : t("note.more", { words });
  }

  /** The top is what was shared: nothing above it has a name here. */
  #drawPath() {
    const top = this.visit.facts.name?.replace(/\/$/, "") ?? t("shared.top");
    const steps = [{ name: top, prefix: "" }, ...stepsTo(this.#place.prefix)];
    const items = steps.map(({ name, prefix }, number) =>
      element("li", { title: name }, number > 0 && glyph("right"),
        element("a", { href: hashOf({ prefix }), "aria-current": number === steps.length - 1 ? "page" : null }, element("span", {}, name))));
    $("path").replaceChildren(element("ol", {}, ...items));
  }

  #row(entry) {
    const { name, path, isFolder } = entry;
    const title = isFolder
      ? element("a", { class: "name", href: hashOf({ prefix: path }), title: name }, name)
      : element("button", { type: "button", class: "name", title: name, onclick: () => this.#open(entry) }, name);
    const words = element("span", { class: "words" });
    const label = t("file.download", { name });
    const save = !isFolder && element("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick: () => this.#save({ id: entry.key }) }, glyph("download"));
    const root = element("div", { class: "row" }, element("span", { class: "kind" }, picture(isFolder ? "folder" : pictureOf(name))),
      element("div", { class: "what" }, title, words), save);
    return { root, update: (now) => setText(words, saidOf(now)) };
  }

  #open(entry) {
    if (!shownAs(entry.name) || entry.file.damaged) {
      this.#save({ id: entry.key });
      return;
    }
    const { api, path } = this.visit;
    const contents = {
      text: (key, headers) => api.request("GET", `${path}/files/${key}/content?show=inline`, { headers, raw: true }),
      link: async (key) => (await api.request("POST", `${path}/link`, { body: { id: key } })).url,
    };
    const files = this.#listing.entries.filter(({ isFolder }) => !isFolder);
    preview(contents, entry, files, { download: (shown) => this.#save({ id: shown.key }) });
  }

  async #save(body) {
    setText($("trouble"), "");
    try {
      const { url } = await this.visit.api.request("POST", `${this.visit.path}/link`, { body });
      const link = element("a", { href: url, download: "" });
      document.body.append(link);
      link.click();
      link.remove();
    } catch (problem) {
      if (problem.code === "link-gone") this.end(problem);
      else setText($("trouble"), messageOf(problem));
    }
  }
}

function saidOf({ isFolder, files, size, time, more, file }) {
  if (file?.damaged) return t("shared.damaged");
  if (!isFolder) return `${formatBytes(size)} · ${formatTime(time)}`;
  const count = files ? t(more ? "folder.more-files" : "folder.files", { count: files }) : t("folder.empty");
  return files ? `${count} · ${formatBytes(size)}${more ? "+" : ""}` : count;
}
