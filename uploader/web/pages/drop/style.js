// How <uploader-drop> looks, where the page around sets nothing else. A sheet of its own: a policy of the page may forbid styles
// in markup.

export const sheet = new CSSStyleSheet();

sheet.replaceSync(
  [
    ":host {",
    "  --accent: var(--uploader-accent, #1f6feb);",
    "  --border: var(--uploader-border, color-mix(in srgb, currentColor 35%, transparent));",
    "  --error: var(--uploader-error, #c62828);",
    "  --radius: var(--uploader-radius, 8px);",
    "  display: block;",
    "  font: var(--uploader-font, inherit);",
    "  color: var(--uploader-color, inherit);",
    "  background: var(--uploader-background, transparent);",
    "}",
    ":host([hidden]), [hidden] { display: none; }",
    ".zone { padding: 1.5em; border: 2px dashed var(--border); border-radius: var(--radius); text-align: center; }",
    ":host(:state(over)) .zone { border-color: var(--accent); }",
    ":host(:disabled) { opacity: 0.6; }",
    "button { font: inherit; color: inherit; background: none; border: 1px solid var(--border); border-radius: var(--radius); cursor: pointer; }",
    "button:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }",
    "button:disabled { cursor: default; }",
    ".choose { padding: 0.5em 1em; color: #fff; background: var(--accent); border-color: transparent; }",
    ".hint { margin-inline-start: 0.5em; }",
    "ul { margin: 0.75em 0 0; padding: 0; list-style: none; }",
    "li { display: grid; grid-template-columns: 1fr auto auto auto; gap: 0.25em 0.5em; align-items: center; padding: 0.5em 0; }",
    ".name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }",
    ".bar { grid-column: 1 / -1; height: 4px; border-radius: 2px; background: var(--border); }",
    ".bar > div { height: 100%; width: 0; border-radius: inherit; background: var(--accent); }",
    ".status { grid-column: 1 / -1; font-size: 0.875em; }",
    ".error { color: var(--error); }",
    "li button { min-width: 2em; min-height: 2em; }",
    ".icon { width: 1em; height: 1em; fill: none; stroke: currentColor; stroke-width: 2; vertical-align: middle; }",
  ].join("\n"),
);
