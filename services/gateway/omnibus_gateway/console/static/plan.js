// The plan, what it predicts, what changes, and what was before: what `omnibus plan show` says.

import { badge, card, facts, fill, h, meter, morph, num, table, trouble } from "./dom.js";
import { ago, kind, number, part, seconds, several } from "./format.js";
import { follow } from "./state.js";

const NOTES = {
  unserved: "No executor runs", estimated: "Estimated, not measured", no_load_measured: "No load was measured of", left: "Left out",
};

const FILTERED_FROM = 5; // models; fewer need no filter

export function plan(room) {
  const words = h("input", { type: "search", "aria-label": "Filter models", placeholder: "model, option or component …", autocomplete: "off", spellcheck: "false" });
  const [top, filter, models, rest] = [h("div", { class: "room" }), h("form", { class: "row search", role: "search", hidden: true, onsubmit: (event) => event.preventDefault() }, words), h("div", { class: "room" }), h("div", { class: "room" })];
  let drawn = null;
  let last = null;

  function show(told, now) {
    const matches = ([name, model]) => JSON.stringify([name, Object.entries(model.options).map(([option, each]) => [option, each.components])])
      .toLowerCase().includes(words.value.trim().toLowerCase());
    const found = Object.entries(told.plan.models).filter(matches);
    filter.hidden = Object.keys(told.plan.models).length < FILTERED_FROM;
    morph(models, found.length ? found.map(([name, model]) => modelCard(name, model, told.plan.explain?.planned, now))
      : h("p", { class: "card empty" }, words.value ? "No model matches." : "The plan has no models."));
  }

  words.addEventListener("input", () => last && show(last.plan, last.now));
  return follow(({ plan: told, now, problem }) => {
    if (!told?.plan) {
      const waits = told ? "There is no plan yet." : "Waiting for the gateway.";
      drawn = null;
      return fill(room, h("h1", "Plan"), !told && problem ? trouble(problem) : h("p", { class: "card empty" }, waits));
    }
    last = { plan: told, now };
    if (told !== drawn) {
      fill(top, head(told));
      fill(rest, ...deployments(told.plan), changes(told), past(told));
      if (!top.isConnected) fill(room, top, filter, models, rest);
      drawn = told;
    }
    show(told, now);
  });
}

function head({ plan, staged, pin, problems }) {
  return h("header", { class: "head" },
    h("h1", `Plan of epoch ${plan.epoch}`, " ", pin ? badge(`epoch ${pin} pinned`, "warn") : null, staged ? badge(`epoch ${staged.epoch} staged`, "info") : null),
    h("p", { class: "lead" }, plan.reason || "no reason given", h("small", ` · made ${ago(plan.created)}`)),
    Object.entries(problems).map(([who, each]) =>
      h("p", { class: "note", "data-state": "warn" }, `${who}, ${ago(each.at)}: ${each.message}`)));
}

/** One model: what is expected of it where it was planned with a profile, its options with what is up, its paths. */
function modelCard(name, model, planned, now) {
  const predicted = planned?.models?.[name];
  return h("section", { class: "card", "aria-label": `Plan of ${name}` },
    h("h2", name, " ", upBadge(name, now)),
    predicted ? expected(name, predicted) : h("p", { class: "faint" }, "Declared by hand: there is a prediction only for models that are planned with a profile."),
    h("div", { class: "pair" }, options(name, model, now), paths(name, model)));
}

function upBadge(name, now) {
  const own = (now?.executors ?? []).filter((each) => each.model === name);
  const [up, wanted] = ["up", "wanted"].map((field) => own.reduce((sum, each) => sum + (each[field] ?? 0), 0));
  return own.length ? badge(`${up} of ${wanted} up`, up >= wanted ? "good" : up ? "warn" : "bad") : null;
}

function options(name, model, now) {
  return table(`${name}: options and running executors`, ["Option", "Runs", "Service", num("GPUs"), num("Replicas"), num("Up")], Object.entries(model.options).map(([option, each]) => {
    const cut = each.of.lastIndexOf("/");
    const [owner, own] = each.of ? [each.of.slice(0, cut), each.of.slice(cut + 1)] : [name, option];
    const found = now?.executors.find((other) => other.model === owner && other.option === own);
    const short = found && found.up < (found.wanted ?? 0);
    return [h("b", option), each.components.join(" + "), each.of ? `that of ${each.of}` : each.service, num(each.gpus ? String(each.gpus) : "–"),
      num(each.of ? "" : `${each.replicas}${each.credits ? ` (${each.credits} in flight)` : ""}`), num(found ? (short ? badge(String(found.up), "bad") : String(found.up)) : "–")];
  }));
}

function deployments({ explain }) {
  const planned = explain?.planned;
  return planned ? [...(planned.deployments ?? []).map(deployment), links(planned)] : [];
}

