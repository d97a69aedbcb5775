// Collecting: whoever has the link sends files, sees their own alone, and goes on where they stopped.

import "../home/tray/words.js";
import "./collect-words.js";
import { icon, setText } from "../dom.js";
import { formatBytes } from "../format.js";
import { News } from "../home/news.js";
import { listenForFiles, TransfersView } from "../home/tray/transfers-view.js";
import { onLanguage, t, translate } from "../i18n.js";
import { fromTransfer } from "../client/picking.js";
import { Transfers } from "../client/transfers.js";

const $ = (id) => document.getElementById(id);

export async function show(visit, { end }) {
  const news = new News($("news"));
  const transfers = new Transfers(visit.api);
  transfers.lists = false; // nothing of what is there is for who sends
  new TransfersView(transfers, { tell: (text) => news.tell(text) });
  const tally = new Tally(visit);
  const draw = () => drawState(transfers, visit);
  translate($("collect"));
  document.querySelector(".drop-picture").replaceChildren(icon("upload"));
  for (const type of ["change", "list"]) transfers.addEventListener(type, draw);
  transfers.addEventListener("complete", ({ detail }) => {
    tally.add(detail);
    news.completed(detail);
    draw();
  });
  transfers.addEventListener("failed", ({ detail }) => {
    news.failed(detail);
    const gone = detail.find(({ problem }) => ["link-gone", "link-not-found"].includes(problem.code));
    if (gone) {
      transfers.stopAll();
      end(gone.problem);
    }
  });
  onLanguage(draw);
  const isOpen = () => !$("drop").hidden;
  listenForFiles(transfers, {
    take: (batches) => transfers.take(batches),
    takeFrom: (dataTransfer) => isOpen() && transfers.take(fromTransfer(dataTransfer)),
    words: () => (isOpen() ? t("collect.drop") : null),
  });
  $("collect").hidden = false;
  draw();
  if (visit.isReturn) await transfers.look();
}

function drawState(transfers, visit) {
  const { going, complete, failed, asked, unfinished, size } = transfers.totals();
  const isDone = complete > 0 && going + failed + asked + unfinished === 0;
  if ($("thanks").hidden === isDone) $("thanks").hidden = !isDone;
  if (isDone) setText($("thanks-words"), t("thanks.text", { count: complete, size: formatBytes(size) }));
  $("unfinished").hidden = unfinished === 0;
  setText($("unfinished"), t("collect.unfinished", { count: unfinished }));
  const isTouch = matchMedia("(hover: none)").matches;
  setText($("drop-title"), t(complete || going ? "collect.more" : isTouch ? "collect.touch" : "collect.drop"));
  $("drop").classList.toggle("small", transfers.all.length > 0);
  const { files, bytes } = visit.sent;
  setText($("sent"), files && !isDone ? t("collect.sent", { count: files, size: formatBytes(bytes) }) : "");
}

/** What this browser has sent, over all visits. A file that is sent again is the same one, which the server made before. */
class Tally {
  #before;
  #counted = new Set();

  constructor(visit) {
    this.visit = visit;
    this.#before = visit.sent.at;
  }

  add(transfers) {
    const sent = { ...this.visit.sent };
    for (const { made } of transfers) {
      if (this.#counted.has(made.id) || made.created_at <= this.#before) continue;
      this.#counted.add(made.id);
      sent.files += 1;
      sent.bytes += made.size;
      if (made.created_at > sent.at) sent.at = made.created_at;
    }
    this.visit.sent = sent;
  }
}
