// The task page: makes what is asked from the label set, sends everything after every change, and shows what the server says
// is still to do. Offsets are code points, as the server counts them.
"use strict";

const work = document.querySelector("[data-task]");
const base = work.dataset.task;
const asked = document.getElementById("asked");
const feedback = document.getElementById("feedback");
const submit = document.getElementById("submit");
const undo = document.getElementById("undo");
let task = null;
let answer = null;
let past = [];
let since = performance.now();

/** A copy that changes apart. */
const copy = (value) => JSON.parse(JSON.stringify(value));

/** A button that does something. */
function button(text, action, className = "") {
  const made = element("button", className, text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

/** A field with its label. */
function labelled(text, field) {
  const made = element("div", "field");
  const label = element("label", "", text);
  field.id ||= `field-${Math.random().toString(36).slice(2)}`;
  label.htmlFor = field.id;
  made.append(label, field);
  return made;
}

/** A radio button with its label. */
function radio(name, value, text, chosen, action) {
  const made = element("label", "choice");
  const field = element("input");
  Object.assign(field, { type: "radio", name, value, checked: chosen });
  field.addEventListener("change", action);
  made.append(field, " ", text);
  return made;
}

let sending = Promise.resolve();

/** Sends the answer as it is; what comes back says what is still to do. */
function keep(state = "open", reason = "") {
  const now = performance.now();
  const body = { answer: copy(answer), state, reason, seconds: (now - since) / 1000 };
  since = now;
  // One after the other, so that the last word is kept.
  sending = sending.then(async () => {
    try {
      const response = await send(`${base}/keep`, body);
      show(await response.json());
      say(state === "open" ? "Kept." : "Handed in.");
      return true;
    } catch (error) {
      say(`Not kept: ${error.message}`);
      return false;
    }
  });
  return sending;
}

/** Shows what is still to do. */
function show({ problems, warnings }) {
  const todo = document.getElementById("todo");
  const items = problems.map((text) => element("li", "", text)).concat(warnings.map((text) => element("li", "soft", text)));
  if (!problems.length) items.unshift(element("li", "good", "All is there: it can be handed in."));
  todo.replaceChildren(...items);
  submit.disabled = problems.length > 0;
}

/** Changes the answer, so that it can be undone, and keeps it. */
function change(how, redraw = true) {
  past.push(copy(answer));
  how(answer);
  undo.disabled = false;
  if (redraw) draw();
  keep();
}

function takeBack() {
  if (!past.length) return;
  answer = past.pop();
  undo.disabled = !past.length;
  draw();
  keep();
}

/** The words of a text with their code points. */
function words(text) {
  const found = [];
  let at = 0;
  let word = null;
  for (const c of text) {
    if (/\s/u.test(c)) {
      word = null;
    } else if (word) {
      word.text += c;
      word.end = at + 1;
    } else {
      word = { text: c, start: at, end: at + 1 };
      found.push(word);
    }
    at += 1;
  }
  return found;
}

/** The code points of a text from `start` to `end`. */
const part = (text, start, end) => [...text].slice(start, end).join("");

/** The place of a type among those with colours. */
const place = (kind) => [...task.labels.spans, ...task.labels.missing].findIndex((type) => type.name === kind);

/** What people call a type. */
const label = (kind) => [...task.labels.spans, ...task.labels.missing].find((type) => type.name === kind)?.label ?? kind;

/** The first answer word by word, with what is marked. */
function text() {
  const all = words(task.answers[0]);
  const box = element("div", "answer-text");
  box.tabIndex = 0;
  box.setAttribute("role", "application");
  box.setAttribute("aria-label", "The answer, word by word");
  let cursor = -1;
  let from = -1;
  const spans = all.map((word) => {
    const made = element("span", "word", word.text);
    const mark = answer.spans.findIndex((span) => span.start <= word.start && word.end <= span.end);
    if (mark >= 0) {
      made.classList.add("marked", `kind-${place(answer.spans[mark].kind)}`);
      made.dataset.mark = mark;
    }
    return made;
  });
  spans.forEach((span, i) => box.append(i ? " " : "", span));
  const range = () => [Math.min(from, cursor), Math.max(from, cursor)];
  const paint = () => {
    const [low, high] = range();
    spans.forEach((span, i) => {
      span.classList.toggle("cursor", i === cursor);
      span.classList.toggle("chosen", cursor >= 0 && i >= low && i <= high);
    });
    if (cursor >= 0) say(`${low === high ? "" : "Selected: "}${all.slice(low, high + 1).map((word) => word.text).join(" ")}`);
  };
  const mark = (low, high, near) => {
    const start = all[low].start;
    const end = all[high].end;
    // A selection that overlaps what is marked is rejected, as one of nothing is.
    if (answer.spans.some((span) => span.start < end && start < span.end)) return say("Part of this is marked already.");
    close();
    spans.forEach((span, i) => span.classList.toggle("chosen", i >= low && i <= high));
    open({ title: part(task.answers[0], start, end), types: task.labels.spans, near, start, end, back: box });
  };
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) {
      cursor = Math.max(0, Math.min(all.length - 1, cursor + step));
      if (!event.shiftKey || from < 0) from = cursor;
      paint();
    } else if ((event.key === "Enter" || event.key === " ") && cursor >= 0) {
      mark(...range(), spans[cursor].getBoundingClientRect());
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  });
  // Words are what is selected: a drag over them, or a double click on one.
  const under = (event) => spans.indexOf(document.elementFromPoint(event.clientX, event.clientY)?.closest(".word"));
  let drag = null;
  box.addEventListener("pointerdown", (event) => {
    const at = under(event);
    if (at < 0 || event.button !== 0) return;
    drag = { at, x: event.clientX, y: event.clientY, hasMoved: false };
  });
  box.addEventListener("pointermove", (event) => {
    if (!drag || !(event.buttons & 1)) return;
    drag.hasMoved ||= Math.hypot(event.clientX - drag.x, event.clientY - drag.y) > 4;
    const at = under(event);
    if (!drag.hasMoved || at < 0) return;
    [from, cursor] = [drag.at, at];
    paint();
  });
  box.addEventListener("pointerup", (event) => {
    const was = drag;
    drag = null;
    if (was?.hasMoved && cursor >= 0) mark(...range(), { left: event.clientX, bottom: event.clientY });
  });
  box.addEventListener("dblclick", (event) => {
    const at = under(event);
    if (at >= 0) mark(at, at, { left: event.clientX, bottom: event.clientY });
  });
  return box;
}

