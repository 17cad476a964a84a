"""Translates the arguments of TRL to keys of gradus."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gradus.trl._adapter import lora_keys, quantized_weights
from gradus.trl._arguments import Honored, fields_of
from gradus.trl._check import error, plain, shown
from gradus.trl._configs import BaseConfig, GRPOConfig, RLOOConfig, SFTConfig
from gradus.trl._rewards import RewardNames

ALL: Final = 1_000_000_000
"""No limit: the largest number that a key of gradus accepts."""

ALL_TOKENS: Final = 100_000_000
"""No limit for `micro_batch_tokens`."""

Keys = dict[str, Any]


@dataclass
class TrainerArguments:
    """A trainer's arguments, with properties of its data."""

    args: BaseConfig
    config: str
    """The name of the class of `args`, as in the table."""
    arguments: Mapping[str, Any]
    """The other arguments of the trainer, by name."""
    rows: int | None = None
    """The number of rows to train on, if known."""
    is_stream: bool = False
    """Whether the rows come from an iterable without a length, which may have no end."""
    has_callbacks: bool = False
    notes: list[str] = field(default_factory=list)
    """Approximations, as sentences for a warning."""


@dataclass(frozen=True)
class Batches:
    """The batches of an epoch, of which TRL combines several in a step. A batch has the rows of one forward pass."""

    of_epoch: int
    of_step: int

    def epoch(self, step: int, known: float) -> float:
        """Returns the epochs after a step, as transformers counts them: by batches. `known` is their number by steps, which is kept if it
        belongs to another number of rows.
        """
        steps = math.ceil(self.of_epoch / self.of_step)
        if known <= 0 or round(step / known) != steps:
            return known
        epochs, rest = divmod(step, steps)
        return epochs + rest * self.of_step / self.of_epoch


@dataclass
class Translated:
    """A run in the form that gradus takes."""

    keys: Keys
    steps_per_iteration: int
    """Optimizer steps per step of gradus."""
    log_every: int
    """Steps of gradus between two entries of the log history."""
    log_first: bool
    evaluates: bool
    """Whether held-out rows are evaluated during the run."""
    batches: Batches | None
    """The batches of an epoch, for methods that do not sample and a known number of rows."""
    notes: list[str]


def translate(trainer: TrainerArguments) -> Translated:
    """Returns all keys of a run.

    Raises:
        ConfigError: for a value that gradus does not accept.
    """
    keys: Keys = dict(_FIXED.get(type_name(trainer), {}))
    done: set[str] = set()
    for name, treatment in fields_of(trainer.config).items():
        if not isinstance(treatment, Honored):
            continue
        if not treatment.by:
            if len(treatment.keys) == 1:
                value = plain(getattr(trainer.args, name))
                if value is not None:
                    keys[treatment.keys[0]] = value
        elif treatment.by not in done:
            done.add(treatment.by)
            keys.update(_CONVERSIONS[treatment.by](trainer))
    for name in ("quantization", "peft"):
        keys.update(_CONVERSIONS[name](trainer))
    return Translated(
        keys=keys,
        steps_per_iteration=_Rollouts.of(trainer).optimizer_steps if is_online(trainer) else 1,
        log_every=_log_every(trainer),
        log_first=trainer.args.logging_first_step,
        evaluates=_evaluates(trainer),
        batches=_batches(trainer),
        notes=trainer.notes,
    )


def type_name(trainer: TrainerArguments) -> str:
    """Returns the name of the configuration without `Config`."""
    return trainer.config.removesuffix("Config")


def is_online(trainer: TrainerArguments) -> bool:
    """Whether the method samples completions to train on."""
    return isinstance(trainer.args, (GRPOConfig, RLOOConfig))


_FIXED: Final[Mapping[str, Keys]] = {
    # TRL trains with the dropout of the model's configuration, and has no argument for it.
    "SFT": {"dropout": True},
    # TRL drops no prompt because of its length.
    "GRPO": {"max_length": ALL},
    "RLOO": {"max_length": ALL},
}
"""TRL's fixed behavior where gradus has another default."""


# --- steps and batches


