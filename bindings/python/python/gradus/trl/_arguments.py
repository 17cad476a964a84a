"""Treatment of every argument of TRL's six trainers, as one table for the code, the tests and docs/trl.md.

There are three treatments. `Honored`: gradus does the same, with the listed keys. `NoEffect`: the argument affects only how
fast or where something is computed; any value is accepted, and a warning names it. `Refused`: gradus does not support it; any
value other than TRL's default is an error that describes the alternative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Honored:
    """gradus does what the argument requests."""

    keys: tuple[str, ...]
    """The corresponding keys of gradus; empty if the trainer itself handles the argument."""
    note: str = ""
    """Differences, or how the keys follow from the value."""
    by: str = ""
    """The conversion in `_translate.py`. Without one, the only key gets the unchanged value."""


@dataclass(frozen=True)
class NoEffect:
    """The argument does not affect the results of gradus. Any value is accepted, and a warning names values other than the default."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """gradus does not support the argument. Only TRL's default and equivalent values are accepted."""

    reason: str
    instead: str
    """The alternative, as a sentence."""
    accepts: tuple[Any, ...] = ()
    """Values that are equivalent to the default."""


Treatment = Honored | NoEffect | Refused


def same(key: str, note: str = "") -> Honored:
    """The value is passed unchanged as the value of `key`."""
    return Honored((key,), note)


_GRADIENTS = "gradus has its own training code; nothing of PyTorch runs"
_CORES = "gradus reads and tokenizes rows on all cores"
_ONE_MACHINE = "gradus trains on one machine and one device"
_NO_UPLOAD = "gradus uploads nothing"
_NO_COMPILER = "gradus brings its own compiled code"
_UPLOAD = "Upload the model directory yourself: `hf upload NAME DIRECTORY`."
_LEAVE_OUT = "Leave it out."
_NO_PADDING = "gradus lays rows end to end and pads nothing"
_VLLM = "it is for vLLM, and gradus samples completions itself"
_ONE_SAMPLER = "the sampler of gradus has the probabilities of the trained model, so the ratio is 1"
_ADAPTS = "only with `use_adaptive_entropy=True`, as in TRL"
_SAMPLER = "gradus has its own sampler"
_METRIC_FUNCTIONS = "gradus measures by its own metrics and returns no logits to Python"

_BATCH = ("batch_size", "micro_batch_size")

