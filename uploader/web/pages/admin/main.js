// The page at `/admin/`: signs in, then shows an administrator what is stored, by whom, and what could be given back.

import "../words.js";
import "./words.js";
import { setText } from "../dom.js";
import { mountHeader, PAGES } from "../header.js";
import { onLanguage, t, translate } from "../i18n.js";
import { Session } from "../session.js";
import { Audit } from "./audit/audit.js";
import { attempt } from "./card.js";
import { Cost } from "./cost.js";
import { Growth } from "./growth.js";
import { NewUser } from "./new-user.js";
import { Waiting } from "./queue/waiting.js";
import { Recount } from "./recount/recount.js";
import { Sinks } from "./sinks/sinks.js";
import { Stale } from "./stale.js";
import { Temp } from "./temp.js";
import { Totals } from "./totals.js";
import { UserDialog } from "./user.js";
import { Users } from "./users.js";
import { Work } from "./work/work.js";

const SILENCE_MS = 50;

const $ = (id) => document.getElementById(id);

translate();
const header = document.querySelector("header.bar");
mountHeader(header, { links: PAGES });
const session = new Session();
const { api } = session;
await session.start();
const { admin } = await api.request("GET", "/me/identity", { patienceSeconds: Infinity });
const { auth = "token", links: hasLinks = false } = await api.request("GET", "/config", { patienceSeconds: Infinity });
mountHeader(header, { links: PAGES, signOut: session.hasToken ? () => session.signOut() : null });

// Emptied first, or the same text would not be read out again.
function tell(text) {
  $("news").textContent = "";
  setTimeout(() => setText($("news"), text), SILENCE_MS);
}

const open = (userId, made = null) => new UserDialog(api, userId, { changed: reload, hasTokens: auth === "token", hasLinks, made });

const totals = new Totals($("totals"));
const growth = new Growth($("growth"), api);
const temp = new Temp($("temp"));
const waiting = new Waiting($("queue"), api);
const cost = new Cost($("cost"), api, { open });
const users = new Users($("users"), api, { open, tell });
const stale = new Stale($("stale"), api, { changed: reload, open });
const sinks = new Sinks($("sinks"), api);
const work = new Work($("work"), api);
const audit = new Audit($("audit"), api);
$("new-user").hidden = auth === "none"; // there is one user, and no other can come
$("new-user").addEventListener("click", () => new NewUser(api, { hasTokens: auth === "token", made: (userId, made) => {
  open(userId, made);
  reload();
} }));
new Recount($("recounted"), api, $("recount"));

$("refresh").addEventListener("click", async () => {
  await reload();
  tell(t("admin.refreshed"));
});

/** The summary, which several cards show. */
function summarise() {
  return attempt($("totals"), async () => {
    const summary = await api.request("GET", "/admin/usage/summary");
    totals.summary = summary;
    growth.summary = summary;
    temp.summary = summary;
  });
}

/** Everything as it is now. */
function reload({ keepError = false } = {}) {
  const lists = [growth.reload(), users.reload(), waiting.reload(), cost.reload(), sinks.reload(), work.reload(), audit.reload()];
  return Promise.all([summarise(), ...lists, keepError || stale.reload()]);
}

function refuse() {
  setText($("refused-text"), t("refused.text"));
  $("refused").hidden = false;
  onLanguage(() => setText($("refused-text"), t("refused.text")));
}

if (admin) {
  $("app").hidden = false;
  $("page-buttons").hidden = false;
  await reload();
} else {
  refuse();
}