@dataclass(frozen=True)
class _Rollouts:
    """An iteration of a method that samples: the number of prompts, and the passes of the optimizer over the completions."""

    prompts: int
    group_size: int
    mini_batches: int
    num_iterations: int

    @property
    def optimizer_steps(self) -> int:
        return self.mini_batches * self.num_iterations

    @classmethod
    def of(cls, trainer: TrainerArguments) -> _Rollouts:
        args = trainer.args
        assert isinstance(args, (GRPOConfig, RLOOConfig))
        name, group = trainer.config, args.num_generations
        if group is None or group < 2:
            raise error(
                f"`{name}(num_generations=...)` is {group}, but at least 2 completions of a prompt are compared. Set 2 or more."
            )
        rows, accumulated = args.per_device_train_batch_size, args.gradient_accumulation_steps
        if args.generation_batch_size is not None and args.steps_per_generation is not None:
            raise error(
                f"`{name}` has both `generation_batch_size` ({args.generation_batch_size}) and `steps_per_generation` "
                f"({args.steps_per_generation}). Give one of them: the other follows from it."
            )
        parts = accumulated if args.steps_per_generation is None else args.steps_per_generation
        if args.generation_batch_size is not None:
            if args.generation_batch_size % rows:
                raise error(
                    f"`{name}(generation_batch_size=...)` is {args.generation_batch_size}, which is not a multiple of "
                    f"`per_device_train_batch_size` ({rows}). Change one of them."
                )
            parts = args.generation_batch_size // rows
        if parts % accumulated == 0:
            mini_batches = parts // accumulated
        elif accumulated % parts == 0 and args.num_iterations == 1:
            # One optimizer step spans several rounds of sampling by the same policy. They are combined into one round.
            parts, mini_batches = accumulated, 1
        else:
            raise error(
                f"`{name}` samples for {parts} batches and steps after {accumulated} (`gradient_accumulation_steps`). gradus "
                "steps a whole number of times for every round of sampling. Make `steps_per_generation` a multiple of "
                "`gradient_accumulation_steps`."
            )
        completions = rows * parts
        if completions % group:
            raise error(
                f"`{name}` samples {completions} completions at a time (`per_device_train_batch_size` × "
                f"`steps_per_generation`), which is not a multiple of `num_generations` ({group}). Change one of them."
            )
        return cls(completions // group, group, mini_batches, args.num_iterations)


def _rows_of_step(trainer: TrainerArguments) -> int:
    """Returns the number of rows per step of gradus."""
    if is_online(trainer):
        return _Rollouts.of(trainer).prompts
    return trainer.args.per_device_train_batch_size * trainer.args.gradient_accumulation_steps


def _batches(trainer: TrainerArguments) -> Batches | None:
    packed = isinstance(trainer.args, SFTConfig) and trainer.args.packing
    if not trainer.rows or packed or is_online(trainer):
        return None
    return Batches(math.ceil(trainer.rows / trainer.args.per_device_train_batch_size), trainer.args.gradient_accumulation_steps)


def _per_iteration(trainer: TrainerArguments) -> int:
    return _Rollouts.of(trainer).optimizer_steps if is_online(trainer) else 1


def _steps_of_epoch(trainer: TrainerArguments, because: str) -> int:
    """Returns the number of gradus steps per epoch."""
    packed = isinstance(trainer.args, SFTConfig) and trainer.args.packing
    if trainer.rows is None or packed:
        reason = "packing decides how many rows there are" if packed else "the number of rows is unknown"
        raise error(f"{because} needs the number of steps, but {reason}. Give `max_steps` and intervals in whole steps.")
    each = _rows_of_step(trainer)
    if not is_online(trainer):
        return math.ceil(trainer.rows / each)
    if trainer.rows < each:
        raise error(
            f"`train_dataset` has {trainer.rows} rows, but an iteration samples for {each} prompts (completions by `num_generations`). Give "
            "more rows, or make the batches smaller."
        )
    # TRL drops the rows at the end that do not fill an iteration.
    return trainer.rows // each


def _total(trainer: TrainerArguments, because: str) -> int:
    """Returns the number of gradus steps in the whole run."""
    if trainer.args.max_steps > 0:
        return math.ceil(trainer.args.max_steps / _per_iteration(trainer))
    return math.ceil(trainer.args.num_train_epochs * _steps_of_epoch(trainer, because))


def _interval(trainer: TrainerArguments, name: str, value: float) -> int:
    """Converts an interval in optimizer steps, or a share of all steps, to steps of gradus."""
    if value <= 0 or (value >= 1 and value != int(value)):
        raise error(
            f"`{trainer.config}({name}=...)` is {value}, but a whole number of steps, or a share of all steps below 1, is expected."
        )
    if value < 1:
        return max(1, math.ceil(value * _total(trainer, f"`{name}={value}`")))
    each = _per_iteration(trainer)
    steps = max(1, round(value / each))
    if steps * each != value:
        trainer.notes.append(f"`{name}={value:g}` becomes {steps * each} optimizer steps: an iteration has {each}")
    return steps


def _batch(trainer: TrainerArguments) -> Keys:
    args = trainer.args
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps"):
        if getattr(args, name) < 1:
            raise error(f"`{trainer.config}({name}=...)` is {getattr(args, name)}, but 1 or more is expected.")
    return {"batch_size": _rows_of_step(trainer), "micro_batch_size": args.per_device_train_batch_size}


def _rollouts(trainer: TrainerArguments) -> Keys:
    found = _Rollouts.of(trainer)
    return {
        "group_size": found.group_size,
        "batch_size": found.prompts,
        "mini_batches": found.mini_batches,
        "micro_batch_size": trainer.args.per_device_train_batch_size,
    }


def _steps(trainer: TrainerArguments) -> Keys:
    args, each = trainer.args, _per_iteration(trainer)
    if args.max_steps <= 0:
        if is_online(trainer) and trainer.rows is not None and trainer.rows % _rows_of_step(trainer):
            # gradus would fill the last iteration of an epoch with rows of the next one, and so take more steps.
            return {"max_steps": _total(trainer, "`num_train_epochs`")}
        return {"epochs": args.num_train_epochs}
    steps = math.ceil(args.max_steps / each)
    if steps * each != args.max_steps:
        trainer.notes.append(f"`max_steps={args.max_steps}` becomes {steps * each} optimizer steps: an iteration has {each}")
    return {"max_steps": steps, **({"max_rows": _rows_of_run(trainer, steps)} if trainer.is_stream else {})}


def _rows_of_run(trainer: TrainerArguments, steps: int) -> int:
    """Returns the largest number of rows that a run of so many steps of gradus uses, if all rows can be used."""
    args = trainer.args
    # A block of packed rows holds at most one row for each of its tokens. Without `max_length`, its length has no limit.
    packed = (args.max_length or ALL) if isinstance(args, SFTConfig) and args.packing else 1
    return min(steps * _rows_of_step(trainer) * packed, ALL)


def _output(trainer: TrainerArguments) -> Keys:
    return {"output_dir": trainer.args.output_dir}


# --- the optimizer


_SCHEDULES: Final[Mapping[str, Mapping[str, str]]] = {
    "linear": {},
    "cosine": {"num_cycles": "num_cycles"},
    "constant": {},
    "constant_with_warmup": {},
    "cosine_with_min_lr": {"min_lr": "min_lr", "min_lr_rate": "min_lr_ratio", "num_cycles": "num_cycles"},
    "cosine_warmup_with_min_lr": {
        "min_lr": "min_lr",
        "min_lr_rate": "min_lr_ratio",
        "num_cycles": "num_cycles",
        "warmup_lr_rate": "warmup_lr_ratio",
    },
    "cosine_with_restarts": {"num_cycles": "num_cycles"},
    "polynomial": {"power": "power", "lr_end": "lr_end"},
    "inverse_sqrt": {"timescale": "timescale"},
    "warmup_stable_decay": {
        "num_decay_steps": "decay_steps",
        "num_stable_steps": "stable_steps",
        "warmup_type": "warmup_type",
        "decay_type": "decay_type",
        "min_lr_ratio": "min_lr_ratio",
        "num_cycles": "num_cycles",
    },
}
"""The schedules, and their settings with the keys of gradus."""

_COUNTS_OF_STEPS: Final = ("timescale", "num_decay_steps", "num_stable_steps")
"""Settings that count optimizer steps."""


def _schedule(trainer: TrainerArguments) -> Keys:
    name, warmup = plain(trainer.args.lr_scheduler_type), trainer.args.warmup_steps
    if name not in _SCHEDULES:
        raise error(
            f"`{trainer.config}(lr_scheduler_type=...)` is {shown(name)}, but gradus has {_listed(_SCHEDULES)}. Choose one of them."
        )
    if name == "constant":
        # In transformers, the schedule of that name has no warm-up, whatever the arguments.
        warmup = 0
    elif warmup >= 1:
        warmup = max(1.0, warmup / _per_iteration(trainer))
    return {"lr_schedule": _shape(trainer, name), "warmup_steps": int(warmup) if warmup == int(warmup) else warmup}


def _shape(trainer: TrainerArguments, name: str) -> str | Keys:
    """Returns the schedule called `name`: a name, or a name with its settings."""
    if name in ("constant", "constant_with_warmup"):
        # transformers reads no settings for them.
        return "constant"
    given = trainer.args.lr_scheduler_kwargs or {}
    if not isinstance(given, Mapping):
        raise error(f"`{trainer.config}(lr_scheduler_kwargs=...)` is {shown(given)}, but a dict, or JSON of one, is expected.")
    known, settings = _SCHEDULES[name], Keys()
    for theirs, value in given.items():
        if theirs not in known:
            accepted = f"has the settings {_listed(known)}" if known else "has no settings"
            raise error(
                f"`{trainer.config}(lr_scheduler_kwargs=...)` has {shown(theirs)}, but the schedule `{name}` {accepted}. Leave it out."
            )
        if value is not None:
            settings[known[theirs]] = _in_iterations(trainer, value) if theirs in _COUNTS_OF_STEPS else value
    if name == "inverse_sqrt" and "timescale" not in settings and not trainer.args.warmup_steps and _per_iteration(trainer) > 1:
        # The default of transformers is a number of optimizer steps.
        settings["timescale"] = _in_iterations(trainer, 10_000)
    if not settings:
        return name
    # In gradus, only the cosine with a lowest learning rate has a number of waves.
    return {"cosine_with_min_lr": {"min_lr_ratio": 0.0, **settings}} if name == "cosine" else {name: settings}


def _in_iterations(trainer: TrainerArguments, steps: Any) -> Any:
    """Converts a number of optimizer steps to steps of gradus. gradus refuses a value that is no number."""
    each = _per_iteration(trainer)
    return steps if each == 1 or not isinstance(steps, (int, float)) or steps <= 0 else max(1, round(steps / each))


_ADAMW: Final = (
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_torch_xla",
    "adamw_torch_npu_fused",
    "adamw_apex_fused",
    "paged_adamw",
    "paged_adamw_32bit",
)

# Names of one bitsandbytes optimizer. `paged` decides only where its moments are stored.
_ADAMW_INT8: Final = ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit")


def _optimizer(trainer: TrainerArguments) -> Keys:
    args, name = trainer.args, plain(trainer.args.optim)
    if name == "rmsprop":
        return {"optimizer": "rmsprop"}
    if name not in (*_ADAMW, *_ADAMW_INT8):
        raise error(
            f"`{trainer.config}(optim=...)` is {shown(name)}, but gradus has {_listed([*_ADAMW, *_ADAMW_INT8, 'rmsprop'])}. Choose one of "
            "them; `peft_config=LoraConfig(...)` saves the memory of optimizer states too."
        )
    return {
        "optimizer": "adamw",
        "adam_betas": [args.adam_beta1, args.adam_beta2],
        "adam_epsilon": args.adam_epsilon,
        **({"moments": "int8"} if name in _ADAMW_INT8 else {}),
    }


def _precision(trainer: TrainerArguments) -> Keys:
    # TRL computes in bf16 by default.
    return {"compute": "f32" if trainer.args.bf16 is False else "bf16"}


_PLACES: Final = (
    "attn_implementation",
    "device_map",
    "low_cpu_mem_usage",
    "trust_remote_code",
    "use_cache",
    "use_kernels",
    "use_safetensors",
)


def _model_init(trainer: TrainerArguments) -> Keys:
    found: Keys = {}
    for name, value in (getattr(trainer.args, "model_init_kwargs", None) or {}).items():
        if name in _PLACES or name == "quantization_config" or value is None:
            continue
        if name in ("dtype", "torch_dtype"):
            word = str(value).removeprefix("torch.")
            if word == "bfloat16":
                found["compute"] = "bf16"
            elif word not in ("float32", "auto"):
                raise error(
                    f"`model_init_kwargs` has `{name}={word}`, but gradus computes in float32 and bfloat16. Choose one of them."
                )
        elif not (name == "revision" and value == "main"):
            raise error(
                f"`model_init_kwargs` has `{name}={shown(value)}`, which gradus does not accept. Leave it out; for another "
                "revision or another folder, download the model and pass its directory."
            )
    return found


def _recompute(trainer: TrainerArguments) -> Keys:
    own = trainer.args.activation_checkpointing
    return {"recompute": trainer.args.gradient_checkpointing if own is None else own}


def _seed(trainer: TrainerArguments) -> Keys:
    if trainer.args.data_seed not in (None, trainer.args.seed):
        raise error(
            f"`{trainer.config}(data_seed=...)` is {trainer.args.data_seed} and `seed` is {trainer.args.seed}, but gradus has one seed "
            "for everything. Leave `data_seed` out."
        )
    return {}


def _device(trainer: TrainerArguments) -> Keys:
    return {"device": "cpu"} if trainer.args.use_cpu else {}


def _shuffle(trainer: TrainerArguments) -> Keys:
    if is_online(trainer):
        return {"shuffle": getattr(trainer.args, "shuffle_dataset") is not False}
    name = plain(trainer.args.train_sampling_strategy)
    if name not in ("random", "sequential"):
        raise error(
            f"`{trainer.config}(train_sampling_strategy=...)` is {shown(name)}, but gradus has `random` and `sequential`. It pads "
            "nothing, so rows of one length save nothing: choose `random`."
        )
    # transformers reads an iterable in its own order.
    is_random = name == "random" and not trainer.is_stream
    return {"shuffle": is_random or bool(getattr(trainer.args, "shuffle_dataset", False))}


# --- what is logged, measured and saved


def _log_every(trainer: TrainerArguments) -> int:
    strategy = plain(trainer.args.logging_strategy)
    if strategy == "no":
        return ALL
    if strategy == "epoch":
        return _steps_of_epoch(trainer, "`logging_strategy='epoch'`")
    if strategy != "steps":
        raise _no_strategy(trainer, "logging_strategy", ("no", "steps", "epoch"))
    return _interval(trainer, "logging_steps", trainer.args.logging_steps)


def _logging(trainer: TrainerArguments) -> Keys:
    notes = len(trainer.notes)
    every = _log_every(trainer)
    del trainer.notes[notes:]  # reported once, by the call for the log history
    # Callbacks receive every step, and the trainer produces the row of the first step.
    return {"logging_steps": 1 if trainer.has_callbacks or trainer.args.logging_first_step else every}


def _no_strategy(trainer: TrainerArguments, name: str, known: tuple[str, ...]) -> ValueError:
    return error(f"`{trainer.config}({name}=...)` is {shown(getattr(trainer.args, name))}, but {_listed(known)} is expected.")


def _progress(trainer: TrainerArguments) -> Keys:
    return {"progress": False} if trainer.args.disable_tqdm else {}


def _trackers(trainer: TrainerArguments) -> Keys:
    wanted = trainer.args.report_to
    names = [wanted] if isinstance(wanted, str) else list(wanted or [])
    if "all" in names:
        names = ["tensorboard", "wandb"]
    for name in names:
        if name not in ("tensorboard", "wandb", "none"):
            raise error(
                f"`{trainer.config}(report_to=...)` has {shown(name)}, but gradus writes for `tensorboard` and `wandb`. Choose from "
                "these, or read `metrics.jsonl` in the run directory."
            )
    found: Keys = {name: True for name in names if name != "none"}
    if "wandb" in found and trainer.args.run_name is not None:
        found["wandb_name"] = trainer.args.run_name
    return found


def _evaluates(trainer: TrainerArguments) -> bool:
    return plain(trainer.args.eval_strategy) != "no" or trainer.args.eval_on_start


def _evaluation(trainer: TrainerArguments) -> Keys:
    args, strategy = trainer.args, plain(trainer.args.eval_strategy)
    if strategy not in ("no", "steps", "epoch"):
        raise _no_strategy(trainer, "eval_strategy", ("no", "steps", "epoch"))
    if not _evaluates(trainer):
        return {"eval_steps": -1, "eval_fraction": 0.0}
    held_out = trainer.arguments.get("eval_dataset")
    if held_out is None:
        raise error(
            f"`{trainer.config}` requests evaluations, but `eval_dataset` is not given. Give it, or leave `eval_strategy` out."
        )
    if isinstance(held_out, Mapping):
        raise error(
            f"`eval_dataset` is a dict of {len(held_out)} data sets, but gradus evaluates one during training. Pass one of them, and "
            "measure the others with `gradus.evaluate` after training."
        )
    every = 0
    if strategy == "epoch":
        every = _steps_of_epoch(trainer, "`eval_strategy='epoch'`")
    elif strategy == "steps":
        name = "eval_steps" if args.eval_steps else "logging_steps"
        every = _interval(trainer, name, args.eval_steps or args.logging_steps)
    found: Keys = {"eval_steps": every, "eval_fraction": 0.0, "max_eval_rows": ALL}
    if every > 0 and args.eval_delay > 0:
        # transformers compares it with the epochs or the optimizer steps that are done.
        epochs_or_steps = math.ceil(args.eval_delay / (1 if strategy == "epoch" else _per_iteration(trainer)))
        found["eval_delay"] = epochs_or_steps * (every if strategy == "epoch" else 1)
    if isinstance(args, (GRPOConfig, RLOOConfig)):
        found["evaluation_samples"] = args.num_generations_eval or args.num_generations
    return found


def _saving(trainer: TrainerArguments) -> Keys:
    args, strategy = trainer.args, plain(trainer.args.save_strategy)
    if strategy not in ("no", "steps", "epoch", "best"):
        raise _no_strategy(trainer, "save_strategy", ("no", "steps", "epoch", "best"))
    every = 0
    if strategy == "steps":
        every = _interval(trainer, "save_steps", args.save_steps)
    elif strategy == "epoch":
        every = _steps_of_epoch(trainer, "`save_strategy='epoch'`")
    limit = args.save_total_limit
    return {"save_steps": every, "keep_checkpoints": limit if limit is not None and limit > 0 else ALL}


def _best(trainer: TrainerArguments) -> Keys:
    args = trainer.args
    if args.load_best_model_at_end and plain(args.eval_strategy) == "no":
        raise error(
            f"`{trainer.config}(load_best_model_at_end=True)` needs evaluations, but `eval_strategy` is `no`. Set it to `steps` or `epoch`."
        )
    name = args.metric_for_best_model or ("loss" if args.load_best_model_at_end else None)
    if name is None or not _evaluates(trainer):
        return {}
    name = f"eval_{name.removeprefix('eval_')}"
    if is_online(trainer) and name == "eval_loss":
        raise error(
            f"`{trainer.config}` selects the model with the lowest `eval_loss` as the best, but evaluations of this method measure no "
            "loss. Set `metric_for_best_model='reward'`."
        )
    if is_online(trainer):
        name = {theirs: ours for ours, theirs in EVAL_NAMES.items()}.get(name, name)
        name = f"eval_{RewardNames(trainer.arguments.get('reward_funcs')).ours(name.removeprefix('eval_'))}"
    # Without the key, the name of the metric decides.
    direction = {} if args.greater_is_better is None else {"greater_is_better": args.greater_is_better}
    return {"best_metric": name, **direction}


EVAL_NAMES: Final[Mapping[str, str]] = {
    "eval_length": "eval_completions/mean_length",
    "eval_clipped_ratio": "eval_completions/clipped_ratio",
    # TRL's metric is in nats per token.
    "eval_kl": "eval_objective/kl",
}
"""Held-out metrics of methods that sample, with TRL's names."""


# --- rows and losses


def _length(trainer: TrainerArguments) -> Keys:
    length = getattr(trainer.args, "max_length")
    too_long = "skip" if trainer.config == "RewardConfig" else "truncate"
    return {"max_length": ALL if length is None else length, "too_long": too_long}


def _dropout(trainer: TrainerArguments) -> Keys:
    return {"dropout": not getattr(trainer.args, "disable_dropout")}


def _template(trainer: TrainerArguments) -> Keys:
    path = getattr(trainer.args, "chat_template_path")
    if path is None:
        return {}
    if os.path.isdir(path):
        path = os.path.join(path, "chat_template.jinja")
    if not os.path.isfile(path):
        raise error(
            f"`{trainer.config}(chat_template_path=...)`: there is no file {shown(str(path))}. Give a Jinja file, or a directory that "
            "holds `chat_template.jinja`."
        )
    # A bare name would select a built-in template of gradus.
    return {"chat_template": str(Path(path).absolute())}


def _packing(trainer: TrainerArguments) -> Keys:
    args = trainer.args
    assert isinstance(args, SFTConfig)
    if not args.packing:
        if args.eval_packing:
            raise error("`SFTConfig(eval_packing=True)` without `packing`: gradus packs both or neither. Leave it out.")
        return {}
    if args.packing_strategy != "wrapped":
        raise error(
            f"`SFTConfig(packing=True, packing_strategy={args.packing_strategy!r})` packs whole rows, which gradus does not do. It "
            "pads nothing anyway: leave `packing` out and raise `per_device_train_batch_size`, or set `packing_strategy='wrapped'`."
        )
    if args.eval_packing is False:
        raise error("`SFTConfig(eval_packing=False)` with `packing`: gradus packs both or neither. Leave it out.")
    return {"packing": True}


def _sft_loss(trainer: TrainerArguments) -> Keys:
    name = getattr(trainer.args, "loss_type")
    return {"loss_type": "nll" if name == "chunked_nll" else name}


def _dpo_loss(trainer: TrainerArguments) -> Keys:
    names = plain(getattr(trainer.args, "loss_type"))
    return {"loss_type": [names] if isinstance(names, str) else list(names)}


_SMOOTHED: Final = ("robust", "exo_pair", "aot", "aot_unpaired")
"""The losses for which TRL reads `label_smoothing`."""


def _smoothing(trainer: TrainerArguments) -> Keys:
    share, losses = getattr(trainer.args, "label_smoothing"), _dpo_loss(trainer)["loss_type"]
    if share and not any(name in _SMOOTHED for name in losses):
        trainer.notes.append(f"`label_smoothing={share}` becomes 0: TRL reads it only for the losses {_listed(_SMOOTHED)}")
        return {"label_smoothing": 0.0}
    if share and "sigmoid" in losses:
        trainer.notes.append(f"`label_smoothing={share}` also applies to the loss `sigmoid`, where TRL ignores it")
    return {"label_smoothing": share}


def _reference(trainer: TrainerArguments) -> Keys:
    return {"reference": "precomputed" if getattr(trainer.args, "precompute_ref_log_probs") else "live"}


def _sync(trainer: TrainerArguments) -> Keys:
    # TRL reads the other two only with this one.
    if not getattr(trainer.args, "sync_ref_model"):
        return {}
    return {
        "sync_ref_model": True,
        "ref_model_mixup_alpha": getattr(trainer.args, "ref_model_mixup_alpha"),
        "ref_model_sync_steps": _interval(trainer, "ref_model_sync_steps", getattr(trainer.args, "ref_model_sync_steps")),
    }


def _grpo_loss(trainer: TrainerArguments) -> Keys:
    name = getattr(trainer.args, "loss_type")
    return {"loss_type": name, "micro_batch_tokens": ALL_TOKENS} if name == "bnpo" else {"loss_type": name}


def _scale_rewards(trainer: TrainerArguments) -> Keys:
    if getattr(trainer.args, "multi_objective_aggregation", None) == "normalize_then_sum":
        return {}
    value = getattr(trainer.args, "scale_rewards")
    return {"scale_rewards": {True: "group", False: "none"}.get(value, value)}


def _adaptive_entropy(trainer: TrainerArguments) -> Keys:
    args = trainer.args
    assert isinstance(args, GRPOConfig)
    if not args.use_adaptive_entropy:
        return {}
    return {
        "entropy_coefficient_min": args.entropy_coef_min,
        "entropy_coefficient_max": args.entropy_coef_max,
        "entropy_coefficient_delta": args.entropy_coef_delta,
        "entropy_target": args.entropy_target,
    }


def _reward_clip(trainer: TrainerArguments) -> Keys:
    bounds = getattr(trainer.args, "reward_clip_range")
    return {} if bounds is None else {"reward_clip_range": list(bounds)}


def _center(trainer: TrainerArguments) -> Keys:
    return {"center_rewards_coefficient": getattr(trainer.args, "center_rewards_coefficient") or 0.0}


_SAMPLING: Final[Mapping[str, str]] = {
    "max_new_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_k": "sampling_top_k",
    "top_p": "sampling_top_p",
    "min_p": "sampling_min_p",
    "typical_p": "sampling_typical_p",
    "repetition_penalty": "sampling_repetition_penalty",
    "no_repeat_ngram_size": "sampling_no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size": "sampling_encoder_no_repeat_ngram_size",
    "min_new_tokens": "sampling_min_new_tokens",
    "suppress_tokens": "sampling_suppress_tokens",
    "bad_words_ids": "sampling_bad_words_ids",
    "forced_bos_token_id": "sampling_forced_bos_token_id",
    "forced_eos_token_id": "sampling_forced_eos_token_id",
    "stop_strings": "stop",
}
"""Sampling settings, with the keys of gradus."""

_OFF: Final[Mapping[str, Any]] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "typical_p": 1.0}
"""Values without effect."""


