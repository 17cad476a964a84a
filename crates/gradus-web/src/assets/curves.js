// Curves of runs: one large metric, and all metrics as small panels. The pointer and the arrow keys show values, a drag zooms, and a
// table below has the same numbers. Long curves arrive as averages; zooming fetches the values of the range. While a run is active, its
// curves are refreshed. The address stores all settings, so a link reproduces the view.
"use strict";

const runs = [...document.querySelectorAll("[data-run]")].map((own) => ({ id: own.dataset.run, name: own.textContent, color: own.dataset.color, curves: {} }));
const metric = document.getElementById("metric");
const axis = document.getElementById("axis");
const smooth = document.getElementById("smooth");
const log = document.getElementById("log");
const whole = document.getElementById("whole");
const plot = document.getElementById("plot");
const legend = document.getElementById("legend");
const values = document.getElementById("values");
const averages = document.getElementById("averages");
const panels = document.getElementById("panels");
const others = document.getElementById("others");
const find = document.getElementById("find");
const tiles = document.getElementById("tiles");
let zoom = null;
/** Places on the axis: the one that the arrow keys have reached, the pointer's, and the one where a drag began. They are kept when the curves
are redrawn. */
let reached = null;
let pointed = null;
let begun = null;
/** Reads and marks places on the large plot. Null if it has no values. */
let view = null;
/** Metric that is shown unless the reader chooses another one. */
let usual = "";

/** The most important metrics, each with its possible names in order of preference. */
const FIRST = [
  ["Reward", ["eval_reward", "reward", "objective/scores"]],
  ["Accuracy", ["eval_rewards/accuracies", "rewards/accuracies", "eval_accuracy", "accuracy"]],
  ["KL", ["eval_kl", "objective/kl", "kl"]],
  ["Length", ["eval_length", "completions/mean_length"]],
  ["Loss", ["eval_loss", "loss"]],
];
const FURTHER = ["entropy", "grad_norm", "learning_rate"];

// Settings from the address.
const asked = new URLSearchParams(location.search);
let wanted = asked.get("metric");
if (["step", "num_examples", "num_tokens"].includes(asked.get("axis"))) axis.value = asked.get("axis");
if (Number(asked.get("smooth")) > 0) smooth.value = asked.get("smooth");
log.checked = asked.get("log") === "1";
find.value = asked.get("find") ?? "";
others.parentElement.open = asked.get("all") === "1" || find.value !== "";
if (asked.has("from") && asked.has("to") && Number(asked.get("from")) < Number(asked.get("to"))) zoom = [Number(asked.get("from")), Number(asked.get("to"))];
whole.hidden = !zoom;

/** Stores the settings in the address. */
function remember() {
  const now = new URLSearchParams(location.search);
  const set = (name, value) => (value ? now.set(name, value) : now.delete(name));
  set("metric", metric.value !== usual ? metric.value : "");
  set("axis", axis.value !== "step" ? axis.value : "");
  set("smooth", Number(smooth.value) > 0 ? smooth.value : "");
  set("log", log.checked ? "1" : "");
  set("find", find.value.trim());
  set("all", others.parentElement.open && !find.value.trim() ? "1" : "");
  set("from", zoom ? Number(zoom[0].toFixed(2)) : "");
  set("to", zoom ? Number(zoom[1].toFixed(2)) : "");
  const address = `${location.pathname}?${now.toString().replaceAll("%2F", "/")}`;
  if (address !== location.pathname + location.search) history.replaceState(null, "", address);
}

