"""Small runs whose numbers do not depend on random streams. gradus must match TRL's numbers, recorded in trl_arguments.json."""

from __future__ import annotations

from typing import Any

from trl_stand_in import REPOSITORY

MODELS = REPOSITORY / "crates" / "gradus" / "tests" / "fixtures" / "parity" / "trajectories" / "models"
NUMBERS = (
    "loss",
    "grad_norm",
    "learning_rate",
    "num_tokens",
    "rewards/chosen",
    "rewards/margins",
    "kl",
    "accuracy",
    "margin",
    "eval_loss",
)
"""Metrics that are compared if they are logged."""

COUNT = 25
TEXTS = [{"prompt": f"say {number}", "completion": f" word {number}"} for number in range(COUNT)]
PAIRS = [{"prompt": f"say {number}", "chosen": f" word {number}", "rejected": " no"} for number in range(COUNT)]
MARKED = [{**row, "label": number % 3 > 0} for number, row in enumerate(TEXTS)]

SHARED: dict[str, Any] = {
    "learning_rate": 1e-3,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "logging_steps": 1,
    "save_strategy": "no",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "train_sampling_strategy": "sequential",
}
"""Settings with `gradient_accumulation_steps`, and a number of rows that is no multiple of a step."""

JOBS: dict[str, tuple[str, str, list[dict[str, Any]], dict[str, Any]]] = {
    # name: (method, model, rows, fields)
    "two epochs": ("SFT", "qwen3", TEXTS, {"num_train_epochs": 2, "warmup_steps": 0.2, "eval_strategy": "epoch"}),
    "smoothed": (
        "SFT",
        "qwen3",
        TEXTS,
        {
            "num_train_epochs": 1,
            "label_smoothing_factor": 0.1,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": 2,
            "adam_beta2": 0.9,
            "weight_decay": 0.1,
            "completion_only_loss": False,
        },
    ),
    "cut": ("SFT", "qwen3", TEXTS, {"max_steps": 3, "max_length": 6, "lr_scheduler_type": "cosine"}),
    "lowest rate": (
        "SFT",
        "qwen3",
        TEXTS,
        {
            "num_train_epochs": 2,
            "warmup_steps": 1,
            "lr_scheduler_type": "cosine_with_min_lr",
            "lr_scheduler_kwargs": {"min_lr_rate": 0.25, "num_cycles": 0.75},
            "optim": "adamw_torch",
            "eval_strategy": "steps",
            "eval_steps": 2,
            "eval_delay": 3,
        },
    ),
    "pairs": ("DPO", "qwen3", PAIRS, {"num_train_epochs": 1, "lr_scheduler_type": "cosine", "warmup_steps": 1}),
    "two losses": (
        "DPO",
        "qwen3",
        PAIRS,
        {"max_steps": 3, "loss_type": ["ipo", "sft"], "loss_weights": [1.0, 0.5], "beta": 0.2, "learning_rate": 1e-4},
    ),
    # One batch per step: TRL's mean rewards of a step are means of the means of its batches.
    "marked": (
        "KTO",
        "qwen3",
        MARKED,
        {
            "num_train_epochs": 1,
            "loss_type": "apo_zero_unpaired",
            "undesirable_weight": 1.5,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 1,
        },
    ),
    "judge": ("Reward", "qwen3-reward", PAIRS, {"num_train_epochs": 1, "center_rewards_coefficient": 0.01, "optim": "rmsprop"}),
}


def numbers(module: Any, name: str, rows_as: Any) -> list[dict[str, float]]:
    """Returns the log of a job, run by TRL or by `gradus.trl`."""
    method, model, rows, fields = JOBS[name]
    args = getattr(module, f"{method}Config")(output_dir="out", **{**SHARED, **fields})
    held_out = {"eval_dataset": rows_as(rows)} if "eval_strategy" in fields else {}
    trainer = getattr(module, f"{method}Trainer")(str(MODELS / model), args=args, train_dataset=rows_as(rows), **held_out)
    trainer.train()
    wanted = (*NUMBERS, "step")
    return [{key: float(entry[key]) for key in wanted if key in entry} for entry in trainer.state.log_history]
