// The page of a task. It draws the questions of the label set, saves after every change, and shows what the server reports as still
// to do. Offsets are in code points, as on the server.
"use strict";

const work = document.querySelector("[data-task]");
const base = work.dataset.task;
const asked = document.getElementById("asked");
const feedback = document.getElementById("feedback");
const submit = document.getElementById("submit");
const undo = document.getElementById("undo");
const redo = document.getElementById("redo");
const again = document.getElementById("again");
const statusLine = document.getElementById("status");
const conflicts = document.getElementById("conflict");
let task = null;
let answer = null;
let past = [];
let future = [];
let saving = null;

/** Makes a deep copy. */
const copy = (value) => JSON.parse(JSON.stringify(value));

/** Creates a button with an action. */
function button(text, action, className = "") {
  const made = element("button", className, text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

/** Creates a form field with its label. */
function labeled(text, field) {
  const made = element("div", "field");
  const label = element("label", "", text);
  field.id ||= `field-${Math.random().toString(36).slice(2)}`;
  label.htmlFor = field.id;
  made.append(label, field);
  return made;
}

/** Creates a radio button with its label. */
function radio(name, value, text, chosen, action) {
  const made = element("label", "choice");
  const field = element("input");
  Object.assign(field, { type: "radio", name, value, checked: chosen });
  field.addEventListener("change", action);
  made.append(field, " ", element("span", "", text));
  return made;
}

/** Shows the state of saving. */
function told(state, text) {
  statusLine.dataset.state = state;
  again.hidden = state !== "waiting";
  say(text);
}

/** Saves the current annotation. */
function keep(state = "open", reason = "", after = 0) {
  saving.save({ answer: copy(answer), state, reason }, after);
}

/** Shows the first thing still to do and the number of others. The bar keeps its height, so that nothing moves under the pointer. */
function show({ problems, warnings }) {
  const todo = document.getElementById("todo");
  const items = problems.map((text, i) => Object.assign(element("li", "", text), { hidden: i > 0 }));
  if (problems.length > 1) items.push(element("li", "soft", `and ${problems.length - 1} more`));
  if (!problems.length) items.push(element("li", "good", "Complete. You can submit it."));
  items.push(...warnings.map((text) => element("li", "soft", text)));
  todo.replaceChildren(...items);
  submit.disabled = problems.length > 0;
}

function buttons() {
  undo.disabled = !past.length;
  redo.disabled = !future.length;
}

/** Field in which the person is typing. Uninterrupted typing is undone in one step. */
let typing = null;

/** Changes the annotation, records the change for undo, and saves it. */
function change(how, redraw = true) {
  typing = null;
  past.push(copy(answer));
  future = [];
  how(answer);
  buttons();
  if (redraw) draw();
  keep();
}

/** Undoes or redoes a change. */
function step(from, to) {
  if (!from.length) return;
  typing = null;
  to.push(answer);
  answer = from.pop();
  buttons();
  draw();
  keep();
}

/** Records what is typed into a field, as one step for undo, and saves it. */
function typed(field, how) {
  field.addEventListener("input", () => {
    if (typing !== field) past.push(copy(answer));
    typing = field;
    future = [];
    buttons();
    how(answer);
    keep("open", "", 400);
  });
  field.addEventListener("blur", () => {
    typing = null;
  });
}

/** Shows this window's version next to the one that another window saved, until the person chooses one. */
function conflict(both, body) {
  const list = (lines) => {
    const made = element("ul");
    made.append(...(lines.length ? lines : ["Nothing"]).map((text) => Object.assign(element("li", "", text), { dir: "auto" })));
    return made;
  };
  const side = (title, lines, action, text) => {
    const made = element("div");
    made.append(element("h3", "", title), list(lines), button(text, () => {
      conflicts.hidden = true;
      conflicts.replaceChildren();
      action();
    }));
    return made;
  };
  const sides = element("div", "sides sides-2");
  sides.append(
    side("In this window", both.mine, () => saving.resolve(both.revision, { ...body, answer: copy(answer), state: "open" }), "Keep this version"),
    side("Saved from another window", both.theirs, () => {
      past.push(answer);
      future = [];
      answer = both.answer;
      buttons();
      draw();
      saving.resolve(both.revision, null);
      reread();
    }, "Use the saved version"),
  );
  conflicts.replaceChildren(element("h2", "", "This task was changed in another window"), element("p", "", "Nothing is lost yet. Choose one version."), sides);
  conflicts.hidden = false;
  conflicts.scrollIntoView({ block: "center" });
  conflicts.focus();
}

/** Asks the server what is still to do. */
async function reread() {
  const response = await fetch(`${base}/state`);
  if (response.ok) show((await response.json()).judged);
}

/** Returns the code points of a text from `start` to `end`. */
const part = (text, start, end) => [...text].slice(start, end).join("");

/** Returns a text with the line ends that fields have. */
const lines = (text) => text.replace(/\r\n?/g, "\n");

/** Returns the index of a type among those with colors. */
const place = (kind) => [...task.labels.spans, ...task.labels.missing].findIndex((type) => type.name === kind);

/** Returns the label of a type. */
const label = (kind) => [...task.labels.spans, ...task.labels.missing].find((type) => type.name === kind)?.label ?? kind;

/** Returns the letter of an answer. Letters hide the order of the answers in the data. */
const letter = (at) => String.fromCharCode(65 + task.shown.order.indexOf(at));

/** Index of the word at the keyboard cursor. It is kept when the page is redrawn. */
let cursor = -1;
let from = -1;

/** Draws the answer word by word, with its marks. */
function text() {
  const all = task.words;
  const whole = [...task.answers[0]];
  const between = (start, end) => visible(whole.slice(start, end).join(""));
  const box = element("div", "answer-text");
  box.tabIndex = 0;
  box.dir = "auto";
  box.setAttribute("role", "application");
  box.setAttribute("aria-label", "The answer, word by word");
  const spans = all.map(([start, end]) => {
    const made = element("span", "word");
    made.textContent = between(start, end);
    return made;
  });
  let at = 0;
  let open = null;
  all.forEach(([start, end], i) => {
    const mark = answer.spans.findIndex((span) => span.start <= start && end <= span.end);
    const isNew = mark >= 0 && open?.mark !== mark;
    const gap = between(at, start);
    if (isNew || mark < 0) {
      box.append(gap);
      open = null;
    } else {
      open.made.append(gap);
    }
    if (isNew) {
      open = { mark, made: element("mark", `kind-${place(answer.spans[mark].kind)}`) };
      box.append(open.made);
    }
    if (mark >= 0) {
      spans[i].classList.add("marked");
      spans[i].dataset.mark = mark;
      open.made.append(spans[i]);
      if (answer.spans[mark].end === end) open.made.append(element("span", "chip", label(answer.spans[mark].kind)));
    } else {
      box.append(spans[i]);
    }
    at = end;
  });
  box.append(between(at, whole.length));
  const range = () => [Math.min(from, cursor), Math.max(from, cursor)];
  const paint = (isSaid = true) => {
    const [low, high] = range();
    spans.forEach((span, i) => {
      span.classList.toggle("cursor", i === cursor);
      span.classList.toggle("chosen", cursor >= 0 && i >= low && i <= high);
    });
    if (cursor >= 0 && isSaid) {
      const words = all.slice(low, high + 1).map(([start, end]) => part(task.answers[0], start, end)).join(" ");
      spoken.textContent = visible(`${low === high ? "" : "Selected: "}${words}`);
    }
  };
  const mark = (low, high, near, kind = null) => {
    const start = all[low][0];
    const end = all[high][1];
    // A selection that overlaps a mark is rejected.
    if (answer.spans.some((span) => span.start < end && start < span.end)) {
      spoken.textContent = "Part of this is marked already.";
      return;
    }
    const type = task.labels.spans.find((known) => known.name === kind);
    if (type?.asks === "nothing") {
      return change((said) => {
        said.spans.push({ kind, start, end, repeats: "", passage: 0, sentences: [] });
        said.no_error = false;
      });
    }
    close();
    [from, cursor] = [low, high];
    paint(false);
    // A tap selects a single word, so the pop-up offers buttons to extend the selection.
    const wider = [
      ["◂ Longer", low > 0 && !answer.spans.some((span) => span.end > all[low - 1][0] && span.end <= start), () => mark(low - 1, high, near)],
      ["Longer ▸", high + 1 < all.length && !answer.spans.some((span) => span.start < all[high + 1][1] && span.start >= end), () => mark(low, high + 1, near)],
    ];
    ask({ title: part(task.answers[0], start, end), types: task.labels.spans, near, start, end, back: ".answer-text", wider, kind });
  };
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = {
      ArrowRight: cursor + 1, ArrowDown: cursor + 1, ArrowLeft: cursor - 1, ArrowUp: cursor - 1, Home: 0, End: all.length - 1,
    }[event.key];
    const digit = /^[1-9]$/.test(event.key) ? task.labels.spans[Number(event.key) - 1] : null;
    if (to !== undefined && all.length) {
      cursor = Math.max(0, Math.min(all.length - 1, to));
      if (!event.shiftKey || from < 0) from = cursor;
      paint();
    } else if ((event.key === "Enter" || event.key === " ") && cursor >= 0) {
      const near = spans[cursor].getBoundingClientRect();
      if (spans[cursor].dataset.mark) relabel(Number(spans[cursor].dataset.mark), near);
      else mark(...range(), near);
    } else if (digit && cursor >= 0) {
      mark(...range(), spans[cursor].getBoundingClientRect(), digit.name);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  });
  // A drag, a double click or a tap selects words.
  const under = (event) => spans.indexOf(document.elementFromPoint(event.clientX, event.clientY)?.closest(".word"));
  let drag = null;
  // The end of a drag also fires a click event.
  let hasDragged = false;
  box.addEventListener("pointerdown", (event) => {
    hasDragged = false;
    const at = under(event);
    if (at < 0 || event.button !== 0) return;
    drag = { at, x: event.clientX, y: event.clientY, hasMoved: false };
  });
  box.addEventListener("pointermove", (event) => {
    if (!drag || !(event.buttons & 1) || event.pointerType === "touch") return;
    drag.hasMoved ||= Math.hypot(event.clientX - drag.x, event.clientY - drag.y) > 4;
    const at = under(event);
    if (!drag.hasMoved || at < 0) return;
    [from, cursor] = [drag.at, at];
    paint();
  });
  box.addEventListener("pointerup", (event) => {
    const was = drag;
    drag = null;
    hasDragged = Boolean(was?.hasMoved);
    if (was?.hasMoved && cursor >= 0) mark(...range(), { left: event.clientX, bottom: event.clientY });
  });
  box.addEventListener("pointercancel", () => {
    drag = null;
  });
  box.addEventListener("click", (event) => {
    const at = under(event);
    if (at < 0 || hasDragged) return;
    const near = spans[at].getBoundingClientRect();
    if (spans[at].dataset.mark) {
      relabel(Number(spans[at].dataset.mark), near);
    } else if (event.pointerType === "touch") {
      mark(at, at, near);
    } else if (!popup) {
      [from, cursor] = [at, at];
      paint();
    }
  });
  box.addEventListener("dblclick", (event) => {
    const at = under(event);
    if (at >= 0 && !spans[at].dataset.mark) mark(at, at, { left: event.clientX, bottom: event.clientY });
  });
  cursor = Math.min(cursor, all.length - 1);
  from = Math.min(from, all.length - 1);
  if (cursor >= 0) spans[cursor].classList.add("cursor");
  return box;
}

/** Announces the cursor to screen readers. */
const spoken = element("p", "unseen");
spoken.setAttribute("aria-live", "polite");
document.body.append(spoken);

/** Opens an existing mark to change its type or to remove it. */
function relabel(at, near) {
  const span = answer.spans[at];
  close();
  ask({
    title: part(task.answers[0], span.start, span.end), types: task.labels.spans, near, start: span.start, end: span.end,
    back: ".answer-text", kind: span.kind, replaces: at,
  });
}

let popup = null;
/** Callback for a click on a sentence in a passage, set while a pop-up asks for sentences. */
let citing = null;

function cite(how) {
  citing = how;
  document.querySelector(".passages")?.classList.toggle("citing", Boolean(how));
  document.querySelectorAll("[data-sentence].cited").forEach((sentence) => sentence.classList.remove("cited"));
}

document.querySelector(".passages")?.addEventListener("click", (event) => {
  const sentence = event.target.closest("[data-sentence]");
  if (citing && sentence) citing(Number(sentence.dataset.passage), Number(sentence.dataset.sentence));
});

function close(back) {
  popup?.remove();
  popup = null;
  cite(null);
  document.querySelectorAll(".chosen").forEach((word) => word.classList.remove("chosen"));
  if (back) document.querySelector(back)?.focus();
}

/** Opens the pop-up that asks for a type and its details. */
function ask({ title, types, near, start, end, back, wider = [], kind = null, replaces = null }) {
  const isSpan = start !== undefined;
  const before = isSpan ? lines(part(task.answers[0], 0, start)) : "";
  const known = replaces === null ? null : answer.spans[replaces];
  const box = element("div", "popup");
  const form = element("form");
  box.append(form);
  box.setAttribute("role", "dialog");
  box.setAttribute("aria-label", isSpan ? "Mark an error" : "Missing information");
  const head = element("p", "handle", isSpan ? `“${title}”` : title);
  head.dir = "auto";
  const more = element("div");
  const confirm = element("button", "main", known ? "Change" : "Confirm");
  const chosen = {
    kind, repeats: known?.repeats || before, passage: known?.passage || 1, sentences: known ? [...known.sentences] : [],
  };
  const list = element("fieldset");
  list.append(element("legend", "", isSpan ? "Type of error" : "Type of missing information"));
  const check = () => {
    const type = types.find((one) => one.name === chosen.kind);
    const asks = isSpan ? type?.asks : type && "sentences";
    const repeats = chosen.repeats.trim();
    confirm.disabled = !type || (asks === "earlier_text" && !(repeats && before.includes(repeats))) || (asks === "sentences" && !chosen.sentences.length);
    return asks;
  };
  const details = () => {
    more.replaceChildren();
    const type = types.find((one) => one.name === chosen.kind);
    const asks = check();
    cite(null);
    if (type?.note) more.append(element("p", "small", type.note));
    if (asks === "earlier_text") {
      const field = element("textarea");
      Object.assign(field, { rows: 3, dir: "auto", value: chosen.repeats });
      const warning = element("p", "small soft");
      const warn = () => {
        warning.textContent = chosen.repeats === before ? "This is all the earlier text. Keep only the repeated part." : "";
        check();
      };
      field.addEventListener("input", () => {
        chosen.repeats = field.value;
        warn();
      });
      more.append(labeled("The earlier text that it repeats", field), button("Reset", () => {
        chosen.repeats = field.value = before;
        warn();
      }), warning);
      warn();
    }
    if (asks === "sentences") sentences(more, chosen, check);
  };
  types.forEach((type, i) => {
    const option = radio("kind", type.name, type.label, type.name === chosen.kind, () => {
      chosen.kind = type.name;
      details();
    });
    option.classList.add(`kind-${place(type.name)}`, "kind");
    if (i < 9) option.append(" ", element("kbd", "", String(i + 1)));
    list.append(option);
  });
  const row = element("div", "row");
  row.append(confirm, button("Cancel", () => close(back)));
  for (const [words, isPossible, action] of wider) {
    if (isPossible) row.append(button(words, action, "wider"));
  }
  if (known) {
    row.append(button("Remove", () => {
      close();
      change((said) => said.spans.splice(replaces, 1));
      document.querySelector(back)?.focus();
    }));
  }
  form.append(head, list, more, row);
  details();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (confirm.disabled) return;
    const type = types.find((one) => one.name === chosen.kind);
    const at = { passage: chosen.passage, sentences: [...chosen.sentences].sort((a, b) => a - b) };
    close();
    change((said) => {
      if (isSpan) {
        const repeats = type.asks === "earlier_text" ? chosen.repeats : "";
        const where = type.asks === "sentences" ? at : { passage: 0, sentences: [] };
        const made = { kind: type.name, start, end, repeats, ...where };
        if (known) said.spans.splice(replaces, 1, made);
        else said.spans.push(made);
      } else if (!said.missing.some((one) => JSON.stringify(one) === JSON.stringify({ kind: type.name, ...at }))) {
        said.missing.push({ kind: type.name, ...at });
      }
      said.no_error = false;
    });
    document.querySelector(isSpan ? ".answer-text" : "#missing")?.focus();
  });
  box.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Escape") close(back);
    const type = /^[1-9]$/.test(event.key) && !event.target.matches("textarea, select") ? types[Number(event.key) - 1] : null;
    if (type) list.querySelectorAll("input")[types.indexOf(type)].click();
    // Prevents Enter from confirming by accident.
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
  (list.querySelector("input:checked") ?? list.querySelector("input")).focus();
}

