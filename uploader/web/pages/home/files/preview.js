// A look into a file: pictures, films, sound and PDF by a link that works for a while, text as text. Pages and SVG are text
// here, whatever they would like to be.

import { element, iconButton, setText } from "../../dom.js";
import { formatBytes, formatTime } from "../../format.js";
import { t } from "../../i18n.js";
import { messageOf } from "../../problems.js";
import { pictureOf, shownAs } from "./kinds.js";
import { showModal } from "./modal.js";
import { glyph, picture } from "./pictures.js";

const TEXT_BYTES = 256 * 1024;
// A film may be looked at for longer than a link works by itself.
const LINK_SECONDS = 6 * 3600;

/** What the files of a person hold: {text(key, headers), link(key)}. */
export function contentsOf(api) {
  return {
    text: (key, headers) => api.request("GET", `/me/files/${key}/content?show=inline`, { headers, raw: true }),
    link: async (key) => (await api.request("POST", `/me/files/${key}/link`, { body: { expires_in: LINK_SECONDS } })).url,
  };
}

/** Show `entry`; `contents` as those of `contentsOf`; `files` are those that come before and after it; `actions`:
 * {download(entry), share(entry)}, the second where it may be shared. */
export function preview(contents, entry, files, actions) {
  let shown = null;
  let close = () => {};
  const button = (name, key, run) => {
    const made = iconButton("done", t(key), run);
    made.replaceChildren(glyph(name));
    return made;
  };
  const stage = element("div", { class: "stage" });
  const facts = element("p", { class: "muted" });
  const kind = element("span", { class: "preview-kind" });
  const before = button("left", "preview.before", () => step(-1));
  const after = button("right", "preview.after", () => step(1));
  before.classList.add("step", "before");
  after.classList.add("step", "after");
  let heading;

  function step(by) {
    const next = files[files.indexOf(shown) + by];
    if (next) show(next);
  }

  function show(next) {
    shown = next;
    const place = files.indexOf(next);
    setText(heading, next.name);
    kind.replaceChildren(picture(pictureOf(next.name)));
    setText(facts, [formatBytes(next.size), formatTime(next.time), t("preview.place", { place: place + 1, count: files.length })].join(" · "));
    before.disabled = place <= 0;
    after.disabled = place >= files.length - 1;
    if (document.activeElement?.disabled) heading.focus(); // so that the arrows go on
    fill(contents, next, stage, () => shown === next, () => actions.download(next));
  }

  return showModal({
    title: entry.name,
    className: "preview",
    content: [
      element("div", { class: "preview-head" }, kind, element("div", { class: "preview-words" }, facts),
        actions.share && button("share", "preview.share", () => actions.share(shown)),
        button("download", "preview.download", () => actions.download(shown)),
        button("close", "preview.close", () => close())),
      element("div", { class: "preview-body" }, before, stage, after),
    ],
    opened: (end, dialog, title) => {
      close = end;
      heading = title;
      dialog.querySelector(".preview-words").prepend(title);
      title.tabIndex = -1;
      dialog.addEventListener("keydown", (event) => {
        if (event.target.closest("video, audio")) return; // there the arrows wind
        if (event.key === "ArrowLeft") step(-1);
        else if (event.key === "ArrowRight") step(1);
      });
      show(entry);
    },
  });
}

async function fill(contents, entry, stage, isWanted, download) {
  stage.replaceChildren(element("p", { class: "muted", role: "status" }, t("preview.loading")));
  const nothing = (text) => {
    if (!isWanted()) return;
    stage.replaceChildren(element("div", { class: "no-preview" }, picture(pictureOf(entry.name)), element("p", {}, text),
      element("button", { type: "button", class: "primary", onclick: download }, glyph("download"), t("action.download"))));
  };
  const as = shownAs(entry.name);
  if (entry.file.damaged) return nothing(t("file.damaged"));
  if (!as || (as === "pdf" && !navigator.pdfViewerEnabled)) return nothing(t("preview.none"));
  try {
    const made = await (as === "text" ? textOf(contents, entry) : mediumOf(contents, entry, as, () => nothing(t("preview.broken"))));
    if (isWanted()) stage.replaceChildren(...made);
  } catch (problem) {
    nothing(messageOf(problem));
  }
}

async function textOf(contents, { key, size, name }) {
  if (size === 0) return [element("p", { class: "muted" }, t("preview.empty"))];
  const headers = { Range: `bytes=0-${TEXT_BYTES - 1}` };
  // To be shown: it is not sent on to a bucket, which this page may not read from.
  const text = await contents.text(key, headers);
  const page = element("pre", { tabindex: 0, "aria-label": name }, text);
  return [page, size > TEXT_BYTES && element("p", { class: "muted" }, t("preview.first", { bytes: formatBytes(TEXT_BYTES) }))].filter(Boolean);
}

async function mediumOf(contents, { key, name }, as, failed) {
  const src = `${await contents.link(key)}&show=inline`;
  if (as === "image") return [element("img", { src, alt: name, onerror: failed })];
  if (as === "pdf") return [element("iframe", { src, title: name })];
  return [element(as, { src, controls: true, preload: "metadata", "aria-label": name, onerror: failed })];
}