/** Creates an SVG element. */
function shape(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Formats a number with its significant digits. The server sends numbers that are not finite as null. */
const short = (value, digits = 4) => (value === null ? "not finite" : value === 0 ? "0" : Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 ? String(Number(value.toPrecision(digits))) : value.toExponential(2));

/** Creates an element with the name of a metric, which may break after `/` and `_`. */
function named(tag, className, text) {
  const made = element(tag, className);
  visible(text).split(/(?<=[/_])/).forEach((part, i) => made.append(...(i ? [element("wbr")] : []), part));
  return made;
}

/** Returns the position of a step on the axis, interpolated between steps that report it, or null if it is unknown. */
function place(run, step) {
  // At the start, no example and no token was read yet.
  if (axis.value === "step" || step === 0) return step;
  const seen = run.curves[axis.value];
  if (!seen?.length) return null;
  const after = seen.findIndex(([at]) => at >= step);
  if (after < 0) return step > seen[seen.length - 1][0] ? null : seen[seen.length - 1][1];
  const [at, count] = seen[after];
  const [from, before] = after > 0 ? seen[after - 1] : [0, 0];
  return at === from ? count : before + ((step - from) / (at - from)) * (count - before);
}

/** Returns the curve of a run: the detailed points of the zoom if they were fetched, otherwise the whole curve. */
const curve = (run, key) => (zoom && run.detail?.metric === key ? run.detail.points : run.curves[key]);

/** Returns whether a run has a finite value of this metric after its start. */
const isTrained = (run, key) => (run.curves[key] ?? []).some(([step, value]) => step > 0 && value !== null);

/** Returns the points of a run within the zoom, raw and smoothed by an exponential moving average with bias correction. */
function points(run, key) {
  const keep = Number(smooth.value);
  let [sum, weight] = [0, 0];
  const raw = [];
  const smoothed = [];
  for (const [step, value] of curve(run, key) ?? []) {
    if (value !== null) {
      sum = keep * sum + (1 - keep) * value;
      weight = keep * weight + (1 - keep);
    }
    const at = place(run, step);
    // Places between reported ones are rounded, as the zoom in the address is.
    if (at === null || (zoom && (at < zoom[0] - 0.005 || at > zoom[1] + 0.005))) continue;
    raw.push([at, value, step]);
    smoothed.push([at, keep === 0 || value === null ? value : sum / weight, step]);
  }
  return { raw, smoothed };
}

/** Returns half the distance of two numbers: the distance itself may exceed the largest number. */
const halfDistance = (low, high) => high / 2 - low / 2;

/** Returns round numbers from `low` to `high` that are at least `least` apart. */
function ticks(low, high, count, least = 0) {
  const rough = Math.max((halfDistance(low, high) / count) * 2 || 1, least);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  // Multiples, not running sums: a running sum of tenths would miss 0 by a rounding error.
  const last = high / step + 1e-6;
  for (let i = Math.ceil(low / step - 1e-6); i <= last; i += 1) found.push(i === 0 ? 0 : i * step);
  return found;
}

/** Returns ticks of a logarithmic scale, as exponents: 1, 2 and 5 of each decade, or powers of ten if there are many decades. */
function logTicks(low, high) {
  if (high - low < 1) return ticks(10 ** low, 10 ** high, 5).filter((value) => value > 0).map(Math.log10);
  const [step, digits] = high - low <= 3 ? [1, [1, 2, 5]] : [Math.ceil((high - low) / 6), [1]];
  const found = [];
  for (let power = Math.floor(low / step) * step; power <= high; power += step) found.push(...digits.map((digit) => power + Math.log10(digit)));
  return found.filter((at) => at >= low - 1e-9 && at <= high + 1e-9);
}

const isDrawn = ([, value]) => value !== null && (!log.checked || value > 0);

/** Draws a metric as an SVG of `width` by `height`, or returns null if there is nothing to draw. */
function picture(of, width, height, isSmall) {
  const edge = isSmall ? { left: 8, right: 8, top: 6, bottom: 6 } : { left: 70, right: 12, top: 12, bottom: 34 };
  const flat = of.flatMap((one) => one.smoothed.filter(isDrawn));
  if (!flat.length) return null;
  const shown = Number(smooth.value) > 0 ? [...flat, ...of.flatMap((one) => one.raw.filter(isDrawn))] : flat;
  const level = (value) => (log.checked ? Math.log10(value) : value);
  const range = (list) => {
    const [low, high] = list.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    // Values that differ only by rounding count as one value: no tick fits between them.
    if (high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high))) return [low, high];
    const room = Math.abs(low) * 0.1 || 1;
    return [Math.max(low - room, -Number.MAX_VALUE), Math.min(high + room, Number.MAX_VALUE)];
  };
  const [left, right] = range(flat.map(([at]) => at));
  const [low, high] = range(shown.map(([, value]) => level(value)));
  const x = (at) => edge.left + ((at - left) / (right - left)) * (width - edge.left - edge.right);
  const y = (at) => height - edge.bottom - (halfDistance(low, at) / halfDistance(low, high)) * (height - edge.top - edge.bottom);
  const made = shape("svg", { viewBox: `0 0 ${width} ${height}` });
  if (!isSmall) {
    for (const at of log.checked ? logTicks(low, high) : ticks(low, high, 5)) {
      made.append(
        shape("line", { class: "grid-line", x1: edge.left, x2: width - edge.right, y1: y(at), y2: y(at) }),
        shape("text", { class: "tick", x: edge.left - 8, y: y(at) + 4, "text-anchor": "end" }, short(log.checked ? 10 ** at : at)),
      );
    }
    // Steps are integers.
    for (const at of ticks(left, right, width / 110, 1)) {
      const text = short(at);
      // A digit is at most 8 pixels wide. The last text must not leave the plot.
      const middle = Math.min(x(at), width - 4 * text.length);
      made.append(shape("text", { class: "tick", x: middle, y: height - 12, "text-anchor": "middle" }, text));
    }
  }
  const line = (list, name) => {
    // A value that cannot be drawn ends the line, and the next value starts a new one.
    let part = [];
    const end = () => {
      if (part.length > 1) {
        const joined = part.map(([at, value]) => `${x(at).toFixed(1)},${y(level(value)).toFixed(1)}`).join(" ");
        made.append(shape("polyline", { class: name, points: joined }));
      } else if (part.length) {
        made.append(shape("circle", { class: name.replace("series ", "dot "), cx: x(part[0][0]), cy: y(level(part[0][1])), r: isSmall ? 2 : 3 }));
      }
      part = [];
    };
    for (const point of list) {
      if (isDrawn(point)) part.push(point);
      else end();
    }
    end();
  };
  if (Number(smooth.value) > 0) of.forEach((one, i) => line(one.raw, `series raw series-${runs[i].color}`));
  of.forEach((one, i) => line(one.smoothed, `series series-${runs[i].color}`));
  return { made, edge, x, left, right };
}

