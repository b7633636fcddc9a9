// Percentiles of the time to the first output and of whole requests, by model.

import { card, num, table } from "./dom.js";
import { seconds } from "./format.js";

const MEASURES = { first: "first output", total: "whole" };
const PARTS = ["p50", "p95", "p99"];

/** A card with a row for each of `models`, as `/v1/console/history` describes them; nothing without requests. */
export function percentiles(models, title) {
  const rows = Object.entries(models).filter(([name, { latency }]) => name && latency.total.count)
    .map(([name, { latency }]) => [name, ...Object.keys(MEASURES).flatMap((what) => PARTS.map((part) => num(seconds(latency[what][part])))), num(String(latency.total.count))]);
  if (!rows.length) return null;
  const head = Object.values(MEASURES).flatMap((name) => PARTS.map((part) => num(`${name} ${part.toUpperCase()}`)));
  return card(title, table(title, ["Model", ...head, num("requests")], rows));
}
