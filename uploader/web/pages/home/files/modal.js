// Dialogs of the list of files, which hold more than a question. A click beside one closes it.

import { element } from "../../dom.js";

let made = 0;

/** Show `content` under a title; `opened(close)` is called when it is there. Resolves when it is closed. */
export function showModal({ title, content, className = "", opened = () => {} }) {
  const returnTo = document.activeElement;
  const id = `modal-${(made += 1)}`;
  const heading = element("h2", { id }, title);
  const dialog = element("dialog", { class: className, "aria-labelledby": id }, element("div", { class: "modal" }, heading, ...content));
  return new Promise((resolve) => {
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.addEventListener("close", () => {
      dialog.remove();
      // The browser gives the focus back itself, but not to what is drawn anew since.
      if (document.activeElement === document.body) returnTo?.focus?.({ preventScroll: true });
      resolve();
    });
    document.body.append(dialog);
    dialog.showModal();
    opened(() => dialog.close(), dialog, heading);
  });
}