def _sampling(trainer: TrainerArguments) -> Keys:
    args = trainer.args
    assert isinstance(args, (GRPOConfig, RLOOConfig))
    asks: Keys = {
        "top_k": max(args.top_k or 0, 0),
        "top_p": args.top_p,
        "min_p": args.min_p,
        "repetition_penalty": args.repetition_penalty,
    }
    further = args.generation_kwargs or {}
    if not isinstance(further, Mapping):
        raise error(f"`{trainer.config}(generation_kwargs=...)` is {shown(further)}, but a dict is expected.")
    for name, value in further.items():
        if name == "do_sample" and value is True:
            continue
        if name not in _SAMPLING:
            raise error(
                f"`{trainer.config}(generation_kwargs=...)` has `{name}`, but gradus accepts {_listed(_SAMPLING)}. Leave it out."
            )
        asks[name] = [value] if name == "stop_strings" and isinstance(value, str) else value
    return {_SAMPLING[name]: value for name, value in asks.items() if value is not None and value != _OFF.get(name)}


def _vllm(trainer: TrainerArguments) -> Keys:
    """Checks that vLLM's correction would leave a ratio of 1 as it is."""
    args = trainer.args
    assert isinstance(args, GRPOConfig)
    if not (args.use_vllm and args.vllm_importance_sampling_correction):
        return {}
    capped = args.vllm_importance_sampling_cap is not None
    most = "vllm_importance_sampling_cap" if capped else "vllm_importance_sampling_clip_max"
    least = "vllm_importance_sampling_clip_min"
    high, low = getattr(args, most), getattr(args, least)
    for name, excludes in ((most, high is not None and high < 1), (least, low is not None and low > 1)):
        if excludes:
            raise error(
                f"`{trainer.config}({name}=...)` is {shown(getattr(args, name))}, but the sampler of gradus has the probabilities of the "
                "trained model: the ratio is 1, which this bound excludes. Leave it out."
            )
    return {}


