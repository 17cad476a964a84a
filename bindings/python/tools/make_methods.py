"""Write ``gradus/_methods.py``: a function for every training method, with its keys as types.

    python tools/make_methods.py            # writes the file
    python tools/make_methods.py --check    # fails if the file is not up to date
"""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
from pathlib import Path
from typing import Any


def native() -> Any:
    """Returns the native module alone, because the package cannot be imported before the generated file exists."""
    package = importlib.util.find_spec("gradus")
    if package is None or package.submodule_search_locations is None:
        raise SystemExit("the package `gradus` is not installed")
    for folder in package.submodule_search_locations:
        for path in sorted(Path(folder).glob("_native.*")):
            if path.suffix in (".so", ".pyd"):
                spec = importlib.util.spec_from_file_location("gradus._native", path)
                assert spec is not None and spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
    raise SystemExit("the native module of `gradus` is not built")


TARGET = Path(__file__).parents[1] / "python" / "gradus" / "_methods.py"

#: Parameters that every function declares itself.
OWN = {"model", "data", "eval_data", "test_data", "output_dir", "reward", "config"}

#: Methods whose command name has another meaning in Python.
RENAMED = {"reward": "reward_model"}

HEAD = '''"""A function for every training method. Made by ``tools/make_methods.py`` from the configuration's schema."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from gradus._data import Rows
from gradus._model import Model
from gradus._run import Run
from gradus._training import train

if TYPE_CHECKING:
    from typing import Unpack

Name: TypeAlias = str | os.PathLike[str]
#: A function with TRL's contract, the name of a reward model, a mapping as in a configuration, or a list of these.
Reward: TypeAlias = Callable[..., Any] | Name | Mapping[str, Any] | Sequence["Callable[..., Any] | Name | Mapping[str, Any]"]
OnStep: TypeAlias = Callable[[int, int, dict[str, float]], Any]
OnEvaluation: TypeAlias = Callable[[int, dict[str, float], bool], Any]
OnRollouts: TypeAlias = Callable[[int, list[dict[str, Any]]], Any]
'''


# Keys whose value may also be a function.
FUNCTIONS = {"evaluation_post_process": "Callable[[str], str]"}


def type_of(key: dict[str, Any]) -> str:
    kind = key["kind"]
    if kind in ("words", "word_list", "word_or_yaml"):
        literal = "Literal[" + ", ".join(f'"{word}"' for word in key["words"]) + "]"
        more = {"words": "", "word_list": f" | Sequence[{literal}]", "word_or_yaml": " | Mapping[str, Any]"}[kind]
        return " | ".join([literal + more, *([FUNCTIONS[key["name"]]] if key["name"] in FUNCTIONS else [])])
    return {
        "switch": "bool",
        "N": "int",
        "X": "float",
        "repeated": "str | Sequence[str]",
        "names": "str | Sequence[str]",
        "arguments": "str | Sequence[str]",
        "numbers": "float | Sequence[float]",
        "yaml": "Any",
    }.get(kind, "Name")


def fields(keys: list[dict[str, Any]]) -> list[str]:
    lines = []
    for key in keys:
        lines.append(f"    {key['name']}: {type_of(key)}")
        doc = key["doc"].replace("\\", "\\\\").replace('"""', "'''")
        # A quote at the end would end the docstring.
        doc = doc + " " if doc.endswith('"') else doc
        lines.extend(textwrap.wrap(f'"""{doc}"""', 120, initial_indent="    ", subsequent_indent="    ", break_long_words=False))
    return lines or ["    pass"]


def without_default(doc: str) -> str:
    """Returns the text without its last sentence, if that states the default."""
    return re.sub(r"Default [^.]*(\.[^. ]+)*\.?$", "", doc)


def class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_")) + "Keys"


#: Parameters of every function, with their explanations.
PARAMETERS = {
    "model": "The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.",
    "data": "The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of dicts, or "
    "``{\"task\": …}``.",
    "eval_data": "Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.",
    "test_data": "Rows for a last evaluation, after the run.",
    "config": "A configuration file. The arguments override it.",
    "output_dir": "The run directory. Default: a new one below ``runs``.",
    "overwrite": "Replace a run in ``output_dir``. Without it, an existing run is an error.",
    "resume": "Continue the run in ``output_dir`` from its last checkpoint.",
    "resume_from": "Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.",
    "progress": "Show the progress. Default: on terminals and in notebooks.",
    "on_step": "A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the number of all "
    "steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.",
    "on_evaluation": "A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of held-out rows. If it returns "
    "False, the run stops after a checkpoint.",
}
#: Further parameters of methods that sample.
ONLINE_PARAMETERS = {
    "reward": "A function, the directory or hub name of a reward model, a mapping as in a configuration, or a list of these. A function is "
    "called with those of these keyword arguments that it accepts: ``prompts``, ``completions``, ``completion_ids``, ``trainer_state``, "
    "``environments``, ``log_metric``, ``log_extra``, and each column of the rows. Values per completion are lists. The function returns "
    "a list with a finite number for each completion, or with None for a completion without a score. It may be an ``async`` function.",
    "reward_weights": "A weight for each entry of the list ``reward``. Default: 1 for each.",
    "reward_timeout_s": "The time limit of a call of reward functions, in seconds. Default 60.",
    "on_rollouts": "A function ``on_rollouts(step, rollouts)``. It is called with the completions of each step, as dicts. If it returns False, "
    "the run stops after a checkpoint.",
}
KEYS = "Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.{name})`` lists them with their defaults."
RETURNS = "The finished or stopped run, with its directory, metrics and model."
RAISES = {
    "TypeError": "An argument is unknown.",
    "gradus.ConfigError": "Arguments are wrong. The text names every problem.",
    "gradus.DataError": "A row is wrong.",
    "gradus.ModelError": "The model cannot be used.",
    "gradus.DivergedError": "A number became infinite or NaN.",
    "KeyboardInterrupt": "After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues from it.",
}
ONLINE_RAISES = {"gradus.RewardError": "A reward function failed. ``__cause__`` is its exception."}


