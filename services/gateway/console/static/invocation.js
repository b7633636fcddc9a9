// One invocation: its graph, who worked when, what came out; run it again, lay two side by side.

import { ask, events, get } from "./api.js";
import { about, badge, card, facts, fill, h, num, s, table, trouble, wide } from "./dom.js";
import { ago, bytes, clock, kind, part, seconds, several } from "./format.js";
import { status } from "./invocations.js";
import { layer, through } from "./lines.js";

const PHASES = {
  dispatch: "on its way to the executor", inputs: "waits for other nodes", queue: "waits for a place", run: "works towards its first output", output: "gives output",
};

export function invocation(room, id) {
  const turn = new AbortController();
  let drawing = null;
  void read();

  async function read() {
    try {
      const told = await get(`invocations/${encodeURIComponent(id)}`, { signal: turn.signal });
      drawing?.close();
      const drawn = graph(told);
      fill(room, head(told), problem(told), steps(told, room, turn.signal), drawn?.element, waterfall(told), crossed(told), beside(told, turn.signal), moves(told), outcome(told), inputs(told));
      drawing = drawn?.begin();
      if (told.summary.status === "running") setTimeout(() => turn.signal.aborted || read(), 1000);
    } catch (error) {
      if (error.name !== "AbortError") fill(room, h("h1", id), trouble(error), h("p", h("a", { href: "#/invocations" }, "All invocations")));
    }
  }
  return () => {
    turn.abort();
    drawing?.close();
  };
}

function head({ summary, seed, step, segments }) {
  const told = [
    ["Model", summary.model], ["Type", kind(summary.type)], ["Path", h("code", summary.path)], ["Plan", `epoch ${summary.epoch}`],
    ["Began", `${clock(summary.created)}, ${ago(summary.created)}`], ["Took", seconds(summary.seconds)], ["First output", seconds(summary.first)],
    ["Attempts", String(summary.attempts)], ["Seed", String(seed)],
    summary.replay_of ? ["Replay of", about(summary.replay_of)] : null,
    summary.parent ? [`Step ${step} of`, about(summary.parent)] : null,
    segments.length ? ["Went on as", segments.map((each) => [about(each), " "])] : null,
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

// Waterfall

function waterfall({ nodes, summary, moves }) {
  const ends = nodes.flatMap((each) => [each.end ?? 0, ...each.phases.map((phase) => phase.end)]);
  const total = Math.max(summary.seconds ?? 0, ...ends, 1e-6);
  const at = (moment) => `${((100 * moment) / total).toFixed(2)}%`;
  const rows = nodes.map((node) => h("div", { class: "fall", role: "row" },
    h("span", { class: "who", role: "rowheader" }, h("b", node.component), h("small", node.executor)),
    h("span", { class: "bars", role: "cell", "aria-label": told(node) },
      node.phases.map((phase) => h("span", {
        class: `phase ${phase.name}`, title: `${node.component}: ${PHASES[phase.name] ?? phase.name}, ${seconds(phase.end - phase.start)}`,
        style: { left: at(phase.start), width: `max(2px, ${at(phase.end - phase.start)})` },
      })),
      node.state === "failed" ? h("span", { class: "fault", style: { left: at(node.end ?? node.taken ?? total) }, title: "failed" }, "✕") : null),
    h("span", { class: "took num", role: "cell" }, node.end === null ? node.state : seconds(node.end))));
  const marks = [...Array(5)].map((_, index) => h("span", { style: { left: `${index * 25}%` } }, seconds((total * index) / 4)));
  return card("Waterfall",
    wide("Waterfall", h("div", { class: "waterfall", role: "table", "aria-label": "Who worked when" },
      h("div", { class: "fall axis", "aria-hidden": "true" }, h("span"), h("span", { class: "bars" }, marks), h("span")),
      rows,
      h("div", { class: "fall over", "aria-hidden": "true" }, h("span"), h("span", { class: "bars" },
        summary.first === null ? null : h("span", { class: "first", style: { left: at(summary.first) }, title: `first output to the client after ${seconds(summary.first)}` }),
        moves.map((each) => h("span", { class: "moved", style: { left: at(each.at) }, title: `attempt ${each.attempt} given up: ${each.reason}` }))), h("span")))),
    h("p", { class: "legend" }, Object.entries(PHASES).map(([name, said]) => h("span", h("i", { class: `phase ${name}` }), ` ${name}`, h("small", ` ${said}`))),
      summary.first === null ? null : h("span", h("i", { class: "first" }), " first output to the client")));
}

/** What crossed between nodes of the installation. */
function crossed({ nodes, pulls }) {
  if (!pulls?.length) return null;
  const rows = pulls.map((each) => [
    each.source < 0 ? "input of the request" : h("span", h("b", nodes[each.source].component), ` ${each.output}`), each.target < 0 ? "gateway" : nodes[each.target].component,
    `${each.from_node} → ${each.to_node}`, num(bytes(each.nbytes)), num(seconds(each.seconds))]);
  return card("Between nodes", table("Between nodes", ["Output", "Reader", "From node to node", num("Size"), num("Waited")], rows));
}

function told(node) {
  return node.phases.map((phase) => `${phase.name} ${seconds(phase.end - phase.start)}`).join(", ") || node.state;
}

// Again, and beside another one

function steps(told, room, signal) {
  const said = h("div", { class: "again", role: "status" });
  const from = h("select", { "aria-label": "Begin at" }, h("option", { value: "" }, "from the beginning"),
    told.nodes.slice(1).map((each) => h("option", { value: each.node }, `from ${each.component}`)));
  const button = h("button", { type: "button", onclick: () => again(told, from.value, said, button, signal) }, "Replay");
  if (told.record === "digest") button.disabled = true;
  return h("div", { class: "row" }, button, told.nodes.length > 1 && from,
    told.record !== "digest" ? null : h("small", "Recorded as digests only: it cannot be replayed. OMNIBUS_GATEWAY_RECORD=full keeps what a replay needs."), said);
}

async function again({ summary }, from, said, button, signal) {
  button.disabled = true;
  fill(said, badge("sending", "info"));
  try {
    const query = from && `?from=${from}`;
    const response = await ask(`console/replay/${encodeURIComponent(summary.id)}${query}`, { method: "POST", signal });
    for await (const step of events(response)) fill(said, verdict(step, summary.id));
  } catch (error) {
    if (error.name !== "AbortError") fill(said, trouble(error));
  } finally {
    button.disabled = false;
  }
}

function verdict(step, before) {
  if (step.status === "running") return [badge("running", "info"), " as ", about(step.id)];
  if (step.status === "failed") return [badge("failed", "bad"), ` ${step.problem.code}: ${step.problem.message}`];
  const [word, state] = step.identical === true ? ["identical", "good"] : step.identical === false ? ["different", "bad"] : ["not compared", "warn"];
  return [badge(word, state), step.why ? ` ${step.why}` : "", " ", about(step.id), " ",
    about(step.id, "side by side", before)];
}

function beside(told, signal) {
  const [, asked] = location.hash.split("?with=");
  const other = decodeURIComponent(asked || told.summary.replay_of || "");
  const id = h("input", { "aria-label": "Another invocation", placeholder: "id of another invocation", value: other, spellcheck: "false", autocomplete: "off" });
  const shown = h("div");
  const show = async () => {
    if (!id.value.trim()) return fill(shown);
    try {
      fill(shown, difference(told, await get(`invocations/${encodeURIComponent(id.value.trim())}`, { signal })));
    } catch (error) {
      if (error.name !== "AbortError") fill(shown, trouble(error));
    }
  };
  if (other) void show();
  return card("Beside another one",
    h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); void show(); } }, id, h("button", { type: "submit", class: "quiet" }, "Compare")), shown);
}

