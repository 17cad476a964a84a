"""Writes `recipes/` from RL4LMs' configurations. `gradus config import rl4lms` converts each one, and comments list the changes.

    python3 tools/recipes/from_rl4lms.py ~/RL4LMs target/debug/gradus

RL4LMs is https://github.com/allenai/RL4LMs at 97df0bd. The READMEs and the small versions are written by hand.
"""

import pathlib
import subprocess
import sys

CHECKOUT, GRADUS = pathlib.Path(sys.argv[1]), sys.argv[2]
RECIPES = pathlib.Path(__file__).resolve().parents[2] / "recipes"
# Names of the folders in `recipes/`.
FOLDERS = {
    "common_gen": "commongen",
    "dialog": "daily_dialog",
    "imdb_text_continuation": "imdb",
    "summarization": "cnn_daily_mail",
    "synthetic_generate_dates": "dates",
    "synthetic_generate_increasing_numbers": "increasing_numbers",
}
FILES = {"blendorbot_ppo.yml": "blenderbot_ppo.yml"}


def wrapped(text, width=120):
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


originals = sorted((CHECKOUT / "scripts/training/task_configs").glob("*/*.yml"))
for original in originals:
    made = subprocess.run([GRADUS, "config", "import", "rl4lms", original], capture_output=True, text=True)
    assert made.returncode == 0, f"{original}: {made.stderr}"
    folder, name = FOLDERS.get(original.parent.name, original.parent.name), FILES.get(original.name, original.name)
    notes = [line.removeprefix("warning: ").replace(f"{original}:", "") for line in made.stderr.splitlines() if line]
    comments = [f"# RL4LMs' {original.parent.name}/{original.name}, by `gradus config import rl4lms`."]
    comments += ["# Differences from the original (by its lines):"] if notes else []
    for note in notes:
        number, _, text = note.partition(": ")
        first, *rest = wrapped(f"{number}: {text}" if text else note)
        comments += [f"# - {first}"] + [f"#   {line}" for line in rest]
    target = RECIPES / folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(comments) + "\n" + made.stdout)
print(len(originals), "recipes")