/** Draws the chosen metric large. */
function draw() {
  const key = metric.value;
  const of = runs.map((run) => points(run, key));
  tellAverages(of);
  // Use the available width without scaling, so that text has the same size as elsewhere on the page.
  const width = Math.max(280, plot.clientWidth);
  const height = Math.min(360, Math.round(width * 0.7));
  const drawn = key ? picture(of, width, height, false) : null;
  const all = of.map((one) => one.smoothed);
  table(all);
  view = null;
  if (!drawn) {
    const nothing = !all.flat().length ? "No values yet." : log.checked ? "No values above 0." : "No finite values.";
    plot.replaceChildren(element("p", "soft", nothing));
    legend.replaceChildren();
    return;
  }
  const { made, edge, x, left, right } = drawn;
  made.setAttribute("role", "img");
  made.setAttribute("tabindex", "0");
  made.setAttribute("aria-label", `${key} over ${axis.selectedOptions[0].textContent}. The arrow keys show values; the table below has all numbers.`);
  const cross = shape("line", { class: "cross", visibility: "hidden", y1: edge.top, y2: height - edge.bottom });
  const chosen = shape("rect", { class: "zoom", y: edge.top, height: height - edge.top - edge.bottom });
  made.append(cross, chosen);
  const within = (at) => Math.max(left, Math.min(right, at));
  const nearest = (list, at) => list.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best), list[0]);
  const tell = (at) => legend.replaceChildren(...runs.map((run, i) => {
    const found = all[i].length ? (at === null ? all[i][all[i].length - 1] : nearest(all[i], at)) : null;
    const own = element("span", `key series-${run.color}`);
    own.append(element("i"), visible(run.name), found ? `: ${short(found[1])} at ${axis.value === "step" ? "step " : ""}${Math.round(found[0])}${axis.value === "step" ? "" : ` ${axis.selectedOptions[0].textContent}`} ` : ": none ");
    return own;
  }));
  // Shows a place with its values, and the range of a drag. Without a place, shows the last values.
  const mark = (at) => {
    const middle = at === null ? 0 : x(within(at));
    cross.setAttribute("visibility", at === null ? "hidden" : "visible");
    cross.setAttribute("x1", middle);
    cross.setAttribute("x2", middle);
    const start = begun === null || at === null ? middle : x(within(begun));
    chosen.setAttribute("x", Math.min(start, middle));
    chosen.setAttribute("width", Math.abs(middle - start));
    tell(at);
  };
  view = {
    mark,
    place(event) {
      const box = made.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * width;
      return within(left + ((at - edge.left) / (width - edge.left - edge.right)) * (right - left));
    },
    isWide: (from, to) => x(to) - x(from) >= 8,
  };
  // The arrow keys move from value to value across all runs.
  const places = [...new Set(all.flat().map(([at]) => at))].sort((a, b) => a - b);
  const kept = reached === null ? -1 : places.findIndex((place) => place >= reached);
  let at = kept < 0 ? places.length : kept;
  made.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: places.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    at = Math.max(0, Math.min(places.length - 1, to));
    reached = places[at];
    pointed = null;
    mark(reached);
    say(legend.textContent.trim());
  });
  const isFocused = plot.contains(document.activeElement);
  plot.replaceChildren(made);
  if (isFocused) made.focus();
  mark(pointed ?? (isFocused ? reached : null));
}