let popup = null;

function close(back) {
  popup?.remove();
  popup = null;
  document.querySelectorAll(".chosen").forEach((word) => word.classList.remove("chosen"));
  back?.focus();
}

/** The pop-up that asks for a type and what belongs to it. */
function open({ title, types, near, start, end, back }) {
  popup?.remove();
  const isSpan = start !== undefined;
  const before = isSpan ? part(task.answers[0], 0, start) : "";
  const box = element("div", "popup");
  const form = element("form");
  box.append(form);
  box.setAttribute("role", "dialog");
  box.setAttribute("aria-label", isSpan ? "Mark an error" : "Missing information");
  const head = element("p", "handle", isSpan ? `“${title}”` : title);
  const more = element("div");
  const confirm = element("button", "main", "Confirm");
  const chosen = { kind: null, repeats: before, passage: 1, sentences: [] };
  const list = element("fieldset");
  list.append(element("legend", "", isSpan ? "Type of the error" : "What is missing"));
  const check = () => {
    const type = types.find((known) => known.name === chosen.kind);
    const asks = isSpan ? type?.asks : type && "sentences";
    const last = task.passages[chosen.passage - 1];
    const fits = chosen.sentences.length > 0 && last !== undefined && chosen.sentences.every((s) => Number.isInteger(s) && s >= 0 && s <= last);
    const repeats = chosen.repeats.trim();
    confirm.disabled = !type || (asks === "earlier_text" && !(repeats && before.includes(repeats))) || (asks === "sentences" && !fits);
    return asks;
  };
  const ask = () => {
    more.replaceChildren();
    const type = types.find((known) => known.name === chosen.kind);
    const asks = check();
    if (type?.note) more.append(element("p", "small", type.note));
    if (asks === "earlier_text") {
      const field = element("textarea");
      field.rows = 3;
      field.value = chosen.repeats;
      const warning = element("p", "small soft");
      const warn = () => {
        warning.textContent = chosen.repeats === before ? "This is all text before: leave only what is repeated." : "";
        check();
      };
      field.addEventListener("input", () => {
        chosen.repeats = field.value;
        warn();
      });
      more.append(labelled("The earlier text that it repeats", field), button("Reset", () => {
        chosen.repeats = field.value = before;
        warn();
      }), warning);
      warn();
    }
    if (asks === "sentences") {
      const passage = element("input");
      Object.assign(passage, { type: "number", min: 1, max: task.passages.length, value: chosen.passage });
      passage.addEventListener("input", () => {
        chosen.passage = Number(passage.value);
        check();
      });
      const sentences = element("input");
      sentences.value = chosen.sentences.join(", ");
      sentences.addEventListener("input", () => {
        const parts = sentences.value.split(",").map((one) => one.trim());
        chosen.sentences = parts.map((one) => (/^\d+$/.test(one) ? Number(one) : NaN));
        check();
      });
      more.append(labelled(`Passage, 1 to ${task.passages.length}`, passage), labelled("Sentences there, with commas between; 0 is the title", sentences));
    }
  };
  for (const type of types) {
    const option = radio("kind", type.name, type.label, false, () => {
      chosen.kind = type.name;
      ask();
    });
    option.classList.add(`kind-${place(type.name)}`, "kind");
    list.append(option);
  }
  const row = element("div", "row");
  row.append(confirm, button("Cancel", () => close(back)));
  form.append(head, list, more, row);
  confirm.disabled = true;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (confirm.disabled) return;
    const type = types.find((known) => known.name === chosen.kind);
    const at = { passage: chosen.passage, sentences: chosen.sentences };
    close();
    change((said) => {
      if (isSpan) {
        const repeats = type.asks === "earlier_text" ? chosen.repeats : "";
        const where = type.asks === "sentences" ? at : { passage: 0, sentences: [] };
        said.spans.push({ kind: type.name, start, end, repeats, ...where });
      } else if (!said.missing.some((known) => JSON.stringify(known) === JSON.stringify({ kind: type.name, ...at }))) {
        said.missing.push({ kind: type.name, ...at });
      }
      said.no_error = false;
    });
    document.querySelector(isSpan ? ".answer-text" : "#missing")?.focus();
  });
  box.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Escape") close(back);
    // Enter confirms nothing by accident.
    if (event.key === "Enter" && event.target.matches("input")) event.preventDefault();
  });
  document.body.append(box);
  box.style.left = `${Math.max(8, Math.min(near.left, innerWidth - box.offsetWidth - 8)) + scrollX}px`;
  box.style.top = `${near.bottom + 8 + scrollY}px`;
  head.addEventListener("pointerdown", (event) => {
    const [x, y] = [event.clientX - box.offsetLeft, event.clientY - box.offsetTop];
    const move = (moved) => {
      box.style.left = `${moved.clientX - x}px`;
      box.style.top = `${moved.clientY - y}px`;
    };
    head.setPointerCapture(event.pointerId);
    head.addEventListener("pointermove", move);
    head.addEventListener("pointerup", () => head.removeEventListener("pointermove", move), { once: true });
    event.preventDefault();
  });
  popup = box;
  list.querySelector("input").focus();
}