COMMON: Mapping[str, Treatment] = {
    "output_dir": Honored(
        ("output_dir", "overwrite"),
        "the run directory; an earlier run of gradus in it is replaced, unless training resumes",
        by="output",
    ),
    "per_device_train_batch_size": Honored(
        _BATCH,
        "times `gradient_accumulation_steps` it is the rows of a step; it is also the most rows of one forward pass",
        by="batch",
    ),
    "gradient_accumulation_steps": Honored(("batch_size",), "see `per_device_train_batch_size`", by="batch"),
    "num_train_epochs": Honored(("epochs",), "without `max_steps`", by="steps"),
    "max_steps": Honored(
        ("max_steps", "max_rows"),
        "above 0 it takes precedence over `num_train_epochs`; of an iterable without a length, only the rows for so many steps are read",
        by="steps",
    ),
    "learning_rate": same("learning_rate"),
    "lr_scheduler_type": Honored(
        ("lr_schedule",),
        "all schedules of transformers but `reduce_lr_on_plateau` and `greedy`, which depend on measurements and are refused",
        by="schedule",
    ),
    "lr_scheduler_kwargs": Honored(
        ("lr_schedule",),
        "the settings of the schedule: a dict, or JSON; `min_lr_rate` is `min_lr_ratio`, `warmup_lr_rate` is `warmup_lr_ratio`, "
        "`num_decay_steps` is `decay_steps`, and `num_stable_steps` is `stable_steps`",
        by="schedule",
    ),
    "warmup_steps": Honored(("warmup_steps",), "below 1 it is a share of all steps, as in TRL", by="schedule"),
    "optim": Honored(
        ("optimizer", "adam_betas", "adam_epsilon", "moments"),
        "`rmsprop`, the variants of AdamW that compute the same: `adamw_torch`, `adamw_torch_fused`, "
        "`adamw_torch_xla`, `adamw_torch_npu_fused`, `adamw_apex_fused`, `paged_adamw`, `paged_adamw_32bit`; and with moments in "
        "eight bits `adamw_bnb_8bit`, `adamw_8bit`, `paged_adamw_8bit`; others are refused. Paging decides only where moments are "
        "stored: in gradus, `offload_moments` does",
        by="optimizer",
    ),
    "optim_args": Refused(
        "the optimizers of gradus take no such arguments", "Set `adam_beta1`, `adam_beta2` and `adam_epsilon`.", ("",)
    ),
    "weight_decay": same("weight_decay"),
    "adam_beta1": Honored(("adam_betas",), by="optimizer"),
    "adam_beta2": Honored(("adam_betas",), by="optimizer"),
    "adam_epsilon": Honored(("adam_epsilon",), "only for AdamW, as in TRL", by="optimizer"),
    "optim_target_modules": Refused("gradus has no GaLore or APOLLO", "Use `peft_config=LoraConfig(...)` to save memory."),
    "average_tokens_across_devices": NoEffect(_ONE_MACHINE),
    "max_grad_norm": same("max_grad_norm", "0 turns clipping off"),
    "label_smoothing_factor": Refused("only supervised fine-tuning has it", "Leave it at 0."),
    "bf16": Honored(
        ("compute",),
        "true, and TRL's default `None`: `bf16`; false: `f32`. Weights and the optimizer stay in f32 either way",
        by="precision",
    ),
    "fp16": Refused("gradus does not compute in float16", "Set `bf16=True`, or `bf16=False` for float32."),
    "bf16_full_eval": Refused("gradus evaluates in the precision that it trains in", "Leave it out and set `bf16=True`."),
    "fp16_full_eval": Refused("gradus does not compute in float16", "Leave it out and set `bf16=True`."),
    "tf32": NoEffect(_GRADIENTS),
    "activation_checkpointing": Honored(
        ("recompute",), "the result is the same to the bit; `False` is faster and takes more memory", by="recompute"
    ),
    "activation_checkpointing_kwargs": NoEffect("the result of gradient checkpointing does not depend on its implementation"),
    "gradient_checkpointing": Honored(("recompute",), "the older name of `activation_checkpointing`", by="recompute"),
    "gradient_checkpointing_kwargs": NoEffect("the result of gradient checkpointing does not depend on its implementation"),
    "torch_compile": NoEffect(_NO_COMPILER),
    "torch_compile_backend": NoEffect(_NO_COMPILER),
    "torch_compile_mode": NoEffect(_NO_COMPILER),
    "use_liger_kernel": NoEffect(_NO_COMPILER),
    "liger_kernel_config": NoEffect(_NO_COMPILER),
    "use_cache": NoEffect("gradus keeps keys and values when it samples and drops them when it trains"),
    "neftune_noise_alpha": Refused("this method trains without noise on embeddings", "Leave it out.", (0.0,)),
    "torch_empty_cache_steps": NoEffect(_GRADIENTS),
    "auto_find_batch_size": Refused(
        "gradus reports before the first step whether a run fits into memory",
        "Set a smaller `per_device_train_batch_size` and a larger `gradient_accumulation_steps`; only their product counts.",
    ),
    "logging_strategy": Honored(("logging_steps",), "`no` logs only the last step", by="logging"),
    "logging_steps": Honored(
        ("logging_steps",),
        "rows of the log are means over so many steps, but `grad_norm` and `learning_rate` are those of the last step, as in "
        "TRL; with `callbacks` gradus logs every step and the trainer makes the means",
        by="logging",
    ),
    "logging_first_step": Honored(("logging_steps",), "the trainer adds a row for the first step", by="logging"),
    "log_on_each_node": NoEffect(_ONE_MACHINE),
    "logging_nan_inf_filter": NoEffect("a loss that is not finite ends the run with the batch that caused it"),
    "include_num_input_tokens_seen": NoEffect("the log always has `num_tokens`"),
    "log_level": NoEffect("gradus writes no log by Python's `logging`"),
    "log_level_replica": NoEffect(_ONE_MACHINE),
    "disable_tqdm": Honored(("progress",), "true shows no progress bar", by="progress"),
    "report_to": Honored(
        ("tensorboard", "wandb"),
        "`tensorboard`, `wandb` (an offline run for `wandb sync`), `all` (both) and `none`; others are refused",
        by="trackers",
    ),
    "run_name": Honored(("wandb_name",), "the name of the run in Weights & Biases", by="trackers"),
    "project": NoEffect("TRL reads it only for Trackio, which `report_to` refuses"),
    "trackio_space_id": NoEffect("TRL reads it only for Trackio, which `report_to` refuses"),
    "trackio_bucket_id": NoEffect("TRL reads it only for Trackio, which `report_to` refuses"),
    "trackio_static_space_id": NoEffect("TRL reads it only for Trackio, which `report_to` refuses"),
    "eval_strategy": Honored(
        ("eval_steps", "eval_fraction", "max_eval_rows"),
        "`no` never evaluates and holds no rows out; otherwise gradus also evaluates after the last step",
        by="evaluation",
    ),
    "eval_steps": Honored(("eval_steps",), "`None` means `logging_steps`, below 1 a share of all steps", by="evaluation"),
    "eval_delay": Honored(
        ("eval_delay",),
        "steps or epochs, as `eval_strategy` says; the evaluation after the last step stays",
        by="evaluation",
    ),
    "per_device_eval_batch_size": NoEffect("evaluations choose their own batch size"),
    "prediction_loss_only": NoEffect("gradus measures the loss and its other metrics in one pass"),
    "eval_on_start": Honored(
        ("eval_steps", "eval_fraction", "max_eval_rows"),
        "gradus always evaluates before the first step, to know which model is best; true adds it to the log history",
        by="evaluation",
    ),
    "eval_do_concat_batches": NoEffect(_METRIC_FUNCTIONS),
    "eval_use_gather_object": NoEffect(_ONE_MACHINE),
    "eval_accumulation_steps": NoEffect("evaluations choose their own batch size"),
    "include_for_metrics": Refused(_METRIC_FUNCTIONS, _LEAVE_OUT),
    "batch_eval_metrics": Refused(_METRIC_FUNCTIONS, _LEAVE_OUT),
    "save_only_model": NoEffect("a checkpoint always holds what a run needs to resume"),
    "save_strategy": Honored(
        ("save_steps",),
        "`no` and `best` write only the last checkpoint; the best model is always kept in `best/` where rows are evaluated",
        by="saving",
    ),
    "save_steps": Honored(("save_steps",), "below 1 it is a share of all steps", by="saving"),
    "save_on_each_node": NoEffect(_ONE_MACHINE),
    "save_total_limit": Honored(("keep_checkpoints",), "`None` keeps all", by="saving"),
    "enable_jit_checkpoint": NoEffect("a run that is stopped always writes a checkpoint first"),
    "push_to_hub": Refused(_NO_UPLOAD, _UPLOAD),
    "hub_token": NoEffect("it is for uploads, and `push_to_hub=True` is refused"),
    "hub_private_repo": NoEffect("it is for uploads, and `push_to_hub=True` is refused"),
    "hub_model_id": NoEffect("it is for uploads, and `push_to_hub=True` is refused"),
    "hub_strategy": NoEffect("it is for uploads, and `push_to_hub=True` is refused"),
    "hub_always_push": NoEffect("it is for uploads, and `push_to_hub=True` is refused"),
    "hub_revision": NoEffect("it is for uploads, and `push_to_hub=True` is refused"),
    "load_best_model_at_end": Honored(
        ("best_metric",), "`trainer.model` and `save_model()` take `best/` where an evaluation beat the start", by="best"
    ),
    "metric_for_best_model": Honored(("best_metric",), "with or without `eval_` before it", by="best"),
    "greater_is_better": Honored(("greater_is_better",), "`None`: the name of the metric decides", by="best"),
    "ignore_data_skip": Refused("a resumed run continues with the rows where it stopped", _LEAVE_OUT),
    "restore_callback_states_from_checkpoint": Refused("checkpoints hold no state of callbacks", _LEAVE_OUT),
    "full_determinism": NoEffect("runs with one seed on one machine are always the same"),
    "seed": same("seed"),
    "data_seed": Honored((), "checked: gradus has one seed, so it must be equal to `seed` or `None`", by="seed"),
    "use_cpu": Honored(
        ("device",), "true computes on the CPU; false uses the default device of gradus, which is the CPU too", by="device"
    ),
    "accelerator_config": Refused(_ONE_MACHINE, _LEAVE_OUT),
    "parallelism_config": Refused(_ONE_MACHINE, _LEAVE_OUT),
    "dataloader_drop_last": Refused(
        "the last step of an epoch uses the remaining rows", "Shorten the data to a multiple of the rows of a step."
    ),
    "dataloader_num_workers": NoEffect(_CORES),
    "dataloader_pin_memory": NoEffect(_CORES),
    "dataloader_persistent_workers": NoEffect(_CORES),
    "dataloader_prefetch_factor": NoEffect(_CORES),
    "dataloader_multiprocessing_context": NoEffect(_CORES),
    "dataloader_in_order": NoEffect(_CORES),
    "remove_unused_columns": NoEffect("columns that a method does not read have no effect on it"),
    "label_names": Refused("gradus recognizes rows by their columns", "Use the column names in docs/data.md."),
    "train_sampling_strategy": Honored(
        ("shuffle",), "`random` and `sequential`; batches of rows of one length are refused", by="shuffle"
    ),
    "length_column_name": NoEffect("it is for `group_by_length` and `batch_rebalance`, which are refused"),
    "ddp_find_unused_parameters": NoEffect(_ONE_MACHINE),
    "ddp_bucket_cap_mb": NoEffect(_ONE_MACHINE),
    "ddp_broadcast_buffers": NoEffect(_ONE_MACHINE),
    "ddp_static_graph": NoEffect(_ONE_MACHINE),
    "ddp_backend": NoEffect(_ONE_MACHINE),
    "ddp_timeout": NoEffect(_ONE_MACHINE),
    "fsdp": Refused(_ONE_MACHINE, _LEAVE_OUT, ("", False, [])),
    "fsdp_config": Refused(_ONE_MACHINE, _LEAVE_OUT, ({},)),
    "deepspeed": Refused(_ONE_MACHINE, _LEAVE_OUT),
    "debug": Refused("gradus does not run PyTorch's checks", "Leave it out; a loss that is not finite ends the run.", ([], None)),
    "skip_memory_metrics": NoEffect("`results.json` in the run directory always has the peak of the memory"),
    "do_train": NoEffect("trainers do not read it; scripts do"),
    "do_eval": NoEffect("trainers do not read it; `eval_strategy` decides"),
    "do_predict": NoEffect("trainers do not read it; scripts do"),
    "resume_from_checkpoint": NoEffect("trainers do not read it; pass it to `train()`"),
    "local_rank": NoEffect(_ONE_MACHINE),
}

