// What is offered to be done with entries: for all that is selected, and in the menu of one. A file that is held can only be
// deleted; a folder with nothing but such files can only be opened, as the server has no folder there.

import { t } from "../../i18n.js";
import { glyph } from "./pictures.js";

/** Those that no gate holds. */
export function free(entries) {
  return entries.filter(({ isHeld }) => !isHeld);
}

export function deletable(entries) {
  return entries.filter(({ isFolder, isHeld }) => !(isFolder && isHeld));
}

/** For the bar of the selection; `view` has `actions`, `hasLinks` and rename(entry). */
export function choicesOfMany(view) {
  const { actions, hasLinks } = view;
  const isAny = (entries) => free(entries).length > 0;
  const isOne = (entries) => entries.length === 1 && isAny(entries);
  return [
    { key: "action.download", picture: "download", run: (entries) => actions.download(free(entries)), suits: isAny },
    { key: "action.share", picture: "share", run: ([entry]) => actions.share(entry), classes: "wide-only", suits: (entries) => isOne(entries) && hasLinks },
    { key: "action.rename", picture: "rename", run: ([entry]) => view.rename(entry), classes: "wide-only", suits: isOne },
    { key: "action.move", picture: "move", run: (entries) => actions.move(free(entries)), suits: isAny },
    { key: "action.delete", picture: "remove", run: (entries) => actions.remove(deletable(entries)), classes: "danger-choice", suits: (entries) => deletable(entries).length > 0 },
  ];
}

/** For a menu: of `entries` together, or of the one. `view`, too, has `selection`, `hasTrash`, open(entry) and versions(entry). */
export function choicesOf(entries, view) {
  const { actions, selection } = view;
  const isOne = entries.length === 1;
  const [entry] = entries;
  const [usable, ending] = [free(entries), deletable(entries)];
  const choice = (key, picture, run, isOffered = true) => (isOffered ? [{ text: t(key), picture: glyph(picture), run }] : []);
  return [
    ...choice(entry.isFolder ? "action.open" : "action.preview", "open", () => view.open(entry), isOne && (entry.isFolder || !entry.isHeld)),
    ...choice(!isOne || entry.isFolder ? "action.download-zip" : "action.download", "download", () => actions.download(usable), usable.length),
    ...choice("action.share", "share", () => actions.share(entry), isOne && usable.length && view.hasLinks),
    ...choice("action.rename", "rename", () => view.rename(entry), isOne && usable.length),
    ...choice(selection.has(entry.key) ? "action.unselect" : "action.select", "check", () => selection.toggle(entry.key), isOne),
    ...choice("action.move", "move", () => actions.move(usable), usable.length),
    ...choice("action.versions", "versions", () => view.versions(entry), isOne && usable.length && !entry.isFolder && view.hasTrash),
    ...choice("action.delete", "remove", () => actions.remove(ending), ending.length).map((each) => ({ ...each, danger: true })),
  ];
}
