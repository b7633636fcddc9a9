// A conversation in writing: turns, each with the answer of one model or of two. A message can be edited and sent again.

import { answer } from "./answer.js";
import { fill, h } from "./dom.js";
import { several } from "./format.js";
import { failure } from "./receipt.js";
import { SOUNDS } from "./sound.js";

const NEAR = 160; // pixels from the end of the page in which it follows an answer
const HEARD = 400; // characters of an answer that are announced

/**
 * `wishes()` returns what to send, one for each model; `changed(running)` is called when answers begin and end, `announce`
 * with words for readers of screens, `focus` when there is nothing to do here. `hello` is shown while there are no turns.
 */
export function chat({ wishes, changed, announce, hello, focus }) {
  let turns = [];
  const running = new Set(); // controllers of answers that are under way
  let near = true;
  let last = 0; // where the page was
  const list = h("div", { class: "talk" });
  const note = h("p", { class: "undo", role: "status" });
  const element = h("section", { class: "thread", "aria-label": "Messages" }, list, note);
  show(turns);
  addEventListener("scroll", () => {
    const end = innerHeight + scrollY > document.documentElement.scrollHeight - NEAR;
    near = end || (near && scrollY >= last); // only people scroll up
    last = scrollY;
  }, { passive: true });
  new ResizeObserver(() => near && turns.length && !list.contains(document.activeElement) && toEnd()).observe(list);

  function toEnd() {
    if (list.isConnected) scrollTo(0, document.documentElement.scrollHeight);
  }

  function show(next) {
    turns = next;
    fill(list, turns.length ? turns.map((each) => each.element) : hello);
    element.classList.toggle("beside", turns.some((each) => each.lanes.length > 1));
  }

  /** Show other turns, and offer to go back to those that were there. */
  function replace(next, words) {
    const before = turns;
    stop();
    show(next);
    fill(note, words, button("Undo", () => {
      stop();
      show(before);
      fill(note, "The conversation is as before.");
      focus();
    }));
    focus();
  }

  function send(text, files, kept = turns) {
    const turn = { text, files, lanes: wishes().map((wish) => ({ wish, text: "", body: h("div", { class: "room" }) })), top: h("div", { class: "asked" }) };
    const answers = turn.lanes.map(({ wish, body }) => h("article", { class: "answer", "aria-label": `Answer of ${wish.model}` }, h("p", { class: "by" }, wish.model), body));
    turn.element = h("div", { class: "turn", role: "group", "aria-label": `Turn ${kept.length + 1}` }, turn.top, h("div", { class: "answers" }, answers));
    if (kept === turns) fill(note);
    show([...kept, turn]);
    question(turn);
    near = true;
    toEnd();
    return run(turn, turn.lanes);
  }

  async function run(turn, lanes) {
    const own = new AbortController();
    running.add(own);
    changed(true);
    try {
      turn.message ??= await content(turn);
      await Promise.all(lanes.map((lane) => reply(turn, lane, own.signal)));
    } catch (error) {
      for (const { body } of lanes) fill(body, failure(error));
    } finally {
      running.delete(own);
      changed(running.size > 0);
    }
  }

  async function reply(turn, lane, signal) {
    const { model } = lane.wish;
    announce(`${model} answers.`);
    const { text, state } = await answer(lane.body, { ...lane.wish, text: turn.text, files: turn.files, earlier: earlier(turn, lane) }, turn.message, signal);
    lane.text = text;
    announce(state === "done" ? `Answer of ${model}: ${text.slice(0, HEARD) || "complete"}` : `The answer of ${model} ${state === "failed" ? "failed" : "was stopped"}.`);
    if (state !== "done") lane.body.append(h("div", button("Try again", () => void run(turn, [lane]))));
  }

  /** Messages of the turns before `turn`: the lane's own answers, or those of the first where it has none. */
  function earlier(turn, lane) {
    const column = turn.lanes.indexOf(lane);
    return turns.slice(0, turns.indexOf(turn)).flatMap(({ message, lanes }) => {
      const text = lanes[column]?.text || lanes[0].text;
      return text ? [message, { role: "assistant", content: text }] : [];
    });
  }

  function question(turn) {
    const edit = button("Edit", () => editor(turn));
    fill(turn.top, edit, h("article", { class: "question", "aria-label": "Your message" }, turn.files.map(shown), turn.text ? h("p", turn.text) : null));
    return edit;
  }

  function editor(turn) {
    const words = h("textarea", { rows: 3, "aria-label": "Edited message" });
    words.value = turn.text;
    const cancel = () => question(turn).focus();
    const form = h("form", { class: "question edit", onsubmit: (event) => {
      event.preventDefault();
      const text = words.value.trim();
      if (!text && !turn.files.length) return words.focus();
      resend(turn, text);
    } }, turn.files.map(shown), words, h("div", { class: "row end" }, button("Cancel", cancel), h("button", { class: "small" }, "Resend")));
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") cancel();
      else if (event.target === words && sends(event)) form.requestSubmit();
    });
    fill(turn.top, form);
    words.focus();
  }

  function resend(turn, text) {
    const index = turns.indexOf(turn);
    const later = turns.length - index - 1;
    question(turn);
    replace(turns.slice(0, index), later ? `Edited. ${several(later, "later turn")} removed.` : "Edited. The earlier answer was removed.");
    void send(text, turn.files, turns.slice());
  }

  function stop() {
    for (const each of running) each.abort();
  }

  return {
    element, send, stop,
    clear: () => turns.length && replace([], "A new conversation began."),
    get running() {
      return running.size > 0;
    },
  };
}

function button(words, onclick) {
  return h("button", { type: "button", class: "quiet small", onclick }, words);
}

/** Whether a key sends what is written; it then does nothing else. */
export function sends(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return false;
  event.preventDefault();
  return true;
}

/** An attached file as an element. */
export function shown({ way, name, url }) {
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
