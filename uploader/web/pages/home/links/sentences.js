// What a link is and what came of it, for people.

import { formatBytes, formatTime } from "../../format.js";
import { t } from "../../i18n.js";

/** Which kind, what came by it, of how much, and until when. */
export function saidOf(link) {
  const { kind, downloads, files, bytes, max_downloads: mostDownloads, max_files: mostFiles, max_bytes: mostBytes } = link;
  const of = (text, most) => (most ? t("links.of", { text, most }) : text);
  const came = kind === "upload"
    ? [of(t("links.files", { count: files }), mostFiles), of(formatBytes(bytes), mostBytes && formatBytes(mostBytes))]
    : [of(t("links.downloads", { count: downloads }), mostDownloads)];
  const isOver = Date.parse(link.expires_at) <= Date.now();
  const until = t(isOver ? "links.expired" : "links.until", { time: formatTime(link.expires_at) });
  return [t(`links.${kind}`), ...came, link.has_password && t("links.password"), until].filter(Boolean).join(" · ");
}
