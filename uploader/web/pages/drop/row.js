// One line of <uploader-drop>: a file on its way, or an upload that waits for its file.

import { element, icon, setAttribute, setText } from "../dom.js";
import { formatBytes, formatDuration, formatPercent } from "../format.js";
import { t } from "../i18n.js";
import { messageOf } from "../problems.js";

const ICONS = { pause: "pause", resume: "resume", cancel: "cancel", retry: "retry", remove: "cancel" };

export class Row {
  #buttons = {};

  /** `act(action)` is called for `pause`, `resume`, `cancel`, `retry` and `remove`. */
  constructor(act) {
    this.name = element("span", { class: "name", part: "name" });
    this.fill = element("div", { part: "progress" });
    this.bar = element("div", { class: "bar", part: "bar", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100 }, this.fill);
    this.status = element("span", { class: "status", part: "status" });
    for (const [action, picture] of Object.entries(ICONS)) {
      this.#buttons[action] = element("button", { type: "button", part: "action", hidden: true, onclick: () => act(action) }, icon(picture));
    }
    this.node = element("li", { part: "row" }, this.name, ...Object.values(this.#buttons), this.bar, this.status);
  }

  /** As the client has them; `outcome`: null while it goes on. */
  show(progress, outcome) {
    const problem = outcome?.problem ?? null;
    const { name, size, state, paused, sentBytes, hashedBytes, secondsLeft, retrying } = progress;
    const percent = formatPercent(sentBytes, size);
    const facts = { size: formatBytes(size), percent };
    let text = t(outcome?.file?.held ? "drop.held" : `drop.${state}`, facts);
    if (problem) text = messageOf(problem);
    else if (retrying) text = t("drop.retrying", { reason: messageOf(retrying) });
    else if (paused && state !== "complete") text = t("drop.paused", facts);
    else if (state === "hashing") text = t("drop.hashing", { percent: formatPercent(hashedBytes, size) });
    else if (state === "uploading" && secondsLeft !== null) text = t("drop.uploading-left", { ...facts, left: formatDuration(secondsLeft) });
    const isOver = state === "complete" || problem !== null;
    const shown = isOver ? [problem && outcome.source && "retry", "remove"] : [paused ? "resume" : "pause", "cancel"];
    this.#draw(name, size === 0 ? 1 : sentBytes / size, text, problem !== null, shown);
    this.node.dataset.state = problem ? "failed" : state;
  }

  /** An open upload of the server, whose file is to be chosen again. */
  showUnfinished({ name, size, received_bytes: received }) {
    const facts = { size: formatBytes(size), percent: formatPercent(received, size) };
    this.#draw(name, received / size, t("drop.again", facts), false, ["cancel"]);
    this.node.dataset.state = "unfinished";
  }

  #draw(name, share, text, isError, shown) {
    const percent = Math.floor(100 * share);
    setText(this.name, name);
    setAttribute(this.name, "title", name);
    setAttribute(this.bar, "aria-valuenow", percent);
    setAttribute(this.bar, "aria-label", name);
    this.fill.style.width = `${percent}%`;
    setText(this.status, text);
    this.status.classList.toggle("error", isError);
    setAttribute(this.status, "part", isError ? "status error" : "status");
    for (const [action, button] of Object.entries(this.#buttons)) {
      button.hidden = !shown.includes(action);
      setAttribute(button, "aria-label", t(`drop.${action}`, { name }));
      setAttribute(button, "title", t(`drop.${action}`, { name }));
    }
  }
}
