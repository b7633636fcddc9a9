// One model as a map: request types are lines, deployment options are stations. Pale is what was planned, full what comes.

import { h, meter, s, say, wide } from "./dom.js";
import { kind, part, rate, several } from "./format.js";
import { layer, port, through } from "./lines.js";

const MOST = 8; // lines of one map, and colours

/** The map of `model`; `predicted` is what its plan expects of it. Returns `{ element, update(now), close }`. */
export function map(name, model, ends, predicted, now) {
  const lines = chosen(name, model, predicted, now);
  const stations = placed(model).map((each) => station(name, each, lines, predicted));
  const head = h("div", lines.length ? { class: "stops", role: "list", "aria-label": "Request types" } : { class: "stops" },
    lines.length ? lines.map((line) => line.stop) : h("p", { class: "faint" }, `Idle; ${several(Object.keys(model.types).length, "request type")}`));
  const zones = model.components.map((part, index) =>
    h("div", { class: "zone", style: { "grid-column": index + 2 } }, part));
  const rows = Math.max(1, ...stations.map((each) => each.row));
  head.style.setProperty("grid-row", `2 / span ${rows}`);
  const field = h("div", { class: "field", style: { "--parts": model.components.length } },
    zones, head, stations.map((each) => each.element));
  const drawing = layer(field, (place) => drawn(place, lines, stations, model));
  const total = h("strong", { class: "total" });
  const there = h("span", { class: "up" });
  const element = h("section", { class: "card model", "aria-label": `Model ${name}` },
    h("header", h("h2", name), h("p", { class: "ends" }, h("span", ends.takes.join(", ")), " → ", h("span", ends.gives.join(", ") || "results")), there, total),
    wide(`Map of ${name}`, field));
  for (const line of lines) highlight(line, element);

  return {
    name,
    element,
    /** Whether it has requests now, or is planned to have some. */
    busy: (state) => Object.values(state.models[name] ?? {}).some((each) => each.came > 0 || each.planned > 0)
      || stations.some((each) => each.inflight(state) > 0),
    again: drawing.again,
    close: drawing.close,
    update(state) {
      const types = state.models[name] ?? {};
      const came = Object.values(types).reduce((sum, each) => sum + (each.came ?? 0), 0);
      const meant = Object.values(types).reduce((sum, each) => sum + (each.planned ?? 0), 0);
      const own = state.executors.filter((each) => each.model === name);
      const [up, wanted] = ["up", "wanted"].map((field) => own.reduce((sum, each) => sum + (each[field] ?? 0), 0));
      say(there, `${up}/${wanted} up`);
      there.dataset.state = up >= wanted ? "good" : up ? "warn" : "bad";
      say(total, meant ? `${rate(came)} of ${rate(meant)} req/s planned` : `${rate(came)} req/s`);
      for (const line of lines) line.update(types[line.kind]);
      for (const each of stations) each.update(state);
      widths(lines);
    },
  };
}

/** The types that are drawn: planned ones, and those that come. */
function chosen(name, model, predicted, now) {
  const seen = now.models[name] ?? {};
  const weight = (each) => (seen[each]?.planned ?? 0) + (seen[each]?.came ?? 0);
  const kinds = [...new Set([...Object.keys(predicted?.types ?? {}), ...Object.keys(seen)])]
    .filter((each) => each && (weight(each) > 0 || predicted?.types?.[each]) && paths(model, each).length)
    .sort((a, b) => weight(b) - weight(a)).slice(0, MOST)
    .sort((a, b) => b.split("+").length - a.split("+").length || a.localeCompare(b));
  return kinds.map((each, index) => line(model, each, index));
}

function paths(model, name) {
  const found = model.types[name] ?? [];
  const total = found.reduce((sum, path) => sum + path.rate, 0);
  return found.filter((path) => path.rate > 0).map((path) => ({ ...path, share: path.rate / total }));
}

