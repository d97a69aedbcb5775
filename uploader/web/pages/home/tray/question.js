// What becomes of files whose names are there already with other content: asked once for all that were added together.

import { ask } from "../../dialogs.js";
import { element, setText } from "../../dom.js";
import { formatBytes, formatTime } from "../../format.js";
import { t } from "../../i18n.js";

export class Question {
  #isOpen = false;

  constructor(transfers) {
    this.transfers = transfers;
    transfers.asks = true;
    transfers.addEventListener("list", () => this.#count());
    transfers.addEventListener("change", () => this.#count());
  }

  /** Ask until all is answered, or put off. `first` are asked about before others. */
  async open(first = []) {
    if (this.#isOpen) return;
    this.#isOpen = true;
    try {
      for (let asked = this.#asked(first); asked.length && (await this.#ask(asked[0])); asked = this.#asked(first));
    } finally {
      this.#isOpen = false;
    }
  }

  #asked(first = []) {
    const isAsked = ({ phase }) => phase === "asked";
    const before = first.filter(isAsked);
    return before.length ? before : this.transfers.all.filter(isAsked);
  }

  /** Whether it was answered. */
  async #ask(transfer) {
    const isMany = this.#asked().length > 1;
    this.forAll = element("input", { type: "checkbox", id: "question-all", checked: isMany });
    this.allLabel = element("label", { class: "check", for: "question-all", hidden: !isMany }, this.forAll, element("span"));
    this.#count();
    const title = t("question.title", { name: transfer.name });
    const content = [facts(transfer), element("p", { class: "hint" }, t("question.hint")), this.allLabel];
    const choices = ["keep", "skip", "replace"].map((value) => {
      return { value, label: t(`question.${value}`), kind: value === "keep" ? "primary" : null };
    });
    const answer = await ask(title, content, choices, { back: t("question.later") });
    if (answer === null) return false;
    const forAll = this.forAll.checked;
    this.transfers.answer(forAll ? this.#asked() : [transfer], answer, { forAll });
    return true;
  }

  /** More may turn out to be others while the person thinks. */
  #count() {
    if (!this.#isOpen || !this.allLabel) return;
    const count = this.#asked().length;
    if (count > 1 && this.allLabel.hidden) this.forAll.checked = true;
    this.allLabel.hidden = count < 2;
    setText(this.allLabel.querySelector("span"), t("question.for-all", { count }));
  }
}

/** The two files beside each other, as far as the server's is known. */
function facts({ file, namesakes }) {
  const line = (key, size, time) => [element("dt", {}, t(key)), element("dd", {}, t("question.facts", { size: formatBytes(size), time: formatTime(time) }))];
  const there = namesakes.flatMap((namesake) => line("question.there", namesake.size, namesake.modified_at ?? namesake.created_at));
  return element("dl", { class: "question-facts" }, ...there, ...line("question.yours", file.size, file.lastModified));
}
