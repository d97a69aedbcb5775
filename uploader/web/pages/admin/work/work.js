// Tasks of queues: how many wait, who holds what until when, what is dead and why, and handing it out again.

import "./words.js";
import { element, setText } from "../../dom.js";
import { formatCount, formatDuration, formatTime } from "../../format.js";
import { onLanguage, t } from "../../i18n.js";
import { attempt, counted, showAsOf } from "../card.js";
import { pageOfAll, PagedTable, table } from "../tables.js";

export class Work {
  #answer = null;

  /** The card is hidden while there is no queue. */
  constructor(card, api) {
    Object.assign(this, { card, api });
    this.queues = card.querySelector(".queues");
    this.queues.tabIndex = -1; // where the focus goes when its button is gone
    this.tasks = new PagedTable(card, card.querySelector(".tasks"), {
      load: (asked) => this.#page(asked), describe: () => ({ caption: t("work.tasks"), columns: taskColumns(), none: t("work.none") }),
    });
    onLanguage(() => this.#draw());
  }

  async reload() {
    const asked = await attempt(this.card, () => this.#load());
    if (!asked) this.card.hidden = false;
  }

  async #load() {
    this.#answer = await this.api.request("GET", "/admin/work");
    this.#draw();
    await this.tasks.reload();
  }

  #page(asked) {
    const tasks = this.#answer.queues.flatMap(({ queue, holders, given_up: dead }) => [...holders, ...dead].map((task) => ({ queue, ...task })));
    return pageOfAll(tasks, asked);
  }

  #draw() {
    if (!this.#answer) return;
    const { as_of: asOf, queues } = this.#answer;
    this.card.hidden = queues.length === 0;
    showAsOf(this.card, asOf);
    this.queues.replaceChildren(table(t("work.caption"), this.#columns(), queues));
    this.tasks.draw();
  }

  #columns() {
    return [
      { label: t("work.queue"), header: true, cell: ({ queue }) => queue },
      { label: t("work.waiting"), number: true, cell: (row) => counted(row.waiting) },
      { label: t("work.held"), number: true, cell: (row) => counted(row.held) },
      { label: t("work.oldest"), number: true, className: "widest-only", cell: (row) => (row.waiting > 0 ? formatDuration(row.lag_seconds) : "–") },
      { label: t("work.attempts"), number: true, className: "widest-only", cell: (row) => formatCount(row.attempts) },
      { label: t("work.dead"), number: true, cell: (row) => element("span", { class: row.dead > 0 ? "drift" : null }, counted(row.dead)) },
      { label: element("span", { class: "visually-hidden" }, t("work.replay")), number: true, cell: (row) => this.#button(row) },
    ];
  }

  #button({ queue, dead }) {
    if (dead === 0) return "";
    const attributes = { type: "button", class: "small", "aria-label": t("work.replay-one", { queue }), onclick: () => this.#replay(queue) };
    return element("button", attributes, t("work.replay"));
  }

  async #replay(queue) {
    const outcome = this.card.querySelector(".outcome");
    setText(outcome, "");
    await attempt(this.card, async () => {
      const { deliveries } = await this.api.request("POST", "/admin/events/replay", { body: { sink: queue } });
      setText(outcome, t("work.replayed", { count: deliveries, queue }));
      this.queues.focus();
      await this.#load();
    });
  }
}

function taskColumns() {
  return [
    { label: t("work.queue"), header: true, cell: ({ queue }) => queue },
    { label: t("work.task"), wide: true, cell: ({ id }) => id },
    { label: t("work.state"), cell: (task) => element("div", {}, stateOf(task), task.last_error !== null && element("p", { class: "hint" }, task.last_error)) },
    { label: t("work.attempt"), number: true, cell: ({ attempt: number }) => formatCount(number) },
  ];
}

/** What a task does, and since or until when. */
function stateOf({ state, worker, due_at: due }) {
  return t(state === "dead" ? "work.died" : "work.held-by", { worker, time: formatTime(due) });
}