function line(model, name, index) {
  const number = h("span", { class: "rate" });
  const stop = h("div", { class: "stop", role: "listitem", tabindex: 0, style: { "--line": `var(--line-${index})` } },
    h("span", { class: "name" }, kind(name)), number);
  const made = {
    kind: name, index, stop, came: 0, planned: 0, strokes: [],
    paths: paths(model, name).map((path) => ({
      share: path.share,
      options: [...new Set(model.components.filter((part) => path.options[part]).map((part) => path.options[part]))],
    })),
    update(told) {
      made.came = told?.came ?? 0;
      made.planned = told?.planned ?? 0;
      say(number, made.planned ? `${rate(made.came)} of ${rate(made.planned)}/s` : `${rate(made.came)}/s`);
    },
  };
  return made;
}

/** Each option with its columns and a row in which it is alone there. */
function placed(model) {
  const rows = [];
  return Object.entries(model.options)
    .map(([option, spec]) => {
      const parts = spec.components.map((part) => model.components.indexOf(part)).filter((at) => at >= 0);
      return { option, spec, from: Math.min(...parts), to: Math.max(...parts) };
    })
    .sort((a, b) => a.to - a.from - (b.to - b.from) || a.from - b.from)
    .map((each) => {
      let row = rows.findIndex((ends) => ends.every(([from, to]) => each.from > to || each.to < from));
      if (row < 0) row = rows.push([]) - 1;
      rows[row].push([each.from, each.to]);
      return { ...each, row: row + 1 };
    });
}

function station(name, { option, spec, from, to, row }, lines, predicted) {
  const [owner, own] = spec.of ? lender(spec.of) : [name, option];
  const up = h("span", { class: "up" });
  const busy = meter(`${option} busy`);
  const loads = [h("span"), h("span"), h("span")];
  const load = h("p", { class: "load" }, loads);
  const passing = lines.filter((line) => line.paths.some((path) => path.options.includes(option)));
  const dots = passing.map((line) => h("i", { style: { "--line": `var(--line-${line.index})` }, title: kind(line.kind) }));
  const element = h("article", {
    class: `station ${spec.service}${spec.of ? " lent" : ""}`, "aria-label": `Option ${option}: ${spec.components.join(", ")}`,
    style: { "grid-column": `${from + 2} / ${to + 3}`, "grid-row": row + 1 },
  },
  h("header", h("h3", option), h("span", { class: "dots", "aria-hidden": "true" }, dots), up),
  h("p", { class: "runs" }, spec.of ? `that of ${spec.of}` : `${spec.components.join(" + ")}`,
    spec.gpus ? h("small", ` · ${several(spec.gpus, spec.gpu && spec.gpu !== "cpu" ? spec.gpu : "GPU")}`) : null),
  busy.bar, load);
  const executors = (state) => state.executors.filter((each) => each.model === owner && each.option === own);
  return {
    option, from, to, row, element,
    inflight: (state) => executors(state).reduce((all, each) => all + (each.inflight ?? 0), 0),
    update(state) {
      const found = executors(state);
      const sum = (field) => found.reduce((all, each) => all + (each[field] ?? 0), 0);
      const [there, wanted] = [sum("up"), sum("wanted")];
      say(up, `${there}/${wanted} up`);
      up.dataset.state = there >= wanted ? "good" : there ? "warn" : "bad";
      const known = found.find((each) => each.up && each.busy !== null);
      busy.set(known ? known.busy : null, predicted?.options?.[option]?.utilisation);
      [`${known ? part(known.busy) : "–"} busy`, `${sum("inflight")} in flight`, `${rate(sum("jobs"))} jobs/s`].forEach((text, index) => say(loads[index], text));
      element.classList.toggle("idle", !sum("inflight") && !(sum("jobs") > 0));
    },
  };
}

function lender(of) {
  const cut = of.lastIndexOf("/");
  return [of.slice(0, cut), of.slice(cut + 1)];
}

