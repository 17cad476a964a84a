// Pages on which something is being created: the marked part is refreshed until it is done.
"use strict";

setTimeout(async function look() {
  try {
    const response = await fetch(location.href);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const now = page.querySelector("[data-refreshed]");
    const shown = document.querySelector("[data-refreshed]");
    // An unchanged part is not replaced, so that screen readers announce only changes.
    if (now && now.innerHTML !== shown.innerHTML) shown.replaceWith(now);
    if (now && !now.querySelector("[data-going]")) return;
  } catch {
    // The server may be restarting: try again.
  }
  setTimeout(look, 2000);
}, 1000);