_MODEL: Mapping[str, Treatment] = {
    "model_init_kwargs": Honored(
        ("compute",),
        "`dtype`: `bfloat16` computes in bf16, weights stay in f32; what affects only speed or device "
        "(`attn_implementation`, `device_map`, `low_cpu_mem_usage`, `use_cache`, `use_kernels`) has no effect, nor has "
        "`trust_remote_code`; the rest is refused",
        by="model_init",
    ),
    "trust_remote_code": NoEffect(
        "gradus reads the families of models itself and runs no code of a model's author; an unknown family is an error"
    ),
    "pad_to_multiple_of": NoEffect(_NO_PADDING),
}
_OFFLINE: Mapping[str, Treatment] = {
    **_MODEL,
    "dataset_num_proc": NoEffect(_CORES),
    "activation_offloading": NoEffect("it saves memory and changes no result; `gradient_checkpointing` does the same in gradus"),
}
_ROUTER: Mapping[str, Treatment] = {
    "router_aux_loss_coef": Refused("gradus has no mixture-of-experts models", "Leave it out."),
}
_NOISE: Mapping[str, Treatment] = {
    "neftune_noise_alpha": same(
        "neftune_noise_alpha",
        "the noise of a row depends on its own length, not on the padded length of its batch; the reference has none; models with an "
        "encoder are refused, because TRL's noise does not reach them",
    ),
}
_DROPOUT: Mapping[str, Treatment] = {
    "disable_dropout": Honored(("dropout",), "without it, dropout works as in the configuration of the model", by="dropout"),
}
_NO_DROPOUT: Mapping[str, Treatment] = {
    "disable_dropout": Refused(
        "this method compares with a model that has no dropout", "Leave it at `True`. An adapter's dropout is off too, as in TRL."
    ),
}
_CUT: Mapping[str, Treatment] = {
    "max_length": Honored(("max_length", "too_long"), "longer rows are cut at the end; `None`: none is cut", by="length"),
}
_TRUNCATION: Mapping[str, Treatment] = {
    "truncation_mode": Refused(
        "gradus cuts rows at the end", "Leave it at `keep_start`, or raise `max_length` so that nothing is cut."
    ),
}
_PAD_TOKEN: Mapping[str, Treatment] = {"pad_token": NoEffect(_NO_PADDING)}
_EOS_TOKEN: Mapping[str, Treatment] = {
    "eos_token": Refused(
        "gradus takes the end-of-text token of the tokenizer",
        "Set `tokenizer.eos_token` and pass the tokenizer as `processing_class`.",
    ),
}
_TEMPLATE: Mapping[str, Treatment] = {
    "chat_template_path": Honored(("chat_template",), "a Jinja file, or a directory with `chat_template.jinja`", by="template"),
}
_SYNC: Mapping[str, Treatment] = {
    "sync_ref_model": Honored(
        ("sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"),
        "the reference is held in f32. As in TRL, it is refused with an adapter, with DPO's `precompute_ref_log_probs`, and with `beta=0` "
        "where completions are sampled; also with KTO's `apo_zero_unpaired`",
        by="sync",
    ),
    "ref_model_mixup_alpha": Honored(("ref_model_mixup_alpha",), "with `sync_ref_model`", by="sync"),
    "ref_model_sync_steps": Honored(("ref_model_sync_steps",), "with `sync_ref_model`", by="sync"),
}
_PRECOMPUTE_BATCH: Mapping[str, Treatment] = {
    "precompute_ref_batch_size": NoEffect("passes choose their own batch size"),
}

