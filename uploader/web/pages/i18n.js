// The languages of the pages: which one is chosen, and a text in it. The texts are in words.js and in each page's own file.

const tables = { en: {}, zh: {} };
const listeners = new Set();

/** Add texts: `{en: {key: text}, zh: {key: text}}`. `{name}` in a text stands for a value; a text may be `{one, other}`. */
export function addWords(words) {
  for (const [name, table] of Object.entries(words)) Object.assign(tables[name], table);
}

export function language() {
  return document.documentElement.lang.startsWith("zh") ? "zh" : "en";
}

/** How figures and times are written: as the browser is set, where that is the language of the page. */
function locale() {
  return navigator.languages.find((name) => name.startsWith(language())) ?? document.documentElement.lang;
}

const formats = new Map();

/** The `kind` of Intl (NumberFormat, DateTimeFormat) for this locale: kept, because making one takes longer than using it a
 * hundred times. */
export function format(kind, options = {}) {
  const key = [locale(), kind, JSON.stringify(options)].join(" ");
  if (!formats.has(key)) formats.set(key, new Intl[kind](locale(), options));
  return formats.get(key);
}

export function setLanguage(name) {
  document.documentElement.lang = name === "zh" ? "zh-CN" : "en";
  try {
    localStorage.setItem("uploader.language", name);
  } catch {
    // then it holds until the page is closed
  }
  translate();
  for (const listener of listeners) listener();
}

/** Call `listener` whenever the language changes. */
export function onLanguage(listener) {
  listeners.add(listener);
}

export function has(key) {
  return key in tables[language()];
}

/** The text of a key. `count` among the values chooses between its forms. */
export function t(key, values = {}) {
  const found = tables[language()][key] ?? tables.en[key] ?? key;
  const text = typeof found === "string" ? found : found[new Intl.PluralRules("en").select(values.count)] ?? found.other;
  return text.replace(/\{(\w+)\}/g, (whole, name) => {
    const value = values[name];
    if (value === undefined) return whole;
    return typeof value === "number" ? format("NumberFormat").format(value) : String(value);
  });
}

/** Put the texts into the markup: `data-text` names the key of the content, `data-label` that of the accessible name. */
export function translate(root = document) {
  for (const node of root.querySelectorAll("[data-text]")) node.textContent = t(node.dataset.text);
  for (const node of root.querySelectorAll("[data-label]")) node.setAttribute("aria-label", t(node.dataset.label));
  for (const node of root.querySelectorAll("[data-placeholder]")) node.placeholder = t(node.dataset.placeholder);
}
