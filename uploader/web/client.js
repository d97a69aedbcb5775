// The client of uploader for the pages of other applications: docs/libraries.md shows it, client.d.ts has its types.
// A few small modules of this server; browsers ask each time whether theirs are still the ones.

export * from "./static/pages/client/index.js";
