// Curves of runs: one metric at a time, of one run or several. The pointer tells values, a drag zooms, and a table below has the same
// numbers. Long curves come as averages; a zoom fetches what lies within. While a run goes on, its curves are fetched anew.
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
const edge = { left: 70, right: 12, top: 12, bottom: 34 };
let zoom = null;

/** An element of a picture. */
function shape(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A number with the digits that matter. */
const short = (value) => (value === 0 ? "0" : Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 ? String(Number(value.toPrecision(4))) : value.toExponential(2));

/** Where a step lies on the axis: what the run had seen by then, between the steps that say so; null where none does. */
function place(run, step) {
  if (axis.value === "step") return step;
  const seen = run.curves[axis.value];
  if (!seen?.length) return null;
  const after = seen.findIndex(([at]) => at >= step);
  if (after < 0) return step > seen[seen.length - 1][0] ? null : seen[seen.length - 1][1];
  const [at, count] = seen[after];
  const [from, before] = after > 0 ? seen[after - 1] : [0, 0];
  return at === from ? count : before + ((step - from) / (at - from)) * (count - before);
}

/** The curve of a run: what lies within the zoom, where it was fetched, else the whole. */
const curve = (run) => (zoom && run.detail?.metric === metric.value ? run.detail.points : run.curves[metric.value]);

/** The points of a run, smoothed by a moving average that forgets; the first values weigh no more than others. */
function points(run) {
  const keep = Number(smooth.value);
  let [sum, weight] = [0, 0];
  return (curve(run) ?? []).map(([step, value]) => {
    sum = keep * sum + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return [place(run, step), keep === 0 ? value : sum / weight, step];
  }).filter(([at]) => at !== null);
}

/** Round numbers between two, at least so far apart. */
function ticks(low, high, count, least = 0) {
  const rough = Math.max((high - low) / count || 1, least);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  // Multiples, not sums: a sum of tenths is not 0 where it should be.
  for (let i = Math.ceil(low / step - 1e-6); i * step <= high + step / 1e6; i += 1) found.push(i === 0 ? 0 : i * step);
  return found;
}

function draw() {
  const within = runs.map((run) => points(run).filter(([step]) => !zoom || (step >= zoom[0] && step <= zoom[1])));
  const isDrawn = ([, value]) => !log.checked || value > 0;
  const all = within.map((of) => of.filter(isDrawn));
  const flat = all.flat();
  table(all);
  tellAverages(within);
  if (!flat.length) {
    plot.replaceChildren(element("p", "soft", log.checked ? "No values above 0." : "No values yet."));
    legend.replaceChildren();
    return;
  }
  // As wide as there is room, so that its words are as large as others.
  const width = Math.max(280, plot.clientWidth);
  const height = Math.min(360, Math.round(width * 0.7));
  const level = (value) => (log.checked ? Math.log10(value) : value);
  const range = (of) => {
    const [low, high] = [Math.min(...of), Math.max(...of)];
    if (low !== high) return [low, high];
    const room = Math.abs(low) * 0.1 || 1;
    return [low - room, high + room];
  };
  const [left, right] = range(flat.map(([step]) => step));
  const [low, high] = range(flat.map(([, value]) => level(value)));
  const x = (step) => edge.left + ((step - left) / (right - left)) * (width - edge.left - edge.right);
  const y = (at) => height - edge.bottom - ((at - low) / (high - low)) * (height - edge.top - edge.bottom);
  const picture = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${metric.value} over ${axis.selectedOptions[0].textContent}; the table below has the numbers` });
  for (const at of ticks(low, high, 5)) {
    picture.append(
      shape("line", { class: "grid-line", x1: edge.left, x2: width - edge.right, y1: y(at), y2: y(at) }),
      shape("text", { class: "tick", x: edge.left - 8, y: y(at) + 4, "text-anchor": "end" }, short(log.checked ? 10 ** at : at)),
    );
  }
  // Steps are whole.
  for (const at of ticks(left, right, width / 110, 1)) picture.append(shape("text", { class: "tick", x: x(at), y: height - 12, "text-anchor": "middle" }, short(at)));
  within.forEach((of, i) => {
    // A value that cannot be drawn ends the line: the next one begins anew.
    let line = [];
    const end = () => {
      if (line.length > 1) {
        const joined = line.map(([step, value]) => `${x(step).toFixed(1)},${y(level(value)).toFixed(1)}`).join(" ");
        picture.append(shape("polyline", { class: `series series-${runs[i].color}`, points: joined }));
      } else if (line.length) {
        picture.append(shape("circle", { class: `dot series-${runs[i].color}`, cx: x(line[0][0]), cy: y(level(line[0][1])), r: 3 }));
      }
      line = [];
    };
    for (const point of of) {
      if (isDrawn(point)) line.push(point);
      else end();
    }
    end();
  });
  const cross = shape("line", { class: "cross", visibility: "hidden", y1: edge.top, y2: height - edge.bottom });
  const chosen = shape("rect", { class: "zoom", y: edge.top, height: height - edge.top - edge.bottom });
  picture.append(cross, chosen);
  const step = (event) => {
    const place = picture.getBoundingClientRect();
    const at = ((event.clientX - place.left) / place.width) * width;
    return left + ((at - edge.left) / (width - edge.left - edge.right)) * (right - left);
  };
  const nearest = (of, at) => of.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best), of[0]);
  const tell = (at) => legend.replaceChildren(...runs.map((run, i) => {
    const found = all[i].length ? (at === null ? all[i][all[i].length - 1] : nearest(all[i], at)) : null;
    const made = element("span", `key series-${run.color}`);
    made.append(element("i"), visible(run.name), found ? `: ${short(found[1])} at ${axis.value === "step" ? "step " : ""}${Math.round(found[0])}${axis.value === "step" ? "" : ` ${axis.selectedOptions[0].textContent}`} ` : ": none ");
    return made;
  }));
  let begun = null;
  picture.addEventListener("pointerdown", (event) => {
    begun = step(event);
  });
  picture.addEventListener("pointermove", (event) => {
    const at = step(event);
    cross.removeAttribute("visibility");
    cross.setAttribute("x1", x(at));
    cross.setAttribute("x2", x(at));
    tell(at);
    if (begun !== null) {
      chosen.setAttribute("x", Math.min(x(begun), x(at)));
      chosen.setAttribute("width", Math.abs(x(at) - x(begun)));
    }
  });
  picture.addEventListener("pointerup", (event) => {
    const [from, to] = [begun, step(event)].sort((a, b) => a - b);
    begun = null;
    if (x(to) - x(from) < 8) return;
    zoom = [from, to];
    whole.hidden = false;
    draw();
    sharpen();
  });
  picture.addEventListener("pointerleave", () => {
    begun = null;
    tell(null);
  });
  plot.replaceChildren(picture);
  tell(null);
}

/** Says what points are, where they are averages, and how many values cannot be drawn. */
function tellAverages(within) {
  const long = runs.map((run, i) => [within[i].length, zoom && run.detail?.metric === metric.value ? run.detail.averaged : zoom ? 0 : run.averaged?.[metric.value]]);
  const parts = [];
  const most = Math.max(0, ...long.map(([points, values]) => (values ? values / Math.max(1, points) : 0)));
  if (most > 1) parts.push(`Each point is the mean of about ${short(Math.round(most))} values. Drag over the curve to see them all.`);
  const left = log.checked ? within.flat().filter(([, value]) => value <= 0).length : 0;
  if (left) parts.push(`${left} ${left === 1 ? "value is" : "values are"} 0 or less and cannot be drawn on a logarithmic scale.`);
  averages.textContent = parts.join(" ");
}

/** Fetches what lies within the zoom, where a curve came as averages. */
async function sharpen() {
  const wanted = zoom;
  const key = metric.value;
  await Promise.all(runs.map(async (run) => {
    const within = (run.curves[key] ?? []).filter(([step]) => {
      const at = place(run, step);
      return at !== null && at >= wanted[0] && at <= wanted[1];
    });
    if (!run.averaged?.[key] || !within.length) return;
    const [from, to] = axis.value === "step" ? wanted : [within[0][0], within[within.length - 1][0]];
    const response = await fetch(`/runs/series?run=${run.id}&metric=${encodeURIComponent(key)}&from=${from}&to=${to}`);
    if (!response.ok) return say(await why(response));
    const found = await response.json();
    run.detail = { metric: key, points: found.curves[key] ?? [], averaged: found.averaged[key] ?? 0 };
  }));
  if (zoom === wanted && metric.value === key) draw();
}

/** What is drawn, as numbers. */
function table(all) {
  const steps = [...new Set(all.flat().map(([step]) => step))].sort((a, b) => a - b);
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

/** Fetches the curves; whether one of the runs goes on. */
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
  const chosen = metric.value;
  metric.replaceChildren(...keys.map((key) => Object.assign(element("option", "", key), { value: key })));
  if (keys.includes(chosen)) metric.value = chosen;
  const step = document.getElementById("step");
  if (step && found.length === 1) step.textContent = found[0].step;
  const progress = document.getElementById("progress");
  if (progress) progress.value = found[0].step;
  draw();
  return found.some((one) => one.state === "running");
}

metric.addEventListener("change", () => {
  draw();
  if (zoom) sharpen();
});
axis.addEventListener("change", () => {
  zoom = null;
  whole.hidden = true;
  draw();
});
smooth.addEventListener("input", draw);
log.addEventListener("change", draw);
addEventListener("resize", draw);
whole.addEventListener("click", () => {
  zoom = null;
  whole.hidden = true;
  draw();
});

(async function live() {
  try {
    if (await renew()) setTimeout(live, 3000);
  } catch (error) {
    say(error.message);
    setTimeout(live, 10000);
  }
})();
