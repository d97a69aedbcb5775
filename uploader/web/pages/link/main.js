// The page at `/s/{slug}`, for whoever has a link and no account: says what it is, and asks for its password; then files are
// sent (collect.js) or shown (shared.js).

import "../words.js";
import "./words.js";
import { setText } from "../dom.js";
import { formatBytes, formatTime } from "../format.js";
import { mountHeader } from "../header.js";
import { has, onLanguage, t, translate } from "../i18n.js";
import { messageOf } from "../problems.js";
import { Visit } from "./visit.js";

const $ = (id) => document.getElementById(id);

const [, slug] = /\/s\/([^/]+)\/?$/.exec(location.pathname) ?? [null, ""];
const visit = new Visit(slug, { askPassword });
let ended = null; // why there is nothing (more) to be had

translate();
mountHeader(document.querySelector("header.bar"), {});
onLanguage(draw);

/** Say what the link is, or that it is none any more. */
function draw() {
  const { facts } = visit;
  if (ended) {
    const state = ended.code === "link-gone" ? `ended.${ended.fields.reason}` : ended.code === "link-not-found" ? "ended.not-found" : null;
    setText($("title"), state ? t(has(state) ? state : "ended.gone") : t("ended.trouble"));
    setText($("about"), state ? t(has(`${state}-text`) ? `${state}-text` : "ended.gone-text") : messageOf(ended));
    setText($("limits"), "");
    document.title = $("title").textContent;
    return;
  }
  if (!facts) return;
  const { kind, label, name, expires_at: expiresAt, max_files: files, max_bytes: bytes } = facts;
  const word = kind === "upload" ? "collect" : "shared";
  setText($("title"), label || t(`${word}.title`));
  setText($("about"), t(name ? `${word}.about-name` : `${word}.about`, { name: name?.replace(/\/$/, "") }));
  const limits = [expiresAt && t("link.until", { time: formatTime(expiresAt) })];
  if (files) limits.push(t("link.files", { count: files }));
  if (bytes) limits.push(t("link.bytes", { size: formatBytes(bytes) }));
  setText($("limits"), limits.filter(Boolean).join(" "));
  document.title = $("title").textContent;
}

/** Nothing goes on by this link; what is shown of what was sent stays. */
function end(problem) {
  ended = problem;
  for (const id of ["password", "shared", "drop", "thanks", "unfinished"]) $(id).hidden = true;
  setText($("trouble"), "");
  draw();
}

function askPassword(refusal) {
  const form = $("password");
  const input = $("password-input");
  form.hidden = false;
  input.value = "";
  setText($("password-error"), refusal ? wordsOfRefusal(refusal) : "");
  if (refusal) input.setAttribute("aria-invalid", "true");
  input.focus();
  return new Promise((resolve) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      if (!input.value) return;
      form.hidden = true;
      resolve(input.value);
    };
  });
}

function wordsOfRefusal(problem) {
  return problem.status === 429 ? t("password.wait") : messageOf(problem);
}

async function start() {
  const onRetry = (problem) => setText($("trouble"), messageOf(problem));
  await visit.look({ patienceSeconds: Infinity, onRetry });
  setText($("trouble"), "");
  draw();
  const { kind, has_password: hasPassword } = visit.facts;
  const module = import(kind === "upload" ? "./collect.js" : "./shared.js");
  if (kind === "download" || hasPassword) {
    await visit.enter();
    if (hasPassword) await visit.look();
    draw();
  }
  await (await module).show(visit, { end });
}

start().catch(end);
