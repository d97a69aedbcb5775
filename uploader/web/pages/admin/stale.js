// Uploads that nobody goes on with: what they would give back, and the end of them.

import { Problem } from "../client/api.js";
import { confirmed } from "../dialogs.js";
import { element, setText } from "../dom.js";
import { formatBytes, formatTime } from "../format.js";
import { onLanguage, t } from "../i18n.js";
import { attempt, saveCsv, userButton } from "./card.js";
import { pageOf, PagedTable } from "./tables.js";

const HOUR = 3600;
const IDLE_SECONDS = [0, HOUR, 24 * HOUR, 72 * HOUR, 168 * HOUR];
const ALL_PAGE = 1000;
// What says that somebody else was faster, which is no failure.
const PASSED = new Set(["upload-gone", "upload-not-found", "upload-active"]);

const $ = (id) => document.getElementById(id);

export class Stale {
  #answer = null;

  /** `changed()` is called when uploads were expired; `open(userId)` shows one user. */
  constructor(card, api, { changed, open }) {
    Object.assign(this, { card, api, changed, open });
    this.table = new PagedTable(card, card.querySelector(".table"), {
      sort: "updated_at", order: "asc", load: (asked) => this.#load(asked), describe: () => this.#describe(),
    });
    $("stale-idle").addEventListener("change", () => this.table.restart());
    $("stale-expire").addEventListener("click", () => this.#expireAll());
    const csv = () => saveCsv(api, `/admin/uploads?idle_for=${this.#idleFor}`, "uploads.csv");
    $("stale-csv").addEventListener("click", () => attempt(card, csv));
    onLanguage(() => this.#draw());
    this.#drawChoice();
    $("stale-idle").value = 24 * HOUR;
  }

  reload() {
    return this.table.changed();
  }

  get #idleFor() {
    return $("stale-idle").value;
  }

  #drawChoice() {
    const chosen = $("stale-idle").value;
    $("stale-idle").replaceChildren(...IDLE_SECONDS.map((seconds) => element("option", { value: seconds }, idleInWords(seconds))));
    $("stale-idle").value = chosen;
  }

  async #load(asked) {
    const query = new URLSearchParams({ idle_for: this.#idleFor, sort: asked.sort, order: asked.order });
    this.#answer = await pageOf(this.api, "/admin/uploads", query, asked);
    this.#drawSum();
    const { uploads: items, next, as_of: asOf } = this.#answer;
    return { items, next, asOf };
  }

  #draw() {
    this.#drawChoice();
    if (this.#answer) this.#drawSum();
    this.table.draw();
  }

  #drawSum() {
    const { total } = this.#answer;
    const any = total.open_uploads > 0;
    this.card.querySelector(".sum").hidden = !any;
    setText($("stale-total"), t("stale.total", giving(total, total.open_uploads)));
    setText($("stale-expire"), t("stale.expire-all", { count: total.open_uploads }));
  }

  #describe() {
    const columns = [
      { key: "name", label: t("stale.name"), header: true, cell: (upload) => this.#named(upload) },
      { key: "user_id", label: t("users.user_id"), wide: true, cell: (upload) => userButton(upload.user_id, this.open) },
      { key: "updated_at", label: t("stale.since"), sort: "asc", wide: true, className: "moment", cell: (upload) => formatTime(upload.updated_at) },
      { key: "disk_bytes", label: t("stale.disk"), number: true, sort: "desc", cell: (upload) => formatBytes(upload.disk_bytes) },
      { key: "quota_bytes", label: t("stale.quota"), number: true, sort: "desc", className: "widest-only", cell: (upload) => formatBytes(upload.quota_bytes) },
      { key: "expire", label: "", number: true, cell: (upload) => expireButton(upload, () => this.#expireOne(upload)) },
    ];
    columns.at(-1).label = element("span", { class: "visually-hidden" }, t("stale.expire"));
    return { caption: t("stale.caption"), columns, none: t("stale.none") };
  }

  /** The name, and where there is no room for another column, the user below it. */
  #named({ name, user_id: userId }) {
    return element("div", {}, name, element("div", { class: "narrow-only" }, userButton(userId, this.open)));
  }

  async #expireOne(upload) {
    const expired = await expire(this.api, this.card, upload, this.#idleFor);
    if (expired === null) return;
    setText($("stale-outcome"), outcome(expired ? 1 : 0, expired ? 0 : 1));
    this.changed();
  }

  async #expireAll() {
    const { total } = this.#answer;
    const idleFor = this.#idleFor;
    const question = {
      title: t("stale.ask"), text: t("stale.ask-all", giving(total, total.open_uploads)),
      confirm: t("stale.expire-all", { count: total.open_uploads }), danger: true,
    };
    if (!(await confirmed(question))) return;
    $("stale-expire").disabled = true;
    let done = 0;
    const worked = await attempt(this.card, async () => {
      for await (const upload of this.#all(idleFor)) {
        if (await expireOnce(this.api, upload, idleFor)) done += 1;
        setText($("stale-outcome"), t("stale.going", { done, count: total.open_uploads }));
      }
    });
    $("stale-expire").disabled = false;
    setText($("stale-outcome"), outcome(done, worked ? Math.max(0, total.open_uploads - done) : 0));
    // What went wrong stays to be read; this card is renewed with the next refresh.
    await this.changed({ keepError: !worked });
    if (document.activeElement === document.body) $("stale-idle").focus();
  }

  /** All that match, each once. */
  async *#all(idleFor) {
    let after = null;
    do {
      const query = new URLSearchParams({ idle_for: idleFor });
      const { uploads, next } = await pageOf(this.api, "/admin/uploads", query, { after, limit: ALL_PAGE });
      yield* uploads;
      after = next;
    } while (after);
  }
}

function idleInWords(seconds) {
  if (seconds === 0) return t("stale.any");
  return seconds < 24 * HOUR ? t("stale.hours", { count: seconds / HOUR }) : t("stale.days", { count: seconds / (24 * HOUR) });
}

/** What became of the uploads that were to be expired. */
export function outcome(done, spared) {
  const words = [];
  if (done > 0 || spared === 0) words.push(t("stale.done", { count: done }));
  if (spared > 0) words.push(t("stale.spared", { count: spared }));
  return words.join(" ");
}

function giving(upload, count) {
  return { count, disk: formatBytes(upload.disk_bytes), quota: formatBytes(upload.quota_bytes) };
}

export function expireButton(upload, onclick) {
  const label = t("stale.expire-one", { name: upload.name, user: upload.user_id });
  return element("button", { type: "button", class: "small", "aria-label": label, "data-expire": upload.upload_id, onclick }, t("stale.expire"));
}

/** Whether it was expired now; null if the person did not want it after all, or it went wrong. */
export async function expire(api, card, upload, idleFor) {
  const { name, user_id: user } = upload;
  const text = t("stale.ask-one", { name, user, ...giving(upload, 1) });
  if (!(await confirmed({ title: t("stale.ask"), text, confirm: t("stale.expire"), danger: true }))) return null;
  let expired = null;
  await attempt(card, async () => {
    expired = await expireOnce(api, upload, idleFor);
  });
  return expired;
}

async function expireOnce(api, { upload_id: id }, idleFor) {
  try {
    await api.request("DELETE", `/admin/uploads/${id}?idle_for=${idleFor}`);
    return true;
  } catch (problem) {
    if (problem instanceof Problem && PASSED.has(problem.code)) return false;
    throw problem;
  }
}
