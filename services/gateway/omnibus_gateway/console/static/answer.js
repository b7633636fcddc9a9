// One answer while it comes: text, sound that is played at once, pictures that become clearer.

import { ask, events } from "./api.js";
import { about, badge, fill, h, s, say, trouble } from "./dom.js";
import { seconds } from "./format.js";
import { fromBase64, Player } from "./sound.js";
import { video } from "./videos.js";

const PEAKS = 160; // bars of a sound
const PARTIAL = 3; // pictures before the last one

/** Ask and show in `room`; returns the text, to go on with. */
export async function answer(room, asked, message, signal) {
  const clock = performance.now();
  const since = () => (performance.now() - clock) / 1000;
  const facts = {};
  const foot = h("p", { class: "facts-line" }, badge("waiting", "info"));
  const body = h("div", { class: "body", "aria-busy": "true" });
  fill(room, body, foot);
  const tell = (id = "") => fill(foot, Object.entries(facts).map(([name, value]) => h("span", h("small", `${name} `), value)),
    id && about(id, "what happened"));
  let id = "";
  try {
    if (asked.output === "video") {
      await video(asked, body, { facts, since, signal });
      facts.total = seconds(since());
      tell();
      return "";
    }
    const response = await (asked.output === "image" ? draw(asked, message, signal) : chat(asked, message, signal));
    id = response.headers.get("x-request-id") ?? "";
    const text = await (asked.output === "image" ? pictures : words)(response, body, { facts, since, tell: () => tell(id) });
    facts.total = seconds(since());
    tell(id);
    return text;
  } catch (error) {
    id = error.told?.request_id || id;
    const left = error.name === "AbortError";
    body.append(left ? badge("stopped", "warn") : trouble(error));
    facts[left ? "stopped" : "failed"] = seconds(since());
    tell(id);
    return "";
  } finally {
    body.removeAttribute("aria-busy");
  }
}

function chat({ model, output, voice, earlier, max_tokens, temperature, seed }, message, signal) {
  const json = { model, messages: [...earlier, message], stream: true, stream_options: { include_usage: true }, max_tokens, temperature, seed };
  if (output === "speech") Object.assign(json, { modalities: ["text", "audio"], audio: { voice, format: "wav" } });
  return ask("chat/completions", { method: "POST", json, signal });
}

function draw({ model, text, files, size, steps, seed }, _, signal) {
  const wanted = { model, prompt: text, size, steps, seed, stream: true, partial_images: PARTIAL };
  const images = files.filter((each) => each.way === "image");
  if (!images.length) return ask("images/generations", { method: "POST", json: wanted, signal });
  const form = new FormData();
  for (const [name, value] of Object.entries(wanted)) if (value !== undefined) form.append(name, String(value));
  for (const { blob, name } of images) form.append("image", blob, name);
  return ask("images/edits", { method: "POST", form, signal });
}

// Text and sound

async function words(response, body, { facts, since, tell }) {
  const text = h("p", { class: "text" });
  const sound = h("div", { class: "sound" });
  body.append(text, sound);
  let [whole, player, wave] = ["", null, null];
  try {
    for await (const chunk of events(response)) {
      const delta = chunk.choices?.[0]?.delta ?? {};
      const more = delta.content || delta.audio?.transcript;
      if (more) {
        facts["first word"] ??= seconds(since());
        whole += more;
        text.append(more);
      }
      if (delta.audio?.data) {
        facts["first sound"] ??= seconds(since());
        player ??= new Player();
        wave ??= waveform(sound);
        wave.add(player.push(fromBase64(delta.audio.data)), player.rate);
      }
      if (chunk.usage) facts.tokens = `${chunk.usage.prompt_tokens} in, ${chunk.usage.completion_tokens} out`;
      tell();
    }
  } catch (error) {
    player?.close(true);
    throw error;
  }
  if (player) {
    facts.sound = seconds(player.seconds);
    facts["of real time"] = `${(player.seconds / since()).toFixed(1)}×`;
    facts.gaps = String(player.gaps);
    sound.append(h("audio", { controls: true, src: URL.createObjectURL(player.file()), "aria-label": "The spoken answer" }));
    player.close();
  }
  if (!whole && !player) say(text, "(nothing)");
  return whole;
}

/** Bars that grow as the sound comes. */
function waveform(room) {
  const svg = s("svg", { class: "wave", viewBox: `0 0 ${PEAKS * 3} 40`, preserveAspectRatio: "none", role: "img", "aria-label": "Waveform of the audio" });
  room.append(svg);
  let [peak, count, at] = [0, 0, 0];
  return {
    add(samples, rate) {
      for (const each of samples) {
        peak = Math.max(peak, Math.abs(each));
        if (++count < rate / 25) continue;
        const high = Math.max(1.5, 38 * peak);
        svg.append(s("rect", { x: at * 3, y: 20 - high / 2, width: 2, height: high, rx: 1 }));
        [peak, count] = [0, 0];
        if (++at > PEAKS) svg.setAttribute("viewBox", `0 0 ${at * 3} 40`);
      }
    },
  };
}

// Pictures

async function pictures(response, body, { facts, since, tell }) {
  const image = h("img", { class: "made", alt: "The image, which becomes clearer" });
  for await (const event of events(response)) {
    facts["first picture"] ??= seconds(since());
    if (!image.isConnected) body.append(image);
    const over = event.type.endsWith("completed");
    URL.revokeObjectURL(image.src);
    image.src = URL.createObjectURL(new Blob([fromBase64(event.b64_json)], { type: `image/${event.output_format ?? "png"}` }));
    image.classList.toggle("partial", !over);
    if (over) image.alt = "The picture";
    facts.size = event.size;
    if (!over) facts.previews = String(event.partial_image_index + 1);
    tell();
  }
  return "";
}
