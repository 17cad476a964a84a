// The page of projects: what is being made is looked at again until it is there.
"use strict";

setTimeout(async function look() {
  try {
    const response = await fetch(location.pathname);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const now = page.getElementById("projects");
    const shown = document.getElementById("projects");
    // What has not changed stays: a screen reader hears of changes alone.
    if (now && now.innerHTML !== shown.innerHTML) shown.replaceWith(now);
    if (now && !now.querySelector("[data-going]")) return;
  } catch {
    // A server that is being started again is asked again.
  }
  setTimeout(look, 2000);
}, 1000);
