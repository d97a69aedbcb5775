// HTTP with patience: every call is tried again while that may help. Knows problems and tokens, and no path of the API.
// All calls of the contract may be repeated, so an answer that was lost costs another call and nothing else.

// Where this module came from: below a prefix, where the server has one.
export const SERVER = new URL("../../..", import.meta.url).href.replace(/\/$/, "");

const FIRST_PAUSE_SECONDS = 0.25;
const LONGEST_PAUSE_SECONDS = 20;
// A call of somebody who waits before the screen.
const ORDINARY_PATIENCE_SECONDS = 15;
// A question that is not answered, or a chunk of which not a byte moves, is lost.
const SILENCE_SECONDS = 60;
// What a proxy says while the server behind it is away.
const PASSING_STATUS = new Set([408, 425, 429, 502, 503, 504]);

// What the codes of the client mean.
const DETAILS = {
  "content-differs": "What arrived is not this file.",
  failed: "Something went wrong in the client.",
  "file-changed": "The file changed on this device, or was moved.",
  "name-taken": "Something of this name is there already.",
  "other-content": "The content of this file is not that of the upload.",
  "other-size": "The size of this file is not that of the upload.",
  "server-too-old": "The server is too old for what was asked.",
  unavailable: "The server is not ready at the moment.",
  unreachable: "The server can't be reached.",
  unreadable: "The file can't be read.",
  "unreadable-folder": "The folder can't be read, so not all of its files were uploaded.",
};

/** What went wrong, with the code that programs compare; `code` is "unreachable" where no answer came. */
export class Problem extends Error {
  constructor(code, { status = 0, detail = DETAILS[code] ?? "", retryable = false, retryAfterSeconds = 0, fields = {} } = {}) {
    super(detail || code);
    Object.assign(this, { code, status, detail, retryable, retryAfterSeconds, fields });
  }
}

export function unreachable() {
  return new Problem("unreachable", { retryable: true });
}

/** The problem that an answer tells of. */
function problemOf(status, contentType, text, retryAfter) {
  const retryAfterSeconds = /^\d{1,8}$/.test(retryAfter ?? "") ? Number(retryAfter) : 0;
  try {
    if (contentType?.startsWith("application/problem+json")) {
      const fields = JSON.parse(text);
      const { code, detail, retryable } = fields;
      return new Problem(code, { status, detail, retryable: retryable === true, retryAfterSeconds, fields });
    }
  } catch {
    // whoever answered is not the server
  }
  return PASSING_STATUS.has(status)
    ? new Problem("unavailable", { status, retryable: true, retryAfterSeconds })
    : new Problem("bad-answer", { status, detail: `HTTP ${status}` });
}

/** Sleeps, and wakes early when the network is back or `signal` aborts (then it throws). */
function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const ended = (settle, value) => {
      clearTimeout(timer);
      removeEventListener("online", online);
      signal?.removeEventListener("abort", aborted);
      settle(value);
    };
    const online = () => ended(resolve);
    const aborted = () => ended(reject, signal.reason);
    const timer = setTimeout(() => ended(resolve), seconds * 1000);
    addEventListener("online", online);
    signal?.addEventListener("abort", aborted);
    if (signal?.aborted) aborted();
  });
}

/** The failures of one call: twice as long a pause after each, less up to a half, so that many do not come back at once. */
export class Retrying {
  #failures = 0;
  #begun = performance.now();

  constructor({ signal, onRetry, patienceSeconds = ORDINARY_PATIENCE_SECONDS } = {}) {
    Object.assign(this, { signal, onRetry, patienceSeconds });
  }

