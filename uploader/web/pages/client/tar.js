// A tar stream as `POST /files/batch` takes it: before each member a pax header, for what ustar has no room for. Pure.

const BLOCK_BYTES = 512;
const NAME_BYTES = 100;
const FILE = "0";
const PAX = "x";
const LARGEST_MTIME = 0o77777777777;

const encoder = new TextEncoder();

/** The stream of `members`: {name, modifiedMs, sha256, bytes}. */
export function archiveOf(members) {
  const parts = members.map((member) => ({ member, pax: paxOf(member) }));
  const lengths = parts.map(({ member, pax }) => 2 * BLOCK_BYTES + padded(pax.length) + padded(member.bytes.length));
  const stream = new Uint8Array(lengths.reduce((sum, length) => sum + length, 2 * BLOCK_BYTES));
  let offset = 0;
  const put = (name, type, modifiedMs, bytes) => {
    stream.set(header(name, type, modifiedMs, bytes.length), offset);
    stream.set(bytes, offset + BLOCK_BYTES);
    offset += BLOCK_BYTES + padded(bytes.length);
  };
  for (const { member, pax } of parts) {
    put("pax", PAX, 0, pax);
    put(member.name, FILE, member.modifiedMs, member.bytes);
  }
  return stream;
}

function padded(length) {
  return Math.ceil(length / BLOCK_BYTES) * BLOCK_BYTES;
}

function paxOf({ name, modifiedMs, sha256 }) {
  const facts = { mtime: (modifiedMs / 1000).toFixed(3), "uploader.sha256": sha256 };
  if (!fits(name)) facts.path = name;
  return encoder.encode(Object.entries(facts).map(([key, value]) => recordOf(key, value)).join(""));
}

function fits(name) {
  return name.length <= NAME_BYTES && /^[ -~]*$/.test(name);
}

/** `length key=value` and a line feed; the length counts its own digits. */
function recordOf(key, value) {
  const rest = ` ${key}=${value}\n`;
  const restBytes = encoder.encode(rest).length;
  let length = restBytes + 1;
  while (restBytes + String(length).length !== length) length += 1;
  return `${length}${rest}`;
}

function header(name, type, modifiedMs, size) {
  const block = new Uint8Array(BLOCK_BYTES);
  const write = (offset, text) => encoder.encodeInto(text, block.subarray(offset));
  const octal = (value, digits) => value.toString(8).padStart(digits, "0");
  write(0, fits(name) ? name : "long");
  write(100, octal(0o644, 7));
  write(108, octal(0, 7));
  write(116, octal(0, 7));
  write(124, octal(size, 11));
  write(136, octal(Math.min(LARGEST_MTIME, Math.max(0, Math.floor(modifiedMs / 1000))), 11));
  write(148, " ".repeat(8));
  write(156, type);
  write(257, "ustar\x0000");
  write(148, `${octal(block.reduce((sum, byte) => sum + byte, 0), 6)}\0`);
  return block;
}
