// Links of a person: the dialog that makes one, and the one that shows it. Whoever has its address needs no account.

import "./words.js";
import { Problem } from "../../client/api.js";
import { element, setText } from "../../dom.js";
import { formatTime } from "../../format.js";
import { t } from "../../i18n.js";
import { messageOf } from "../../problems.js";
import { showModal } from "../files/modal.js";
import { glyph } from "../files/pictures.js";
import { qrPicture } from "./qr.js";

const DAY = 86_400;
// The last is as long as the server allows.
const LIFETIMES = [["day", DAY], ["week", 7 * DAY], ["longest", null]];
const GIB = 1 << 30;

/** `entry`: {path, name, isFolder}; `made()` is called when there is a link more. */
export async function share(api, { path, name, isFolder }, { made = () => {} } = {}) {
  const kinds = isFolder ? ["download", "upload"] : ["download"];
  const kind = choices("kind", t("share.kind"), kinds.map((word) => [word, word]), 0);
  const lifetime = choices("lifetime", t("share.lifetime"), LIFETIMES.map(([word]) => [word, word]), 1);
  const label = field("share-label", t("share.label"), { type: "text", maxlength: 200, autocomplete: "off" });
  const password = field("share-password", t("share.password"), { type: "password", maxlength: 200, autocomplete: "new-password" });
  const limits = {
    max_downloads: field("share-downloads", t("share.max-downloads"), { type: "text", inputmode: "numeric", maxlength: 9, autocomplete: "off" }),
    max_files: field("share-files", t("share.max-files"), { type: "text", inputmode: "numeric", maxlength: 9, autocomplete: "off" }),
    max_bytes: field("share-bytes", t("share.max-bytes"), { type: "text", inputmode: "decimal", maxlength: 9, autocomplete: "off" }),
  };
  const about = element("p", {});
  const wrong = element("p", { class: "error", role: "alert" });
  const submit = element("button", { type: "submit", class: "primary" }, t("share.make"));
  const chosen = (group) => group.querySelector("input:checked").value;
  const draw = () => {
    setText(about, t(`share.about-${chosen(kind)}`));
    const isUpload = chosen(kind) === "upload";
    limits.max_downloads.hidden = isUpload;
    limits.max_files.hidden = limits.max_bytes.hidden = !isUpload;
  };
  kind.hidden = kinds.length === 1;
  kind.addEventListener("change", draw);
  let close = () => {};
  let link = null;

  const form = element("form", { novalidate: true },
    kind, about, label, lifetime, password, ...Object.values(limits), wrong,
    element("div", { class: "actions" }, element("button", { type: "button", onclick: () => close() }, t("dialog.back")), submit));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    setText(wrong, "");
    try {
      link = await api.request("POST", "/me/links", { body: wanted() });
      close();
    } catch (problem) {
      setText(wrong, messageOf(problem));
    } finally {
      submit.disabled = false;
    }
  });

  function wanted() {
    const [, seconds] = LIFETIMES.find(([word]) => word === chosen(lifetime));
    const body = { kind: chosen(kind), name: isFolder ? `${path.replace(/\/$/, "")}/` : path };
    if (valueOf(label)) body.label = valueOf(label);
    if (valueOf(password)) body.password = valueOf(password);
    if (seconds) body.expires_at = new Date(Date.now() + seconds * 1000).toISOString();
    for (const [member, asked] of Object.entries(limits)) {
      if (asked.hidden || !valueOf(asked)) continue;
      const figure = Number(valueOf(asked).replace(",", "."));
      body[member] = member === "max_bytes" ? Math.round(figure * GIB) : figure;
      if (!Number.isSafeInteger(body[member]) || body[member] < 1) throw new Problem("not-a-figure", { fields: { name: asked.querySelector("label").textContent } });
    }
    return body;
  }

  draw();
  await showModal({
    title: t("share.title", { name }),
    className: "share",
    content: [form],
    opened: (end, dialog) => {
      close = end;
      dialog.querySelector("fieldset:not([hidden]) input:checked").focus();
    },
  });
  if (!link) return;
  made();
  await showLink(link);
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
      qrPicture(href, t("share.qr")) ?? "",
      element("p", { class: "muted" }, t("share.until", { time: formatTime(expiresAt) })),
      element("div", { class: "actions" }, element("button", { type: "button", onclick: () => close() }, t("action.close"))),
    ],
    opened: (end) => {
      close = end;
      copy.focus();
    },
  });
}

function choices(name, title, offered, chosen) {
  return element("fieldset", { class: "choices" }, element("legend", {}, title),
    ...offered.map(([value, word], number) =>
      element("label", {}, element("input", { type: "radio", name, value, checked: number === chosen }), element("span", {}, t(`share.${word}`)))));
}

function field(id, title, attributes) {
  return element("div", { class: "field" }, element("label", { for: id }, title), element("input", { id, ...attributes }));
}

function valueOf(asked) {
  return asked.querySelector("input").value.trim();
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
