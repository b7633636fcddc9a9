// Rates, latencies and errors of the past, by model and stage.

import { get } from "./api.js";
import { chart, sparkline } from "./chart.js";
import { card, fill, h, num, table, trouble } from "./dom.js";
import { failuresLink } from "./failures.js";
import { kind, part, rate, seconds, whole } from "./format.js";
import { percentiles } from "./percentiles.js";
import { every } from "./refresh.js";

const SPANS = { 900: "15 minutes", 3600: "1 hour", 21600: "6 hours", 86400: "1 day", 604800: "7 days" };
const REFRESH_MS = 10000;
const ALL = "";
const remembered = { span: "3600", model: ALL };

/** Models by name: requests that name none that there is are counted under an empty one. */
function named(models) {
  return Object.keys(models).filter(Boolean).sort();
}

export function history(room) {
  const span = h("select", { "aria-label": "Time" }, Object.entries(SPANS).map(([value, name]) => h("option", { value }, `last ${name}`)));
  const model = h("select", { "aria-label": "Model" }, h("option", { value: ALL }, "all models"));
  const shown = h("div", { class: "room" });
  span.value = remembered.span;
  fill(room, h("h1", "History"), h("form", { class: "row search", onsubmit: (event) => event.preventDefault() }, span, model), shown);
  let last = null;
  let stop = () => {};

  const show = () => {
    remembered.model = model.value;
    if (last && !shown.contains(document.activeElement)) fill(shown, charts(last, model.value));
  };
  const begin = () => {
    stop();
    remembered.span = span.value;
    stop = every(REFRESH_MS, async (signal) => {
      last = await get(`console/history?seconds=${span.value}`, { signal });
      const before = model.options.length > 1 ? model.value : remembered.model;
      const names = named(last.models);
      fill(model, h("option", { value: ALL }, "all models"), names.map((name) => h("option", { value: name }, name)));
      model.value = names.includes(before) ? before : ALL;
      show();
    }, (error) => fill(shown, trouble(error)));
  };
  span.addEventListener("change", begin);
  model.addEventListener("change", show);
  begin();
  return () => stop();
}

function charts({ starts: all, whole: over, step, models, stages }, chosen) {
  const names = Object.keys(models).filter((name) => chosen === ALL || name === chosen).sort();
  if (!names.length) return h("p", { class: "card empty" }, "Nothing was counted in this time. Counts appear here about ten seconds after requests.");
  const starts = all.slice(0, over); // the last bucket still grows: it would fall to 0 at the right end
  const ended = (values) => values.slice(0, over);
  const sums = (what) => starts.map((_, index) => names.reduce((sum, name) => sum + models[name][what][index], 0));
  const perSecond = (values) => values.map((each) => each / step);
  const pick = (index) => {
    const asked = new URLSearchParams({ since: starts[index], until: starts[index] + step, ...(chosen ? { model: chosen } : {}) });
    location.hash = `#/invocations?${asked}`;
  };
  const common = { starts, step, pick };
  const latency = (title, what) => chart({ ...common, title, format: seconds, series: chosen === ALL && named(models).length > 1
    ? named(models).slice(0, 8).map((name, line) => ({ name: `${name}, 95 %`, values: ended(models[name][`${what}_p95`]), line }))
    : [["half of them within", "p50", 1], ["95 % within", "p95", 3], ["99 % within", "p99", 0]].map(([name, quantile, line]) => ({ name, values: ended(models[chosen || (named(models)[0] ?? names[0])][`${what}_${quantile}`]), line })) });
  return [
    h("div", { class: "charts" },
      chart({ ...common, title: "Requests per second", format: rate, series: [{ name: "came", values: perSecond(sums("came")), line: 1 }, { name: "done", values: perSecond(sums("done")), line: 2 }] }),
      chart({ ...common, title: "Failed and refused", format: whole, counts: true, series: [{ name: "failed", values: sums("failed"), line: 0 }, { name: "refused", values: sums("refused"), line: 3 }, { name: "rejected with 4xx", values: sums("rejected"), line: 4 }] }),
      latency("Time to first output", "first"), latency("Time of the whole request", "total")),
    h("p", { class: "faint" }, "Choose a point to see the invocations of that time."),
    percentiles(Object.fromEntries(names.map((name) => [name, models[name]])), "Time of requests"),
    types(names, models, step * all.length, ended), errors(names, models, ended, { since: starts[0], until: all.at(-1) + step }), stageTable(names, stages, step * all.length, ended),
  ];
}

function total(values) {
  return values.reduce((sum, each) => sum + each, 0);
}

function types(names, models, span, ended) {
  const rows = names.flatMap((name) => Object.entries(models[name].types).map(([type, each]) => [
    h("span", h("b", name), ` ${kind(type)}`), sparkline(ended(each.came), 1), num(whole(total(each.came))), num(rate(total(each.came) / span)), num(whole(total(each.done))), num(String(total(each.failed))), num(String(total(each.refused)))]));
  return card("Requests by type", table("Requests by type", ["Requests", "Over time", num("came"), num("per second"), num("done"), num("failed"), num("refused")], rows));
}

function errors(names, models, ended, span) {
  const rows = names.flatMap((name) => Object.entries(models[name].codes).filter(([code]) => code !== "ok").map(([code, values]) => [
    h("span", h("b", name || "no model"), " ", failuresLink(h("code", code), { code, ...span })), sparkline(ended(values), 0), num(String(total(values)))]));
  return rows.length ? card("Errors by code", table("Errors by code", ["Error", "Over time", num("count")], rows)) : null;
}

/** Stages by how much they work. Busy is computing time over the time that executors of the stage were ready. */
function stageTable(names, stages, span, ended) {
  const rows = names.flatMap((name) => Object.entries(stages[name] ?? {}).map(([stage, each]) => {
    const [jobs, busy, up, failed] = ["jobs", "busy", "up", "failed"].map((what) => total(each[what]));
    return { busy, cells: [h("span", h("b", stage), h("small", ` ${name}`)), sparkline(ended(each.busy), 4), num(rate(jobs / span)), num(jobs ? seconds(busy / jobs) : "–"), num(up ? part(Math.min(1, busy / up)) : "–"), num(String(failed))] };
  })).sort((a, b) => b.busy - a.busy);
  return rows.length ? card("Stages", table("Stages", ["Stage", "Computing", num("jobs/s"), num("per job"), num("busy"), num("failed")], rows.map(({ cells }) => cells))) : null;
}