  /** Wait until the call may be tried again. Throws `problem` if that would not help or has been tried enough. */
  async pause(problem) {
    if (!(problem instanceof Problem) || !problem.retryable) throw problem;
    const longest = Math.min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** Math.min(this.#failures, 32));
    const seconds = problem.retryAfterSeconds + longest * (1 - Math.random() / 2);
    const spent = (performance.now() - this.#begun) / 1000;
    if (spent + seconds > this.patienceSeconds) throw problem;
    this.#failures += 1;
    this.onRetry?.(problem, seconds);
    await pause(seconds, this.signal);
  }
}

async function patiently(options, attempt) {
  const retrying = new Retrying(options);
  for (;;) {
    try {
      return await attempt();
    } catch (problem) {
      await retrying.pause(problem);
    }
  }
}

export class Api {
  /** Calls go to the paths below `base`. `renew(problem, again)` is asked for another token, which it sets, when the server
   * refuses this one, `again` if it refused that, too; and, with no problem, while `token` is undefined. The call waits. */
  constructor({ base = SERVER, token = null, renew = null } = {}) {
    Object.assign(this, { base, token, renew });
  }

  /** A call that is tried again while that may help; the JSON of its answer. Throws Problem, or AbortError. */
  async request(method, path, options = {}) {
    return patiently(options, () => this.requestOnce(method, path, options));
  }

  /** One attempt; `body` is sent as JSON. With `raw` the answer is its text; with `keepalive` the call outlives the page. */
  async requestOnce(method, path, { body, headers = {}, signal, raw = false, keepalive = false } = {}) {
    return this.#withToken(async (authorization) => {
      const silence = AbortSignal.timeout(SILENCE_SECONDS * 1000);
      let response, text;
      try {
        response = await fetch(this.base + path, {
          method,
          headers: { ...authorization, ...headers, ...(body ? { "Content-Type": "application/json" } : {}) },
          body: body ? JSON.stringify(body) : undefined,
          signal: signal ? AbortSignal.any([signal, silence]) : silence,
          cache: "no-store",
          keepalive,
          credentials: "same-origin",
        });
        text = await response.text();
      } catch (error) {
        signal?.throwIfAborted();
        throw error instanceof Problem ? error : unreachable();
      }
      if (!response.ok) {
        throw problemOf(response.status, response.headers.get("content-type"), text, response.headers.get("retry-after"));
      }
      return raw ? text : parse(text);
    });
  }

  /** Bytes, sent again while that may help. Throws Problem, or AbortError. */
  async send(method, path, bytes, options = {}) {
    return patiently(options, () => this.sendOnce(method, path, bytes, options));
  }

  /** One attempt to send bytes; `onProgress` is told how many have left. */
  async sendOnce(method, path, bytes, { signal, onProgress } = {}) {
    return this.#withToken((authorization) => send(method, this.base + path, bytes, authorization, signal, onProgress));
  }

  async #withToken(call, renewed = false) {
    if (this.token === undefined) await this.renew(null, false);
    const token = this.token;
    try {
      return await call(token ? { Authorization: `Bearer ${token}` } : {});
    } catch (problem) {
      if (problem.code !== "unauthenticated" || !this.renew) throw problem;
      if (this.token === token) await this.renew(problem, renewed);
      return this.#withToken(call, true);
    }
  }
}

/** XMLHttpRequest, because fetch does not tell how much of a body has left. */
function send(method, path, bytes, headers, signal, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    let silence;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(lost, SILENCE_SECONDS * 1000);
    };
    const lost = () => ended(reject, unreachable());
    const ended = (settle, value) => {
      clearTimeout(silence);
      removeEventListener("offline", lost);
      signal?.removeEventListener("abort", aborted);
      request.abort();
      settle(value);
    };
    const aborted = () => ended(reject, signal.reason);
    request.upload.onprogress = (event) => {
      heard();
      onProgress?.(event.loaded);
    };
    request.onerror = lost;
    addEventListener("offline", lost); // what is on its way then stays so
    request.onload = () => {
      const { status, responseText } = request;
      const [type, after] = [request.getResponseHeader("content-type"), request.getResponseHeader("retry-after")];
      try {
        if (status >= 300) throw problemOf(status, type, responseText, after);
        ended(resolve, parse(responseText));
      } catch (problem) {
        ended(reject, problem);
      }
    };
    request.open(method, path);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    signal?.addEventListener("abort", aborted);
    if (signal?.aborted) {
      aborted();
      return;
    }
    heard();
    request.send(bytes);
  });
}

function parse(text) {
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    throw new Problem("bad-answer", { detail: "not JSON" });
  }
}
