// One answer while it comes: text, sound that is played at once, pictures that become clearer.

import { ask, events } from "./api.js";
import { badge, fill, h, s, say } from "./dom.js";
import { seconds } from "./format.js";
import { failure, priceText, readRecord, requestLink, waterfallPart } from "./receipt.js";
import { fromBase64, Player } from "./sound.js";
import { video } from "./videos.js";

const PEAKS = 160; // bars of a sound
const PARTIAL = 3; // pictures before the last one

/** Ask and show in `room`; returns the `text`, to go on with, and the `state`: done, stopped or failed. */
export async function answer(room, asked, message, signal) {
  const clock = performance.now();
  const since = () => (performance.now() - clock) / 1000;
  const facts = {};
  const foot = h("p", { class: "facts-line" }, badge("waiting", "info"));
  const body = h("div", { class: "body", "aria-busy": "true" });
  fill(room, body, foot);
  const told = { id: "", text: "" };
  const tell = () => fill(foot, Object.entries(facts).map(([name, value]) => h("span", h("small", `${name} `), value)),
    told.id && h("span", h("small", "request "), requestLink(told.id)));
  const end = (name, state) => {
    facts[name] = seconds(since());
    tell();
    if (told.id) room.append(waterfallPart(told.id));
    return { text: told.text, state };
  };
  try {
    if (asked.output === "video") await video(asked, body, { facts, since, signal });
    else {
      const draws = asked.output === "image";
      const response = await (draws ? draw(asked, signal) : chat(asked, await message, signal));
      told.id = response.headers.get("x-request-id") ?? "";
      await (draws ? pictures : words)(response, body, { facts, since, tell, told });
    }
    if (told.id && !facts.price) void addPrice(told.id, facts, tell);
    return end("total", "done");
  } catch (error) {
    const left = error.name === "AbortError";
    told.id = error.told?.request_id || told.id;
    body.append(left ? badge("stopped", "warn") : failure(error));
    return left ? end("stopped", "stopped") : end("failed", "failed");
  } finally {
    body.removeAttribute("aria-busy");
  }
}

/** What the record says of the price, for an answer that does not. People without the right to records see none. */
async function addPrice(id, facts, tell) {
  const record = await readRecord(id).catch(() => null);
  if (!record?.usage) return;
  facts.price = priceText(record.usage);
  tell();
}

function chat({ model, output, voice, earlier, max_tokens, temperature, seed }, message, signal) {
  const json = { model, messages: [...earlier, message], stream: true, stream_options: { include_usage: true }, max_tokens, temperature, seed };
  if (output === "speech") Object.assign(json, { modalities: ["text", "audio"], audio: { voice, format: "wav" } });
  return ask("chat/completions", { method: "POST", json, signal, headers: { "x-omnibus-usage": "1" } });
}

function draw({ model, text, files, size, steps, seed }, signal) {
  const wanted = { model, prompt: text, size, steps, seed, stream: true, partial_images: PARTIAL };
  const images = files.filter((each) => each.way === "image");
  if (!images.length) return ask("images/generations", { method: "POST", json: wanted, signal });
  const form = new FormData();
  for (const [name, value] of Object.entries(wanted)) if (value !== undefined) form.append(name, String(value));
  for (const { blob, name } of images) form.append("image", blob, name);
  return ask("images/edits", { method: "POST", form, signal });
}

// Text and sound

async function words(response, body, { facts, since, tell, told }) {
  const text = h("p", { class: "text" });
  const sound = h("div", { class: "sound" });
  body.append(text, sound);
  let [player, wave] = [null, null];
  try {
    for await (const chunk of events(response)) {
      const delta = chunk.choices?.[0]?.delta ?? {};
      const more = delta.content || delta.audio?.transcript;
      if (more) {
        facts["first word"] ??= seconds(since());
        told.text += more;
        text.append(text.textContent ? more : more.trimStart());
      }
      if (delta.audio?.data) {
        facts["first sound"] ??= seconds(since());
        player ??= new Player();
        wave ??= waveform(sound);
        wave.add(player.push(fromBase64(delta.audio.data)), player.rate);
      }
      if (chunk.usage) facts.tokens = `${chunk.usage.prompt_tokens} in, ${chunk.usage.completion_tokens} out`;
      if (chunk.usage?.omnibus) facts.price = priceText(chunk.usage.omnibus);
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
  if (!told.text && !player) say(text, "(nothing)");
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
}
