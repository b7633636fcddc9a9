// A recorded invocation node by node: what each got and gave, beside another invocation's, and a fork from there.

import { get } from "./api.js";
import { pairs } from "./compare.js";
import { about, badge, card, facts, fill, h, trouble } from "./dom.js";
import { content, equal, unknown } from "./edges.js";
import { forkForm } from "./fork.js";
import { seconds } from "./format.js";

const PLAYED = "record-of-"; // begins the name of an executor that stands for a record
const MOVES = { ArrowRight: (at, count) => (at + 1) % count, ArrowLeft: (at, count) => (at + count - 1) % count, Home: () => 0, End: (_, count) => count - 1 };

/** The view of `told`, a waterfall. `compare(id)` lays another invocation beside it, or none; `forked(id)` is called when a fork has ended. */
export function stepView(told, signal, forked) {
  const { id } = told.summary;
  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Nodes" });
  const panel = h("div", { class: "room", role: "tabpanel", id: "step", tabindex: 0 });
  const note = h("div", { role: "status" });
  const element = card("Step by step", note, tabs, panel);
  let [own, other, otherId, at, turn] = [null, null, "", 0, new AbortController()];
  let addresses = [];
  let refocus = false; // the form that a fork was sent with is gone once it is shown
  signal.addEventListener("abort", clear);
  tabs.addEventListener("keydown", (event) => {
    const move = MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    choose(move(at, tabs.children.length));
    tabs.children[at].focus();
  });
  void read();
  return { element, compare };

  async function read() {
    try {
      own = await get(steps(id), { signal });
      show();
    } catch (error) {
      if (!signal.aborted) fill(panel, trouble(error));
    }
  }

  async function compare(beside) {
    otherId = beside;
    try {
      const found = beside ? await get(steps(beside), { signal }) : null;
      if (beside !== otherId) return;
      other = found;
      fill(note, beside && h("p", { class: "row" }, h("span", "Beside ", about(beside)), h("button", { type: "button", class: "quiet small", onclick: () => compare("") }, "Close")));
      if (own) show();
    } catch (error) {
      if (!signal.aborted) fill(note, trouble(error));
    }
  }

  function show() {
    const rows = pairs(own, other ?? []);
    at = Math.min(at, rows.length - 1);
    fill(tabs, rows.map(([name, one, two], index) => h("button", {
      type: "button", role: "tab", id: `step-${index}`, "aria-controls": "step", class: "quiet", onclick: () => choose(index),
    }, `${index + 1}. ${name}`, other && !alike(one, two) ? badge("differs", "bad") : null)));
    choose(at);
    if (refocus) tabs.children[at].focus();
    refocus = false;
  }

  function sendOn(fork) {
    refocus = true;
    forked(fork);
  }

  function choose(index) {
    at = index;
    for (const [place, tab] of [...tabs.children].entries()) {
      tab.setAttribute("aria-selected", String(place === at));
      tab.tabIndex = place === at ? 0 : -1;
    }
    clear();
    turn = new AbortController();
    panel.setAttribute("aria-labelledby", `step-${at}`);
    const [, one, two] = pairs(own, other ?? [])[at];
    const sides = other ? [side(one, id, "This one"), side(two, otherId, "The other one")] : [side(one, id, "")];
    fill(panel, h("div", { class: "sides" }, sides.map((each) => each.head)),
      values("Inputs", "inputs", sides), values("Outputs", "outputs", sides), one ? forkForm(told, one, signal, sendOn) : null);
  }

  /** What one invocation has of the node. */
  function side(step, of, title) {
    const head = h("div", title ? h("h3", title) : null, step ? facts([
      ["Executor", h("code", played(step) ? "played from the record" : step.executor || "–")], ["Option", step.option || "–"], ["State", step.state], ["Seconds", seconds(step.seconds)]])
      : h("p", { class: "faint" }, "Not on its path."));
    return { head, step, of };
  }

  function values(title, which, sides) {
    const names = [...new Set(sides.flatMap(({ step }) => step?.[which].map((each) => each.name) ?? []))];
    if (!names.length) return null;
    return h("section", { class: "room values", "aria-label": title }, h("h3", title), names.map((name) => {
      const found = sides.map(({ step }) => step?.[which].find((each) => each.name === name));
      return h("div", h("h4", name, " ", other && found[0] && found[1] ? mark(which, sides, found) : null),
        h("div", { class: "sides" }, found.map((value, index) => h("div", value ? shown(value, which, sides[index]) : h("p", { class: "faint" }, "–")))));
    }));
  }

  function shown(value, which, { step, of }) {
    if (which === "outputs" && played(step)) return h("p", { class: "faint" }, "played as before");
    if (value.source) return h("p", { class: "faint" }, `from ${value.source.replace(/(\d+)\./g, (_, node) => `${(of === id ? own : other)[node].component}: `)}`);
    const path = `${steps(of)}/${step.node}/${which}/${encodeURIComponent(value.name)}`;
    return content(value, path, (address) => addresses.push(address), turn.signal);
  }

  function clear() {
    turn.abort();
    addresses.forEach((each) => URL.revokeObjectURL(each));
    addresses = [];
  }
}

function steps(id) {
  return `invocations/${encodeURIComponent(id)}/steps`;
}

function played(step) {
  return step?.executor.startsWith(PLAYED);
}

function mark(which, sides, [one, two]) {
  if (one.source && two.source) return null;
  const again = which === "outputs" && sides.some(({ step }) => played(step));
  if (!again && unknown(one) && unknown(two)) return null;
  return again || equal(one, two) ? badge("same", "good") : badge("differs", "bad");
}

/** Whether a node got the same literals and gave the same in both. */
function alike(one, two) {
  if (!one || !two) return false;
  const same = (ones, others) => ones.every((each) => {
    const match = others.find((value) => value.name === each.name);
    return each.source || (match && equal(each, match));
  });
  return same(one.inputs, two.inputs) && (played(one) || played(two) || same(one.outputs, two.outputs));
}
