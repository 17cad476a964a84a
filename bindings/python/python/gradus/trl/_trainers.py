"""The trainers: TRL's constructors and methods, implemented with the functions of gradus."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from gradus.trl import _check, _objects, _overrides
from gradus.trl._arguments import TRAINERS
from gradus.trl._check import error, shown
from gradus.trl._configs import BaseConfig, DPOConfig, GRPOConfig, KTOConfig, RewardConfig, RLOOConfig, SFTConfig
from gradus.trl._rewards import RewardNames, refuse_environments
from gradus.trl._state import Callbacks, Means, TrainerControl, TrainerState, TrainOutput
from gradus.trl._translate import ALL, EVAL_NAMES, TrainerArguments, Translated, translate

_Value = TypeVar("_Value")
_Class = TypeVar("_Class")

_START: Final = "start"
"""The folder in the run directory for models and tokenizers that were objects in memory."""
_OF_TRAINING: Final = ("overwrite", "tensorboard", "wandb", "wandb_name")
"""Keys that an evaluation outside of training leaves out."""


def _core() -> Any:
    """Returns the module `gradus`, which is loaded at its first use."""
    return importlib.import_module("gradus")


class _Accelerator:
    """The attributes of a trainer's `accelerator` that scripts use."""

    is_main_process: bool = True
    is_local_main_process: bool = True
    num_processes: int = 1
    process_index: int = 0

    def print(self, *values: Any, **options: Any) -> None:
        """Prints. There is only one process."""
        print(*values, **options)


