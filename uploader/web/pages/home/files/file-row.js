// How an entry is drawn: its picture, its name, what there is to say of it, its buttons.

import { element, setAttribute, setText } from "../../dom.js";
import { formatBytes, formatTime } from "../../format.js";
import { t } from "../../i18n.js";
import { pictureOf } from "./kinds.js";
import { glyphButton, picture } from "./pictures.js";
import { folderOf, hashOf } from "./place.js";

let made = 0;

/** A row; `view` has the selection, the place, and what is being renamed. */
export function fileRow(entry, view) {
  const check = element("input", { type: "checkbox", tabindex: -1, class: "check" });
  const title = entry.isFolder
    ? element("a", { class: "name", tabindex: -1, draggable: "false" })
    : element("button", { type: "button", class: "name", tabindex: -1 });
  const said = element("span", { class: "said" });
  const drawn = element("span", { class: "kind" });
  const named = element("div", { role: "gridcell", class: "cell-name" }, drawn, element("div", { class: "what" }, title, said));
  const size = element("div", { role: "gridcell", class: "cell-size" });
  const time = element("div", { role: "gridcell", class: "cell-time" });
  const actions = element("div", { role: "gridcell", class: "cell-actions" });
  const root = element("div", { class: "row", id: `entry-${(made += 1)}` },
    element("div", { role: "gridcell", class: "cell-check" }, check), named, size, time, actions);

  /** What is made of the name, which changes rarely. */
  function call({ name, path, isFolder, isHeld }) {
    check.setAttribute("aria-label", t("file.select", { name }));
    setText(title, name);
    title.title = name;
    if (isFolder) title.href = hashOf({ prefix: path });
    drawn.replaceChildren(picture(isFolder ? "folder" : pictureOf(name)));
    actions.replaceChildren(...actionsOf(name, isFolder, isHeld, view.hasLinks));
  }

  function update(now) {
    if (root.entry?.path !== now.path || root.entry.isHeld !== now.isHeld) call(now);
    entry = root.entry = now;
    const selected = view.selection.has(entry.key);
    check.checked = selected;
    setAttribute(root, "aria-selected", selected);
    setAttribute(root, "data-active", view.selection.active === entry.key ? "true" : null);
    setText(size, sizeOf(entry));
    setText(time, entry.isFolder ? "" : formatTime(entry.time));
    say(said, entry, view.place);
    const isRenamed = view.renaming?.key === entry.key;
    if (isRenamed && !named.contains(view.renaming.input)) title.replaceWith(view.renaming.input);
    else if (!isRenamed && !title.isConnected) named.querySelector(".rename")?.replaceWith(title);
  }

  return { root, update };
}

/** A file that is held can be deleted; a folder of such can't. */
function actionsOf(name, isFolder, isHeld, hasLinks) {
  const button = (action, drawn) => glyphButton(drawn, t(`file.${action}`, { name }), { tabindex: -1, "data-act": action });
  if (isHeld) return isFolder ? [] : [button("delete", "remove")];
  const more = button("more", "more");
  more.setAttribute("aria-haspopup", "menu");
  return [...(hasLinks ? [button("share", "share")] : []), button("download", "download"), more];
}

function countOf({ files, more }) {
  if (!files) return t("folder.empty");
  return t(more ? "folder.more-files" : "folder.files", { count: files });
}

function sizeOf({ size, more }) {
  return more ? `${formatBytes(size)}+` : formatBytes(size);
}

/** Below the name: that it is damaged, or held; where a search found it; how many files are in a folder; on phones, what else
 * has a column of its own. */
function say(node, entry, { query }) {
  if (entry.file?.damaged) {
    node.dataset.kind = "bad";
    setText(node, t("file.damaged"));
  } else if (entry.isHeld) {
    node.dataset.kind = "held";
    setText(node, [...(entry.isFolder ? [countOf(entry)] : []), t("file.held")].join(" · "));
  } else if (query) {
    node.dataset.kind = "where";
    const prefix = folderOf(entry.path);
    if (node.firstChild?.dataset?.prefix === prefix) return;
    const where = element("a", { href: hashOf({ prefix }), tabindex: -1, "data-prefix": prefix }, prefix ? prefix.slice(0, -1) : t("path.top"));
    node.replaceChildren(where);
  } else if (entry.isFolder) {
    node.dataset.kind = "folder";
    const [count, size] = [countOf(entry), entry.files ? ` · ${sizeOf(entry)}` : ""];
    if (node.textContent !== count + size) node.replaceChildren(count, element("span", { class: "narrow" }, size));
  } else {
    node.dataset.kind = "more";
    setText(node, `${sizeOf(entry)} · ${formatTime(entry.time)}`);
  }
}
