// What uploads do at the moment, for people: one file, a folder, all together.

import { formatBytes, formatDay, formatDuration, formatPercent, formatRate } from "../../format.js";
import { t } from "../../i18n.js";
import { messageOf } from "../../problems.js";

const joined = (parts) => parts.filter((part) => part !== null).join(" · ");

// One file

export function ofTransfer(transfer) {
  const size = formatBytes(transfer.size);
  switch (transfer.phase) {
    case "waiting":
      return joined([size, waiting(transfer)]);
    case "complete":
      return joined([size, t(completed(transfer))]);
    case "failed":
      return messageOf(transfer.problem);
    case "asked":
    case "cancelled":
    case "skipped":
      return t(`phase.${transfer.phase}`);
    case "unfinished":
      return joined([received(transfer), t("phase.unfinished", { until: formatDay(transfer.expected.expires_at) })]);
    case "elsewhere":
      return elsewhere(transfer);
    default:
      return moving(transfer, size);
  }
}

function received({ doneBytes, size }) {
  return t("phase.received", { received: formatBytes(doneBytes), size: formatBytes(size) });
}

function left(seconds) {
  return seconds === null ? null : t("phase.left", { time: formatDuration(seconds) });
}

function waiting({ retry, paused }) {
  return retry ? retrying(retry) : t(paused ? "phase.paused" : "phase.waiting");
}

function retrying(problem) {
  return `${messageOf(problem)} ${t("phase.retrying")}`;
}

function completed({ unchanged, made }) {
  if (made.held) return "phase.held";
  if (unchanged) return "phase.there";
  return made.instant ? "phase.instant" : "phase.complete";
}

function elsewhere(transfer) {
  if (transfer.expected.state === "merging") return joined([received(transfer), t("phase.merging")]);
  return joined([received(transfer), t("phase.elsewhere"), left(transfer.secondsLeft)]);
}

export function isHashing(transfer) {
  return transfer.isRunning && transfer.hashedBytes < transfer.size && ["hashing", "uploading"].includes(transfer.phase);
}

function moving(transfer, size) {
  const parts = [transfer.phase === "uploading" ? received(transfer) : size];
  if (transfer.retry) return joined([...parts, retrying(transfer.retry)]);
  if (transfer.paused) parts.push(t("phase.paused"));
  else if (transfer.phase === "merging") parts.push(t("phase.merging"));
  else if (transfer.phase === "uploading" && transfer.rate.perSecond > 0) {
    parts.push(formatRate(transfer.rate.perSecond), left(transfer.secondsLeft));
  }
  if (isHashing(transfer)) {
    parts.push(t("phase.hashing", { percent: formatPercent(transfer.hashedBytes, transfer.size) }));
    if (transfer.phase === "hashing" && !transfer.paused) parts.push(left(transfer.hashSecondsLeft));
  }
  return joined(parts);
}

// Several

/** Of a folder, from what its files come to. */
export function ofFolder(sum) {
  const parts = [filesOf(sum), ...told(sum), sizeOf(sum)];
  if (sum.going && sum.going === sum.paused) parts.push(t("phase.paused"));
  return joined(parts);
}

/** Of all, in full. */
export function ofAll(totals) {
  return totals.count ? joined([filesOf(totals), ...told(totals), sizeOf(totals), ...progress(totals)]) : "";
}

function filesOf({ complete, count }) {
  return t("total.files", { done: complete, count });
}

function sizeOf({ going, done, size }) {
  return going ? t("phase.received", { received: formatBytes(done), size: formatBytes(size) }) : formatBytes(size);
}

function told({ failed, asked, there, held, skipped }) {
  const said = { failed, asked, there, held, skipped };
  return Object.entries(said).map(([key, count]) => counted(`total.${key}`, count));
}

function counted(key, count) {
  return count ? t(key, { count }) : null;
}

function progress(totals) {
  if (totals.isOffline) return [t("total.offline")];
  if (!totals.going) return [];
  if (totals.going === totals.paused) return [t("phase.paused")];
  if (totals.perSecond > 0) return [formatRate(totals.perSecond)];
  if (totals.hashSecondsLeft !== null) return [t("total.hashing", { time: formatDuration(totals.hashSecondsLeft) })];
  return totals.isStalled ? [t("total.stalled")] : [];
}

/** The head of the tray: `{title, detail}`, as brief as can be. */
export function ofHead(totals) {
  const { count, complete, going, paused, failed, asked, there } = totals;
  if (going) return { title: t(going === paused ? "head.paused" : "head.going", { count: going }), detail: joined([counted("total.asked", asked), counted("total.failed", failed), brief(totals)]) };
  const detail = joined([count > complete + failed ? counted("total.complete", complete) : null, ...told(totals)]);
  if (asked) return { title: t("head.asked", { count: asked }), detail };
  if (failed) return { title: t("head.failed", { count: failed }), detail: filesOf(totals) };
  if (complete) return { title: t(there === complete ? "head.there" : "head.complete", { count: complete }), detail: ofDone(totals) };
  if (totals.elsewhere) return { title: t("head.elsewhere"), detail: counted("total.elsewhere", totals.elsewhere) };
  if (totals.unfinished) return { title: t("head.unfinished", { count: totals.unfinished }), detail: t("head.choose") };
  return { title: t("transfers.title"), detail };
}

function ofDone(totals) {
  const { there, complete, size } = totals;
  return joined([formatBytes(size), ...told({ ...totals, there: there < complete ? there : 0 })]);
}

function brief(totals) {
  if (totals.isOffline) return t("total.offline");
  const percent = formatPercent(totals.done, totals.size);
  if (totals.going === totals.paused) return percent;
  if (totals.perSecond > 0) return joined([percent, left(totals.secondsLeft)]);
  if (totals.hashSecondsLeft !== null) return joined([percent, t("total.hashing", { time: formatDuration(totals.hashSecondsLeft) })]);
  return totals.isStalled ? joined([percent, t("total.stalled")]) : percent;
}

/** The title of the window. */
export function ofWindow({ going, done, size, failed, asked }) {
  const parts = [counted("total.failed", failed), counted("total.asked", asked)];
  if (going) parts.push(formatPercent(done, size));
  return joined([...parts, "uploader"]);
}
