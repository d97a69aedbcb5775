// Questions to the person before the screen, as modal dialogs.

import { element } from "./dom.js";
import { t } from "./i18n.js";

/** Whether they agree. */
export async function confirmed({ title, text, confirm, danger = false }) {
  const answer = await ask(title, [element("p", { id: "dialog-text" }, text)], yes(confirm, danger));
  return answer !== null;
}

function yes(label, danger) {
  return [{ value: "yes", label, kind: danger ? "danger" : "primary" }];
}

/** Which of the `choices` ({value, label, kind}) they take; null: none. The first one is taken by the Enter key. */
export function ask(title, content, choices, { back = t("dialog.back") } = {}) {
  const returnTo = document.activeElement;
  return new Promise((resolve) => {
    const buttons = choices.map(({ value, label, kind }) => element("button", { class: kind, type: "submit", value }, label));
    const form = element("form", { method: "dialog" },
      element("h2", { id: "dialog-title" }, title),
      ...content,
      element("div", { class: "actions" }, element("button", { type: "button", onclick: () => dialog.close() }, back), ...buttons),
    );
    const dialog = element("dialog", { "aria-labelledby": "dialog-title" }, form);
    let answer = null;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      answer = event.submitter.value;
      dialog.close();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      returnTo?.focus?.();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
