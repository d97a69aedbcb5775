// The bar at the top of every page: its name, the other pages, language, theme, signing out.

import { SERVER } from "./client/api.js";
import { element, icon } from "./dom.js";
import { language, onLanguage, setLanguage, t } from "./i18n.js";

const THEMES = ["auto", "light", "dark"];

function theme() {
  return document.documentElement.dataset.theme ?? "auto";
}

function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  try {
    if (name === "auto") localStorage.removeItem("uploader.theme");
    else localStorage.setItem("uploader.theme", name);
  } catch {
    // then it holds until the page is closed
  }
}

/** The pages that administrators go between. */
export const PAGES = [{ href: `${SERVER}/`, key: "header.files" }, { href: `${SERVER}/admin/`, key: "header.admin" }];

/** `chosen()` is called after each choice. */
export function languageChooser(chosen = () => {}) {
  const chooser = element("select", { "aria-label": t("header.language"), "data-label": "header.language" },
    element("option", { value: "en", lang: "en", selected: language() === "en" }, "English"),
    element("option", { value: "zh", lang: "zh", selected: language() === "zh" }, "中文"),
  );
  chooser.addEventListener("change", () => {
    setLanguage(chooser.value);
    chosen();
  });
  return chooser;
}

/** Fill the page's <header>. `links`: [{href, key}] in addition to the name; `signOut` is null where nobody signs in; `own` is
 * what only this page has there. */
export function mountHeader(header, { links = [], signOut = null, own = null }) {
  const draw = () => {
    const chooser = languageChooser(() => header.querySelector("select").focus());
    const label = element("span", {}, t(`theme.${theme()}`));
    const toggle = element("button", { type: "button", class: "quiet theme" }, icon("theme"), label);
    const name = () => toggle.setAttribute("aria-label", `${t("header.theme")}: ${t(`theme.${theme()}`)}`);
    toggle.addEventListener("click", () => {
      setTheme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
      label.textContent = t(`theme.${theme()}`);
      name();
    });
    name();
    header.replaceChildren(...[
      element("a", { class: "brand", href: `${SERVER}/` }, icon("upload"), element("span", {}, "uploader")),
      element("nav", { "aria-label": t("header.pages") },
        ...links.map(({ href, key }) =>
          element("a", { href, "aria-current": location.origin + location.pathname === href ? "page" : null }, t(key)))),
      own,
      element("div", { class: "settings" },
        chooser, toggle,
        signOut && element("button", { type: "button", class: "quiet", onclick: signOut }, t("header.sign-out"))),
    ].filter(Boolean));
  };
  draw();
  onLanguage(draw);
}
