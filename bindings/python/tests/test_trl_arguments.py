"""`gradus.trl` accepts every argument of TRL's trainers, and honors it, reports that it has no effect, or rejects it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trl_stand_in import REPOSITORY

import gradus  # isort: skip
from gradus import trl  # isort: skip
from gradus.trl import _arguments, _check, _overrides, _state  # isort: skip
from gradus.trl._arguments import Honored, NoEffect, Refused, Treatment, fields_of  # isort: skip
from record_trl import METHODS, RECORD, plain, record  # isort: skip

KNOWN: dict[str, Any] = json.loads(RECORD.read_text())
FUNCTIONS = {"SFT": "sft", "DPO": "dpo", "GRPO": "grpo", "KTO": "kto", "RLOO": "rloo", "Reward": "reward_model"}
SECTIONS = {**FUNCTIONS, "Reward": "reward"}
CONFIG_MARKDOWN = REPOSITORY / "docs" / "config.md"
ROWS = [{"prompt": f"say {i}"} for i in range(100)]


def no_reward(completions: list[str], **_: Any) -> list[float]:
    return [0.0 for _ in completions]


def config_of(method: str) -> Any:
    return getattr(trl, f"{method}Config")


def trainer_of(method: str) -> Any:
    return getattr(trl, f"{method}Trainer")


class Core:
    """Replaces the functions of gradus and records their arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.calls: list[tuple[str, Any, Any, dict[str, Any]]] = []
        self.events: Callable[[dict[str, Any]], Any] = lambda options: None
        self.run = types.SimpleNamespace(path=directory, results={})
        for name in FUNCTIONS.values():
            monkeypatch.setattr(gradus, name, self.function(name), raising=False)

    def function(self, name: str) -> Callable[..., Any]:
        def called(model: Any, data: Any, **options: Any) -> Any:
            self.calls.append((name, model, data, options))
            self.events(options)
            return self.run

        return called

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of the last call, without callbacks and internal arguments."""
        return {key: value for key, value in self.calls[-1][3].items() if not key.startswith(("on_", "_"))}


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Core:
    monkeypatch.chdir(tmp_path)
    return Core(monkeypatch, tmp_path)


def make(method: str, args: dict[str, Any] | None = None, **arguments: Any) -> Any:
    """Creates a trainer with the arguments that every trainer needs."""
    if method in ("GRPO", "RLOO"):
        arguments.setdefault("reward_funcs", no_reward)
    arguments.setdefault("model", "some/model")
    arguments.setdefault("train_dataset", ROWS)
    return trainer_of(method)(args=config_of(method)(**(args or {})), **arguments)


# --- the table is complete, and the defaults are TRL's


@pytest.mark.parametrize("method", METHODS)
def test_every_field_is_in_the_table_with_the_default_of_trl(method: str) -> None:
    theirs = KNOWN["configs"][f"{method}Config"]
    ours = {one.name: plain(_check.default(one)) for one in dataclasses.fields(config_of(method))}
    assert list(ours) == list(theirs), "names and order, by which fields are given without names"
    for name, value in theirs.items():
        assert ours[name] == value and type(ours[name]) is type(value), name
    assert set(fields_of(f"{method}Config")) == set(theirs)


@pytest.mark.parametrize("method", METHODS)
def test_every_argument_of_a_trainer_is_in_the_table_with_the_default_of_trl(method: str) -> None:
    theirs = KNOWN["trainers"][f"{method}Trainer"]
    parameters = list(inspect.signature(trainer_of(method)).parameters.values())
    assert [one.name for one in parameters if one.default is one.empty] == theirs["required"]
    assert {one.name: plain(one.default) for one in parameters if one.default is not one.empty} == theirs["defaults"]
    order = inspect.signature(trainer_of(method)).parameters
    assert list(order) == theirs["required"] + list(theirs["defaults"])
    assert set(_arguments.TRAINERS[f"{method}Trainer"]) == set(order)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_that_gradus_does_not_call_is_in_the_table(method: str) -> None:
    name = f"{method}Trainer"
    theirs = {*KNOWN["methods"]["all"], *KNOWN["methods"][name]}
    assert set(_overrides.NOT_CALLED[name]) == theirs - set(dir(trainer_of(method)))


def test_the_record_is_what_the_installed_trl_says() -> None:
    trl_of_hugging_face = pytest.importorskip("trl", reason="TRL is not installed: its record is taken as it is")
    if trl_of_hugging_face.__version__ != KNOWN["trl"]:
        pytest.skip(f"TRL {trl_of_hugging_face.__version__} is installed; the record is of {KNOWN['trl']}")
    # The version of transformers is that of the recorded runs. Other versions may have the same arguments and methods.
    assert {**record(), "transformers": KNOWN["transformers"]} == {name: value for name, value in KNOWN.items() if name != "runs"}


def keys_of_documentation(method: str) -> set[str]:
    """Returns the keys of docs/config.md that a method accepts, as flags with `_`."""
    sections: dict[str, list[str]] = {}
    shared: list[str] = []
    section = ""
    for line in CONFIG_MARKDOWN.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:].strip("`")
            sections[section] = []
        elif found := re.match(r"\| `([a-z_.]+)` \|([^|]*)\|", line):
            sections[section].append(found[1])
            # The methods that accept a key are listed next to it.
            if section == "Keys of several methods" and f"`{SECTIONS[method]}`" in found[2]:
                shared.append(found[1])
    own = [*sections[f"method.{SECTIONS[method]}"], *shared]
    parts = [f"{part}.{key}" for part in ("lora", "episode") for key in sections[part]]
    return {key.replace(".", "_") for key in [*own, *sections["train"], *sections["Top level"], *parts]}


OF_THE_FUNCTION = {"overwrite", "resume", "progress", "reward", "reward_weights", "tools", "environment"}
"""Arguments of the gradus functions other than keys."""


@pytest.mark.parametrize("method", METHODS)
def test_every_key_of_the_table_is_one_of_gradus(method: str) -> None:
    known = keys_of_documentation(method) | OF_THE_FUNCTION
    table = {**fields_of(f"{method}Config"), **_arguments.TRAINERS[f"{method}Trainer"]}
    for name, treatment in table.items():
        if isinstance(treatment, Honored):
            assert set(treatment.keys) <= known, name


def test_the_hints_of_the_command_line_name_the_same_keys() -> None:
    source = (REPOSITORY / "crates" / "gradus" / "src" / "config" / "foreign.rs").read_text(encoding="utf-8")
    found = re.findall(r"(?:same|noted)\(\s*&\[([^\]]*)\],\s*&\[([^\]]*)\]", source)
    assert len(found) > 30, "the file has another form"
    compared = 0
    for names, keys in found:
        flags = [re.sub(r"^(train|method\.\*)\.", "", key).replace(".", "_") for key in re.findall(r'"([^"]+)"', keys)]
        for name in re.findall(r'"([^"]+)"', names):
            for method in METHODS:
                treatment = {**fields_of(f"{method}Config"), **_arguments.TRAINERS[f"{method}Trainer"]}.get(name)
                # The first one that the method has.
                known = keys_of_documentation(method) | OF_THE_FUNCTION
                flag = next((flag for flag in flags if flag in known), None)
                # The trainer itself handles arguments without keys.
                if isinstance(treatment, Honored) and treatment.keys and flag is not None:
                    # The hint keeps memory low; here the product is kept.
                    assert flag in treatment.keys or name == "gradient_accumulation_steps", (method, name)
                    compared += 1
    assert compared > 100


def test_texts_are_sentences_that_fit_into_errors() -> None:
    for table in [_arguments.COMMON, *_arguments.CONFIGS.values(), *_arguments.TRAINERS.values()]:
        for name, treatment in table.items():
            if isinstance(treatment, Refused):
                assert treatment.reason[0] != treatment.reason[0].upper() or treatment.reason.startswith("TRL"), name
                assert treatment.instead.endswith("."), name
            if isinstance(treatment, NoEffect):
                assert not treatment.reason.endswith("."), name


# --- conversion of values

DEFAULTS: dict[str, Any] = {
    "output_dir": "trainer_output",
    "overwrite": True,
    "epochs": 3.0,
    "batch_size": 8,
    "micro_batch_size": 8,
    "learning_rate": 1e-6,
    "lr_schedule": "linear",
    "warmup_steps": 0,
    "optimizer": "adamw",
    "adam_betas": [0.9, 0.999],
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "compute": "bf16",
    "recompute": True,
    "logging_steps": 10,
    "eval_steps": -1,
    "eval_fraction": 0.0,
    "save_steps": 500,
    "keep_checkpoints": 1_000_000_000,
    "seed": 42,
    "shuffle": True,
}
CUT = {"max_length": 1024, "too_long": "truncate"}
SAMPLED = {
    "reward": no_reward,
    "max_length": 1_000_000_000,
    "mini_batches": 1,
    "update_epochs": 1,
    "max_new_tokens": 512,
    "temperature": 1.0,
    "clip_range": 0.2,
    "mask_truncated_completions": False,
    "dropout": True,
}
OF_METHOD: dict[str, dict[str, Any]] = {
    "SFT": CUT
    | {
        "learning_rate": 2e-5,
        "dropout": True,
        "text_column": "text",
        "assistant_only_loss": False,
        "loss_type": "nll",
        "label_smoothing": 0.0,
    },
    "DPO": CUT
    | {
        "reference": "live",
        "beta": 0.1,
        "loss_type": ["sigmoid"],
        "label_smoothing": 0.0,
        "f_divergence_type": "reverse_kl",
        "f_alpha_divergence_coef": 0.5,
        "discopop_tau": 0.05,
        "use_weighting": False,
    },
    "GRPO": SAMPLED
    | {
        "group_size": 8,
        "batch_size": 1,
        "kl_coefficient": 0.0,
        "kl_bias_correction": True,
        "loss_type": "dapo",
        "multi_objective_aggregation": "sum_then_normalize",
        "scale_rewards": "group",
        "importance_sampling_level": "token",
        "top_entropy_quantile": 1.0,
        "entropy_coefficient": 0.0,
        "use_adaptive_entropy": False,
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05,
        "vespo_k_pos": 2.0,
        "vespo_lambda_pos": 3.0,
        "vespo_k_neg": 3.0,
        "vespo_lambda_neg": 2.0,
    },
    "KTO": CUT | {"beta": 0.1, "loss_type": "kto", "desirable_weight": 1.0, "undesirable_weight": 1.0, "shuffle": False},
    "RLOO": SAMPLED | {"group_size": 2, "batch_size": 4, "kl_coefficient": 0.05, "normalize_advantages": False},
    "Reward": {
        "learning_rate": 1e-4,
        "max_length": 1024,
        "too_long": "skip",
        "dropout": False,
        "center_rewards_coefficient": 0.0,
    },
}


@pytest.mark.parametrize("method", METHODS)
def test_what_trl_does_by_default_is_written_out(method: str, core: Core) -> None:
    make(method).train()
    name, model, data, _ = core.calls[-1]
    assert (name, model, data) == (FUNCTIONS[method], "some/model", ROWS)
    assert core.options == DEFAULTS | OF_METHOD[method]


HELD_OUT: dict[str, Any] = {"eval_dataset": ROWS[:10]}
MEASURED = {"eval_data": ROWS[:10], "max_eval_rows": 1_000_000_000}
GONE = object()
"""A missing key."""


def lora(**values: Any) -> Any:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    return peft.LoraConfig(**values)


def look_up(word: str) -> str:
    """Looks a word up."""
    return word


class Playground:
    """An environment."""


CASES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    # (method, fields of the configuration, other arguments of the trainer, changes)
    ("SFT", {"output_dir": "out"}, {}, {"output_dir": "out"}),
    ("SFT", {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}, {}, {"batch_size": 16, "micro_batch_size": 2}),
    ("SFT", {"num_train_epochs": 1.5}, {}, {"epochs": 1.5}),
    ("SFT", {"max_steps": 7}, {}, {"max_steps": 7, "epochs": GONE}),
    ("SFT", {"learning_rate": 1e-3}, {}, {"learning_rate": 1e-3}),
    ("SFT", {"lr_scheduler_type": "cosine", "warmup_steps": 0.1}, {}, {"lr_schedule": "cosine", "warmup_steps": 0.1}),
    ("SFT", {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5}, {}, {"lr_schedule": "constant", "warmup_steps": 5}),
    ("SFT", {"lr_scheduler_type": "constant", "warmup_steps": 5}, {}, {"lr_schedule": "constant"}),
    ("SFT", {"lr_scheduler_type": "polynomial"}, {}, {"lr_schedule": "polynomial"}),
    (
        "SFT",
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1, "min_lr": None}},
        {},
        {"lr_schedule": {"cosine_with_min_lr": {"min_lr_ratio": 0.1}}},
    ),
    (
        "SFT",
        {"lr_scheduler_type": "cosine_warmup_with_min_lr", "lr_scheduler_kwargs": '{"min_lr": 1e-6, "warmup_lr_rate": 0.2}'},
        {},
        {"lr_schedule": {"cosine_warmup_with_min_lr": {"min_lr": 1e-6, "warmup_lr_ratio": 0.2}}},
    ),
    (
        "SFT",
        {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 1.5}},
        {},
        {"lr_schedule": {"cosine_with_min_lr": {"min_lr_ratio": 0.0, "num_cycles": 1.5}}},
    ),
    ("SFT", {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {}}, {}, {"lr_schedule": "cosine"}),
    (
        "SFT",
        {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 5, "decay_type": "1-sqrt"}},
        {},
        {"lr_schedule": {"warmup_stable_decay": {"decay_steps": 5, "decay_type": "1-sqrt"}}},
    ),
    # transformers passes no settings on to this schedule.
    (
        "SFT",
        {"lr_scheduler_type": "constant_with_warmup", "lr_scheduler_kwargs": {"num_cycles": 2}},
        {},
        {"lr_schedule": "constant"},
    ),
    # An iteration of two optimizer steps.
    (
        "GRPO",
        {
            "steps_per_generation": 2,
            "lr_scheduler_type": "inverse_sqrt",
            "lr_scheduler_kwargs": {"timescale": 30},
            "logging_steps": 2,
            "save_steps": 2,
        },
        {},
        {"lr_schedule": {"inverse_sqrt": {"timescale": 15}}, "batch_size": 2, "mini_batches": 2, "logging_steps": 1, "save_steps": 1},
    ),
    ("SFT", {"optim": "paged_adamw_32bit"}, {}, {}),
    ("SFT", {"optim": "paged_adamw"}, {}, {}),
    ("SFT", {"optim": "paged_adamw_8bit"}, {}, {"moments": "int8"}),
    ("SFT", {"optim": "rmsprop"}, {}, {"optimizer": "rmsprop", "adam_betas": GONE, "adam_epsilon": GONE}),
    ("SFT", {"optim": "adamw_bnb_8bit"}, {}, {"moments": "int8"}),
    ("SFT", {"optim": "adamw_8bit"}, {}, {"moments": "int8"}),
    ("SFT", {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6}, {}, {"adam_betas": [0.8, 0.95], "adam_epsilon": 1e-6}),
    ("SFT", {"optim": "adamw_torch", "weight_decay": 0.1, "max_grad_norm": 0.5}, {}, {"weight_decay": 0.1, "max_grad_norm": 0.5}),
    ("SFT", {"bf16": False}, {}, {"compute": "f32"}),
    ("SFT", {"gradient_checkpointing": False}, {}, {"recompute": False}),
    ("SFT", {"activation_checkpointing": False}, {}, {"recompute": False}),
    ("SFT", {"logging_steps": 3}, {}, {"logging_steps": 3}),
    # 100 rows in steps of 8 for 3 epochs are 39 steps, a tenth of which is 3.9.
    ("SFT", {"logging_steps": 0.1}, {}, {"logging_steps": 4}),
    ("SFT", {"logging_strategy": "no"}, {}, {"logging_steps": 1_000_000_000}),
    ("SFT", {"logging_strategy": "epoch"}, {}, {"logging_steps": 13}),
    ("SFT", {"logging_first_step": True}, {}, {"logging_steps": 1}),
    ("SFT", {"disable_tqdm": True}, {}, {"progress": False}),
    ("SFT", {"report_to": "tensorboard", "run_name": "x"}, {}, {"tensorboard": True}),
    ("SFT", {"report_to": ["wandb"], "run_name": "x"}, {}, {"wandb": True, "wandb_name": "x"}),
    ("SFT", {"report_to": "all"}, {}, {"wandb": True, "tensorboard": True}),
    ("SFT", {"eval_strategy": "steps"}, HELD_OUT, {**MEASURED, "eval_steps": 10}),
    ("SFT", {"eval_strategy": "steps", "eval_steps": 0.5}, HELD_OUT, {**MEASURED, "eval_steps": 20}),
    ("SFT", {"eval_strategy": "epoch"}, HELD_OUT, {**MEASURED, "eval_steps": 13}),
    ("SFT", {"eval_on_start": True}, HELD_OUT, {**MEASURED, "eval_steps": 0}),
    ("SFT", {"eval_strategy": "steps", "eval_delay": 15}, HELD_OUT, {**MEASURED, "eval_steps": 10, "eval_delay": 15}),
    # The first epoch that ends after one and a half is the second.
    ("SFT", {"eval_strategy": "epoch", "eval_delay": 1.5}, HELD_OUT, {**MEASURED, "eval_steps": 13, "eval_delay": 26}),
    ("SFT", {"eval_delay": 15}, HELD_OUT, {}),
    ("SFT", {}, HELD_OUT, {}),
    ("SFT", {"save_strategy": "no"}, {}, {"save_steps": 0}),
    ("SFT", {"save_strategy": "best"}, {}, {"save_steps": 0}),
    ("SFT", {"save_strategy": "epoch", "save_total_limit": 3}, {}, {"save_steps": 13, "keep_checkpoints": 3}),
    ("SFT", {"save_steps": 20}, {}, {"save_steps": 20}),
    (
        "SFT",
        {"eval_strategy": "steps", "load_best_model_at_end": True},
        HELD_OUT,
        {**MEASURED, "eval_steps": 10, "best_metric": "eval_loss"},
    ),
    (
        "Reward",
        {"eval_strategy": "steps", "metric_for_best_model": "accuracy", "greater_is_better": True},
        HELD_OUT,
        {**MEASURED, "eval_steps": 10, "best_metric": "eval_accuracy", "greater_is_better": True},
    ),
    (
        "SFT",
        {"eval_strategy": "steps", "metric_for_best_model": "wer", "greater_is_better": False},
        HELD_OUT,
        {**MEASURED, "eval_steps": 10, "best_metric": "eval_wer", "greater_is_better": False},
    ),
    (
        "SFT",
        {"eval_strategy": "steps", "metric_for_best_model": "loss", "greater_is_better": True},
        HELD_OUT,
        {**MEASURED, "eval_steps": 10, "best_metric": "eval_loss", "greater_is_better": True},
    ),
    ("SFT", {"seed": 7, "data_seed": 7}, {}, {"seed": 7}),
    ("SFT", {"use_cpu": True}, {}, {"device": "cpu"}),
    ("SFT", {"train_sampling_strategy": "sequential"}, {}, {"shuffle": False}),
    ("SFT", {"train_sampling_strategy": "sequential", "shuffle_dataset": True}, {}, {}),
    ("KTO", {"train_sampling_strategy": "random"}, {}, {"shuffle": True}),
    ("SFT", {"model_init_kwargs": {"dtype": "bfloat16", "attn_implementation": "sdpa"}, "bf16": False}, {}, {}),
    ("SFT", {"model_init_kwargs": {"trust_remote_code": True}}, {}, {}),
    ("SFT", {"label_smoothing_factor": 0.1}, {}, {"label_smoothing": 0.1}),
    ("SFT", {"neftune_noise_alpha": 5.0}, {}, {"neftune_noise_alpha": 5.0}),
    ("DPO", {"neftune_noise_alpha": 5.0}, {}, {"neftune_noise_alpha": 5.0}),
    ("SFT", {"dataset_text_field": "body"}, {}, {"text_column": "body"}),
    ("SFT", {"max_length": None}, {}, {"max_length": 1_000_000_000}),
    ("SFT", {"packing": True, "packing_strategy": "wrapped", "eval_packing": True}, {}, {"packing": True}),
    ("SFT", {"completion_only_loss": False}, {}, {"completion_only_loss": False}),
    ("SFT", {"assistant_only_loss": True}, {}, {"assistant_only_loss": True}),
    ("SFT", {"loss_type": "dft"}, {}, {"loss_type": "dft"}),
    ("SFT", {"loss_type": "chunked_nll"}, {}, {}),
    ("SFT", {}, {"processing_class": "some/tokenizer"}, {"tokenizer": "some/tokenizer"}),
    ("DPO", {"precompute_ref_log_probs": True}, {}, {"reference": "precomputed"}),
    ("DPO", {"loss_type": "ipo"}, {}, {"loss_type": ["ipo"]}),
    (
        "DPO",
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.1]},
        {},
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.1]},
    ),
    ("DPO", {"ld_alpha": 0.5, "beta": 0.3}, {}, {"ld_alpha": 0.5, "beta": 0.3}),
    ("DPO", {"loss_type": ["robust"], "label_smoothing": 0.1}, {}, {"loss_type": ["robust"], "label_smoothing": 0.1}),
    (
        "DPO",
        {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.7},
        {},
        {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.7},
    ),
    (
        "DPO",
        {"sync_ref_model": True, "ref_model_mixup_alpha": 0.5, "ref_model_sync_steps": 64},
        {},
        {"sync_ref_model": True, "ref_model_mixup_alpha": 0.5, "ref_model_sync_steps": 64},
    ),
    ("DPO", {"ref_model_mixup_alpha": 0.5, "ref_model_sync_steps": 64}, {}, {}),
    ("KTO", {"sync_ref_model": True}, {}, {"sync_ref_model": True, "ref_model_mixup_alpha": 0.6, "ref_model_sync_steps": 512}),
    # An iteration has two optimizer steps.
    (
        "GRPO",
        {"sync_ref_model": True, "num_iterations": 2},
        {},
        {
            "sync_ref_model": True,
            "ref_model_mixup_alpha": 0.6,
            "ref_model_sync_steps": 256,
            "update_epochs": 2,
            "logging_steps": 5,
            "save_steps": 250,
        },
    ),
    ("DPO", {"use_weighting": True, "discopop_tau": 0.1}, {}, {"use_weighting": True, "discopop_tau": 0.1}),
    ("DPO", {}, {"ref_model": "some/reference"}, {"reference_model": "some/reference"}),
    ("KTO", {"loss_type": "apo_zero_unpaired", "beta": 0.2}, {}, {"loss_type": "apo_zero_unpaired", "beta": 0.2}),
    ("KTO", {"desirable_weight": 2.0, "undesirable_weight": 0.5}, {}, {"desirable_weight": 2.0, "undesirable_weight": 0.5}),
    ("Reward", {"center_rewards_coefficient": 0.01}, {}, {"center_rewards_coefficient": 0.01}),
    ("Reward", {"disable_dropout": False, "max_length": 77}, {}, {"dropout": True, "max_length": 77}),
    # 16 completions of 4 prompts in one optimizer step.
    (
        "GRPO",
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_generations": 4},
        {},
        {"group_size": 4, "batch_size": 4, "micro_batch_size": 4},
    ),
    # 32 completions of 4 prompts, in 2 optimizer steps of 16, twice: 4 steps per iteration, so every interval is a fourth.
    (
        "GRPO",
        {
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 4,
            "num_iterations": 2,
            "max_steps": 40,
            "save_steps": 8,
            "logging_steps": 4,
            "warmup_steps": 6,
        },
        {},
        {
            "batch_size": 4,
            "mini_batches": 2,
            "update_epochs": 2,
            "max_steps": 10,
            "epochs": GONE,
            "save_steps": 2,
            "logging_steps": 1,
            "warmup_steps": 1.5,
        },
    ),
    # 100 prompts are 33 iterations of 3, and one prompt that TRL drops.
    (
        "GRPO",
        {"per_device_train_batch_size": 24, "num_train_epochs": 2},
        {},
        {"batch_size": 3, "micro_batch_size": 24, "epochs": GONE, "max_steps": 66},
    ),
    ("RLOO", {"num_train_epochs": 2}, {}, {"epochs": 2}),
    (
        "GRPO",
        {"generation_batch_size": 64, "max_steps": 8},
        {},
        {"max_steps": 1, "epochs": GONE, "batch_size": 8, "mini_batches": 8, "save_steps": 62, "logging_steps": 1},
    ),
    # Four rounds of sampling by one policy become one.
    ("GRPO", {"gradient_accumulation_steps": 4, "steps_per_generation": 1}, {}, {"batch_size": 4}),
    ("GRPO", {"disable_dropout": True, "shuffle_dataset": False}, {}, {"dropout": False, "shuffle": False}),
    ("GRPO", {"max_completion_length": 99, "temperature": 0.7}, {}, {"max_new_tokens": 99, "temperature": 0.7}),
    ("GRPO", {"top_p": 0.9, "top_k": 5, "min_p": 0.1}, {}, {"sampling_top_p": 0.9, "sampling_top_k": 5, "sampling_min_p": 0.1}),
    ("GRPO", {"repetition_penalty": 1.1}, {}, {"sampling_repetition_penalty": 1.1}),
    (
        "GRPO",
        {"generation_kwargs": {"stop_strings": "</end>", "min_new_tokens": 3, "do_sample": True}},
        {},
        {"stop": ["</end>"], "sampling_min_new_tokens": 3},
    ),
    ("GRPO", {"beta": 0.04, "use_bias_correction_kl": False}, {}, {"kl_coefficient": 0.04, "kl_bias_correction": False}),
    (
        "GRPO",
        {"epsilon": 0.1, "epsilon_high": 0.28, "delta": 1.5, "off_policy_mask_threshold": 0.5},
        {},
        {"clip_range": 0.1, "clip_range_high": 0.28, "delta": 1.5, "off_policy_mask_threshold": 0.5},
    ),
    (
        "GRPO",
        {"loss_type": "sapo", "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.0},
        {},
        {"loss_type": "sapo", "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.0},
    ),
    (
        "GRPO",
        {"loss_type": "vespo", "vespo_k_pos": 1.0, "vespo_lambda_pos": 1.5, "vespo_k_neg": 2.5, "vespo_lambda_neg": 0.5},
        {},
        {"loss_type": "vespo", "vespo_k_pos": 1.0, "vespo_lambda_pos": 1.5, "vespo_k_neg": 2.5, "vespo_lambda_neg": 0.5},
    ),
    ("GRPO", {"loss_type": "bnpo"}, {}, {"loss_type": "bnpo", "micro_batch_tokens": 100_000_000}),
    (
        "GRPO",
        {"importance_sampling_level": "sequence", "entropy_coef": 0.01},
        {},
        {"importance_sampling_level": "sequence", "entropy_coefficient": 0.01},
    ),
    ("GRPO", {"top_entropy_quantile": 0.2}, {}, {"top_entropy_quantile": 0.2}),
    (
        "GRPO",
        {
            "use_adaptive_entropy": True,
            "entropy_coef": 0.01,
            "entropy_coef_min": 0.0,
            "entropy_coef_max": 0.1,
            "entropy_coef_delta": 0.005,
            "entropy_target": 0.5,
        },
        {},
        {
            "use_adaptive_entropy": True,
            "entropy_coefficient": 0.01,
            "entropy_coefficient_min": 0.0,
            "entropy_coefficient_max": 0.1,
            "entropy_coefficient_delta": 0.005,
            "entropy_target": 0.5,
        },
    ),
    ("GRPO", {"entropy_coef_min": 0.1, "entropy_coef_delta": 0.1, "entropy_target": 0.5}, {}, {}),
    (
        "GRPO",
        {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "batch"},
        {},
        {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": GONE},
    ),
    ("GRPO", {"scale_rewards": False}, {}, {"scale_rewards": "none"}),
    ("GRPO", {"scale_rewards": True}, {}, {}),
    (
        "GRPO",
        {"scale_rewards": "batch", "mask_truncated_completions": True},
        {},
        {"scale_rewards": "batch", "mask_truncated_completions": True},
    ),
    (
        "GRPO",
        {
            "vllm_importance_sampling_clip_max": 0.5,
            "vllm_importance_sampling_clip_min": 0.25,
            "vllm_importance_sampling_cap": None,
        },
        {},
        {},
    ),
    ("GRPO", {"reward_weights": [2.0]}, {}, {"reward": [no_reward], "reward_weights": [2.0]}),
    ("GRPO", {}, {"reward_funcs": [no_reward, "some/reward"]}, {"reward": [no_reward, "some/reward"]}),
    ("GRPO", {}, {"reward_funcs": "some/reward", "reward_processing_classes": None}, {"reward": "some/reward"}),
    ("GRPO", {"eval_strategy": "steps"}, HELD_OUT, {**MEASURED, "eval_steps": 10, "evaluation_samples": 8}),
    (
        "GRPO",
        {"eval_strategy": "steps", "num_generations_eval": 2},
        HELD_OUT,
        {**MEASURED, "eval_steps": 10, "evaluation_samples": 2},
    ),
    (
        "GRPO",
        {"eval_strategy": "steps", "metric_for_best_model": "completions/mean_length"},
        HELD_OUT,
        {**MEASURED, "eval_steps": 10, "evaluation_samples": 8, "best_metric": "eval_length"},
    ),
    ("GRPO", {"max_tool_calling_iterations": None}, {"tools": [look_up]}, {"tools": [look_up], "episode_max_turns": 10_000}),
    ("GRPO", {"max_tool_calling_iterations": 2}, {"tools": [look_up]}, {"tools": [look_up], "episode_max_turns": 3}),
    ("GRPO", {"max_tool_calling_iterations": 2}, {}, {}),
    (
        "GRPO",
        {"max_tool_calling_iterations": None},
        {"environment_factory": Playground, "reward_funcs": None},
        {"environment": Playground, "episode_max_turns": 10_000, "reward": GONE},
    ),
    ("GRPO", {"log_completions": True, "num_completions_to_print": 2, "log_unique_prompts": True}, {}, {}),
    (
        "RLOO",
        {"normalize_advantages": True, "reward_clip_range": (-1.0, 1.0)},
        {},
        {"normalize_advantages": True, "reward_clip_range": [-1.0, 1.0]},
    ),
    ("RLOO", {"beta": 0.0, "num_generations": 4}, {}, {"kl_coefficient": 0.0, "group_size": 4, "batch_size": 2}),
]


def changed(method: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that differ from those without arguments."""
    usual = DEFAULTS | OF_METHOD[method]
    return {key: options.get(key, GONE) for key in usual | options if options.get(key, GONE) != usual.get(key, GONE)}


