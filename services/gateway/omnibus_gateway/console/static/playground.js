// Chat with a model, or with two side by side: messages above, what to send next below. Or talk with it.

import { get } from "./api.js";
import { chat, sends, shown } from "./chat.js";
import { fill, h, say, trouble } from "./dom.js";
import { exampleButtons } from "./examples.js";
import { bytes } from "./format.js";
import { asWav, listen, SOUNDS } from "./sound.js";
import { follow, state } from "./state.js";
import { conversation, voiceSettings } from "./voice.js";

const OUTPUTS = { text: "text", speech: "text and speech", image: "an image", video: "a video" };

let page = null;

/** The same conversation is there again when somebody comes back to the page. */
export function playground(room) {
  page ??= build();
  fill(room, h("h1", { class: "unseen" }, "Playground"), page.element);
  return page.begin();
}

function build() {
  const model = h("select", { id: "model" });
  const output = h("select", { id: "output" });
  const voice = h("select", { id: "voice" });
  const second = h("select", { id: "second" });
  const prompt = h("textarea", { id: "prompt", rows: 2, placeholder: "Write a message. Drop or paste an image, audio or video file.", spellcheck: "false", "aria-describedby": "how" });
  const file = h("input", { type: "file", id: "file", accept: "image/*,audio/*,video/*", multiple: true, class: "unseen", tabindex: -1, "aria-hidden": "true" });
  const examples = h("div", { class: "row examples", role: "group", "aria-label": "Examples" });
  const pinned = h("ul", { class: "pinned", "aria-label": "Attached" });
  const said = h("div", { role: "status" });
  const news = h("div", { role: "status", class: "unseen" });
  const more = {
    max_tokens: field("Most tokens", { type: "number", min: 1, max: 100000, value: 256 }),
    temperature: field("Temperature", { type: "number", min: 0, max: 2, step: 0.1, value: 0 }),
    seed: field("Seed", { type: "number", placeholder: "any" }),
    size: field("Size", { type: "text", placeholder: "auto", pattern: "auto|[0-9]+x[0-9]+" }),
    seconds: field("Seconds", { type: "number", min: 0.1, max: 3600, step: 0.1, placeholder: "usual" }),
    steps: field("Steps", { type: "number", min: 1, max: 1000, placeholder: "usual" }),
  };
  const send = h("button", { type: "submit" }, "Send");
  const mic = h("button", { type: "button", class: "quiet", "aria-pressed": "false", onclick: record }, "Microphone");
  const talking = conversation((open) => say(talkButton, open ? "End conversation" : "Talk"));
  const talkSettings = voiceSettings();
  const talkButton = h("button", { type: "button", class: "quiet", onclick: talkOrEnd }, "Talk");
  const hello = h("div", { class: "hello" }, h("h2", "Ask a model"), h("p", { class: "faint" }, "Begin with an example, or write a message below."), examples);
  const thread = chat({ wishes, hello, focus: () => prompt.focus(), announce: (words) => say(news, words), changed: (running) => say(send, running ? "Stop" : "Send") });
  const clear = h("button", { type: "button", class: "quiet", onclick: thread.clear }, "New conversation");
  const form = h("form", { id: "ask", class: "card ask", onsubmit: submit },
    pinned, h("label", h("span", { class: "unseen" }, "Prompt"), prompt),
    h("div", { class: "row" }, h("button", { type: "button", class: "quiet", onclick: () => file.click() }, "Attach"), file, mic, talkButton, said,
      h("small", { id: "how", class: "how" }, "Enter sends, Shift+Enter begins a line"), send), news);
  const element = h("div", { class: "play" },
    h("section", { class: "card setup", "aria-label": "Models and settings" },
      h("div", { class: "row" }, h("label", "Model", model), h("label", "Answer", output), h("label", { id: "voices" }, "Voice", voice), h("label", "Compare with", second)),
      h("details", h("summary", "Settings"), h("div", { class: "row settings" }, Object.values(more).map((each) => each.label))), talkSettings.room, clear),
    thread.element, talking.panel, form);

  let attached = [];
  let known = {};
  let stopped = null;

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

  /** Which models can be compared, and which settings count. */
  function shape() {
    const others = Object.keys(known).filter((each) => !known[each] || choices(known[each]).includes(output.value));
    const before = second.value;
    fill(second, h("option", { value: "" }, "no other model"), others.map((each) => h("option", { value: each }, each)));
    second.value = others.includes(before) ? before : "";
    element.classList.toggle("beside", second.value !== "");
    const films = output.value === "video";
    const draws = films || output.value === "image";
    element.querySelector("#voices").hidden = output.value !== "speech";
    for (const name of ["size", "steps"]) more[name].label.hidden = !draws;
    more.seconds.label.hidden = !films;
    for (const name of ["max_tokens", "temperature"]) more[name].label.hidden = draws;
    const hears = known[model.value]?.takes.includes("audio") ?? true; // of a model that is not in the plan nobody knows it
    talkButton.hidden = talkSettings.room.hidden = !talking.open && (draws || !hears);
  }

  model.addEventListener("change", chosen);
  output.addEventListener("change", shape);
  second.addEventListener("change", shape);

  // What goes in

  file.addEventListener("change", () => {
    for (const each of file.files) void attach(each);
    file.value = "";
  });
  prompt.addEventListener("paste", (event) => {
    for (const each of event.clipboardData.files) void attach(each);
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Escape") thread.stop();
    else if (sends(event) && !thread.running) form.requestSubmit();
  });
  for (const name of ["dragover", "drop"])
    element.addEventListener(name, (event) => {
      event.preventDefault();
      form.classList.toggle("over", name === "dragover");
      if (name === "drop") for (const each of event.dataTransfer.files) void attach(each);
    });
  element.addEventListener("dragleave", () => form.classList.remove("over"));

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

  function submit(event) {
    event.preventDefault();
    if (thread.running) return thread.stop();
    const [text, files] = [prompt.value.trim(), attached];
    if (!text && !files.length) return prompt.focus();
    prompt.value = "";
    attached = [];
    showAttached();
    fill(said);
    void thread.send(text, files);
  }

  /** What is sent beside the message, for each model. */
  function wishes() {
    const fixed = { output: output.value };
    for (const [name, { input, label }] of Object.entries(more)) if (input.value !== "" && !label.hidden) fixed[name] = input.type === "number" ? Number(input.value) : input.value;
    return [model.value, second.value].filter(Boolean).map((each) => {
      const voices = known[each]?.voices ?? [];
      return { ...fixed, model: each, voice: voices.includes(voice.value) ? voice.value : voices[0] ?? "default" };
    });
  }

  function begin() {
    void models();
    const stop = follow(({ plan }) => plan && take(plan.models));
    return () => {
      stop();
      thread.stop();
      talking.end();
      if (stopped) void record();
    };
  }

  return { element, begin };
}

function choices({ gives }) {
  return Object.keys(OUTPUTS).filter((each) => gives.includes(each));
}

function field(name, attributes) {
  const input = h("input", { form: "ask", ...attributes });
  return { input, label: h("label", name, input) };
}
