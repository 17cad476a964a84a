// The page of projects: while a project is being created, the list is refreshed until it is done.
"use strict";

setTimeout(async function look() {
  try {
    const response = await fetch(location.pathname);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const now = page.getElementById("projects");
    const shown = document.getElementById("projects");
    // An unchanged list is not replaced, so that screen readers announce only changes.
    if (now && now.innerHTML !== shown.innerHTML) shown.replaceWith(now);
    if (now && !now.querySelector("[data-going]")) return;
  } catch {
    // The server may be restarting: try again.
  }
  setTimeout(look, 2000);
}, 1000);
