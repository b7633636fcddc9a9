// Runs on the browser's audio thread: samples of the microphone as they are sent, and a queue of samples to be heard.

const RATE = 24000; // samples per second that are sent and come
const CHUNK = 1200; // samples of the microphone that are handed over at once: 50 ms
const AHEAD = 1440; // samples that wait before the first of them is heard: 60 ms
const REPORT = 2400; // samples between two reports of what was heard: 100 ms

/** Hands over the microphone as Int16Array of 24 kHz, whatever rate the device has: each sample is the mean of its time. */
class Microphone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.step = sampleRate / RATE; // samples of the device for one that is sent
    this.sum = 0;
    this.weight = 0; // of `sum`, in samples of the device
    this.chunk = new Int16Array(CHUNK);
    this.filled = 0;
  }

  process([input]) {
    for (const sample of input[0] ?? []) {
      for (let left = 1; left > 1e-9; ) {
        const taken = Math.min(left, this.step - this.weight);
        this.sum += taken * sample;
        this.weight += taken;
        left -= taken;
        if (this.weight > this.step - 1e-9) this.add(this.sum / this.step);
      }
    }
    return true;
  }

  add(sample) {
    this.sum = this.weight = 0;
    this.chunk[this.filled++] = Math.round(Math.max(-1, Math.min(1, sample)) * 32767);
    if (this.filled < CHUNK) return;
    this.port.postMessage(this.chunk, [this.chunk.buffer]);
    this.chunk = new Int16Array(CHUNK);
    this.filled = 0;
  }
}

/**
 * Plays `{ item, samples }` one after the other; `{ item, over: true }` says that nothing more of it comes. `"stop"`
 * forgets the queue before the next 128 samples, and is answered with `{ stopped: [[item, samples heard], ...] }`.
 */
class Speaker extends AudioWorkletProcessor {
  constructor() {
    super();
    this.queue = [];
    this.heard = new Map(); // samples by item
    this.reported = 0; // samples of the first item
    this.gaps = 0;
    this.waits = true; // for enough samples to begin with
    this.port.onmessage = ({ data }) => (data === "stop" ? this.stop() : this.queue.push({ at: 0, ...data }));
  }

  stop() {
    const coming = this.queue.filter((each) => !this.isOver(each)).map((each) => each.item);
    const items = new Set([...this.heard.keys(), ...coming]); // one that has run dry was not heard to its end either
    this.port.postMessage({ stopped: [...items].map((item) => [item, this.heard.get(item) ?? 0]) });
    this.queue = [];
    this.heard.clear();
    this.waits = true;
  }

  isOver({ over }) {
    return over === true;
  }

  process(_, [output]) {
    const out = output[0];
    if (this.waits && this.isReady()) this.waits = false;
    for (let at = 0; at < out.length && !this.waits; ) {
      const first = this.queue[0];
      if (!first) this.runDry();
      else if (this.isOver(first)) this.finish(first.item);
      else at += this.play(first, out, at);
    }
    return true;
  }

  isReady() {
    const waiting = this.queue.reduce((sum, each) => sum + (each.samples?.length ?? 0) - each.at, 0);
    return waiting >= AHEAD || this.queue.some((each) => this.isOver(each));
  }

  play(first, out, at) {
    const part = first.samples.subarray(first.at, first.at + out.length - at);
    out.set(part, at);
    first.at += part.length;
    if (first.at >= first.samples.length) this.queue.shift();
    const before = this.heard.get(first.item) ?? 0;
    this.heard.set(first.item, before + part.length);
    if (!before) this.reported = -REPORT;
    if (before + part.length - this.reported >= REPORT) this.report(first.item);
    return part.length;
  }

  report(item, over = false) {
    this.reported = this.heard.get(item) ?? 0;
    this.port.postMessage({ item, heard: this.reported, over, gaps: this.gaps });
  }

  runDry() {
    this.gaps++;
    this.waits = true;
  }

  finish(item) {
    this.queue.shift();
    this.report(item, true);
    this.heard.delete(item);
    this.gaps = 0;
    this.waits = !this.queue.length;
  }
}

registerProcessor("microphone", Microphone);
registerProcessor("speaker", Speaker);
