// Requests to the gateway. Tokens live in the sessionStorage of tabs, which hand them to each other, and travel in one header alone.

export const ROOT = new URL("../v1/", document.baseURI);
const STORED = { admin: "omnibus.admin", key: "omnibus.key" };

export const keys = {
  get: (name) => sessionStorage.getItem(STORED[name]) || "",
  set(name, value) {
    if (value) sessionStorage.setItem(STORED[name], value);
    else sessionStorage.removeItem(STORED[name]);
  },
};

const TABS = new BroadcastChannel("omnibus.keys"); // of this origin alone
const TAB_WAIT_MS = 150; // for the tokens of another tab
let onKeys = () => {};

const stored = () => Object.fromEntries(Object.keys(STORED).map((name) => [name, keys.get(name)]));
const hasKeys = () => Object.keys(STORED).some((name) => keys.get(name));

TABS.addEventListener("message", ({ data }) => {
  if (data === "keys?") return hasKeys() && TABS.postMessage(stored());
  if (JSON.stringify(data) === JSON.stringify(stored())) return;
  for (const name of Object.keys(STORED)) keys.set(name, String(data[name] ?? ""));
  onKeys();
});

/** Hand the tokens of this tab to the others, or take theirs where it has none; then `changed` is called whenever another tab signs in. */
export async function shareKeys(given = true, changed = onKeys) {
  onKeys = () => {};
  if (given || hasKeys()) TABS.postMessage(stored());
  else {
    TABS.postMessage("keys?");
    await new Promise((resolve) => {
      onKeys = resolve;
      setTimeout(resolve, TAB_WAIT_MS);
    });
  }
  onKeys = changed;
}

/** An answer that is an error. `status` is that of HTTP, 0 when nobody answered. */
export class Problem extends Error {
  constructor(status, message, about = {}) {
    super(message);
    this.status = status;
    this.told = about;
  }
}

function ours(path) {
  return ["console/", "invocations", "apps"].some((each) => path.startsWith(each));
}

/** Ask; returns the response, raises `Problem` for one that is an error. */
export async function ask(path, { method = "GET", json, form, signal, headers: more = {} } = {}) {
  const headers = { ...more };
  const token = ours(path) ? keys.get("admin") || keys.get("key") : keys.get("key") || keys.get("admin");
  if (token) headers.authorization = `Bearer ${token}`;
  if (json !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    const body = json === undefined ? form : JSON.stringify(json);
    response = await fetch(new URL(path, ROOT), { method, headers, body, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "the gateway does not answer");
  }
  if (!response.ok) throw await problem(response);
  return response;
}

async function problem(response) {
  const told = await response.json().catch(() => null);
  const error = told?.error ?? {};
  return new Problem(response.status, error.message || `the gateway answered ${response.status}`, error);
}

export async function get(path, more) {
  return JSON.parse(await (await ask(path, more)).text(), exact);
}

/** Seeds have 63 bits, numbers here 53: what does not fit stays as it was written, where the browser tells that. */
function exact(_, value, context) {
  return Number.isInteger(value) && !Number.isSafeInteger(value) && context ? context.source : value;
}

/** The data of each server-sent event of a response; `[DONE]` ends it. Raises `Problem` for an event that is one. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split("\n").filter((line) => line.startsWith("data: "));
        if (!lines.length) continue;
        const data = lines.map((line) => line.slice(6)).join("\n");
        if (data === "[DONE]") return;
        const told = JSON.parse(data);
        if (told.error?.message) throw new Problem(0, told.error.message, told.error);
        yield told;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
