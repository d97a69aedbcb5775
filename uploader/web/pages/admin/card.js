// What every card of the page has: the moment of its figures, and what went wrong with them.

import { Problem } from "../client/api.js";
import { element, setText } from "../dom.js";
import { formatCount, formatTime } from "../format.js";
import { onLanguage, t } from "../i18n.js";
import { messageOf } from "../problems.js";

// Of what events and tasks leave behind, the server counts no further.
const MOST_COUNTED = 10_000;
const TYPING_MS = 300;

/** Do `work` for a card; what goes wrong is told in it. Whether nothing did. */
export async function attempt(card, work) {
  const error = card.querySelector(".error");
  setText(error, "");
  card.setAttribute("aria-busy", "true");
  try {
    await work();
    return true;
  } catch (problem) {
    if (!(problem instanceof Problem)) console.error(problem);
    setText(error, messageOf(problem));
    return false;
  } finally {
    card.removeAttribute("aria-busy");
  }
}

/** Do `work` as soon as somebody types no more. */
export function whenTyped(input, work) {
  let timer;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(work, TYPING_MS);
  });
}

/** A card that shows the answer of `GET /admin/usage/summary`, in the language of the page. */
export class SummaryCard {
  #summary = null;

  constructor(card) {
    this.card = card;
    onLanguage(() => this.#show());
  }

  set summary(summary) {
    this.#summary = summary;
    this.#show();
  }

  #show() {
    if (!this.#summary) return;
    showAsOf(this.card, this.#summary.as_of);
    this.draw(this.#summary);
  }
}

/** A button that shows one user. */
export function userButton(userId, open) {
  const attributes = { type: "button", class: "link", "aria-haspopup": "dialog", "data-user": userId, onclick: () => open(userId) };
  return element("button", attributes, userId);
}

export function showAsOf(card, time) {
  const words = t("as-of", { time: formatTime(time) });
  card.querySelector(".as-of").replaceChildren(element("time", { datetime: time }, words));
}

export function counted(count) {
  return count < MOST_COUNTED ? formatCount(count) : t("or-more", { count: formatCount(MOST_COUNTED) });
}

/** A figure with its name and a note. */
export function tile({ name, figure, note = null, telling = false, key = null }) {
  return element("div", { class: telling ? "telling" : null, "data-figure": key },
    element("dt", {}, name),
    element("dd", { class: "figure" }, figure),
    note !== null && element("dd", { class: "note" }, note),
  );
}

/** A bar of parts: [{kind, bytes}], `whole` bytes long. It only repeats what stands beside it in words. */
export function bar(parts, whole) {
  const made = element("div", { class: "bar-parts", "aria-hidden": "true" });
  for (const { kind, bytes } of parts) {
    const part = element("span", { class: kind });
    part.style.width = `${whole > 0 ? Math.min(100, (100 * bytes) / whole) : 0}%`;
    made.append(part);
  }
  return made;
}

/** Save an answer as a file. */
export async function saveCsv(api, path, filename) {
  const text = await api.request("GET", path, { raw: true, headers: { Accept: "text/csv" } });
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = element("a", { href: url, download: filename, hidden: true });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
