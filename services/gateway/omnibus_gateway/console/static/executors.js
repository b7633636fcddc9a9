// Executors: where each runs, how busy it is, what it occupies, and the last lines that it wrote.

import { get } from "./api.js";
import { badge, card, facts, fill, h, morph, num, table, trouble } from "./dom.js";
import { bytes, seconds, several, whole } from "./format.js";
import { every } from "./refresh.js";
import { state } from "./state.js";

const STATES = { ready: "good", loading: "info", draining: "warn" };
const REFRESH_MS = 2000;
const LOG_LINES = 200;

export function executors(room) {
  const words = h("input", { type: "search", "aria-label": "Filter executors", placeholder: "model, option, node, device, component …", autocomplete: "off", spellcheck: "false" });
  const list = h("div");
  fill(room, h("h1", "Executors"), h("form", { class: "row search", role: "search", onsubmit: (event) => event.preventDefault() }, words), h("section", { class: "card" }, list));
  let last = null;
  const show = () => {
    if (!last) return;
    const wanted = words.value.trim().toLowerCase().split(/\s+/);
    const found = last.filter((each) => wanted.every((word) => JSON.stringify(each).toLowerCase().includes(word)));
    morph(list, found.length ? rows(found) : h("p", { class: "empty" }, last.length ? "No executor matches." : "No executor has reported yet."));
  };
  words.addEventListener("input", show);
  return every(REFRESH_MS, async (signal) => {
    last = (await get("console/executors", { signal })).data;
    show();
  }, (error) => fill(list, trouble(error)));
}

function rows(found) {
  return table("Executors", ["Executor", "State", "Runs", "Node", "Device", num("In flight"), num("Busy"), num("Memory"), num("GPU memory")], found.map((each) => [
    h("a", { href: `#/executors/${encodeURIComponent(each.id)}` }, h("b", each.option), h("small", ` ${each.model}`)),
    standing(each), each.stages.map((stage) => stage.component).join(" + "), each.node, each.device || "–",
    num(`${each.inflight} of ${each.credits}`), num(busyShare(each)), num(each.memory_bytes ? bytes(each.memory_bytes) : "–"), num(each.gpu_bytes ? bytes(each.gpu_bytes) : "–"),
  ]));
}

function standing({ state: word, health }) {
  return h("span", badge(word, STATES[word] ?? "bad"), health === "ok" ? null : badge(health, "bad"));
}

/** How busy it is by the live states, which are those of its option. */
function busyShare(each) {
  const option = state.now?.executors.find((other) => other.model === each.model && other.option === each.option);
  return typeof option?.busy === "number" ? `${Math.round(option.busy * 100)} %` : "–";
}

export function executor(room, id) {
  const [head, body, logs] = [h("header", { class: "head" }), h("div", { class: "room" }), h("div")];
  fill(room, head, body, logs);
  let reading = false;
  return every(REFRESH_MS, async (signal) => {
    const each = await get(`console/executors/${encodeURIComponent(id)}`, { signal });
    morph(head, crumb(), h("h1", h("code", each.id), " ", standing(each)), about(each));
    morph(body, card("Stages", table("Stages", ["Component", num("Jobs"), num("Computed"), num("Mean per job")], each.stages.map((stage) => [
      h("b", stage.component), num(stage.jobs === null ? "–" : whole(stage.jobs)), num(stage.busy_seconds === null ? "–" : seconds(stage.busy_seconds)),
      num(stage.jobs && stage.busy_seconds !== null ? seconds(stage.busy_seconds / stage.jobs) : "–")]))));
    if (!reading) {
      reading = true;
      fill(logs, logCard(`${each.model}/${each.option}`, signal));
    }
  }, (error) => fill(head, crumb(), h("h1", h("code", id)), trouble(error)));
}

function crumb() {
  return h("p", { class: "crumb" }, h("a", { href: "#/executors" }, "Executors"));
}

function about(each) {
  return facts([
    ["Model and option", `${each.model} / ${each.option}`], ["Node", each.node], ["Process", each.pid ? String(each.pid) : "–"],
    ["Device", each.device || "–"], ["Memory", each.memory_bytes ? bytes(each.memory_bytes) : "–"],
    each.gpu_bytes ? ["GPU memory", `${bytes(each.gpu_bytes)} reserved at most`] : null,
    ["In flight", `${each.inflight} of ${several(each.credits, "invocation")}`], each.batch ? ["Batch", `up to ${each.batch}`] : null,
    ["Sent and not finished", `${whole(each.outstanding_tokens)} tokens`], ["Last heartbeat", `${seconds(Math.round(each.silent_seconds * 10) / 10)} ago`],
    each.reconnects ? ["Bus reconnects", String(each.reconnects)] : null,
  ]);
}

/** The last lines of the executors of an option, read again on request. */
function logCard(process, signal) {
  const lines = h("pre", { class: "log", tabindex: 0, role: "region", "aria-label": `Log of ${process}` });
  const read = async () => {
    try {
      const found = await get(`console/logs?lines=${LOG_LINES}&process=${encodeURIComponent(process)}`, { signal });
      fill(lines, found.lines.length ? found.lines.map(withoutName).join("\n") : "It has written nothing lately.");
      lines.scrollTop = lines.scrollHeight;
    } catch (error) {
      if (error.name !== "AbortError") fill(lines, error.message);
    }
  };
  void read();
  return card("Log", h("p", { class: "row" }, h("small", `The last ${LOG_LINES} lines of ${process}, all its replicas.`), h("button", { type: "button", class: "quiet small", onclick: read }, "Read again")), lines);
}

/** A line without the name of its process in front. */
function withoutName(line) {
  const cut = line.indexOf("| ");
  return cut < 0 ? line : line.slice(cut + 2);
}