_ONLINE: Mapping[str, Treatment] = {
    **_MODEL,
    **_ROUTER,
    **_DROPOUT,
    **_SYNC,
    "per_device_train_batch_size": Honored(
        ("batch_size", "micro_batch_size", "mini_batches"),
        "completions, not prompts; see `generation_batch_size`",
        by="rollouts",
    ),
    "gradient_accumulation_steps": Honored(("batch_size", "mini_batches"), "see `generation_batch_size`", by="rollouts"),
    "num_train_epochs": Honored(
        ("epochs", "max_steps"),
        "without `max_steps`; where rows at the end of an epoch fill no iteration, `max_steps` is what TRL makes of it without them",
        by="steps",
    ),
    "max_steps": Honored(
        ("max_steps", "max_rows"),
        "gradus counts iterations of sampling and training, each of one or more optimizer steps; the number is divided by "
        "those steps, as are all intervals; of an iterable without a length, only the rows for so many steps are read",
        by="steps",
    ),
    "remove_unused_columns": Refused(
        "reward functions receive every column",
        "Leave it at `False`, or remove columns from the data.",
        (None,),
    ),
    "num_generations": Honored(("group_size", "batch_size"), by="rollouts"),
    "eval_strategy": Honored(
        ("eval_steps", "eval_fraction", "max_eval_rows", "evaluation_samples"),
        "`no` never evaluates and holds no rows out; otherwise gradus also evaluates after the last step",
        by="evaluation",
    ),
    "num_generations_eval": Honored(("evaluation_samples",), "`None` means `num_generations`", by="evaluation"),
    "max_completion_length": same("max_new_tokens"),
    "ds3_gather_for_generation": NoEffect(_ONE_MACHINE),
    "shuffle_dataset": Honored(("shuffle",), by="shuffle"),
    "train_sampling_strategy": NoEffect("this trainer of TRL reads `shuffle_dataset` instead"),
    "generation_batch_size": Honored(
        ("batch_size", "mini_batches"),
        "completions of an iteration: `batch_size` is this divided by `num_generations`, and `mini_batches` is this divided by the "
        "completions of an optimizer step",
        by="rollouts",
    ),
    "steps_per_generation": Honored(("batch_size", "mini_batches"), "see `generation_batch_size`", by="rollouts"),
    "temperature": same("temperature"),
    "top_p": Honored(("sampling_top_p",), by="sampling"),
    "top_k": Honored(("sampling_top_k",), "0 samples from all tokens", by="sampling"),
    "min_p": Honored(("sampling_min_p",), by="sampling"),
    "generation_kwargs": Honored(
        (
            "max_new_tokens",
            "temperature",
            "stop",
            "sampling_top_k",
            "sampling_top_p",
            "sampling_min_p",
            "sampling_typical_p",
            "sampling_repetition_penalty",
            "sampling_no_repeat_ngram_size",
            "sampling_encoder_no_repeat_ngram_size",
            "sampling_min_new_tokens",
            "sampling_suppress_tokens",
            "sampling_bad_words_ids",
            "sampling_forced_bos_token_id",
            "sampling_forced_eos_token_id",
        ),
        "settings that gradus has under `sampling`, and `stop_strings`; others are refused",
        by="sampling",
    ),
    "chat_template_kwargs": Honored((), "the trainer adds them to every row as the column `chat_template_kwargs`"),
    "repetition_penalty": Honored(("sampling_repetition_penalty",), by="sampling"),
    "cache_implementation": NoEffect("gradus has its own cache"),
    "use_vllm": NoEffect("gradus samples completions itself, with the weights that it trains"),
    "vllm_mode": NoEffect(_VLLM),
    "vllm_model_impl": NoEffect(_VLLM),
    "vllm_enable_sleep_mode": NoEffect(_VLLM),
    "vllm_structured_outputs_regex": Refused("gradus does not constrain what is sampled", "Leave it out."),
    "vllm_server_base_url": NoEffect(_VLLM),
    "vllm_server_host": NoEffect(_VLLM),
    "vllm_server_port": NoEffect(_VLLM),
    "vllm_server_timeout": NoEffect(_VLLM),
    "vllm_group_port": NoEffect(_VLLM),
    "vllm_gpu_memory_utilization": NoEffect(_VLLM),
    "vllm_max_model_length": NoEffect(f"{_VLLM}: only `max_completion_length` limits them"),
    "vllm_tensor_parallel_size": NoEffect(_VLLM),
    "beta": same("kl_coefficient", "0 needs no reference model"),
    "num_iterations": same("update_epochs"),
    "epsilon": same("clip_range"),
    "epsilon_high": same("clip_range_high", "`None` means `epsilon`"),
    "reward_weights": Honored(("reward", "reward_weights"), "`None` gives every reward the weight 1"),
    "mask_truncated_completions": same("mask_truncated_completions"),
    "log_completions": Honored(
        (), "the trainer prints the completions of a logged step; the run keeps all of them in `rollouts.sqlite` either way"
    ),
    "log_multimodal": NoEffect("gradus trains on text"),
    "num_completions_to_print": Honored((), "how many `log_completions` prints"),
    "log_unique_prompts": Honored((), "`log_completions` prints one completion of each prompt"),
    "use_transformers_continuous_batching": NoEffect(_SAMPLER),
    "transformers_continuous_batching_config": NoEffect(_SAMPLER),
    "use_transformers_paged": NoEffect(_SAMPLER),
}

