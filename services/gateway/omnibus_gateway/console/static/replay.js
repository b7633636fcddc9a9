// A recorded invocation, run again: as it was, or with one thing changed.

import { ask, events } from "./api.js";
import { about, badge, fill, h, trouble } from "./dom.js";

/** A row that replays `told`, a waterfall. */
export function replayRow(told, signal) {
  const said = h("div", { class: "again", role: "status" });
  const from = h("select", { "aria-label": "Begin at" }, h("option", { value: "" }, "from the beginning"),
    told.nodes.slice(1).map((each) => h("option", { value: each.node }, `from ${each.component}`)));
  const button = h("button", { type: "button", onclick: () => again(told.summary.id, from.value, said, button, signal) }, "Replay");
  if (told.record === "digest") button.disabled = true;
  return h("div", { class: "row" }, button, told.nodes.length > 1 && from,
    told.record !== "digest" ? null : h("small", "Recorded as digests only: it cannot be replayed. OMNIBUS_GATEWAY_RECORD=full keeps what a replay needs."), said);
}

async function again(id, from, said, button, signal) {
  const query = from && `?from=${from}`;
  await follow(`console/replay/${encodeURIComponent(id)}${query}`, undefined, { id, said, button, signal });
}

/** Send the request and say in `said` what becomes of it; returns the last event, null where there is none. */
export async function follow(path, json, { id, said, button, signal }) {
  button.disabled = true;
  fill(said, badge("sending", "info"));
  let last = null;
  try {
    const response = await ask(path, { method: "POST", json, signal });
    for await (const step of events(response)) fill(said, verdict(last = step, id));
  } catch (error) {
    if (!signal.aborted) fill(said, trouble(error));
  } finally {
    button.disabled = false;
  }
  return last;
}

function verdict(step, before) {
  if (step.status === "running") {
    const place = step.segments ? ` segment ${step.segment} of ${step.segments}` : "";
    return [badge("running", "info"), place, " as ", about(step.id)];
  }
  if (step.status === "failed") return [badge("failed", "bad"), ` ${step.problem.code}: ${step.problem.message}`];
  const [word, state] = step.identical === true ? ["identical", "good"] : step.identical === false ? ["different", "bad"] : ["not compared", "warn"];
  const compared = step.compared?.length ? ` ${step.compared.join(", ")}` : "";
  return [badge(word, state), step.why ? ` ${step.why}` : compared, " ", about(step.id), " ",
    about(step.id, "side by side", before)];
}
