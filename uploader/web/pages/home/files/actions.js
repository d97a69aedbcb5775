// What can be done with entries: downloaded, shared, moved, renamed, deleted. Asks, does it, and says so.

import { confirmed } from "../../dialogs.js";
import { element } from "../../dom.js";
import { t } from "../../i18n.js";
import { messageOf } from "../../problems.js";
import { askFolder } from "./move.js";
import { Moves } from "./moves.js";
import { share } from "../links/share.js";
import { folderOf, lastSegment } from "./place.js";
import { archiveBody, saveAsZip } from "./selected.js";

export class Actions {
  /** `view` has `listing` and `deletions`, and is told: refused(text), refresh(), go(place), removed(entries). */
  constructor(api, view, { toasts, tell, hasTrash }) {
    Object.assign(this, { api, view, toasts, tell, hasTrash });
  }

  /** Do it; the person is told why not. Whether it worked. */
  async attempt(work) {
    this.view.refused("");
    try {
      await work();
      return true;
    } catch (problem) {
      this.view.refused(messageOf(problem));
      return false;
    }
  }

  /** By links that work for a while: the browser saves what it gets, and nothing of it goes through the page. */
  async download(entries) {
    const [first] = entries;
    if (entries.length === 1 && !first.isFolder) {
      await this.attempt(async () => {
        const { url } = await this.api.request("POST", `/me/files/${first.key}/link`, { body: {} });
        const link = element("a", { href: url, download: first.name });
        document.body.append(link);
        link.click();
        link.remove();
      });
      return;
    }
    const body = archiveBody(entries, this.view.listing);
    if (!body) this.view.refused(t("download.too-many"));
    else await this.attempt(() => saveAsZip(this.api, body, () => this.view.refused(t("problem.failed"))));
  }

  share(entry) {
    return this.attempt(() => share(this.api, entry));
  }

  async move(entries) {
    const title = entries.length === 1 ? t("move.one", { name: entries[0].name }) : t("move.many", { count: entries.length });
    const closed = entries.filter(({ isFolder }) => isFolder).map(({ path }) => path);
    const to = await askFolder(this.api, { title, prefix: folderOf(entries[0].path), closed });
    if (to !== null) await this.moveInto(entries, to);
  }

  async moveInto(entries, to) {
    const moving = entries.filter(({ path }) => folderOf(path) !== to);
    if (!moving.length) return;
    const folder = to ? lastSegment(to) : t("path.top");
    let moved = 0;
    await this.attempt(async () => {
      moved = await new Moves(this.api, this).into(moving, to);
    });
    this.view.refresh();
    if (!moved) return;
    const text = moving.length === 1 ? t("move.done", { name: moving[0].name, folder }) : t("move.done-many", { count: moved, folder });
    this.tell(text);
    this.toasts.show(text, { action: t("move.show"), run: () => this.view.go({ prefix: to }) });
  }

  async rename(entry, typed) {
    const wanted = folderOf(entry.path) + typed.normalize("NFC").replace(/\/+$/, "");
    return this.attempt(async () => {
      const name = await new Moves(this.api, this).rename(entry, wanted);
      if (name !== null) this.tell(t("rename.done", { name: lastSegment(name) }));
    });
  }

  /** Into the trash, at once; where there is none, the person is asked. */
  async remove(entries) {
    const files = entries.reduce((sum, entry) => sum + (entry.isFolder ? entry.files : 1), 0);
    const [{ name, isFolder }, ...others] = entries;
    const key = others.length ? "delete.many" : isFolder && files ? "delete.folder" : "delete.done";
    const text = t(key, { name, count: files });
    if (!this.hasTrash) {
      const question = { title: t("delete.title"), text: t("delete.text", { count: files }), confirm: t("delete.confirm"), danger: true };
      if (!(await confirmed(question))) return;
    }
    this.view.deletions.add(entries, text);
    this.view.removed(entries);
    this.tell(text);
  }
}
