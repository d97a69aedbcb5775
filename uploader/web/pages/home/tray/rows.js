// How one upload is drawn, and how a folder of them: a name, what it does in words, its progress, its buttons.

import { element, icon, iconButton, setAttribute, setText } from "../../dom.js";
import { t } from "../../i18n.js";
import { isHashing, ofFolder, ofTransfer } from "./sentences.js";

const ACTIONS = ["answer", "choose", "pause", "resume", "retry", "cancel", "remove"];
const PICTURES = { remove: "cancel", answer: "asked" };
// Characters of a name that are never cut off.
const ENDING = 8;
const WITH_TEXT = new Set(["answer", "choose"]);
const MARKS = { complete: "done", failed: "failed", unfinished: "pause", asked: "asked", elsewhere: "elsewhere", skipped: "cancel" };

/** The buttons of a row. Most rows never need most of theirs: each is made when it is offered first, and keeps its place. */
class Buttons {
  #made = {};
  box = element("div", { class: "row-buttons" });

  /** `label(action)` is the name of a button, `press(action)` is called for it. */
  constructor(label, press) {
    Object.assign(this, { label, press });
  }

  offer(offered) {
    const focused = this.box.contains(document.activeElement) ? document.activeElement : null;
    for (const action of ACTIONS) {
      if (offered[action] && !this.#made[action]) this.#make(action);
      if (this.#made[action]) this.#made[action].hidden = !offered[action];
    }
    // A button that goes away leaves the keyboard to the one that takes its place.
    if (focused?.hidden) this.box.querySelector("button:not([hidden])")?.focus();
  }

  #make(action) {
    const visible = WITH_TEXT.has(action) ? t(`row.${action}-visible`) : null;
    const made = iconButton(PICTURES[action] ?? action, this.label(action), () => this.press(action), visible);
    const later = ACTIONS.slice(ACTIONS.indexOf(action) + 1).find((other) => this.#made[other]);
    this.box.insertBefore(made, this.#made[later] ?? null);
    this.#made[action] = made;
  }
}

function mark() {
  const node = element("span", { class: "mark" });
  const show = (picture) => {
    if (node.dataset.picture === picture) return;
    node.dataset.picture = picture;
    node.replaceChildren(icon(picture));
  };
  return { node, show };
}

function nameOf(path, title) {
  const [, parent, own] = /^(.*\/)?([^/]*)$/s.exec(path) ?? [null, "", path];
  return element("span", { class: "name", title }, parent && element("span", { class: "parent" }, parent),
    element("span", { class: "stem" }, own.slice(0, -ENDING)), element("span", { class: "ending" }, own.slice(-ENDING)));
}

/** `actions`: what each of ACTIONS does, called with a list of transfers. */
export function transferRow({ transfer, isBelow }, actions) {
  const { name } = transfer;
  const picture = mark();
  const words = element("span", { class: "words" });
  const sent = element("progress", { max: 1, value: 0, "aria-label": t("row.progress", { name }) });
  const hashed = element("progress", { class: "hashing", max: 1, value: 0, "aria-label": t("row.hashing", { name }) });
  const buttons = new Buttons((action) => t(`row.${action}`, { name }), (action) => actions[action]([transfer]));
  const shown = isBelow ? name.slice(transfer.folder.length + 1) : name;
  const what = element("div", { class: "what" }, nameOf(shown, name), sent, hashed, words);
  const root = element("div", { class: isBelow ? "row below" : "row" }, picture.node, what, buttons.box);

  function update() {
    const { phase, size } = transfer;
    setAttribute(root, "data-phase", transfer.paused ? "paused" : phase);
    picture.show(transfer.isHeld ? "held" : phase === "complete" && transfer.wasThere && !transfer.unchanged ? "instant" : (MARKS[phase] ?? "upload"));
    setText(words, ofTransfer(transfer));
    setAttribute(words, "title", transfer.problem || transfer.retry ? words.textContent : null);
    sent.hidden = ["failed", "asked", "cancelled", "skipped", "complete"].includes(phase);
    sent.value = size ? (phase === "merging" ? transfer.mergedBytes : transfer.doneBytes) / size : 0;
    hashed.hidden = !isHashing(transfer);
    hashed.value = size ? transfer.hashedBytes / size : 1;
    buttons.offer(offeredFor(transfer));
  }

  return { root, update };
}

/** Which buttons make sense now. */
function offeredFor(transfer) {
  const { phase, paused, canPause, needsFile } = transfer;
  const failed = phase === "failed";
  return {
    answer: phase === "asked",
    choose: phase === "unfinished" || needsFile,
    pause: canPause && !paused,
    resume: canPause && paused,
    retry: transfer.canRetry && !needsFile,
    cancel: !transfer.isOver || ["unfinished", "elsewhere", "asked"].includes(phase),
    remove: failed || phase === "complete" || phase === "skipped",
  };
}

/** `actions` as for one; `unfold(name)` shows or hides the files of the folder. */
export function folderRow({ folder: { name } }, actions, unfold) {
  let members = [];
  const picture = mark();
  const toggle = iconButton("fold", t("folder.show", { name }), () => unfold(name));
  const words = element("span", { class: "words" });
  const sent = element("progress", { max: 1, value: 0, "aria-label": t("folder.progress", { name }) });
  const label = (action) => t(action === "answer" ? "row.answer" : `folder.${action}`, { name });
  const buttons = new Buttons(label, (action) => actions[action](members));
  const what = element("div", { class: "what" }, nameOf(name, name), sent, words);
  const root = element("div", { class: "row folder" }, toggle, picture.node, what, buttons.box);
  picture.show("choose");

  function update({ folder, isUnfolded }) {
    const { sum, phase } = folder;
    members = folder.members;
    setAttribute(root, "data-phase", phase);
    setAttribute(toggle, "aria-expanded", isUnfolded);
    setText(words, ofFolder(sum));
    sent.hidden = sum.going === 0;
    sent.value = sum.size ? sum.done / sum.size : 0;
    buttons.offer({
      answer: sum.asked > 0,
      pause: sum.going > sum.paused,
      resume: sum.paused > 0,
      retry: sum.retryable > 0,
      cancel: sum.going > 0,
      remove: sum.going === 0 && sum.asked === 0,
    });
  }

  return { root, update };
}
