// A link to a file, for whoever has no account here.

import { element, setText } from "../../dom.js";
import { formatTime } from "../../format.js";
import { t } from "../../i18n.js";
import { messageOf } from "../../problems.js";
import { showModal } from "./modal.js";
import { glyph } from "./pictures.js";

const LIFETIMES = [["hour", 3600], ["day", 86_400], ["week", 7 * 86_400], ["month", 30 * 86_400]];

export async function share(api, { key, name }) {
  const { link_lifetime_seconds: longest } = await api.request("GET", "/config");
  const offered = LIFETIMES.filter(([, seconds]) => seconds <= longest);
  if (!offered.length) offered.push(["longest", Math.floor(longest)]);
  const address = element("input", { type: "text", readonly: true, id: "share-address", onfocus: (event) => event.target.select() });
  const until = element("p", { class: "muted", role: "status" });
  const wrong = element("p", { class: "error", role: "alert" });
  const copy = element("button", { type: "button", class: "primary", onclick: () => copied(address, copy) }, glyph("copy"), element("span", {}, t("share.copy")));
  const chosen = element("fieldset", { class: "choices" }, element("legend", {}, t("share.lifetime")),
    ...offered.map(([word, seconds], number) =>
      element("label", {}, element("input", { type: "radio", name: "lifetime", value: seconds, checked: number === Math.min(1, offered.length - 1), onchange: () => make(seconds) }),
        element("span", {}, t(`share.${word}`)))));

  let close = () => {};

  async function make(seconds) {
    copy.disabled = true;
    setText(wrong, "");
    try {
      const { url, expires_at } = await api.request("POST", `/me/files/${key}/link`, { body: { expires_in: seconds } });
      address.value = new URL(url, location.origin).href;
      setText(until, t("share.until", { time: formatTime(expires_at) }));
      copy.disabled = false;
    } catch (problem) {
      setText(wrong, messageOf(problem));
    }
  }

  await showModal({
    title: t("share.title", { name }),
    className: "share",
    content: [
      element("p", {}, t("share.text")),
      chosen,
      element("label", { for: "share-address" }, t("share.address")),
      element("div", { class: "copied" }, address, copy),
      until, wrong,
      element("p", { class: "muted" }, t("share.end")),
      element("div", { class: "actions" }, element("button", { type: "button", onclick: () => close() }, t("action.close"))),
    ],
    opened: (end, dialog) => {
      close = end;
      dialog.querySelector("input:checked").focus();
      make(Number(dialog.querySelector("input:checked").value));
    },
  });
}

async function copied(address, button) {
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
