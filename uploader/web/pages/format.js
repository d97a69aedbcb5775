// Figures as people read them, in the language of the page.

import { format, t } from "./i18n.js";

/** Units of sizes, the largest first. */
export const SIZE_UNITS = [..."PTGMK"].flatMap((letter, number) => [
  { unit: `${letter}iB`, factor: 1024 ** (5 - number), isBinary: true },
  { unit: `${letter}B`, factor: 1000 ** (5 - number), isBinary: false },
]);
const MOST_EXACT = 10_000;

export function formatCount(count) {
  return format("NumberFormat").format(count);
}

/** 1,536 becomes "1.5 KiB": exact in the largest unit in which it is short, else in binary with one decimal. */
export function formatBytes(bytes) {
  const size = Math.abs(bytes);
  if (size < 1000) return inUnit(bytes, "B", 0);
  for (const { unit, factor, isBinary } of SIZE_UNITS) {
    const value = size / factor;
    const isExact = Number.isInteger(isBinary ? value * 10 : value);
    if (value >= 1 && value < MOST_EXACT && isExact) return inUnit(bytes / factor, unit, Number.isInteger(value) ? 0 : 1);
  }
  const binary = SIZE_UNITS.filter((each) => each.isBinary);
  const { unit, factor } = binary.findLast((each) => size / each.factor < 1023.95) ?? binary[0];
  return inUnit(bytes / factor, unit, 1);
}

function inUnit(value, unit, digits) {
  return `${format("NumberFormat", { minimumFractionDigits: digits, maximumFractionDigits: digits }).format(value)} ${unit}`;
}

export function formatRate(bytesPerSecond) {
  return `${formatBytes(bytesPerSecond)}/s`;
}

/** Rounded to what matters: "2 h 5 min", "3 min 20 s", "8 s". */
export function formatDuration(seconds) {
  const whole = Math.max(1, Math.round(seconds));
  if (whole < 60) return t("duration.s", { s: whole });
  if (whole < 3600) return t("duration.min", { min: Math.floor(whole / 60), s: whole % 60 });
  const hours = Math.floor(whole / 3600);
  if (hours < 48) return t("duration.h", { h: hours, min: Math.floor((whole % 3600) / 60) });
  return t("duration.days", { days: Math.round(hours / 24) });
}

export function formatPercent(part, whole) {
  const share = whole > 0 ? part / whole : 1;
  // Nothing is called finished before it is.
  const shown = share < 1 ? Math.min(share, 0.99) : 1;
  return format("NumberFormat", { style: "percent", maximumFractionDigits: 0 }).format(shown);
}

export function formatDay(text) {
  return format("DateTimeFormat", { dateStyle: "medium" }).format(new Date(text));
}

export function formatTime(text) {
  const options = { dateStyle: "medium", timeStyle: "short" };
  return format("DateTimeFormat", options).format(new Date(text));
}
