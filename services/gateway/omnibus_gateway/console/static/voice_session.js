// One conversation by voice: a session at /v1/realtime, the microphone, the speaker, and what was said.

import { ask, ROOT } from "./api.js";
import { fromBase64 } from "./sound.js";
import { Microphone, RATE, Speaker } from "./voice_audio.js";
import { Resumption } from "./voice_resume.js";

const MS = RATE / 1000; // samples of a millisecond
const OWN_MODEL = "whisper-1"; // the name of OpenAI's that stands for the session's own model
const NORMAL = 1000;
const BROKEN = 1006; // the code of a connection that ended without a word
const CLOSED = {
  1000: "The gateway ended the conversation after a long silence.",
  1001: "The conversation reached its time limit: start another one.",
  1008: "The conversation was taken up elsewhere.",
};

/** The session that a client secret is made for. */
function configuration({ model, output, voice, instructions, pause, before, threshold, barge, written }) {
  const detection = { type: "server_vad", silence_duration_ms: pause, prefix_padding_ms: before, threshold, interrupt_response: barge };
  const transcription = written ? { model: OWN_MODEL } : null;
  const audio = { input: { turn_detection: detection, transcription } };
  if (output === "speech" && voice !== "default") audio.output = { voice };
  return { type: "realtime", model, instructions, output_modalities: [output === "speech" ? "audio" : "text"], audio };
}

/**
 * `turns` are what was said by either side, `events` what happened when; both in milliseconds of the audio that was sent.
 * `tell()` is called whenever something changed.
 */
export class VoiceSession {
  constructor(wishes, tell) {
    this.wishes = wishes;
    this.tell = tell;
    this.state = "connecting"; // then open, reconnecting and open again, and closed
    this.resumption = new Resumption();
    this.problem = null;
    this.turns = [];
    this.events = [];
    this.sent = 0; // samples
    this.speaking = null; // the user's turn
    this.responses = new Set(); // that are being made
    this.cut = new Set(); // responses that nobody listens to any more
    this.asked = 0; // when the last turn of the user ended, by the page's clock
    this.player = { busy: false, gaps: 0 };
  }

  /** Milliseconds of audio that were sent. */
  get now() {
    return this.sent / MS;
  }

  /** Raises an error that says what to do where there is no microphone, or the gateway refuses. */
  async open() {
    try {
      this.microphone = await Microphone.open((chunk) => this.append(chunk), this.wishes.clean);
      this.microphone.onEnd(() => this.end(new Error("The microphone is gone: connect it, and begin again.")));
      this.speaker = await Speaker.open((report) => this.played(report));
      await this.connect();
    } catch (error) {
      this.end(error);
    }
  }

  /** Begin the session, or go on with it where a connection broke; with a secret of its own, since they expire. */
  async connect() {
    const secret = await (await ask("realtime/client_secrets", { method: "POST", json: { session: configuration(this.wishes) } })).json();
    if (this.state === "closed") return this.release();
    const url = new URL("realtime", ROOT);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    url.search = new URLSearchParams(this.resumption.query);
    this.socket = new WebSocket(url, ["realtime", `openai-insecure-api-key.${secret.value}`]);
    this.socket.addEventListener("message", ({ data }) => this.take(JSON.parse(data)));
    this.socket.addEventListener("close", ({ code }) => this.lose(code));
  }

  /** The connection is gone, with the WebSocket's close `code`. */
  lose(code) {
    if (this.state === "closed") return;
    if (this.resumption.goesOn(code)) void this.reconnect();
    else this.end(new Error(CLOSED[code] ?? this.lost()));
  }

  async reconnect() {
    if (this.state === "open") this.note("connection lost");
    this.state = "reconnecting";
    this.tell();
    await this.resumption.pause();
    if (this.state === "closed") return;
    try {
      await this.connect();
    } catch {
      this.lose(BROKEN); // no gateway answers yet
    }
  }

  lost() {
    return this.state === "connecting" ? "The gateway refused the conversation: it may have as many as there may be." : "The connection was lost, and the conversation could not be taken up again: begin another one.";
  }

  send(type, fields = {}) {
    const event = JSON.stringify({ type, ...fields });
    if (this.state === "reconnecting") this.resumption.unsent.push(event);
    else if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(event);
  }

  append(chunk) {
    if (this.state !== "open" && this.state !== "reconnecting") return;
    this.sent += chunk.length;
    const bytes = new Uint8Array(chunk.buffer);
    this.resumption.keep(bytes);
    if (this.state === "open") this.sendAudio(bytes);
    this.tell();
  }

  sendAudio(bytes) {
    this.send("input_audio_buffer.append", { audio: btoa(String.fromCharCode(...bytes)) });
  }

  /** Leave; `problem` is why, where it is not the person's wish. */
  end(problem = null) {
    if (this.state === "closed") return;
    this.state = "closed";
    this.problem = problem;
    for (const turn of this.turns) this.settle(turn);
    this.release();
    this.tell();
  }

  release() {
    this.microphone?.close();
    this.speaker?.close();
    this.socket?.close(NORMAL);
  }

  settle(turn) {
    turn.to ??= turn.from === null ? null : this.now;
    turn.open = false;
  }

  // What the gateway says

  take(event) {
    if (this.state === "closed") return;
    this.resumption.lastEvent = event.event_id;
    TAKES[event.type]?.call(this, event);
    this.tell();
  }

  note(what, at = this.now) {
    this.events.push({ at, what });
  }

  find(id) {
    return this.turns.find((turn) => turn.id === id);
  }

  add(turn) {
    const made = { text: "", from: null, to: null, open: true, ...turn };
    this.turns.push(made);
    return made;
  }

