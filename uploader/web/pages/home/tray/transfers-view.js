// The tray at the lower right: files on their way, what they come to together, and the buttons for all of them. It can be
// folded to its head, and goes when there is nothing left to tell.

import "./words.js";
import { carriesFiles, fromInput } from "../../client/picking.js";
import { confirmed } from "../../dialogs.js";
import { setAttribute, setText } from "../../dom.js";
import { onLanguage, t } from "../../i18n.js";
import { VirtualList } from "../../virtual-list.js";
import { arranged } from "./arranging.js";
import { folderRow, transferRow } from "./rows.js";
import { ofAll, ofHead, ofWindow } from "./sentences.js";

// It is for reading, and ten thousand rows are summed up for it.
const DRAW_EVERY_MS = 200;
// Rates go down and other devices go on even where nothing happens here.
const TICK_MS = 1000;
const LOOK_EVERY_MS = 2000;
// Files that turn out to be others in the next moment are asked about together.
const GATHER_MS = 250;

const $ = (id) => document.getElementById(id);

export class TransfersView {
  #timer = 0;
  #drawnAt = 0;
  #asking = 0;
  #unfolded = new Set(); // names of folders
  #totals;

  /** `tell(text)` reads a text out; `question` asks what becomes of names that are taken, where that is the person's to say. */
  constructor(transfers, { tell, question = null }) {
    Object.assign(this, { transfers, tell, question });
    this.#totals = transfers.totals();
    const actions = this.#actions();
    this.list = new VirtualList($("transfer-list"), {
      make: (item) => (item.folder ? folderRow(item, actions, (name) => this.#unfold(name)) : transferRow(item, actions)),
      key: ({ key }) => key,
    });
    for (const type of ["list", "change"]) transfers.addEventListener(type, () => this.#soon());
    transfers.addEventListener("asked", () => this.#askSoon());
    this.#listen();
    setInterval(() => this.#tick(), TICK_MS);
    setInterval(() => this.#look(), LOOK_EVERY_MS);
    onLanguage(() => {
      this.list.redraw();
      this.#draw();
    });
  }

  /** What the buttons of rows do, each with the transfers of its row. */
  #actions() {
    const { transfers } = this;
    return {
      answer: (some) => this.question?.open(some),
      choose: ([transfer]) => this.#choose(transfer),
      pause: (some) => transfers.setPaused(some, true),
      resume: (some) => transfers.setPaused(some, false),
      retry: (some) => transfers.retry(some),
      remove: (some) => transfers.remove(...some),
      cancel: (some) => (some.length === 1 ? this.#cancel(some[0]) : this.#cancelAll(some)),
    };
  }

  /** Ask the person for the file of an upload. */
  #choose(transfer) {
    const input = $("again-input");
    input.onchange = () => {
      const [file] = input.files;
      input.value = "";
      if (file) this.transfers.goOn(transfer, file);
    };
    input.click();
  }

  #listen() {
    const { transfers } = this;
    const presses = {
      "tray-fold": () => this.#fold(!this.#isFolded),
      "tray-close": () => transfers.dismiss(),
      "answer-all": () => this.question?.open(),
      "pause-all": () => transfers.setPaused(transfers.all, true),
      "resume-all": () => transfers.setPaused(transfers.all, false),
      "retry-all": () => transfers.retry(),
      "clear-done": () => transfers.clear(),
      "cancel-all": () => this.#cancelAll(transfers.all),
    };
    for (const [id, press] of Object.entries(presses)) $(id).addEventListener("click", press);
    $("transfers").addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || this.#isFolded) return;
      event.preventDefault();
      this.#fold(true);
      $("tray-fold").focus();
    });
  }

  // Folding

  get #isFolded() {
    return $("tray-body").hidden;
  }

  #fold(isFolded) {
    $("tray-body").hidden = isFolded;
    $("tray-fold").setAttribute("aria-expanded", !isFolded);
  }

  #unfold(name) {
    if (!this.#unfolded.delete(name)) this.#unfolded.add(name);
    this.#draw();
  }

  // Drawing

