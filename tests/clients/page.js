// The page of the tests: the clients as docs/clients.md sets them up, and a gate before all that they send.

import * as tus from "tus-js-client";
import { send } from "./document/tus-js-client.js";
import { dashboard } from "./document/uppy.js";

/** What was sent, in order: method, path, offset, status. */
const requests = [];
const waiting = [];
let allowed = Infinity;

const gate = {
  requests,
  /** Let so many more requests with bytes pass, and hold the others. */
  allow(count) {
    allowed = count;
    while (allowed > 0 && waiting.length) {
      allowed -= 1;
      waiting.shift()();
    }
  },
  get held() {
    return waiting.length;
  },
  /** The offsets of all bytes that were sent. */
  get offsets() {
    return requests.filter(({ offset }) => offset !== undefined).map(({ offset }) => offset);
  },
};

const names = ["open", "setRequestHeader", "send", "abort"];
const real = Object.fromEntries(names.map((name) => [name, XMLHttpRequest.prototype[name]]));

Object.assign(XMLHttpRequest.prototype, {
  open(method, url, ...more) {
    this.facts = { method, path: new URL(url, location.href).pathname };
    real.open.call(this, method, url, ...more);
  },
  setRequestHeader(name, value) {
    if (name.toLowerCase() === "upload-offset") this.facts.offset = Number(value);
    real.setRequestHeader.call(this, name, value);
  },
  send(body) {
    const go = () => {
      if (this.isAborted) return;
      requests.push(this.facts);
      this.addEventListener("loadend", () => (this.facts.status = this.status));
      real.send.call(this, body);
    };
    if (this.facts.offset === undefined) go();
    else if (allowed > 0) {
      allowed -= 1;
      go();
    } else waiting.push(go);
  },
  abort() {
    this.isAborted = true;
    real.abort.call(this);
  },
});

Object.assign(window, { tus, send, dashboard, gate, isReady: true });
