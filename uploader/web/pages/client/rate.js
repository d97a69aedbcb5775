// How fast bytes move, over the last seconds.

const WINDOW_SECONDS = 6;
const STEP_SECONDS = 0.25;

export class Rate {
  #moved = 0;
  #samples = [];

  add(bytes) {
    this.#moved += bytes;
    const now = performance.now() / 1000;
    const last = this.#samples.at(-1);
    if (last && now - last.at < STEP_SECONDS) return;
    this.#samples.push({ at: now, moved: this.#moved });
    while (this.#samples.length > 2 && now - this.#samples[0].at > WINDOW_SECONDS) this.#samples.shift();
  }

  /** Bytes a second; 0 while nobody can tell. */
  get perSecond() {
    const first = this.#samples[0];
    if (!first) return 0;
    const now = performance.now() / 1000;
    return !this.isStalled && now - first.at >= 1 ? (this.#moved - first.moved) / (now - first.at) : 0;
  }

  /** Whether bytes moved once, and have not for a while. */
  get isStalled() {
    const last = this.#samples.at(-1);
    return last !== undefined && performance.now() / 1000 - last.at >= WINDOW_SECONDS;
  }

  clear() {
    this.#samples = [];
  }
}
