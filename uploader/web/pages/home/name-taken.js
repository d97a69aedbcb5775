// What becomes of a name that is taken: one dialog for uploads, moves, new names, and what comes back from the trash.

import { ask } from "../dialogs.js";
import { element, setText } from "../dom.js";
import { formatBytes, formatTime } from "../format.js";
import { t } from "../i18n.js";

/** The box that makes an answer hold for all others, too. */
export class ForAll {
  #box = element("input", { type: "checkbox", id: "question-all" });
  #words = element("span");
  label = element("label", { class: "check", for: "question-all" }, this.#box, this.#words);

  get isChecked() {
    return this.#box.checked && !this.label.hidden;
  }

  check() {
    this.#box.checked = true;
  }

  say(words) {
    setText(this.#words, words);
  }
}

/** One of the two that want the name; `key` says which. */
export function fact(key, { size, modified_at: modifiedAt, created_at: createdAt }) {
  return { key, size, time: modifiedAt ?? createdAt };
}

/** The server's file of this name; null: there is none, or it is a folder. */
export async function fileNamed(api, name) {
  const asked = new URLSearchParams({ prefix: name, delimiter: "/", limit: 1 });
  const { files } = await api.request("GET", `/me/files?${asked}`);
  return files.find((file) => file.name === name) ?? null;
}

/** Ask for one of `choices`: `keep` (both), `skip`, `replace`; null: none. `facts` are of both, null where they are not
 * known; `hint` says what the choices do; `forAll` is there where there are others. */
export function askAboutName(name, { facts, hint, choices = ["keep", "skip", "replace"], forAll = null, back }) {
  const lines = facts.filter(Boolean).flatMap(({ key, size, time }) =>
    [element("dt", {}, t(key)), element("dd", {}, t("question.facts", { size: formatBytes(size), time: formatTime(time) }))]);
  const content = [element("dl", { class: "question-facts" }, ...lines), element("p", { class: "hint" }, hint), forAll?.label];
  const offered = choices.map((value) => ({ value, label: t(`question.${value}`), kind: value === "keep" ? "primary" : null }));
  return ask(t("question.title", { name }), content, offered, { back });
}

/** What the choices do; `skipped` is the key of what it means to skip one. */
export function hintOf(skipped, hasTrash) {
  return `${t(skipped)} ${t(hasTrash ? "question.replaced-trash" : "question.replaced-gone")}`;
}
