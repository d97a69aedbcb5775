// What the server takes besides chunks, asked once for each page that is loaded: an older one takes chunks only.

import { Problem } from "./api.js";

// A batch is no larger than a chunk, so that it passes wherever chunks do, nor than what is gladly sent again.
const LARGEST_BATCH_BYTES = 8 << 20;
// Up to this size a file is sent without a question: to ask whether its bytes can be spared costs as much.
const LARGEST_MEMBER_BYTES = 256 << 10;
const EMPTY_ARCHIVE = new Uint8Array(1024);

// Problems that say nothing of the server.
const OF_CALLER = new Set(["unauthenticated", "no-token"]);

const CHUNKS_ONLY = { wholeBytes: -1, memberBytes: -1, batchBytes: -1, times: false };

export class Offers {
  #asked = null;

  constructor(api) {
    this.api = api;
  }

  /** `{wholeBytes, memberBytes, batchBytes, times}`: the largest file that may have a request of its own, the largest in a
   * batch, the largest batch (-1: none); whether times of modification are taken. With `options` that are patient enough it
   * always comes to an answer. */
  ask(options) {
    this.#asked ??= this.#ask(options);
    return this.#asked;
  }

  async #ask(options) {
    try {
      await this.api.send("POST", "/files/batch", EMPTY_ARCHIVE, options);
      const { chunk_size: chunkSize } = await this.api.request("GET", "/config", options);
      const batchBytes = Math.min(chunkSize.default, LARGEST_BATCH_BYTES);
      const memberBytes = Math.min(batchBytes, LARGEST_MEMBER_BYTES);
      return { wholeBytes: chunkSize.default, memberBytes, batchBytes, times: true };
    } catch (problem) {
      // An older one takes "batch" for an MD5, others are in the way; if chunks do not pass either, they say why.
      if (!(problem instanceof Problem) || OF_CALLER.has(problem.code)) throw problem;
      return CHUNKS_ONLY;
    }
  }
}