def documentation(name: str, about: str, is_online: bool) -> str:
    """Returns the docstring of a function."""

    def paragraphs(entries: dict[str, str]) -> list[str]:
        lines = []
        for entry, text in entries.items():
            # No line ends within an expression in backticks.
            whole = re.sub("``[^`]+``", lambda code: code[0].replace(" ", "\0"), f"{entry}: {text}")
            made = textwrap.wrap(whole, 120, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False)
            lines += [line.replace("\0", " ") for line in made]
        return lines

    parameters = {**PARAMETERS, **(ONLINE_PARAMETERS if is_online else {}), "keys": KEYS.format(name=name)}
    raises = {**RAISES, **(ONLINE_RAISES if is_online else {})}
    parts = [
        f'    """{about}.',
        "",
        "    Args:",
        *paragraphs(parameters),
        "",
        "    Returns:",
        f"        {RETURNS}",
        "",
        "    Raises:",
        *paragraphs(raises),
        '    """',
    ]
    return "\n".join(parts)


def function(method: dict[str, Any]) -> str:
    name = str(RENAMED.get(method["name"], method["name"]))
    reward = ""
    passed = ""
    if method["is_online"]:
        reward = (
            "    reward: Reward | None = None,\n"
            "    reward_weights: Sequence[float] | None = None,\n"
            "    reward_timeout_s: float | None = None,\n"
        )
        passed = " reward, reward_weights, reward_timeout_s,"
    rollouts = "    on_rollouts: OnRollouts | None = None,\n" if method["is_online"] else ""
    about = method["about"]
    return f'''
def {name}(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
{reward}    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
{rollouts}    **keys: Unpack[{class_name(name)}],
) -> Run:
{documentation(name, about, method["is_online"])}
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("{method["name"]}", given)
'''


def text() -> str:
    methods = [method for method in native().keys() if method["name"] != "plugin"]
    for method in methods:
        method["keys"] = [key for key in method["keys"] if key["name"] not in OWN]

    def same(key: dict[str, Any]) -> tuple[str, str, str]:
        return key["name"], type_of(key), without_default(key["doc"])

    shared = set.intersection(*({same(key) for key in method["keys"]} for method in methods))
    online = set.intersection(*({same(key) for key in method["keys"]} for method in methods if method["is_online"])) - shared
    docs: dict[str, set[str]] = {}
    for method in methods:
        for key in method["keys"]:
            docs.setdefault(key["name"], set()).add(key["doc"])

    def general(keys: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the keys with texts that apply to every method."""
        differs = "{} The default is the method's."
        return [
            key if len(docs[key["name"]]) == 1 else {**key, "doc": differs.format(without_default(key["doc"]).strip())}
            for key in keys
        ]

    first = methods[0]["keys"]
    parts = [HEAD]

    def declare(name: str, base: str, doc: str, keys: list[dict[str, Any]]) -> None:
        parts.append(f'\n\nclass {name}({base}, total=False):\n    """{doc}"""\n\n' + "\n".join(fields(keys)) + "\n")

    whole = [
        ("train", "Any", "The part `train` of a configuration, as a mapping."),
        ("evaluation", "Any", "The part `train.evaluation`, as a mapping; `metrics` may hold functions."),
        ("mix", "Any", "Further rows to learn from, each with its weight."),
        ("observers", "Any", "Functions `observer(kind, details)` that are told of everything that happens; one that returns False stops the run."),
    ]
    known = {key["name"] for key in first}
    extra = [
        {"name": name, "kind": "yaml", "doc": doc, "words": []} for name, _, doc in whole if name not in known
    ]
    declare("SharedKeys", "TypedDict", "Keys of every method.", general([key for key in first if same(key) in shared]) + extra)
    of_online = next(method for method in methods if method["is_online"])["keys"]
    declare("OnlineKeys", "SharedKeys", "Keys of every method that samples.", general([key for key in of_online if same(key) in online]))
    for method in methods:
        name = str(RENAMED.get(method["name"], method["name"]))
        base = "OnlineKeys" if method["is_online"] else "SharedKeys"
        taken = shared | (online if method["is_online"] else set())
        own = [key for key in method["keys"] if same(key) not in taken]
        declare(class_name(name), base, f"Keys of `{name}`.", own)
        parts.append("\n" + function(method))
    names = ", ".join(f'"{RENAMED.get(method["name"], method["name"])}"' for method in methods)
    parts.append(f"\n\n#: The functions of this module.\nMETHODS = ({names})\n")
    return "".join(parts)


def main() -> int:
    made = text()
    if "--check" in sys.argv[1:]:
        if TARGET.read_text(encoding="utf-8") != made:
            print(f"{TARGET.name} is not up to date: run tools/make_methods.py", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
