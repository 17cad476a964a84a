"""The package within other programs: import, types, coexistence with other libraries, and invalid input."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gradus
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PACKAGE = Path(__file__).parents[1]


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments, "-c", script], capture_output=True, text=True, check=False)


#: Modules that are slow to import and that most uses of the package do not need.
HEAVY = {"IPython", "asyncio", "dataclasses", "datasets", "html", "inspect", "numpy", "pyarrow", "sqlite3", "subprocess", "tempfile", "torch"}


def test_the_import_takes_nothing_heavy_along() -> None:
    # `-S` leaves out the imports of other installed packages.
    folder = str(Path(gradus.__file__).parents[1])
    done = run(f"import sys; sys.path.insert(0, {folder!r}); import gradus; print(*sys.modules)", "-S")
    assert done.returncode == 0, done.stderr
    imported = done.stdout.split()
    assert "gradus._native" in imported and HEAVY.intersection(imported) == set()


def test_a_page_draws_ranges_beyond_the_largest_number() -> None:
    from types import SimpleNamespace

    from gradus._page import page

    made: Any = SimpleNamespace(path="run", finished=True, results={}, metrics={"step": [1, 2, 3], "loss": [-1.7e308, 0.0, 1.7e308]})
    text = page(made)
    assert 'points="14.0,86.0 125.0,50.0 236.0,14.0"' in text and "nan" not in text


#: Prints what a forked process gets from gradus. A hanging process is ended after a minute.
FORK = """
import os, signal, sys
import gradus
if sys.argv[2] == "first":
    gradus.load(sys.argv[1]).generate("The", max_new_tokens=2)
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        print(len(gradus.load(sys.argv[1]).generate("The", max_new_tokens=2)["completion_ids"]), flush=True)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_does_not_wait_for_ever(gpt2: Path) -> None:
    def printed(when: str) -> str:
        words = [sys.executable, "-W", "ignore", "-c", FORK, str(gpt2), when]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    refused = printed("first")
    assert "forked from one that had used gradus" in refused and "spawn" in refused
    # The import alone starts no threads.
    assert printed("never").strip().isdigit()


def test_every_public_name_is_there() -> None:
    done = run("from gradus import *; import gradus; print(*dir(gradus)); [getattr(gradus, name) for name in gradus.__all__]")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(gradus.__all__)
    with pytest.raises(AttributeError, match="module 'gradus' has no attribute 'grop'"):
        getattr(gradus, "grop")


def test_other_libraries_are_left_alone(gpt2: Path) -> None:
    others = [name for name in ("numpy", "torch", "polars", "pyarrow", "datasets") if importlib.util.find_spec(name)]
    script = f"""
import signal, sys, threading
before = signal.getsignal(signal.SIGINT), threading.active_count(), sys.excepthook
for order in (0, 1):
    if order == 0:
        import {", ".join(others)}
    import gradus
model = gradus.load({str(gpt2)!r})
model.generate(["a"] * 4, max_new_tokens=4)
import numpy
a = numpy.random.default_rng(0).random((500, 500))
assert numpy.allclose(a @ numpy.linalg.inv(a), numpy.eye(500), atol=1e-6)
if "torch" in sys.modules:
    import torch
    assert torch.ones(300, 300).matmul(torch.ones(300, 300))[0, 0] == 300
try:
    gradus.load("/nowhere")
except gradus.ModelError:
    pass
assert (signal.getsignal(signal.SIGINT), threading.active_count(), sys.excepthook) == before
print("fine")
"""
    done = run(script)
    assert done.stdout == "fine\n" and done.returncode == 0, done.stderr


