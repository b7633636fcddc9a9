// Questions to begin with, with a picture and a sound that are made here. The small world that ships with Omnibus
// understands all of them (docs/models.md); other models say what they make of them.

import { h } from "./dom.js";
import { wav } from "./sound.js";

const SIDE = 64; // pixels of a picture
const RATE = 16000; // samples per second
const [EDGE, REST, TONE] = [0.005, 0.06, 0.22]; // seconds of a tone's rise and fall, between tones, and of a tone
const HERTZ = { low: 220, high: 1050 };

/** What is asked of a model that `takes` these media and `gives` this output; `adds` are media to attach. */
const EXAMPLES = [
  { text: "What do you see?", adds: ["image"], gives: "text" },
  { text: "What do you hear?", adds: ["audio"], gives: "text" },
  { text: "What do you see and hear?", adds: ["image", "audio"], gives: "text" },
  { text: "Say two red circles on blue", adds: [], gives: "speech" },
  { text: "two red circles on blue", adds: [], gives: "image" },
  { text: "two red circles on blue", adds: [], gives: "video" },
];
/** For models that only write. */
const WRITTEN = { text: "Write two lines about the sea.", adds: [], gives: "text" };

const FILES = { image: () => picture(), audio: () => tones(["low", "high"]) };

/** The examples for a model of which `takes` and `gives` are known. */
export function examplesOf({ takes, gives }) {
  const found = EXAMPLES.filter((each) => gives.includes(each.gives) && each.adds.every((way) => takes.includes(way)));
  return found.length || !gives.includes("text") ? found : [WRITTEN];
}

/** Their buttons; `use` is called with the text, files with their names, and the output that was chosen. */
export function exampleButtons(model, use) {
  return examplesOf(model).map(({ text, adds, gives }) => {
    const made = async () => Promise.all(adds.map(async (way) => new File([await FILES[way]()], `example.${way === "image" ? "png" : "wav"}`, { type: way === "image" ? "image/png" : "audio/wav" })));
    return h("button", { type: "button", class: "quiet small", onclick: async () => use(text, await made(), gives) }, text);
  });
}

/** A PNG of two red circles on blue. */
export function picture() {
  const canvas = h("canvas", { width: SIDE, height: SIDE });
  const brush = canvas.getContext("2d");
  brush.fillStyle = "rgb(45 80 220)";
  brush.fillRect(0, 0, SIDE, SIDE);
  brush.fillStyle = "rgb(220 40 40)";
  for (const x of [18, 46]) {
    brush.beginPath();
    brush.arc(x, SIDE / 2, 10.5, 0, 2 * Math.PI);
    brush.fill();
  }
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** A WAV file of tones, one after the other. */
export function tones(names) {
  const [count, rest] = [TONE * RATE, REST * RATE];
  const samples = new Float32Array(rest + names.length * (count + rest));
  names.forEach((name, index) => {
    const start = rest + index * (count + rest);
    for (let n = 0; n < count; n += 1) {
      const edge = Math.min(1, n / (EDGE * RATE), (count - n) / (EDGE * RATE));
      samples[start + n] = 0.35 * edge * Math.sin((2 * Math.PI * HERTZ[name] * n) / RATE);
    }
  });
  return wav(samples, RATE);
}
