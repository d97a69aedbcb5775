// How a file in the trash is drawn: what it was called, where it was, since when it is there, and for how long.

import { element, setAttribute, setText } from "../../dom.js";
import { formatBytes, formatDay, formatTime } from "../../format.js";
import { t } from "../../i18n.js";
import { pictureOf } from "../files/kinds.js";
import { glyphButton, picture } from "../files/pictures.js";
import { folderOf, lastSegment } from "../files/place.js";

let made = 0;

export function entryOfTrashed(file) {
  return { key: file.id, name: lastSegment(file.name), size: file.size, file };
}

/** Whether it can be looked into, and brought back: not what a gate refused. */
export function isUsable({ reason }) {
  return reason !== "refused";
}

/** Why and when it came here. */
export function causeOf({ reason, detail, deleted_at: time }) {
  return detail ? t("trash.refused-for", { detail }) : t(`trash.${reason}`, { time: formatTime(time) });
}

/** A row; `view` has the selection. */
export function trashRow(entry, view) {
  const { name, size, file } = entry;
  const check = element("input", { type: "checkbox", tabindex: -1, class: "check", "aria-label": t("file.select", { name }) });
  const button = (key, drawn, action) => glyphButton(drawn, t(key, { name }), { tabindex: -1, "data-act": action });
  const more = button("file.more", "more", "more");
  more.setAttribute("aria-haspopup", "menu");
  const said = element("span", { class: "said", "data-kind": "where" });
  const root = element("div", { class: "row", id: `trashed-${(made += 1)}` },
    element("div", { role: "gridcell", class: "cell-check" }, check),
    element("div", { role: "gridcell", class: "cell-name" },
      element("span", { class: "kind" }, picture(pictureOf(name))),
      element("div", { class: "what" }, element("button", { type: "button", class: "name", tabindex: -1, title: file.name }, name), said)),
    element("div", { role: "gridcell", class: "cell-size" }, formatBytes(size)),
    element("div", { role: "gridcell", class: "cell-time" }, formatTime(file.deleted_at)),
    element("div", { role: "gridcell", class: "cell-actions" }, isUsable(file) && button("trash.restore-one", "restore", "restore"), more));
  const where = folderOf(file.name).slice(0, -1) || t("path.top");
  setText(said, [where, causeOf(file), t("trash.until", { day: formatDay(file.expires_at) })].join(" · "));
  root.entry = entry;

  function update() {
    const selected = view.selection.has(entry.key);
    check.checked = selected;
    setAttribute(root, "aria-selected", selected);
    setAttribute(root, "data-active", view.selection.active === entry.key ? "true" : null);
  }

  return { root, update };
}