def _quantization(trainer: TrainerArguments) -> Keys:
    inner = (getattr(trainer.args, "model_init_kwargs", None) or {}).get("quantization_config")
    return quantized_weights(trainer.arguments.get("quantization_config") or inner, trainer.arguments.get("peft_config") is not None)


def _peft(trainer: TrainerArguments) -> Keys:
    config = trainer.arguments.get("peft_config")
    if config is None:
        return {}
    drops = getattr(trainer.args, "disable_dropout", False) is False
    return lora_keys(config, trainer.arguments["model"], drops=drops, trains_head=trainer.config == "RewardConfig")


_MOST_TURNS: Final = 10_000
"""The largest value of `episode.max_turns`."""


def _turns(trainer: TrainerArguments) -> Keys:
    """Returns the number of turns of an episode: one for the final answer, and one for each call before it."""
    assert isinstance(trainer.args, GRPOConfig)
    iterations = trainer.args.max_tool_calling_iterations
    return {"episode_max_turns": _MOST_TURNS if iterations is None else iterations + 1}


_CONVERSIONS: Final[Mapping[str, Callable[[TrainerArguments], Keys]]] = {
    "adaptive_entropy": _adaptive_entropy,
    "batch": _batch,
    "best": _best,
    "center": _center,
    "device": _device,
    "dpo_loss": _dpo_loss,
    "dropout": _dropout,
    "evaluation": _evaluation,
    "grpo_loss": _grpo_loss,
    "length": _length,
    "logging": _logging,
    "model_init": _model_init,
    "optimizer": _optimizer,
    "output": _output,
    "packing": _packing,
    "peft": _peft,
    "precision": _precision,
    "progress": _progress,
    "quantization": _quantization,
    "recompute": _recompute,
    "reference": _reference,
    "reward_clip": _reward_clip,
    "rollouts": _rollouts,
    "sampling": _sampling,
    "saving": _saving,
    "scale_rewards": _scale_rewards,
    "schedule": _schedule,
    "seed": _seed,
    "sft_loss": _sft_loss,
    "shuffle": _shuffle,
    "smoothing": _smoothing,
    "steps": _steps,
    "sync": _sync,
    "template": _template,
    "trackers": _trackers,
    "turns": _turns,
    "vllm": _vllm,
}


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)
