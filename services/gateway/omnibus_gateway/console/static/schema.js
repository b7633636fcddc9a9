// JSON schemas of an OpenAPI document, for people.

import { badge, h, table } from "./dom.js";

const DEPTH = 4; // of an example

function resolved(whole, schema) {
  return schema.$ref ? whole.components.schemas[schema.$ref.split("/").at(-1)] ?? {} : schema;
}

/** A type in a few words. */
export function typeText(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return choices.map(typeText).join(" or ");
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${typeText(schema.items ?? {})}`;
  return schema.type ?? "anything";
}

/** A table of the fields of an object; of a choice the fields of each. Nested objects open where they are. */
export function fields(whole, given) {
  const schema = resolved(whole, given);
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return choices.filter((each) => each.type !== "null").map((each) => nested(whole, each) ?? h("p", typeText(each)));
  if (!schema.properties) return h("p", typeText(given));
  const required = new Set(schema.required ?? []);
  return table(`Fields of ${schema.title ?? "the object"}`, ["Field", "Type", "Default", "Meaning"], Object.entries(schema.properties).map(([name, each]) => [
    h("span", h("code", name), " ", required.has(name) ? badge("required", "warn") : null),
    h("div", typeText(each), objects(whole, each)), each.default === undefined || each.default === null ? "" : h("code", JSON.stringify(each.default)), each.description ?? ""]));
}

/** What of a field can be opened. */
function objects(whole, schema) {
  return [schema, schema.items, ...(schema.anyOf ?? schema.oneOf ?? []), ...(schema.items?.anyOf ?? schema.items?.oneOf ?? [])]
    .filter((each) => each?.$ref).map((each) => nested(whole, each));
}

function nested(whole, schema) {
  if (!schema.$ref && !schema.properties) return null;
  const body = h("div");
  return h("details", { ontoggle: ({ target }) => {
    if (target === target.closest("details") && target.open && !body.firstChild) body.append(...[fields(whole, schema)].flat());
  } }, h("summary", `fields of ${typeText(schema)}`), body);
}

/** A small example: what is required, with values of the right types. */
export function example(whole, given, depth = 0) {
  const schema = resolved(whole, given);
  if (schema.default !== undefined && schema.default !== null) return schema.default;
  if (schema.enum) return schema.enum[0];
  if (schema.const !== undefined) return schema.const;
  const choice = (schema.anyOf ?? schema.oneOf)?.find((each) => each.type !== "null");
  if (choice) return example(whole, choice, depth);
  if (schema.type === "object" || schema.properties) {
    if (depth >= DEPTH) return {};
    return Object.fromEntries((schema.required ?? []).map((name) => [name, example(whole, schema.properties?.[name] ?? {}, depth + 1)]));
  }
  if (schema.type === "array") return [example(whole, schema.items ?? {}, depth + 1)];
  return { integer: 1, number: 1, boolean: true, string: "" }[schema.type] ?? null;
}
