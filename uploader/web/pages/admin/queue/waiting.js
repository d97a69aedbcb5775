// What waits in the queues: how much, how late, and in which minute.

import "./words.js";
import { element } from "../../dom.js";
import { formatBytes, formatCount, formatDuration, formatTime } from "../../format.js";
import { onLanguage, t } from "../../i18n.js";
import { attempt, showAsOf, tile } from "../card.js";
import { PagedTable } from "../tables.js";

// Who works the queues looks each second: less is not late.
const IN_TIME_SECONDS = 2;

export class Waiting {
  #answer = null;

  constructor(card, api) {
    Object.assign(this, { card, api });
    this.table = new PagedTable(card.querySelector(".table"), {
      load: (asked) => this.#page(asked), describe: () => ({ caption: t("queue.caption"), columns: columns(), none: t("queue.none") }),
    });
    this.table.changed = () => attempt(card, () => this.table.reload());
    onLanguage(() => this.#draw());
  }

  reload() {
    return attempt(this.card, async () => {
      this.#answer = await this.api.request("GET", "/admin/queue");
      this.#draw();
      await this.table.reload();
    });
  }

  /** The server tells all minutes at once. */
  #page({ after, limit }) {
    const { buckets } = this.#answer;
    const end = (after ?? 0) + limit;
    return { items: buckets.slice(after ?? 0, end), next: end < buckets.length ? end : null };
  }

  #draw() {
    if (!this.#answer) return;
    const { as_of: asOf, tasks, pending_bytes: pending, lateness_seconds: late } = this.#answer;
    showAsOf(this.card, asOf);
    const isLate = late > IN_TIME_SECONDS;
    this.card.querySelector(".content").replaceChildren(element("dl", { class: "tiles" },
      tile({ name: t("queue.tasks"), figure: formatCount(tasks), key: "tasks" }),
      tile({ name: t("queue.pending"), figure: formatBytes(pending), key: "pending" }),
      tile({ name: t("queue.late"), figure: isLate ? formatDuration(late) : t("queue.in-time"), telling: isLate, key: "late" }),
    ));
    this.table.draw();
  }
}

function columns() {
  return [
    { label: t("queue.minute"), header: true, className: "moment", cell: ({ minute }) => (minute ? formatTime(minute) : t("queue.unreadable")) },
    { label: t("queue.queue"), cell: ({ queue }) => t(`queue.${queue}`) },
    { label: t("queue.uploads"), number: true, cell: ({ tasks }) => formatCount(tasks) },
    { label: t("queue.bytes"), number: true, cell: (bucket) => formatBytes(bucket.pending_bytes) },
  ];
}
