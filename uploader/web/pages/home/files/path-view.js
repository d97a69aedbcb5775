// The way to where a person is: each folder on it leads there.

import { element } from "../../dom.js";
import { t } from "../../i18n.js";
import { glyph } from "./pictures.js";
import { hashOf, stepsTo } from "./place.js";

/** Draw the way to a place into `nav`; with `title` to a view that is no folder. What is long loses its middle, so that the end of it is always seen. */
export function drawPath(nav, { prefix, query, title = query && t("search.for", { query }) }) {
  const steps = [{ name: t("path.top"), prefix: "" }, ...(title ? [] : stepsTo(prefix))];
  const last = steps.length - 1;
  const items = steps.map((step, number) => {
    const isHere = number === last && !title;
    const name = element("span", {}, step.name);
    const picture = number === 0 && glyph("home");
    const link = element("a", { href: hashOf({ prefix: step.prefix }), "aria-current": isHere ? "page" : null, "data-folder": step.prefix, draggable: "false" }, picture, name);
    return element("li", { class: number === 0 ? "top" : null, title: step.name }, number > 0 && glyph("right"), link);
  });
  if (title) items.push(element("li", {}, glyph("right"), element("span", { "aria-current": "page", class: "found" }, title)));
  nav.replaceChildren(element("ol", {}, ...items));
  nav.scrollLeft = nav.scrollWidth;
}
