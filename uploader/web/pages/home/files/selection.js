// Which entries are selected, where the keyboard is, and from where a range reaches. Knows keys, and no element.

export class Selection {
  keys = new Set();
  active = null;
  #anchor = null;

  constructor(changed) {
    this.changed = changed;
  }

  has(key) {
    return this.keys.has(key);
  }

  get size() {
    return this.keys.size;
  }

  /** This one and no other. */
  only(key) {
    this.keys = new Set([key]);
    this.active = this.#anchor = key;
    this.changed();
  }

  toggle(key) {
    if (!this.keys.delete(key)) this.keys.add(key);
    this.active = this.#anchor = key;
    this.changed();
  }

  /** From where the last one was chosen to this one. */
  reachTo(key, entries) {
    const places = [this.#anchor ?? key, key].map((each) => entries.findIndex((entry) => entry.key === each));
    const [first, last] = [Math.min(...places), Math.max(...places)];
    this.keys = new Set(entries.slice(Math.max(0, first), last + 1).map((entry) => entry.key));
    this.active = key;
    this.changed();
  }

  goTo(key) {
    this.active = key;
    this.changed();
  }

  all(entries) {
    this.keys = new Set(entries.map(({ key }) => key));
    this.changed();
  }

  clear() {
    this.keys = new Set();
    this.#anchor = null;
    this.changed();
  }

  /** Forget what is not listed any more. */
  keep(entries) {
    const listed = new Set(entries.map(({ key }) => key));
    if (this.active !== null && !listed.has(this.active)) this.active = null;
    const kept = [...this.keys].filter((key) => listed.has(key));
    if (kept.length < this.keys.size) this.keys = new Set(kept);
  }

  of(entries) {
    return entries.filter(({ key }) => this.keys.has(key));
  }
}
