// API keys with their limits, by tenant: made, shown once, revoked. The keys themselves are known to their holders alone.

import { ask, get } from "./api.js";
import { badge, card, fill, h, morph, num, say, table, trouble } from "./dom.js";
import { ago, number, several } from "./format.js";
import { every } from "./refresh.js";

const REFRESH_MS = 5000;
/** Limits of a key: field of the API, label, what an empty field means, smallest step. */
const LIMITS = [
  ["weight", "Weight", "1", "any"], ["rate", "Requests per second", "no limit", "any"], ["burst", "Burst", "a second's worth", "any"],
  ["concurrent", "Requests at once", "no limit", "1"], ["gpu_seconds", "GPU-seconds per second", "no limit", "any"],
];

export function apiKeys(room) {
  const turn = new AbortController();
  const list = h("div", { class: "room" });
  const read = async (signal = turn.signal) => morph(list, ...shown(await get("console/keys", { signal })));
  const failed = (error) => turn.signal.aborted || fill(list, trouble(error));
  const reread = () => read().catch(failed);
  const revoking = revocation(reread, turn.signal);
  list.addEventListener("click", ({ target }) => target.dataset.revoke && revoking.open(target.dataset));
  fill(room, h("h1", "API keys and limits"), creation(reread, turn.signal), list, revoking.dialog);
  const stop = every(REFRESH_MS, read, failed);
  return () => {
    turn.abort();
    stop();
  };
}

function shown({ required, follows_store: follows, data }) {
  const tenants = Map.groupBy ? Map.groupBy(data, (each) => each.tenant) : grouped(data);
  return [
    h("p", { class: "note", "data-state": required ? "" : "warn" }, remark(required, follows, data, tenants)),
    ...[...tenants].map(([tenant, keys]) => card(tenant, table(`Keys of ${tenant}`, ["Key", "Note", num("Weight"), num("Requests/s"), num("Burst"), num("At once"), num("GPU-s/s"), "Made", "From", "End"], keys.map((each) => [
      h("code", each.id), each.note || "–", num(number(each.weight)), limit(each.rate), limit(each.burst), limit(each.concurrent), limit(each.gpu_seconds),
      each.created ? ago(each.created) : "–", badge(each.source, each.source === "file" ? "info" : ""),
      each.source === "file" ? h("small", "ends with its line in the file")
        : h("button", { type: "button", class: "quiet small", "data-revoke": each.id, "data-tenant": tenant, "aria-label": `Revoke ${each.id} of ${tenant}` }, "Revoke")])))),
    data.length ? h("p", { class: "faint" }, "A key is named by the first digits of its SHA-256.") : null,
  ].filter(Boolean);
}

function remark(required, follows, data, tenants) {
  if (!required) return "Requests need no key at this gateway. With OMNIBUS_GATEWAY_KEYS=true they need one of the store.";
  const keys = `Requests have to show one of ${several(data.length, "key")} of ${several(tenants.size, "tenant")}. Limits hold over all gateways together.`;
  return follows ? keys : "Requests have to show a key of the file. Those of the store are in force at gateways with OMNIBUS_GATEWAY_KEYS=true.";
}

function limit(value) {
  return num(value ? number(value) : "no limit");
}

function grouped(data) {
  const found = new Map();
  for (const each of data) found.set(each.tenant, [...(found.get(each.tenant) ?? []), each]);
  return found;
}

// A new key

function creation(reread, signal) {
  const made = h("div", { role: "status" });
  const button = h("button", { type: "submit" }, "Create key");
  const form = h("form", { class: "room", onsubmit: async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const response = await ask("console/keys", { method: "POST", json: wanted(form), signal });
      fill(made, once(await response.json(), () => fill(made)));
      form.reset();
      made.querySelector("input").select();
      await reread();
    } catch (error) {
      if (!signal.aborted) fill(made, trouble(error));
    } finally {
      button.disabled = false;
    }
  } },
    h("div", { class: "fields" },
      h("label", "Tenant", h("input", { name: "tenant", required: true, maxlength: 64, autocomplete: "off", spellcheck: "false" })),
      h("label", "Note", h("input", { name: "note", maxlength: 200, autocomplete: "off" })),
      LIMITS.map(([name, label, placeholder, step]) => h("label", label, h("input", { name, type: "number", min: 0, step, placeholder })))),
    h("p", { class: "row" }, button, h("small", "Keys of one tenant share its place in the queue; limits are those of each key.")));
  return h("details", { class: "card" }, h("summary", "New key"), h("div", { class: "room" }, form, made));
}

/** What people filled in; the gateway checks it. */
function wanted(form) {
  const filled = [...new FormData(form)].filter(([, value]) => value.trim());
  return Object.fromEntries(filled.map(([name, value]) => [name, LIMITS.some(([each]) => each === name) ? Number(value) : value.trim()]));
}

function once({ key, id, tenant }, done) {
  const field = h("input", { readonly: true, value: key, size: 50, "aria-label": `The new key of ${tenant}`, spellcheck: "false" });
  const copied = h("small");
  const copy = async () => {
    field.select();
    await navigator.clipboard?.writeText(key).then(() => say(copied, "copied"), () => say(copied, "the browser does not allow it: copy it by hand"));
  };
  return h("div", { class: "note room" }, h("p", h("b", "Shown only now: "), `the key ${id} of ${tenant}. It is not stored, and cannot be read later.`),
    h("p", { class: "row" }, field, navigator.clipboard ? h("button", { type: "button", class: "quiet", onclick: copy }, "Copy") : null, h("button", { type: "button", class: "quiet", onclick: done }, "Done"), copied));
}

// Its end

function revocation(reread, signal) {
  let id = "";
  const title = h("h2", { id: "revoke-title" });
  const wrong = h("div");
  const revoke = h("button", { type: "submit" }, "Revoke");
  const dialog = h("dialog", { "aria-labelledby": "revoke-title" }, h("form", { onsubmit: async (event) => {
    event.preventDefault();
    revoke.disabled = true;
    try {
      await ask(`console/keys/${id}`, { method: "DELETE", signal });
      dialog.close();
      await reread();
    } catch (error) {
      if (!signal.aborted) fill(wrong, trouble(error));
    } finally {
      revoke.disabled = false;
    }
  } }, title, h("p", "Requests that show it are refused from now on, at all gateways. It cannot be undone."), wrong,
    h("p", { class: "row end" }, h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"), revoke)));
  return {
    dialog,
    open({ revoke: key, tenant }) {
      id = key;
      say(title, `Revoke ${key} of ${tenant}?`);
      fill(wrong);
      dialog.showModal();
    },
  };
}