/** What was marked, as pills. */
function pills() {
  const list = element("ul", "pills");
  list.setAttribute("aria-label", "What you have marked");
  const pill = (kind, about, remove, mark) => {
    const made = element("li", `pill kind-${place(kind)}`);
    made.append(element("b", "", label(kind)), " ", element("span", "", about), " ");
    const off = button("×", remove);
    off.setAttribute("aria-label", `Remove ${label(kind)}: ${about}`);
    made.append(off);
    if (mark !== undefined) {
      const words = () => document.querySelectorAll(`.word[data-mark="${mark}"]`);
      made.addEventListener("pointerenter", () => words().forEach((word) => word.classList.add("filled")));
      made.addEventListener("pointerleave", () => words().forEach((word) => word.classList.remove("filled")));
    }
    list.append(made);
  };
  const where = (of) => (of.passage ? `passage ${of.passage}, sentences ${of.sentences.join(", ")}` : "");
  answer.spans.forEach((span, i) => {
    const about = [part(task.answers[0], span.start, span.end), where(span), span.repeats.trim() && `repeats “${span.repeats.trim()}”`];
    pill(span.kind, about.filter(Boolean).join(" · "), () => change((said) => said.spans.splice(i, 1)), i);
  });
  answer.missing.forEach((one, i) => pill(one.kind, where(one), () => change((said) => said.missing.splice(i, 1))));
  return list;
}

