// What a conversation needs to go on at a gateway after its connection broke.

const KEPT_BYTES = 60 * 48_000; // of audio that may have to be sent again: a minute
const PAUSES_MS = [20, 250, 500, 1000, 1000, 2000, 2000, 3000, 3000]; // before each try to connect: others may answer at once
const FINAL = new Set([1000, 1001, 1008]); // codes of ends that are meant: nothing goes on behind them

export class Resumption {
  constructor() {
    this.token = null; // of the session, from the gateway
    this.lastEvent = "";
    this.unsent = []; // events that wait for the next connection
    this.chunks = []; // audio that was recorded, with the byte of all audio at which each begins
    this.end = 0; // bytes that were recorded
    this.tries = 0; // since the connection broke
  }

  /** Whether a session whose connection ended with `code` may be taken up again. */
  goesOn(code) {
    return this.token !== null && !FINAL.has(code) && this.tries < PAUSES_MS.length;
  }

  /** Wait before the next try. */
  async pause() {
    await new Promise((resolve) => setTimeout(resolve, PAUSES_MS[this.tries++]));
  }

  keep(bytes) {
    this.chunks.push({ at: this.end, bytes });
    this.end += bytes.length;
    while (this.end - this.chunks[0].at > KEPT_BYTES) this.chunks.shift();
  }

  /** The audio behind the first `known` bytes, of which the gateway has nothing. */
  audioBehind(known) {
    return this.chunks.filter(({ at, bytes }) => at + bytes.length > known).map(({ at, bytes }) => bytes.subarray(Math.max(0, known - at)));
  }

  /** The query of the next connection. */
  get query() {
    return this.token === null ? { resumable: "true" } : { resume: this.token, last_event_id: this.lastEvent };
  }
}
