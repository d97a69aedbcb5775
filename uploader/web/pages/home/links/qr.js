// A QR code (ISO/IEC 18004) of a text, made in the browser: bytes, error correction M, up to version 10, which holds 213 bytes.

// By version, from 1: all codewords, blocks, codewords of error correction in each block.
const CODEWORDS = [26, 44, 70, 100, 134, 172, 196, 242, 292, 346];
const BLOCKS = [1, 1, 1, 2, 2, 4, 4, 4, 5, 5];
const CORRECTION = [10, 16, 26, 18, 24, 16, 18, 22, 22, 26];
const QUIET = 4;
const MASKS = [
  (x, y) => (x + y) % 2 === 0,
  (x, y) => y % 2 === 0,
  (x) => x % 3 === 0,
  (x, y) => (x + y) % 3 === 0,
  (x, y) => (Math.floor(x / 3) + Math.floor(y / 2)) % 2 === 0,
  (x, y) => ((x * y) % 2) + ((x * y) % 3) === 0,
  (x, y) => (((x * y) % 2) + ((x * y) % 3)) % 2 === 0,
  (x, y) => (((x + y) % 2) + ((x * y) % 3)) % 2 === 0,
];

// The field of 256 elements that Reed and Solomon's code works in.
const EXP = [];
const LOG = [];
for (let power = 0, value = 1; power < 255; power += 1) {
  EXP[power] = value;
  LOG[value] = power;
  value = value & 128 ? (value << 1) ^ 0x11d : value << 1;
}
const product = (one, other) => (one && other ? EXP[(LOG[one] + LOG[other]) % 255] : 0);

function correctionOf(data, length) {
  let generator = [1];
  for (let power = 0; power < length; power += 1) {
    const next = [...generator, 0];
    generator.forEach((factor, place) => (next[place + 1] ^= product(factor, EXP[power])));
    generator = next;
  }
  const rest = [...data, ...Array(length).fill(0)];
  for (let place = 0; place < data.length; place += 1) {
    const lead = rest[place];
    generator.forEach((factor, offset) => (rest[place + offset] ^= product(factor, lead)));
  }
  return rest.slice(data.length);
}

/** The data of all blocks in turn, and then their error correction. */
function interleaved(data, version) {
  const [blocks, length] = [BLOCKS[version - 1], CORRECTION[version - 1]];
  const short = Math.floor(data.length / blocks);
  const longFrom = blocks - (data.length % blocks);
  const parts = [];
  for (let number = 0, at = 0; number < blocks; number += 1) {
    const size = short + (number >= longFrom ? 1 : 0);
    parts.push(data.slice(at, at + size));
    at += size;
  }
  const corrections = parts.map((part) => correctionOf(part, length));
  const turns = (rows, count) => Array.from({ length: count }, (_, place) => rows.filter((row) => place < row.length).map((row) => row[place])).flat();
  return [...turns(parts, short + 1), ...turns(corrections, length)];
}

function dataOf(bytes, version) {
  const capacity = CODEWORDS[version - 1] - BLOCKS[version - 1] * CORRECTION[version - 1];
  const bits = [];
  const put = (value, count) => {
    for (let bit = count - 1; bit >= 0; bit -= 1) bits.push((value >> bit) & 1);
  };
  put(4, 4);
  put(bytes.length, version < 10 ? 8 : 16);
  for (const byte of bytes) put(byte, 8);
  if (bits.length > capacity * 8) return null;
  put(0, Math.min(4, capacity * 8 - bits.length));
  put(0, (8 - (bits.length % 8)) % 8);
  for (let pad = 0xec; bits.length < capacity * 8; pad ^= 0xec ^ 0x11) put(pad, 8);
  return Array.from({ length: capacity }, (_, place) => parseInt(bits.slice(place * 8, place * 8 + 8).join(""), 2));
}

function withChecksum(value, bits, polynomial, length) {
  let rest = value << length;
  for (let bit = bits - 1; bit >= 0; bit -= 1) if ((rest >> (bit + length)) & 1) rest ^= polynomial << bit;
  return (value << length) | rest;
}

class QrSymbol {
  constructor(version) {
    this.version = version;
    this.size = 17 + 4 * version;
    this.dark = Array.from({ length: this.size }, () => Array(this.size).fill(false));
    this.fixed = Array.from({ length: this.size }, () => Array(this.size).fill(false));
    this.#drawPatterns();
  }

