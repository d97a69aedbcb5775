// Short messages at the edge of the window, each with something that may be done about it for a while.

import { element } from "../../dom.js";

export class Toasts {
  constructor(node) {
    this.node = node;
  }

  /** Show `text` for some seconds, longer while somebody is at it; then, or where it is closed early, `ended()`. Returns a
   * function that takes it away without that. */
  show(text, { action = null, run = () => {}, seconds = 6, ended = () => {} }) {
    let timer = 0;
    const away = () => {
      clearTimeout(timer);
      toast.remove();
    };
    const end = () => {
      away();
      ended();
    };
    const start = () => {
      clearTimeout(timer);
      timer = setTimeout(end, seconds * 1000);
    };
    const button = action && element("button", { type: "button", class: "toast-action", onclick: () => {
      away();
      run();
    } }, action);
    const toast = element("div", { class: "toast" }, element("p", {}, text), button);
    toast.addEventListener("pointerenter", () => clearTimeout(timer));
    toast.addEventListener("pointerleave", start);
    toast.addEventListener("focusin", () => clearTimeout(timer));
    toast.addEventListener("focusout", start);
    this.node.append(toast);
    start();
    return away;
  }
}
