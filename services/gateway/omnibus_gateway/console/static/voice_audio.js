// The microphone as chunks of 24 kHz, and a speaker that stops at once.

export const RATE = 24000; // samples per second
const WORKLET = new URL("voice_worklet.js", import.meta.url);

const TROUBLE = {
  NotAllowedError: "The browser does not let this page use the microphone: allow it in the site's settings, then start again.",
  NotFoundError: "No microphone was found: connect one, and begin again.",
  NotReadableError: "The microphone cannot be read: another program may have it.",
  InvalidStateError: "The microphone cannot be used while this page is hidden.",
};

/** The microphone as a stream. Raises an error whose message says what to do where there is none, or none may be used. */
export async function askMicrophone(wishes = { echoCancellation: true }) {
  if (!navigator.mediaDevices?.getUserMedia) throw new Error("A microphone needs https, or the address 127.0.0.1.");
  try {
    return await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, ...wishes } });
  } catch (error) {
    throw new Error(TROUBLE[error.name] ?? `The microphone cannot be used: ${error.message}`);
  }
}

/** Hears until it is closed; `hear(chunk)` gets Int16Array of 24 kHz. `clean` takes out echo and noise. */
export class Microphone {
  static async open(hear, clean) {
    const wishes = { echoCancellation: clean, noiseSuppression: clean, autoGainControl: clean };
    const stream = await askMicrophone(wishes);
    const context = new AudioContext();
    try {
      await context.audioWorklet.addModule(WORKLET);
      const node = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0 });
      node.port.onmessage = ({ data }) => hear(data);
      context.createMediaStreamSource(stream).connect(node);
      return new Microphone(stream, context);
    } catch (error) {
      for (const track of stream.getTracks()) track.stop();
      await context.close();
      throw error;
    }
  }

  constructor(stream, context) {
    this.stream = stream;
    this.context = context;
  }

  /** Silence goes on being sent, so that a turn still ends. */
  mute(quiet) {
    for (const track of this.stream.getTracks()) track.enabled = !quiet;
  }

  /** Call `tell` when the device is gone: pulled out, or taken away by the browser. */
  onEnd(tell) {
    for (const track of this.stream.getTracks()) track.addEventListener("ended", tell);
  }

  close() {
    for (const track of this.stream.getTracks()) track.stop();
    if (this.context.state !== "closed") void this.context.close();
  }
}

/** Plays samples of items one after the other; `tell({ item, heard, over, gaps })` says how many of them were heard. */
export class Speaker {
  static async open(tell) {
    const context = new AudioContext({ sampleRate: RATE });
    await context.audioWorklet.addModule(WORKLET);
    return new Speaker(context, tell);
  }

  constructor(context, tell) {
    this.context = context;
    this.waiting = []; // those who wait for a stop
    this.node = new AudioWorkletNode(context, "speaker", { numberOfInputs: 0, outputChannelCount: [1] });
    this.node.port.onmessage = ({ data }) => (data.stopped ? this.waiting.shift()?.(data.stopped) : tell(data));
    this.node.connect(context.destination);
  }

  /** Samples that the device has and nobody has heard yet. */
  get late() {
    return Math.round((this.context.outputLatency || 0) * RATE);
  }

  push(item, samples) {
    this.node.port.postMessage({ item, samples });
  }

  finish(item) {
    this.node.port.postMessage({ item, over: true });
  }

  /** Stop at once. Returns the items that were not played to their end, with the samples that were heard of each. */
  async stop() {
    const late = this.late;
    const stopped = new Promise((resolve) => this.waiting.push(resolve));
    this.node.port.postMessage("stop");
    return (await stopped).map(([item, played]) => [item, Math.max(0, played - late)]);
  }

  close() {
    for (const each of this.waiting.splice(0)) each([]);
    if (this.context.state !== "closed") void this.context.close();
  }
}