/** What is marked in the first answer. */
function marking(labels) {
  const section = element("section", "step");
  section.append(element("h2", "", "Mark the errors of the answer"));
  const none = element("label", "check");
  const box = element("input");
  Object.assign(box, { type: "checkbox", id: "no-error", checked: answer.no_error });
  // Nothing is wrong: what was marked goes, and the correction is the answer again.
  box.addEventListener("change", () => change((said) => {
    said.no_error = box.checked;
    if (box.checked) Object.assign(said, { spans: [], missing: [], correction: null, no_passage_helps: false });
  }));
  none.append(box, "No error, and nothing is missing");
  section.append(text(), pills());
  if (labels.missing.length) {
    const add = button("Add what is missing", () => open({
      title: "What does the answer lack?", types: labels.missing, near: add.getBoundingClientRect(), back: add,
    }));
    add.id = "missing";
    section.append(add);
  }
  section.append(none);
  return section;
}

/** The first answer, to be corrected. */
function correcting() {
  const section = element("section", "step");
  section.append(element("h2", "", "Correct the answer"));
  const field = element("textarea");
  Object.assign(field, { rows: 5, id: "correction", value: answer.correction ?? task.answers[0] });
  let timer = 0;
  let isFresh = true;
  field.addEventListener("input", () => {
    // A stretch of typing is undone at once.
    if (isFresh) past.push(copy(answer));
    isFresh = false;
    undo.disabled = false;
    answer.correction = field.value === task.answers[0] ? null : field.value;
    clearTimeout(timer);
    timer = setTimeout(keep, 400);
  });
  field.addEventListener("blur", () => {
    isFresh = true;
  });
  const blank = element("label", "check");
  const box = element("input");
  Object.assign(box, { type: "checkbox", checked: answer.no_passage_helps });
  box.addEventListener("change", () => change((said) => {
    said.no_passage_helps = box.checked;
  }));
  blank.append(box, "No passage helps: the correction may be blank");
  section.append(labelled("Correction", field), button("Reset", () => change((said) => {
    said.correction = null;
  })), blank);
  return section;
}

