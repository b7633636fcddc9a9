// What was asked lately, and a search in it.

import { get } from "./api.js";
import { about, badge, fill, h, morph, num, table, trouble } from "./dom.js";
import { clock, kind, seconds } from "./format.js";
import { follow } from "./state.js";

const STATES = { running: "info", done: "good", failed: "bad", cancelled: "warn", expired: "bad" };
const PAUSE = 250; // milliseconds after a key
const FRESH = 1500; // milliseconds between two readings while requests come

export function status(word, code) {
  return badge(code ? `${word}: ${code}` : word, STATES[word] ?? "");
}

export function invocations(room) {
  const words = h("input", { type: "search", id: "words", placeholder: "id, model, type, path, executor, error …", autocomplete: "off", spellcheck: "false", "aria-label": "Search" });
  const only = h("select", { "aria-label": "Status" }, h("option", { value: "" }, "every status"), Object.keys(STATES).map((each) => h("option", { value: each }, each)));
  const list = h("div", { "aria-live": "polite" });
  const more = h("button", { type: "button", class: "quiet", hidden: true }, "Older ones");
  fill(room, h("h1", "Invocations"), h("form", { class: "row search", role: "search", onsubmit: (event) => event.preventDefault() }, words, only), h("section", { class: "card" }, list, more));

  let older = [];
  let next = null;
  let turn = null;
  let timer = 0;
  let last = 0;
  let mark = "";

  function query(before) {
    const asked = new URLSearchParams({ limit: 50 });
    if (words.value.trim()) asked.set("q", words.value.trim());
    if (only.value) asked.set("status", only.value);
    if (before) asked.set("before", before);
    return `invocations?${asked}`;
  }

  async function read() {
    turn?.abort();
    turn = new AbortController();
    last = Date.now();
    try {
      const page = await get(query(0), { signal: turn.signal });
      if (!older.length) next = page.next;
      show(page.data);
    } catch (error) {
      if (error.name !== "AbortError") fill(list, trouble(error));
    }
  }

  function show(found) {
    const seen = new Set(found.map((each) => each.id));
    const all = [...found, ...older.filter((each) => !seen.has(each.id))];
    more.hidden = !next;
    if (!all.length) fill(list, h("p", { class: "empty" }, words.value || only.value ? "Nothing like that was recorded." : "Nothing was recorded yet."));
    else morph(list, rows(all));
  }

  async function back() {
    more.disabled = true;
    try {
      const page = await get(query(next));
      older = [...older, ...page.data];
      next = page.next;
      await read();
    } catch (error) {
      fill(list, trouble(error));
    } finally {
      more.disabled = false;
    }
  }

  function anew() {
    older = [];
    clearTimeout(timer);
    timer = setTimeout(read, PAUSE);
  }

  words.addEventListener("input", anew);
  only.addEventListener("change", anew);
  more.addEventListener("click", back);
  void read();
  // Load tells that something came or ended: then, and only then, the list is read again.
  const stop = follow(({ now }) => {
    if (!now) return;
    const news = JSON.stringify([now.inflight, Object.values(now.models).flatMap((types) => Object.values(types).map((each) => [each.came, each.done, each.failed]))]);
    if (news === mark) return;
    mark = news;
    clearTimeout(timer);
    timer = setTimeout(read, Math.max(PAUSE, last + FRESH - Date.now()));
  });
  return () => {
    stop();
    turn?.abort();
    clearTimeout(timer);
  };
}

function rows(all) {
  const longest = Math.max(1e-6, ...all.map((each) => each.seconds ?? 0));
  return table("Invocations, newest first", ["Invocation", "When", "Model", "Type", "Status", "Path", num("first"), num("took"), ""],
    all.map((each) => [
      about(each.id),
      clock(each.created), each.model, kind(each.type),
      h("span", status(each.status, each.code), each.attempts > 1 ? badge(`${each.attempts} attempts`, "warn") : null, each.replay_of ? badge("replay", "info") : null),
      h("code", each.path), num(seconds(each.first)),
      num(seconds(each.seconds)),
      h("span", { class: "length", "aria-hidden": "true", style: { width: `${(7 * (each.seconds ?? 0)) / longest}rem` } }),
    ]));
}
