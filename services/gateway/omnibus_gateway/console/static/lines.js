// Lines between boxes, drawn behind them in an SVG that is as large as what holds the boxes.

import { fill, s } from "./dom.js";

/** A layer of lines over `room`, which is positioned. `draw(box)` returns paths; it runs again when sizes change. */
export function layer(room, draw) {
  const svg = s("svg", { class: "lines", "aria-hidden": "true", focusable: "false" });
  room.prepend(svg);
  const again = () => {
    if (!room.isConnected) return;
    svg.setAttribute("width", room.scrollWidth);
    svg.setAttribute("height", room.scrollHeight);
    fill(svg, draw(place));
  };
  const watch = new ResizeObserver(again);
  watch.observe(room);
  for (const child of room.children) if (child !== svg) watch.observe(child);
  return { again, close: () => watch.disconnect() };

  function place(element) {
    let [x, y] = [0, 0];
    for (let each = element; each && each !== room; each = each.offsetParent) {
      x += each.offsetLeft;
      y += each.offsetTop;
    }
    const [width, height] = [element.offsetWidth, element.offsetHeight];
    return { left: x, right: x + width, top: y, bottom: y + height, x: x + width / 2, y: y + height / 2 };
  }
}

/** The `d` of a line through points `[x, y]`: level at each of them, in between a soft S. */
export function through(points) {
  const [[x, y], ...rest] = points;
  let [at, up] = [x, y];
  let d = `M${round(x)} ${round(y)}`;
  for (const [nx, ny] of rest) {
    const half = (nx - at) / 2;
    d += up === ny ? `H${round(nx)}` : `C${round(at + half)} ${round(up)} ${round(nx - half)} ${round(ny)} ${round(nx)} ${round(ny)}`;
    [at, up] = [nx, ny];
  }
  return d;
}

/** Where a line leaves and enters `count` that share a side: the `index`th, around `y`. */
export function port(y, index, count, gap = 9) {
  return y + (index - (count - 1) / 2) * gap;
}

function round(value) {
  return Math.round(value * 10) / 10;
}
