// Registered apps: what each serves, its tasks, and how its worker does at this gateway.

import { get } from "./api.js";
import { badge, card, facts, fill, h, morph, table, trouble } from "./dom.js";
import { ago } from "./format.js";
import { every } from "./refresh.js";

const WORKERS = { ready: "good", cold: "info", starting: "info", restarting: "warn", broken: "bad" };
const REFRESH_MS = 5000;

export function apps(room) {
  const list = h("div");
  fill(room, h("h1", "Apps"), h("section", { class: "card" }, list));
  return every(REFRESH_MS, async (signal) => {
    const { data } = await get("apps", { signal });
    morph(list, data.length ? rows(data) : h("p", { class: "empty" }, "No app is registered. ", h("code", "omnibus app register MODULE"), " registers one."));
  }, (error) => fill(list, trouble(error)));
}

function rows(data) {
  return table("Apps", ["App", "State", "Worker here", "Serves", "Tasks"], data.map((each) => [
    h("span", h("a", { href: `#/apps/${encodeURIComponent(each.name)}` }, h("b", each.name)), h("small", ` version ${each.version}`)),
    badge(each.state, each.state === "active" ? "good" : "info"), worker(each.worker),
    h("span", h("code", `/v1/apps/${each.name}/invoke`), each.model ? h("span", h("br"), "model ", h("code", each.model)) : null),
    each.tasks.join(", ") || "–",
  ]));
}

function worker(found) {
  if (!found) return "–";
  return h("span", badge(found.state, WORKERS[found.state] ?? ""), found.problem ? h("small", ` ${found.problem.message}`) : null);
}

export function app(room, name) {
  return every(REFRESH_MS, async (signal) => {
    const each = await get(`apps/${encodeURIComponent(name)}`, { signal });
    morph(room, h("header", { class: "head" }, crumb(), h("h1", each.name, " ", badge(each.state, each.state === "active" ? "good" : "info")),
      each.doc ? h("p", { class: "lead" }, each.doc) : null, about(each),
      each.worker?.problem ? h("p", { class: "note", "data-state": "bad" }, h("b", `version ${each.worker.problem.version}, ${each.worker.problem.code}`), ` ${each.worker.problem.message}`) : null),
      card("Unit tasks", each.tasks.length ? table("Unit tasks", ["Task", "Component", "Model", "Engine"], each.tasks.map((task) => [
        h("code", task.name), task.component, task.model || "–", task.own ? "the app's own" : "shared"])) : h("p", { class: "faint" }, "It declares no tasks: each request decides which tasks run.")),
      schema("Request", each.request), schema("Response", each.response));
  }, (error) => fill(room, crumb(), h("h1", name), trouble(error)));
}

function crumb() {
  return h("p", { class: "crumb" }, h("a", { href: "#/apps" }, "Apps"));
}

function about(each) {
  const { kind, module, directory, sha256 } = each.source;
  return facts([
    ["Version", String(each.version)], ["Worker here", worker(each.worker)], each.invocable ? ["Route", h("code", `POST /v1/apps/${each.name}/invoke`)] : null,
    each.model ? ["Model", [h("code", each.model), ` for ${each.routes.join(", ")}`]] : null, ["Streams", each.streams ? "yes" : "no"],
    ["Source", [`${kind}: `, h("code", module), directory ? ` in ${directory}` : "", sha256 ? ` sha256 ${sha256.slice(0, 12)}…` : ""]],
    ["Registered", ago(each.created)], ["Updated", ago(each.updated)],
  ]);
}

function schema(title, found) {
  if (!Object.keys(found).length) return null;
  return h("details", { class: "card" }, h("summary", `${title} schema`), h("pre", { class: "log", tabindex: 0, role: "region", "aria-label": `${title} schema` }, JSON.stringify(found, null, 2)));
}
