// What is read out by screen readers: each thing once, many at once as a number.

import { t } from "../i18n.js";

const GATHER_MS = 1000;

export class News {
  #complete = [];
  #there = [];
  #failed = [];
  #timer = 0;

  constructor(node) {
    this.node = node;
  }

  tell(text) {
    this.node.textContent = text;
  }

  completed(transfers) {
    for (const { name, unchanged } of transfers) (unchanged ? this.#there : this.#complete).push(name);
    this.#soon();
  }

  failed(transfers) {
    for (const { name } of transfers) this.#failed.push(name);
    this.#soon();
  }

  #soon() {
    this.#timer ||= setTimeout(() => {
      this.#timer = 0;
      const parts = [];
      if (this.#complete.length) parts.push(told("complete", this.#complete));
      if (this.#there.length) parts.push(told("there", this.#there));
      if (this.#failed.length) parts.push(told("failed", this.#failed));
      this.#complete = [];
      this.#there = [];
      this.#failed = [];
      this.tell(parts.join(" "));
    }, GATHER_MS);
  }
}

function told(kind, names) {
  return names.length === 1 ? t(`news.${kind}`, { name: names[0] }) : t(`news.${kind}-many`, { count: names.length });
}