class Trainer:
    """Base class of the six trainers."""

    _function: ClassVar[str]
    """The function of gradus that trains."""
    _config: ClassVar[type[BaseConfig]]

    def _begin(self, arguments: dict[str, Any]) -> None:
        """Checks all arguments and determines the keys. Nothing is read or written yet."""
        cls = self._class()
        name = cls.__name__
        self._refuse_overrides()
        arguments = {key: value for key, value in arguments.items() if key in TRAINERS[name]}
        self.args = self._configuration(arguments)
        _check.config(self.args)
        _check.trainer(name, arguments, _check.defaults_of(vars(cls)["__init__"]))
        _check.without_effect(self.args)
        model = arguments["model"]
        if model is None:
            raise error(f"`{name}(model=...)` is `None`, but a directory, a hub name, a run or a model is expected.")
        _objects.refuse_quantized(model)
        if hasattr(model, "peft_config") and arguments.get("peft_config") is not None:
            raise error(
                f"`{name}` has both a model with an adapter and `peft_config`. Pass one: the adapter is trained further, or a new one is created."
            )
        if not arguments.get("environment_factory"):
            refuse_environments(arguments.get("reward_funcs"))
        self._reward_names = RewardNames(arguments.get("reward_funcs"))
        self.callback_handler = Callbacks(arguments.get("callbacks"))
        self._arguments = arguments
        self.train_dataset, self.eval_dataset = arguments["train_dataset"], arguments["eval_dataset"]
        self.processing_class = arguments["processing_class"]
        self._run: Any = None
        self.state = TrainerState(
            num_train_epochs=self.args.num_train_epochs, train_batch_size=self.args.per_device_train_batch_size
        )
        self.control = TrainerControl()
        self.accelerator = _Accelerator()
        self._translated = self._translate()
        saves = _check.plain(self.args.save_strategy) != "no"
        replaced = _overrides.notes(
            type(self),
            evaluates=_EVALUATE if self._translated.evaluates else None,
            saves=_SAVE_MODEL if saves else None,
        )
        for note in [*self._translated.notes, *replaced]:
            warnings.warn(note, stacklevel=4)
        self._call("on_init_end")

    @classmethod
    def _class(cls) -> type[Trainer]:
        """Returns the trainer of this module that a user's class inherits from."""
        return next(base for base in cls.__mro__ if base.__module__ == __name__)

    def _refuse_overrides(self) -> None:
        """Raises if the script defines a method of TRL that gradus never calls."""
        name = self._class().__name__
        _overrides.refuse_class(name, type(self), Trainer)
        _overrides.refuse(name, "trainer", vars(self))

    def _configuration(self, arguments: Mapping[str, Any]) -> BaseConfig:
        args = arguments["args"]
        if args is None:
            # The same default name as in TRL: `Qwen3-0.6B-GRPO` for `Qwen/Qwen3-0.6B`.
            name = _objects.name_of(arguments["model"]).rstrip("/").split("/")[-1] or "model"
            return self._config(output_dir=f"{name}-{self._config.__name__.removesuffix('Config')}")
        if not isinstance(args, self._config):
            raise TypeError(
                f"`args` is a `{type(args).__module__}.{type(args).__name__}`, but a `gradus.trl.{self._config.__name__}` is expected: "
                "import it from `gradus.trl` too"
            )
        return args

    def _translate(self) -> Translated:
        translated = translate(
            TrainerArguments(
                args=self.args,
                config=self._config.__name__,
                arguments=self._arguments,
                rows=_objects.rows_of(self.train_dataset),
                is_stream=_objects.is_stream(self.train_dataset),
                has_callbacks=len(self.callback_handler) > 0,
            )
        )
        if self.args.load_best_model_at_end and self.args.metric_for_best_model is None:
            # Callbacks read it, for example the early-stopping callback of transformers.
            self.args.metric_for_best_model = "loss"
            self.args.greater_is_better = bool(self.args.greater_is_better)
        each = translated.steps_per_iteration
        self.state.logging_steps = translated.log_every * each
        self.state.eval_steps = max(translated.keys["eval_steps"], 0) * each
        self.state.save_steps = translated.keys["save_steps"] * each
        return translated

    # --- training

    def train(
        self,
        resume_from_checkpoint: str | os.PathLike[str] | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Trains, and returns steps, mean loss and summary metrics of the whole run.

        `resume_from_checkpoint`: true resumes from the last checkpoint in `output_dir`; a directory, from that checkpoint. If it
        belongs to the run in `output_dir`, the later steps of that run are replaced.

        Raises:
            ConfigError: for arguments that gradus does not accept.
        """
        if trial is not None:
            raise error(
                "`train(trial=...)` is for hyperparameter searches, which gradus has as a command: `gradus sweep`. Leave it out."
            )
        if self._run is not None:
            raise error(
                "`train()` was called twice. Create a new trainer: with `model=trainer.run` it starts from the trained model, and with "
                "a larger `max_steps`, `train(resume_from_checkpoint=True)` resumes the run."
            )
        # The script may have patched the object or a class since.
        self._refuse_overrides()
        if self.train_dataset is None:
            raise error("`train_dataset` is `None`, but there must be rows to train on. Give it to the trainer.")
        began = time.monotonic()
        watcher = _Watcher(self)
        options = self._options(resume_from_checkpoint)
        self.control = TrainerControl()
        self._call("on_train_begin")
        self._call("on_step_begin")
        core = _core()
        try:
            self._run = getattr(core, self._function)(
                self._directory("model", self._arguments["model"]),
                self._rows(self.train_dataset, "train_dataset"),
                **options,
                on_step=watcher.on_step,
                on_evaluation=watcher.on_evaluation,
                **({"on_rollouts": watcher.on_rollouts} if getattr(self.args, "log_completions", False) else {}),
                **({"_optimizer_steps": self._translated.steps_per_iteration} if "reward" in options else {}),
            )
        except core.InputError as problem:
            for note in _check.names_of_keys(str(problem), self._config.__name__):
                problem.add_note(note)
            raise
        summary = watcher.summary(time.monotonic() - began)
        self._log(summary)
        self._call("on_train_end")
        return TrainOutput(self.state.global_step, summary["train_loss"], summary)

    def _options(self, resume: str | os.PathLike[str] | bool | None) -> dict[str, Any]:
        """Returns the keyword arguments of the gradus function, except callbacks."""
        origin = self._origin(resume)
        again = "overwrite" not in origin
        found = self._translated.keys | origin
        if self._translated.evaluates:
            found["eval_data"] = self._rows(self.eval_dataset, "eval_dataset")
        tokenizer = self._tokenizer(again)
        if tokenizer is not None:
            found["tokenizer"] = tokenizer
        reference = self._arguments.get("ref_model")
        if reference is not None:
            found["reference_model"] = self._directory("reference", reference, again=again)
        found.update(self._rewards(again))
        for argument, key in (("tools", "tools"), ("environment_factory", "environment")):
            if self._arguments.get(argument):
                found[key] = self._arguments[argument]
        if not found.keys() & {"tools", "environment"}:
            found.pop("episode_max_turns", None)
        return found

    def _origin(self, resume: str | os.PathLike[str] | bool | None) -> dict[str, Any]:
        """Returns the key for the start of the run: a new run, the run in `output_dir`, or a checkpoint."""
        if resume is None or resume is False:
            return {"overwrite": True}
        own = Path(str(self.args.output_dir))
        if resume is True:
            if not any((own / "checkpoints").glob("step-*")):
                raise error(
                    f"`train(resume_from_checkpoint=True)` found no checkpoint in {shown(str(own))}. Leave it out to start from the beginning."
                )
            return {"resume": True}
        if not isinstance(resume, (str, os.PathLike)):
            raise error(
                f"`train(resume_from_checkpoint=...)` is {shown(resume)}, but the directory of a checkpoint, `True` or `None` is expected."
            )
        checkpoint = Path(resume)
        if not checkpoint.is_dir():
            raise error(
                f"`train(resume_from_checkpoint=...)` is {shown(str(checkpoint))}, but there is no such directory. The checkpoints of a "
                "run are in `checkpoints/` of its directory."
            )
        if own.resolve() not in [checkpoint.resolve(), *checkpoint.resolve().parents]:
            return {"resume_from": str(checkpoint)}
        step = re.fullmatch(r"step-(\d+)", checkpoint.resolve().name)
        if step is None:
            raise error(
                f"`train(resume_from_checkpoint=...)` is {shown(str(checkpoint))}, which is no checkpoint of the run in "
                f"{shown(str(own))}. Pass `True` for its last checkpoint, or one of the directories `checkpoints/step-…`."
            )
        # Within its own directory a run continues from the number of a step.
        return {"resume_from": str(int(step[1]))}

    def _directory(self, kind: str, value: Any, *, again: bool = False) -> Any:
        """Returns what gradus reads for a model. An object is saved first."""
        if not _objects.is_object(value):
            return value
        _objects.refuse_quantized(value)
        return _objects.saved(value, Path(str(self.args.output_dir)) / _START / kind, again=again)

    def _tokenizer(self, again: bool) -> str | None:
        tokenizer, model = self.processing_class, self._arguments["model"]
        if tokenizer is not None:
            return str(self._directory("tokenizer", tokenizer, again=again))
        if not _objects.is_object(model):
            return None
        name = _objects.name_of(model)
        if not name:
            raise error("`model` is an object without the name of its source. Pass its tokenizer as `processing_class`.")
        return name

    def _rewards(self, again: bool) -> dict[str, Any]:
        """Returns the reward functions and models, in the form that gradus takes."""
        given = self._arguments.get("reward_funcs")
        if given is None:
            return {}
        rewards = list(given) if isinstance(given, (list, tuple)) else [given]
        tokenizers = self._arguments.get("reward_processing_classes")
        tokenizers = list(tokenizers) if isinstance(tokenizers, (list, tuple)) else [tokenizers] * len(rewards)
        if len(tokenizers) != len(rewards):
            raise error(
                f"`reward_processing_classes` has {len(tokenizers)} entries for {len(rewards)} rewards. Give one for each; `None` where "
                "no tokenizer is needed."
            )
        for number, (reward, tokenizer) in enumerate(zip(rewards, tokenizers)):
            if _objects.is_object(reward):
                rewards[number] = self._reward_model(number, reward, tokenizer, again)
            elif tokenizer is not None and not callable(reward):
                raise error(
                    f"`reward_processing_classes` has a tokenizer for {shown(reward)}, but gradus takes the one next to that model. Give "
                    "`None` for it."
                )
        found: dict[str, Any] = {"reward": rewards[0] if len(rewards) == 1 else rewards}
        weights = getattr(self.args, "reward_weights", None)
        if weights is not None:
            found |= {"reward": rewards, "reward_weights": list(weights)}
        return found

    def _reward_model(self, number: int, model: Any, tokenizer: Any, again: bool) -> str:
        directory = self._directory(f"reward-{number}", model, again=again)
        if tokenizer is None:
            name = _objects.name_of(model)
            if not name:
                raise error("a reward model is an object without the name of its source. Pass `reward_processing_classes`.")
            tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(name)
        tokenizer.save_pretrained(directory)
        return str(directory)

    def _rows(self, data: Any, name: str) -> Any:
        """Returns the rows, with the changes that the trainer itself makes."""
        further = getattr(self.args, "chat_template_kwargs", None)
        if further:
            return _objects.Mapped(data, name, lambda row: {**row, "chat_template_kwargs": dict(further)})
        function: Callable[[Mapping[str, Any]], str] | None = self._arguments.get("formatting_func")
        if function is not None:
            column = str(getattr(self.args, "dataset_text_field"))
            return _objects.Mapped(data, name, lambda row: {column: function(row)})
        return data

    # --- afterwards

    @property
    def run(self) -> Any:
        """The `gradus.Run`, after `train()` has ended."""
        if self._run is None:
            raise error("there is no run yet. Call `train()` first.")
        return self._run

    @property
    def log_history(self) -> list[dict[str, float]]:
        """All log entries, as dicts with TRL's names."""
        return self.state.log_history

    @property
    def model(self) -> Any:
        """The given model before training, and the trained `gradus.Model` afterwards."""
        if self._run is None:
            return self._arguments["model"]
        return _core().load(str(self._model_directory()))

    def _model_directory(self) -> Path:
        directory = Path(self.run.path)
        if self.args.load_best_model_at_end:
            best = directory / "best"
            if best.is_dir():
                return best
            warnings.warn("no evaluation beat the start, so there is no best model: the last one is used", stacklevel=3)
        if (directory / "model").is_dir():
            return directory / "model"
        checkpoints = sorted((directory / "checkpoints").glob("step-*"))
        if not checkpoints:
            raise error(f"there is no model in {shown(str(directory))}: the run ended before its first checkpoint.")
        return checkpoints[-1]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Copies the trained model into `output_dir`, by default that of the configuration. The run also keeps it in `model/`."""
        source, target = self._model_directory(), Path(str(output_dir or self.args.output_dir))
        shutil.copytree(source, target, dirs_exist_ok=True)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Measures the model on held-out rows.

        Raises:
            ConfigError: without rows, and for methods that are only evaluated during training.
        """
        known = self._measured(eval_dataset)
        found = known if known is not None else self._measure(eval_dataset)
        found = {f"{metric_key_prefix}_{name.removeprefix('eval_')}": value for name, value in found.items()}
        if self.state.epoch is not None:
            found["epoch"] = self.state.epoch
        if known is None:
            self._log(found)
        self._call("on_evaluate", metrics=found)
        return found

    def _measured(self, eval_dataset: Any) -> dict[str, float] | None:
        """Returns the last evaluation of the run, if it is of the same model and the same rows."""
        if eval_dataset is not None or self._run is None or self.args.load_best_model_at_end:
            return None
        after = (self._run.results or {}).get("after") or {}
        held_out = {name: value for name, value in after.items() if name.startswith("eval_")}
        return self._renamed(held_out) or None

    def _renamed(self, metrics: Mapping[str, _Value]) -> dict[str, _Value]:
        """Returns metrics with TRL's names. Only methods that sample have different ones."""
        if "group_size" not in self._translated.keys:
            return dict(metrics)
        return self._reward_names.theirs({EVAL_NAMES.get(name, name): value for name, value in metrics.items()})

    def _measure(self, eval_dataset: Any) -> dict[str, float]:
        """Measures the model as during training: a run in a temporary directory evaluates, and stops before its first step."""
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        if data is None:
            raise error("`evaluate()` has no rows: neither the trainer nor the call has `eval_dataset`. Give it.")
        if isinstance(data, Mapping):
            raise error("`eval_dataset` is a dict of data sets. Call `evaluate()` with one of them.")
        if "group_size" in self._translated.keys:
            raise error(
                f"`{type(self).__name__}.evaluate()` is not available outside of training: it needs the rewards of a run. Set "
                "`eval_strategy='steps'`, and it returns the numbers of the last evaluation; or use `gradus.evaluate`."
            )
        rows = self._rows(list(data) if isinstance(data, Iterator) else data, "eval_dataset")
        found: dict[str, float] = {}

        def stops(step: int, metrics: Mapping[str, float | None], best: bool) -> bool:
            found.update({name: value for name, value in metrics.items() if value is not None})
            return False

        with tempfile.TemporaryDirectory() as directory:
            keys = self._measuring() | {"output_dir": str(Path(directory) / "run"), "eval_steps": 1, "max_eval_rows": ALL}
            model = self._directory("model", self._arguments["model"]) if self._run is None else str(self._model_directory())
            getattr(_core(), self._function)(model, rows, eval_data=rows, on_evaluation=stops, **keys)
        return self._renamed(found)

    def _measuring(self) -> dict[str, Any]:
        """Returns the keys of a run that only evaluates."""
        has_run = self._run is not None
        keys = {name: value for name, value in self._translated.keys.items() if name not in _OF_TRAINING}
        keys |= {"progress": False, "try_longest": False}
        if has_run and (self._model_directory() / "adapter_config.json").is_file():
            # The trained model is an adapter; no new one is created.
            keys = {name: value for name, value in keys.items() if not name.startswith("lora_") and name != "adapter"}
        tokenizer = self._tokenizer(has_run)
        if tokenizer is not None:
            keys["tokenizer"] = tokenizer
        if self._arguments.get("ref_model") is not None:
            keys["reference_model"] = self._directory("reference", self._arguments["ref_model"], again=has_run)
        elif has_run and "ref_model" in self._arguments:
            start = self._directory("model", self._arguments["model"], again=True)
            is_loaded = isinstance(start, _core().Model)
            keys["reference_model"] = (start.adapter or start.name) if is_loaded else start
        return keys

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Rejected: gradus passes no logits to Python.

        Raises:
            ConfigError: always.
        """
        raise error(
            "`predict()` needs logits, which gradus does not return. Use `trainer.model.generate(...)` or `trainer.model.score(...)`."
        )

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Rejected: gradus uploads nothing.

        Raises:
            ConfigError: always.
        """
        where = f"{self.args.output_dir}/model"
        raise error(f"`push_to_hub()`: gradus uploads nothing. Upload the model yourself: `hf upload NAME {where}`.")

    def create_model_card(self, *args: Any, **kwargs: Any) -> Any:
        """Rejected: training writes the model card.

        Raises:
            ConfigError: always.
        """
        where = f"{self.args.output_dir}/model/README.md"
        raise error(f"`create_model_card()`: training has written the model card, `{where}`. Leave the call out.")

    # --- callbacks and small things that scripts use

    def add_callback(self, callback: Any) -> None:
        """Adds a callback, before `train()`."""
        self.callback_handler.add(callback)
        self._translated = self._translate()

    def remove_callback(self, callback: Any) -> None:
        """Removes a callback: the object, or the first of its class."""
        self.pop_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Removes a callback and returns it."""
        found = self.callback_handler.remove(callback)
        self._translated = self._translate()
        return found

    def is_world_process_zero(self) -> bool:
        """True, because there is one process."""
        return True

    def is_local_process_zero(self) -> bool:
        """True, because there is one process."""
        return True

    def log_metrics(self, split: str, metrics: Mapping[str, float]) -> None:
        """Prints metrics, one per line."""
        print(f"***** {split} metrics *****")
        for name in sorted(metrics):
            print(f"  {name} = {metrics[name]:.6g}")

    def save_metrics(self, split: str, metrics: Mapping[str, float], combined: bool = True) -> None:
        """Writes metrics to `SPLIT_results.json` in the run directory, and adds them to `all_results.json`."""
        directory = Path(str(self.args.output_dir))
        directory.mkdir(parents=True, exist_ok=True)
        _write(directory / f"{split}_results.json", dict(metrics))
        if combined:
            file = directory / "all_results.json"
            before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
            _write(file, {**before, **metrics})

    def save_state(self) -> None:
        """Writes `trainer_state.json` into the run directory."""
        directory = Path(str(self.args.output_dir))
        directory.mkdir(parents=True, exist_ok=True)
        _write(directory / "trainer_state.json", asdict(self.state))

    def _call(self, event: str, **details: Any) -> bool:
        """Calls the callbacks. Returns whether training continues."""
        details["processing_class"] = self.processing_class
        self.control = self.callback_handler.call(event, self.args, self.state, self.control, **details)
        return not self.control.should_training_stop

    def _log(self, entry: Mapping[str, float]) -> bool:
        self.state.log_history.append({**entry, "step": self.state.global_step})
        return self._call("on_log", logs=dict(entry))


_EVALUATE: Final = Trainer.evaluate
_SAVE_MODEL: Final = Trainer.save_model
"""The methods as they are now. A script may replace them in a trainer later."""


def _write(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class _Watcher:
    """The callbacks of the run during training."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._row, self._whole = Means(), Means()
        self._before: int | None = None
        self._examples = 0.0
        self._printed = -1

    def on_step(self, step: int, total: int, metrics: Mapping[str, float | None]) -> bool:
        """Handles a row of metrics, which represents the steps since the previous row. False stops the run."""
        trainer, translated = self._trainer, self._trainer._translated
        if step == 0:
            return True  # the evaluation before training
        state = trainer.state
        each = translated.steps_per_iteration
        since = step - self._before if self._before is not None else min(step, translated.keys["logging_steps"])
        self._before = step
        state.global_step, state.max_steps = step * each, total * each
        of_training = (name for name in metrics if not name.startswith(("eval_", "test_")) and name != "step")
        trained = trainer._renamed({name: metrics[name] for name in of_training})
        epoch = trained.get("epoch")
        if epoch is not None and translated.batches is not None:
            trained["epoch"] = translated.batches.epoch(step, epoch)
        state.epoch = trained.get("epoch", state.epoch)
        state.num_input_tokens_seen = int(trained.get("num_tokens") or 0)
        self._examples = trained.get("num_examples") or self._examples
        self._row.add(trained, since)
        self._whole.add({"loss": trained.get("loss")}, since)
        goes_on = trainer._call("on_step_end")
        if step % translated.log_every == 0 or (translated.log_first and step == 1):
            goes_on = trainer._log(self._row.take()) and goes_on
        if goes_on and step < total:
            goes_on = trainer._call("on_step_begin")
        return goes_on

    def on_evaluation(self, step: int, metrics: Mapping[str, float | None], best: bool) -> bool:
        """Handles the result of an evaluation. False stops the run."""
        trainer, state = self._trainer, self._trainer.state
        if step == 0 and not trainer.args.eval_on_start:
            return True
        state.global_step = step * trainer._translated.steps_per_iteration
        found = trainer._renamed({name: value for name, value in metrics.items() if value is not None})
        if state.epoch is not None:
            found["epoch"] = state.epoch
        goes_on = trainer._log(found)
        goes_on = trainer._call("on_evaluate", metrics=found) and goes_on
        name = trainer.args.metric_for_best_model
        if best:
            state.best_global_step = state.global_step
            if name is not None:
                state.best_metric = found.get(f"eval_{name.removeprefix('eval_')}", state.best_metric)
        return goes_on

    def on_rollouts(self, step: int, rollouts: Sequence[Mapping[str, Any]]) -> None:
        """Prints completions of a logged step."""
        trainer = self._trainer
        args, every = trainer.args, trainer._translated.log_every
        if step == self._printed or step % every:
            return
        self._printed = step
        chosen = list(rollouts)
        if getattr(args, "log_unique_prompts", False):
            chosen = list({str(one.get("prompt")): one for one in reversed(chosen)}.values())[::-1]
        limit = getattr(args, "num_completions_to_print", None)
        print(f"completions of step {step * trainer._translated.steps_per_iteration}")
        for one in chosen[:limit]:
            print(f"  prompt: {one.get('prompt')!r}\n  completion: {one.get('completion')!r}\n  reward: {one.get('reward')}")

    def summary(self, seconds: float) -> dict[str, float]:
        """Returns summary metrics of the whole run, with the names of transformers."""
        state = self._trainer.state
        found = {
            "train_runtime": seconds,
            "train_samples_per_second": self._examples / seconds if seconds else 0.0,
            "train_steps_per_second": state.global_step / seconds if seconds else 0.0,
            "train_loss": self._whole.take().get("loss", 0.0),
        }
        return found if state.epoch is None else {**found, "epoch": state.epoch}


def _trainer(cls: type[_Class]) -> type[_Class]:
    """Makes a trainer that rejects unknown arguments with a hint."""
    init = vars(cls)["__init__"]

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        known = TRAINERS[cls.__name__]
        for name in kwargs:
            if name not in known:
                raise TypeError(_check.unknown(cls.__name__, name, known))
        init(self, *args, **kwargs)

    setattr(cls, "__init__", __init__)
    return cls


@_trainer
class SFTTrainer(Trainer):
    """Supervised fine-tuning: `gradus.sft` with the arguments of TRL."""

    _function = "sft"
    _config = SFTConfig

    def __init__(
        self,
        model: Any,
        args: SFTConfig | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        compute_loss_func: Any = None,
        compute_metrics: Any = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: Any = None,
        preprocess_logits_for_metrics: Any = None,
        quantization_config: Any = None,
        peft_config: Any = None,
        formatting_func: Callable[[Any], str] | None = None,
    ) -> None:
        self._begin(locals())


@_trainer
class DPOTrainer(Trainer):
    """Direct preference optimization: `gradus.dpo` with the arguments of TRL."""

    _function = "dpo"
    _config = DPOConfig

    def __init__(
        self,
        model: Any,
        ref_model: Any = None,
        args: DPOConfig | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        compute_metrics: Any = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
    ) -> None:
        self._begin(locals())


@_trainer
class GRPOTrainer(Trainer):
    """Group relative policy optimization: `gradus.grpo` with the arguments of TRL."""

    _function = "grpo"
    _config = GRPOConfig

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Any = None,
        rollout_func: Any = None,
        environment_factory: Any = None,
    ) -> None:
        self._begin(locals())
        if not environment_factory:
            _need_rewards(reward_funcs)


