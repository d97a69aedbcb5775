// Links of a person: the dialogs that make one, change it and show it. Whoever has its address needs no account.

import "./words.js";
import { Problem } from "../../client/api.js";
import { element, setText } from "../../dom.js";
import { formatTime } from "../../format.js";
import { t } from "../../i18n.js";
import { messageOf } from "../../problems.js";
import { showModal } from "../files/modal.js";
import { glyph } from "../files/pictures.js";
import { toSvg } from "../../../vendor/lean-qr/extras/svg.mjs";
import { correction, generate } from "../../../vendor/lean-qr/index.mjs";

const DAY = 86_400;
// The last is as long as the server allows.
const LIFETIMES = [["day", DAY], ["week", 7 * DAY], ["longest", null]];
const GIB = 1 << 30;

/** `entry`: {path, name, isFolder}; `made()` is called when there is a link more. */
export async function share(api, { path, name, isFolder }, { made = () => {} } = {}) {
  const kinds = isFolder ? ["download", "upload"] : ["download"];
  const kind = choices("kind", t("share.kind"), kinds.map((word) => [word, word]), 0);
  const lifetime = choices("lifetime", t("share.lifetime"), LIFETIMES.map(([word]) => [word, word]), 1);
  const { label, password, limits } = fields();
  const about = element("p", {});
  const chosen = (group) => group.querySelector("input:checked").value;
  const draw = () => {
    setText(about, t(`share.about-${chosen(kind)}`));
    showLimits(limits, chosen(kind));
  };
  kind.hidden = kinds.length === 1;
  kind.addEventListener("change", draw);

  function wanted() {
    const [, seconds] = LIFETIMES.find(([word]) => word === chosen(lifetime));
    const body = { kind: chosen(kind), name: isFolder ? `${path.replace(/\/$/, "")}/` : path };
    if (valueOf(label)) body.label = valueOf(label);
    if (valueOf(password)) body.password = valueOf(password);
    if (seconds) body.expires_at = new Date(Date.now() + seconds * 1000).toISOString();
    for (const [member, asked] of Object.entries(limits)) {
      const figure = asked.hidden ? null : figureIn(asked, member);
      if (figure !== null) body[member] = figure;
    }
    return body;
  }

  draw();
  const link = await filled({
    title: t("share.title", { name }),
    content: [kind, about, label, lifetime, password, ...Object.values(limits)],
    confirm: t("share.make"),
    send: () => api.request("POST", "/me/links", { body: wanted() }),
  });
  if (!link) return;
  made();
  await showLink(link);
}

/** Change a link; whether that was done. */
export async function change(api, link) {
  const { label, password, limits } = fields(link);
  const expiry = field("share-expiry", t("share.expiry"), { type: "datetime-local", value: localTime(link.expires_at), required: true });
  const open = element("input", { type: "checkbox", id: "share-open" });
  const opening = element("label", { hidden: !link.has_password, for: "share-open" }, open, t("share.no-password"));
  open.addEventListener("change", () => {
    password.hidden = open.checked;
  });

  function wanted() {
    const body = {};
    if (isChanged(label)) body.label = valueOf(label);
    if (isChanged(expiry)) body.expires_at = momentIn(expiry);
    if (open.checked) body.password = null;
    else if (valueOf(password)) body.password = valueOf(password);
    for (const [member, asked] of Object.entries(limits)) {
      if (!asked.hidden && isChanged(asked)) body[member] = figureIn(asked, member);
    }
    return body;
  }

  showLimits(limits, link.kind);
  const changed = await filled({
    title: t("share.change-title", { name: link.label || link.name }),
    content: [label, expiry, password, opening, ...Object.values(limits)],
    confirm: t("share.change"),
    send: () => api.request("PATCH", `/me/links/${link.id}`, { body: wanted() }),
  });
  return changed !== null;
}

/** Show a form in a dialog until `send` has done what it says, or the person goes back (null). */
async function filled({ title, content, confirm, send }) {
  const wrong = element("p", { class: "error", role: "alert" });
  const submit = element("button", { type: "submit", class: "primary" }, confirm);
  let close = () => {};
  let answer = null;
  const form = element("form", { novalidate: true }, ...content, wrong,
    element("div", { class: "actions" }, element("button", { type: "button", onclick: () => close() }, t("dialog.back")), submit));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    setText(wrong, "");
    try {
      answer = await send();
      close();
    } catch (problem) {
      setText(wrong, messageOf(problem));
    } finally {
      submit.disabled = false;
    }
  });
  await showModal({
    title,
    className: "share",
    content: [form],
    opened: (end, dialog) => {
      close = end;
      dialog.querySelector("fieldset:not([hidden]) input:checked, .field input").focus();
    },
  });
  return answer;
}