// The plot itself stays when the curves are redrawn, so a drag goes on. It also goes on outside of the plot.
plot.addEventListener("pointerdown", (event) => {
  if (!view || event.button !== 0) return;
  plot.setPointerCapture(event.pointerId);
  begun = pointed = view.place(event);
  view.mark(pointed);
});
plot.addEventListener("pointermove", (event) => {
  if (!view) return;
  pointed = view.place(event);
  view.mark(pointed);
});
plot.addEventListener("pointerup", (event) => {
  if (!view || begun === null) return;
  const [from, to] = [begun, view.place(event)].sort((a, b) => a - b);
  begun = null;
  if (!view.isWide(from, to)) return view.mark(pointed);
  pointed = null;
  reached = null;
  zoom = [from, to];
  whole.hidden = false;
  redraw();
  sharpen();
});
for (const end of ["pointerleave", "pointercancel"]) {
  plot.addEventListener(end, () => {
    begun = null;
    pointed = null;
    view?.mark(null);
  });
}

/** Returns the most important metrics among `keys`. */
function first(keys) {
  const found = [...FIRST.flatMap(([, names]) => names), ...FURTHER].filter((key) => keys.includes(key));
  return [...found, ...keys.filter((key) => !found.includes(key))].slice(0, Math.max(4, Math.min(9, found.length)));
}

/** Creates the small panel of a metric. Clicking it shows the metric large. */
function panel(key) {
  const of = runs.map((run) => points(run, key));
  const made = element("button", "panel");
  made.type = "button";
  made.dataset.metric = key;
  made.setAttribute("aria-pressed", String(key === metric.value));
  const head = element("span", "panel-head");
  const last = of.map((one) => one.smoothed[one.smoothed.length - 1]).filter(Boolean);
  const start = last.length && last.every(([, , step]) => step === 0) ? " at step 0" : "";
  head.append(named("span", "panel-name", key), element("span", "panel-last", last.map(([, value]) => short(value)).join(" · ") + start));
  const drawn = picture(of, 240, 90, true);
  made.append(head);
  if (drawn) {
    drawn.made.setAttribute("aria-hidden", "true");
    made.append(drawn.made);
  } else {
    made.append(element("span", "panel-none", log.checked ? "no values above 0" : "no values"));
  }
  return made;
}