/** All pairs of answers. */
function comparing() {
  const section = element("section", "step");
  section.append(element("h2", "", "Which answer is better?"));
  let pair = 0;
  for (let one = 0; one < task.answers.length; one += 1) {
    for (let other = one + 1; other < task.answers.length; other += 1) {
      const name = `${one + 1}v${other + 1}`;
      // By chance, and always the same for one person, the second stands on the left.
      const turned = task.turned[pair];
      const [left, right] = turned ? [other, one] : [one, other];
      const details = element("details", "pair");
      details.dataset.pair = name;
      details.open = pair === 0 || opened.has(name);
      details.addEventListener("toggle", () => (details.open ? opened.add(name) : opened.delete(name)));
      details.append(element("summary", "", `${one + 1} and ${other + 1}${answer.ranks[name] ? " ✓" : ""}`));
      const sides = element("div", "sides sides-2");
      for (const at of [left, right]) {
        const side = element("div", `prediction prediction-${at % 4}`);
        side.append(element("h3", "", `Answer ${at + 1}`), element("p", "text", task.answers[at]));
        sides.append(side);
      }
      const list = element("fieldset", "row");
      list.append(element("legend", "", "Better"));
      const values = [["first", `Answer ${one + 1}`], ["second", `Answer ${other + 1}`]];
      if (turned) values.reverse();
      values.splice(1, 0, ["tie", "As good"], ["bad", "Both bad"]);
      const much = element("fieldset", "row much");
      much.append(element("legend", "", "How much better"));
      const prefers = () => ["first", "second"].includes(answer.ranks[name]);
      const weigh = () => {
        much.hidden = !task.labels.strengths.length || !prefers();
        much.querySelectorAll("input").forEach((field) => {
          field.checked = answer.strengths[name] === field.value;
        });
      };
      for (const [value, words] of values) {
        list.append(radio(name, value, words, answer.ranks[name] === value, () => {
          change((said) => {
            said.ranks[name] = value;
            if (value === "tie" || value === "bad") delete said.strengths[name];
          }, false);
          weigh();
        }));
      }
      for (const strength of task.labels.strengths) {
        much.append(radio(`${name}-much`, strength.name, strength.label, false, () => change((said) => {
          said.strengths[name] = strength.name;
        }, false)));
      }
      weigh();
      list.addEventListener("change", () => {
        details.querySelector("summary").textContent = `${one + 1} and ${other + 1} ✓`;
      });
      details.append(sides, list, much);
      section.append(details);
      pair += 1;
    }
  }
  return section;
}
const opened = new Set();

/** The questions with their scales. */
function judging(labels) {
  const section = element("section", "step");
  section.append(element("h2", "", "Judge the text"), element("p", "text answer-text", task.answers[0]));
  for (const { name, question, from, to } of labels.questions) {
    const list = element("fieldset", "scale");
    list.append(element("legend", "", question));
    const row = element("div", "row");
    for (let value = from; value <= to; value += 1) {
      row.append(radio(name, value, String(value), answer.questions[name] === value, () => change((said) => {
        said.questions[name] = value;
      }, false)));
    }
    list.append(row);
    section.append(list);
  }
  return section;
}

/** A step whose heading hides and shows it; what is hidden stays so. */
function foldable(section) {
  const head = section.querySelector("h2");
  const title = head.textContent;
  const rest = [...section.childNodes].filter((child) => child !== head);
  const details = element("details");
  const summary = element("summary");
  details.open = !folded.has(title);
  details.addEventListener("toggle", () => (details.open ? folded.delete(title) : folded.add(title)));
  summary.append(head);
  details.append(summary, ...rest);
  section.append(details);
  return section;
}
const folded = new Set();

/** Everything that is asked. */
function draw() {
  const { labels } = task;
  const sections = [];
  if (labels.spans.length || labels.missing.length) sections.push(marking(labels));
  if (labels.correction) sections.push(correcting());
  if (labels.questions.length) sections.push(judging(labels));
  if (labels.comparison) sections.push(comparing());
  asked.replaceChildren(...sections.map(foldable));
  if (document.activeElement !== feedback) feedback.value = answer.feedback;
}

let later = 0;
feedback.addEventListener("input", () => {
  answer.feedback = feedback.value;
  clearTimeout(later);
  later = setTimeout(keep, 400);
});

undo.addEventListener("click", takeBack);
submit.addEventListener("click", async () => {
  if (await keep("done")) location.assign(work.dataset.next);
});
document.getElementById("skip")?.addEventListener("click", async () => {
  if (await keep("skipped", document.getElementById("reason").value)) location.assign(work.dataset.next);
});
document.addEventListener("keydown", (event) => {
  const writes = event.target.closest("textarea, input:not([type=radio], [type=checkbox])");
  if ((event.ctrlKey || event.metaKey) && event.key === "z" && !writes) {
    event.preventDefault();
    takeBack();
  }
  if ((event.ctrlKey || event.metaKey) && event.key === "Enter" && !submit.disabled) submit.click();
});

(async () => {
  const response = await fetch(`${base}/state`);
  if (!response.ok) return say(await why(response));
  task = await response.json();
  answer = task.answer;
  draw();
  show(task.judged);
})();