CONFIGS: Mapping[str, Mapping[str, Treatment]] = {
    "SFTConfig": {
        **_OFFLINE,
        **_ROUTER,
        **_NOISE,
        **_CUT,
        **_TRUNCATION,
        **_PAD_TOKEN,
        **_EOS_TOKEN,
        **_TEMPLATE,
        "label_smoothing_factor": same("label_smoothing", "with `loss_type='nll'`"),
        "dataset_text_field": same("text_column"),
        "dataset_kwargs": Refused(
            "gradus recognizes rows of token ids by their columns", "Leave it out; `skip_prepare_dataset` is not needed.", ({},)
        ),
        "shuffle_dataset": Honored(
            ("shuffle",), "true shuffles even where `train_sampling_strategy` is `sequential`", by="shuffle"
        ),
        "packing": Honored(("packing",), "with `packing_strategy='wrapped'`; other strategies are refused", by="packing"),
        "packing_strategy": Honored(("packing",), "see `packing`", by="packing"),
        "padding_free": NoEffect(_NO_PADDING),
        "eval_packing": Honored((), "checked: evaluations are packed as training is", by="packing"),
        "completion_only_loss": same("completion_only_loss"),
        "assistant_only_loss": same("assistant_only_loss"),
        "loss_type": Honored(("loss_type",), "`nll`, `dft`, and `chunked_nll` as another name of `nll`", by="sft_loss"),
    },
    "DPOConfig": {
        **_OFFLINE,
        **_ROUTER,
        **_NOISE,
        **_CUT,
        **_TRUNCATION,
        **_PAD_TOKEN,
        **_NO_DROPOUT,
        **_SYNC,
        **_PRECOMPUTE_BATCH,
        "padding_free": NoEffect(_NO_PADDING),
        "precompute_ref_log_probs": Honored(
            ("reference",),
            "true: `precomputed`; false: `live`. The result is the same; `precomputed` takes less memory",
            by="reference",
        ),
        "loss_type": Honored(("loss_type",), by="dpo_loss"),
        "loss_weights": same("loss_weights"),
        "ld_alpha": same("ld_alpha"),
        "f_divergence_type": same("f_divergence_type"),
        "f_alpha_divergence_coef": same("f_alpha_divergence_coef"),
        "label_smoothing": Honored(
            ("label_smoothing",),
            "the losses `robust`, `exo_pair`, `aot` and `aot_unpaired` read it. Without one of them, it is 0, as TRL ignores it; next to one "
            "of them, gradus also applies it to `sigmoid`",
            by="smoothing",
        ),
        "beta": same("beta"),
        "use_weighting": same("use_weighting"),
        "discopop_tau": same("discopop_tau"),
    },
    "GRPOConfig": {
        **_ONLINE,
        "cast_lm_head_to_fp32": Refused(
            "gradus computes the head as it computes every layer", "Leave it out, or set `bf16=False` for float32 everywhere."
        ),
        "steps_per_generation": Honored(
            ("batch_size", "mini_batches"),
            "see `generation_batch_size`; with several optimizer steps, `dapo`, `cispo` and `vespo` divide by the tokens of each step, "
            "and TRL by their mean",
            by="rollouts",
        ),
        "delta": same("delta"),
        "sapo_temperature_neg": same("sapo_temperature_neg"),
        "sapo_temperature_pos": same("sapo_temperature_pos"),
        "vespo_k_pos": same("vespo_k_pos"),
        "vespo_lambda_pos": same("vespo_lambda_pos"),
        "vespo_k_neg": same("vespo_k_neg"),
        "vespo_lambda_neg": same("vespo_lambda_neg"),
        "importance_sampling_level": same("importance_sampling_level"),
        "multi_objective_aggregation": same("multi_objective_aggregation"),
        "scale_rewards": Honored(
            ("scale_rewards",),
            "`True` is `group` and `False` is `none`; with `multi_objective_aggregation=\"normalize_then_sum\"`, TRL does not read it",
            by="scale_rewards",
        ),
        "loss_type": Honored(
            ("loss_type", "micro_batch_tokens"),
            "`bnpo` depends on the rows of one forward pass, so these are exactly `per_device_train_batch_size`",
            by="grpo_loss",
        ),
        "top_entropy_quantile": same(
            "top_entropy_quantile", "the quantile is that of an optimizer step; TRL's is that of one forward pass of all processes"
        ),
        "entropy_coef": same("entropy_coefficient"),
        "use_adaptive_entropy": same("use_adaptive_entropy"),
        "entropy_coef_min": Honored(("entropy_coefficient_min",), _ADAPTS, by="adaptive_entropy"),
        "entropy_coef_max": Honored(("entropy_coefficient_max",), _ADAPTS, by="adaptive_entropy"),
        "entropy_coef_delta": Honored(("entropy_coefficient_delta",), _ADAPTS, by="adaptive_entropy"),
        "entropy_target": Honored(("entropy_target",), _ADAPTS, by="adaptive_entropy"),
        "max_tool_calling_iterations": Honored(
            ("episode_max_turns",), "one turn more than iterations; `None`: only the length ends an episode", by="turns"
        ),
        "vllm_importance_sampling_correction": NoEffect(_ONE_SAMPLER),
        "vllm_importance_sampling_mode": NoEffect(_ONE_SAMPLER),
        "vllm_importance_sampling_clip_max": Honored((), f"checked with `use_vllm`: {_ONE_SAMPLER}, which must be within", by="vllm"),
        "vllm_importance_sampling_clip_min": Honored((), f"checked with `use_vllm`: {_ONE_SAMPLER}, which must be within", by="vllm"),
        "vllm_importance_sampling_cap": Honored((), "the older name of `vllm_importance_sampling_clip_max`", by="vllm"),
        "off_policy_mask_threshold": same("off_policy_mask_threshold"),
        "use_bias_correction_kl": same("kl_bias_correction"),
        "log_completions_hub_repo": Refused(_NO_UPLOAD, "Read the completions from `rollouts.sqlite` in the run directory."),
    },
    "KTOConfig": {
        **_OFFLINE,
        **_ROUTER,
        **_CUT,
        **_NO_DROPOUT,
        **_SYNC,
        **_PRECOMPUTE_BATCH,
        "precompute_ref_log_probs": NoEffect(
            'the result is the same. With `loss_type="kto"`, the reference runs in each step and stays in memory; with '
            '`"apo_zero_unpaired"`, gradus computes its log-probabilities before training'
        ),
        "train_sampling_strategy": Honored(
            ("shuffle",),
            '`random` and `sequential`; batches of rows of one length are refused. With `loss_type="kto"`, TRL refuses `random`',
            by="shuffle",
        ),
        "loss_type": same("loss_type"),
        "beta": same("beta"),
        "desirable_weight": same("desirable_weight"),
        "undesirable_weight": same("undesirable_weight"),
    },
    "RLOOConfig": {
        **_ONLINE,
        "normalize_advantages": same("normalize_advantages"),
        "reward_clip_range": Honored(("reward_clip_range",), by="reward_clip"),
    },
    "RewardConfig": {
        **_OFFLINE,
        **_DROPOUT,
        **_PAD_TOKEN,
        **_EOS_TOKEN,
        **_TEMPLATE,
        "max_length": Honored(
            ("max_length", "too_long"), "pairs with a longer side are left out; `None`: none is left out", by="length"
        ),
        "center_rewards_coefficient": Honored(("center_rewards_coefficient",), "`None` means 0", by="center"),
    },
}

