// The alert rules, evaluated by this gateway: what fires, since when, and what to do.

import { get } from "./api.js";
import { badge, card, fill, h, morph, trouble } from "./dom.js";
import { ago, several } from "./format.js";
import { every } from "./refresh.js";

const REFRESH_MS = 5000;
/** Words and colours of states, in the order in which they are shown. */
const STATES = { firing: ["firing", "bad"], pending: ["pending", "warn"], ok: ["ok", "good"], needs_prometheus: ["needs Prometheus", ""] };
const TITLES = { firing: "Firing", pending: "Pending", ok: "Ok", needs_prometheus: "Needs Prometheus" };

export function alerts(room) {
  const list = h("div", { class: "room" });
  const lead = h("p", { class: "faint" });
  fill(room, h("h1", "Alerts"), lead, list);
  return every(REFRESH_MS, async (signal) => {
    const { gateway, data } = await get("console/alerts", { signal });
    const count = (state) => data.filter((each) => each.state === state).length;
    morph(lead, `${several(count("firing"), "alert")} of ${data.length} fire, ${count("pending")} are pending. `,
      `Gateway ${gateway} evaluates these rules over its own values every 15 seconds. Prometheus evaluates all rules, over all services.`);
    morph(list, ...Object.keys(STATES).map((state) => group(state, data.filter((each) => each.state === state))).filter(Boolean));
  }, (error) => fill(list, trouble(error)));
}

/** A remark about alerts that fire, with a link; nothing if none does. */
export function firing({ data }) {
  const names = data.filter((each) => each.state === "firing").map((each) => each.name);
  return names.length ? h("p", { class: "note", "data-state": "bad" }, h("a", { href: "#/alerts" }, several(names.length, "alert")), ` firing: ${names.join(", ")}`) : null;
}

function group(state, found) {
  return found.length ? card(`${TITLES[state]} (${found.length})`, found.map(rule)) : null;
}

function rule(each) {
  const [word, colour] = STATES[each.state];
  return h("article", { class: "rule", id: `alert-${each.name}`, "aria-label": each.name },
    h("h3", each.name, " ", badge(word, colour), badge(each.severity, each.severity === "page" ? "warn" : "")),
    each.alerts.length ? h("ul", each.alerts.map((alert) => h("li", alert.summary, h("small", ` ${alert.state}, since ${ago(alert.since)}`)))) : h("p", each.summary),
    h("p", { class: "faint" }, each.reason ? `The gateway cannot evaluate this: ${each.reason}.`
      : [`${word} since ${ago(each.since)}. `, each.for_seconds ? `Fires after ${each.for_seconds / 60} min. ` : "Fires at once. ", each.only_here ? "Only for this gateway: Prometheus sees the other services." : ""]),
    h("details", h("summary", "What to do"), h("div", { class: "room" }, runbook(each.runbook), h("p", h("code", each.expression)))));
}

/** The paragraphs and items of a section of the runbook. */
function runbook(paragraphs) {
  const items = paragraphs.filter((each) => each.startsWith("- ")).map((each) => h("li", words(each.slice(2))));
  return [paragraphs.filter((each) => !each.startsWith("- ")).map((each) => h("p", words(each))), items.length ? h("ul", items) : null];
}

function words(text) {
  return text.split("`").map((each, index) => (index % 2 ? h("code", each) : each));
}
