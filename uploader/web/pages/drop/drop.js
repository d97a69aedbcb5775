// The element <uploader-drop>: files are dropped or chosen, and uploaded by the client. Its value in a form is the ids of the files
// that are finished. What attributes, properties and events there are is said in drop.d.ts.

import { Client, fromInput, fromTransfer } from "../client/index.js";
import { element, setText } from "../dom.js";
import { t } from "../i18n.js";
import "../words.js";
import { Row } from "./row.js";
import { sheet } from "./style.js";
import "./words.js";

// Of a folder with thousands, those that are shown.
const SHOWN = 100;

export class UploaderDrop extends HTMLElement {
  static formAssociated = true;
  static observedAttributes = ["server", "token", "multiple", "required", "accept"];

  #internals = this.attachInternals();
  #token;
  #client = null;
  // What was taken at once, each: its transfers, and a row for each of them.
  #taken = [];
  #unfinished = new Map();
  #files = [];
  #isDisabled = false;
  #watcher = new MutationObserver(() => this.#draw());

  constructor() {
    super();
    this.input = element("input", { type: "file", hidden: true, onchange: () => this.#choose() });
    this.button = element("button", { type: "button", class: "choose", part: "button", onclick: () => this.input.click() });
    this.hint = element("span", { class: "hint", part: "hint" });
    this.zone = element("div", { class: "zone", part: "zone" }, element("slot"), this.button, this.hint, this.input);
    this.list = element("ul", { part: "list" });
    this.more = element("p", { class: "status", part: "more", hidden: true });
    const root = this.attachShadow({ mode: "open", delegatesFocus: true });
    root.adoptedStyleSheets = [sheet];
    root.append(this.zone, this.list, this.more);
    this.addEventListener("dragover", (event) => this.#dragged(event, true));
    this.addEventListener("dragleave", (event) => this.#dragged(event, false));
    this.addEventListener("drop", (event) => this.#dropped(event));
  }

  connectedCallback() {
    this.#watcher.observe(document.documentElement, { attributeFilter: ["lang"] });
    this.#draw();
    this.#findUnfinished();
  }

  disconnectedCallback() {
    this.#watcher.disconnect();
  }

  attributeChangedCallback(name) {
    if (name === "server" || name === "token") this.#client = null;
    this.#draw();
  }

  // As a part of a form

  get form() {
    return this.#internals.form;
  }

  get name() {
    return this.getAttribute("name") ?? "";
  }

  get files() {
    return [...this.#files];
  }

  get value() {
    return this.#files.map(({ id }) => id).join(",");
  }

  get validity() {
    return this.#internals.validity;
  }

  get validationMessage() {
    return this.#internals.validationMessage;
  }

  checkValidity() {
    return this.#internals.checkValidity();
  }

  reportValidity() {
    return this.#internals.reportValidity();
  }

  formDisabledCallback(disabled) {
    this.#isDisabled = disabled;
    this.#draw();
  }

  formResetCallback() {
    this.clear();
  }

  // Uploading

  get token() {
    return this.#token ?? this.getAttribute("token");
  }

  set token(token) {
    this.#token = token;
    this.#client = null;
    if (this.isConnected) this.#findUnfinished();
  }

  get client() {
    const server = this.getAttribute("server") ?? undefined;
    this.#client ??= new Client({ server, token: this.token });
    return this.#client;
  }

  /** Take files, as `startMany` of the client has them. */
  take(files) {
    if (this.#isDisabled) return null;
    const isMany = this.hasAttribute("multiple");
    if (!isMany) this.clear();
    const set = { rows: new Map() };
    set.uploads = this.client.startMany(isMany ? files : first(files), {
      to: this.getAttribute("to") ?? "",
      ifExists: this.getAttribute("if-exists") ?? undefined,
      expected: (name, size) => this.#goesOnWith(name, size),
      onProgress: () => this.#draw(),
      onFile: ({ file, problem }) => this.#finished(file, problem),
    });
    this.#taken.push(set);
    set.uploads.result.then(() => this.dispatchEvent(new Event("change", { bubbles: true })), (problem) => this.#tell("problem", problem));
    this.#draw();
    return set.uploads;
  }

  /** The upload that a file of this name and size goes on with. One whose digest is known is found by that: here are those that
   * other clients began, as by tus. */
  #goesOnWith(name, size) {
    const upload = this.#unfinished.get(name)?.upload;
    const takesChunks = upload?.state === "uploading" && upload.length_known !== false;
    return takesChunks && upload.md5 === null && upload.size === size ? upload : null;
  }

  /** Stop what is going on, and forget all: what has arrived stays on the server. */
  clear() {
    for (const { uploads } of this.#taken) uploads.stop();
    this.#taken = [];
    this.#files = [];
    this.list.replaceChildren();
    this.#draw();
  }

  #finished(file, problem) {
    if (problem) {
      this.#tell("problem", problem);
    } else {
      this.#files.push(file);
      this.#tell("upload", file);
    }
    this.#draw();
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail, bubbles: true, composed: true }));
  }

  #choose() {
    if (this.input.files.length) this.take(fromInput(this.input));
    this.input.value = ""; // the same file may be chosen again
  }

  #dragged(event, isOver) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    if (isOver && !this.#isDisabled) this.#internals.states.add("over");
    else this.#internals.states.delete("over");
  }

  #dropped(event) {
    this.#dragged(event, false);
    if (event.dataTransfer?.files.length) this.take(fromTransfer(event.dataTransfer));
  }

  /** Show what a page before this one began: a file that is chosen again goes on. */
  async #findUnfinished() {
    const server = new URL(this.getAttribute("server") ?? import.meta.url, location.href);
    if (this.token === null && server.origin !== location.origin) return;
    const { client } = this;
    const folder = (this.getAttribute("to") ?? "").replace(/\/*$/, "");
    const uploads = await client.uploads().catch(() => []); // it is told when something is uploaded
    if (client !== this.#client) return;
    for (const { node } of this.#unfinished.values()) node.remove();
    this.#unfinished.clear();
    for (const upload of uploads.filter(({ name }) => !folder || name.startsWith(`${folder}/`)).slice(0, SHOWN)) {
      const row = new Row(async () => {
        await client.cancel(upload.id).catch((problem) => this.#tell("problem", problem));
        row.node.remove();
      });
      row.upload = upload;
      this.#unfinished.set(upload.name, row);
    }
    this.#draw();
  }

  #act(set, member, action) {
    const row = set.rows.get(member);
    if (action === "remove") {
      const { file } = member.outcome;
      this.#files = this.#files.filter((each) => each !== file);
      row.isRemoved = true;
      row.node.remove();
      this.dispatchEvent(new Event("change", { bubbles: true }));
    } else {
      member[action]();
    }
    this.#draw();
  }

  #draw() {
    const one = this.hasAttribute("multiple") ? "" : "-one";
    this.input.multiple = !one;
    this.input.accept = this.getAttribute("accept") ?? "";
    this.button.disabled = this.#isDisabled;
    setText(this.button, t(`drop.choose${one}`));
    setText(this.hint, t(`drop.here${one}`));
    this.list.setAttribute("aria-label", t("drop.list"));
    const [left, beyond] = this.#drawRows();
    for (const row of this.#unfinished.values()) {
      row.showUnfinished(row.upload);
      if (!row.node.parentNode && !row.isShown) this.list.append(row.node);
      row.isShown = true;
    }
    this.more.hidden = beyond === 0;
    setText(this.more, t("drop.more", { count: beyond }));
    this.#setForm(left);
  }

  /** Of all: how many are going on, and how many are not shown. */
  #drawRows() {
    let [left, seen, beyond] = [0, 0, 0];
    for (const set of this.#taken) {
      const members = new Set(set.uploads.transfers);
      for (const [member, row] of set.rows) if (!members.has(member)) row.node.remove(); // cancelled
      for (const member of members) {
        const { progress, outcome } = member;
        if (progress.state === "cancelled") {
          set.rows.get(member)?.node.remove();
          continue;
        }
        left += outcome === null || outcome.problem !== null ? 1 : 0;
        this.#unfinished.get(progress.name)?.node.remove();
        this.#unfinished.delete(progress.name);
        if (!set.rows.has(member) && seen < SHOWN) {
          set.rows.set(member, new Row((action) => this.#act(set, member, action)));
          this.list.append(set.rows.get(member).node);
        }
        const row = set.rows.get(member);
        if (row?.isRemoved) left -= outcome?.problem ? 1 : 0;
        row?.show(progress, outcome);
        seen += 1;
        beyond += row ? 0 : 1;
      }
    }
    return [left, beyond];
  }

  #setForm(left) {
    const data = new FormData();
    for (const { id } of this.#files) data.append(this.name, id);
    this.#internals.setFormValue(this.name ? data : null);
    if (left) this.#internals.setValidity({ customError: true }, t("drop.unfinished"), this.button);
    else if (this.hasAttribute("required") && !this.#files.length) {
      this.#internals.setValidity({ valueMissing: true }, t("drop.required"), this.button);
    } else this.#internals.setValidity({});
  }
}

/** The first of what was picked. */
async function* first(batches) {
  for await (const batch of batches[Symbol.asyncIterator] ? batches : [[...batches]]) {
    yield batch.slice(0, 1);
    return;
  }
}
