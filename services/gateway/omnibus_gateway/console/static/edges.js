// What a node of a recorded invocation got and gave, as people can look at it and listen to it.

import { ask } from "./api.js";
import { badge, fill, h, trouble } from "./dom.js";
import { bytes } from "./format.js";

const AT_ONCE_BYTES = 1 << 20; // of a value that is fetched before somebody wants it
const SHORT = 12; // digits of a digest
const LINE = 60; // letters of JSON that stay in one line

/** Whether two values are equal: by their digests where both have one, else by what is known of them. */
export function equal(one, other) {
  if (one.digest && other.digest) return one.digest === other.digest;
  return (one.text ?? "") === (other.text ?? "") && (one.sha256 ?? "") === (other.sha256 ?? "");
}

/** Whether nothing is known of a value but its name: two of them are neither equal nor different. */
export function unknown({ text, digest, sha256 }) {
  return !text && !digest && !sha256;
}

/** A value that has no source, as elements. `path` is where its content is, `keep` gets the addresses that are to be given back. */
export function content(value, path, keep, signal) {
  if (value.text) return words(value.name, value.text);
  if (!value.mime) return h("p", { class: "faint" }, badge("not kept", "warn"), described(value) || " OMNIBUS_GATEWAY_RECORD=stages keeps what stages give each other");
  const body = h("div", { class: "room" });
  const read = () => show(body, value, path, keep, signal);
  if ((value.nbytes ?? 0) <= AT_ONCE_BYTES) void read();
  else fill(body, h("button", { type: "button", class: "quiet", onclick: read }, `Show ${bytes(value.nbytes)}`));
  return [body, h("p", { class: "faint" }, described(value))];
}

function words(name, text) {
  return h("pre", { class: "log value", tabindex: 0, role: "group", "aria-label": name }, pretty(text));
}

function described({ nbytes, sha256, digest }) {
  const told = digest || sha256;
  return [nbytes ? bytes(nbytes) : "", told ? `sha256 ${told.slice(0, SHORT)}…` : ""].filter(Boolean).join(" · ");
}

async function show(body, value, path, keep, signal) {
  try {
    const response = await ask(path, { signal });
    const mime = (response.headers.get("content-type") ?? "").split(";")[0];
    const blob = await response.blob();
    if (signal.aborted) return;
    const [kind] = mime.split("/");
    if (kind === "text" || mime === "application/json") return fill(body, words(value.name, await blob.text()));
    const src = URL.createObjectURL(blob);
    keep(src);
    fill(body, kind === "image" ? h("img", { class: "made", src, alt: value.name })
      : kind === "audio" ? h("audio", { controls: true, src, "aria-label": value.name })
        : kind === "video" ? h("video", { class: "made", controls: true, src, "aria-label": value.name })
          : h("p", { class: "faint" }, `${mime}, which browsers do not show`));
  } catch (error) {
    if (!signal.aborted) fill(body, trouble(error));
  }
}

/** JSON with what is short in one line; other text as it is. */
function pretty(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" ? laidOut(value, "") : text;
  } catch {
    return text;
  }
}

function laidOut(value, indent) {
  const flat = JSON.stringify(value);
  if (value === null || typeof value !== "object" || indent.length + flat.length <= LINE) return flat;
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const inner = `${indent}  `;
  const lines = Object.entries(value).map(([key, each]) => `${inner}${open === "{" ? `${JSON.stringify(key)}: ` : ""}${laidOut(each, inner)}`);
  return `${open}\n${lines.join(",\n")}\n${indent}${close}`;
}