function expected(name, model) {
  const known = model.measured || !(model.rate >= model.capacity); // else rates are those at capacity, where waits grow
  const spare = known && model.capacity > 0 ? model.rate / model.capacity : null;
  const wait = (value) => num(known ? grows(value) : "–");
  const full = meter(`${name}: expected rate of its capacity`);
  full.set(spare);
  const goals = Object.entries(model.goals ?? {}).map(([goal, value]) => `${goal.replaceAll("_", " ")} ${seconds(value)}`);
  return [h("p", { class: "lead" }, model.reason),
    facts([
      ["Expected", known ? `${number(model.rate)} req/s${model.measured ? ", measured" : ""}` : "no load known yet"],
      ["Can be served", `${number(model.capacity)} req/s`],
      model.promise?.curve ? ["Served in time by load", model.promise.curve.map((each) => `${part(each.load)} ${number(each.goodput)}`).join(", ") + " req/s"] : null,
      ["Goal", model.goal === "gpus" ? "the fewest GPUs" : "the most requests"],
      goals.length ? ["P99 goals", goals.join(", ")] : null,
      model.bottlenecks?.length ? ["Bottleneck", model.bottlenecks.join(", ")] : null,
      model.cells ? ["Cells", Object.entries(model.cells).map(([size, count]) => `${count} of ${several(Number(size), "GPU")}`).join(", ")] : null]),
    h("p", { class: "spare" }, full.bar, h("span", spare === null ? (known ? "" : "Figures below are for all that can be served.") : `${part(spare)} of what can be served is expected`)),
    h("div", { class: "pair" },
      table(`${name}: expected use`, ["Option", num("Replicas"), num("GPUs"), known ? "Busy" : "Busy when full", num("Wait")], Object.entries(model.options ?? {}).map(([option, use]) => {
        const busy = meter(`${option} busy`);
        busy.set(use.utilisation);
        return [h("span", h("b", option), " ", model.bottlenecks?.includes(option) ? badge("bottleneck", "warn") : null), num(String(use.replicas)), num(`${use.gpus} ${use.gpu ?? ""}`.trim()),
          h("span", { class: "with" }, busy.bar, ` ${part(use.utilisation)}`), wait(use.wait)];
      })),
      table(`${name}: request types`, ["Request type", num("req/s"), num("alone"), num("latency"), num("P99")], Object.entries(model.types ?? {}).map(([type, each]) =>
        [kind(type), num(number(each.rate)), num(grows(each.alone)), wait(each.latency), wait(each.p99)]))),
    Object.entries(NOTES).filter(([note]) => model[note]).map(([note, said]) => h("p", { class: "faint" }, `${said}: ${listed(model[note])}`))];
}

function deployment(told) {
  const gpus = Object.entries(told.gpus ?? {}).map(([type, each]) => `${type} ${each.used}${"of" in each ? ` of ${each.of}` : ""}`);
  return card("Deployment",
    facts([["GPUs", gpus.join(", ") || "–"], ["Price", number(told.price)],
      told.distance === null || told.distance === undefined ? null : ["Lost to whole replicas", part(told.distance)],
      ["Proof", told.gap ? `not proven the best by ${part(told.gap)}` : "no better plan exists"],
      told.nodes ? ["On nodes", listed(told.nodes)] : null]),
    told.alternatives?.length ? [h("h3", "Without this it would be"), table("Alternatives", ["Without", "Serves", num("GPUs"), num("Price")], told.alternatives.map((each) => [
      each.without ?? "", each.possible ? Object.entries(each.rates ?? {}).map(([name, rate]) => `${name} ${number(rate)} req/s`).join(", ") : "nothing",
      num(each.possible ? String(each.gpus ?? "") : ""), num(each.possible ? number(each.price) : "")]))] : null);
}

/** What crosses between nodes, and what their links carry. */
function links({ links: rows, warnings }) {
  if (!rows?.length) return null;
  return card("Between nodes", (warnings ?? []).map((each) => h("p", { class: "note", "data-state": "warn" }, each)),
    table("Traffic between nodes", ["From", "To", num("GB/s"), num("Link GB/s"), num("Busy")], rows.map((each) => [
      each.from, each.to, num(number(each.gb_s)), num(each.capacity ? number(each.capacity) : "–"), num(each.utilisation === undefined ? "–" : part(each.utilisation))])));
}

function paths(name, model) {
  const rows = Object.entries(model.types).flatMap(([type, found]) => {
    const total = found.reduce((sum, each) => sum + each.rate, 0);
    return found.map((each) => {
      const share = meter(`${each.name}: share`, "share");
      share.set(total ? each.rate / total : 0);
      return [kind(type), h("code", each.name), h("span", { class: "with" }, share.bar, ` ${part(total ? each.rate / total : 0)}`)];
    });
  });
  return h("div", table(`${name}: paths by request type`, ["Requests", "Path", "Share"], rows),
    h("p", { class: "faint" }, "A path names the options that requests go through, in order: what each runs is in the table of options."));
}

function changes({ changes: rows, staged, plan }) {
  if (!rows.length) return null;
  const title = staged ? `Changes of epoch ${staged.epoch}, which is next` : `Changes of epoch ${plan.epoch}`;
  return card(title, table(title, ["What", "before", "after"], rows));
}

function past({ history, plan, pin }) {
  const rows = history.map((each) => [
    h("span", String(each.epoch), " ", each.epoch === plan.epoch ? badge("current", "good") : null, each.epoch === pin ? badge("pinned", "warn") : null),
    each.created ? ago(each.created) : "–",
    Object.entries(each.executors ?? {}).map(([name, count]) => `${count} ${name}`).join(", "),
    each.fault || each.reason,
  ]);
  return card("History", table("Epochs that are kept", ["Epoch", "Made", "Executors", "Reason"], rows));
}

/** Null is what grows without end. */
function grows(value) {
  return value === null || value === undefined ? "grows" : seconds(value);
}

function listed(value) {
  return Array.isArray(value) ? value.join(", ") : Object.entries(value).map(([name, each]) => `${name} (${each})`).join(", ");
}
