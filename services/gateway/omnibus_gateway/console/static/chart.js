// A chart of lines over time. Values are read by pointer or by arrow keys, and spoken as text.

import { fill, h, s } from "./dom.js";

const [WIDTH, HEIGHT, TOP, BOTTOM] = [600, 150, 8, 20];
const TICKS = 3; // lines across, at most

/**
 * `series` are `{ name, values, line }`: values by bucket, null for none, and the number of a colour. `format` writes a
 * value, `pick(index)` is called for a bucket that somebody chooses. `counts` says that values are whole numbers.
 */
export function chart({ title, starts, step, series, format, pick, counts = false }) {
  const drawn = series.filter(({ values }) => values.some((each) => each !== null));
  const { most, labels } = axis(Math.max(0, ...drawn.flatMap(({ values }) => values.map((each) => each ?? 0))), format, counts);
  const last = Math.max(1, starts.length - 1);
  const x = (index) => (WIDTH * index) / last;
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
  const cursor = s("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    labels.map((_, index) => (most * index) / (labels.length - 1)).map((value) => s("line", { class: "rule", x1: 0, x2: WIDTH, y1: y(value), y2: y(value) })),
    drawn.map(({ values, line }) => s("path", { class: "series", style: { "--line": `var(--line-${line})` }, d: path(values, x, y) })), cursor);
  const readout = h("p", { class: "readout" });
  const figure = h("div", { class: "plot", tabindex: 0, role: "slider", "aria-label": title, "aria-valuemin": 0, "aria-valuemax": last },
    svg, h("div", { class: "scale", "aria-hidden": "true" }, labels.map((label) => h("span", label))),
    h("div", { class: "times", "aria-hidden": "true" }, [0, 0.5, 1].map((part) => h("span", moment(starts[Math.round(last * part)], step)))));

  let at = starts.length - 1;
  const show = (index) => {
    at = Math.max(0, Math.min(starts.length - 1, index));
    const values = series.map(({ name, values: own, line }) => [line, name, own[at] === null ? "–" : format(own[at])]);
    fill(readout, h("b", moment(starts[at], step)), values.map(([line, name, text]) => h("span", h("i", { class: "swatch", style: { background: `var(--line-${line})` } }), ` ${name} `, h("b", text))));
    figure.setAttribute("aria-valuenow", at);
    figure.setAttribute("aria-valuetext", `${moment(starts[at], step)}: ${values.map(([, name, text]) => `${name} ${text}`).join(", ")}`);
    cursor.setAttribute("x1", x(at));
    cursor.setAttribute("x2", x(at));
  };
  const near = (event) => Math.round((last * (event.clientX - svg.getBoundingClientRect().left)) / svg.getBoundingClientRect().width);
  figure.addEventListener("pointermove", (event) => (cursor.setAttribute("visibility", "visible"), show(near(event))));
  figure.addEventListener("pointerleave", () => (cursor.setAttribute("visibility", "hidden"), show(starts.length - 1)));
  figure.addEventListener("focus", () => cursor.setAttribute("visibility", "visible"));
  figure.addEventListener("blur", () => cursor.setAttribute("visibility", "hidden"));
  figure.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last };
    if (event.key in moves) {
      event.preventDefault();
      show(moves[event.key]);
    } else if (event.key === "Enter") pick?.(at);
  });
  if (pick) figure.addEventListener("click", (event) => pick(near(event)));
  show(at);
  return h("section", { class: "card chart", "aria-label": title }, h("h2", title), figure, readout);
}

/** A small line without numbers, as wide as the cell that it is in. */
export function sparkline(values, line) {
  const most = Math.max(1e-9, ...values.map((each) => each ?? 0));
  const d = path(values, (index) => (100 * index) / Math.max(1, values.length - 1), (value) => 22 - (20 * value) / most);
  return s("svg", { class: "sparkline", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }, s("path", { class: "series", style: { "--line": `var(--line-${line})` }, d }));
}

/** A line through all values; a gap where there is none. A value between two gaps is a short stroke. */
function path(values, x, y) {
  let pen = false;
  return values.map((value, index) => {
    if (value === null) return (pen = false, "");
    const point = `${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    const alone = !pen && (values[index + 1] ?? null) === null;
    const text = pen ? `L${point}` : `M${point}${alone ? "h2" : ""}`;
    pen = true;
    return text;
  }).join("");
}

/** Where the axis of values up to `value` ends, and its labels from there down to 0: as many as are all different. */
export function axis(value, format, counts = false) {
  const most = counts && value <= TICKS ? Math.max(1, Math.ceil(value)) : ceiling(value);
  for (let ticks = counts ? Math.min(TICKS, most) : TICKS; ; ticks--) {
    const labels = [...Array(ticks + 1)].map((_, index) => format((most * (ticks - index)) / ticks).replace(/\.0+(?= |$)/, ""));
    if (ticks === 1 || new Set(labels).size === labels.length) return { most, labels };
  }
}

/** The next number above `value` of those that divide well by `TICKS`. */
function ceiling(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1.2, 1.5, 3, 6, 9, 12].map((each) => each * unit).find((each) => each >= value);
}

function moment(start, step) {
  const when = new Date(start * 1000);
  const time = when.toLocaleTimeString([], { hour12: false, ...(step >= 60 ? { hour: "2-digit", minute: "2-digit" } : {}) });
  return step < 1200 ? time : `${when.toLocaleDateString([], { month: "short", day: "numeric" })} ${time}`;
}
