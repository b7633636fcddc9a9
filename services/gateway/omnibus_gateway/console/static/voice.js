// The part of the playground that talks: captions of both sides, a line of who spoke when, and what happened.

import { badge, fill, h, say, trouble } from "./dom.js";
import { seconds } from "./format.js";
import { wav } from "./sound.js";
import { RATE } from "./voice_audio.js";
import { VoiceSession } from "./voice_session.js";
import { timeline } from "./voice_timeline.js";

const EVERY_MS = 100; // between two looks at what changed

/** Settings of a conversation: elements, and their values as a session takes them. */
export function voiceSettings() {
  const input = {
    instructions: h("input", { type: "text", placeholder: "none" }),
    pause: h("input", { type: "number", min: 40, max: 5000, step: 20, value: 500 }),
    before: h("input", { type: "number", min: 0, max: 2000, step: 20, value: 300 }),
    threshold: h("input", { type: "number", min: 0, max: 1, step: 0.05, value: 0.5 }),
    barge: h("input", { type: "checkbox", checked: true }),
    written: h("input", { type: "checkbox", checked: true }),
    clean: h("input", { type: "checkbox", checked: true }),
  };
  const check = (name, words) => h("label", { class: "check" }, input[name], words);
  const room = h("details", h("summary", "Conversation options"), h("div", { class: "row settings" },
    h("label", "Instructions", input.instructions), h("label", "Pause that ends a turn, ms", input.pause),
    h("label", "Kept before speech, ms", input.before), h("label", "Threshold of speech, 0 to 1", input.threshold),
    check("barge", "Stop the answer when I speak"), check("written", "Write down what I say"), check("clean", "Take out echo and noise (not needed with headphones)")));
  const value = (each) => (each.type === "checkbox" ? each.checked : each.type === "number" ? each.valueAsNumber : each.value.trim());
  return { room, read: () => Object.fromEntries(Object.entries(input).map(([name, each]) => [name, value(each)])) };
}

/** `begin(wishes)` opens a conversation, `end()` leaves it, `changed(open)` is called with whether one goes on. */
export function conversation(changed) {
  const state = h("span", { role: "status", class: "badge info" });
  const mute = h("button", { type: "button", class: "quiet", "aria-pressed": "false", onclick: toggle }, "Mute");
  const hush = h("button", { type: "button", class: "quiet", onclick: () => session?.hush() }, "Stop the answer");
  const wrong = h("div");
  const line = timeline();
  const said = h("div", { class: "talk", role: "log", "aria-label": "Captions" });
  const happened = h("ol", { class: "happened", tabindex: 0, "aria-label": "Events" });
  const panel = h("section", { class: "card voice", "aria-label": "Conversation by voice", hidden: true },
    h("div", { class: "row" }, h("h2", "Conversation"), state, mute, hush), wrong, line.figure, said,
    h("details", h("summary", "Events"), happened));
  let session = null;
  let shown = new Map(); // captions by turn
  let soon = 0;

  function toggle() {
    const quiet = mute.getAttribute("aria-pressed") === "false";
    session.microphone?.mute(quiet);
    mute.setAttribute("aria-pressed", String(quiet));
  }

  function draw() {
    soon = 0;
    const open = session.state !== "closed";
    say(state, stateOf(session, mute.getAttribute("aria-pressed") === "true"));
    mute.disabled = !open;
    hush.disabled = !open || !(session.player.busy || session.responses.size);
    const message = session.problem?.message ?? "";
    if (wrong.textContent !== message) fill(wrong, message && trouble(session.problem));
    line.draw(session);
    for (const turn of session.turns) {
      if (!shown.has(turn)) shown.set(turn, caption(turn, session));
      const made = shown.get(turn);
      if (!made.room.isConnected) said.append(made.room);
      made.draw();
    }
    for (const { at, what } of session.events.slice(happened.children.length)) happened.append(h("li", h("b", { class: "num" }, `${(at / 1000).toFixed(2)} s`), ` ${what}`));
    changed(open);
  }

  return {
    panel,
    begin(wishes) {
      shown = new Map();
      fill(said);
      fill(happened);
      mute.setAttribute("aria-pressed", "false");
      panel.hidden = false;
      session = new VoiceSession(wishes, () => (soon ||= setTimeout(draw, EVERY_MS)));
      draw();
      void session.open();
    },
    end: () => session?.end(),
    get open() {
      return session !== null && session.state !== "closed";
    },
  };
}

function stateOf({ state, speaking, player, responses }, muted) {
  if (state !== "open") return state === "closed" ? "ended" : state;
  if (speaking) return "you speak";
  if (player.busy) return "answers";
  if (responses.size) return "thinks";
  return muted ? "muted" : "listens";
}

/** What one side said, while it is said and afterwards. */
function caption(turn, session) {
  const text = h("p", { class: "text" });
  if (turn.who === "you") {
    const room = h("article", { class: "question", "aria-label": "You said" }, text);
    return { room, draw: () => say(text, turn.text || spoken(turn, session.wishes.written)) };
  }
  const facts = h("p", { class: "facts-line" });
  const room = h("article", { class: "answer", "aria-label": `${session.wishes.model} said` }, text, facts);
  let over = false;
  const draw = () => {
    say(text, turn.text);
    if (over) return;
    fill(facts, turn.cut && badge("interrupted", "warn"), fact("first sound", turn.first), turn.heard > 0 && fact("heard", turn.heard / RATE), turn.gaps > 0 && h("span", h("small", "gaps "), String(turn.gaps)));
    if (turn.open) return;
    over = true;
    if (turn.heard > 0) room.append(h("audio", { controls: true, src: URL.createObjectURL(wav(session.heard(turn), RATE)), "aria-label": "Audio that was played" }));
  };
  return { room, draw };
}

function spoken({ from, to, open, written }, waits) {
  if (open) return "…";
  if (written) return "(no words)";
  return waits ? "…" : `(${seconds((to - from) / 1000)} of speech)`;
}

function fact(name, value) {
  return value !== undefined && h("span", h("small", `${name} `), seconds(value));
}