  // What is heard

  /** Stop what is being said, as somebody speaks or wishes so, and say how much of it was heard. */
  async interrupt(why) {
    for (const response of this.responses) this.cut.add(response);
    for (const [id, samples] of await this.speaker.stop()) {
      const turn = this.find(id);
      if (!turn) continue;
      turn.heard = samples;
      turn.cut = true;
      this.settle(turn);
      const ms = Math.floor(samples / MS);
      this.note(`${why}: stopped after ${ms} ms`);
      this.send("conversation.item.truncate", { item_id: id, content_index: 0, audio_end_ms: ms });
    }
    this.player.busy = false;
    this.tell();
  }

  /** Stop the answer by hand. */
  hush() {
    if (this.responses.size) this.send("response.cancel");
    void this.interrupt("stopped by hand");
  }

  played({ item, heard, over, gaps }) {
    const turn = this.find(item);
    if (!turn || turn.cut) return;
    turn.from ??= this.now;
    turn.heard = heard;
    turn.gaps = gaps;
    this.player.busy = !over;
    if (over) {
      this.settle(turn);
      this.note(`answer heard, ${Math.round(heard / MS)} ms`);
    }
    this.tell();
  }

  /** Samples of a turn that were heard. */
  heard(turn) {
    const whole = new Float32Array(turn.heard ?? 0);
    let at = 0;
    for (const each of turn.samples ?? []) {
      if (at >= whole.length) break;
      whole.set(each.subarray(0, whole.length - at), at);
      at += each.length;
    }
    return whole;
  }
}

/** What each event of the gateway does, with the session as `this`. */
const TAKES = {
  "session.created"({ session }) {
    this.state = "open";
    this.resumption.token = session.resume_token ?? null;
    this.note("connected");
  },
  "session.resumed"({ input_audio_bytes }) {
    this.state = "open";
    this.resumption.tries = 0;
    for (const bytes of this.resumption.audioBehind(input_audio_bytes)) this.sendAudio(bytes);
    for (const event of this.resumption.unsent.splice(0)) this.socket.send(event);
    this.note("reconnected");
  },
  error({ error }) {
    this.problem = new Error(error.message);
  },
  "input_audio_buffer.speech_started"({ item_id, audio_start_ms }) {
    this.speaking = this.add({ id: item_id, who: "you", from: audio_start_ms });
    this.note("speech began", audio_start_ms);
    if (this.wishes.barge) void this.interrupt("interrupted");
  },
  "input_audio_buffer.speech_stopped"({ item_id, audio_end_ms }) {
    const turn = this.find(item_id);
    if (turn) Object.assign(turn, { to: audio_end_ms, open: false });
    this.speaking = null;
    this.asked = performance.now();
    this.note("speech ended", audio_end_ms);
  },
  "input_audio_buffer.committed"() {
    this.note("turn handed over");
  },
  "conversation.item.input_audio_transcription.delta"({ item_id, delta }) {
    const turn = this.find(item_id);
    if (turn) turn.text += delta;
  },
  "conversation.item.input_audio_transcription.completed"({ item_id, transcript }) {
    const turn = this.find(item_id);
    if (turn) Object.assign(turn, { text: transcript, written: true });
  },
  "conversation.item.input_audio_transcription.failed"({ item_id, error }) {
    const turn = this.find(item_id);
    if (turn) Object.assign(turn, { text: `(not written down: ${error.message})`, written: true });
  },
  "response.created"({ response }) {
    this.responses.add(response.id);
    this.note("answer begins");
  },
  "response.output_item.added"({ response_id, item }) {
    if (item.type === "message") this.add({ id: item.id, who: "model", response: response_id, samples: [], heard: 0, asked: this.now });
  },
  "response.output_audio_transcript.delta": write,
  "response.output_text.delta": write,
  "response.output_audio.delta"({ response_id, item_id, delta }) {
    const turn = this.find(item_id);
    if (!turn || this.cut.has(response_id)) return;
    turn.first ??= (performance.now() - this.asked) / 1000;
    const view = new DataView(fromBase64(delta).buffer);
    const samples = Float32Array.from({ length: view.byteLength >> 1 }, (_, index) => view.getInt16(index * 2, true) / 32768);
    turn.samples.push(samples);
    this.player.busy = true;
    this.speaker.push(item_id, samples);
  },
  "response.output_audio.done"({ response_id, item_id }) {
    if (!this.cut.has(response_id)) this.speaker.finish(item_id);
  },
  "conversation.item.truncated"({ item_id, audio_end_ms }) {
    this.note(`told the model that ${audio_end_ms} ms were played`);
    this.send("conversation.item.retrieve", { item_id });
  },
  "conversation.item.retrieved"({ item }) {
    const turn = this.find(item.id);
    if (turn?.cut) turn.text = item.content.map((part) => part.transcript ?? "").join(""); // the words that were heard
  },
  "response.done"({ response }) {
    this.responses.delete(response.id);
    const { status, status_details: why } = response;
    const silent = (turn) => !turn.samples.length || this.cut.has(response.id); // no report of the speaker ends it
    for (const turn of this.turns) if (turn.response === response.id && silent(turn)) this.settle(turn);
    if (status === "failed") this.problem = new Error(why?.error?.message ?? "The answer failed.");
    this.note(`answer ${status}${why?.reason ? ` (${why.reason.replaceAll("_", " ")})` : ""}`);
  },
};

function write({ response_id, item_id, delta }) {
  const turn = this.find(item_id);
  if (turn && !this.cut.has(response_id)) turn.text += delta;
}
