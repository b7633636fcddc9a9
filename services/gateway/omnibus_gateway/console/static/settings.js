// Settings of this gateway: environment variables, their defaults, and what is set here. Secrets are never sent.

import { get } from "./api.js";
import { badge, card, fill, h, trouble } from "./dom.js";

const AREAS = { GATEWAY: "Gateway", SERVICE: "Service", BUS: "Bus", STORE: "Store", SIDECAR: "Sidecar" };

export function settings(room) {
  const turn = new AbortController();
  const words = h("input", { type: "search", "aria-label": "Search settings", placeholder: "name or meaning …", autocomplete: "off", spellcheck: "false" });
  const only = h("input", { type: "checkbox" });
  const list = h("div", { class: "room" });
  fill(room, h("h1", "Settings of this gateway"),
    h("p", { class: "lead faint" }, "Environment variables, read at its start. ", h("code", "omnibus settings"), " lists those of all services."),
    h("form", { class: "row search", role: "search", onsubmit: (event) => event.preventDefault() }, words, h("label", { class: "check" }, only, "Only those that are set")), list);
  let found = [];

  function show() {
    const wanted = words.value.trim().toLowerCase().split(/\s+/);
    const rows = found.filter((each) => (!only.checked || each.value !== null) && wanted.every((word) => `${each.name} ${each.meaning}`.toLowerCase().includes(word)));
    const areas = Object.keys(AREAS).map((area) => [area, rows.filter((each) => each.area === area)]).filter(([, own]) => own.length);
    fill(list, areas.length ? areas.map(([area, own]) => card(AREAS[area], h("dl", { class: "settings-list" }, own.map(row)))) : h("p", { class: "card empty" }, "No setting matches."));
  }

  words.addEventListener("input", show);
  only.addEventListener("change", show);
  get("console/settings", { signal: turn.signal }).then(({ data }) => {
    found = data;
    show();
  }, (error) => turn.signal.aborted || fill(list, trouble(error)));
  return () => turn.abort();
}

function row(each) {
  const unit = ["text", "yes or no", "port"].includes(each.unit) ? "" : ` ${each.unit}`;
  const text = each.default === "" || each.default === null ? "empty" : `${each.default}${unit}`;
  return h("div", h("dt", h("code", each.name), " ", each.value === null ? null : badge("set", "info")),
    h("dd", h("p", each.value === null ? text : [h("b", each.value === "" ? "empty" : each.value), h("small", ` default: ${text}`)]), h("p", { class: "faint" }, each.meaning)));
}
