// Questions to the person before the screen, as modal dialogs.

import { element } from "./dom.js";
import { t } from "./i18n.js";

/** Whether they agree. */
export async function confirmed({ title, text, confirm, danger = false }) {
  const answer = await ask(title, [element("p", { id: "dialog-text" }, text)], confirm, danger);
  return answer !== null;
}

/** The text they give, or null. */
export async function askText({ title, label, value, confirm }) {
  const input = element("input", { id: "dialog-input", type: "text", value, maxlength: 1024, required: true });
  const answer = await ask(title, [element("label", { for: "dialog-input" }, label), input], confirm, false, input);
  return answer === null ? null : input.value;
}

function ask(title, content, confirm, danger, focus = null) {
  const returnTo = document.activeElement;
  return new Promise((resolve) => {
    const form = element("form", { method: "dialog" },
      element("h2", { id: "dialog-title" }, title),
      ...content,
      element("div", { class: "actions" },
        element("button", { type: "button", onclick: () => dialog.close() }, t("dialog.back")),
        element("button", { class: danger ? "danger" : "primary", type: "submit" }, confirm),
      ),
    );
    const dialog = element("dialog", { "aria-labelledby": "dialog-title" }, form);
    let answer = null;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      answer = "yes";
      dialog.close();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      returnTo?.focus?.();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
    if (focus) {
      focus.focus();
      focus.select();
    }
  });
}
