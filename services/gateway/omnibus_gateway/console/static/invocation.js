// One invocation: its graph, who worked when, each step of it; run it again, fork it, lay two side by side.

import { get } from "./api.js";
import { difference, short } from "./compare.js";
import { about, badge, card, facts, fill, h, num, s, table, trouble, wide } from "./dom.js";
import { ago, bytes, clock, kind, seconds, several } from "./format.js";
import { status } from "./invocations.js";
import { layer, through } from "./lines.js";
import { pathFact } from "./paths.js";
import { replayRow } from "./replay.js";
import { stepView } from "./steps.js";
import { elapsed, waterfall } from "./waterfall.js";

const RECORD_WAIT_SECONDS = 5; // a request that has just come is recorded a little later

export function invocation(room, id) {
  const turn = new AbortController();
  const [top, again, middle, steps, compare, rest] = [...Array(6)].map(() => h("div", { class: "room" }));
  let drawing = null;
  let state = "";
  let tries = 0;
  void read();

  async function read() {
    try {
      const told = await get(`invocations/${encodeURIComponent(id)}`, { signal: turn.signal });
      drawing?.close();
      const drawn = graph(told);
      fill(top, head(told), problem(told));
      fill(middle, drawn?.element, waterfall(told), crossed(told));
      fill(rest, moves(told), outcome(told), inputs(told));
      if (state !== told.summary.status) show(told);
      drawing = drawn?.begin();
      if (told.summary.status === "running") setTimeout(() => turn.signal.aborted || read(), 1000);
    } catch (error) {
      if (turn.signal.aborted) return;
      if (error.status === 404 && !state && tries++ < RECORD_WAIT_SECONDS) setTimeout(() => turn.signal.aborted || read(), 1000);
      fill(room, h("h1", id), trouble(error), h("p", h("a", { href: "#/invocations" }, "All invocations")));
    }
  }

  /** What people press and type in is drawn anew only when the status changes. */
  function show(told) {
    state = told.summary.status;
    const beside = comparison(told, turn.signal, (other) => void view.compare(other));
    const view = stepView(told, turn.signal, beside.show);
    fill(again, replayRow(told, turn.signal));
    fill(steps, view.element);
    fill(compare, beside.element);
    const other = wantedBeside(told);
    if (other) void beside.show(other);
    if (!top.isConnected) fill(room, top, again, middle, steps, compare, rest);
  }
  return () => {
    turn.abort();
    drawing?.close();
  };
}

function head({ summary, seed, step, segments, called, caller }) {
  const told = [
    ["Model", summary.model], ["Type", kind(summary.type)], ["Path", pathFact(summary.model, summary.path)], ["Plan", `epoch ${summary.epoch}`],
    ["Began", `${clock(summary.created)}, ${ago(summary.created)}`], [summary.status === "running" ? "Running for" : "Took", seconds(elapsed(summary) ?? summary.seconds)], ["First output", seconds(summary.first)],
    ["Attempts", String(summary.attempts)], ["Seed", String(seed)],
    summary.replay_of ? ["Replay of", about(summary.replay_of)] : null,
    summary.parent ? [`Step ${step} of`, about(summary.parent)] : null,
    segments.length ? ["Continued as", segments.map((each) => [about(each), " "])] : null,
    called.length ? ["Called for", called.map((each) => [about(each), " "])] : null,
    caller ? ["Called for by", about(caller)] : null,
  ];
  return h("header", { class: "head" },
    h("p", { class: "crumb" }, h("a", { href: "#/invocations" }, "Invocations")),
    h("h1", h("code", summary.id), " ", status(summary.status, summary.code)),
    facts(told));
}

function problem({ problem: told }) {
  if (!told) return null;
  const where = [told.stage && `stage ${told.stage}`, told.executor && `executor ${told.executor}`, told.attempt && `attempt ${told.attempt}`].filter(Boolean);
  return h("p", { class: "note", "data-state": "bad" }, h("b", told.code), ` ${told.message}`, where.length ? ` (${where.join(", ")})` : "");
}

// Graph