  #soon() {
    if (this.#timer) return;
    const wait = Math.max(0, this.#drawnAt + DRAW_EVERY_MS - performance.now());
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.#draw();
    }, wait);
  }

  #tick() {
    if (this.#totals.going || this.#totals.elsewhere) this.#soon();
  }

  #look() {
    if (document.visibilityState === "hidden" || !this.transfers.isWatching) return;
    this.transfers.look().catch(() => {}); // the next look will tell
  }

  #draw() {
    this.#drawnAt = performance.now();
    this.#totals = this.transfers.totals();
    this.#show(this.transfers.all.length > 0);
    this.list.items = arranged(this.transfers.all, this.#unfolded);
    this.#drawHead(this.#totals);
    this.#drawButtons(this.#totals);
    setText($("total-words"), ofAll(this.#totals));
    document.title = ofWindow(this.#totals);
  }

  #show(isShown) {
    const tray = $("transfers");
    if (tray.hidden === !isShown) return;
    const hadFocus = tray.contains(document.activeElement);
    tray.hidden = !isShown;
    if (isShown) this.#fold(false);
    else if (hadFocus) $("main").focus({ preventScroll: true });
  }

  #drawHead(totals) {
    const { title, detail } = ofHead(totals);
    setText($("tray-title"), title);
    setText($("tray-detail"), detail);
    setAttribute($("transfers"), "data-state", stateOf(totals));
    const sum = $("total-progress");
    sum.hidden = totals.going === 0;
    sum.value = totals.size ? totals.done / totals.size : 0;
  }

  #drawButtons(totals) {
    const { going, paused, retryable, asked, complete, skipped } = totals;
    const focused = $("transfers").contains(document.activeElement) ? document.activeElement : null;
    $("answer-all").hidden = asked === 0;
    $("pause-all").hidden = going === paused;
    $("resume-all").hidden = paused === 0;
    $("retry-all").hidden = retryable === 0;
    $("cancel-all").hidden = going === 0;
    $("clear-done").hidden = complete + skipped === 0;
    $("tray-close").hidden = going + asked + totals.elsewhere > 0;
    if (focused?.hidden) ($("tray-buttons").querySelector("button:not([hidden])") ?? $("tray-fold")).focus();
  }

  // Questions

  #askSoon() {
    this.#asking ||= setTimeout(() => {
      this.#asking = 0;
      this.question?.open();
    }, GATHER_MS);
  }

  async #cancel(transfer) {
    const asks = ["unfinished", "elsewhere"].includes(transfer.phase) || transfer.receivedBytes > 0;
    const { name } = transfer;
    const question = { title: t("cancel.title"), text: t("cancel.text", { name }), confirm: t("cancel.confirm"), danger: true };
    if (asks && !(await confirmed(question))) return;
    try {
      await this.transfers.cancel(transfer);
    } catch {
      this.tell(t("cancel.failed", { name }));
    }
  }

  async #cancelAll(some) {
    const count = some.filter((transfer) => !transfer.isOver).length;
    const question = { title: t("cancel.all-title"), text: t("cancel.all-text", { count }), confirm: t("cancel.confirm"), danger: true };
    if (await confirmed(question)) await this.transfers.cancelAll(some);
  }
}

function stateOf({ going, failed, asked, isOffline, complete, elsewhere }) {
  if (isOffline) return "offline";
  if (going) return asked || failed ? "attention" : "going";
  if (asked || failed) return "needed";
  if (elsewhere) return "going";
  return complete ? "done" : "waiting";
}

/** How files get to a page: `take(batches)` gets what is chosen, `takeFrom(dataTransfer)` what is dropped or pasted; `words()`
 * says what becomes of files that are dragged above the page, null where they are not taken. */
export function listenForFiles(transfers, { take, takeFrom, words }) {
  for (const [button, input] of [["choose-files", "files-input"], ["choose-folder", "folder-input"]]) {
    $(button).addEventListener("click", () => $(input).click());
    $(input).addEventListener("change", () => {
      take(fromInput($(input)));
      $(input).value = "";
    });
  }
  // What the drag is above: an element is left after the next one is entered, or without a word when it goes from the page.
  let below = [];
  const above = (elements) => {
    below = elements.filter((each) => each.isConnected);
    const said = below.length > 0 && words();
    if (said) setText($("curtain-words"), said);
    $("curtain").hidden = !said;
  };
  const listen = (type, act) => addEventListener(type, (event) => {
    const data = event.dataTransfer ?? event.clipboardData;
    if (carriesFiles(data)) act(event, data);
  });
  listen("dragleave", ({ target }) => above(below.filter((each) => each !== target)));
  listen("dragover", (event) => event.preventDefault());
  listen("dragenter", (event) => {
    event.preventDefault(); // or what is dropped at once, before it moved above the element, would not come
    above([...below, event.target]);
  });
  const arrive = (event, data) => {
    event.preventDefault();
    above([]);
    takeFrom(data);
  };
  listen("drop", arrive);
  listen("paste", arrive);
  addEventListener("beforeunload", (event) => {
    if (transfers.totals().going) event.preventDefault();
  });
}
