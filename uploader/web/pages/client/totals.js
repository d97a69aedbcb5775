// What all files on their way come to together.

const NOT_COUNTED = new Set(["unfinished", "elsewhere", "cancelled", "skipped"]);

/** `rate` is that of bytes that leave, `hashRate` that of bytes that are hashed. */
export function totalsOf(transfers, { rate, hashRate }) {
  const totals = sumOf(transfers);
  const perSecond = rate.perSecond;
  const hashSecondsLeft = secondsOf(totals.toHash, hashRate.perSecond);
  const sendSecondsLeft = secondsOf(totals.size - totals.done, perSecond);
  const secondsLeft = sendSecondsLeft === null ? null : Math.max(sendSecondsLeft, hashSecondsLeft ?? 0);
  const isStalled = totals.sending > 0 && rate.isStalled && !hashRate.perSecond;
  return { ...totals, perSecond, secondsLeft, hashSecondsLeft, isStalled };
}

/** The same, without the rates. */
export function sumOf(transfers) {
  const sum = { count: 0, complete: 0, there: 0, failed: 0, asked: 0, skipped: 0, unfinished: 0, elsewhere: 0, held: 0, retryable: 0 };
  Object.assign(sum, { going: 0, paused: 0, running: 0, sending: 0, size: 0, done: 0, toHash: 0, isOffline: false });
  for (const transfer of transfers) add(sum, transfer);
  return sum;
}

function add(totals, transfer) {
  const { phase, size } = transfer;
  if (phase in totals) totals[phase] += 1;
  if (NOT_COUNTED.has(phase)) return;
  totals.count += 1;
  totals.there += transfer.wasThere;
  totals.held += transfer.isHeld;
  totals.retryable += transfer.canRetry;
  if (phase === "failed" || phase === "asked") return;
  totals.size += size;
  totals.done += transfer.doneBytes;
  if (transfer.isOver) return;
  totals.going += 1;
  totals.paused += transfer.paused;
  totals.running += phase !== "waiting" && !transfer.paused;
  totals.sending += phase === "uploading" && !transfer.paused;
  if (transfer.hashesAlone && !transfer.paused) totals.toHash += Math.max(0, size - transfer.hashedBytes);
  totals.isOffline ||= transfer.retry?.code === "unreachable";
}

function secondsOf(bytes, perSecond) {
  return perSecond > 0 ? bytes / perSecond : null;
}