function graph({ nodes, edges, pulls = [] }) {
  if (nodes.length < 2) return null;
  const depth = nodes.map(() => 0);
  for (const { source, target } of edges) depth[target] = Math.max(depth[target], depth[source] + 1);
  const used = {};
  const boxes = nodes.map((node, index) => {
    const row = (used[depth[index]] = (used[depth[index]] ?? 0) + 1);
    return h("article", { class: "node", "data-state": node.state, style: { "grid-column": depth[index] + 1, "grid-row": row }, "aria-label": `Node ${node.node}: ${node.component}` },
      h("h3", node.component), h("p", node.option ? h("b", node.option) : null, ` ${node.executor || "nowhere yet"}`),
      h("p", { class: "faint" }, node.end === null ? node.state : `${seconds(node.end - (node.taken ?? 0))}${node.nbytes ? ` · ${bytes(node.nbytes)} sent` : ""}`));
  });
  const field = h("div", { class: "field graph", style: { "--parts": Math.max(...depth) + 1 } }, boxes);
  const element = card("Graph", wide("Graph", field),
    edges.length ? h("details", h("summary", several(edges.length, "edge")), table("Edges", ["From", "Output", "To", "How", num("Seconds")], edges.map((each) => [
      nodes[each.source].component, each.output, nodes[each.target].component, each.local ? "in one executor" : pulls.some((pull) => pull.source === each.source && pull.target === each.target) ? "between nodes" : "between executors", num(seconds(each.seconds))]))) : null);
  return {
    element,
    begin: () => layer(field, (place) => edges.map(({ source, target, local }) => {
      const [a, b] = [place(boxes[source]), place(boxes[target])];
      const remote = pulls.some((each) => each.source === source && each.target === target);
      return s("path", { class: local ? "edge local" : remote ? "edge remote" : "edge", d: through([[a.right, a.y], [b.left - 7, b.y]]) });
    }).concat(edges.map(({ target }) => {
      const b = place(boxes[target]);
      return s("path", { class: "head", d: `M${b.left - 8} ${b.y - 4}l8 4-8 4z` });
    }))),
  };
}

/** What crossed between nodes of the installation. */
function crossed({ nodes, pulls }) {
  if (!pulls?.length) return null;
  const rows = pulls.map((each) => [
    each.source < 0 ? "input of the request" : h("span", h("b", nodes[each.source].component), ` ${each.output}`), each.target < 0 ? "gateway" : nodes[each.target].component,
    `${each.from_node} → ${each.to_node}`, num(bytes(each.nbytes)), num(seconds(each.seconds))]);
  return card("Between nodes", table("Between nodes", ["Output", "Reader", "From node to node", num("Size"), num("Waited")], rows));
}

// Beside another one

/** A form that lays another invocation beside this one: `show(id)` does so, `shown(id)` is called for it. */
function comparison(told, signal, shown) {
  const id = h("input", { "aria-label": "Another invocation", placeholder: "id of another invocation", size: 30, spellcheck: "false", autocomplete: "off" });
  const body = h("div");
  const show = async (other) => {
    id.value = other;
    shown(other);
    if (!other) return fill(body);
    try {
      fill(body, difference(told, await get(`invocations/${encodeURIComponent(other)}`, { signal })));
    } catch (error) {
      if (!signal.aborted) fill(body, trouble(error));
    }
  };
  const element = card("Compare with another one",
    h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); void show(id.value.trim()); } }, id, h("button", { type: "submit", class: "quiet" }, "Compare")), body);
  return { element, show };
}

/** The id that the address names beside this one, or what this one is a replay of. */
function wantedBeside({ summary }) {
  const [, given] = location.hash.split("?with=");
  return decodeURIComponent(given || summary.replay_of || "");
}

// The rest

function moves({ moves: told }) {
  if (!told.length) return null;
  return card("Attempts that were given up", table("Moves", [num("Attempt"), num("after"), "Why", "Executor", "Message"],
    told.map((each) => [num(String(each.attempt)), num(seconds(each.at)), badge(each.reason, "warn"), each.executor, each.message])));
}

function outcome({ outcome: told }) {
  if (!told) return null;
  const pairs = [
    told.characters ? ["Text", `${several(told.characters, "character")}, ${short(told.text_sha256)}`] : null,
    told.audio_seconds ? ["Sound", `${seconds(told.audio_seconds)}, ${short(told.audio_sha256)}`] : null,
    told.finish_reason ? ["Finish", told.finish_reason] : null,
    ...Object.entries(told.usage).filter(([, value]) => value).map(([name, value]) => [name.replaceAll("_", " "), String(value)]),
    ...Object.entries(told.outputs).filter(([, digest]) => digest).map(([name, digest]) => [name, short(digest)]),
  ].filter(Boolean);
  return pairs.length ? card("Outputs", facts(pairs)) : null;
}

function inputs({ nodes }) {
  const rows = nodes.flatMap((node) => node.inputs.map((each) => [
    h("span", h("b", node.component), ` ${each.name}`), each.mime || each.kind, num(each.nbytes ? bytes(each.nbytes) : ""), h("code", short(each.sha256))]));
  if (!rows.length) return null;
  return h("details", { class: "card" }, h("summary", "Inputs"), table("Inputs", ["Input", "Kind", num("Size"), "Digest"], rows));
}
