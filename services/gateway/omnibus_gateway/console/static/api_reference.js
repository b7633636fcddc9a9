// The API of this gateway, from its own OpenAPI document: operations by tag, their fields, and a way to send them.

import { ask, get } from "./api.js";
import { badge, card, fill, h, table, trouble } from "./dom.js";
import { typeText, fields, example } from "./schema.js";

const METHODS = { get: "info", post: "good", put: "warn", patch: "warn", delete: "bad" };
const SHOWN_CHARS = 20000; // of a response

export function apiReference(room) {
  const turn = new AbortController();
  const words = h("input", { type: "search", "aria-label": "Search operations", placeholder: "path or summary …", autocomplete: "off", spellcheck: "false" });
  const list = h("div", { class: "room" });
  fill(room, h("h1", "API of this gateway"),
    h("p", { class: "lead faint" }, "OpenAI's API with the additions of Omnibus. The document for other tools is ", h("a", { href: "../openapi.json" }, "openapi.json"), "."),
    h("form", { class: "row search", role: "search", onsubmit: (event) => event.preventDefault() }, words), list);
  let groups = [];
  const show = () => {
    const wanted = words.value.trim().toLowerCase().split(/\s+/);
    const found = groups.map(([tag, rows]) => [tag, rows.filter(({ text }) => wanted.every((word) => text.includes(word)))]).filter(([, rows]) => rows.length);
    fill(list, found.length ? found.map(([tag, rows]) => card(tag, h("div", { class: "operations" }, rows.map(({ element }) => element)))) : h("p", { class: "card empty" }, "No operation matches."));
  };
  words.addEventListener("input", show);
  get("../openapi.json", { signal: turn.signal }).then((whole) => {
    groups = grouped(whole);
    show();
  }, (error) => turn.signal.aborted || fill(list, trouble(error)));
  return () => turn.abort();
}

function grouped(whole) {
  const found = new Map();
  for (const [path, operations] of Object.entries(whole.paths))
    for (const [method, operation] of Object.entries(operations)) {
      if (!(method in METHODS)) continue;
      const tag = operation.tags?.[0] ?? "Service";
      found.set(tag, [...(found.get(tag) ?? []), { text: `${method} ${path} ${operation.summary ?? ""}`.toLowerCase(), element: lazy(whole, path, method, { ...operation, parameters: [...(operations.parameters ?? []), ...(operation.parameters ?? [])] }) }]);
    }
  return [...found].sort(([a], [b]) => a.localeCompare(b));
}

/** An operation, whose details are made when somebody opens it. */
function lazy(whole, path, method, operation) {
  const body = h("div", { class: "room" });
  return h("details", { class: "operation", ontoggle: ({ target }) => {
    if (target.open && !body.firstChild) fill(body, details(whole, path, method, operation));
  } }, h("summary", badge(method.toUpperCase(), METHODS[method]), h("code", path), h("small", ` ${operation.summary ?? ""}`)), body);
}

function details(whole, path, method, operation) {
  const parameters = operation.parameters ?? [];
  const content = operation.requestBody?.content ?? {};
  return [
    operation.description ? h("p", operation.description) : null,
    parameters.length ? table("Parameters", ["Parameter", "In", "Type", "Meaning"], parameters.map((each) => [
      h("span", h("code", each.name), each.required ? badge("required", "warn") : null), each.in, typeText(each.schema ?? {}), each.description ?? each.schema?.description ?? ""])) : null,
    Object.entries(content).map(([mime, { schema }]) => [h("h3", `Request, ${mime}`), fields(whole, schema ?? {})]),
    h("h3", "Responses"), table("Responses", ["Status", "Type", "Meaning"], Object.entries(operation.responses ?? {}).map(([status, each]) => [
      badge(status, status < "3" ? "good" : "warn"), Object.entries(each.content ?? {}).map(([mime, { schema }]) => h("p", `${mime}: ${typeText(schema ?? {})}`)), each.description ?? ""])),
    sender(whole, path, method, parameters, content["application/json"]?.schema),
  ];
}

/** Fields to send the operation with, and what comes back. */
function sender(whole, path, method, parameters, schema) {
  const inputs = parameters.filter((each) => ["path", "query"].includes(each.in)).map((each) => ({ each, input: h("input", { placeholder: each.in, required: each.in === "path", autocomplete: "off", spellcheck: "false" }) }));
  const text = schema ? h("textarea", { rows: 8, spellcheck: "false", "aria-label": "Body" }) : null;
  if (text) text.value = JSON.stringify(example(whole, schema), null, 2);
  const result = h("div", { role: "status" });
  return h("form", { class: "sender", onsubmit: async (event) => {
    event.preventDefault();
    try {
      const json = text ? JSON.parse(text.value) : undefined;
      fill(result, badge("sending", "info"));
      const response = await ask(address(path, inputs), { method: method.toUpperCase(), json });
      const shown = /json|text|event-stream/.test(response.headers.get("content-type") ?? "");
      const answer = shown ? await response.text() : `${response.headers.get("content-type")}, not shown`;
      fill(result, badge(String(response.status), "good"), h("pre", { class: "log", tabindex: 0, role: "region", "aria-label": "Response" }, pretty(answer).slice(0, SHOWN_CHARS)));
    } catch (error) {
      fill(result, error.status ? badge(String(error.status), "bad") : null, trouble(error));
    }
  } }, h("h3", "Try it"), inputs.length ? h("div", { class: "row" }, inputs.map(({ each, input }) => h("label", each.name, input))) : null, text,
  h("p", { class: "row" }, h("button", { type: "submit", class: method === "delete" ? "quiet" : "" }, "Send")), result);
}

/** The path below `/v1/`, from which `ask` begins, with the values of `inputs`. */
function address(path, inputs) {
  const query = new URLSearchParams();
  let whole = path;
  for (const { each, input } of inputs) {
    if (each.in === "path") whole = whole.replace(`{${each.name}}`, encodeURIComponent(input.value));
    else if (input.value) query.set(each.name, input.value);
  }
  return `..${whole}${query.size ? `?${query}` : ""}`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
