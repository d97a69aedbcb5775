// Who is signed in: finds the token, takes it from a sign-in link or asks for it. Where none is needed, none is asked for.

import { Api, SERVER } from "./client/api.js";
import { confirmed } from "./dialogs.js";
import { t } from "./i18n.js";
import { askForToken } from "./sign-in.js";

// Of one origin there may be several servers, each below a path of its own.
const KEY = `uploader.token${new URL(SERVER).pathname.replace(/\/$/, "")}`;

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

function tokenOfLink() {
  return new URLSearchParams(location.hash.slice(1)).get("token");
}

/** The token of a sign-in link (`/#token=…`), which leaves the address; null where there is none. */
function takeFromLink() {
  const token = tokenOfLink();
  if (token !== null) history.replaceState(history.state, "", location.pathname + location.search);
  return token;
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
    await this.#followLink();
    return this.api.request("GET", "/me/usage", { patienceSeconds: Infinity });
  }

  /** Somebody who is signed in is asked first: a link must not put their files into the hands of who made it. */
  async #followLink() {
    addEventListener("hashchange", () => tokenOfLink() !== null && location.reload());
    const token = takeFromLink();
    if (!token || !/^[!-~]+$/.test(token) || token === this.api.token) return;
    const question = { title: t("session.link"), text: t("session.link-text"), confirm: t("session.enter") };
    if (this.hasToken && !(await confirmed(question))) return;
    keep(token, false);
    this.api.token = token;
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
    const { token, forLong } = await askForToken(refused);
    keep(token, forLong);
    this.api.token = token;
  }
}