function difference(one, other) {
  const took = (node) => (node && node.end !== null && node.taken !== null ? node.end - node.taken : null);
  const row = (name, a, b, text = seconds) => {
    const known = typeof a === "number" && typeof b === "number";
    return [name, num(text(a)), num(text(b)), num(known && b ? `${a >= b ? "+" : "−"}${part(Math.abs(a / b - 1))}` : "")];
  };
  const same = (name, a, b) => (a || b ? [name, a || "–", b || "–", a === b ? badge("same", "good") : badge("differs", "bad")] : null);
  const outs = [...new Set([...Object.keys(one.outcome?.outputs ?? {}), ...Object.keys(other.outcome?.outputs ?? {})])];
  const nodes = [...Array(Math.max(one.nodes.length, other.nodes.length)).keys()];
  return table("Difference", ["", num("this one"), num(other.summary.id), num("")], [
    same("status", one.summary.status, other.summary.status), same("path", one.summary.path, other.summary.path), same("seed", String(one.seed), String(other.seed)),
    same("text", short(one.outcome?.text_sha256), short(other.outcome?.text_sha256)), same("sound", short(one.outcome?.audio_sha256), short(other.outcome?.audio_sha256)),
    ...outs.map((name) => same(name, short(one.outcome?.outputs?.[name]), short(other.outcome?.outputs?.[name]))),
    row("took", one.summary.seconds, other.summary.seconds), row("first output", one.summary.first, other.summary.first),
    ...nodes.flatMap((at) => {
      const [a, b] = [one.nodes[at], other.nodes[at]];
      return [row(`${(a ?? b).component}: taken to end`, took(a), took(b)), same(`${(a ?? b).component}: executor`, a?.executor, b?.executor)];
    }),
  ].filter(Boolean));
}

// The rest

function short(digest) {
  return digest ? `sha256 ${digest.slice(0, 12)}…` : "";
}

function moves({ moves: told }) {
  if (!told.length) return null;
  return card("Attempts that were given up", table("Moves", [num("Attempt"), num("after"), "Why", "Executor", ""],
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
  return pairs.length ? card("What came out", facts(pairs)) : null;
}

function inputs({ nodes }) {
  const rows = nodes.flatMap((node) => node.inputs.map((each) => [
    h("span", h("b", node.component), ` ${each.name}`), each.mime || each.kind, num(each.nbytes ? bytes(each.nbytes) : ""), h("code", short(each.sha256))]));
  if (!rows.length) return null;
  return h("details", { class: "card" }, h("summary", "What went in"), table("Inputs", ["Input", "Kind", num("Size"), ""], rows));
}