def test_the_command_line_is_the_same_library() -> None:
    done = subprocess.run([sys.executable, "-m", "gradus", "--version"], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"gradus {gradus.__version__}"
    wrong = subprocess.run([sys.executable, "-m", "gradus", "sfft"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "sft" in wrong.stderr


def test_functions_are_those_of_the_schema() -> None:
    done = subprocess.run(
        [sys.executable, PACKAGE / "tools/make_methods.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    from gradus import _methods

    for name in _methods.METHODS:
        function = getattr(gradus, name)
        parameters = inspect.signature(function).parameters
        assert parameters["model"].default is None
        _, _, about = function.__doc__.partition("    Args:\n")
        explained = [line.split(":")[0].strip() for line in about.split("    Returns:")[0].splitlines() if re.match(r" {8}\w", line)]
        assert sorted(explained) == sorted(parameters) and "gradus.ConfigError" in about


def test_explain_lists_what_a_function_takes() -> None:
    keys = gradus.explain(gradus.grpo)
    arguments = {key["argument"]: key for key in keys}
    assert keys == gradus.explain("grpo") and arguments["group_size"]["default"] == 8
    assert arguments["learning_rate"]["key"] == "train.learning_rate"
    assert [key["key"] for key in gradus.explain("train.seed")] == ["train.seed"]
    assert "group_size (whole number" in repr(keys) and "<code>group_size</code>" in keys._repr_html_()
    assert "argument" in gradus.explain(gradus.reward_model)[0]


def test_tab_completion_offers_keys() -> None:
    if importlib.util.find_spec("IPython") is None:
        pytest.skip("skipped: IPython is not installed")
    script = """
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
import gradus
shell = InteractiveShell.instance()
shell.user_ns["gradus"] = gradus
with provisionalcompleter():
    for text in ("gradus.", "gradus.grpo('model', rows, group_", "gradus.sft('model', rows, lora_r"):
        print(*(found.text.removeprefix(".") for found in shell.Completer.completions(text, len(text))))
"""
    done = run(script, "-W", "ignore")
    assert done.returncode == 0, done.stderr
    names, of_grpo, of_sft = (line.split() for line in done.stdout.splitlines())
    assert set(names) == set(gradus.__all__) - {"__version__"}
    assert of_grpo == ["group_size="] and of_sft == ["lora_rank=", "lora_rank_stabilised="]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_types(checker: str) -> None:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"skipped: {checker} is not installed")
    starts = subprocess.run([sys.executable, "-m", checker, "--version"], capture_output=True, text=True, check=False)
    if starts.returncode != 0:
        # Pyright downloads itself from a registry at its first use.
        pytest.skip(f"skipped: {checker} does not start")
    # Without this option, Pyright looks for packages with another interpreter.
    options = {"mypy": ["--strict", "--no-error-summary"], "pyright": ["--pythonpath", sys.executable]}[checker]
    done = subprocess.run(
        [sys.executable, "-m", checker, *options, "python/gradus", "tests"], cwd=PACKAGE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_type_checkers_find_wrong_names() -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("skipped: mypy is not installed")
    script = "import gradus\nfrom gradus import trl\ngradus.sft\ngradus.Trainer\ngradus.grpoo\ntrl.SFTConfig\ntrl.nothing\n"
    script += "def of(model: gradus.Model) -> None:\n    model.path\n    model.nothing\n"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "-c", script], capture_output=True, text=True, check=False
    )
    lines = [int(line.split(":")[1]) for line in done.stdout.splitlines()]
    assert lines == [5, 7, 10], done.stdout + done.stderr


#: Health checks about the speed of a test and the size of its input.
EVERY_CHECK: Any = list(HealthCheck)
anything: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.text(alphabet=st.characters(codec=None, categories=["Cs"]), max_size=2)
    | st.binary(max_size=4)
    | st.just(object())
    | st.just(print),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=3) | st.tuples(inner),
    max_leaves=6,
)
names = st.sampled_from(
    [key["name"] for method in gradus._native.keys() if method["name"] == "grpo" for key in method["keys"]]
    + ["train", "evaluation", "reward", "reward_weights", "reward_timeout_s", "config", "resume_from", "overwrite", "progress"]
) | st.text(max_size=10).filter(lambda name: name not in ("on_step",))


@settings(max_examples=5000, derandomize=True, deadline=None, suppress_health_check=EVERY_CHECK)
@given(keys=st.dictionaries(names, anything, max_size=3))
def test_no_argument_brings_the_process_down(keys: dict[str, Any]) -> None:
    keys.pop("model", None)
    keys.pop("data", None)
    given: dict[str, Any] = {**keys, "output_dir": "/nowhere/run", "progress": False}
    # Training is impossible, because there is no such model.
    try:
        gradus.grpo("/nowhere/model", "/nowhere/rows.jsonl", **given)
    except (TypeError, ValueError, OSError, gradus.Error):
        return
    raise AssertionError(f"a run without a model: {keys}")


@settings(max_examples=300, derandomize=True, deadline=None)
@given(arguments=st.lists(anything, max_size=3))
def test_no_argument_of_metrics_brings_the_process_down(arguments: list[Any]) -> None:
    try:
        gradus.metrics.compute("rouge", *arguments)
    except (TypeError, ValueError, gradus.Error):
        return


def parameters_of(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args if argument.arg != "self"]


def test_the_stub_is_that_of_the_module() -> None:
    tree = ast.parse((PACKAGE / "python/gradus/_native.pyi").read_text())
    native: Any = gradus._native
    declared: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            declared.add(node.name)
            assert list(inspect.signature(getattr(native, node.name)).parameters) == parameters_of(node), node.name
        elif isinstance(node, ast.ClassDef):
            declared.add(node.name)
            of = getattr(native, node.name)
            members = [member for member in node.body if isinstance(member, ast.FunctionDef)]
            assert {member.name for member in members} - {"__init__"} == {name for name in dir(of) if not name.startswith("_")}
            for member in members:
                if member.decorator_list:
                    continue
                found = inspect.signature(of if member.name == "__init__" else getattr(of, member.name))
                assert [name for name in found.parameters if name != "self"] == parameters_of(member), member.name
        elif isinstance(node, ast.AnnAssign):
            assert isinstance(node.target, ast.Name)
            declared.add(node.target.id)
    assert declared - {"__version__"} == {name for name in dir(native) if not name.startswith("_")}


@pytest.mark.skipif(sys.platform != "linux", reason="skipped: only Linux has few static thread-locals")
def test_the_module_takes_no_static_thread_locals() -> None:
    # A process has only a few of them. Torch uses them up, and then a module that needs more cannot be loaded.
    data = Path(gradus._native.__file__).read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01", "a little-endian file of 64 bits"
    sections, size, count = struct.unpack_from("<Q", data, 0x28)[0], *struct.unpack_from("<HH", data, 0x3A)
    dynamic_section, flags_tag, static_tls = 6, 30, 0x10
    entries: dict[int, int] = {}
    for i in range(count):
        kind, _, _, offset, length = struct.unpack_from("<IQQQQ", data, sections + i * size + 4)
        if kind == dynamic_section:
            entries = dict(struct.unpack_from("<QQ", data, at) for at in range(offset, offset + length, 16))
    assert entries, "the file has a dynamic section"
    assert not entries.get(flags_tag, 0) & static_tls
