// Reads and hashes files beside the page, one job after the other. Sends nothing anywhere: its policy forbids it.

import "../../vendor/hash-wasm/md5.umd.min.js";
import "../../vendor/hash-wasm/sha256.umd.min.js";
import "../../vendor/hash-wasm/hmac.umd.min.js";
import { sampleRanges } from "./plan.js";
import { archiveOf } from "./tar.js";

const { createMD5, createSHA256, createHMAC } = globalThis.hashwasm;
const BLOCK_BYTES = 4 << 20;
const KEY_DIGITS = 40;

const cancelled = new Set();
let last = Promise.resolve();

async function bytes(file, offset, length) {
  return new Uint8Array(await file.slice(offset, offset + length).arrayBuffer());
}

const jobs = {
  /** Both digests, in one pass; the page is told after every block. */
  async digests({ file }, id) {
    const [md5, sha256] = await Promise.all([createMD5(), createSHA256()]);
    for (let offset = 0; offset < file.size; offset += BLOCK_BYTES) {
      if (cancelled.has(id)) return null;
      const block = await bytes(file, offset, BLOCK_BYTES);
      md5.update(block);
      sha256.update(block);
      postMessage({ id, hashedBytes: offset + block.length });
    }
    return { md5: md5.digest(), sha256: sha256.digest() };
  },

  /** The archive of small files; which of them are in it, and what hinders the others. */
  async pack({ members }) {
    const read = await Promise.allSettled(members.map(({ file }) => file.arrayBuffer()));
    const sha256 = await createSHA256();
    const packed = [];
    const outcomes = members.map(({ file, name, sha256s }, number) => {
      const { value, reason } = read[number];
      if (!value) return { packed: false, problem: codeOf(reason) };
      const content = new Uint8Array(value);
      const digest = sha256.init().update(content).digest();
      if (sha256s.includes(digest)) return { packed: false, sha256: digest };
      packed.push({ name, modifiedMs: file.lastModified, sha256: digest, bytes: content });
      return { packed: true, sha256: digest };
    });
    return { archive: new Blob([archiveOf(packed)]), outcomes };
  },

  /** The key under which a large file is opened, without the number of the attempt; the command line makes the same. */
  async resumeKey({ file, name }) {
    const [sampled, whole] = await Promise.all([createSHA256(), createSHA256()]);
    const blocks = await Promise.all(sampleRanges(file.size).map(([offset, length]) => bytes(file, offset, length)));
    for (const block of blocks) sampled.update(block);
    whole.update(`uploader/put/1\n${name}\n${file.size}\n`);
    whole.update(sampled.digest("binary"));
    return `put-${whole.digest().slice(0, KEY_DIGITS)}`;
  },

  /** The proof of possession that a challenge asks for. */
  async proof({ file, sha256, challenge }) {
    const nonce = Uint8Array.from(atob(challenge.nonce), (character) => character.charCodeAt(0));
    const mac = await createHMAC(createSHA256(), nonce);
    mac.update(`uploader/1\n${challenge.user_id}\n${sha256}\n${file.size}\n`);
    for (const [offset, length] of challenge.ranges) {
      const head = new DataView(new ArrayBuffer(16));
      head.setBigUint64(0, BigInt(offset));
      head.setBigUint64(8, BigInt(length));
      mac.update(new Uint8Array(head.buffer));
      mac.update(await bytes(file, offset, length));
    }
    return mac.digest();
  },
};

/** What the page calls it. */
function codeOf(error) {
  return error.name === "NotReadableError" ? "file-changed" : "unreadable";
}

async function work({ id, job, ...facts }) {
  try {
    postMessage({ id, result: cancelled.has(id) ? null : await jobs[job](facts, id) });
  } catch (error) {
    postMessage({ id, problem: codeOf(error) });
  } finally {
    cancelled.delete(id);
  }
}

onmessage = ({ data }) => {
  if (data.cancel !== undefined) cancelled.add(data.cancel);
  else last = last.then(() => work(data));
};
