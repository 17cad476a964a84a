// Saves the newest version of a page's content, one request at a time. If the server does not answer, the content stays in this browser
// and is sent again. If another window has saved in the meantime, nothing is overwritten: the server responds with both versions.
"use strict";

/** Seconds to wait before each retry; the last value repeats. */
const PAUSES = [1, 2, 4, 8, 15];

/** Milliseconds after which a request is considered lost. */
const PATIENCE = 20000;

/** Returns a random name that identifies this window to the server. */
function randomName() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Creates an object that saves to `path`. `key` is the prefix under which this browser stores unsaved versions. Callbacks:
 * `told(state, text)` receives the state (`saved`, `saving`, `waiting`, `refused` or `conflict`), `saved(answer, body)` the server's
 * response, and `conflict(both, body)` this version and the one that another window saved.
 */
function saver({ path, key, revision, told, saved, conflict }) {
  const page = randomName();
  const place = `${key}#${page}`;
  let next = null;
  let isBusy = false;
  let isStopped = false;
  let tries = 0;
  let timer = 0;
  let since = performance.now();
  let as = page;

  // A browser may forbid storage. Then the unsaved version exists only in this window.
  const store = (what) => {
    try {
      if (what) localStorage.setItem(place, JSON.stringify(what));
      else localStorage.removeItem(place);
    } catch {
      // Nothing more can be done.
    }
  };

  async function send(body) {
    const headers = { "Content-Type": "application/json", "X-CSRF-Token": document.querySelector("meta[name=csrf]").content };
    const seconds = (performance.now() - since) / 1000;
    const signal = AbortSignal.timeout(PATIENCE);
    const response = await fetch(path, { method: "POST", headers, signal, body: JSON.stringify({ ...body, seconds, revision, page: as }) });
    if (response.ok) return { answer: await response.json() };
    if (response.status === 409) return { both: await response.json() };
    const why = (await window.why(response)) || "";
    return response.status >= 500 ? { later: why } : { refused: why };
  }

  function wait(text) {
    const pause = PAUSES[Math.min(tries, PAUSES.length - 1)];
    tries += 1;
    told("waiting", text);
    clearTimeout(timer);
    timer = setTimeout(pump, 1000 * pause);
  }

  async function pump() {
    clearTimeout(timer);
    if (isBusy || isStopped || !next) return;
    isBusy = true;
    const body = next;
    if (tries === 0) told("saving", "Saving …");
    let found;
    try {
      found = await send(body);
    } catch {
      found = { later: "" };
    }
    isBusy = false;
    if (found.later !== undefined) {
      return wait(found.later || "Not saved: the server does not answer. Your changes stay in this browser until it does.");
    }
    tries = 0;
    if (found.both) {
      isStopped = true;
      told("conflict", "Not saved: this task was changed in another window.");
      return conflict(found.both, body);
    }
    if (found.refused !== undefined) {
      if (next === body) next = null;
      told("refused", `Not saved: ${found.refused}`);
    } else {
      since = performance.now();
      revision = found.answer.revision;
      as = page;
      if (next === body) {
        next = null;
        store(null);
        told("saved", body.state === "open" ? "Saved" : "Submitted");
      }
      saved(found.answer, body);
    }
    pump();
  }

  addEventListener("online", () => {
    tries = 0;
    pump();
  });

  return {
    /** Saves this version after `after` milliseconds without a newer one. */
    save(body, after = 0) {
      next = body;
      store({ body, revision, page: as, at: Date.now() });
      if (isStopped) return;
      clearTimeout(timer);
      if (after || tries) timer = setTimeout(pump, tries ? 1000 * PAUSES[Math.min(tries, PAUSES.length) - 1] : after);
      else pump();
    },
    /** Retries immediately. */
    again() {
      tries = 0;
      pump();
    },
    /** Resolves a conflict with revision `other`: replaces it with `body`, or accepts it if `body` is null. */
    resolve(other, body) {
      revision = other;
      isStopped = false;
      next = body;
      if (body) store({ body, revision, page, at: Date.now() });
      else store(null);
      if (!body) told("saved", "Saved");
      pump();
    },
    /** Returns the version that an earlier page could not save, or null. It is saved under that page's name. */
    left() {
      try {
        const places = Object.keys(localStorage).filter((known) => known.startsWith(`${key}#`) && known !== place);
        const all = places.map((known) => JSON.parse(localStorage.getItem(known)));
        places.forEach((known) => localStorage.removeItem(known));
        const newest = all.sort((a, b) => b.at - a.at)[0];
        if (!newest) return null;
        // With its old revision, it conflicts with anything saved after its page was loaded.
        revision = newest.revision;
        as = newest.page;
        return newest.body;
      } catch {
        return null;
      }
    },
  };
}
