// A form that runs a recorded invocation again from one of its nodes, with one input or the seed changed.

import { badge, fill, h } from "./dom.js";
import { follow } from "./replay.js";

const MOST = 200; // places of a node's inputs that are offered

/** The form for `step` of the invocation `told`; `forked(id)` is called when a fork has ended. */
export function forkForm(told, step, signal, forked) {
  const places = step.inputs.flatMap(changeable).slice(0, MOST);
  const said = h("div", { class: "again", role: "status" });
  const where = h("select", places.map(({ path, words }) => h("option", { value: path }, words)), h("option", { value: "" }, "nothing but the seed"));
  const value = h("textarea", { rows: 2, spellcheck: "false" });
  const seed = h("input", { type: "number", step: 1, max: Number.MAX_SAFE_INTEGER, min: Number.MIN_SAFE_INTEGER, placeholder: String(told.seed) });
  const button = h("button", { type: "submit" }, `Fork from ${step.component}`);
  const show = () => {
    value.value = places.find(({ path }) => path === where.value)?.text ?? "";
    value.disabled = !where.value;
  };
  where.addEventListener("change", show);
  show();
  const form = h("form", { class: "room", onsubmit: async (event) => {
    event.preventDefault();
    const changes = where.value ? { [where.value]: parsed(value.value) } : {};
    const json = { node: step.node, changes, ...(seed.value ? { seed: Number(seed.value) } : {}) };
    const { id } = told.summary;
    const last = await follow(`console/fork/${encodeURIComponent(id)}`, json, { id, said, button, signal });
    if (last?.status === "done" && !signal.aborted) forked(last.id);
  } },
    h("div", { class: "fields fork" }, h("label", "Change", where), h("label", "To", value), h("label", "Seed", seed)),
    h("p", { class: "row" }, button, h("small", begins(step))), said);
  if (told.record === "digest") fill(form, h("p", badge("not kept", "warn"), " Recorded as digests only: it cannot be forked."));
  return h("details", h("summary", "Fork: run it again from here with one thing changed"), form);
}

function begins({ node, forkable }) {
  if (!node) return "All stages run again.";
  return forkable ? "Stages before it are played from the record." : "It begins with the first stage: OMNIBUS_GATEWAY_RECORD=stages keeps what is needed to begin here.";
}

/** JSON, or else text: as `omnibus fork` takes it. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Places of an input that may be changed: `path`, `words` for it, and `text`, what is there now. */
function changeable({ name, text = "", source, mime = "", nbytes = 0 }) {
  if (source || (mime && !/^(text|application\/json)/.test(mime))) return [];
  const whole = !mime && new TextEncoder().encode(text).length === nbytes;
  if (!whole) return [{ path: name, words: `${name}, all of it`, text: "" }];
  const now = parsed(text);
  if (now === null || typeof now !== "object") return [{ path: name, words: name, text }];
  return [...leaves(name, now), { path: name, words: `${name}, all of it`, text }];
}

function leaves(path, value) {
  const within = value !== null && typeof value === "object" ? Object.entries(value).filter(([key]) => !key.includes(".")) : [];
  if (within.length) return within.flatMap(([key, each]) => leaves(`${path}.${key}`, each));
  return [{ path, words: path, text: typeof value === "string" && parsed(value) === value ? value : JSON.stringify(value) }];
}
