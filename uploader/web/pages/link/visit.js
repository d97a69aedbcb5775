// A visit by a link: what it is, and the session, whose token this browser remembers under the slug. To another session the
// uploads of this one are a stranger's, so the same one goes on, days later, too.

import { Api } from "../client/api.js";

const keyOf = (slug) => `uploader.link.${slug}`;

function read(slug) {
  try {
    const kept = JSON.parse(localStorage.getItem(keyOf(slug))) ?? {};
    return typeof kept === "object" ? kept : {};
  } catch {
    return {}; // storage is closed to this page, or holds what is not ours
  }
}

export class Visit {
  #renewing = null;
  #kept;

  /** `askPassword(problem)` resolves to what the person typed; `problem` is why the one before was not taken, or null. */
  constructor(slug, { askPassword }) {
    Object.assign(this, { slug, askPassword, path: `/s/${slug}`, facts: null });
    this.#kept = read(slug);
    this.api = new Api({ renew: (problem, again) => this.#renew(problem, again) });
    const isOver = !this.#kept.token || Date.parse(this.#kept.expires_at) <= Date.now();
    this.api.token = isOver ? undefined : this.#kept.token; // undefined: a session is opened when it is needed first
  }

  /** Whether an earlier visit may have left something open. */
  get isReturn() {
    return Boolean(this.api.token);
  }

  /** What was sent by this browser: {files, bytes, at}, the last of them at that time of the server. */
  get sent() {
    return this.#kept.sent ?? { files: 0, bytes: 0, at: "" };
  }

  set sent(sent) {
    this.#keep({ sent });
  }

  /** Ask what the link is. Throws Problem. */
  async look(options = {}) {
    const ask = () => new Api().request("GET", this.path, { ...options, headers: { Accept: "application/json" } });
    try {
      this.facts = await ask();
    } catch (problem) {
      // What is used up goes on for those who are there.
      const { facts } = this.#kept;
      if (problem.fields?.reason !== "exhausted" || !this.isReturn || !facts) throw problem;
      this.facts = facts;
    }
    this.#keep({ facts: this.facts });
    return this.facts;
  }

  /** Open a session, unless there is one. Throws Problem. */
  async enter() {
    if (this.api.token === undefined) await this.#renew(null, false);
  }

  /** All calls that were refused wait for the same answer. */
  #renew(problem, again) {
    if (again) throw problem; // a new session is refused, too
    this.#renewing ??= this.#open().finally(() => {
      this.#renewing = null;
    });
    return this.#renewing;
  }

  async #open() {
    this.#forget();
    const open = (body) => new Api().request("POST", `${this.path}/session`, { body, patienceSeconds: body.password ? 0 : Infinity });
    let refusal = null;
    for (;;) {
      const body = this.facts.has_password ? { password: await this.askPassword(refusal) } : {};
      try {
        const { token, expires_at } = await open(body);
        this.#keep({ token, expires_at });
        this.api.token = token;
        return;
      } catch (problem) {
        if (!this.facts.has_password || problem.code.startsWith("link-")) throw problem;
        refusal = problem;
      }
    }
  }

  #forget() {
    this.#keep({ token: undefined, expires_at: undefined });
    this.api.token = undefined;
  }

  #keep(facts) {
    Object.assign(this.#kept, facts);
    try {
      localStorage.setItem(keyOf(this.slug), JSON.stringify(this.#kept));
    } catch {
      // then it holds until the page is closed
    }
  }
}
