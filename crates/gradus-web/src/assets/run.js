// The page of one run: reloads when the run starts, ends or resumes.
"use strict";

(function () {
  const shown = document.querySelector("[data-state]");
  const bare = document.getElementById("bare");
  // A run that has ended and is not about to resume no longer changes by itself.
  if (!bare && (!shown || shown.dataset.state !== "running")) return;
  const run = new URLSearchParams(location.search).get("run");
  setTimeout(async function look() {
    try {
      const response = await fetch(`/runs/state?run=${encodeURIComponent(run)}`);
      const { state, going } = await response.json();
      if (shown ? state !== shown.dataset.state || (bare && !going) : state !== null || !going) return location.reload();
    } catch (error) {
      say(error.message);
    }
    setTimeout(look, 1000);
  }, 1000);
})();
