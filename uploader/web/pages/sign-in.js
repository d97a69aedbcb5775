// The question for a token: a dialog that can't be dismissed, and closes when the server takes the token.

import "./sign-in-words.js";
import { Api, Problem } from "./client/api.js";
import { element, icon, setText } from "./dom.js";
import { languageChooser } from "./header.js";
import { t, translate } from "./i18n.js";
import { messageOf } from "./problems.js";

const LOOPBACK = /^(localhost|.+\.localhost|127(\.\d+){3}|\[::1\])$/;

/** Whether the page is open at an address that only this machine has. */
export const isLocal = () => LOOPBACK.test(location.hostname);

/** `refused`: whether a token was shown and not taken. Resolves to {token, forLong}. */
export function askForToken(refused) {
  return new Promise((resolve) => {
    const input = element("input", {
      id: "token", name: "token", type: "password", required: true,
      autocomplete: "current-password", autocapitalize: "off", spellcheck: "false", "aria-describedby": "token-hint token-first token-error",
    });
    const show = element("button", { type: "button", "data-text": "session.show", "aria-pressed": "false", onclick: () => {
      const shown = input.type === "password";
      input.type = shown ? "text" : "password";
      show.setAttribute("aria-pressed", shown);
    } });
    const stay = element("input", { id: "stay", type: "checkbox" });
    const hint = element("p", { id: "token-hint", class: "hint", "data-text": "session.hint" });
    const first = isLocal() && element("p", { id: "token-first", class: "hint", "data-text": "session.first" });
    const error = element("p", { id: "token-error", class: "error", role: "alert" });
    const submit = element("button", { class: "primary", type: "submit", "data-text": "session.enter" });
    const form = element("form", { novalidate: true },
      element("h1", { id: "sign-in-title", "data-text": "session.title" }),
      element("label", { for: "token", "data-text": "session.token" }),
      element("div", { class: "secret" }, input, show),
      hint, first,
      element("label", { class: "check", for: "stay" }, stay, element("span", { "data-text": "session.stay" })),
      error,
      element("div", { class: "actions" }, submit),
    );
    const head = element("div", { class: "sign-in-head" },
      element("span", { class: "brand" }, icon("upload"), element("span", {}, "uploader")), languageChooser());
    const dialog = element("dialog", { class: "sign-in", "aria-labelledby": "sign-in-title" }, head, form);
    const tell = (problem) => {
      const unknown = problem.code === "unauthenticated";
      if (unknown) error.dataset.text = "session.refused";
      else delete error.dataset.text;
      setText(error, unknown ? t("session.refused") : messageOf(problem));
    };
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      submit.disabled = true;
      delete error.dataset.text;
      error.textContent = "";
      const token = input.value.trim();
      try {
        await probe(token);
        dialog.close();
        dialog.remove();
        resolve({ token, forLong: stay.checked });
      } catch (problem) {
        tell(problem);
        input.setAttribute("aria-invalid", "true");
        input.focus();
      } finally {
        submit.disabled = false;
      }
    });
    translate(dialog);
    if (refused) tell(new Problem("unauthenticated"));
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
    explainJwts(hint, first);
  });
}

/** Where the server makes no tokens itself, they come from elsewhere. */
async function explainJwts(hint, first) {
  try {
    const { auth } = await new Api().request("GET", "/config");
    if (auth !== "jwt") return;
    hint.dataset.text = "session.hint-jwt";
    setText(hint, t("session.hint-jwt"));
    first?.remove?.();
  } catch {
    // the ordinary hint stays
  }
}

async function probe(token) {
  if (!/^[!-~]+$/.test(token)) throw new Problem("unauthenticated");
  const api = new Api();
  api.token = token;
  await api.request("GET", "/me/usage");
}