@pytest.mark.parametrize("number", range(len(CASES)))
def test_arguments_become_keys(number: int, core: Core) -> None:
    method, fields, arguments, expected = CASES[number]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make(method, fields, **arguments).train()
    assert changed(method, core.options) == expected


def test_every_honored_argument_is_in_a_case() -> None:
    own_tests = {"chat_template_path", "chat_template_kwargs", "model", "args", "train_dataset", "callbacks", "formatting_func"}
    own_tests |= {"quantization_config", "peft_config"}
    given = {name for _, fields, arguments, _ in CASES for name in [*fields, *arguments]} | own_tests
    for method in METHODS:
        table: dict[str, Treatment] = {**fields_of(f"{method}Config"), **_arguments.TRAINERS[f"{method}Trainer"]}
        missing = {name for name, treatment in table.items() if isinstance(treatment, Honored)} - given
        assert not missing, method


@pytest.mark.parametrize("number", range(len(CASES)))
def test_keys_come_from_arguments_that_the_table_names(number: int, core: Core) -> None:
    method, fields, arguments, expected = CASES[number]
    table = {**fields_of(f"{method}Config"), **_arguments.TRAINERS[f"{method}Trainer"]}
    named: set[str] = set()
    for name in [*fields, *arguments]:
        treatment = table[name]
        assert isinstance(treatment, Honored), name
        named |= set(treatment.keys)
    # Intervals are counted in steps of gradus, which depend on the batches.
    counted = {"save_steps", "logging_steps", "warmup_steps", "max_steps", "epochs"}
    assert set(expected) - counted <= named