  #set(x, y, isDark) {
    if (x < 0 || y < 0 || x >= this.size || y >= this.size) return;
    this.dark[y][x] = isDark;
    this.fixed[y][x] = true;
  }

  #drawPatterns() {
    const { size, version } = this;
    for (let place = 0; place < size; place += 1) {
      this.#set(6, place, place % 2 === 0);
      this.#set(place, 6, place % 2 === 0);
    }
    for (const [x, y] of [[3, 3], [size - 4, 3], [3, size - 4]]) this.#drawRings(x, y, 4, (ring) => ring !== 2 && ring !== 4);
    const places = this.#alignments();
    const last = places.length - 1;
    places.forEach((x, column) => places.forEach((y, row) => {
      const isFinder = (column === 0 && row === 0) || (column === 0 && row === last) || (column === last && row === 0);
      if (!isFinder) this.#drawRings(x, y, 2, (ring) => ring !== 1);
    }));
    this.drawFormat(0);
    if (version < 7) return;
    const bits = withChecksum(version, 6, 0x1f25, 12);
    for (let bit = 0; bit < 18; bit += 1) {
      const [far, near] = [size - 11 + (bit % 3), Math.floor(bit / 3)];
      this.#set(far, near, Boolean((bits >> bit) & 1));
      this.#set(near, far, Boolean((bits >> bit) & 1));
    }
  }

  #drawRings(x, y, radius, isDark) {
    for (let down = -radius; down <= radius; down += 1) {
      for (let right = -radius; right <= radius; right += 1) this.#set(x + right, y + down, isDark(Math.max(Math.abs(right), Math.abs(down))));
    }
  }

  #alignments() {
    if (this.version === 1) return [];
    const last = this.size - 7;
    return this.version < 7 ? [6, last] : [6, (6 + last) / 2, last];
  }

  drawFormat(mask) {
    const { size } = this;
    const bits = withChecksum(mask, 5, 0x537, 10) ^ 0x5412; // the two bits before the mask, of M, are zero
    const bit = (number) => Boolean((bits >> number) & 1);
    for (let number = 0; number < 6; number += 1) this.#set(8, number, bit(number));
    this.#set(8, 7, bit(6));
    this.#set(8, 8, bit(7));
    this.#set(7, 8, bit(8));
    for (let number = 9; number < 15; number += 1) this.#set(14 - number, 8, bit(number));
    for (let number = 0; number < 8; number += 1) this.#set(size - 1 - number, 8, bit(number));
    for (let number = 8; number < 15; number += 1) this.#set(8, size - 15 + number, bit(number));
    this.#set(8, size - 8, true);
  }

  /** In pairs of columns from the right, up and down in turn. */
  drawCodewords(codewords) {
    let bit = 0;
    for (let right = this.size - 1; right > 0; right -= 2) {
      if (right === 6) right = 5;
      const isUp = ((right + 1) & 2) === 0;
      for (let step = 0; step < this.size; step += 1) {
        const y = isUp ? this.size - 1 - step : step;
        for (const x of [right, right - 1]) {
          if (this.fixed[y][x]) continue;
          this.dark[y][x] = Boolean(((codewords[bit >> 3] ?? 0) >> (7 - (bit & 7))) & 1);
          bit += 1;
        }
      }
    }
  }

  applyMask(mask) {
    for (let y = 0; y < this.size; y += 1) {
      for (let x = 0; x < this.size; x += 1) if (!this.fixed[y][x] && MASKS[mask](x, y)) this.dark[y][x] = !this.dark[y][x];
    }
  }

  /** How hard it is to read. */
  get penalty() {
    const { size, dark } = this;
    const lines = [...dark, ...dark.map((_, x) => dark.map((row) => row[x]))].map((line) => line.map((isDark) => (isDark ? 1 : 0)).join(""));
    let sum = 0;
    for (const line of lines) {
      for (const [run] of line.matchAll(/0{5,}|1{5,}/g)) sum += run.length - 2;
      sum += 40 * [...line.matchAll(/(?=10111010000|00001011101)/g)].length;
    }
    for (let y = 1; y < size; y += 1) {
      for (let x = 1; x < size; x += 1) sum += dark[y][x] === dark[y - 1][x] && dark[y][x] === dark[y][x - 1] && dark[y][x] === dark[y - 1][x - 1] ? 3 : 0;
    }
    const share = dark.flat().filter(Boolean).length / size ** 2;
    return sum + 10 * Math.floor(Math.abs(share - 0.5) * 20);
  }
}

/** Rows of modules, dark ones true; null for a text that is too long. */
export function qrOf(text) {
  const bytes = new TextEncoder().encode(text);
  for (let version = 1; version <= CODEWORDS.length; version += 1) {
    const data = dataOf(bytes, version);
    if (!data) continue;
    const symbol = new QrSymbol(version);
    symbol.drawCodewords(interleaved(data, version));
    let best = { penalty: Infinity };
    MASKS.forEach((_, mask) => {
      symbol.drawFormat(mask);
      symbol.applyMask(mask);
      const { penalty } = symbol;
      if (penalty < best.penalty) best = { penalty, mask };
      symbol.applyMask(mask); // undone
    });
    symbol.drawFormat(best.mask);
    symbol.applyMask(best.mask);
    return symbol.dark;
  }
  return null;
}

/** A picture of it, with the quiet zone that readers need; null for a text that is too long. */
export function qrPicture(text, label) {
  const rows = qrOf(text);
  if (!rows) return null;
  const SVG = "http://www.w3.org/2000/svg";
  const make = (tag, attributes) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const side = rows.length + 2 * QUIET;
  const d = rows.flatMap((row, y) => row.map((isDark, x) => (isDark ? `M${x + QUIET} ${y + QUIET}h1v1h-1z` : ""))).join("");
  const picture = make("svg", { viewBox: `0 0 ${side} ${side}`, class: "qr", role: "img", "aria-label": label, "shape-rendering": "crispEdges" });
  picture.append(make("rect", { width: side, height: side, fill: "#ffffff" }), make("path", { d, fill: "#000000" }));
  return picture;
}
