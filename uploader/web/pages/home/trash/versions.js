// The earlier contents of a name: what was replaced or deleted under it, each to be saved or brought back.

import { element, setText } from "../../dom.js";
import { formatBytes, formatTime } from "../../format.js";
import { t } from "../../i18n.js";
import { messageOf } from "../../problems.js";
import { showModal } from "../files/modal.js";
import { glyphButton } from "../files/pictures.js";
import { saveTrashed } from "./saving.js";
import { Restores } from "./restores.js";
import { causeOf, isUsable } from "./trash-row.js";

const PAGE = 100;

/** Show them for an entry; the one that was brought back, if any, in a list. */
export async function showVersions(api, { path, name }) {
  let back = [];
  let close = () => {};
  let after;
  const list = element("ul", { class: "versions" });
  const words = element("p", { class: "muted", role: "status" }, t("versions.loading"));
  const wrong = element("p", { class: "error", role: "alert" });
  const more = element("button", { type: "button", hidden: true, onclick: () => load() }, t("versions.more"));

  async function attempt(work) {
    setText(wrong, "");
    try {
      await work();
    } catch (problem) {
      setText(wrong, messageOf(problem));
    }
  }

  const restore = (file) => attempt(async () => {
    const { restored, problem } = await new Restores(api, { hasTrash: true }).restore([file]);
    if (problem) throw problem;
    if (!restored.length) return;
    back = restored;
    close();
  });

  function row(file) {
    const time = formatTime(file.modified_at ?? file.created_at);
    const button = (key, drawn, run) => glyphButton(drawn, t(key, { time }), { onclick: run });
    const facts = [formatBytes(file.size), causeOf(file)].join(" · ");
    return element("li", {},
      element("span", { class: "what" }, element("span", { class: "name" }, time), element("span", { class: "muted" }, facts)),
      isUsable(file) && button("versions.download", "download", () => attempt(() => saveTrashed(api, file))),
      isUsable(file) && button("versions.restore", "restore", () => restore(file)));
  }

  const load = () => attempt(async () => {
    const asked = new URLSearchParams({ name: path, limit: PAGE, ...(after ? { after } : {}) });
    const { files, next } = await api.request("GET", `/me/trash?${asked}`);
    list.append(...files.map(row));
    list.hidden = !list.children.length;
    after = next;
    more.hidden = next === null;
    setText(words, t(list.children.length ? "versions.hint" : "versions.none"));
  });

  list.hidden = true;
  await showModal({
    title: t("versions.title", { name }),
    className: "versions",
    content: [words, list, more, wrong, element("div", { class: "actions" }, element("button", { type: "button", onclick: () => close() }, t("action.close")))],
    opened: (end) => {
      close = end;
      load();
    },
  });
  return back;
}
