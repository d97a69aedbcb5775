// What is added at one time: a drop, a choice of files, or one call.

import { Listings } from "./listings.js";

export class Addition {
  freeSpace = null;
  answer = null; // what the person said for all of it

  constructor(api) {
    this.listings = new Listings(api);
  }
}
