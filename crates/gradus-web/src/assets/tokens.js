// Colors the tokens of completions by how unlikely they are to a model, or by the difference between two models.
"use strict";

const table = document.querySelector("[data-tokens-of]");

/** Switches a completion between tokens and text. */
async function paint(button) {
  const cell = button.closest("td").querySelector(".completion");
  const isShown = button.getAttribute("aria-pressed") === "true";
  if (isShown) {
    cell.replaceChildren(...cell.before);
  } else {
    const response = await send(`/runs/tokens?${table.dataset.tokensOf}&${button.dataset.which}`, {});
    const tokens = await response.json();
    const most = Math.max(1e-6, ...tokens.map(([, own, other]) => (other === null ? 0 : Math.abs(own - other))));
    cell.before = [...cell.childNodes];
    cell.tabIndex = 0;
    cell.replaceChildren(...tokens.map(([text, own, other]) => {
      const made = element("span", "token", text);
      made.dataset.about = own === null ? "no text before it" : `log-probability ${own.toFixed(3)}, ${(100 * Math.exp(own)).toFixed(1)} %`;
      if (own !== null && other !== null) {
        made.dataset.about += `; the other ${other.toFixed(3)}, difference ${(own - other).toFixed(3)}`;
        const size = Math.ceil((Math.abs(own - other) / most) * 3);
        if (size > 0) made.classList.add("worth", `${own < other ? "worse" : "better"}-${size}`);
      } else if (own !== null) {
        made.classList.add(`doubt-${Math.min(4, Math.floor(-own))}`);
      }
      return made;
    }));
  }
  button.setAttribute("aria-pressed", String(!isShown));
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-which]");
  if (!button) return;
  button.disabled = true;
  say("The model reads …");
  try {
    await paint(button);
    say("");
  } catch (error) {
    say(error.message);
  }
  button.disabled = false;
  button.focus();
});

// The values of tokens are also accessible by keyboard.
for (const cell of document.querySelectorAll(".completion")) if (cell.querySelector(TELLS)) cell.tabIndex = 0;
