// Numbers as people read them.

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 ? value.toFixed(2) : value < 1000 ? value.toFixed(1) : whole(value);
}

export function whole(value) {
  return value < 100000 ? Math.round(value).toString() : `${Math.round(value / 1000)}k`;
}

export function number(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(4))) : "–";
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  return value < 1 ? `${Math.round(value * 1000)} ms` : value < 10 ? `${value.toFixed(2)} s` : `${Math.round(value)} s`;
}

export function part(value) {
  return typeof value === "number" ? `${Math.round(value * 100)} %` : "–";
}

export function bytes(value) {
  if (value < 1024) return `${value} B`;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    value /= 1024;
    if (value < 1024 || unit === "GiB") return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${unit}`;
  }
}

export function ago(moment, now = Date.now() / 1000) {
  const past = Math.max(0, now - moment);
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]])
    if (past >= 2 * size) return `${Math.round(past / size)} ${unit} ago`;
  return `${Math.round(past)} s ago`;
}

export function clock(moment) {
  return new Date(moment * 1000).toLocaleTimeString([], { hour12: false });
}

export function several(count, what) {
  return `${count} ${what}${count === 1 ? "" : "s"}`;
}

/** A type of request for people: `vision+thinker` becomes `vision + thinker`. */
export function kind(name) {
  return name ? name.split("+").join(" + ") : "refused early";
}