@_trainer
class KTOTrainer(Trainer):
    """Kahneman-Tversky optimization: `gradus.kto` with the arguments of TRL."""

    _function = "kto"
    _config = KTOConfig

    def __init__(
        self,
        model: Any,
        ref_model: Any = None,
        args: KTOConfig | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        compute_metrics: Any = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
    ) -> None:
        self._begin(locals())


@_trainer
class RLOOTrainer(Trainer):
    """REINFORCE with a leave-one-out baseline: `gradus.rloo` with the arguments of TRL."""

    _function = "rloo"
    _config = RLOOConfig

    def __init__(
        self,
        model: Any,
        reward_funcs: Any,
        args: RLOOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
    ) -> None:
        self._begin(locals())
        _need_rewards(reward_funcs)


@_trainer
class RewardTrainer(Trainer):
    """Reward models: `gradus.reward_model` with the arguments of TRL."""

    _function = "reward_model"
    _config = RewardConfig

    def __init__(
        self,
        model: Any,
        args: RewardConfig | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        compute_metrics: Any = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: Any = None,
        preprocess_logits_for_metrics: Any = None,
        quantization_config: Any = None,
        peft_config: Any = None,
    ) -> None:
        self._begin(locals())


def _need_rewards(reward_funcs: Any) -> None:
    """Raises if there is no reward."""
    if reward_funcs is None or (isinstance(reward_funcs, (list, tuple)) and not reward_funcs):
        raise error(
            f"`reward_funcs` is {shown(reward_funcs)}, but completions need a reward. Pass a function, the name of a "
            "reward model, or a list of them."
        )
