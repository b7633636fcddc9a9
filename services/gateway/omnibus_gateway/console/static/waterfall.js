// The waterfall of one invocation: who worked when. While it runs, its axis is the time since it came.

import { card, h, wide } from "./dom.js";
import { seconds } from "./format.js";

const PHASES = {
  dispatch: "on its way to the executor", inputs: "waits for other nodes", queue: "waits for a place", run: "works towards its first output", output: "gives output",
};
const OPEN = "under way: reported when it ends";

/** Seconds since a running invocation came, by this browser's clock; null once it has ended. */
export function elapsed({ status, created }) {
  return status === "running" ? Math.max(0, Date.now() / 1000 - created) : null;
}

export function waterfall({ nodes, edges, summary, moves }) {
  const since = elapsed(summary);
  const ends = nodes.flatMap((each) => [each.end ?? 0, ...each.phases.map((phase) => phase.end)]);
  const total = Math.max(summary.seconds ?? 0, since ?? 0, ...ends, 1e-6);
  const at = (moment) => `${((100 * Math.min(moment, total)) / total).toFixed(2)}%`;
  const bar = (name, from, to, title) => h("span", { class: `phase ${name}`, title, style: { left: at(from), width: `max(2px, ${at(to - from)})` } });
  const rows = nodes.map((node, index) => h("div", { class: "fall", role: "row" },
    h("span", { class: "who", role: "rowheader" }, h("b", node.component), h("small", node.executor)),
    h("span", { class: "bars", role: "cell" }, h("span", { class: "unseen" }, described(node)),
      node.phases.map((phase) => bar(phase.name, phase.start, phase.end, `${node.component}: ${PHASES[phase.name] ?? phase.name}, ${seconds(phase.end - phase.start)}`)),
      since !== null && node.end === null ? bar("open", begun(index, nodes, edges), since, `${node.component}: ${OPEN}`) : null,
      node.state === "failed" ? h("span", { class: "fault", style: { left: at(node.end ?? node.taken ?? total) }, title: "failed" }, "✕") : null),
    h("span", { class: "took num", role: "cell" }, node.end === null ? node.state : seconds(node.end))));
  const marks = [...Array(5)].map((_, index) => h("span", { style: { left: `${index * 25}%` } }, seconds((total * index) / 4)));
  return card("Waterfall",
    since === null ? null : h("p", { class: "faint" }, `Running for ${seconds(since)}. Nodes report their times when they end.`),
    wide("Waterfall", h("div", { class: "waterfall" },
      h("div", { class: "fall axis", "aria-hidden": "true" }, h("span"), h("span", { class: "bars" }, marks), h("span")),
      h("div", { role: "table", "aria-label": "Who worked when" }, rows),
      h("div", { class: "fall over", "aria-hidden": "true" }, h("span"), h("span", { class: "bars" },
        summary.first === null ? null : h("span", { class: "first", style: { left: at(summary.first) }, title: `first output to the client after ${seconds(summary.first)}` }),
        moves.map((each) => h("span", { class: "moved", style: { left: at(each.at) }, title: `attempt ${each.attempt} given up: ${each.reason}` }))), h("span")))),
    h("p", { class: "legend" }, Object.entries(PHASES).map(([name, text]) => h("span", h("i", { class: `phase ${name}` }), ` ${name}`, h("small", ` ${text}`))),
      since === null ? null : h("span", h("i", { class: "phase open" }), " open", h("small", ` ${OPEN}`)),
      summary.first === null ? null : h("span", h("i", { class: "first" }), " first output to the client")));
}

/** When a node that has not ended can have begun: with the end of its phases known so far, or of what it waits for. */
function begun(index, nodes, edges) {
  const own = nodes[index].phases.at(-1)?.end ?? nodes[index].taken ?? 0;
  const sources = edges.filter((each) => each.target === index).map((each) => nodes[each.source].first ?? 0);
  return Math.max(own, 0, ...sources);
}

function described(node) {
  return node.phases.map((phase) => `${phase.name} ${seconds(phase.end - phase.start)}`).join(", ") || node.state;
}
