// What the microphone hears as a WAV file, and WAV files that are played while they come.

import { askMicrophone } from "./voice_audio.js";

/** Formats of audio in messages, by type of media; others are sent as WAV. */
export const SOUNDS = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/flac": "flac", "audio/ogg": "ogg", "audio/aac": "aac", "audio/mp4": "m4a" };
const SPOKEN = 16000; // samples per second that are sent
const AHEAD = 0.08; // seconds until the first sample is heard
const HEADER = 44;

/** A WAV file of mono `samples` in [-1, 1]. */
export function wav(samples, rate) {
  const view = new DataView(new ArrayBuffer(HEADER + samples.length * 2));
  const word = (at, text) => [...text].forEach((letter, index) => view.setUint8(at + index, letter.charCodeAt(0)));
  word(0, "RIFF");
  view.setUint32(4, 36 + samples.length * 2, true);
  word(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, rate * 2, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  word(36, "data");
  view.setUint32(40, samples.length * 2, true);
  samples.forEach((each, index) => view.setInt16(HEADER + index * 2, Math.round(Math.max(-1, Math.min(1, each)) * 32767), true));
  return new Blob([view], { type: "audio/wav" });
}

/** Any sound that the browser can read, as a mono WAV file of 16 kHz. */
export async function asWav(blob) {
  const context = new OfflineAudioContext(1, 1, SPOKEN);
  const found = await context.decodeAudioData(await blob.arrayBuffer());
  const offline = new OfflineAudioContext(1, Math.max(1, Math.ceil(found.duration * SPOKEN)), SPOKEN);
  const source = offline.createBufferSource();
  source.buffer = found;
  source.connect(offline.destination);
  source.start();
  return wav((await offline.startRendering()).getChannelData(0), SPOKEN);
}

/**
 * Listens until `stop()`, which resolves to a WAV file; `tell` hears of each second. Raises when there is no microphone,
 * or it may not be used.
 */
export async function listen(tell) {
  const stream = await askMicrophone();
  const recorder = new MediaRecorder(stream);
  const chunks = [];
  recorder.addEventListener("dataavailable", (event) => {
    chunks.push(event.data);
    if (recorder.state === "recording") tell(chunks.length);
  });
  recorder.start(1000);
  return async () => {
    const over = new Promise((resolve) => recorder.addEventListener("stop", resolve, { once: true }));
    recorder.stop();
    await over;
    for (const track of stream.getTracks()) track.stop();
    return asWav(new Blob(chunks, { type: recorder.mimeType }));
  };
}

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** Plays a WAV file while its bytes come. `gaps` counts the times that it had nothing to play. */
export class Player {
  constructor() {
    this.context = new AudioContext();
    this.samples = [];
    this.rate = 0;
    this.gaps = 0;
    this.rest = new Uint8Array(0);
    this.until = 0;
  }

  get seconds() {
    return this.rate ? this.samples.reduce((sum, each) => sum + each.length, 0) / this.rate : 0;
  }

  /** Take the next bytes; returns their samples. */
  push(bytes) {
    let data = new Uint8Array(this.rest.length + bytes.length);
    data.set(this.rest);
    data.set(bytes, this.rest.length);
    this.rest = data;
    if (!this.rate) {
      if (data.length < HEADER) return new Float32Array(0);
      this.rate = new DataView(data.buffer).getUint32(24, true);
      data = data.slice(HEADER);
    }
    const count = data.length >> 1;
    const view = new DataView(data.buffer, data.byteOffset);
    const samples = Float32Array.from({ length: count }, (_, index) => view.getInt16(index * 2, true) / 32768);
    this.rest = data.slice(count * 2);
    if (count) this.play(samples);
    return samples;
  }

  play(samples) {
    this.samples.push(samples);
    const buffer = this.context.createBuffer(1, samples.length, this.rate);
    buffer.copyToChannel(samples, 0);
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.context.destination);
    const now = this.context.currentTime;
    if (this.until < now) {
      if (this.until) this.gaps++;
      this.until = now + AHEAD;
    }
    source.start(this.until);
    this.until += buffer.duration;
  }

  /** All of it as a file, once it has come. */
  file() {
    const whole = new Float32Array(this.samples.reduce((sum, each) => sum + each.length, 0));
    let at = 0;
    for (const each of this.samples) {
      whole.set(each, at);
      at += each.length;
    }
    return wav(whole, this.rate || SPOKEN);
  }

  /** Let what was scheduled be heard, then give the device back; `now` cuts it off. */
  close(now = false) {
    const left = now ? 0 : Math.max(0, this.until - this.context.currentTime);
    setTimeout(() => this.context.state !== "closed" && this.context.close(), left * 1000 + 100);
  }
}
