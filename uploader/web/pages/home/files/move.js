// Where to: a folder that is there, or one that is made by the first thing that goes into it.

import { element, setText } from "../../dom.js";
import { formatCount } from "../../format.js";
import { t } from "../../i18n.js";
import { messageOf } from "../../problems.js";
import { showModal } from "./modal.js";
import { glyph, picture } from "./pictures.js";
import { folderOf, lastSegment, segmentsOf } from "./place.js";

const TYPING_MS = 250;
const SHOWN = 500;

/** Ask for a folder; `prefix` is where to begin, `closed` are prefixes that can't be chosen. A prefix, or null. */
export async function askFolder(api, { title, prefix, closed }) {
  let chosen = null;
  let close = () => {};
  let timer = 0;
  const input = element("input", { type: "text", id: "move-to", maxlength: 1000, autocomplete: "off", spellcheck: "false", placeholder: t("path.top") });
  const list = element("ul", { class: "folders" });
  const wrong = element("p", { class: "error", role: "alert" });
  const form = element("form", {},
    element("label", { for: "move-to" }, t("move.folder")),
    input,
    element("p", { class: "muted" }, t("move.hint")),
    list, wrong,
    element("div", { class: "actions" },
      element("button", { type: "button", onclick: () => close() }, t("move.cancel")),
      element("button", { type: "submit", class: "primary" }, t("move.confirm"))));

  const typed = () => {
    const path = segmentsOf(input.value).join("/");
    return path ? `${path}/` : "";
  };
  const isClosed = (folder) => closed.some((each) => folder.startsWith(each));

  function go(folder) {
    input.value = folder.slice(0, -1);
    look(folder);
    input.focus();
  }

  const row = (drawn, name, words, folder) => element("li", {}, element("button", { type: "button", onclick: () => go(folder) },
    drawn, element("span", { class: "name" }, name), words && element("span", { class: "muted" }, words)));

  async function look(folder) {
    try {
      const asked = new URLSearchParams({ delimiter: "/", prefix: folder, limit: SHOWN });
      const { folders } = await api.request("GET", `/me/files?${asked}`);
      if (typed() !== folder) return;
      const open = folders.filter(({ name }) => !isClosed(name));
      list.replaceChildren(
        ...(folder ? [row(glyph("up"), folderOf(folder) ? lastSegment(folderOf(folder)) : t("path.top"), "", folderOf(folder))] : []),
        ...open.map(({ name, files }) => row(picture("folder"), lastSegment(name), formatCount(files), name)),
        ...(open.length ? [] : [element("li", { class: "muted" }, t("move.none"))]));
      setText(wrong, "");
    } catch (problem) {
      setText(wrong, messageOf(problem));
    }
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => look(typed()), TYPING_MS);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (isClosed(typed())) {
      setText(wrong, t("move.itself"));
      return;
    }
    chosen = typed();
    close();
  });
  await showModal({
    title,
    className: "move",
    content: [form],
    opened: (end) => {
      close = end;
      go(prefix);
    },
  });
  return chosen;
}
