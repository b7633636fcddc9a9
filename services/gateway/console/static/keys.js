// API keys with their limits, by tenant. The keys themselves are known to their holders alone.

import { get } from "./api.js";
import { badge, card, fill, h, morph, num, table, trouble } from "./dom.js";
import { ago, number, several } from "./format.js";
import { every } from "./refresh.js";

const REFRESH_MS = 5000;

export function apiKeys(room) {
  const list = h("div", { class: "room" });
  fill(room, h("h1", "API keys and limits"), list);
  return every(REFRESH_MS, async (signal) => morph(list, ...shown(await get("console/keys", { signal }))), (error) => fill(list, trouble(error)));
}

function shown({ required, data }) {
  const tenants = Map.groupBy ? Map.groupBy(data, (each) => each.tenant) : grouped(data);
  return [
    h("p", { class: "note", "data-state": required ? "" : "warn" }, required
      ? `Requests have to show one of ${several(data.length, "key")} of ${several(tenants.size, "tenant")}. Limits hold over all gateways together.`
      : "Requests need no key at this gateway. OMNIBUS_GATEWAY_KEYS=true requires one; omnibus keys create TENANT makes one."),
    ...[...tenants].map(([tenant, keys]) => card(tenant, table(`Keys of ${tenant}`, ["Key", "Note", num("Weight"), num("Requests/s"), num("Burst"), num("At once"), num("GPU-s/s"), "Made", "From"], keys.map((each) => [
      h("code", each.id), each.note || "–", num(number(each.weight)), limit(each.rate), limit(each.burst), limit(each.concurrent), limit(each.gpu_seconds),
      each.created ? ago(each.created) : "–", badge(each.source, each.source === "file" ? "info" : "")])))),
    data.length ? h("p", { class: "faint" }, "A key is named by the first digits of its SHA-256. omnibus keys revoke ID ends one of the store at once.") : null,
  ].filter(Boolean);
}

function limit(value) {
  return num(value ? number(value) : "no limit");
}

function grouped(data) {
  const found = new Map();
  for (const each of data) found.set(each.tenant, [...(found.get(each.tenant) ?? []), each]);
  return found;
}
