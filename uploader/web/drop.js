// The element <uploader-drop> for the pages of other applications: docs/drop.md shows it, drop.d.ts has its types.

export * from "./static/pages/drop/index.js";
