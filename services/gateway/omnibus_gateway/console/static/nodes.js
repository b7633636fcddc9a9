// Nodes with the executors and gateways on them, and what crosses between them: links to the right above, to the left below.

import { badge, card, h, meter, morph, num, s, table, wide } from "./dom.js";
import { ago, bytes, part, several } from "./format.js";
import { layer } from "./lines.js";

const STATES = { ready: "good", draining: "warn", gone: "bad" };
const ARC = { first: 34, more: 20 }; // height of a link between neighbours, and more of it for each node in between

/** The map of nodes. Returns `{ element, update(now), close }`; it is hidden where there is one node. */
export function nodeMap() {
  const row = h("div", { class: "row-of-nodes" });
  const field = h("div", { class: "field nodes" }, row);
  const numbers = h("div");
  const element = card("Nodes", wide("Map of nodes", field), numbers);
  element.setAttribute("aria-label", "Nodes");
  element.hidden = true;
  let links = [];
  const drawing = layer(field, (place) => drawn(place, [...row.children], links));

  return {
    element,
    close: drawing.close,
    update({ nodes = [], links: told = [], at }) {
      element.hidden = nodes.length < 2;
      if (element.hidden) return;
      const index = new Map(nodes.map((each, place) => [each.node, place]));
      links = told.filter((each) => index.has(each.source) && index.has(each.reader))
        .map((each) => ({ ...each, from: index.get(each.source), to: index.get(each.reader) }));
      field.style.setProperty("--above", `${room(links, (each) => each.from < each.to)}px`);
      field.style.setProperty("--below", `${room(links, (each) => each.from > each.to)}px`);
      morph(row, nodes.map((each) => box(each, at)));
      morph(numbers, told.length ? linkTable(told) : h("p", { class: "faint" }, "Nothing has crossed between nodes yet."));
      drawing.again();
    },
  };
}

/** What is wrong with nodes and links, as notes: state and text. */
export function nodeRemarks({ nodes = [], links = [] }) {
  return [
    ...links.filter((each) => each.unreachable).map((each) => ["bad", `Node ${each.reader} cannot reach node ${each.source}: the last pull from there failed.`]),
    ...nodes.filter((each) => each.state === "gone").map((each) => ["warn", `The sidecar of node ${each.node} is gone.`]),
  ];
}

function box(node, now) {
  const arena = meter(`Arena of ${node.node}`);
  arena.set(node.size ? node.used / node.size : null);
  return h("article", { class: "place", "data-state": node.state, "aria-label": `Node ${node.node}` },
    h("header", h("h3", node.node), badge(node.state, STATES[node.state])),
    h("p", { class: "faint" }, node.address ? `${node.address}, ${node.transport}, started ${ago(node.started, now)}` : "no sidecar"),
    h("div", { class: "with" }, arena.bar, h("small", `${part(node.size ? node.used / node.size : null)} of ${bytes(node.size)} arena`)),
    h("ul", { class: "on" },
      node.executors.map((each) => h("li", h("span", h("b", each.option), " ", h("small", each.model), each.state === "ready" ? null : badge(each.state, "warn")),
        h("span", { class: "num" }, `${part(each.busy)} · ${each.inflight} in flight`))),
      node.gateways.length ? h("li", several(node.gateways.length, "gateway")) : null));
}

function linkTable(links) {
  const rows = links.map((each) => [
    `${each.source} → ${each.reader}`, num(each.rate === null ? "–" : `${bytes(Math.round(each.rate))}/s`), num(bytes(each.nbytes)),
    num(each.seconds ? `${bytes(Math.round(each.nbytes / each.seconds))}/s` : "–"), each.transport,
    each.unreachable ? badge("unreachable", "bad") : badge("ok", "good"),
  ]);
  return table("Links between nodes", ["Link", num("now"), num("in all"), num("speed of a pull"), "over", "state"], rows);
}

function height({ from, to }) {
  return ARC.first + ARC.more * (Math.abs(from - to) - 1);
}

function room(links, which) {
  return Math.max(8, ...links.filter(which).map((each) => height(each) + 26));
}

function drawn(place, boxes, links) {
  const places = boxes.map(place);
  const widest = Math.max(1, ...links.map((each) => each.rate ?? 0));
  return links.filter((each) => places[each.from] && places[each.to]).map((each) => arc(each, places[each.from], places[each.to], widest));
}

/** From the source to the reader, with an arrow there and the rate at its apex. */
function arc(link, a, b, widest) {
  const above = link.from < link.to;
  const [start, end] = above ? [a.x + 12, b.x - 12] : [a.x - 12, b.x + 12];
  const [y, tip] = above ? [Math.min(a.top, b.top), b.top] : [Math.max(a.bottom, b.bottom), b.bottom];
  const apex = above ? y - height(link) : y + height(link);
  const begin = above ? a.top : a.bottom;
  const up = above ? -1 : 1;
  const d = `M${start} ${begin}C${start} ${apex + (up * height(link)) / 3} ${end} ${apex + (up * height(link)) / 3} ${end} ${tip + up * 7}`;
  const label = link.unreachable ? "unreachable" : link.rate > 0 ? `${bytes(Math.round(link.rate))}/s` : bytes(link.nbytes);
  const state = link.unreachable ? "bad" : link.rate > 0 ? "busy" : "idle";
  return s("g", { class: "crossing", "data-state": state, "data-link": `${link.source} → ${link.reader}` },
    s("path", { d, "stroke-width": 2 + 4 * Math.sqrt((link.rate ?? 0) / widest) }),
    s("path", { class: "tip", d: `M${end} ${tip}l-5 ${up * 9}h10z` }),
    s("text", { x: (start + end) / 2, y: apex + 4, "text-anchor": "middle" }, label));
}
