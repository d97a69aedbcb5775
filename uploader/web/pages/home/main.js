// The page at `/`: signs in, then takes files, and shows what is on its way and what is there.

import "../words.js";
import "./words.js";
import "./files/words.js";
import { ask } from "../dialogs.js";
import { element } from "../dom.js";
import { FilesView } from "./files/files-view.js";
import { Toasts } from "./files/toasts.js";
import { TrashView } from "./trash/trash-view.js";
import { mountHeader, PAGES } from "../header.js";
import { t, translate } from "../i18n.js";
import { Held, tellOf } from "./held.js";
import { openMenu } from "./menu.js";
import { News } from "./news.js";
import { fromTransfer, into } from "../client/picking.js";
import { glyph, picture } from "./files/pictures.js";
import { lastSegment, LINKS, segmentsOf, TRASH } from "./files/place.js";
import { LinksView } from "./links/links-view.js";
import { Quota } from "./quota.js";
import { Session } from "../session.js";
import { Transfers } from "../client/transfers.js";
import { Question } from "./tray/question.js";
import { listenForFiles, TransfersView } from "./tray/transfers-view.js";

const LOOK_EVERY_MS = 2000;
const LOOK_WHEN_IDLE_MS = 30_000;

const $ = (id) => document.getElementById(id);

translate();
const header = document.querySelector("header.bar");
mountHeader(header, {});
const session = new Session();
const { api } = session;
const usage = await session.start();
const [{ admin }, { trash: hasTrash = true, links: hasLinks = false }] = await Promise.all(["/me/identity", "/config"].map((path) => api.request("GET", path, { patienceSeconds: Infinity })));
const quota = new Quota();
mountHeader(header, { links: admin ? PAGES : [], signOut: session.hasToken ? () => session.signOut() : null, own: quota.root });

const news = new News($("news"));
const tell = (text) => news.tell(text);
const transfers = new Transfers(api);
new TransfersView(transfers, { tell, question: new Question(transfers, hasTrash) });
const toasts = new Toasts($("toasts"));
const held = new Held(api, { hasTrash, changed: () => files.showHeld(), judged });
const files = new FilesView(api, { toasts, changed, tell, hasTrash, hasLinks, held });
const links = new LinksView(api, { tell });
const trash = new TrashView(api, { toasts, changed: restored, go: (place) => files.go(place), tell });

/** Something was deleted, or is back. */
function changed() {
  lookSoon();
  if (!$("trash").hidden) trash.show();
}

/** Files are back from the trash. */
function restored(some) {
  held.add(some);
  lookSoon();
}

/** Gates have said what becomes of files. */
function judged(said) {
  tellOf(said, { transfers, toasts, tell, hasTrash });
  files.judged(said);
  if (said.refused.length) changed();
}

// What the server knows: the quota, and the uploads that are open, perhaps from other devices.

let lookedAt = 0;
let looking = 0;

async function look() {
  lookedAt = performance.now();
  try {
    const [found, { uploads }] = await Promise.all([api.request("GET", "/me/usage"), api.request("GET", "/uploads")]);
    quota.usage = found;
    transfers.setUnfinished(uploads);
  } catch {
    // the next look will tell; what waits for an answer says so itself
  }
}

function lookSoon() {
  looking ||= setTimeout(() => {
    looking = 0;
    look();
  }, Math.max(0, lookedAt + LOOK_EVERY_MS - performance.now()));
}

setInterval(() => {
  if (document.visibilityState === "hidden") return;
  if (transfers.totals().going || performance.now() - lookedAt > LOOK_WHEN_IDLE_MS) lookSoon();
}, 5000);
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && lookSoon());

transfers.addEventListener("complete", ({ detail }) => {
  news.completed(detail);
  held.add(detail.map(({ made }) => made));
  files.add(detail.filter(({ unchanged, isHeld }) => !unchanged && !isHeld).map(({ made }) => made));
  lookSoon();
});
transfers.addEventListener("failed", ({ detail }) => {
  news.failed(detail);
  lookSoon();
});
transfers.addEventListener("cancelled", lookSoon);

// How files get here

/** What is brought goes into the folder that is shown. */
function take(batches) {
  transfers.take(into(files.prefix, batches));
}

/** One after the other, so that thousands of empty folders are no burden. */
let making = Promise.resolve();
function makeFolder(name) {
  making = making.then(() => files.makeFolder(name));
  return making;
}

listenForFiles(transfers, {
  take,
  takeFrom: (dataTransfer) => {
    const { prefix } = files;
    take(fromTransfer(dataTransfer, { onEmpty: (name) => makeFolder(prefix + name) }));
  },
  words: () => (files.prefix ? t("drop.into", { folder: lastSegment(files.prefix) }) : t("drop.now")),
});
$("new-folder").addEventListener("click", newFolder);
$("upload").prepend(glyph("upload"));
$("upload").append(glyph("down"));
document.querySelector(".drop-picture").append(picture("folder"), glyph("upload"));
$("upload").addEventListener("click", () =>
  openMenu([
    { text: t("drop.files"), picture: glyph("files"), run: () => $("files-input").click() },
    { text: t("drop.folder"), picture: glyph("folder"), run: () => $("folder-input").click() },
    { text: t("folder.new"), picture: glyph("folder"), run: newFolder },
  ], $("upload"), t("upload.title")));

async function newFolder() {
  const input = element("input", { type: "text", id: "folder-name", maxlength: 255, autocomplete: "off", required: true });
  const content = [element("label", { for: "folder-name" }, t("column.name")), input];
  const answer = await ask(t("folder.new"), content, [{ value: "yes", label: t("folder.make"), kind: "primary" }]);
  const name = files.prefix + segmentsOf(input.value).join("/");
  if (answer && name !== files.prefix && (await makeFolder(name))) files.go({ prefix: `${name}/` });
}

// Files, the trash, or links.
$("to-trash").append(glyph("remove"));
$("to-trash").hidden = !hasTrash;
$("to-links").append(glyph("share"));
$("to-links").hidden = !hasLinks;
const VIEWS = {
  files: { list: "file-list", show: () => files.refresh() },
  trash: { list: "trash-list", show: () => trash.show() },
  links: { list: "links-list", show: () => links.show() },
};
function turn() {
  const wanted = location.hash === TRASH && hasTrash ? "trash" : location.hash === LINKS && hasLinks ? "links" : "files";
  if (!$(wanted).hidden) return;
  for (const view of Object.keys(VIEWS)) $(view).hidden = view !== wanted;
  VIEWS[wanted].show().then(() => $(VIEWS[wanted].list).focus({ preventScroll: true }));
}
addEventListener("hashchange", turn);

quota.usage = usage;
$("app").hidden = false;
turn();
await Promise.all([look(), files.start(), held.look()]);