/** Draws the small panels: the matches of a search, or the most important ones, plus the others if their section is open. */
function drawPanels() {
  const keys = [...metric.options].map((option) => option.value);
  const text = find.value.trim().toLowerCase();
  const above = text ? keys.filter((key) => key.toLowerCase().includes(text)) : first(keys);
  const below = text ? [] : keys.filter((key) => !above.includes(key));
  const focused = document.activeElement?.dataset?.metric;
  panels.replaceChildren(...above.map(panel));
  if (text && !above.length) panels.append(element("p", "soft", "No metric has this name."));
  others.parentElement.hidden = !below.length;
  others.previousElementSibling.textContent = `All metrics (${below.length} more)`;
  others.replaceChildren(...(others.parentElement.open ? below.map(panel) : []));
  if (focused) [...document.querySelectorAll("[data-metric]")].find((one) => one.dataset.metric === focused)?.focus();
}

/** Formats a duration in seconds. */
function time(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}

/** Estimates the remaining seconds of a run from the tokens per step and per second of its last steps. Null if they are unknown. */
function left(run, found) {
  const tokens = run.curves.num_tokens ?? [];
  const speed = run.curves.tokens_per_s ?? [];
  if (!found.steps || found.state !== "running" || tokens.length < 2 || !speed.length) return null;
  const [[from, before], [to, after]] = [tokens[Math.max(0, tokens.length - 6)], tokens[tokens.length - 1]];
  const each = (after - before) / (to - from) / speed[speed.length - 1][1];
  return Number.isFinite(each) && each > 0 ? each * (found.steps - found.step) : null;
}

/** Draws the latest values of a run's most important metrics. */
function drawTiles(found) {
  const run = runs[0];
  const tile = (name, value, note) => {
    const made = element("div", "tile");
    made.append(element("span", "soft small", name), element("strong", "", value), named("span", "soft small", note));
    return made;
  };
  const made = FIRST.map(([name, keys]) => {
    // Until the next evaluation, held-out metrics have only their value of the start.
    const key = keys.find((key) => isTrained(run, key)) ?? keys.find((key) => run.curves[key]?.length);
    if (!key) return null;
    const of = run.curves[key];
    const [, begun] = of[0];
    const [step, now] = of[of.length - 1];
    const note = step === 0 ? `${key} at step 0` : of.length > 1 ? `${key}, from ${short(begun, 3)}` : key;
    return tile(name, short(now, 3), note);
  });
  const seconds = left(run, found);
  if (seconds !== null) made.push(tile("Time left", time(seconds), `about, for ${found.steps - found.step} steps`));
  tiles.replaceChildren(...made.filter(Boolean));
}

/** States whether points are averages, and how many values cannot be drawn. */
function tellAverages(of) {
  const key = metric.value;
  const long = runs.map((run, i) => [of[i].smoothed.length, zoom && run.detail?.metric === key ? run.detail.averaged : zoom ? 0 : run.averaged?.[key]]);
  const parts = [];
  const most = Math.max(0, ...long.map(([points, values]) => (values ? values / Math.max(1, points) : 0)));
  if (most > 1) parts.push(`Each point is the mean of about ${short(Math.round(most))} values. Drag over the curve to see them all.`);
  const values = of.flatMap((one) => one.smoothed).map(([, value]) => value);
  const tellDropped = (dropped, why) => {
    if (dropped) parts.push(`${dropped} ${dropped === 1 ? "value is" : "values are"} ${why}.`);
  };
  tellDropped(values.filter((value) => value === null).length, "not finite and cannot be drawn");
  if (log.checked) tellDropped(values.filter((value) => value !== null && value <= 0).length, "0 or less and cannot be drawn on a logarithmic scale");
  averages.textContent = parts.join(" ");
}

/** Returns the steps of a range of the axis. On other axes than that of steps, they are those of the points around the range, because the points
within it may be averages of values on both sides of its ends. */
function stepsOf(run, key, [low, high]) {
  if (axis.value === "step") return [low, high];
  const all = run.curves[key];
  const known = all.map(([step]) => [step, place(run, step)]).filter(([, at]) => at !== null);
  const [before] = known.filter(([, at]) => at < low).pop() ?? [0];
  const [after] = known.find(([, at]) => at > high) ?? all[all.length - 1];
  return [before, after];
}

