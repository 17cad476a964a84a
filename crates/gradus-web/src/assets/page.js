// What the scripts of all pages share: asking the server, and showing text from outside.
"use strict";

/** What a page would obey and not show, shown: as the server does it. */
function visible(text) {
  return text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufdd0-\ufdef]/g,
    (c) => `\\u{${c.codePointAt(0).toString(16)}}`,
  );
}

// Enter sends a message; with a touch keyboard, which has no other key for it, it starts a new line.
document.addEventListener("keydown", (event) => {
  const sends = event.ctrlKey || event.metaKey || (!event.shiftKey && !matchMedia("(pointer: coarse)").matches);
  if (event.key !== "Enter" || !sends || event.isComposing || !event.target.matches("[data-sends]")) return;
  event.preventDefault();
  event.target.form.requestSubmit();
});

/** Says what happened, to eyes and to screen readers. */
function say(text) {
  const status = document.getElementById("status");
  if (status && status.textContent !== text) status.textContent = text;
}

/** Sends `body` as JSON with the token of the page; throws what the server says is wrong. Asks again where it says when to. */
async function send(path, body, signal, tries = 3) {
  const headers = {
    "Content-Type": "application/json",
    "X-CSRF-Token": document.querySelector("meta[name=csrf]").content,
  };
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (response.status === 503 && tries > 1) {
    await new Promise((then) => setTimeout(then, 1000 * Number(response.headers.get("Retry-After") || 1)));
    return send(path, body, signal, tries - 1);
  }
  if (!response.ok) throw new Error(await why(response));
  return response;
}

/** Why the server did not do it: the sentence of its page. */
async function why(response) {
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  return page.querySelector("main p")?.textContent || `The server answered ${response.status}.`;
}

/** An element with text. */
function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = visible(text);
  return made;
}

/** The values of a stream of events, as they come. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
  }
}

/** What a piece of text has to tell: what is known of a token, or what it was worth. */
const TELLS = ".token[data-about], .judged[title], .worth[title]";
const about = element("div", "about");
about.hidden = true;
document.body.append(about);

/** Shows what is known of a piece of text, below it. */
function tellOf(piece) {
  for (const other of document.querySelectorAll(".current")) other.classList.remove("current");
  about.hidden = !piece;
  if (!piece) return;
  about.textContent = visible(piece.dataset.about ?? piece.title);
  const place = piece.getBoundingClientRect();
  about.style.left = `${Math.max(8, Math.min(place.left, innerWidth - about.offsetWidth - 8))}px`;
  about.style.top = `${place.bottom + 4}px`;
}

/** When the arrow keys were last used. */
let keyed = -1000;

// The pointer: a title is shown by the browser where there is a mouse.
document.addEventListener("pointerover", (event) => {
  const piece = event.target.closest?.(TELLS);
  if (piece ? piece.title && event.pointerType === "mouse" : about.hidden) return;
  // The arrow keys scroll the text below a mouse that stands still.
  if (event.pointerType === "mouse" && performance.now() - keyed < 500) return;
  tellOf(piece);
});

// The keyboard: in a text that has the focus, the arrow keys go from piece to piece.
document.addEventListener("keydown", (event) => {
  const area = event.target;
  const pieces = area.tabIndex === 0 && !area.matches("input, textarea, select, button, a") ? [...area.querySelectorAll(TELLS)] : [];
  if (event.key === "Escape") return tellOf(null);
  if (!pieces.length || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
  event.preventDefault();
  keyed = performance.now();
  const at = pieces.indexOf(area.querySelector(".current"));
  const to = { ArrowLeft: at < 0 ? pieces.length - 1 : at - 1, ArrowRight: at + 1, Home: 0, End: pieces.length - 1 }[event.key];
  const piece = pieces[Math.max(0, Math.min(pieces.length - 1, to))];
  piece.scrollIntoView({ block: "nearest" });
  tellOf(piece);
  piece.classList.add("current");
  say(about.textContent);
});
