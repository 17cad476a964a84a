// The form of a run: searches settings, and restores the entered values after navigating back.
"use strict";

const runForm = document.querySelector("[data-remember]");
const advanced = runForm.querySelector(".advanced");
const findField = document.getElementById("find-field");
const remembered = `form ${runForm.dataset.remember}`;

/** Returns the fields that people fill in. */
const filled = () => [...runForm.elements].filter((field) => field.name && field.type !== "hidden");

/** Opens the sections that contain a field. */
function open(field) {
  for (let at = field.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
}

runForm.addEventListener("input", () => {
  sessionStorage.setItem(remembered, JSON.stringify(filled().map((field) => [field.name, field.value])));
});

// After navigating back or reloading, the page from the server has its initial values.
if (["back_forward", "reload"].includes(performance.getEntriesByType("navigation")[0]?.type)) {
  const before = JSON.parse(sessionStorage.getItem(remembered) ?? "[]");
  filled().forEach((field, i) => {
    if (before[i]?.[0] !== field.name || before[i][1] === field.value) return;
    field.value = before[i][1];
    open(field);
  });
} else {
  sessionStorage.removeItem(remembered);
}

findField.addEventListener("input", () => {
  const words = findField.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const section of advanced.querySelectorAll(".section")) {
    let within = 0;
    for (const field of section.querySelectorAll(".one-field")) {
      const text = field.textContent.toLowerCase();
      field.hidden = !words.every((word) => text.includes(word));
      within += field.hidden ? 0 : 1;
    }
    section.hidden = within === 0;
    if (words.length) section.open = within > 0;
    found += within;
  }
  say(words.length ? `${found} ${found === 1 ? "setting" : "settings"} found.` : "");
});

// Enter in the search field must not submit the form.
findField.addEventListener("keydown", (event) => {
  if (event.key === "Enter") event.preventDefault();
});

// Links to fields open the sections that contain them.
runForm.parentElement.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  const field = link && document.getElementById(link.hash.slice(1));
  if (!field) return;
  event.preventDefault();
  open(field);
  field.scrollIntoView({ block: "center" });
  field.focus();
});