/** Adds fields to choose a passage and its sentences. Clicks in the passages choose sentences too. */
function sentences(more, chosen, check) {
  if (!task.passages.length) {
    more.append(element("p", "small bad", "This task has no passages, so this type cannot be used."));
    return;
  }
  const select = element("select");
  task.passages.forEach((passage, i) => {
    select.append(Object.assign(element("option", "", `${i + 1}: ${passage.title}`), { value: i + 1, selected: i + 1 === chosen.passage }));
  });
  const list = element("div", "cite-list");
  list.setAttribute("role", "group");
  list.setAttribute("aria-label", "Sentences");
  const fill = () => {
    const { title, sentences: own } = task.passages[chosen.passage - 1];
    list.replaceChildren(...[title, ...own].map((words, s) => {
      const made = element("label", "check");
      const box = Object.assign(element("input"), { type: "checkbox", value: s, checked: chosen.sentences.includes(s) });
      box.addEventListener("change", () => toggle(chosen.passage, s));
      made.append(box, element("span", "small", `S${s} ${words}`));
      return made;
    }));
    document.querySelectorAll("[data-sentence]").forEach((sentence) => sentence.classList.toggle(
      "cited", Number(sentence.dataset.passage) === chosen.passage && chosen.sentences.includes(Number(sentence.dataset.sentence)),
    ));
    check();
  };
  const toggle = (passage, sentence) => {
    if (passage !== chosen.passage) Object.assign(chosen, { passage, sentences: [] });
    select.value = passage;
    chosen.sentences = chosen.sentences.includes(sentence) ? chosen.sentences.filter((one) => one !== sentence) : [...chosen.sentences, sentence];
    fill();
  };
  select.addEventListener("change", () => {
    Object.assign(chosen, { passage: Number(select.value), sentences: [] });
    fill();
  });
  more.append(labeled("Passage", select), list);
  cite(toggle);
  fill();
}

