// Reads and hashes files beside the page, one job after the other. Sends nothing anywhere: its policy forbids it.

import "../../vendor/hash-wasm/md5.umd.min.js";
import "../../vendor/hash-wasm/sha256.umd.min.js";
import { sampleRanges } from "./plan.js";
import { archiveOf } from "./tar.js";
import { Breath } from "./waiting.js";

const { createMD5, createSHA256 } = globalThis.hashwasm;
const BLOCK_BYTES = 1 << 20;
const TELL_EVERY_MS = 100;
const KEY_DIGITS = 40;

const cancelled = new Set();
let last = Promise.resolve();

async function bytes(file, offset, length) {
  return new Uint8Array(await file.slice(offset, offset + length).arrayBuffer());
}

/** A file from its beginning to its end, while the browser reads ahead; each block is good until the next is asked for. */
async function* blocksOf(file) {
  const reader = readerOf(file.stream());
  let buffer = new ArrayBuffer(BLOCK_BYTES);
  try {
    for (;;) {
      const { done, value } = await reader.read(new Uint8Array(buffer));
      if (done) return;
      yield value;
      buffer = value.buffer;
    }
  } finally {
    // It has failed, and whoever reads knows.
    reader.cancel().catch(() => {});
  }
}

/** One that fills the buffer it is given, where the browser has that: half the work of others. */
function readerOf(stream) {
  try {
    return stream.getReader({ mode: "byob" });
  } catch {
    return stream.getReader();
  }
}

/** One digest of a large file; the page is told how far it is. */
async function digestOf(file, hash, id) {
  const breath = new Breath();
  let [hashedBytes, toldAt] = [0, 0];
  const tell = () => {
    toldAt = performance.now();
    postMessage({ id, hashedBytes });
  };
  for await (const block of blocksOf(file)) {
    hash.update(block);
    hashedBytes += block.length;
    if (performance.now() - toldAt > TELL_EVERY_MS) tell();
    // Else nobody could cancel it.
    await breath.take();
    if (cancelled.has(id)) return null;
  }
  tell();
  return hash.digest();
}

/** Of what is in memory: by the browser itself, several times as fast, but for pages that came without TLS. */
async function sha256Of(content) {
  if (!crypto.subtle) return (await createSHA256()).update(content).digest();
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const jobs = {
  md5: async ({ file }, id) => digestOf(file, await createMD5(), id),

  sha256: async ({ file }, id) => digestOf(file, await createSHA256(), id),

  /** Both digests of a file that there is memory for: one is computed while the browser computes the other. */
  async digests({ file }, id) {
    const content = new Uint8Array(await file.arrayBuffer());
    const sha256 = sha256Of(content);
    const md5 = (await createMD5()).update(content).digest();
    const digests = { md5, sha256: await sha256 };
    postMessage({ id, hashedBytes: content.length });
    return digests;
  },

  /** The archive of small files; which of them are in it, and what hinders the others. */
  async pack({ members }) {
    const read = await Promise.allSettled(members.map(({ file }) => file.arrayBuffer()));
    const sha256 = await createSHA256();
    const packed = [];
    const outcomes = members.map(({ file, name, isInDoubt, sha256s }, number) => {
      const { value, reason } = read[number];
      if (!value) return { packed: false, problem: codeOf(reason) };
      const content = new Uint8Array(value);
      const digest = sha256.init().update(content).digest();
      if (isInDoubt || sha256s.includes(digest)) return { packed: false, sha256: digest };
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
    // Here, because few uploads need a proof.
    await import("../../vendor/hash-wasm/hmac.umd.min.js");
    const { createHMAC } = globalThis.hashwasm;
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
  // The policy of the page around us forbids it.
  if (error instanceof WebAssembly.CompileError) return "worker-failed";
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
