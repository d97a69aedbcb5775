// What one part of the page has another wait for. A wait ends with an AbortError when its signal aborts.

const WORK_MS = 8;

/** Calls `begin(resolve)` and waits for it; `leave()` is called when the signal ended the wait. */
function waited(signal, begin, leave) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const aborted = () => {
      leave(settle);
      reject(signal.reason);
    };
    const settle = (value) => {
      signal?.removeEventListener("abort", aborted);
      resolve(value);
    };
    signal?.addEventListener("abort", aborted);
    begin(settle);
  });
}

/** For work on thousands of things: does a little at a time, so that the page answers and is drawn meanwhile. */
export class Breath {
  #since = performance.now();

  get isDue() {
    return performance.now() - this.#since > WORK_MS;
  }

  async take() {
    if (!this.isDue) return;
    await new Promise((resolve) => {
      // Timers are slow where nobody looks.
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => {
        port1.close();
        resolve();
      };
      port2.postMessage(null);
    });
    this.#since = performance.now();
  }
}

/** Open or closed; whoever waits goes on when it opens. */
export class Gate {
  #waiting = new Set();

  constructor(open) {
    this.open = open;
  }

  set(open) {
    this.open = open;
    if (!open) return;
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const settle of waiting) settle();
  }

  async wait(signal) {
    while (!this.open) {
      await waited(signal, (settle) => this.#waiting.add(settle), (settle) => this.#waiting.delete(settle));
    }
  }
}

/** So many may work at once; the others wait in the order they came. */
export class Slots {
  #free;
  #waiting = new Set();

  constructor(count) {
    this.#free = count;
  }

  async hold(signal, work) {
    if (this.#free > 0) this.#free -= 1;
    else await waited(signal, (settle) => this.#waiting.add(settle), (settle) => this.#waiting.delete(settle));
    try {
      return await work();
    } finally {
      const [next] = this.#waiting;
      this.#waiting.delete(next);
      if (next) next();
      else this.#free += 1;
    }
  }
}

/** One at a time for each key. */
export class Locks {
  #byKey = new Map();

  held(key) {
    return this.#byKey.has(key);
  }

  async hold(key, signal, work) {
    let lock = this.#byKey.get(key);
    if (!lock) this.#byKey.set(key, (lock = { slots: new Slots(1), users: 0 }));
    lock.users += 1;
    try {
      return await lock.slots.hold(signal, work);
    } finally {
      lock.users -= 1;
      if (lock.users === 0) this.#byKey.delete(key);
    }
  }
}