/** Fetches the values within the zoom for curves that arrived as averages. */
async function sharpen() {
  const within = zoom;
  const key = metric.value;
  await Promise.all(runs.map(async (run) => {
    if (!run.averaged?.[key] || !run.curves[key]?.length) return;
    const [from, to] = stepsOf(run, key, within);
    const response = await fetch(`/runs/series?run=${run.id}&metric=${encodeURIComponent(key)}&from=${from}&to=${to}`);
    if (!response.ok) return say(await why(response));
    const found = await response.json();
    run.detail = { metric: key, points: found.curves[key] ?? [], averaged: found.averaged[key] ?? 0 };
  }));
  if (zoom === within && metric.value === key) draw();
}

/** Fills the table with the plotted numbers. */
function table(all) {
  const steps = [...new Set(all.flat().map(([at]) => at))].sort((a, b) => a - b);
  const made = element("table");
  const head = element("tr");
  head.append(...[axis.value === "step" ? "Step" : axis.selectedOptions[0].textContent, ...runs.map((run) => run.name)].map((name) => Object.assign(element("th", "number", name), { scope: "col" })));
  const body = element("tbody");
  const by = all.map((of) => new Map(of));
  for (const step of steps.slice(-500)) {
    const row = element("tr");
    row.append(element("td", "number", String(Math.round(step))), ...by.map((of) => element("td", "number", of.has(step) ? short(of.get(step)) : "–")));
    body.append(row);
  }
  const top = element("thead");
  top.append(head);
  made.append(top, body);
  values.replaceChildren(made);
}

function redraw() {
  draw();
  drawPanels();
  remember();
}

/** Shows a metric large. */
function choose(key) {
  metric.value = key;
  redraw();
  if (zoom) sharpen();
}

/** Fetches and draws the curves. Returns whether one of the runs is still active. */
async function renew() {
  const found = await Promise.all(runs.map(async (run) => {
    const response = await fetch(`/runs/series?run=${run.id}`);
    if (!response.ok) throw new Error(await why(response));
    return response.json();
  }));
  found.forEach((one, i) => {
    runs[i].curves = one.curves;
    runs[i].averaged = one.averaged;
  });
  const keys = [...new Set(found.flatMap((one) => Object.keys(one.curves)))];
  usual = keys.find((key) => runs.some((run) => isTrained(run, key))) ?? keys[0] ?? "";
  const chosen = wanted ?? metric.value;
  metric.replaceChildren(...keys.map((key) => Object.assign(element("option", "", key), { value: key })));
  metric.value = keys.includes(chosen) ? chosen : usual;
  if (keys.includes(chosen)) wanted = null;
  const step = document.getElementById("step");
  if (step && found.length === 1) step.textContent = found[0].step;
  const progress = document.getElementById("progress");
  if (progress) progress.value = found[0].step;
  if (tiles && found.length === 1) drawTiles(found[0]);
  draw();
  drawPanels();
  return found.some((one) => one.state === "running");
}

metric.addEventListener("change", () => choose(metric.value));
axis.addEventListener("change", () => {
  zoom = null;
  reached = null;
  whole.hidden = true;
  redraw();
});
smooth.addEventListener("input", redraw);
log.addEventListener("change", redraw);
find.addEventListener("input", () => {
  drawPanels();
  remember();
});
others.parentElement.addEventListener("toggle", () => {
  drawPanels();
  remember();
});
addEventListener("resize", draw);
whole.addEventListener("click", () => {
  zoom = null;
  whole.hidden = true;
  redraw();
});
document.querySelector(".curves").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-metric]");
  if (!button) return;
  choose(button.dataset.metric);
  plot.scrollIntoView({ block: "nearest" });
});

(async function live() {
  let isGoing = true;
  try {
    isGoing = await renew();
    if (zoom && isGoing === false) sharpen();
  } catch (error) {
    say(error.message);
    return setTimeout(live, 10000);
  }
  if (isGoing) setTimeout(live, 3000);
})();
