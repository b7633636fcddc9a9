// Paths of requests, with what their letters stand for: options of the plan, and the components that these run.

import { h, say } from "./dom.js";
import { follow, state } from "./state.js";

/** Options of `path` that the plan of `model` has, each as "E runs vision". */
function optionWords(model, path) {
  const options = state.plan?.plan?.models[model]?.options ?? {};
  return path.split(">").filter((name) => options[name]).map((name) => `${name} runs ${options[name].components.join(" + ")}`);
}

/** A path and its meaning, once the plan is known. */
export function pathFact(model, path) {
  const words = h("small");
  let stop = () => {};
  stop = follow(({ plan }) => {
    if (!plan) return;
    const meaning = optionWords(model, path).join(", then ");
    if (meaning) say(words, ` (${meaning})`);
    stop();
  });
  return h("span", h("code", path), words);
}

/** The meaning of all letters in the paths of `rows`, each with a `model` and a `path`. */
export function pathLegend(rows) {
  const models = {};
  for (const { model, path } of rows) (models[model] ??= new Set(), optionWords(model, path).forEach((words) => models[model].add(words)));
  const known = Object.entries(models).filter(([, words]) => words.size);
  if (!known.length) return null;
  return h("p", { class: "faint" }, "A path names the options that a request goes through. ",
    known.map(([model, words]) => [h("b", model), `: ${[...words].sort().join(", ")}. `]));
}
