// The chat page: sends turns, shows answers while they stream, and reloads the thread from the server after each answer.
"use strict";

const chat = document.querySelector("[data-chat]");
const base = `/chat/${chat.dataset.chat}`;
const thread = document.getElementById("thread");
const form = document.getElementById("say");
const field = document.getElementById("text");
const stop = document.getElementById("stop");
const composer = document.querySelector(".composer");
let going = null;

/** Reloads the thread from the server. */
async function renew() {
  const response = await request(`${base}/thread`);
  if (!response.ok) throw new Error(await why(response));
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  thread.replaceChildren(...page.body.childNodes);
}

/** Returns the last visible message, which is the parent of the next one. */
function leaf() {
  const turns = thread.querySelectorAll("article.turn");
  const last = turns[turns.length - 1];
  if (!last) return null;
  // Of two answers side by side, the conversation continues from the preferred one.
  const right = last.querySelector("[data-vote=right][aria-pressed=true]");
  return Number(right ? last.querySelectorAll(".answer")[1].dataset.message : last.dataset.message);
}

let doing = 0;

/** Runs an action and shows its errors. */
async function attempt(what) {
  doing += 1;
  chat.setAttribute("aria-busy", "true");
  try {
    await what();
  } catch (error) {
    say(error.name === "AbortError" ? "Stopped." : error.message);
  } finally {
    doing -= 1;
    if (doing === 0) chat.removeAttribute("aria-busy");
  }
}

/** Adds an empty answer for each side, to stream into. */
function places() {
  const sides = Number(chat.dataset.sides);
  const turn = element("article", "turn assistant");
  const row = element("div", `sides sides-${sides}`);
  const answers = [];
  for (let side = 0; side < sides; side += 1) {
    const answer = element("div", "answer");
    answer.append(element("h2", "", sides === 1 ? "Answer" : side === 0 ? "Left" : "Right"));
    const text = element("div", "text writing");
    answer.append(text);
    row.append(answer);
    answers.push({ text, said: "" });
  }
  turn.append(row);
  thread.append(turn);
  return answers;
}

/** Requests the models' answers to a turn. */
async function answer(parent) {
  if (going) return;
  going = new AbortController();
  stop.hidden = false;
  let failed = "";
  try {
    // Earlier answers to this turn are other branches: the new answer follows the turn directly.
    const turn = thread.querySelector(`article[data-message="${parent}"]`);
    while (turn && turn.nextSibling) turn.nextSibling.remove();
    const answers = places();
    toEnd();
    say("Answering …");
    const response = await send(`${base}/answer`, { parent }, going.signal);
    for await (const event of events(response)) {
      const place = answers[event.side];
      if (event.text) {
        place.said += event.text;
        place.text.textContent = visible(place.said);
        stay();
      }
      if (event.error) failed = event.error;
      if (event.end || event.error) place.text.classList.remove("writing");
    }
    say(failed || "Answered.");
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    // Give the server time to notice the disconnect and to store the partial answer.
    await new Promise((done) => setTimeout(done, 300));
    say("Stopped.");
  } finally {
    going = null;
    stop.hidden = true;
    const follows = below() < NEAR;
    await renew();
    // The buttons for votes are at the end.
    if (follows) toEnd();
    if (failed) say(failed);
  }
}

/** Distance in pixels at which the page still follows the answer. */
const NEAR = 160;

/** Returns how far the end of the thread is below the field for messages. In narrow windows, more of the page follows the thread. */
function below() {
  return thread.getBoundingClientRect().bottom - composer.getBoundingClientRect().top;
}

/** Scrolls to the end of the thread. */
function toEnd() {
  if (below() > 0) scrollBy(0, below());
}

/** Scrolls along with the answer, unless the reader has scrolled up. */
function stay() {
  if (below() < NEAR) toEnd();
}

/** Sends `text` as a reply to `parent`, and requests the answers. */
async function speak(text, parent) {
  const response = await send(`${base}/say`, { text, parent });
  const { message } = await response.json();
  await renew();
  await answer(message);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = field.value;
  if (!text.trim() || going) return;
  attempt(async () => {
    const parent = leaf();
    field.value = "";
    try {
      await speak(text, parent);
    } catch (error) {
      if (!field.value) field.value = text;
      throw error;
    }
    field.focus();
  });
});

stop.addEventListener("click", () => going && going.abort());

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && going) going.abort();
  const writes = event.target.closest("input, textarea, select, [contenteditable]");
  if (writes || event.ctrlKey || event.metaKey || event.altKey || !/^[1-4]$/.test(event.key)) return;
  const groups = thread.querySelectorAll(".votes");
  const last = groups[groups.length - 1];
  if (last) last.querySelectorAll("[data-vote]")[Number(event.key) - 1].click();
});

/** Returns the text of a message as it is stored. The page shows its invisible characters in another form. */
const source = (text) => JSON.parse(text.dataset.source);

