// Elements from code: text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  pause: "M8 5v14M16 5v14",
  resume: "M7 4.5v15l12-7.5z",
  fold: "M6 9.5l6 6 6-6",
  asked: "M9 9a3 3 0 1 1 4.2 2.8c-.8.4-1.2.9-1.2 1.9M12 17v.1M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  elsewhere: "M4 5h13v9H4zM2 17.5h11M16 10.5h5v9h-5z",
  cancel: "M6 6l12 12M18 6L6 18",
  retry: "M20 11a8 8 0 1 0-2.3 6.6M20 4v7h-7",
  choose: "M4 6h6l2 3h8v10H4z",
  theme: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  upload: "M12 20V7M6.5 12.5L12 7l5.5 5.5M5 3.5h14",
  instant: "M13 3L5 13.5h6L10 21l8.5-11H12z",
  held: "M12 7v5l3.5 2M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  done: "M5 12.5l4.5 4.5L19 7.5",
  failed: "M12 7.5v6M12 17v.1M12 3.5L21.5 20h-19z",
};

/** An element with attributes, listeners (`onclick`) and children; null and false stand for nothing. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** A picture that says nothing by itself: what it means is in the label beside it. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "icon");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows a picture and is called by a label; `visible` is a part of the label, for where there is room. */
export function iconButton(name, label, onclick, visible = null) {
  const attributes = { type: "button", class: "icon-button", "aria-label": label, title: label, onclick };
  return element("button", attributes, icon(name), visible && element("span", { class: "visible" }, visible));
}

/** Change a text only where it differs, so that nothing is drawn or read out again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Change an attribute only where it differs; null takes it away. */
export function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}
