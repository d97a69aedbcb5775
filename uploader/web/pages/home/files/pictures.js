// The pictures of the list of files: one for each kind of file, and those of its buttons.

import { element } from "../../dom.js";

const SVG = "http://www.w3.org/2000/svg";

const PAGE = "M6 2.5h8.5L19 7v12.5a2 2 0 0 1-2 2H6a2 2 0 0 1-2-2v-15a2 2 0 0 1 2-2z";
const CORNER = "M14.5 2.5V6a1 1 0 0 0 1 1H19";
const FOLDER = "M3 6.5a2 2 0 0 1 2-2h4.2a2 2 0 0 1 1.5.7l1.1 1.3H19a2 2 0 0 1 2 2v9a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2z";
const GLYPHS = {
  file: "",
  image: "M6.5 18l3.2-4.5 2.2 2.8 1.4-1.8 3.2 3.5M9 10.6v.1",
  video: "M9.5 11v6l5-3z",
  audio: "M9.3 17.3v-5.6l5-1v5M9.3 17.3a1.2 1.2 0 1 1-1.2-1.2M14.3 15.7a1.2 1.2 0 1 1-1.2-1.2",
  pdf: "M7.5 16.8c3-1.2 4.6-4.2 4.2-6.4-.2-1-1.3-.8-1.2.4.3 3 2.5 5 5.3 5 .9 0 .9-1.1 0-1.2-2.6-.3-5.3.3-8.3 2.2z",
  text: "M7.5 11h8M7.5 14h8M7.5 17h5",
  code: "M9.5 11.5L7 14l2.5 2.5M13.5 11.5L16 14l-2.5 2.5",
  sheet: "M7 10.5h9v7H7zM7 14h9M11.5 10.5v7",
  document: "M7.5 10.5h8M7.5 13h8M7.5 15.5h8M7.5 18h4",
  slides: "M7 10.5h9v5.5H7zM11.5 16v2",
  archive: "M10 3v1.5M11.5 5.5V7M10 8v1.5M11.5 10.5V12M10 14h2v3.5h-2z",
  disk: "M11.5 18a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM11.5 14.5v.1",
};

const BUTTONS = {
  check: "M4 4h16v16H4zM8 12.5l3 3 5.5-6.5",
  upload: "M12 20V7M6.5 12.5L12 7l5.5 5.5M5 3.5h14",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  rename: "M4 20h4L19.5 8.5l-4-4L4 16zM13 7l4 4",
  restore: "M4 11a8 8 0 1 1 2.3 6.6M4 4v7h7",
  versions: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 7v5l3.5 2",
  remove: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5.5M13.5 11v5.5",
  more: "M12 5.5v.1M12 12v.1M12 18.5v.1",
  share: "M10 14a4.5 4.5 0 0 0 6.5.3l3-3a4.5 4.5 0 0 0-6.4-6.4l-1.3 1.3M14 10a4.5 4.5 0 0 0-6.5-.3l-3 3a4.5 4.5 0 0 0 6.4 6.4l1.3-1.3",
  move: "M3 7a2 2 0 0 1 2-2h4l2 2.5h8a2 2 0 0 1 2 2V17a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2zM9 13h6M12.5 10.5L15 13l-2.5 2.5",
  open: "M2.5 12S6 5.5 12 5.5 21.5 12 21.5 12 18 18.5 12 18.5 2.5 12 2.5 12zM12 15a3 3 0 1 0 0-6 3 3 0 0 0 0 6z",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4",
  home: "M4 11l8-7 8 7M6 9.5V20h12V9.5",
  up: "M12 19V6M6.5 11.5L12 6l5.5 5.5",
  down: "M6 9l6 6 6-6",
  left: "M15 5l-7 7 7 7",
  right: "M9 5l7 7-7 7",
  copy: "M9 9h10v11H9zM5 15V4h10",
  close: "M6 6l12 12M18 6L6 18",
  sort: "M7 5v14M3.5 15.5L7 19l3.5-3.5M17 19V5M13.5 8.5L17 5l3.5 3.5",
  files: "M6 3h8l4 4v14H6zM14 3v4h4",
  folder: FOLDER,
};

function drawn(classes, ...paths) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", classes);
  for (const [part, d] of paths) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", d);
    path.setAttribute("class", part);
    svg.append(path);
  }
  return svg;
}

/** What stands for a kind of file, or for a folder. */
export function picture(kind) {
  if (kind === "folder") return drawn("picture folder", ["sheet", FOLDER]);
  return drawn(`picture ${kind}`, ["sheet", PAGE], ["line", CORNER], ["line", GLYPHS[kind]]);
}

export function glyph(name) {
  return drawn("icon", ["", BUTTONS[name]]);
}

/** A button that shows a picture and is called by a label. */
export function glyphButton(name, label, attributes) {
  return element("button", { type: "button", class: "icon-button", "aria-label": label, title: label, ...attributes }, glyph(name));
}
