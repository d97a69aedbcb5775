// Who is signed in: finds the token or asks for it. A server that needs none is not asked for one.

import { Api, Problem } from "./api.js";
import { element } from "./dom.js";
import { t } from "./i18n.js";
import { messageOf } from "./problems.js";

const KEY = "uploader.token";

function read() {
  try {
    return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);
  } catch {
    return null; // storage is closed to this page: the token lives as long as the page
  }
}

function forget() {
  try {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
  } catch {
    // nothing was kept
  }
}

function keep(token, forLong) {
  forget();
  try {
    (forLong ? localStorage : sessionStorage).setItem(KEY, token);
  } catch {
    // then it lives as long as the page
  }
}

export class Session {
  #renewing = null;

  constructor() {
    this.api = new Api({ renew: () => this.#renew() });
  }

  /** Whether there is a token to forget. */
  get hasToken() {
    return this.api.token !== null;
  }

  /** Resolves when the server knows who is calling; with the answer of `GET /me/usage`. */
  async start() {
    this.api.token = read();
    return this.api.request("GET", "/me/usage", { patienceSeconds: Infinity });
  }

  signOut() {
    forget();
    location.reload();
  }

  /** All calls that were refused wait for the same answer. */
  #renew() {
    this.#renewing ??= this.#ask().finally(() => {
      this.#renewing = null;
    });
    return this.#renewing;
  }

  async #ask() {
    const refused = this.api.token !== null;
    forget();
    const { token, forLong } = await askForToken(refused ? t("session.refused") : "");
    keep(token, forLong);
    this.api.token = token;
  }
}

/** The dialog to sign in; it can't be dismissed, and closes when the server takes the token. */
function askForToken(message) {
  return new Promise((resolve) => {
    const input = element("input", {
      id: "token", name: "token", type: "password", required: true,
      autocomplete: "current-password", autocapitalize: "off", spellcheck: "false", "aria-describedby": "token-hint token-error",
    });
    const stay = element("input", { id: "stay", type: "checkbox" });
    const error = element("p", { id: "token-error", class: "error", role: "alert" }, message);
    const submit = element("button", { class: "primary", type: "submit" }, t("session.enter"));
    const form = element("form", { novalidate: true },
      element("h1", { id: "sign-in-title" }, t("session.title")),
      element("label", { for: "token" }, t("session.token")),
      input,
      element("p", { id: "token-hint", class: "hint" }, t("session.hint")),
      element("label", { class: "check", for: "stay" }, stay, element("span", {}, t("session.stay"))),
      error,
      element("div", { class: "actions" }, submit),
    );
    const dialog = element("dialog", { class: "sign-in", "aria-labelledby": "sign-in-title" }, form);
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      submit.disabled = true;
      error.textContent = "";
      const token = input.value.trim();
      try {
        await probe(token);
        dialog.close();
        dialog.remove();
        resolve({ token, forLong: stay.checked });
      } catch (problem) {
        error.textContent = problem.code === "unauthenticated" ? t("session.refused") : messageOf(problem);
        input.setAttribute("aria-invalid", "true");
        input.focus();
      } finally {
        submit.disabled = false;
      }
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

async function probe(token) {
  if (!/^[!-~]+$/.test(token)) throw new Problem("unauthenticated");
  const api = new Api();
  api.token = token;
  await api.request("GET", "/me/usage");
}
