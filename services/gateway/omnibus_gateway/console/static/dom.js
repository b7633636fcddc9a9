// Elements. What others wrote becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("p", { class: "x", onclick: f }, "text", child, [more])`. Nothing, false and null are left out. */
export function h(tag, ...rest) {
  return filled(document.createElement(tag), rest);
}

/** The same for SVG. */
export function s(tag, ...rest) {
  return filled(document.createElementNS(SVG, tag), rest);
}

function filled(element, [first, ...others]) {
  const named = first?.constructor === Object;
  const [attributes, children] = named ? [first, others] : [{}, [first, ...others]];
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...kept(children));
  return element;
}

function kept(children) {
  return children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false);
}

/** Replace all that is in `element`. */
export function fill(element, ...children) {
  element.replaceChildren(...kept(children));
  return element;
}

/** Set its text, if that is another one: readers of screens hear what changes. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
  return element;
}

/** A table. `head` and `rows` are arrays of cells: text, elements, or `num(text)`. */
export function table(caption, head, rows) {
  const cell = (tag, each, more) =>
    each?.num !== undefined ? h(tag, { ...more, class: "num" }, each.num) : h(tag, more, each);
  // On phones each row is a block, whose cells show the names of their columns. Roles stay with whatever display.
  const names = head.map((each) => (each?.num ?? each)?.textContent ?? each?.num ?? each);
  return wide(caption,
    h("table", { role: "table" }, h("caption", { class: "unseen" }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head.map((each) => cell("th", each, { scope: "col", role: "columnheader" })))),
      h("tbody", { role: "rowgroup" }, rows.map((row) =>
        h("tr", { role: "row" }, row.map((each, index) => (index ? cell("td", each, { role: "cell", "data-name": names[index] }) : cell("th", each, { scope: "row", role: "rowheader" }))))))));
}

export const num = (text) => ({ num: text });

/** A bar from 0 to 1, with a mark where the plan has it. */
export function meter(label, kind = "load") {
  const full = h("span", { class: "full" });
  const mark = h("span", { class: "mark", hidden: true });
  const bar = h("div", { class: `meter ${kind}`, role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 },
    full, mark);
  return {
    bar,
    set(value, planned) {
      const known = typeof value === "number";
      const part = Math.max(0, Math.min(1, known ? value : 0));
      full.style.setProperty("width", `${(part * 100).toFixed(1)}%`);
      bar.classList.toggle("hot", kind === "load" && part > 0.9);
      bar.setAttribute("aria-valuenow", Math.round(part * 100));
      const told = known ? `${Math.round(part * 100)} %` : "not known";
      const meant = typeof planned === "number";
      bar.setAttribute("aria-valuetext", meant ? `${told}, ${Math.round(planned * 100)} % planned` : told);
      mark.hidden = !meant;
      if (meant) mark.style.setProperty("left", `${Math.min(100, planned * 100).toFixed(1)}%`);
    },
  };
}

export function badge(word, kind = "") {
  return h("span", { class: `badge ${kind}` }, word);
}

/** A part of a page with a heading. */
export function card(title, ...children) {
  return h("section", { class: "card" }, h("h2", title), children);
}

/** What may be wider than the page and is then moved by hand, or by keyboard. */
export function wide(label, ...children) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, children);
}

/** Names and values; a pair that is nothing is left out. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => h("div", h("dt", name), h("dd", value))));
}

/** A link to the page of an invocation, with its id unless other `words` are given. */
export function about(id, words, beside = "") {
  const more = beside && `?with=${encodeURIComponent(beside)}`;
  return h("a", { href: `#/invocations/${encodeURIComponent(id)}${more}` }, words ?? h("code", id));
}

/** What went wrong, in words. */
export function trouble(error) {
  return h("p", { class: "trouble", role: "alert" }, error.message || String(error));
}

/** Make what is in `element` like `children` and keep what is alike, so that focus and scroll positions stay. */
export function morph(element, ...children) {
  const wanted = kept(children).map((each) => (each instanceof Node ? each : document.createTextNode(each)));
  const there = [...element.childNodes];
  wanted.forEach((each, index) => {
    const old = there[index];
    if (!old) element.append(each);
    else if (old.nodeType === each.nodeType && old.nodeName === each.nodeName) alike(old, each);
    else old.replaceWith(each);
  });
  for (const old of there.slice(wanted.length)) old.remove();
}

function alike(old, each) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== each.data) old.data = each.data;
    return;
  }
  for (const { name, value } of each.attributes) {
    if (old.getAttribute(name) === value) continue;
    if (name === "style") old.style.cssText = value; // the policy forbids the attribute, not the property
    else old.setAttribute(name, value);
  }
  // What somebody opened stays open.
  for (const { name } of [...old.attributes]) if (!each.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  morph(old, ...each.childNodes);
}
