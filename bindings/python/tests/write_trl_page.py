"""Writes the tables of docs/trl.md from the table in `gradus/trl/_arguments.py`: `python tests/write_trl_page.py`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from record_trl import METHODS, RECORD, plain
from trl_stand_in import REPOSITORY

from gradus.trl import _check
from gradus.trl._arguments import COMMON, CONFIGS, EARLIER, GONE, TRAINERS, Honored, NoEffect, Refused, Treatment
from gradus.trl._configs import BaseConfig

PAGE = REPOSITORY / "docs" / "trl.md"
MARK = "<!-- The tables below"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def written(value: Any) -> str:
    """Returns a default in Python syntax."""
    return f"`{cell(json.dumps(value) if isinstance(value, str) else repr(value))}`"


def sentence(text: str) -> str:
    """Returns the text with a capital letter, unless it begins with a name."""
    return text if text.startswith(("gradus", "`")) else text[:1].upper() + text[1:]


def answer(treatment: Treatment) -> tuple[str, str, str]:
    """Returns the treatment as a word, the keys, and the note."""
    if isinstance(treatment, Honored):
        note = f"{sentence(treatment.note)}." if treatment.note else ""
        return "honored", ", ".join(f"`{key}`" for key in treatment.keys), note
    if isinstance(treatment, NoEffect):
        return "no effect", "", f"{sentence(treatment.reason)}."
    return "refused", "", f"{sentence(treatment.reason)}. {treatment.instead}"


def table(treatments: Mapping[str, Treatment], names: Iterable[str], defaults: Mapping[str, Any] | None) -> list[str]:
    """Returns the table rows of these names. Without defaults, their column is left out."""
    head = ["argument", *([] if defaults is None else ["default"]), "answer", "keys of gradus", ""]
    rows = [head, ["---"] * len(head)]
    for name in names:
        default = [] if defaults is None else [written(defaults[name])]
        rows.append([f"`{name}`", *default, *map(cell, answer(treatments[name]))])
    return ["".join(f"| {text} " if text else "| " for text in row) + "|" for row in rows]


def tables(known: Mapping[str, Any]) -> str:
    configs = known["configs"]
    everything = [COMMON, *CONFIGS.values(), *TRAINERS.values()]
    honored, without_effect, refused = (
        len({name for of in everything for name, one in of.items() if isinstance(one, kind)})
        for kind in (Honored, NoEffect, Refused)
    )
    lines = [
        f"The names and defaults are those of TRL {known['trl']} with `transformers` {known['transformers']}: "
        f"{honored} names are honored, {without_effect} have no effect and {refused} are refused, by one trainer at least.",
        "",
        "### Fields of all configurations",
        "",
        "A configuration below that lists a field again has its own answer or default.",
        "",
    ]
    shared = [one.name for one in dataclasses.fields(BaseConfig)]
    usual = {one.name: plain(_check.default(one)) for one in dataclasses.fields(BaseConfig)}
    lines += table(COMMON, shared, usual)
    for method in METHODS:
        name = f"{method}Config"
        own = [
            field
            for field in configs[name]
            if field in CONFIGS[name] or configs[name][field] != usual.get(field, configs[name][field])
        ]
        lines += ["", f"### `{name}`", ""]
        lines += table({**COMMON, **CONFIGS[name]}, own, configs[name])
    shared_of_trainers = [
        name
        for name in TRAINERS["SFTTrainer"]
        if all(TRAINERS[f"{method}Trainer"].get(name) == TRAINERS["SFTTrainer"][name] for method in METHODS)
    ]
    lines += ["", "### Arguments of all trainers", ""] + table(TRAINERS["SFTTrainer"], shared_of_trainers, None)
    for method in METHODS:
        name = f"{method}Trainer"
        own = [
            one
            for one in known["trainers"][name]["required"] + list(known["trainers"][name]["defaults"])
            if one not in shared_of_trainers
        ]
        lines += ["", f"### `{name}`", ""] + table(TRAINERS[name], own, None)
    lines += ["", "### Names of earlier versions", "", "| name | |", "|---|---|"]
    lines += [f"| `{old}` | taken as `{new}`, with a warning |" for old, new in EARLIER.items()]
    lines += [f"| `{old}` | an error: {cell(text)}. |" for old, text in GONE.items()]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Returns the page as it should be: the handwritten part and the tables."""
    by_hand, mark, rest = PAGE.read_text(encoding="utf-8").partition(MARK)
    assert mark, f"{PAGE} has no line that begins with {MARK!r}"
    return f"{by_hand}{mark}{rest.splitlines()[0]}\n\n{tables(json.loads(RECORD.read_text(encoding='utf-8')))}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}", file=sys.stderr)