# --- arguments without effect, and rejected arguments


def other(value: Any) -> Any:
    """Returns another value than `value`."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, list):
        return ["other"]
    return "other"


def fields_that_are(kind: type) -> list[tuple[str, str]]:
    return [
        (method, name)
        for method in METHODS
        for name, treatment in fields_of(f"{method}Config").items()
        if isinstance(treatment, kind)
    ]


@pytest.mark.parametrize(("method", "name"), fields_that_are(Refused))
def test_a_refused_field_says_why_and_what_to_do(method: str, name: str) -> None:
    treatment = fields_of(f"{method}Config")[name]
    assert isinstance(treatment, Refused)
    usual = KNOWN["configs"][f"{method}Config"][name]
    with pytest.raises(gradus.ConfigError) as caught:
        config_of(method)(**{name: other(usual)})
    for part in (f"{method}Config({name}=", treatment.reason, treatment.instead):
        assert part in str(caught.value)
    for neutral in treatment.accepts:
        config_of(method)(**{name: neutral})


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (method, name)
        for method in METHODS
        for name, treatment in _arguments.TRAINERS[f"{method}Trainer"].items()
        if isinstance(treatment, Refused)
    ],
)
def test_a_refused_argument_of_a_trainer_says_why_and_what_to_do(method: str, name: str) -> None:
    treatment = _arguments.TRAINERS[f"{method}Trainer"][name]
    assert isinstance(treatment, Refused)
    given: dict[str, Any] = {name: object()}
    with pytest.raises(gradus.ConfigError) as caught:
        make(method, **given)
    assert treatment.reason in str(caught.value) and treatment.instead in str(caught.value)


@pytest.mark.parametrize("method", METHODS)
def test_fields_without_effect_are_named_in_one_warning(method: str, core: Core) -> None:
    fields = {name: other(KNOWN["configs"][f"{method}Config"][name]) for of, name in fields_that_are(NoEffect) if of == method}
    with pytest.warns(UserWarning) as caught:
        make(method, fields).train()
    assert len(caught) == 1
    for name in fields:
        assert f"`{name}=" in str(caught[0].message)
    assert changed(method, core.options) == {}
    assert caught[0].filename == __file__, "the warning points at the script"


@pytest.mark.parametrize("method", METHODS)
def test_defaults_say_nothing(method: str, core: Core) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(method).train()


REFUSED_VALUES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("SFT", {"lr_scheduler_type": "reduce_lr_on_plateau"}, {}, "`constant_with_warmup`"),
    ("SFT", {"lr_scheduler_type": "greedy"}, {}, "`warmup_stable_decay`"),
    ("SFT", {"lr_scheduler_kwargs": {"num_cycles": 2}}, {}, "the schedule `linear` has no settings"),
    ("SFT", {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_min": 0}}, {}, "has the settings `power`, `lr_end`"),
    ("SFT", {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": "num_cycles=2"}, {}, "but a dict, or JSON of one,"),
    ("SFT", {"optim": "adafactor"}, {}, "`adamw_torch`"),
    ("SFT", {"report_to": "mlflow"}, {}, "`wandb`"),
    ("SFT", {"packing": True}, {}, "wrapped"),
    ("SFT", {"packing": True, "packing_strategy": "wrapped", "eval_packing": False}, {}, "both or neither"),
    ("SFT", {"train_sampling_strategy": "group_by_length"}, {}, "`random`"),
    ("SFT", {"eval_strategy": "steps"}, {}, "`eval_dataset` is not given"),
    ("SFT", {"eval_strategy": "steps"}, {"eval_dataset": {"a": ROWS, "b": ROWS}}, "2 data sets"),
    ("SFT", {"eval_strategy": "never"}, {}, "`epoch`"),
    ("SFT", {"save_strategy": "never"}, {}, "`best`"),
    ("SFT", {"logging_strategy": "never"}, {}, "`epoch`"),
    ("SFT", {"logging_steps": 2.5}, {}, "2.5"),
    ("SFT", {"data_seed": 1}, {}, "one seed"),
    ("SFT", {"load_best_model_at_end": True}, {}, "`eval_strategy` is `no`"),
    ("SFT", {"model_init_kwargs": {"revision": "v2"}}, {}, "pass its directory"),
    ("SFT", {"model_init_kwargs": {"dtype": "float16"}}, {}, "bfloat16"),
    ("SFT", {"chat_template_path": "nowhere"}, {}, "nowhere"),
    ("SFT", {"logging_steps": 0.1}, {"train_dataset": iter(ROWS)}, "`max_steps`"),
    ("SFT", {"per_device_train_batch_size": 0}, {}, "1 or more"),
    ("GRPO", {"num_generations": 3}, {}, "not a multiple of `num_generations` (3)"),
    ("GRPO", {"use_vllm": True, "vllm_importance_sampling_clip_max": 0.5}, {}, "GRPOConfig(vllm_importance_sampling_clip_max="),
    ("GRPO", {"use_vllm": True, "vllm_importance_sampling_clip_min": 2.0}, {}, "GRPOConfig(vllm_importance_sampling_clip_min="),
    ("GRPO", {"use_vllm": True, "vllm_importance_sampling_cap": 0.5}, {}, "GRPOConfig(vllm_importance_sampling_cap="),
    ("GRPO", {"num_generations": 1}, {}, "at least 2"),
    ("GRPO", {"generation_batch_size": 64, "steps_per_generation": 8}, {}, "Give one of them"),
    ("GRPO", {"generation_batch_size": 12}, {}, "not a multiple of `per_device_train_batch_size`"),
    ("GRPO", {"gradient_accumulation_steps": 4, "steps_per_generation": 6}, {}, "multiple of `gradient_accumulation_steps`"),
    ("GRPO", {"gradient_accumulation_steps": 4, "steps_per_generation": 1, "num_iterations": 2}, {}, "multiple of"),
    ("GRPO", {"per_device_train_batch_size": 808}, {}, "has 100 rows"),
    ("GRPO", {"generation_kwargs": {"num_beams": 4}}, {}, "`num_beams`"),
    ("GRPO", {"eval_strategy": "steps", "load_best_model_at_end": True}, HELD_OUT, "metric_for_best_model='reward'"),
    ("GRPO", {}, {"reward_funcs": None}, "`reward_funcs` is None"),
    ("GRPO", {}, {"reward_funcs": []}, "`reward_funcs` is []"),
    ("SFT", {}, {"quantization_config": {"load_in_4bit": True}}, "`nf4`"),
    ("SFT", {}, {"quantization_config": {"load_in_8bit": True}}, "`peft_config`"),
    ("SFT", {}, {"model": None}, "`None`"),
    ("SFT", {}, {"peft_config": types.SimpleNamespace(peft_type="IA3")}, "`peft.LoraConfig`"),
]


@pytest.mark.parametrize("number", range(len(REFUSED_VALUES)))
def test_values_that_gradus_does_not_take_are_refused(number: int, core: Core) -> None:
    method, fields, arguments, part = REFUSED_VALUES[number]
    with warnings.catch_warnings(), pytest.raises(gradus.ConfigError, match=re.escape(part)):
        warnings.simplefilter("ignore")
        make(method, fields, **arguments).train()
    assert core.calls == []


def test_names_of_earlier_versions_are_taken_or_explained() -> None:
    with pytest.warns(UserWarning, match="`warmup_ratio` is now `warmup_steps`"):
        assert trl.GRPOConfig(warmup_ratio=0.1).warmup_steps == 0.1  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="TRL cuts no prompts any more"):
        trl.GRPOConfig(max_prompt_length=512)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="Did you mean `num_generations`"):
        trl.GRPOConfig(num_generation=512)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="only that"):
        trl.SFTConfig(warmup_ratio=0.1, warmup_steps=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    for old, new in _arguments.EARLIER.items():
        known = [method for method in METHODS if new in KNOWN["configs"][f"{method}Config"]]
        assert known and not any(old in KNOWN["configs"][f"{method}Config"] for method in METHODS)
    assert not any(name in fields for name in _arguments.GONE for fields in KNOWN["configs"].values())


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("tokenizer", "Pass the tokenizer to the trainer as `processing_class`"),
        ("packing", r"Write `args=SFTConfig\(packing=...\)`"),
        ("max_seq_length", r"Write `args=SFTConfig\(max_length=...\)`"),
        ("callback", "Did you mean `callbacks`"),
    ],
)
def test_arguments_of_earlier_trainers_are_explained(name: str, advice: str) -> None:
    arguments: Any = {name: 3}
    with pytest.raises(TypeError, match=f"SFTTrainer has no argument `{name}`.*{advice}"):
        make("SFT", **arguments)


def test_warnings_of_a_trainer_name_the_line_of_the_script(core: Core) -> None:
    with pytest.warns(UserWarning) as caught:
        trl.SFTTrainer("some/model", args=trl.SFTConfig(tf32=True), train_dataset=ROWS)
    assert [one.filename for one in caught] == [__file__]


def test_a_configuration_of_another_package_is_refused() -> None:
    with pytest.raises(TypeError, match="`gradus.trl.SFTConfig` is expected"):
        another: Any = types.SimpleNamespace()
        trl.SFTTrainer("m", args=another, train_dataset=ROWS)


def test_a_configuration_is_a_dataclass_with_its_values() -> None:
    args = trl.SFTConfig("~/out", 4, model_init_kwargs='{"dtype": "bfloat16"}', hub_token="secret")
    assert args.output_dir == str(Path.home() / "out") and args.per_device_train_batch_size == 4
    assert args.model_init_kwargs == {"dtype": "bfloat16"}
    assert args.to_dict()["hub_token"] == "<HUB_TOKEN>" and "secret" not in args.to_json_string()
    assert dataclasses.replace(args, max_steps=3).max_steps == 3


@pytest.mark.parametrize("method", METHODS)
def test_command_lines_fill_configurations(method: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    parser = transformers.HfArgumentParser((config_of(method),))
    words = ["--learning_rate", "1e-4", "--output_dir", "x", "--report_to", "wandb", "--max_steps", "3", "--bf16", "false"]
    (args,) = parser.parse_args_into_dataclasses(words)
    expected = config_of(method)("x", learning_rate=1e-4, report_to=args.report_to, max_steps=3, bf16=False)
    assert args == expected
    assert plain(args.report_to) in ("wandb", ["wandb"])


def test_other_names_of_trl_say_where_they_are() -> None:
    with pytest.raises(ImportError, match="no `TrlParser`: import it from `trl`"):
        exec("from gradus.trl import TrlParser")
    with pytest.raises(ImportError, match="gradus.distill"):
        exec("from gradus.trl import DistillationTrainer")
    for name, instead in (("PPOTrainer", "gradus.ppo"), ("ORPOConfig", "gradus.orpo"), ("CPOTrainer", "gradus.simpo")):
        with pytest.raises(ImportError, match=f"gradus.trl has no `{name}`: call .*`{instead}`"):
            exec(f"from gradus.trl import {name}")
    for name, instead in (
        ("AutoModelForCausalLMWithValueHead", "pass the directory or hub name .* to `gradus.ppo`"),
        ("DataCollatorForCompletionOnlyLM", "`completion_only_loss`"),
        ("setup_chat_format", "`chat_template_path`"),
        ("create_reference_model", "leave out `ref_model`"),
    ):
        with pytest.raises(ImportError, match=f"gradus.trl has no `{name}`: .*{instead}"):
            exec(f"from gradus.trl import {name}")
    with pytest.raises(ImportError, match="cannot import name"):
        exec("from gradus.trl import Nothing")
    with pytest.raises(AttributeError):
        getattr(trl, "nothing")


def test_without_args_the_directory_is_named_after_model_and_method(core: Core) -> None:
    trl.DPOTrainer("some/model", train_dataset=ROWS).train()
    assert core.options["output_dir"] == "model-DPO"


# --- objects


class Savable:
    """Replaces a model or a tokenizer of transformers."""

    def __init__(self, name: str, content: str) -> None:
        self.name_or_path, self.content = name, content

    def save_pretrained(self, directory: str) -> None:
        (Path(directory) / "content").write_text(self.content)


def test_objects_are_saved_and_trained_from_there(core: Core, tmp_path: Path) -> None:
    model, tokenizer, reference = Savable("some/model", "model"), Savable("some/model", "tokenizer"), Savable("r", "reference")
    make("DPO", model=model, processing_class=tokenizer, ref_model=reference).train()
    assert (tmp_path / core.calls[-1][1] / "content").read_text() == "model"
    assert (tmp_path / core.options["tokenizer"] / "content").read_text() == "tokenizer"
    assert (tmp_path / core.options["reference_model"] / "content").read_text() == "reference"
    make("SFT", model=model).train()
    assert core.options["tokenizer"] == "some/model", "without a tokenizer that of the place it came from"
    with pytest.raises(gradus.ConfigError, match="`processing_class`"):
        make("SFT", model=Savable("", "model")).train()


def test_a_reward_model_that_is_an_object_is_saved_with_its_tokenizer(core: Core, tmp_path: Path) -> None:
    reward, tokenizer = Savable("some/reward", "reward"), Savable("some/reward", "tokenizer")
    make("GRPO", reward_funcs=[no_reward, reward], reward_processing_classes=[None, tokenizer]).train()
    first, second = core.options["reward"]
    assert first is no_reward and (tmp_path / second / "content").read_text() == "tokenizer"
    with pytest.raises(gradus.ConfigError, match="2 entries for 1 rewards"):
        make("GRPO", reward_processing_classes=[None, tokenizer]).train()
    with pytest.raises(gradus.ConfigError, match="next to that model"):
        make("GRPO", reward_funcs="some/reward", reward_processing_classes=tokenizer).train()


def test_a_model_that_is_quantized_in_memory_is_refused() -> None:
    model = Savable("m", "")
    model.is_quantized = True  # type: ignore[attr-defined]
    with pytest.raises(gradus.ConfigError, match="quantized in memory"):
        make("SFT", model=model)


def test_rows_are_formatted_and_given_to_templates(core: Core) -> None:
    make("SFT", {"dataset_text_field": "body"}, formatting_func=lambda row: row["prompt"].upper()).train()
    assert list(core.calls[-1][2])[:2] == [{"body": "SAY 0"}, {"body": "SAY 1"}]
    make("GRPO", {"chat_template_kwargs": {"enable_thinking": False}}).train()
    rows = core.calls[-1][2]
    expected = {"prompt": "say 0", "chat_template_kwargs": {"enable_thinking": False}}
    assert next(iter(rows)) == expected and next(iter(rows)) == expected, "the rows can be read again"
    with pytest.raises(gradus.ConfigError, match="Load them"):
        make("SFT", formatting_func=str, train_dataset="rows.jsonl").train()


PACKED = {"packing": True, "packing_strategy": "wrapped"}


@pytest.mark.parametrize(
    ("method", "fields", "rows"),
    [
        ("SFT", {"max_steps": 3, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}, 3 * 4 * 2),
        # A block of 16 tokens has at most 16 rows.
        ("SFT", {"max_steps": 3, "per_device_train_batch_size": 4, **PACKED, "max_length": 16}, 3 * 4 * 16),
        # Eight completions are four of each of two prompts.
        ("GRPO", {"max_steps": 5, "per_device_train_batch_size": 8, "num_generations": 4}, 5 * 2),
        ("SFT", {"max_steps": 3, **PACKED, "max_length": None}, 1_000_000_000),
        ("SFT", {"num_train_epochs": 2}, None),
    ],
)
def test_of_rows_without_a_length_those_for_all_steps_are_read(
    method: str, fields: dict[str, Any], rows: int | None, core: Core
) -> None:
    make(method, fields, train_dataset=iter(ROWS)).train()
    assert core.options.get("max_rows") == rows
    # Of TRL's trainers, those that sample shuffle iterables by default.
    assert core.options["shuffle"] == (method == "GRPO")
    make(method, fields, train_dataset=ROWS).train()
    assert "max_rows" not in core.options and core.options["shuffle"]
    make(method, {**fields, "shuffle_dataset": True}, train_dataset=iter(ROWS)).train()
    assert core.options["shuffle"]


def test_a_chat_template_is_a_file_or_in_a_directory(core: Core, tmp_path: Path) -> None:
    (tmp_path / "template").mkdir()
    file = tmp_path / "template" / "chat_template.jinja"
    file.write_text("{{ messages }}")
    for given in (str(file), str(file.parent)):
        make("SFT", {"chat_template_path": given}).train()
        assert changed("SFT", core.options) == {"chat_template": str(file)}


LORA = {"lora_rank": 8, "lora_alpha": 8, "lora_dropout": 0.0, "lora_rank_stabilised": False, "lora_dora": False}


def test_adapters_of_peft_become_keys(core: Core, tmp_path: Path) -> None:
    def keys(method: str, config: Any, **arguments: Any) -> dict[str, Any]:
        make(method, peft_config=config, **arguments).train()
        return changed(method, core.options)

    assert keys("SFT", lora(target_modules=["v_proj", "q_proj"])) == LORA | {"lora_targets": ["q_proj", "v_proj"]}
    assert keys("SFT", lora(target_modules="all-linear")) == LORA | {"lora_targets": ["all-linear"]}
    assert keys("SFT", lora(target_modules=r".*\.mlp\..*")) == LORA | {"lora_target_pattern": r".*\.mlp\..*"}
    values: dict[str, Any] = {"r": 4, "lora_alpha": 16, "lora_dropout": 0.1, "use_rslora": True, "use_dora": True}
    expected = {"lora_rank": 4, "lora_alpha": 16, "lora_rank_stabilised": True, "lora_dora": True, "lora_targets": ["all-linear"]}
    config = lora(target_modules="all-linear", task_type="CAUSAL_LM", **values)
    assert keys("GRPO", config) == expected | {"lora_dropout": 0.1}
    assert keys("DPO", config) == expected | {"lora_dropout": 0.0}, "TRL turns all dropout off"
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text('{"model_type": "gpt2"}')
    assert keys("SFT", lora(), model=str(tmp_path / "gpt2")) == LORA | {"lora_targets": ["c_attn"]}, "what peft takes"
    assert keys("Reward", lora(target_modules="all-linear", modules_to_save=["score"])) == LORA | {"lora_targets": ["all-linear"]}
    refused: tuple[dict[str, Any], ...] = (
        {"bias": "all"},
        {"modules_to_save": ["lm_head"]},
        {"init_lora_weights": "gaussian"},
        {"rank_pattern": {"a": 3}},
    )
    for values in refused:
        with pytest.raises(gradus.ConfigError, match=next(iter(values))):
            keys("SFT", lora(target_modules="all-linear", **values))
    with pytest.raises(gradus.ConfigError, match="`target_modules`"):
        keys("SFT", lora(), model=Savable("m", ""))
    four_bit = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    found = keys("SFT", lora(target_modules="all-linear"), quantization_config=four_bit)
    assert found == LORA | {"lora_targets": ["all-linear"], "frozen_weights": "nf4"}


def test_a_quantization_of_transformers_is_read() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from gradus.trl._adapter import quantized_weights

    assert quantized_weights(transformers.BitsAndBytesConfig(load_in_8bit=True), True) == {"frozen_weights": "int8"}
    four_bit = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    assert quantized_weights(four_bit, True) == {"frozen_weights": "nf4"}
    assert quantized_weights(transformers.BitsAndBytesConfig(), True) == {}


# --- a run as seen by scripts and callbacks


def told(
    rows: list[tuple[int, dict[str, float]]], total: int, answers: list[Any] | None = None
) -> Callable[[dict[str, Any]], None]:
    """Returns a run that reports these rows; `answers` collects the return values of the callbacks."""

    def events(options: dict[str, Any]) -> None:
        for step, row in rows:
            answer = options["on_step"](step, total, row)
            held_out = {name: value for name, value in row.items() if name.startswith("eval_")}
            if answer is not False and held_out:
                answer = options["on_evaluation"](step, held_out, True)
            if answers is not None:
                answers.append(answer)
            if answer is False:
                break

    return events


def test_the_log_has_means_and_evaluations_under_the_names_of_trl(core: Core) -> None:
    core.events = told(
        [
            (2, {"loss": 4.0, "epoch": 0.5, "num_examples": 32.0}),
            (3, {"loss": 1.0, "epoch": 0.75, "num_examples": 48.0, "eval_loss": 0.5}),
            (4, {"loss": 2.0, "epoch": 1.0, "num_examples": 64.0}),
        ],
        total=4,
    )
    trainer = make("SFT", {"logging_steps": 2, "eval_strategy": "steps", "eval_steps": 3}, **HELD_OUT)
    output = trainer.train()
    history = trainer.state.log_history
    assert history[0] == {"loss": 4.0, "epoch": 0.5, "num_examples": 32.0, "step": 2}
    assert history[1] == {"eval_loss": 0.5, "epoch": 0.75, "step": 3}
    assert history[2]["loss"] == 1.5 and history[2]["step"] == 4
    # Two steps with loss 4, one with 1, one with 2: 11 / 4.
    assert output.training_loss == 2.75 == output.metrics["train_loss"] and output.global_step == 4
    assert history[3]["train_loss"] == 2.75 and trainer.log_history is history


def test_epochs_count_batches_as_in_transformers(core: Core) -> None:
    fields = {"num_train_epochs": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "logging_steps": 1}
    core.events = told([(step, {"loss": 1.0, "epoch": step / 2}) for step in (1, 2, 3, 4)], 4)
    trainer = make("SFT", fields, train_dataset=ROWS[:10])
    trainer.train()
    # An epoch has five batches of two rows. The log of TRL 1.16 for these arguments.
    assert [entry["epoch"] for entry in trainer.log_history] == pytest.approx([0.6, 1.0, 1.6, 2.0, 2.0])
    # gradus has left rows out, so an epoch has one step.
    core.events = told([(step, {"loss": 1.0, "epoch": float(step)}) for step in (1, 2)], 2)
    trainer = make("SFT", fields, train_dataset=ROWS[:10])
    trainer.train()
    assert [entry["epoch"] for entry in trainer.log_history] == [1.0, 2.0, 2.0]


def test_evaluations_of_sampling_have_the_names_of_trl_and_steps_of_the_optimizer(core: Core) -> None:
    core.events = told([(1, {"reward": 1.0, "eval_length": 3.0, "eval_kl": 0.1, "eval_reward": 2.0})], total=5)
    trainer = make("GRPO", {"num_iterations": 3, "eval_strategy": "steps", "logging_steps": 3, "save_steps": 3}, **HELD_OUT)
    trainer.train()
    history = trainer.state.log_history
    assert history[0] == {"reward": 1.0, "step": 3}
    assert history[1] == {"eval_completions/mean_length": 3.0, "eval_objective/kl": 0.1, "eval_reward": 2.0, "step": 3}
    assert trainer.state.max_steps == 15 and trainer.state.best_global_step == 3


def formatReward(completions: list[str], **_: Any) -> list[float]:
    return [1.0 for _ in completions]


def test_metrics_of_rewards_have_the_names_of_trl(core: Core) -> None:
    row = {"reward": 1.0, "rewards/formatreward/mean": 1.0, "rewards/formatreward/acc": 0.5, "rewards/formatreward/reward": 2.0}
    core.events = told([(1, row | {f"eval_{name}": value for name, value in row.items()})], total=1)
    fields = {"logging_steps": 1, "save_steps": 1, "eval_strategy": "steps", "load_best_model_at_end": True}
    trainer = make("GRPO", fields | {"metric_for_best_model": "acc"}, reward_funcs=formatReward, **HELD_OUT)
    trainer.train()
    assert core.options["best_metric"] == "eval_rewards/formatreward/acc"
    # A number that would hide one of the run keeps its name.
    named = {"reward": 1.0, "rewards/formatReward/mean": 1.0, "acc": 0.5, "rewards/formatreward/reward": 2.0}
    assert trainer.log_history[0] == named | {"step": 1}
    assert trainer.log_history[1] == {f"eval_{name}": value for name, value in named.items()} | {"step": 1}
    assert trainer.state.best_metric == 0.5
    core.events = told(
        [(1, {"rewards/formatreward/std": 1.0, "rewards/no_reward/std": 2.0, "rewards/python/std": 3.0, "rewards/acc": 0.5})], total=1
    )
    several = make("GRPO", fields | {"metric_for_best_model": "rewards/formatReward/mean"}, reward_funcs=[formatReward, no_reward], **HELD_OUT)
    several.train()
    assert core.options["best_metric"] == "eval_rewards/formatreward/mean"
    assert several.log_history[0] == {"rewards/formatReward/std": 1.0, "rewards/no_reward/std": 2.0, "acc": 0.5, "step": 1}


def test_errors_of_a_run_name_the_arguments_of_trl(core: Core) -> None:
    def fails(options: dict[str, Any]) -> None:
        raise gradus.InputError('the model has none\nhint: give `chat_template="chatml"`, and another `learning_rate`')

    core.events = fails
    with pytest.raises(gradus.InputError) as raised:
        make("SFT").train()
    assert raised.value.__notes__ == [
        "`chat_template` is `SFTConfig(chat_template_path=...)`: a Jinja file, or a directory with `chat_template.jinja`"
    ]


def test_a_reward_that_reads_environments_needs_some() -> None:
    def of_environments(environments: list[Any], **_: Any) -> list[float]:
        return [one.reward for one in environments]

    with pytest.raises(gradus.ConfigError, match="the reward function `of_environments` has a parameter `environments`.*`environment_factory`"):
        make("GRPO", reward_funcs=[no_reward, of_environments])
    make("GRPO", reward_funcs=[no_reward, of_environments], environment_factory=type("Empty", (), {}))


def test_intervals_that_do_not_divide_are_said(core: Core) -> None:
    with pytest.warns(UserWarning, match="`max_steps=10` becomes 12 optimizer steps: an iteration has 3"):
        make("GRPO", {"num_iterations": 3, "max_steps": 10, "logging_steps": 3, "save_steps": 3}).train()
    assert core.options["max_steps"] == 4


@pytest.mark.parametrize(
    ("losses", "kept", "said"),
    [
        (["sigmoid"], 0.0, "`label_smoothing=0.1` becomes 0: TRL reads it only for the losses `robust`"),
        (["sigmoid", "robust"], 0.1, "`label_smoothing=0.1` also applies to the loss `sigmoid`"),
    ],
)
def test_label_smoothing_that_trl_ignores_is_said(losses: list[str], kept: float, said: str, core: Core) -> None:
    with pytest.warns(UserWarning, match=said):
        make("DPO", {"loss_type": losses, "label_smoothing": 0.1}).train()
    assert core.options["label_smoothing"] == kept


class Watching:
    """A callback that records its calls, and stops the run after a step."""

    def __init__(self, stop_after: int) -> None:
        self.stop_after = stop_after
        self.heard: list[str] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.heard.append("begin")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self.heard.append(f"step {state.global_step}")
        control.should_training_stop = state.global_step >= self.stop_after
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
        self.heard.append(f"log {sorted(logs)[0]}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.heard.append("end")


def test_callbacks_hear_of_every_step_and_stop_the_run(core: Core) -> None:
    answers: list[Any] = []
    core.events = told([(step, {"loss": 1.0}) for step in range(1, 9)], 8, answers)
    callback = Watching(3)
    make("SFT", {"logging_steps": 2}, callbacks=[callback]).train()
    assert callback.heard == ["begin", "step 1", "step 2", "log loss", "step 3", "log train_loss", "end"]
    assert answers == [True, True, False]
    assert changed("SFT", core.options) == {"logging_steps": 1}


def test_a_callback_with_a_method_that_is_never_called_is_refused() -> None:
    class Saves:
        def on_save(self, *_: Any, **__: Any) -> None: ...

    with pytest.raises(gradus.ConfigError, match="`Saves` has `on_save`"):
        make("SFT", callbacks=[Saves()])


def subclass(method: str, *bases: type, **members: Any) -> Any:
    """Creates a subclass of a trainer, and an object of it."""
    arguments: dict[str, Any] = {"reward_funcs": no_reward} if method in ("GRPO", "RLOO") else {}
    cls: Any = type("Mine", (*bases, trainer_of(method)), members)
    return cls("some/model", args=config_of(method)(), train_dataset=ROWS, **arguments)


@pytest.mark.parametrize(
    ("method", "name", "instead"),
    [
        ("SFT", "compute_loss", "choose `loss_type`"),
        ("DPO", "training_step", "`gradus.Trainer`"),
        ("KTO", "log", "callback with `on_log`"),
        ("Reward", "create_optimizer", "set `optim`"),
        ("GRPO", "_generate_and_score_completions", "`reward_funcs`, `tools` or `environment_factory`"),
        ("RLOO", "_calculate_rewards", "`reward_funcs`"),
        ("SFT", "evaluation_loop", "callback with `on_evaluate`"),
        # Methods of TRL 0.24 and transformers 4.
        ("DPO", "dpo_loss", "choose `loss_type`"),
        ("DPO", "concatenated_forward", "choose `loss_type`"),
        ("DPO", "get_batch_loss_metrics", "choose `loss_type`"),
        ("DPO", "tokenize_row", "change the rows"),
        ("KTO", "kto_loss", "choose `loss_type`"),
        ("GRPO", "_get_per_token_logps", "choose `loss_type`"),
        ("RLOO", "generate_completions", "callback with `on_evaluate`"),
        ("Reward", "prediction_loop", "callback with `on_evaluate`"),
    ],
)
def test_an_override_that_is_never_called_is_refused(method: str, name: str, instead: str, core: Core) -> None:
    def override(self: Any, *_: Any, **__: Any) -> None: ...

    with pytest.raises(gradus.ConfigError, match=f"`Mine` defines `{name}`.*{re.escape(instead)}"):
        subclass(method, **{name: override})
    with pytest.raises(gradus.ConfigError, match=f"`Mixin` defines `{name}`"):
        subclass(method, type("Mixin", (), {name: override}))
    trainer = subclass(method)
    setattr(trainer, name, override)
    with pytest.raises(gradus.ConfigError, match=f"defines `{name}`"):
        trainer.train()
    assert core.calls == []


@pytest.mark.parametrize("name", ["compute_loss", "dpo_loss"])
def test_a_patched_trainer_is_refused(name: str, core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make("DPO")
    expected = f"`DPOTrainer` defines `{name}`, which .*gradus never calls"
    with monkeypatch.context() as patch:
        patch.setattr(trl.DPOTrainer, name, no_reward, raising=False)
        with pytest.raises(gradus.ConfigError, match=expected):
            trainer.train()
        with pytest.raises(gradus.ConfigError, match=expected):
            make("DPO")
        with pytest.raises(gradus.ConfigError, match=expected):
            subclass("DPO")
    assert core.calls == []
    # In TRL, too, a method of the trainer takes precedence over that of a later class.
    later: Any = type("Mine", (trl.DPOTrainer, type("Mixin", (), {name: no_reward})), {})
    later("some/model", args=trl.DPOConfig(), train_dataset=ROWS)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_of_earlier_versions_is_neither_in_trl_now_nor_in_gradus(method: str) -> None:
    name = f"{method}Trainer"
    now = {*KNOWN["methods"]["all"], *KNOWN["methods"][name], *dir(trainer_of(method))}
    assert now.isdisjoint(_overrides.EARLIER[name])


def test_other_methods_of_a_subclass_are_kept(core: Core) -> None:
    heard: list[str] = []

    def train(self: Any, *arguments: Any) -> Any:
        heard.append("train")
        return trl.SFTTrainer.train(self, *arguments)

    # TRL's trainer for SFT has no `_compute_loss`, so this one is a method of the script.
    subclass("SFT", train=train, save_metrics=no_reward, loss_of=no_reward, _compute_loss=no_reward, _tag_names=["mine"]).train()
    assert heard == ["train"] and [call[0] for call in core.calls] == ["sft"]


@pytest.mark.parametrize(
    ("name", "fields", "is_called"),
    [
        ("evaluate", {}, False),
        ("evaluate", {"eval_strategy": "steps", "eval_steps": 1}, True),
        ("save_model", {}, True),
        ("save_model", {"save_strategy": "no"}, False),
    ],
)
def test_a_method_that_only_the_script_calls_has_a_warning_if_trl_calls_it(
    name: str, fields: dict[str, Any], is_called: bool, core: Core
) -> None:
    cls: Any = type("Mine", (trl.SFTTrainer,), {name: no_reward})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = cls("some/model", args=trl.SFTConfig(**fields), train_dataset=ROWS, eval_dataset=ROWS)
    assert [f"`Mine` defines `{name}`" in str(one.message) for one in caught] == [True] * is_called
    trainer.train()
    assert [call[0] for call in core.calls] == ["sft"]


def test_a_patched_method_that_trl_calls_has_a_warning(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl.SFTTrainer, "save_model", no_reward)
    with pytest.warns(UserWarning, match="`SFTTrainer` defines `save_model`"):
        make("SFT")


def test_a_subclass_may_have_the_name_of_its_trainer(core: Core) -> None:
    cls: Any = type("SFTTrainer", (trl.SFTTrainer,), {})
    cls("some/model", args=trl.SFTConfig(), train_dataset=ROWS).train()
    assert [call[0] for call in core.calls] == ["sft"]


def test_what_callbacks_ask_for_in_vain_is_said_once(core: Core) -> None:
    class Asks:
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_save = True

    core.events = told([(step, {"loss": 1.0}) for step in (1, 2)], 2)
    with pytest.warns(UserWarning, match="`control.should_save`") as caught:
        make("SFT", callbacks=[Asks]).train()
    assert len(caught) == 1


def test_the_callback_of_transformers_that_stops_early_works(core: Core) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    answers: list[Any] = []
    core.events = told([(step, {"loss": 1.0, "eval_loss": float(step)}) for step in (1, 2, 3)], 3, answers)
    fields = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        "greater_is_better": False,
    }
    make("SFT", fields, callbacks=[transformers.EarlyStoppingCallback(1)], **HELD_OUT).train()
    # The stand-in marks every evaluation as the best, so the second one is no better than the first.
    assert answers == [True, False]


def test_methods_that_callbacks_may_have_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    theirs = {name for name in vars(transformers.TrainerCallback) if name.startswith("on_")}
    assert theirs == set(_state.CALLED) | set(_state._NOT_CALLED)


def test_means_of_rows() -> None:
    """As in transformers, the loss is a mean over steps, and the gradient norm is that of the last step."""
    means = _state.Means()
    means.add({"loss": 3.0, "grad_norm": 5.0, "learning_rate": 0.2, "reward": None}, 1)
    means.add({"loss": 6.0, "grad_norm": 1.0, "learning_rate": 0.1, "reward": 4.0}, 2)
    assert means.take() == {"loss": 5.0, "reward": 4.0, "grad_norm": 1.0, "learning_rate": 0.1}
    assert means.take() == {}


def test_completions_are_printed(core: Core, capsys: pytest.CaptureFixture[str]) -> None:
    rollouts = [{"prompt": p, "completion": c, "reward": 1.0} for p, c in [("a", "x"), ("a", "y"), ("b", "z")]]
    core.events = lambda options: [options["on_rollouts"](step, rollouts) for step in (1, 2)]
    fields = {"log_completions": True, "log_unique_prompts": True, "num_completions_to_print": 2, "logging_steps": 2}
    make("GRPO", fields).train()
    printed = capsys.readouterr().out
    assert printed.startswith("completions of step 2") and printed.count("prompt:") == 2 and "'y'" not in printed


def test_training_goes_on_from_a_checkpoint(core: Core) -> None:
    with pytest.raises(gradus.ConfigError, match="`train\\(resume_from_checkpoint=True\\)` found no checkpoint in 'trainer_output'"):
        make("SFT").train(resume_from_checkpoint=True)
    for directory in ("trainer_output/checkpoints/step-000002", "trainer_output/best", "out/checkpoints/step-000100"):
        Path(directory).mkdir(parents=True)
    make("SFT").train(resume_from_checkpoint=True)
    assert changed("SFT", core.options) == {"overwrite": GONE, "resume": True}
    for resume in ("out/checkpoints/step-000100", Path("out/checkpoints/step-000100")):
        make("SFT").train(resume_from_checkpoint=resume)
        assert changed("SFT", core.options) == {"overwrite": GONE, "resume_from": "out/checkpoints/step-000100"}
    # Within its own directory a run continues from a step.
    for resume in ("trainer_output/checkpoints/step-000002", Path("trainer_output/checkpoints/step-000002").resolve()):
        make("SFT").train(resume_from_checkpoint=resume)
        assert changed("SFT", core.options) == {"overwrite": GONE, "resume_from": "2"}
    with pytest.raises(gradus.ConfigError, match="'trainer_output/best', which is no checkpoint of the run"):
        make("SFT").train(resume_from_checkpoint="trainer_output/best")
    with pytest.raises(gradus.ConfigError, match="there is no such directory"):
        make("SFT").train(resume_from_checkpoint="nowhere")
    with pytest.raises(gradus.ConfigError, match="is 3, but the directory of a checkpoint"):
        make("SFT").train(resume_from_checkpoint=3)
    trainer = make("SFT")
    trainer.train()
    with pytest.raises(gradus.ConfigError, match="called twice"):
        trainer.train()


def test_the_trained_model_is_copied(core: Core, tmp_path: Path) -> None:
    trainer = make("SFT", {"output_dir": str(tmp_path / "out")})
    with pytest.raises(gradus.ConfigError, match="Call `train"):
        trainer.save_model()
    trainer.train()
    (tmp_path / "checkpoints" / "step-000002").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-000002" / "config.json").write_text("checkpoint")
    trainer.save_model(str(tmp_path / "first"))
    assert (tmp_path / "first" / "config.json").read_text() == "checkpoint", "a run that was stopped has no model/"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("last")
    trainer.save_model()
    assert (tmp_path / "out" / "config.json").read_text() == "last"
    trainer.args.load_best_model_at_end = True
    with pytest.warns(UserWarning, match="no evaluation beat the start"):
        trainer.save_model()
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "config.json").write_text("best")
    trainer.save_model()
    assert (tmp_path / "out" / "config.json").read_text() == "best"


def test_evaluate_takes_what_the_run_measured_or_measures(core: Core, tmp_path: Path) -> None:
    answers: list[Any] = []
    core.events = lambda options: answers.append(options["on_evaluation"](0, {"eval_loss": 0.25, "eval_none": None}, False))
    trainer = make("DPO", {"max_length": 64, "report_to": "wandb"}, **HELD_OUT)
    assert trainer.evaluate() == {"eval_loss": 0.25} and answers == [False]
    method, model, data, options = core.calls[-1]
    assert (method, model, data, options["eval_data"]) == ("dpo", "some/model", ROWS[:10], ROWS[:10])
    assert options["max_length"] == 64 and "wandb" not in options and "reference_model" not in options
    assert not Path(options["output_dir"]).is_relative_to(tmp_path)
    core.events = lambda options: None
    trainer.train()
    (tmp_path / "model").mkdir()
    core.events = lambda options: options["on_evaluation"](0, {"eval_loss": 0.25}, False)
    assert trainer.evaluate(iter(ROWS[:3]), metric_key_prefix="test")["test_loss"] == 0.25
    assert core.calls[-1][:3] == ("dpo", str(tmp_path / "model"), ROWS[:3])
    assert core.options["reference_model"] == "some/model" and core.options["eval_data"] == ROWS[:3]
    core.run.results = {"after": {"eval_loss": 0.5, "test_loss": 9.0}}
    assert trainer.evaluate() == {"eval_loss": 0.5}
    sampling = make("GRPO", **HELD_OUT)
    with pytest.raises(gradus.ConfigError, match="eval_strategy='steps'"):
        sampling.evaluate()
    with pytest.raises(gradus.ConfigError, match="neither the trainer nor the call"):
        make("SFT").evaluate()


def test_what_gradus_does_not_do_says_what_to_do() -> None:
    trainer = make("SFT")
    with pytest.raises(gradus.ConfigError, match="hf upload NAME trainer_output/model"):
        trainer.push_to_hub()
    with pytest.raises(gradus.ConfigError, match="trainer.model.generate"):
        trainer.predict(ROWS)
    with pytest.raises(gradus.ConfigError, match="trainer_output/model/README.md"):
        trainer.create_model_card()
    with pytest.raises(gradus.ConfigError, match="gradus sweep"):
        trainer.train(trial=1)


def test_small_things_that_scripts_use(core: Core, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make("SFT", {"output_dir": str(tmp_path / "out")})
    trainer.accelerator.print("hello")
    trainer.log_metrics("eval", {"eval_loss": 0.5})
    assert capsys.readouterr().out == "hello\n***** eval metrics *****\n  eval_loss = 0.5\n"
    trainer.save_metrics("eval", {"eval_loss": 0.5})
    trainer.save_metrics("train", {"train_loss": 1.5})
    assert json.loads((tmp_path / "out" / "all_results.json").read_text()) == {"eval_loss": 0.5, "train_loss": 1.5}
    trainer.save_state()
    assert json.loads((tmp_path / "out" / "trainer_state.json").read_text())["global_step"] == 0
    callback = Watching(1)
    trainer.add_callback(callback)
    trainer.train()
    assert core.options["logging_steps"] == 1 and trainer.pop_callback(Watching) is callback
    assert trainer.is_world_process_zero() and trainer.is_local_process_zero()


def test_the_page_has_the_table() -> None:
    import write_trl_page

    assert write_trl_page.PAGE.read_text(encoding="utf-8") == write_trl_page.page(), "run python tests/write_trl_page.py"
