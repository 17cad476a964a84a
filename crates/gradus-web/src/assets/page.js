// Functions shared by the scripts of all pages: requests to the server, and safe display of untrusted text.
"use strict";

/** Makes control characters visible, as the server does. Line ends of Windows are line ends. */
function visible(text) {
  return text.replaceAll("\r\n", "\n").replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufdd0-\ufdef]/g,
    (c) => `\\u{${c.codePointAt(0).toString(16)}}`,
  );
}

// Enter sends a message. On touch keyboards it starts a new line, because they have no Shift+Enter.
document.addEventListener("keydown", (event) => {
  const sends = event.ctrlKey || event.metaKey || (!event.shiftKey && !matchMedia("(pointer: coarse)").matches);
  if (event.key !== "Enter" || !sends || event.isComposing || !event.target.matches("[data-sends]")) return;
  event.preventDefault();
  event.target.form.requestSubmit();
});

// Error pages lead back to the form or the list that they come from.
for (const link of document.querySelectorAll("[data-back]")) {
  link.hidden = history.length < 2;
  link.addEventListener("click", (event) => {
    event.preventDefault();
    history.back();
  });
}

// An invalid field in a closed section would silently prevent sending the form. The event does not bubble.
document.addEventListener("invalid", (event) => {
  for (let at = event.target.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
}, true);

/** Shows a status message and announces it to screen readers. */
function say(text) {
  const status = document.getElementById("status");
  if (status && status.textContent !== text) status.textContent = text;
}

/** Requests an address. If the server does not answer, the error says so. Browsers only say that something failed. */
async function request(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Check that it runs, and try again.");
  }
}

/** Sends `body` as JSON with the page's CSRF token. Retries after status 503, and throws the server's error message. */
async function send(path, body, signal, tries = 3) {
  const headers = {
    "Content-Type": "application/json",
    "X-CSRF-Token": document.querySelector("meta[name=csrf]").content,
  };
  const response = await request(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (response.status === 503 && tries > 1) {
    await new Promise((then) => setTimeout(then, 1000 * Number(response.headers.get("Retry-After") || 1)));
    return send(path, body, signal, tries - 1);
  }
  if (!response.ok) throw new Error(await why(response));
  return response;
}

/** Returns the error message and the hint from the server's error page. */
async function why(response) {
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const parts = [...page.querySelectorAll("main [data-why]")].map((part) => part.textContent);
  return parts.join(" ") || `The server answered ${response.status}.`;
}

/** Creates an element with text. */
function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = visible(text);
  return made;
}

/** Yields the values of an event stream as they arrive. */
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

/** Selector of text with details to show: the probability of a token, or the value of a segment. */
const TELLS = ".token[data-about], .judged[title], .worth[title]";
const about = element("div", "about");
about.hidden = true;
document.body.append(about);

/** Shows the details of a piece of text below it. */
function tellOf(piece) {
  for (const other of document.querySelectorAll(".current")) other.classList.remove("current");
  about.hidden = !piece;
  if (!piece) return;
  about.textContent = visible(piece.dataset.about ?? piece.title);
  const place = piece.getBoundingClientRect();
  about.style.left = `${Math.max(8, Math.min(place.left, innerWidth - about.offsetWidth - 8))}px`;
  about.style.top = `${place.bottom + 4}px`;
}

/** Time at which the arrow keys were last used. */
let keyed = -1000;

// Pointer: with a mouse, the browser itself shows the `title`.
document.addEventListener("pointerover", (event) => {
  const piece = event.target.closest?.(TELLS);
  if (piece ? piece.title && event.pointerType === "mouse" : about.hidden) return;
  // The arrow keys can scroll the text under a mouse that does not move.
  if (event.pointerType === "mouse" && performance.now() - keyed < 500) return;
  tellOf(piece);
});

// Keyboard: in a focused text, the arrow keys move from piece to piece.
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
