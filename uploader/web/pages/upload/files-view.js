// The finished files of a person: newest first, with download, rename and delete.

import { askText, confirmed } from "../dialogs.js";
import { element, icon, iconButton, setText } from "../dom.js";
import { formatBytes, formatTime } from "../format.js";
import { onLanguage, t } from "../i18n.js";
import { messageOf } from "../problems.js";
import { VirtualList } from "../virtual-list.js";

const PAGE = 500;
const TYPING_MS = 300;

const $ = (id) => document.getElementById(id);

export class FilesView {
  #files = [];
  #ids = new Set();
  #next = null; // the cursor of the page that follows, while there is one
  #loading = null;
  #prefix = "";

  /** `changed()` is called when the person has freed space; `tell(text)` reads a text out. */
  constructor(api, { changed, tell }) {
    Object.assign(this, { api, changed, tell });
    this.list = new VirtualList($("file-list"), {
      make: (file) => this.#row(file),
      key: (file) => file.id,
      onEnd: () => this.#next && this.#load(),
    });
    let timer;
    $("files-prefix").addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.reload(), TYPING_MS);
    });
    onLanguage(() => {
      this.list.redraw();
      this.#draw();
    });
  }

  /** From the beginning. */
  async reload() {
    await this.#loading;
    this.#prefix = $("files-prefix").value.normalize("NFC");
    this.#files = [];
    this.#ids.clear();
    this.#next = null;
    $("file-list").scrollTop = 0;
    await this.#load();
  }

  /** Files that have just been made, in the order of their making. */
  add(files) {
    const added = files.filter(({ id, name }) => !this.#ids.has(id) && name.startsWith(this.#prefix));
    for (const { id } of added) this.#ids.add(id);
    this.#files.unshift(...added.reverse());
    this.#draw();
  }

  #load() {
    this.#loading ??= this.#loadPage().finally(() => {
      this.#loading = null;
    });
    return this.#loading;
  }

  async #loadPage() {
    const query = new URLSearchParams({ limit: PAGE });
    if (this.#next) query.set("after", this.#next);
    if (this.#prefix) query.set("prefix", this.#prefix);
    await this.#attempt(async () => {
      const page = await this.api.request("GET", `/me/files?${query}`);
      this.#next = page.next;
      for (const file of page.files) {
        if (this.#ids.has(file.id)) continue;
        this.#ids.add(file.id);
        this.#files.push(file);
      }
    });
    this.#draw();
  }

  /** Whether it worked; else the person is told why not. */
  async #attempt(work) {
    setText($("files-error"), "");
    try {
      await work();
      return true;
    } catch (problem) {
      setText($("files-error"), messageOf(problem));
      return false;
    }
  }

  #draw() {
    this.list.items = this.#files;
    $("file-list").hidden = this.#files.length === 0;
    $("files-empty").hidden = this.#files.length > 0;
    setText($("files-empty"), t(this.#prefix ? "files.none-found" : "files.empty"));
  }

  #row(file) {
    const { name } = file;
    const button = (action, work) => iconButton(action, t(`file.${action}`, { name }), () => work(file));
    const words = [formatBytes(file.size), formatTime(file.created_at)];
    if (file.instant) words.push(t("file.instant"));
    if (file.damaged) words.push(t("file.damaged"));
    const root = element("div", { class: "row" },
      element("span", { class: "mark" }, icon(file.instant ? "instant" : "done")),
      element("div", { class: "what" },
        element("span", { class: "name", title: name }, name),
        element("span", { class: "words" }, words.join(" · "))),
      element("div", { class: "row-buttons" },
        button("download", () => this.#download(file)),
        button("rename", () => this.#rename(file)),
        button("remove", () => this.#remove(file))),
    );
    return { root, update: () => {} };
  }

  /** By a link that works for a while: the browser saves what it gets, and nothing of it goes through the page. */
  async #download(file) {
    await this.#attempt(async () => {
      const { url } = await this.api.request("POST", `/me/files/${file.id}/link`, { body: {} });
      const link = element("a", { href: url, download: file.name.split("/").at(-1) });
      document.body.append(link);
      link.click();
      link.remove();
    });
  }

  async #rename(file) {
    const given = await askText({ title: t("rename.title"), label: t("rename.label"), value: file.name, confirm: t("rename.confirm") });
    if (given === null || given === file.name) return;
    await this.#attempt(async () => {
      const renamed = await this.api.request("PATCH", `/me/files/${file.id}`, { body: { name: given } });
      this.#files = this.#files.map((other) => (other.id === file.id ? renamed : other));
      this.list.redraw();
      this.#draw();
      this.tell(t("rename.done", { name: renamed.name }));
    });
  }

  async #remove(file) {
    const { name } = file;
    if (!(await confirmed({ title: t("delete.title"), text: t("delete.text", { name }), confirm: t("delete.confirm"), danger: true }))) return;
    await this.#attempt(async () => {
      await this.api.request("DELETE", `/me/files/${file.id}`);
      this.#files = this.#files.filter((other) => other.id !== file.id);
      this.#ids.delete(file.id);
      this.#draw();
      this.changed();
      this.tell(t("delete.done", { name }));
    });
  }
}
