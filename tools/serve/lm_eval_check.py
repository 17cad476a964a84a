"""Measures one model with lm-eval twice, through a running `gradus serve` (`local-completions`) and with transformers (`hf`), on
a custom task, and compares every log-likelihood. Needs `pip install "lm-eval[api]" torch transformers`.

    python tools/serve/lm_eval_check.py http://127.0.0.1:8080 MODEL DIRECTORY
"""

import json
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OPENAI_API_KEY", "none")

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

ROWS = [
    ("Lily saw a big dog. The dog was very", [" happy", " the", " run"], 0),
    ("Once upon a", [" time", " dog", " blue"], 0),
    ("Tom had a red ball. He liked to play with his", [" sky", " ball", " sleep"], 1),
    ("The sun was hot and the", [" jumped", " girl", " of"], 1),
    ("They were best", [" friends", " hot", " apple"], 0),
    ("It was time to go", [" three", " home", " red"], 1),
]

TASK = """
task: small_choices
dataset_path: json
dataset_kwargs: {{ data_files: {{ test: {file} }} }}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
"""


def measure(kind, arguments, folder):
    found = lm_eval.simple_evaluate(
        model=kind, model_args=arguments, tasks=["small_choices"], task_manager=TaskManager(include_path=folder), log_samples=True
    )
    samples = sorted(found["samples"]["small_choices"], key=lambda sample: sample["doc_id"])
    pairs = [pair for sample in samples for pair in sample["filtered_resps"]]
    return found["results"]["small_choices"]["acc,none"], pairs


def main():
    url, model, directory = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "rows.jsonl"
        file.write_text("".join(json.dumps({"text": t, "choices": c, "label": i}) + "\n" for t, c, i in ROWS))
        (pathlib.Path(folder) / "small_choices.yaml").write_text(TASK.format(file=file))
        served = f"model={model},base_url={url.rstrip('/')}/v1/completions,tokenizer={directory},num_concurrent=2,max_retries=1,add_bos_token=True"
        ours = measure("local-completions", served, folder)
        theirs = measure("hf", f"pretrained={directory},dtype=float32,device=cpu,add_bos_token=True", folder)
    print("accuracy", ours[0], theirs[0])
    worst = 0.0
    for (own, is_greedy), (other, other_greedy) in zip(ours[1], theirs[1], strict=True):
        worst = max(worst, abs(float(own) - float(other)))
        assert str(is_greedy) == str(other_greedy), (own, other)
    print(f"{len(ours[1])} log-likelihoods, largest difference {worst:.2e}")
    assert ours[0] == theirs[0] and worst < 1e-3
    print("ok")


if __name__ == "__main__":
    main()