_COLLATOR: Mapping[str, Treatment] = {
    "data_collator": Refused(
        "gradus makes its own batches", "Change the rows instead: every form that docs/data.md lists is read."
    ),
}
_COMPUTE_METRICS: Mapping[str, Treatment] = {
    "compute_metrics": Refused(_METRIC_FUNCTIONS, "Use `gradus.evaluate(model, data, metrics=[...])` after training."),
}
_LOGITS: Mapping[str, Treatment] = {
    "optimizer_cls_and_kwargs": Refused("gradus has its own optimizers", "Set `optim` to `adamw_torch` or `rmsprop`."),
    "preprocess_logits_for_metrics": Refused(_METRIC_FUNCTIONS, _LEAVE_OUT),
}
_ALL: Mapping[str, Treatment] = {
    "model": Honored(
        ("model",),
        "a directory, a hub name, or a run of gradus; an object of transformers or peft is saved below `start/` in the run directory first",
    ),
    "args": Honored((), "the configuration; `None` means all defaults"),
    "train_dataset": Honored(("data",)),
    "eval_dataset": Honored(("eval_data",), "one data set; a dict of several is refused", by="evaluation"),
    "processing_class": Honored(
        ("tokenizer",), "a tokenizer is saved below `start/` in the run directory first; a text is a directory or a hub name"
    ),
    "callbacks": Honored(
        (),
        "`on_init_end`, `on_train_begin`, `on_step_begin`, `on_step_end`, `on_log`, `on_evaluate`, `on_train_end`, and "
        "`control.should_training_stop`; a callback with another method is refused",
    ),
    "optimizers": Refused(
        "gradus has its own optimizers and schedules",
        "Set `optim`, `learning_rate` and `lr_scheduler_type` instead.",
        (None, [None, None], (None, None)),
    ),
    "quantization_config": Honored(
        ("frozen_weights",),
        "4 bits in NF4 and 8 bits, with `peft_config`; other formats are refused",
        by="quantization",
    ),
    "peft_config": Honored(
        (
            "lora_rank",
            "lora_alpha",
            "lora_dropout",
            "lora_targets",
            "lora_target_pattern",
            "lora_rank_stabilised",
            "lora_dora",
        ),
        "a `LoraConfig`: rank, alpha, dropout, target modules, rank stabilization and DoRA; what else differs from its "
        "default is refused",
        by="peft",
    ),
}
_REFERENCE: Mapping[str, Treatment] = {
    "ref_model": Honored(("reference_model",), "as `model`; `None`: the model that training starts from"),
}
_REWARDS: Mapping[str, Treatment] = {
    "reward_funcs": Honored(
        ("reward",),
        "functions, directories or hub names of reward models, and lists of them; a model of transformers is saved first; "
        "functions with a parameter `environments` get the environments, and `**kwargs` does not contain them",
    ),
    "reward_processing_classes": Honored(
        ("reward",),
        "the tokenizers of reward models that are objects; a directory or hub name has its own, so pass `None` for it",
    ),
}

