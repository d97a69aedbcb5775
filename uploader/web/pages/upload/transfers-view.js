// The list of files on their way, what they come to together, and the buttons for all of them.

import { confirmed } from "../dialogs.js";
import { setText } from "../dom.js";
import { formatBytes, formatDuration, formatRate } from "../format.js";
import { onLanguage, t } from "../i18n.js";
import { transferRow } from "./transfer-row.js";
import { VirtualList } from "../virtual-list.js";

// Totals are for reading, and ten thousand rows are summed up for them.
const TOTALS_EVERY_MS = 250;

const $ = (id) => document.getElementById(id);

export class TransfersView {
  #totalsTimer = 0;

  /** `choose(transfer)` asks the person for the file of an upload; `tell(text)` reads a text out. */
  constructor(transfers, { choose, tell }) {
    Object.assign(this, { transfers, tell });
    const actions = {
      pause: (transfer) => transfers.setPaused(transfer, true),
      resume: (transfer) => transfers.setPaused(transfer, false),
      retry: (transfer) => transfers.retry(transfer),
      remove: (transfer) => transfers.remove(transfer),
      cancel: (transfer) => this.#cancel(transfer),
      choose,
    };
    this.list = new VirtualList($("transfer-list"), {
      make: (transfer) => transferRow(transfer, actions),
      key: (transfer) => transfer.id,
    });
    transfers.addEventListener("list", () => this.#drawList());
    transfers.addEventListener("change", () => this.#draw());
    $("pause-all").addEventListener("click", () => transfers.setAllPaused(true));
    $("resume-all").addEventListener("click", () => transfers.setAllPaused(false));
    $("retry-all").addEventListener("click", () => transfers.retryAll());
    $("clear-done").addEventListener("click", () => transfers.clear());
    $("cancel-all").addEventListener("click", () => this.#cancelAll());
    onLanguage(() => {
      this.list.redraw();
      this.#drawTotals();
    });
  }

  #drawList() {
    $("transfers").hidden = this.transfers.all.length === 0;
    this.list.items = this.transfers.listed();
    this.#draw();
  }

  #draw() {
    this.list.refresh();
    this.#totalsTimer ||= setTimeout(() => {
      this.#totalsTimer = 0;
      this.list.items = this.transfers.listed();
      this.#drawTotals();
    }, TOTALS_EVERY_MS);
  }

  #drawTotals() {
    const totals = this.transfers.totals();
    $("total").hidden = totals.count === 0;
    $("total-progress").value = totals.size ? totals.done / totals.size : Number(totals.going === 0);
    setText($("total-words"), inWords(totals));
    $("total").dataset.offline = totals.offline;
    $("pause-all").hidden = totals.going === totals.paused;
    $("resume-all").hidden = totals.paused === 0;
    $("retry-all").hidden = totals.failed === 0;
    $("cancel-all").hidden = totals.going === 0;
    $("clear-done").hidden = totals.complete === 0;
    document.title = totals.going ? `${Math.floor((100 * totals.done) / Math.max(1, totals.size))} % · uploader` : "uploader";
  }

  async #cancel(transfer) {
    const asks = transfer.phase === "unfinished" || transfer.receivedBytes > 0;
    const { name } = transfer;
    const question = { title: t("cancel.title"), text: t("cancel.text", { name }), confirm: t("cancel.confirm"), danger: true };
    if (asks && !(await confirmed(question))) return;
    try {
      await this.transfers.cancel(transfer);
    } catch {
      this.tell(t("cancel.failed", { name }));
    }
  }

  async #cancelAll() {
    const count = this.transfers.totals().going;
    const question = { title: t("cancel.all-title"), text: t("cancel.all-text", { count }), confirm: t("cancel.confirm"), danger: true };
    if (await confirmed(question)) await this.transfers.cancelAll();
  }
}

function inWords(totals) {
  const parts = [t("total.files", { done: totals.complete, count: totals.count })];
  if (totals.going) parts.push(t("phase.received", { received: formatBytes(totals.done), size: formatBytes(totals.size) }));
  if (totals.failed) parts.push(t("total.failed", { count: totals.failed }));
  if (totals.offline) return [...parts, t("total.offline")].join(" · ");
  if (totals.going && totals.going === totals.paused) return [...parts, t("phase.paused")].join(" · ");
  if (totals.going && totals.perSecond > 0) {
    parts.push(formatRate(totals.perSecond));
    if (totals.secondsLeft !== null) parts.push(t("phase.left", { time: formatDuration(totals.secondsLeft) }));
  }
  return parts.join(" · ");
}