/** Show the address of a link, to be copied, and as a picture for the camera of a phone. */
export async function showLink({ url, kind, name, expires_at: expiresAt }) {
  const href = new URL(url, location.href).href;
  const address = element("input", { type: "text", readonly: true, id: "share-address", value: href, onfocus: (event) => event.target.select() });
  const copy = element("button", { type: "button", class: "primary", onclick: () => copied(address, copy) }, glyph("copy"), element("span", {}, t("share.copy")));
  let close = () => {};
  await showModal({
    title: t(`share.made-${kind}`, { name: name.replace(/\/$/, "") }),
    className: "share",
    content: [
      element("label", { for: "share-address" }, t("share.address")),
      element("div", { class: "copied" }, address, copy),
      qrPicture(href, t("share.qr")),
      element("p", { class: "muted" }, t("share.until", { time: formatTime(expiresAt) })),
      element("div", { class: "actions" }, element("button", { type: "button", onclick: () => close() }, t("action.close"))),
    ],
    opened: (end) => {
      close = end;
      copy.focus();
    },
  });
}

/** A QR code, with the quiet zone that readers need. */
export function qrPicture(text, label) {
  const picture = toSvg(generate(text, { minCorrectionLevel: correction.M }), document, { on: "#000000", off: "#ffffff" });
  const attributes = { class: "qr", role: "img", "aria-label": label };
  for (const [name, value] of Object.entries(attributes)) picture.setAttribute(name, value);
  return picture;
}

function choices(name, title, offered, chosen) {
  return element("fieldset", { class: "choices" }, element("legend", {}, title),
    ...offered.map(([value, word], number) =>
      element("label", {}, element("input", { type: "radio", name, value, checked: number === chosen }), element("span", {}, t(`share.${word}`)))));
}

function field(id, title, attributes) {
  return element("div", { class: "field" }, element("label", { for: id }, title), element("input", { id, ...attributes }));
}

/** What both dialogs ask for, with what a link has. */
function fields(link = {}) {
  const figure = { type: "text", maxlength: 12, autocomplete: "off" };
  const gib = link.max_bytes ? Number((link.max_bytes / GIB).toPrecision(6)) : "";
  return {
    label: field("share-label", t("share.label"), { type: "text", maxlength: 200, autocomplete: "off", value: link.label ?? "" }),
    password: field("share-password", t(link.has_password ? "share.new-password" : "share.password"), { type: "password", maxlength: 200, autocomplete: "new-password" }),
    limits: {
      max_downloads: field("share-downloads", t("share.max-downloads"), { ...figure, inputmode: "numeric", value: link.max_downloads ?? "" }),
      max_files: field("share-files", t("share.max-files"), { ...figure, inputmode: "numeric", value: link.max_files ?? "" }),
      max_bytes: field("share-bytes", t("share.max-bytes"), { ...figure, inputmode: "decimal", value: gib }),
    },
  };
}

/** Show the limits of a kind alone. */
function showLimits(limits, kind) {
  limits.max_downloads.hidden = kind === "upload";
  limits.max_files.hidden = limits.max_bytes.hidden = kind !== "upload";
}

function valueOf(asked) {
  return asked.querySelector("input").value.trim();
}

function isChanged(asked) {
  return valueOf(asked) !== asked.querySelector("input").defaultValue;
}

/** The limit in a field; null: none. Throws a Problem. */
function figureIn(asked, member) {
  if (!valueOf(asked)) return null;
  const figure = Number(valueOf(asked).replace(",", "."));
  const limit = member === "max_bytes" ? Math.round(figure * GIB) : figure;
  if (!Number.isSafeInteger(limit) || limit < 1) throw new Problem("not-a-figure", { fields: { name: titleOf(asked) } });
  return limit;
}

/** The time in a field. Throws a Problem. */
function momentIn(asked) {
  const moment = new Date(valueOf(asked));
  if (Number.isNaN(moment.getTime())) throw new Problem("not-a-time", { fields: { name: titleOf(asked) } });
  return moment.toISOString();
}

function titleOf(asked) {
  return asked.querySelector("label").textContent;
}

/** A time as the clock of this place has it, for a field. */
function localTime(text) {
  const moment = new Date(text);
  return new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** Put an address where it can be pasted from, and say so in the button for a while. */
export async function copied(address, button) {
  try {
    await navigator.clipboard.writeText(address.value);
  } catch {
    address.select(); // where the page may not, or comes by plain HTTP
    document.execCommand("copy");
  }
  const words = button.querySelector("span");
  setText(words, t("share.copied"));
  setTimeout(() => setText(words, t("share.copy")), 2000);
}
