// The last seconds of a conversation as two lines: when the user spoke, and when the model was heard.

import { fill, h, s, say } from "./dom.js";
import { seconds } from "./format.js";

const [WIDTH, HEIGHT, SPAN] = [600, 60, 20_000]; // SPAN: milliseconds that are shown
const LANES = { you: 4, model: 34 };
const [LANE, THIN] = [22, 6];

/** `draw(session)` shows what is known now. */
export function timeline() {
  const svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const times = h("div", { class: "times", "aria-hidden": "true" });
  const figure = h("div", { class: "lanes" }, h("div", { class: "who", "aria-hidden": "true" }, h("span", "You"), h("span", "Model")),
    h("div", svg, times), h("p", { class: "legend" }, key("spoken", "detected speech"), key("thought", "until the first audio"), key("heard", "heard"), key("stopped", "interruption")));
  return {
    figure,
    draw({ turns, now }) {
      const begin = Math.max(0, now - SPAN);
      const x = (ms) => ((Math.max(begin, ms) - begin) / SPAN) * WIDTH;
      const bar = (kind, y, high, from, to) => to >= begin && s("rect", { class: kind, x: x(from), y, width: Math.max(1.5, x(to) - x(from)), height: high, rx: 2 });
      const all = turns.flatMap(({ who, from, to, asked, cut, open }) => {
        const end = to ?? now;
        if (who === "you") return [bar("spoken", LANES.you, LANE, from, end)];
        const thought = (from !== null || open) && bar("thought", LANES.model + (LANE - THIN) / 2, THIN, asked, from ?? end);
        return [thought, from !== null && bar("heard", LANES.model, LANE, from, end), cut && to !== null && bar("stopped", 0, HEIGHT, to, to)];
      });
      fill(svg, all);
      const cut = turns.filter((turn) => turn.cut).length;
      svg.setAttribute("aria-label", `${seconds(now / 1000)} of conversation: ${count(turns, "you")} turns of yours, ${count(turns, "model")} answers, ${cut} interrupted`);
      fill(times, [0, 0.5, 1].map((part) => say(h("span"), `${((begin + part * SPAN) / 1000).toFixed(0)} s`)));
    },
  };
}

function count(turns, who) {
  return turns.filter((turn) => turn.who === who).length;
}

function key(kind, words) {
  return h("span", h("i", { class: `key ${kind}` }), ` ${words}`);
}
