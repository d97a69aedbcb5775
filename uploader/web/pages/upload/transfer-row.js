// How one transfer is drawn: its name, what it does in words, its progress, its buttons.

import { element, icon, iconButton, setAttribute, setText } from "../dom.js";
import { formatBytes, formatDay, formatDuration, formatPercent, formatRate } from "../format.js";
import { t } from "../i18n.js";
import { messageOf } from "../problems.js";

const ACTIONS = ["choose", "pause", "resume", "retry", "cancel", "remove"];
const PICTURES = { remove: "cancel" };
const MARKS = { complete: "done", failed: "failed", unfinished: "pause" };

/** A row; `actions`: {pause, resume, cancel, retry, choose, remove}, each called with the transfer. */
export function transferRow(transfer, actions) {
  const mark = element("span", { class: "mark" });
  const name = element("span", { class: "name", title: transfer.name }, transfer.name);
  const words = element("span", { class: "words" });
  const sent = element("progress", { max: 1, value: 0, "aria-label": t("row.progress", { name: transfer.name }) });
  const hashed = element("progress", { class: "hashing", max: 1, value: 0, "aria-label": t("row.hashing", { name: transfer.name }) });
  const box = element("div", { class: "row-buttons" });
  const buttons = {};
  const root = element("div", { class: "row" },
    mark,
    element("div", { class: "what" }, name, sent, hashed, words),
    box,
  );

  /** Most rows never need most of their buttons: each is made when it is offered first, and keeps its place. */
  function offer(action) {
    const visible = action === "choose" ? t("row.choose-visible") : null;
    const label = t(`row.${action}`, { name: transfer.name });
    buttons[action] = iconButton(PICTURES[action] ?? action, label, () => actions[action](transfer), visible);
    const later = ACTIONS.slice(ACTIONS.indexOf(action) + 1).find((other) => buttons[other]);
    box.insertBefore(buttons[action], buttons[later] ?? null);
  }

  function update() {
    setAttribute(root, "data-phase", transfer.paused ? "paused" : transfer.phase);
    const picture = transfer.made?.instant && !transfer.unchanged && transfer.phase === "complete" ? "instant" : (MARKS[transfer.phase] ?? "upload");
    if (mark.dataset.picture !== picture) {
      mark.dataset.picture = picture;
      mark.replaceChildren(icon(picture));
    }
    setText(words, wordsOf(transfer));
    setAttribute(words, "title", transfer.problem || transfer.retry ? words.textContent : null);
    const merging = transfer.phase === "merging";
    sent.hidden = transfer.phase === "failed" || transfer.phase === "cancelled";
    sent.value = transfer.size ? (merging ? transfer.mergedBytes : transfer.doneBytes) / transfer.size : Number(transfer.phase === "complete");
    hashed.hidden = !hashes(transfer);
    hashed.value = transfer.size ? transfer.hashedBytes / transfer.size : 1;
    const offers = offered(transfer);
    for (const action of ACTIONS) {
      if (offers[action] && !buttons[action]) offer(action);
      if (buttons[action]) buttons[action].hidden = !offers[action];
    }
  }

  return { root, update };
}

/** Which buttons make sense now. */
function offered(transfer) {
  const failed = transfer.phase === "failed";
  return {
    choose: transfer.phase === "unfinished" || transfer.needsFile,
    pause: transfer.canPause && !transfer.paused,
    resume: transfer.canPause && transfer.paused,
    retry: failed && !transfer.needsFile,
    cancel: !transfer.isOver || transfer.phase === "unfinished",
    remove: failed || transfer.phase === "complete",
  };
}

function hashes(transfer) {
  return transfer.isRunning && transfer.hashedBytes < transfer.size && ["hashing", "uploading"].includes(transfer.phase);
}

/** What it does at the moment, for people. */
function wordsOf(transfer) {
  const size = formatBytes(transfer.size);
  switch (transfer.phase) {
    case "waiting":
      return [size, waiting(transfer)].join(" · ");
    case "complete":
      return [size, t(completed(transfer))].join(" · ");
    case "failed":
      return messageOf(transfer.problem);
    case "cancelled":
      return t("phase.cancelled");
    case "unfinished":
      return unfinished(transfer);
    default:
      return moving(transfer, size);
  }
}

function waiting({ retry, paused }) {
  return retry ? `${messageOf(retry)} ${t("phase.retrying")}` : t(paused ? "phase.paused" : "phase.waiting");
}

function completed({ unchanged, made }) {
  if (unchanged) return "phase.there";
  return made.instant ? "phase.instant" : "phase.complete";
}

function unfinished({ expected, receivedBytes, size }) {
  const received = t("phase.received", { received: formatBytes(receivedBytes), size: formatBytes(size) });
  if (expected.state === "merging") return [received, t("phase.merging")].join(" · ");
  return [received, t("phase.unfinished", { until: formatDay(expected.expires_at) })].join(" · ");
}

function moving(transfer, size) {
  const parts = [];
  if (transfer.phase === "uploading") parts.push(t("phase.received", { received: formatBytes(transfer.doneBytes), size }));
  else parts.push(size);
  if (transfer.retry) return [...parts, `${messageOf(transfer.retry)} ${t("phase.retrying")}`].join(" · ");
  if (transfer.paused) parts.push(t("phase.paused"));
  else if (transfer.phase === "merging") parts.push(t("phase.merging"));
  else if (transfer.phase === "uploading" && transfer.rate.perSecond > 0) {
    parts.push(formatRate(transfer.rate.perSecond));
    if (transfer.secondsLeft !== null) parts.push(t("phase.left", { time: formatDuration(transfer.secondsLeft) }));
  }
  if (hashes(transfer)) parts.push(t("phase.hashing", { percent: formatPercent(transfer.hashedBytes, transfer.size) }));
  return parts.join(" · ");
}