/** Draws the list of marks. */
function pills() {
  const list = element("ul", "pills");
  list.setAttribute("aria-label", "Your marks");
  const pill = (kind, about, remove, mark) => {
    const made = element("li", `pill kind-${place(kind)}`);
    made.append(element("b", "", label(kind)), " ", Object.assign(element("span", "", about), { dir: "auto" }), " ");
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

/** Draws the step for marking errors. */
function marking(labels) {
  const section = element("section", "step");
  section.append(element("h2", "", "Mark the errors in the answer"));
  const none = element("label", "check");
  const box = element("input");
  Object.assign(box, { type: "checkbox", id: "no-error", checked: answer.no_error });
  // “No error” removes all marks and resets the correction to the answer.
  box.addEventListener("change", () => change((said) => {
    said.no_error = box.checked;
    if (box.checked) Object.assign(said, { spans: [], missing: [], correction: null, no_passage_helps: false });
  }));
  none.append(box, "No error, and nothing is missing");
  section.append(element("p", "small soft", "Drag over words, double-click one, or tap one. Click a mark to change it."), text(), pills());
  if (labels.missing.length) {
    const add = button("Add missing information", () => {
      close();
      ask({ title: "What is missing from the answer?", types: labels.missing, near: add.getBoundingClientRect(), back: "#missing" });
    });
    add.id = "missing";
    section.append(add);
  }
  section.append(none);
  return section;
}

/** Draws the step for correcting the answer. */
function correcting() {
  const section = element("section", "step");
  section.append(element("h2", "", "Correct the answer"));
  const field = element("textarea");
  Object.assign(field, { rows: 5, id: "correction", dir: "auto", value: answer.correction ?? task.answers[0] });
  typed(field, (said) => {
    said.correction = field.value === lines(task.answers[0]) ? null : field.value;
  });
  const blank = element("label", "check");
  const box = element("input");
  Object.assign(box, { type: "checkbox", checked: answer.no_passage_helps });
  box.addEventListener("change", () => change((said) => {
    said.no_passage_helps = box.checked;
  }));
  blank.append(box, task.passages.length ? "No passage helps: the correction may be empty" : "No correction is possible: it may be empty");
  section.append(labeled("Correction", field), button("Reset", () => change((said) => {
    said.correction = null;
  })), blank);
  return section;
}

/** Draws the step for comparing all pairs of answers, in the order of their letters. */
function comparing() {
  const section = element("section", "step");
  section.append(element("h2", "", "Which answer is better?"));
  const { order, swapped } = task.shown;
  const names = [];
  for (let one = 0; one < order.length; one += 1) {
    for (let other = one + 1; other < order.length; other += 1) names.push([one, other]);
  }
  // Pairs by letters: A and B, A and C, …
  const pairs = names.map(([i, j]) => [Math.min(order[i], order[j]), Math.max(order[i], order[j])]);
  const index = new Map(names.map(([one, other], at) => [`${one},${other}`, at]));
  const isOnly = pairs.length === 1;
  const firstOpen = pairs.find(([one, other]) => !answer.ranks[`${one + 1}v${other + 1}`]) ?? pairs[0];
  for (const pair of pairs) {
    const [one, other] = pair;
    const name = `${one + 1}v${other + 1}`;
    const [left, right] = swapped[index.get(`${one},${other}`)] ? [other, one] : [one, other];
    const letters = [letter(left), letter(right)].sort().join(" and ");
    const head = () => `${letters}${answer.ranks[name] ? " ✓" : ""}`;
    const made = element(isOnly ? "div" : "details", "pair");
    made.dataset.pair = name;
    const summary = element("summary", "", head());
    if (!isOnly) {
      made.open = opened.has(name) || (!opened.size && pair === firstOpen);
      made.addEventListener("toggle", () => (made.open ? opened.add(name) : opened.delete(name)));
      made.append(summary);
    }
    const sides = element("div", "sides sides-2");
    for (const at of [left, right]) {
      const side = element("div", "prediction");
      side.append(element("h3", "", `Answer ${letter(at)}`), Object.assign(element("p", "text", task.answers[at]), { dir: "auto" }));
      sides.append(side);
    }
    const list = element("fieldset", "row choices");
    list.append(element("legend", "", `Which is better, ${letters.replace(" and ", " or ")}?`));
    const value = (at) => (at === one ? "first" : "second");
    const values = [[value(left), `${letter(left)} is better`], ["tie", "Tie"], ["bad", "Both bad"], [value(right), `${letter(right)} is better`]];
    const much = element("fieldset", "row choices much");
    much.append(element("legend", "", "How much better?"));
    const prefers = () => ["first", "second"].includes(answer.ranks[name]);
    const weigh = () => {
      much.hidden = !task.labels.strengths.length || !prefers();
      much.querySelectorAll("input").forEach((field) => {
        field.checked = answer.strengths[name] === field.value;
      });
    };
    values.forEach(([value, words], i) => {
      const option = radio(name, value, words, answer.ranks[name] === value, () => {
        change((said) => {
          said.ranks[name] = value;
          if (value === "tie" || value === "bad") delete said.strengths[name];
        }, false);
        weigh();
        summary.textContent = head();
        if (!task.labels.strengths.length || !prefers()) onward(made);
      });
      option.append(" ", element("kbd", "", String(i + 1)));
      list.append(option);
    });
    for (const strength of task.labels.strengths) {
      much.append(radio(`${name}-much`, strength.name, strength.label, false, () => {
        change((said) => {
          said.strengths[name] = strength.name;
        }, false);
        onward(made);
      }));
    }
    weigh();
    made.append(sides, list, much);
    section.append(made);
  }
  return section;
}
const opened = new Set();

/** Opens the next pair that has no choice yet, and returns it. */
function onward(pair) {
  const all = [...document.querySelectorAll("details.pair")];
  const open = all.slice(all.indexOf(pair) + 1).concat(all).find((other) => !answer.ranks[other.dataset.pair]);
  if (open) open.open = true;
  return open;
}

/** Draws the step for rating the answer on scales. */
function judging(labels) {
  const section = element("section", "step");
  section.append(element("h2", "", "Rate the answer"));
  if (!labels.spans.length && !labels.missing.length) {
    section.append(Object.assign(element("p", "text answer-text", task.answers[0]), { dir: "auto" }));
  }
  for (const { name, question, from: least, to: most, low, high } of labels.questions) {
    const list = element("fieldset", "scale");
    list.dataset.scale = name;
    list.append(element("legend", "", question));
    const row = element("div", "row choices");
    if (low) row.append(element("span", "soft small", low));
    for (let value = least; value <= most; value += 1) {
      row.append(radio(name, value, String(value), answer.questions[name] === value, () => change((said) => {
        said.questions[name] = value;
      }, false)));
    }
    if (high) row.append(element("span", "soft small", high));
    list.append(row);
    section.append(list);
  }
  return section;
}

/** Makes a step collapsible by its heading. A collapsed step stays collapsed when the page is redrawn. */
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

/** Draws all steps of the task. */
function draw() {
  const { labels } = task;
  const sections = [];
  if (labels.spans.length || labels.missing.length) sections.push(marking(labels));
  if (labels.correction) sections.push(correcting());
  if (labels.questions.length) sections.push(judging(labels));
  if (labels.comparison) sections.push(comparing());
  asked.replaceChildren(...(sections.length > 1 ? sections.map(foldable) : sections));
  if (feedback.value !== answer.feedback) feedback.value = answer.feedback;
}

typed(feedback, (said) => {
  said.feedback = feedback.value;
});

undo.addEventListener("click", () => step(past, future));
redo.addEventListener("click", () => step(future, past));
again.addEventListener("click", () => saving.again());
submit.addEventListener("click", () => keep("done"));
document.getElementById("skip")?.addEventListener("click", () => keep("skipped", document.getElementById("reason").value));
document.querySelectorAll("[data-take]").forEach((take) => take.addEventListener("click", () => {
  change((said) => Object.assign(said, copy(task.said[Number(take.dataset.take)].answer)));
  asked.scrollIntoView({ block: "start" });
}));

/** Applies a digit key to the focused pair or scale, or to the first one without a choice. */
function choose(digit, target) {
  const pair = target.closest(".pair") ?? [...document.querySelectorAll(".pair")].find((one) => !answer.ranks[one.dataset.pair]) ?? document.querySelector(".pair");
  const scale = target.closest(".scale") ?? [...document.querySelectorAll(".scale")].find((one) => !(one.dataset.scale in answer.questions));
  const field = target.closest(".pair") || !scale
    ? pair?.querySelectorAll(".choices:not(.much) input")[digit - 1]
    : scale.querySelector(`input[value="${digit}"]`);
  if (!field) return false;
  if (pair && field.closest("details.pair")) field.closest("details.pair").open = true;
  field.focus();
  field.click();
  // The next digit is for the next pair, unless this one still asks how much better its answer is.
  const decided = field.closest("details.pair");
  if (decided?.querySelector(".much").hidden) onward(decided)?.querySelector("input").focus();
  return true;
}

document.addEventListener("keydown", (event) => {
  const writes = event.target.closest("textarea, select, input:not([type=radio], [type=checkbox])");
  const command = event.ctrlKey || event.metaKey;
  if (command && event.key.toLowerCase() === "z" && !writes) {
    event.preventDefault();
    if (event.shiftKey) step(future, past);
    else step(past, future);
  } else if (command && event.key.toLowerCase() === "y" && !writes) {
    event.preventDefault();
    step(future, past);
  } else if (command && event.key === "Enter" && !submit.disabled) {
    submit.click();
  } else if (/^[0-9]$/.test(event.key) && !command && !event.altKey && !writes && !popup && task) {
    if (choose(Number(event.key), event.target)) event.preventDefault();
  }
});

// On a narrow screen, the answer comes first, and a tap opens the passages.
if (matchMedia("(max-width: 60rem)").matches) document.getElementById("passages")?.removeAttribute("open");

(async () => {
  const response = await fetch(`${base}/state`);
  if (!response.ok) return say(await why(response));
  task = await response.json();
  answer = task.answer;
  saving = saver({
    path: `${base}/keep`,
    key: `gradus ${task.person} ${base}`,
    revision: task.revision,
    told,
    saved(found, body) {
      show(found);
      if (body.state !== "open") location.assign(work.dataset.next);
    },
    conflict,
  });
  const left = saving.left();
  if (left) answer = left.answer;
  draw();
  show(task.judged);
  if (left) saving.save({ ...left, state: "open" });
})();
