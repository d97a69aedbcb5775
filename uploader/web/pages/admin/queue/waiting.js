// What waits in the queues, of all, of a user or of an upload: how much, how late, and in which minute.

import "./words.js";
import { element } from "../../dom.js";
import { formatBytes, formatCount, formatDuration, formatTime } from "../../format.js";
import { onLanguage, t } from "../../i18n.js";
import { attempt, showAsOf, tile, whenTyped } from "../card.js";
import { pageOfAll, PagedTable } from "../tables.js";

// Who works the queues looks each second: less is not late.
const IN_TIME_SECONDS = 2;
const UPLOAD_ID = /^[0-9a-f]{32}$/;

export class Waiting {
  #answer = null;
  #asked = 0;

  constructor(card, api) {
    Object.assign(this, { card, api });
    this.search = card.querySelector("input");
    this.table = new PagedTable(card, card.querySelector(".table"), {
      load: (asked) => pageOfAll(this.#answer.buckets, asked), describe: () => ({ caption: t("queue.caption"), columns: columns(), none: t("queue.none") }),
    });
    whenTyped(this.search, () => this.reload());
    onLanguage(() => this.#draw());
  }

  reload() {
    return attempt(this.card, async () => {
      const asked = (this.#asked += 1);
      const { answer, problem } = await this.#ask();
      if (asked !== this.#asked) return; // somebody else is searched for meanwhile
      if (problem?.status === 404) this.#clear(); // what is shown is of others
      if (problem) throw problem;
      this.#answer = answer;
      this.#draw();
      await this.table.reload();
    });
  }

  async #ask() {
    try {
      return { answer: await this.api.request("GET", `/admin/queue?${this.#query()}`) };
    } catch (problem) {
      return { problem };
    }
  }

  #query() {
    const wanted = this.search.value.trim();
    return new URLSearchParams(wanted && { [UPLOAD_ID.test(wanted) ? "upload_id" : "user_id"]: wanted });
  }

  #clear() {
    this.#answer = null;
    this.card.querySelector(".content").replaceChildren();
    this.table.container.replaceChildren();
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
