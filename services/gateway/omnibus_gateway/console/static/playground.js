// Ask a model: text, pictures, sounds, films and a microphone go in; text, sound and pictures come as they are made. Or
// talk with it.

import { get } from "./api.js";
import { answer } from "./answer.js";
import { fill, h, say, trouble } from "./dom.js";
import { exampleButtons } from "./examples.js";
import { bytes } from "./format.js";
import { asWav, listen } from "./sound.js";
import { follow, state } from "./state.js";
import { conversation, voiceSettings } from "./voice.js";

const SOUNDS = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/flac": "flac", "audio/ogg": "ogg", "audio/aac": "aac", "audio/mp4": "m4a" };
const OUTPUTS = { text: "text", speech: "text and speech", image: "a picture", video: "a video" };

export function playground(room) {
  const model = h("select", { id: "model" });
  const output = h("select", { id: "output" });
  const voice = h("select", { id: "voice" });
  const prompt = h("textarea", { id: "prompt", rows: 3, placeholder: "Ask something. Drop or paste an image, audio or video file.", spellcheck: "false" });
  const file = h("input", { type: "file", id: "file", accept: "image/*,audio/*,video/*", multiple: true, class: "unseen", tabindex: -1, "aria-hidden": "true" });
  const examples = h("div", { class: "row examples", role: "group", "aria-label": "Examples" });
  const pinned = h("ul", { class: "pinned", "aria-label": "Attached" });
  const said = h("div", { role: "status" });
  const talk = h("section", { class: "talk", "aria-label": "Answers", "aria-live": "polite" });
  const more = {
    max_tokens: field("Most tokens", { type: "number", min: 1, max: 100000, value: 256 }),
    temperature: field("Temperature", { type: "number", min: 0, max: 2, step: 0.1, value: 0 }),
    seed: field("Seed", { type: "number", placeholder: "any" }),
    size: field("Size", { type: "text", placeholder: "auto", pattern: "auto|[0-9]+x[0-9]+" }),
    seconds: field("Seconds", { type: "number", min: 0.1, max: 3600, step: 0.1, placeholder: "usual" }),
    steps: field("Steps", { type: "number", min: 1, max: 1000, placeholder: "usual" }),
  };
  const earlier = h("input", { type: "checkbox", id: "earlier" });
  const send = h("button", { type: "submit" }, "Send");
  const mic = h("button", { type: "button", class: "quiet", "aria-pressed": "false", onclick: record }, "Microphone");
  const talking = conversation((open) => say(talkButton, open ? "End conversation" : "Talk"));
  const talkSettings = voiceSettings();
  const talkButton = h("button", { type: "button", class: "quiet", onclick: talkOrEnd }, "Talk");
  const form = h("form", { class: "card ask", onsubmit: submit },
    h("div", { class: "row" }, h("label", "Model", model), h("label", "Answer", output), h("label", { id: "voices" }, "Voice", voice)),
    h("label", h("span", { class: "unseen" }, "Prompt"), prompt), examples, pinned,
    h("div", { class: "row" }, send, h("button", { type: "button", class: "quiet", onclick: () => file.click() }, "Attach"), file, mic, talkButton,
      h("button", { type: "button", class: "quiet", onclick: () => { turns.length = 0; fill(talk); } }, "Clear"), said),
    h("details", h("summary", "Settings"), h("div", { class: "row settings" }, Object.values(more).map((each) => each.label),
      h("label", { class: "check" }, earlier, "Send earlier turns too"))), talkSettings.room);
  fill(room, h("h1", { class: "unseen" }, "Playground"), h("div", { class: "play" }, form, talking.panel, talk));

  const turns = []; // what was said, as messages
  let attached = [];
  let running = null;
  let known = {};
  let stopped = null;

  void models();
  const stop = follow(({ plan }) => plan && take(plan.models));

  async function models() {
    try {
      const found = await get("models");
      if (!state.plan) take(Object.fromEntries(found.data.map((each) => [each.id, null])));
    } catch (error) {
      fill(said, trouble(error));
    }
  }

  function take(found) {
    const usable = Object.fromEntries(Object.entries(found).filter(([, ends]) => !ends || choices(ends).length));
    if (JSON.stringify(usable) === JSON.stringify(known)) return;
    known = usable;
    const before = model.value || sessionStorage.getItem("omnibus.model");
    fill(model, Object.keys(known).map((name) => h("option", { value: name }, name)));
    if (known[before] !== undefined) model.value = before;
    chosen();
  }

  function chosen() {
    const ends = known[model.value];
    const before = output.value;
    const found = ends ? choices(ends) : Object.keys(OUTPUTS);
    fill(output, found.map((each) => h("option", { value: each }, OUTPUTS[each])));
    output.value = found.includes(before) ? before : found.includes("speech") ? "speech" : found[0] ?? "";
    fill(examples, ends ? exampleButtons(ends, useExample) : []);
    fill(voice, (ends?.voices.length ? ends.voices : ["default"]).map((each) => h("option", { value: each }, each)));
    sessionStorage.setItem("omnibus.model", model.value);
    shape();
  }

  function shape() {
    const films = output.value === "video";
    const draws = films || output.value === "image";
    form.querySelector("#voices").hidden = output.value !== "speech";
    for (const name of ["size", "steps"]) more[name].label.hidden = !draws;
    more.seconds.label.hidden = !films;
    for (const name of ["max_tokens", "temperature"]) more[name].label.hidden = draws;
    const hears = known[model.value]?.takes.includes("audio") ?? true; // of a model that is not in the plan nobody knows it
    talkButton.hidden = talkSettings.room.hidden = !talking.open && (draws || !hears);
  }

  model.addEventListener("change", chosen);
  output.addEventListener("change", shape);

  // What goes in

  file.addEventListener("change", () => {
    for (const each of file.files) void attach(each);
    file.value = "";
  });
  prompt.addEventListener("paste", (event) => {
    for (const each of event.clipboardData.files) void attach(each);
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  for (const name of ["dragover", "drop"])
    form.addEventListener(name, (event) => {
      event.preventDefault();
      form.classList.toggle("over", name === "dragover");
      if (name === "drop") for (const each of event.dataTransfer.files) void attach(each);
    });
  form.addEventListener("dragleave", () => form.classList.remove("over"));

  async function attach(given, name = given.name) {
    fill(said);
    try {
      const way = given.type.split("/")[0];
      if (!["image", "audio", "video"].includes(way)) throw new Error(`${name} is not an image, audio or video file.`);
      const blob = way === "audio" && !SOUNDS[given.type] ? await asWav(given) : given;
      attached.push({ way, name, blob, url: URL.createObjectURL(blob) });
      showAttached();
    } catch (error) {
      fill(said, trouble(error instanceof DOMException ? new Error(`${name} cannot be read.`) : error));
    }
  }

  async function useExample(text, files, gives) {
    prompt.value = text;
    attached = [];
    showAttached();
    if (gives !== "text") output.value = gives;
    shape();
    for (const each of files) await attach(each);
    send.focus();
  }

  function showAttached() {
    fill(pinned, attached.map((each) => h("li", shown(each), h("small", `${each.name}, ${bytes(each.blob.size)}`),
      h("button", { type: "button", class: "quiet small", "aria-label": `Remove ${each.name}`, onclick: () => { attached = attached.filter((other) => other !== each); showAttached(); } }, "✕"))));
  }

  async function record() {
    if (stopped) {
      const over = stopped;
      stopped = null;
      mic.setAttribute("aria-pressed", "false");
      mic.textContent = "Microphone";
      fill(said);
      const blob = await over().catch(() => null);
      if (blob) void attach(new File([blob], "microphone.wav", { type: "audio/wav" }));
      else fill(said, trouble(new Error("No speech was recorded.")));
      return;
    }
    try {
      stopped = await listen((seconds) => fill(said, `listening, ${seconds} s`));
      mic.setAttribute("aria-pressed", "true");
      mic.textContent = "Stop recording";
      fill(said, "listening");
    } catch (error) {
      fill(said, trouble(error));
    }
  }

  function talkOrEnd() {
    if (talking.open) talking.end();
    else talking.begin({ model: model.value, output: output.value, voice: voice.value, ...talkSettings.read() });
  }

  // What comes out

  async function submit(event) {
    event.preventDefault();
    if (running) return running.abort();
    const [text, files] = [prompt.value.trim(), attached];
    if (!text && !files.length) return prompt.focus();
    prompt.value = "";
    attached = [];
    showAttached();
    fill(said);
    const asked = { model: model.value, output: output.value, voice: voice.value, text, files, earlier: earlier.checked ? [...turns] : [] };
    for (const [name, { input }] of Object.entries(more)) if (input.value !== "" && !input.parentElement.hidden) asked[name] = input.type === "number" ? Number(input.value) : input.value;
    const room = h("article", { class: "answer", "aria-label": `Answer of ${asked.model}` });
    talk.prepend(h("div", { class: "turn" }, h("article", { class: "question" }, files.map(shown), text ? h("p", text) : null), room));
    running = new AbortController();
    send.textContent = "Stop";
    try {
      const message = await content(asked);
      const told = await answer(room, asked, message, running.signal);
      if (told) turns.push(message, { role: "assistant", content: told });
    } finally {
      running = null;
      send.textContent = "Send";
    }
  }

  return () => {
    stop();
    running?.abort();
    talking.end();
    if (stopped) void stopped();
  };
}

function choices({ gives }) {
  return Object.keys(OUTPUTS).filter((each) => gives.includes(each));
}

function field(name, attributes) {
  const input = h("input", attributes);
  return { input, label: h("label", name, input) };
}

function shown({ way, name, url }) {
  if (way === "image") return h("img", { src: url, alt: name });
  return h(way, { src: url, controls: true, preload: "metadata", "aria-label": name });
}

/** The message of the user: text and files as their bytes. */
async function content({ text, files }) {
  const parts = await Promise.all(files.map(async ({ way, blob }) => {
    const url = await dataUrl(blob);
    if (way === "image") return { type: "image_url", image_url: { url } };
    if (way === "video") return { type: "video_url", video_url: { url } };
    return { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format: SOUNDS[blob.type] } };
  }));
  if (!parts.length) return { role: "user", content: text };
  return { role: "user", content: [...parts, ...(text ? [{ type: "text", text }] : [])] };
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

