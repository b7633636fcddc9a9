// Dead letters: inputs that crashed or failed an engine.

import { ask, events, get } from "./api.js";
import { about, badge, card, facts, fill, h, num, table, trouble } from "./dom.js";
import { ago, clock, kind, seconds } from "./format.js";
import { pathFact } from "./paths.js";

const PAGE = 50;

export function deadLetters(room) {
  const turn = new AbortController();
  const list = h("div", { "aria-live": "polite" });
  const more = h("button", { type: "button", class: "quiet", hidden: true }, "Older ones");
  fill(room, h("h1", "Dead letters"), h("p", { class: "lead faint" }, "Requests whose input crashed an executor, or failed in an engine because of a defect. Errors of clients are not listed."),
    h("section", { class: "card" }, list, more));
  let found = [];
  let next = 0;

  async function read() {
    more.disabled = true;
    try {
      const page = await get(`console/deadletters?limit=${PAGE}${next ? `&before=${next}` : ""}`, { signal: turn.signal });
      found = [...found, ...page.data];
      next = page.next;
      more.hidden = !next;
      fill(list, found.length ? rows(found) : h("p", { class: "empty" }, "There are none."));
    } catch (error) {
      if (!turn.signal.aborted) fill(list, trouble(error));
    } finally {
      more.disabled = false;
    }
  }

  more.addEventListener("click", read);
  void read();
  return () => turn.abort();
}

function rows(found) {
  return table("Dead letters, newest first", ["Invocation", "When", "Model", "Reason", "Stage", "Problem"], found.map((each) => [
    h("a", { href: `#/deadletters/${encodeURIComponent(each.id)}` }, h("code", each.id)), ago(each.at), each.model,
    badge(each.reason, "bad"), each.component || "–", h("span", h("b", each.problem.code), ` ${each.problem.message.slice(0, 160)}`)]));
}

export function deadLetter(room, id) {
  const turn = new AbortController();
  void read();

  async function read() {
    try {
      const each = await get(`console/deadletters/${encodeURIComponent(id)}`, { signal: turn.signal });
      fill(room, h("header", { class: "head" }, crumb(), h("h1", h("code", each.id), " ", badge(each.reason, "bad")), details(each)),
        h("p", { class: "note", "data-state": "bad" }, h("b", each.problem.code), ` ${each.problem.message}`), retry(each, turn.signal),
        each.moves.length ? card("Attempts that were given up", table("Moves", [num("Attempt"), "Why", "Executor", "Message"], each.moves.map((move) => [
          num(String(move.attempt)), badge(move.reason, "warn"), move.executor ?? "–", move.message ?? ""]))) : null);
    } catch (error) {
      if (!turn.signal.aborted) fill(room, crumb(), h("h1", h("code", id)), trouble(error));
    }
  }
  return () => turn.abort();
}

function crumb() {
  return h("p", { class: "crumb" }, h("a", { href: "#/deadletters" }, "Dead letters"));
}

function details(each) {
  return facts([
    ["When", `${clock(each.at)}, ${ago(each.at)}`], ["After", seconds(each.at - each.created)], ["Model", each.model], each.app ? ["App", each.app] : null,
    ["Type", kind(each.type)], ["Path", pathFact(each.model, each.path)], ["Stage", each.component || "–"], ["Attempts", String(each.attempts)],
    each.executors_lost.length ? ["Executors lost", `${each.executors_lost.length}: ${each.executors_lost.join(", ")}`] : null,
    ["Record", about(each.id, "the invocation")], each.replay_of ? ["Replay of", about(each.replay_of)] : null,
  ]);
}

/** A replay of its record; one that succeeds does not remove the letter, because it may be needed for a report. */
function retry(each, signal) {
  const result = h("div", { role: "status" });
  const button = h("button", { type: "button", onclick: async () => {
    button.disabled = true;
    fill(result, badge("sending", "info"));
    try {
      const response = await ask(`console/replay/${encodeURIComponent(each.id)}`, { method: "POST", signal });
      for await (const step of events(response)) fill(result, outcome(step));
    } catch (error) {
      if (!signal.aborted) fill(result, trouble(error));
    } finally {
      button.disabled = false;
    }
  } }, "Try again");
  return h("div", { class: "row" }, button, h("small", `As a replay: the letter stays until omnibus deadletters remove ${each.id}.`), result);
}

function outcome(step) {
  if (step.status === "running") return [badge("running", "info"), " as ", about(step.id)];
  if (step.status === "failed") return [badge("failed again", "bad"), ` ${step.problem.code}: ${step.problem.message}`];
  return [badge("succeeded", "good"), " ", about(step.id)];
}

