// What becomes of files whose names are there already with other content: asked once for all that were added together.

import { t } from "../../i18n.js";
import { askAboutName, fact, ForAll, hintOf } from "../name-taken.js";

export class Question {
  #isOpen = false;
  #forAll = null;

  constructor(transfers, hasTrash) {
    Object.assign(this, { transfers, hasTrash });
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
    this.#forAll = new ForAll();
    this.#forAll.label.hidden = true;
    this.#count();
    const { name, file, namesakes } = transfer;
    const there = namesakes.map((each) => fact("question.there", each));
    const facts = [...there, fact("question.yours", { size: file.size, modified_at: file.lastModified })];
    const hint = hintOf("question.skip-upload", this.hasTrash);
    const answer = await askAboutName(name, { facts, hint, forAll: this.#forAll, back: t("question.later") });
    if (answer === null) return false;
    const forAll = this.#forAll.isChecked;
    this.transfers.answer(forAll ? this.#asked() : [transfer], answer, { forAll });
    return true;
  }

  /** More may turn out to be others while the person thinks. */
  #count() {
    if (!this.#isOpen || !this.#forAll) return;
    const { label } = this.#forAll;
    const count = this.#asked().length;
    if (count > 1 && label.hidden) this.#forAll.check();
    label.hidden = count < 2;
    this.#forAll.say(t("question.for-all", { count }));
  }
}