function drawn(place, lines, stations, model) {
  const boxes = Object.fromEntries(stations.map((each) => [each.option, place(each.element)]));
  const strokes = [...tracks(model)].map(([a, b]) => {
    if (!boxes[a] || !boxes[b] || boxes[a].right > boxes[b].left) return null;
    return s("path", { class: "track", d: through([[boxes[a].right, boxes[a].y], [boxes[b].left, boxes[b].y]]) });
  });
  const ports = {};
  const stretches = lines.flatMap((line) => line.paths.map((path) => ({ line, path, options: path.options.filter((each) => boxes[each]) })));
  for (const { options, path } of stretches) for (const each of options) (ports[each] ??= []).push(path);
  const groups = stretches.map(({ line, path, options }) => {
    const from = place(line.stop);
    const points = [[from.right, from.y]];
    for (const option of options) {
      const box = boxes[option];
      const y = port(box.y, ports[option].indexOf(path), ports[option].length);
      points.push(...around(points.at(-1), [box.left, y], Object.values(boxes), line.index), [box.left, y], [box.right, y]);
    }
    const [x, y] = points.at(-1);
    points.push([x + 22, y]);
    const d = through(points);
    const colour = { "--line": `var(--line-${line.index})` };
    const [meant, comes, moves] = ["meant", "comes", "moves"].map((name) => s("path", { class: name, d }));
    line.strokes.push({ path, meant, comes, moves });
    return s("g", { class: "line", "data-line": line.index, style: colour }, meant, comes, moves,
      s("circle", { class: "end", cx: x + 24, cy: y, r: 5 }));
  });
  for (const line of lines) line.strokes = line.strokes.slice(-line.paths.length);
  widths(lines);
  return [strokes, groups];
}

/** Points on the way from one point to another that lead past the boxes between them, along the gap below them. */
function around([x, y], [toX, toY], boxes, lane) {
  const [high, low] = [Math.min(y, toY) - 4, Math.max(y, toY) + 4];
  const met = boxes.filter((box) => box.left > x && box.right < toX && box.top < low && box.bottom > high);
  if (!met.length) return [];
  const level = met.filter((box) => box.top < toY && box.bottom > toY);
  const past = Math.max(...(level.length ? level : met).map((box) => box.bottom)) + 6 + 5 * (lane % 4);
  return [[Math.min(...met.map((box) => box.left)) - 3, past], [Math.max(...met.map((box) => box.right)) + 3, past]];
}

/** Pairs of options that some path has one after the other. */
function tracks(model) {
  const found = new Map();
  for (const each of Object.values(model.types).flat()) {
    if (!(each.rate > 0)) continue;
    const options = [...new Set(model.components.filter((part) => each.options[part]).map((part) => each.options[part]))];
    options.slice(1).forEach((option, index) => found.set(`${options[index]}\n${option}`, [options[index], option]));
  }
  return found.values();
}

function widths(lines) {
  const most = Math.max(1e-9, ...lines.flatMap((line) => line.paths.map((path) => Math.max(line.came, line.planned) * path.share)));
  for (const line of lines) {
    for (const { path, meant, comes, moves } of line.strokes) {
      const wide = (value) => (value > 0 ? 2.5 + 6 * Math.sqrt((value * path.share) / most) : 0);
      meant.style.setProperty("stroke-width", Math.max(2.5, wide(line.planned)));
      comes.style.setProperty("stroke-width", wide(line.came));
      moves.style.setProperty("visibility", line.came > 0 ? "visible" : "hidden");
    }
  }
}

/** Whoever points at a type, or at its name by keyboard, sees its lines alone. */
function highlight(line, element) {
  const only = (on) => () => {
    for (const each of element.querySelectorAll(".line")) each.classList.toggle("faded", on && each.dataset.line !== String(line.index));
  };
  for (const [name, on] of [["pointerenter", true], ["pointerleave", false], ["focus", true], ["blur", false]])
    line.stop.addEventListener(name, only(on));
}

export function legend() {
  return h("p", { class: "legend" },
    h("span", h("i", { class: "swatch meant" }), " planned"), h("span", h("i", { class: "swatch comes" }), " coming now"), h("span", {},
    h("span", { class: "meter sample", "aria-hidden": "true" }, h("span", { class: "full", style: { width: "60%" } }), h("span", { class: "mark", style: { left: "75%" } })),
    " busy, and the busy share that the plan expects"));
}