/** Replaces a turn with a field to edit it. */
function edit(turn) {
  const text = turn.querySelector(".text");
  if (turn.querySelector("form")) return;
  const editor = element("form", "edit");
  const field = element("textarea");
  const before = source(text);
  field.value = before;
  // Fields have other line ends than some texts.
  const begun = field.value;
  field.rows = 3;
  field.setAttribute("aria-label", "Your message, edited");
  const save = element("button", "main", "Send instead");
  const leave = element("button", "", "Cancel");
  leave.type = "button";
  const row = element("div", "row");
  row.append(save, leave);
  editor.append(field, row);
  const button = turn.querySelector("[data-edit]");
  text.hidden = true;
  button.hidden = true;
  text.after(editor);
  field.focus();
  const close = () => {
    editor.remove();
    text.hidden = false;
    button.hidden = false;
    button.focus();
  };
  leave.addEventListener("click", close);
  editor.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) editor.requestSubmit();
    event.stopPropagation();
  });
  editor.addEventListener("submit", (event) => {
    event.preventDefault();
    const parent = turn.dataset.parent ? Number(turn.dataset.parent) : null;
    const said = field.value === begun ? before : field.value;
    if (said.trim()) attempt(() => speak(said, parent));
  });
}

/** Switches a turn's answers between text and tokens with their probabilities. */
async function tokens(turn, button) {
  const shown = button.getAttribute("aria-pressed") === "true";
  button.setAttribute("aria-pressed", String(!shown));
  for (const answer of turn.querySelectorAll(".answer")) {
    const text = answer.querySelector(".text");
    if (shown) {
      if (text.before) text.replaceChildren(...text.before);
      text.classList.toggle("rich", Boolean(text.isRich));
      continue;
    }
    const response = await request(`${base}/tokens/${answer.dataset.message}`);
    text.before = [...text.childNodes];
    text.isRich = text.classList.contains("rich");
    const spans = (await response.json()).map(([said, logprob, likeliest]) => {
      const span = element("span", "token", said);
      const step = Math.min(4, Math.floor(-logprob));
      span.classList.add(`doubt-${step}`);
      span.dataset.about = [
        `${JSON.stringify(said)}: ${(100 * Math.exp(logprob)).toFixed(1)} % (${logprob.toFixed(3)})`,
        ...likeliest.map(([other, its]) => `${JSON.stringify(other)} ${(100 * Math.exp(its)).toFixed(1)} %`),
      ].join("\n");
      return span;
    });
    if (!spans.length) continue;
    text.classList.remove("rich");
    text.replaceChildren(...spans);
  }
}

/** Colors the judged segments of an answer by one part of the reward, or by the total. */
function color(answer, button) {
  const sum = (values) => values.reduce((all, value) => all + (value ?? 0), 0);
  const worth = (values) => (button.dataset.part === "all" ? sum(values) : values[Number(button.dataset.part)] ?? 0);
  const spans = [...answer.querySelectorAll("[data-values]")].map((span) => [span, worth(JSON.parse(span.dataset.values))]);
  const most = Math.max(...spans.map(([, value]) => Math.abs(value)));
  for (const [span, value] of spans) {
    const size = Math.ceil((Math.abs(value) / most) * 3);
    span.className = value === 0 ? "judged" : `judged worth ${value < 0 ? "worse" : "better"}-${size}`;
  }
  for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
}

/** Copies a text to the clipboard. If the browser does not allow this, selects the element that shows the text. */
async function copy(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    getSelection().selectAllChildren(shown);
    say("Press Ctrl C to copy the selected text.");
  }
}

thread.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const turn = button.closest("article");
  if (button.dataset.edit) edit(turn);
  if (button.dataset.copy !== undefined) {
    const code = button.closest("figure").querySelector("code");
    copy(code.textContent, code);
  }
  if (button.dataset.copyAnswer !== undefined) {
    const text = turn.querySelector(".answer .text");
    copy(source(text), text);
  }
  if (button.dataset.answer) attempt(() => answer(Number(button.dataset.answer)));
  if (button.dataset.part !== undefined) color(button.closest(".answer"), button);
  if (button.dataset.tokens !== undefined) attempt(() => tokens(turn, button));
  if (button.dataset.show) {
    attempt(async () => {
      await send(`${base}/show`, { message: Number(button.dataset.show) });
      await renew();
    });
  }
  if (button.dataset.vote) {
    attempt(async () => {
      await send(`${base}/vote`, { pair: Number(button.dataset.pair), choice: button.dataset.vote });
      await renew();
      say("Your vote is saved.");
    });
  }
});

// The first message was written on the previous page and still needs an answer.
if (location.hash === "#answer") {
  history.replaceState(null, "", location.pathname);
  const button = thread.querySelector("button[data-answer]");
  if (button) button.click();
}
