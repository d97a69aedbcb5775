// The page at `/`: signs in, then takes files, and shows what is on its way and what is there.

import "../words.js";
import "./words.js";
import { FilesView } from "./files-view.js";
import { mountHeader, PAGES } from "../header.js";
import { translate } from "../i18n.js";
import { News } from "./news.js";
import { carriesFiles, fromInput, fromTransfer } from "./picking.js";
import { Quota } from "./quota.js";
import { Session } from "../session.js";
import { Transfers } from "./transfers.js";
import { TransfersView } from "./transfers-view.js";

const LOOK_EVERY_MS = 2000;
const LOOK_WHEN_IDLE_MS = 30_000;

const $ = (id) => document.getElementById(id);

translate();
const header = document.querySelector("header.bar");
mountHeader(header, {});
const session = new Session();
const { api } = session;
const usage = await session.start();
const { admin } = await api.request("GET", "/me/identity", { patienceSeconds: Infinity });
mountHeader(header, { links: admin ? PAGES : [], signOut: session.hasToken ? () => session.signOut() : null });

const news = new News($("news"));
const tell = (text) => news.tell(text);
const transfers = new Transfers(api);
const quota = new Quota($("quota"));
new TransfersView(transfers, { choose, tell });
const files = new FilesView(api, { changed: lookSoon, tell });

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
  files.add(detail.filter((transfer) => !transfer.unchanged).map((transfer) => transfer.made));
  lookSoon();
});
transfers.addEventListener("failed", ({ detail }) => {
  news.failed(detail);
  lookSoon();
});
transfers.addEventListener("cancelled", lookSoon);

// How files get here

function choose(transfer) {
  const input = $("again-input");
  input.onchange = () => {
    const [file] = input.files;
    input.value = "";
    if (file) transfers.goOn(transfer, file);
  };
  input.click();
}

for (const [button, input] of [["choose-files", "files-input"], ["choose-folder", "folder-input"]]) {
  $(button).addEventListener("click", () => $(input).click());
  $(input).addEventListener("change", () => {
    transfers.take(fromInput($(input)));
    $(input).value = "";
  });
}

function takeFrom(event, dataTransfer) {
  if (!carriesFiles(dataTransfer)) return;
  event.preventDefault();
  transfers.take(fromTransfer(dataTransfer));
}

let inside = 0;
const curtain = (shown) => {
  inside = shown ? inside : 0;
  $("curtain").hidden = !shown;
};
addEventListener("dragenter", (event) => {
  if (!carriesFiles(event.dataTransfer)) return;
  inside += 1;
  curtain(true);
});
addEventListener("dragleave", (event) => {
  if (!carriesFiles(event.dataTransfer)) return;
  inside -= 1;
  if (inside <= 0) curtain(false);
});
addEventListener("dragover", (event) => carriesFiles(event.dataTransfer) && event.preventDefault());
addEventListener("drop", (event) => {
  curtain(false);
  takeFrom(event, event.dataTransfer);
});
addEventListener("paste", (event) => takeFrom(event, event.clipboardData));

addEventListener("beforeunload", (event) => {
  if (transfers.totals().going) event.preventDefault();
});

quota.usage = usage;
$("app").hidden = false;
await Promise.all([look(), files.reload()]);
