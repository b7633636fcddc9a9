// Two invocations side by side. Nodes are paired by component, so that paths of different lengths can be compared.

import { badge, num, table } from "./dom.js";
import { part, seconds } from "./format.js";

/** A table of what two waterfalls share and in what they differ. */
export function difference(one, other) {
  const outputs = [...new Set([...Object.keys(one.outcome?.outputs ?? {}), ...Object.keys(other.outcome?.outputs ?? {})])];
  return table("Difference", ["Compared", num("this one"), num(other.summary.id), num("change")], [
    verdict("status", one.summary.status, other.summary.status),
    verdict("path", one.summary.path, other.summary.path, "warn"),
    verdict("seed", String(one.seed), String(other.seed), "warn"),
    verdict("text", short(one.outcome?.text_sha256), short(other.outcome?.text_sha256)),
    verdict("sound", short(one.outcome?.audio_sha256), short(other.outcome?.audio_sha256)),
    ...outputs.map((name) => verdict(name, short(one.outcome?.outputs?.[name]), short(other.outcome?.outputs?.[name]))),
    duration("took", one.summary.seconds, other.summary.seconds),
    duration("first output", one.summary.first, other.summary.first),
    ...pairs(one.nodes, other.nodes).flatMap(([name, a, b]) => [
      duration(`${name}: taken to end`, took(a), took(b)),
      verdict(`${name}: executor`, a ? a.executor : "not on its path", b ? b.executor : "not on its path", ""),
    ]),
  ].filter(Boolean));
}

/** `[name, node or undefined, node or undefined]`: the first thinker of one with the first thinker of the other, and so on. */
export function pairs(ones, others) {
  const [left, right] = [named(ones), named(others)];
  const names = [...left.keys(), ...[...right.keys()].filter((name) => !left.has(name))];
  return names.map((name) => [name, left.get(name), right.get(name)]);
}

function named(nodes) {
  const counts = new Map();
  return new Map(nodes.map((node) => {
    const count = (counts.get(node.component) ?? 0) + 1;
    counts.set(node.component, count);
    return [count > 1 ? `${node.component} ${count}` : node.component, node];
  }));
}

function took(node) {
  return node && node.end !== null && node.taken !== null ? node.end - node.taken : null;
}

function duration(name, a, b) {
  const known = typeof a === "number" && typeof b === "number" && b > 0;
  return [name, num(seconds(a)), num(seconds(b)), num(known ? `${a >= b ? "+" : "−"}${part(Math.abs(a / b - 1))}` : "")];
}

function verdict(name, a, b, otherwise = "bad") {
  if (!a && !b) return null;
  return [name, num(a || "–"), num(b || "–"), num(a === b ? badge("same", "good") : badge("differs", otherwise))];
}

export function short(digest) {
  return digest ? `sha256 ${digest.slice(0, 12)}…` : "";
}
