// What is so now: the gateway tells each state as an event, and the plan is read again when it is another one.

import { ask, events, get } from "./api.js";

const WAITS = [0.5, 1, 2, 4, 8, 15];

/** `now` is the last state, `plan` the last answer of `/v1/console/plan`; null before the first. */
export const state = { now: null, plan: null, link: "connecting", problem: null };

const followers = new Set();
let turn = null;
let known = "";

/** Call `tell` for each change, and at once; returns what ends that. */
export function follow(tell) {
  followers.add(tell);
  tell(state);
  return () => followers.delete(tell);
}

function told() {
  for (const tell of followers) tell(state);
}

/** Begin, or begin anew with other keys. */
export function connect() {
  turn?.abort();
  turn = new AbortController();
  known = "";
  void keep(turn.signal);
}

async function keep(signal) {
  for (let tries = 0; !signal.aborted; tries++) {
    try {
      const response = await ask("console/events", { signal });
      for await (const now of events(response)) {
        tries = 0;
        Object.assign(state, { now, link: now.away.length ? "away" : "live", problem: null });
        await readPlan(now, signal);
        told();
      }
      state.problem = null;
    } catch (error) {
      if (signal.aborted) return;
      state.problem = error;
    }
    state.link = state.problem && [401, 403].includes(state.problem.status) ? "closed" : "lost";
    told();
    if (state.link === "closed") return;
    await pause(WAITS[Math.min(tries, WAITS.length - 1)], signal);
  }
}

async function readPlan(now, signal) {
  const mark = JSON.stringify([now.epoch, now.staged, now.pin, now.problems]);
  if (mark === known) return;
  state.plan = await get("console/plan", { signal });
  known = mark;
}

function pause(seconds, signal) {
  return new Promise((resolve) => {
    setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", resolve, { once: true });
  });
}

// A page that nobody sees needs no news.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) turn?.abort();
  else connect();
});