TRAINERS: Mapping[str, Mapping[str, Treatment]] = {
    "SFTTrainer": {
        **_ALL,
        **_COLLATOR,
        **_COMPUTE_METRICS,
        **_LOGITS,
        "compute_loss_func": Refused("the loss is computed by gradus", "Choose a `loss_type`."),
        "formatting_func": Honored((), "the trainer calls it for every row and trains on the text that it returns"),
    },
    "DPOTrainer": {**_ALL, **_REFERENCE, **_COLLATOR, **_COMPUTE_METRICS},
    "GRPOTrainer": {
        **_ALL,
        **_REWARDS,
        "tools": Honored(
            ("tools",),
            "functions with type hints; their docstrings, in Google's style, describe them and their arguments. The chat template must "
            "show tools",
        ),
        "rollout_func": Refused("gradus samples completions itself", "Give `tools` or `environment_factory`."),
        "environment_factory": Honored(
            ("environment",),
            "a class, a function, or a dict of these for the column `environment`. What `reset` returns must be the same for all "
            "completions of a prompt: derive it from its argument `seed`",
        ),
    },
    "KTOTrainer": {**_ALL, **_REFERENCE, **_COLLATOR, **_COMPUTE_METRICS},
    "RLOOTrainer": {**_ALL, **_REWARDS},
    "RewardTrainer": {**_ALL, **_COLLATOR, **_COMPUTE_METRICS, **_LOGITS},
}

