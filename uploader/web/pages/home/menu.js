// Menus: a few choices below a button or where somebody pointed; by keyboard, too.

import { element } from "../dom.js";

let open = null;

/** Show `choices`: [{text, picture, run, danger}]; `at` is an element, or a point {x, y}. The focus returns to where it was. */
export function openMenu(choices, at, label) {
  open?.close();
  const returnTo = document.activeElement;
  const owner = at instanceof Element && at.hasAttribute("aria-haspopup") ? at : null;
  const items = choices.map(({ text, picture, run, danger = false }) =>
    element("button", { type: "button", role: "menuitem", tabindex: -1, class: danger ? "danger-choice" : null, onclick: () => {
      close();
      run();
    } }, picture, element("span", {}, text)));
  const menu = element("div", { class: "menu", role: "menu", "aria-label": label }, ...items);
  const close = () => {
    if (open?.menu !== menu) return;
    open = null;
    menu.remove();
    removeEventListener("pointerdown", outside, true);
    removeEventListener("scroll", close, true);
    removeEventListener("resize", close);
    owner?.setAttribute("aria-expanded", "false");
    returnTo?.focus?.({ preventScroll: true });
  };
  const outside = (event) => !menu.contains(event.target) && close();
  menu.addEventListener("keydown", (event) => {
    event.stopPropagation();
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const place = items.indexOf(document.activeElement);
    if (step) items[(place + step + items.length) % items.length].focus();
    else if (event.key === "Home") items[0].focus();
    else if (event.key === "End") items.at(-1).focus();
    else if (event.key === "Escape" || event.key === "Tab") close();
    else return;
    event.preventDefault();
  });
  document.body.append(menu);
  place(menu, at instanceof Element ? at.getBoundingClientRect() : new DOMRect(at.x, at.y, 0, 0));
  owner?.setAttribute("aria-expanded", "true");
  open = { menu, close };
  addEventListener("pointerdown", outside, true);
  addEventListener("scroll", close, true);
  addEventListener("resize", close);
  items[0].focus();
}

/** Below, or above where there is no room; within the window. */
function place(menu, { left, right, top, bottom, width }) {
  const { offsetWidth, offsetHeight } = menu;
  const start = width && right - offsetWidth > 8 ? right - offsetWidth : left;
  const x = Math.max(8, Math.min(start, innerWidth - offsetWidth - 8));
  const y = bottom + 4 + offsetHeight > innerHeight - 8 ? Math.max(8, top - offsetHeight - 4) : bottom + 4;
  menu.style.left = `${x}px`;
  menu.style.top = `${y}px`;
}
