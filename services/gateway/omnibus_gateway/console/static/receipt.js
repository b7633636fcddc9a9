// Below an answer: the link to its request, its price, its waterfall, and for an error what to do.

import { get } from "./api.js";
import { about, fill, h, trouble } from "./dom.js";
import { number } from "./format.js";
import { waterfall } from "./waterfall.js";

const RECORD_TRIES = 8; // a record is written a moment after its request ends
const RECORD_MS = 500;
const OPERATORS = "Waterfalls are for operators: sign in with the admin token.";
const RETRY = "Try again in a moment.";
/** What to do about an error, by its code. */
const ADVICE = {
  unauthorized: "Sign in with an API key of this gateway.", key_revoked: "Sign in with another API key.",
  not_found: "Choose another model.", bad_media: "Edit the message and attach another file.", too_large: "Attach a smaller file.",
  context_length_exceeded: "Edit an earlier message, or begin a new conversation.", cost_limit_exceeded: "Choose another model.",
  overloaded: RETRY, stage_unavailable: RETRY, gateway_stopping: RETRY, deadline_exceeded: "Try again, or ask for a shorter answer.",
};

/** The money of a request, or its compute where a stage has no price. */
export function priceText({ money, currency, gpu_seconds }) {
  if (typeof money === "number") return `${money.toLocaleString("en", { maximumSignificantDigits: 3 })} ${currency}`;
  return `not set (${number(gpu_seconds)} GPU s)`;
}

export function requestLink(id) {
  const link = about(id);
  link.ariaLabel = `what happened in ${id}`;
  return link;
}

/** The record of a request that has ended. */
export async function readRecord(id) {
  for (let tries = 1; ; tries++) {
    try {
      const told = await get(`invocations/${encodeURIComponent(id)}`);
      if (told.summary.status !== "running" || tries === RECORD_TRIES) return told;
    } catch (error) {
      if (error.status !== 404 || tries === RECORD_TRIES) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, RECORD_MS));
  }
}

/** A part that reads the waterfall of a request when it is opened. */
export function waterfallPart(id) {
  const body = h("div", { class: "deep" });
  const part = h("details", h("summary", "Waterfall"), body);
  part.addEventListener("toggle", async () => {
    if (!part.open || body.querySelector(".waterfall, [aria-busy]")) return;
    fill(body, h("p", { class: "faint", "aria-busy": "true" }, "reading the record"));
    try {
      fill(body, waterfall(await readRecord(id)));
    } catch (error) {
      fill(body, trouble([401, 403].includes(error.status) ? new Error(OPERATORS) : error));
    }
  });
  return part;
}

/** An error with its code, its message and what to do. */
export function failure(error) {
  const { code, param } = error.told ?? {};
  return h("div", { class: "trouble", role: "alert" }, h("p", code ? [h("b", code), " "] : null, error.message), h("p", { class: "advice" }, advice(error, code, param)));
}

function advice({ status, told }, code, param) {
  if (ADVICE[code]) return ADVICE[code];
  if (status === 0 && !code) return "Check that the gateway runs, then try again.";
  if (status >= 500 || told?.stage) return "Try again. The page of the request names the stage that failed.";
  return param && !param.startsWith("messages") ? `Change “${param}” in the settings.` : "Edit the message, or choose another model.";
}