EARLIER: Mapping[str, str] = {
    "warmup_ratio": "warmup_steps",
    "evaluation_strategy": "eval_strategy",
    "max_seq_length": "max_length",
}
"""Names of earlier versions with the current name. They are accepted with a warning."""

GONE: Mapping[str, str] = {
    "max_prompt_length": "TRL cuts no prompts any more. Remove long prompts from the data. For GRPO and RLOO you can call "
    "`gradus.grpo` or `gradus.rloo` with `max_prompt_length`",
    "overwrite_output_dir": "Leave it out: a run in `output_dir` is replaced unless training resumes",
    "group_by_length": "Leave it out: gradus pads nothing, so rows of one length save nothing",
    "logging_dir": "Leave it out: event files for TensorBoard are in `tensorboard/` of the run directory",
    "tokenizer": "Pass the tokenizer to the trainer as `processing_class`",
    "use_liger_loss": "Leave it out: gradus brings its own compiled code",
    "no_cuda": "Write `use_cpu=True`",
}
"""Names of earlier versions without a successor, with the alternative."""


def of_config(config: str, name: str) -> Treatment:
    """Returns the treatment of the field `name` of the class called `config`."""
    own = CONFIGS[config]
    return own[name] if name in own else COMMON[name]


def fields_of(config: str) -> dict[str, Treatment]:
    """Returns the treatments of all fields of the class called `config`."""
    return {**COMMON, **CONFIGS[config]}
