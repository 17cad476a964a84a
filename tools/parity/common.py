"""Functions of all scripts in this folder: one thread, full precision, paths of files, format of numbers."""

import argparse
import json
import os
import pathlib
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import torch  # noqa: E402

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)

CRATES = pathlib.Path(__file__).resolve().parents[2] / "crates"
FIXTURES = CRATES / "gradus/tests/fixtures/parity"
# Fixtures of the crate of text metrics.
METRICS = CRATES / "gradus-metrics/tests/fixtures"


def arguments(folder):
    """Parses `--out`. Creates and returns the output folder of the script: below `FIXTURES`, or the given path."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=FIXTURES / folder, help="folder to write (default: the committed one)")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    return out


def versions(*names):
    import importlib.metadata as metadata

    return {name: metadata.version(name) for name in ("torch", "transformers", *names)}


def meta(seed, *libraries, **more):
    """The origin of a fixture: its script, libraries and seed."""
    return {
        "script": f"tools/parity/{pathlib.Path(sys.argv[0]).name}",
        "seed": seed,
        "python": sys.version.split()[0],
        "libraries": versions(*libraries),
        **more,
    }


def plain(value):
    """Converts tensors to nested lists. Every float32 has the digits of its exact double, so no precision is lost."""
    if isinstance(value, torch.Tensor):
        return plain(value.detach().cpu().tolist())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        return value.item()
    return value


def _compact(value, indent):
    """JSON with one line per innermost list or flat object: small, and readable in a diff."""
    pad = " " * indent
    if isinstance(value, dict) and value:
        if all(not isinstance(item, (dict, list)) for item in value.values()) and len(value) <= 4:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        rows = [f'{pad} {json.dumps(key, ensure_ascii=False)}: {_compact(item, indent + 1)}' for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{pad}}}"
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        rows = [f"{pad} {_compact(item, indent + 1)}" for item in value]
        return "[\n" + ",\n".join(rows) + f"\n{pad}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def write_json(path, value):
    path.write_text(_compact(plain(value), 0) + "\n", encoding="utf-8")
