// Requests that were rejected or failed, with their errors and keys: all of them, and short lists for other pages.

import { get } from "./api.js";
import { about, badge, card, fill, h, morph, table, trouble } from "./dom.js";
import { ago, clock, several } from "./format.js";
import { every } from "./refresh.js";

const SPANS = { 900: "last 15 minutes", 3600: "last hour", 86400: "last day" };
const REFRESH_MS = 5000;
const LATEST = 5; // of a short list
const SERVER_ERROR = 500;

/** A link to the failed requests of `filters`: `code`, `model`, `since` and `until`. */
export function failuresLink(words, filters = {}) {
  const query = String(new URLSearchParams(Object.entries(filters).filter(([, value]) => value)));
  return h("a", { href: `#/failures${query ? `?${query}` : ""}` }, words);
}

/** A list of error codes, each with its count and a link to its requests. */
export function codeLinks(codes, filters = {}) {
  const named = Object.entries(codes).sort(([, one], [, other]) => other - one);
  return named.map(([code, count], index) => [index ? ", " : null, failuresLink(`${code} ${count}`, { ...filters, code })]);
}

export function failures(room) {
  const given = new URLSearchParams(location.hash.split("?")[1] ?? "");
  const fixed = given.has("since") ? { since: given.get("since"), until: given.get("until") } : null;
  const words = h("input", { type: "search", placeholder: "id, model, route, error, tenant, key …", "aria-label": "Search", autocomplete: "off", spellcheck: "false" });
  const code = h("select", { "aria-label": "Error code" });
  const when = h("select", { "aria-label": "Time" }, fixed ? h("option", { value: "fixed" }, `${clock(fixed.since)} to ${clock(fixed.until)}`) : null,
    h("option", { value: "" }, "at any time"), Object.entries(SPANS).map(([value, name]) => h("option", { value }, name)));
  const [counts, list] = [h("p", { class: "faint" }), h("div", { "aria-live": "polite" })];
  words.value = [given.get("q"), given.get("model")].filter(Boolean).join(" ");
  fill(room, h("h1", "Failed requests"), h("form", { class: "row search", role: "search", onsubmit: (event) => event.preventDefault() }, words, code, when),
    h("section", { class: "card" }, counts, list));
  let chosen = given.get("code") ?? "";
  let stop = () => {};

  const query = () => {
    const asked = new URLSearchParams({ limit: 200, ...(when.value === "fixed" ? fixed : {}) });
    if (SPANS[when.value]) asked.set("since", Math.floor(Date.now() / 1000) - Number(when.value));
    if (words.value.trim()) asked.set("q", words.value.trim());
    if (chosen) asked.set("code", chosen);
    return `console/failures?${asked}`;
  };
  const show = ({ data, codes, complete }) => {
    const options = Object.keys({ ...codes, ...(chosen ? { [chosen]: 0 } : {}) }).sort();
    morph(code, h("option", { value: "" }, "every error"), options.map((name) => h("option", { value: name }, `${name} ${codes[name] ?? 0}`)));
    code.value = chosen;
    const sum = Object.values(codes).reduce((all, count) => all + count, 0);
    fill(counts, complete ? "" : "The store does not answer: these are the failed requests of one gateway. ",
      sum ? [`${several(sum, "failed request")} by error: `, codeLinks(codes)] : null);
    if (data.length) morph(list, failureTable("Failed requests, newest first", data));
    else fill(list, h("p", { class: "empty" }, "No request failed or was rejected like that."));
  };
  const begin = () => {
    stop();
    stop = every(REFRESH_MS, async (signal) => show(await get(query(), { signal })), (error) => fill(list, trouble(error)));
  };
  code.addEventListener("change", () => (chosen = code.value, begin()));
  for (const each of [words, when]) each.addEventListener("input", begin);
  begin();
  return () => stop();
}

/** A card with the latest failed requests and their counts by code, or nothing if there are none. */
export function latestFailures({ data, codes }, span) {
  if (!data.length) return null;
  return card("Failed requests", h("p", { class: "faint" }, `${span}: `, codeLinks(codes), ". ", failuresLink("All failed requests")),
    failureTable("Latest failed requests", data.slice(0, LATEST)));
}

function failureTable(caption, data) {
  return table(caption, ["Request", "When", "Model", "Route", "Error", "Key"], data.map((each) => [
    each.ran ? about(each.id) : h("code", each.id || "no id"),
    h("span", { title: clock(each.at) }, ago(each.at)), each.model || "–", h("code", `${each.method} ${each.path}`),
    h("div", { class: "failure" }, h("span", badge(String(each.status), each.status < SERVER_ERROR ? "warn" : "bad"), h("b", each.code)),
      h("span", each.message), each.param ? h("small", `parameter ${each.param}`) : null, each.stage ? h("small", `stage ${each.stage}`) : null),
    key(each)]));
}

function key({ tenant, key: id, note, status }) {
  if (!id) return tenant || (status === 401 ? "not accepted" : "no key");
  return h("span", { class: "failure" }, h("a", { href: "#/keys" }, h("b", tenant), " ", h("code", id)), note ? h("small", note) : null);
}
