// What `/client.js` has: the client of these pages, for those of one's own application. Its types are in client.d.ts.

export { Client } from "./client.js";
export { Problem } from "./api.js";
export { fromInput, fromTransfer } from "./picking.js";
