// What the scripts of all pages share: asking the server, and showing text from outside.
"use strict";

/** What a page would obey and not show, shown: as the server does it. */
function visible(text) {
  return text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufdd0-\ufdef]/g,
    (c) => `\\u{${c.codePointAt(0).toString(16)}}`,
  );
}

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
