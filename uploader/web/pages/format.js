// Figures as people read them, in the language of the page.

import { format, t } from "./i18n.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function formatCount(count) {
  return format("NumberFormat").format(count);
}

/** 1,536 becomes "1.5 KiB". */
export function formatBytes(bytes) {
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : 1;
  return `${format("NumberFormat", { maximumFractionDigits: digits }).format(value)} ${UNITS[unit]}`;
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
