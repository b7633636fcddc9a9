// What comes, what runs, and how that lies against the plan.

import { firing } from "./alerts.js";
import { get } from "./api.js";
import { card, fill, h, morph, num, s, say, table, trouble } from "./dom.js";
import { ago, kind, part, rate, seconds, several, whole } from "./format.js";
import { codeLinks, failuresLink, latestFailures } from "./failures.js";
import { legend, map } from "./map.js";
import { nodeMap, nodeRemarks } from "./nodes.js";
import { percentiles } from "./percentiles.js";
import { every } from "./refresh.js";
import { follow } from "./state.js";

const REMEMBERED = 90; // states in the small curve
const PAST_SECONDS = 900; // that rejected requests and percentiles look back
const PAST_MS = 10000;
const IDLE_SECONDS = 60; // after the last request a model's map is folded
const FOLDED_FROM = 3; // models; fewer fit on a page as they are

export function live(room) {
  const tiles = {
    epoch: tile("Plan"), came: tile("Requests per second"), inflight: tile("In flight"),
    first: tile("First output"), up: tile("Executors up"), lost: tile("Failed and refused"),
    rejected: tile("Rejected requests"),
  };
  const curve = s("polyline", { class: "curve" });
  tiles.came.element.append(s("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }, curve));
  const [notes, fired] = [h("div", { class: "notes" }), h("div", { class: "notes" })];
  const maps = h("div", { class: "maps" });
  const [numbers, past] = [h("div", { class: "numbers" }), h("div", { class: "numbers" })];
  const nodes = nodeMap();
  fill(room, h("h1", { class: "unseen" }, "Live"), h("div", { class: "tiles" }, Object.values(tiles).map((each) => each.element)), fired, notes, maps, nodes.element, past, numbers);

  const folds = folding();
  let shape = "";
  let drawn = [];
  let rates = [];
  const stop = follow(({ now, plan, problem }) => {
    if (!now || !plan?.plan) {
      const waits = now ? "There is no plan yet: the planner writes one when a model is declared." : "Waiting for the gateway.";
      fill(maps, problem ? trouble(problem) : h("p", { class: "card empty" }, waits));
      shape = "";
      return;
    }
    const mark = JSON.stringify([plan.plan.epoch, Object.entries(now.models).map(([name, types]) =>
      [name, Object.entries(types).filter(([, each]) => each.came > 0 || each.planned).map(([each]) => each)])]);
    if (mark !== shape) {
      shape = mark;
      for (const each of drawn) each.close();
      drawn = Object.entries(plan.plan.models).map(([name, model]) =>
        map(name, model, plan.models[name] ?? { takes: [], gives: [] }, plan.plan.explain?.planned?.models?.[name], now));
      for (const each of drawn) folds.attach(each);
      fill(maps, drawn.map((each) => each.element), drawn.length ? legend() : h("p", { class: "card empty" }, "The plan has no models."));
      for (const each of drawn) each.again();
    }
    for (const each of drawn) each.update(now);
    folds.update(drawn, now);
    nodes.update(now);
    rates = [...rates.slice(1 - REMEMBERED), heads(tiles, now, plan)];
    sparkle(curve, rates);
    remarks(notes, now, plan);
    morph(numbers, requests(now), executors(now));
  });
  const leave = every(PAST_MS, async (signal) => {
    const since = Math.floor(Date.now() / 1000) - PAST_SECONDS;
    const [told, failed, alerts] = await Promise.all([`history?seconds=${PAST_SECONDS}`, `failures?since=${since}&limit=5`, "alerts"].map((each) => get(`console/${each}`, { signal })));
    rejections(tiles.rejected, told);
    morph(fired, firing(alerts));
    morph(past, latestFailures(failed, `In ${PAST_SECONDS / 60} minutes`), percentiles(told.models, `Time of requests in ${PAST_SECONDS / 60} minutes`));
  }, () => tiles.rejected.set("–", "the store has no answer"));
  return () => {
    stop();
    leave();
    nodes.close();
    for (const each of drawn) each.close();
  };
}

/** Maps of models without requests are folded where there are several, unless somebody opens them. */
function folding() {
  const chosen = new Map(); // by model: true for open
  const active = new Map(); // by model: when it last had requests
  return {
    attach({ name, element }) {
      const button = h("button", { type: "button", class: "quiet small", onclick: () => {
        chosen.set(name, element.classList.contains("folded"));
        this.fold(element, !chosen.get(name));
      } }, "Hide map");
      element.querySelector("header").append(button);
    },
    fold(element, folded) {
      if (element.classList.toggle("folded", folded) === folded) say(element.querySelector("header button"), folded ? "Show map" : "Hide map");
      element.querySelector("header button").setAttribute("aria-expanded", String(!folded));
      element.querySelector(".scroll").hidden = folded;
    },
    update(drawn, now) {
      for (const { name, element, busy } of drawn) {
        if (busy(now)) active.set(name, now.at);
        const idle = drawn.length >= FOLDED_FROM && now.at - (active.get(name) ?? 0) > IDLE_SECONDS;
        this.fold(element, chosen.has(name) ? !chosen.get(name) : idle);
      }
    },
  };
}

/** Requests that were at fault themselves, which never became work: how many, and why. */
function rejections(tile, { models }) {
  const total = (values) => values.reduce((sum, each) => sum + each, 0);
  const each = Object.values(models);
  const codes = {};
  for (const { rejected_codes: found } of each) for (const [code, count] of Object.entries(found)) codes[code] = (codes[code] ?? 0) + count;
  const count = String(each.reduce((sum, { rejected }) => sum + total(rejected), 0));
  tile.set(failuresLink(count), Object.keys(codes).length ? codeLinks(codes) : `in ${PAST_SECONDS / 60} minutes`);
}

function tile(title) {
  const [value, more] = [h("strong"), h("small")];
  return {
    element: h("section", { class: "tile" }, h("h2", title), value, more),
    set(told, beside = "") {
      morph(value, told);
      morph(more, beside);
    },
  };
}

/** Fill the tiles; returns the rate. */
function heads(tiles, now, { plan }) {
  const types = Object.values(now.models).flatMap(Object.values);
  const sum = (field) => types.reduce((all, each) => all + (each[field] ?? 0), 0);
  const [came, done, meant] = [sum("came"), sum("done"), sum("planned")];
  const mean = (field) => (done > 0 ? types.reduce((all, each) => all + (each.done ?? 0) * (each[field] ?? 0), 0) / done : null);
  const count = (field) => now.executors.reduce((all, each) => all + (each[field] ?? 0), 0);
  tiles.epoch.set(`epoch ${now.epoch}`, `made ${ago(plan.created, now.at)}${now.pin ? ", pinned" : ""}`);
  tiles.came.set(rate(Math.max(0, came)), meant ? `of ${rate(meant)} planned` : `${rate(done)} done`);
  tiles.inflight.set(String(now.inflight), several(Object.keys(now.gateways).length, "gateway"));
  tiles.first.set(seconds(mean("first")), `whole answer ${seconds(mean("total"))}`);
  const [up, wanted, leaving] = ["up", "wanted", "leaving"].map(count);
  tiles.up.set(`${up} of ${wanted}`, up < wanted ? `${wanted - up} missing` : leaving ? `${leaving} leaving` : "all that the plan wants");
  tiles.lost.set(`${sum("failed")} + ${sum("refused")}`, "while watched");
  tiles.lost.element.dataset.state = sum("failed") ? "bad" : "";
  return came;
}

function sparkle(curve, rates) {
  const most = Math.max(1e-9, ...rates);
  const step = 100 / (REMEMBERED - 1);
  const from = 100 - (rates.length - 1) * step;
  curve.setAttribute("points", rates.map((each, index) => `${(from + index * step).toFixed(1)},${(23 - (22 * each) / most).toFixed(1)}`).join(" "));
}

function remarks(notes, now, { staged, problems }) {
  const behind = Object.values(now.gateways).filter((epoch) => epoch !== now.epoch).length;
  const told = [
    ...now.away.map((each) => ["bad", `Away: ${each}`]),
    ...nodeRemarks(now),
    ...Object.entries(problems ?? {}).map(([who, each]) => ["warn", `${who}: ${each.message}`]),
    ...(staged ? [["info", `Epoch ${staged.epoch} is staged (${staged.reason || "no reason given"}): its executors start.`]] : []),
    ...(now.pin ? [["info", `Epoch ${now.pin} is pinned, until omnibus plan resume.`]] : []),
    ...(behind ? [["warn", `${several(behind, "gateway")} at another epoch.`]] : []),
  ];
  const mark = JSON.stringify(told);
  if (notes.dataset.mark === mark) return;
  notes.dataset.mark = mark;
  fill(notes, told.map(([state, text]) => h("p", { class: "note", "data-state": state, role: "status" }, text)));
}

function requests(now) {
  const rows = Object.entries(now.models).flatMap(([model, types]) => Object.entries(types).map(([name, each]) => [
    h("span", h("b", model), " ", kind(name)),
    num(rate(each.came ?? 0)), num(each.planned === null ? "–" : rate(each.planned)), num(rate(each.done ?? 0)), num(String(each.failed ?? 0)),
    num(String(each.refused ?? 0)), num(seconds(each.first)), num(seconds(each.total)),
    num(whole(each.quantities?.prompt_tokens ?? 0)), num(whole(each.quantities?.completion_tokens ?? 0)),
  ]));
  if (!rows.length) return null;
  const head = ["Requests", ...["req/s", "planned", "done/s", "failed", "refused", "first", "total", "tokens in/s", "out/s"].map(num)];
  return card("Requests", table("Requests by model and type", head, rows));
}

function executors(now) {
  const rows = now.executors.map((each) => [
    h("span", h("b", each.model), ` ${each.option}`),
    each.components.join(", "),
    num(each.staged === null || each.staged === each.wanted ? String(each.wanted) : `${each.wanted} → ${each.staged}`),
    num(each.leaving ? `${each.up} + ${each.leaving}` : String(each.up)),
    num(part(each.busy)), num(String(each.inflight)), num(each.jobs === null ? "–" : rate(each.jobs)),
  ]);
  if (!rows.length) return null;
  const head = ["Executors", "runs", ...["wanted", "up", "busy", "in flight", "jobs/s"].map(num)];
  return card("Executors", table("Executors by option", head, rows));
}
