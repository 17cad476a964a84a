// Saves what a page holds: the newest version, one request after the other. What the server does not answer stays in this browser and
// is sent again. What another window has saved meanwhile is never overwritten unseen: the server answers with both versions.
"use strict";

/** Seconds until the next try, the first to the last. */
const PAUSES = [1, 2, 4, 8, 15];

/** Milliseconds after which a request counts as lost. */
const PATIENCE = 20000;

/** A random name, so that the server can tell two windows apart. */
function randomName() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Saves to `path`. `key` names the place in this browser where unsaved versions stay. `told(state, text)` hears how saving goes:
 * `saved`, `saving`, `waiting`, `refused` or `conflict`. `saved(answer, body)` hears what the server answers; `conflict(both)` hears of
 * another version.
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

  // A browser may forbid storage; then only this window has the unsaved version.
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
    /** Saves this version, after some milliseconds without another one. */
    save(body, after = 0) {
      next = body;
      store({ body, revision, page: as, at: Date.now() });
      if (isStopped) return;
      clearTimeout(timer);
      if (after || tries) timer = setTimeout(pump, tries ? 1000 * PAUSES[Math.min(tries, PAUSES.length) - 1] : after);
      else pump();
    },
    /** Tries again at once. */
    again() {
      tries = 0;
      pump();
    },
    /** Goes on from another version: with `body` in its place, or with that version. */
    resolve(other, body) {
      revision = other;
      isStopped = false;
      next = body;
      if (body) store({ body, revision, page, at: Date.now() });
      else store(null);
      if (!body) told("saved", "Saved");
      pump();
    },
    /** The version that an earlier page could not save, if there is one; it is saved in that page's name. */
    left() {
      try {
        const places = Object.keys(localStorage).filter((known) => known.startsWith(`${key}#`) && known !== place);
        const all = places.map((known) => JSON.parse(localStorage.getItem(known)));
        places.forEach((known) => localStorage.removeItem(known));
        const newest = all.sort((a, b) => b.at - a.at)[0];
        if (!newest) return null;
        // It conflicts with what was saved after its page had read.
        revision = newest.revision;
        as = newest.page;
        return newest.body;
      } catch {
        return null;
      }
    },
  };
}
