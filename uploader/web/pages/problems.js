// Problems in words, for people.

import { Problem } from "./client/api.js";
import { formatBytes } from "./format.js";
import { has, language, t } from "./i18n.js";

const SIZES = ["total_space", "use_space_finished", "use_space_unfinished", "reserved", "requested", "available", "promised"];

/** What to tell a person: the page's own words for the code, else the server's. */
export function messageOf(problem) {
  if (!(problem instanceof Problem)) return t("problem.failed");
  const { code, detail, fields } = problem;
  const key = `problem.${code === "storage-full" && "limit" in fields ? "storage-too-small" : code}`;
  if (has(key)) return t(key, inWords(code, fields));
  return language() === "en" && detail ? detail : t("problem.other", { code });
}

function inWords(code, fields) {
  const values = { ...fields };
  for (const name of SIZES) if (typeof fields[name] === "number") values[name] = formatBytes(fields[name]);
  if (code === "quota-exceeded") {
    values.available = formatBytes(Math.max(0, fields.total_space - fields.use_space_finished - fields.reserved));
  }
  if (["file-too-large", "storage-full"].includes(code) && typeof fields.limit === "number") values.limit = formatBytes(fields.limit);
  if (code === "invalid-request") values.reason = (fields.errors ?? []).map(({ field, reason }) => `${field} ${reason}`).join("; ");
  if (code === "name-taken") values.taken = fields.taken ?? t("problem.this-name");
  if (code === "upload-gone") values.reason = has(`reason.${fields.reason}`) ? t(`reason.${fields.reason}`) : (fields.reason ?? "");
  return values;
}
