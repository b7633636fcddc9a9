// What was asked lately, and a search in it.

import { get } from "./api.js";
import { about, badge, fill, h, morph, num, table, trouble } from "./dom.js";
import { codeLinks } from "./failures.js";
import { clock, kind, seconds } from "./format.js";
import { pathLegend } from "./paths.js";
import { follow } from "./state.js";

const STATES = { running: "info", done: "good", failed: "bad", cancelled: "warn", expired: "bad" };
const SPANS = { 900: "last 15 minutes", 3600: "last hour", 86400: "last day" };
const LEAST = { 100: "100 ms", 1000: "1 s", 10000: "10 s", 60000: "1 min" };
const PAUSE = 250; // milliseconds after a key
const FRESH = 1500; // milliseconds between two readings while requests come

export function status(word, code) {
  return badge(code ? `${word}: ${code}` : word, STATES[word] ?? "");
}

export function invocations(room) {
  const words = h("input", { type: "search", id: "words", placeholder: "id, model, type, path, executor, error …", autocomplete: "off", spellcheck: "false", "aria-label": "Search" });
  const only = h("select", { "aria-label": "Status" }, h("option", { value: "" }, "every status"), Object.keys(STATES).map((each) => h("option", { value: each }, each)));
  const asked = new URLSearchParams(location.hash.split("?")[1] ?? "");
  const fixed = asked.has("since") ? { since: asked.get("since"), until: asked.get("until") } : null;
  const when = h("select", { "aria-label": "Time" }, fixed ? h("option", { value: "fixed" }, `${clock(fixed.since)} to ${clock(fixed.until)}`) : null, h("option", { value: "" }, "at any time"), options(SPANS));
  const least = h("select", { "aria-label": "Duration" }, h("option", { value: "" }, "however long"), options(LEAST, "took at least "));
  words.value = asked.get("q") ?? asked.get("model") ?? "";
  const [list, failed] = [h("div", { "aria-live": "polite" }), h("p", { class: "faint" })];
  const more = h("button", { type: "button", class: "quiet", hidden: true }, "Older ones");
  fill(room, h("h1", "Invocations"), h("form", { class: "row search", role: "search", onsubmit: (event) => event.preventDefault() }, words, only, when, least), failed, h("section", { class: "card" }, list, more));

  let older = [];
  let next = null;
  let turn = null;
  let timer = 0;
  let last = 0;
  let mark = "";

  function query(before) {
    const asked = new URLSearchParams({ limit: 50, ...(when.value === "fixed" ? fixed : {}) });
    if (SPANS[when.value]) asked.set("since", Math.floor(Date.now() / 1000) - Number(when.value));
    if (least.value) asked.set("min_ms", least.value);
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
      void readFailed(turn.signal);
    } catch (error) {
      if (error.name !== "AbortError") fill(list, trouble(error));
    }
  }

  /** Say how many requests were rejected or failed, which the list has only if they ran. */
  async function readFailed(signal) {
    const span = when.value === "fixed" ? fixed : SPANS[when.value] ? { since: Math.floor(Date.now() / 1000) - Number(when.value) } : {};
    const { codes } = await get(`console/failures?${new URLSearchParams({ limit: 1, ...span })}`, { signal }).catch(() => ({ codes: {} }));
    const named = Object.keys(codes).length > 0;
    morph(failed, named ? ["Rejected or failed, also before they became an invocation: ", codeLinks(codes, span)] : "");
  }

  function show(found) {
    const seen = new Set(found.map((each) => each.id));
    const all = [...found, ...older.filter((each) => !seen.has(each.id))];
    more.hidden = !next;
    if (!all.length) fill(list, h("p", { class: "empty" }, words.value || only.value || when.value || least.value ? "Nothing like that was recorded." : "Nothing was recorded yet."));
    else morph(list, rows(all), pathLegend(all));
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
  for (const each of [only, when, least]) each.addEventListener("change", anew);
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

function options(names, before = "") {
  return Object.entries(names).map(([value, name]) => h("option", { value }, before + name));
}

function rows(all) {
  const longest = Math.max(1e-6, ...all.map((each) => each.seconds ?? 0));
  return table("Invocations, newest first", ["Invocation", "When", "Model", "Type", "Status", "Path", num("first"), num("took"), h("span", { class: "unseen" }, "Length")],
    all.map((each) => [
      about(each.id),
      clock(each.created), each.model, kind(each.type),
      h("span", status(each.status, each.code), each.attempts > 1 ? badge(`${each.attempts} attempts`, "warn") : null, each.replay_of ? badge("replay", "info") : null),
      h("code", each.path), num(seconds(each.first)),
      num(seconds(each.seconds)),
      h("span", { class: "length", "aria-hidden": "true", style: { width: `${(7 * (each.seconds ?? 0)) / longest}rem` } }),
    ]));
}
