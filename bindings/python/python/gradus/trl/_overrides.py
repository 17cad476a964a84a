"""Methods of TRL's trainers that gradus never calls. A class that defines one is refused, because it would train without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gradus.trl._check import error

_LOOP = "write your own loop with `gradus.Trainer` (docs/python.md)"
_LOSS = f"choose `loss_type` and the other fields of the loss, or {_LOOP}"
_OPTIMIZER = "set `optim`, `learning_rate`, `lr_scheduler_type` and `max_grad_norm`"
_LOG = "use a callback with `on_log`"
_EVALUATION = "use a callback with `on_evaluate`, or measure with `gradus.evaluate(model, data, metrics=[...])` after training"
_SAVING = "set `save_strategy` and `save_steps`, and save other files after `train()`"
_ROWS = "change the rows of `train_dataset` and `eval_dataset`; `train_sampling_strategy` sets their order"
_COMPLETIONS = "use `reward_funcs`, `tools` or `environment_factory`"
_MACHINE = "leave it out: gradus sets up the machine itself"
_STATE = "use a callback with `on_step_end`, which gets the state of the run"
_HUB = "leave it out: gradus uploads nothing"


def _all(instead: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), instead)


_SHARED: Final[Mapping[str, str]] = {
    **_all(
        _LOOP,
        "training_step _inner_training_loop _run_epoch _finalize_training _prepare_for_training _init_training_state "
        "set_initial_training_values get_batch_samples _get_num_items_in_batch get_total_train_batch_size _update_auto_batch_size",
    ),
    **_all(_LOSS, "compute_loss compute_loss_context_manager autocast_smart_context_manager"),
    **_all(
        _OPTIMIZER,
        "create_optimizer create_optimizer_and_scheduler create_scheduler get_optimizer_cls_and_kwargs get_optimizer_group "
        "get_decay_parameter_names get_learning_rates _get_learning_rate _clip_grad_norm _get_grad_norm _mixed_mesh_grad_norm "
        "_has_mixed_mesh_grads",
    ),
    **_all(_LOG, "log _maybe_log_save_evaluate metrics_format"),
    **_all(_EVALUATION, "_evaluate evaluation_loop prediction_step _determine_best_metric"),
    **_all(
        _SAVING,
        "_save _save_checkpoint _save_optimizer_and_scheduler _save_rng_state _save_scaler _load_from_checkpoint "
        "_load_best_model _load_callback_state _load_optimizer_and_scheduler _load_rng_state _load_scaler _issue_warnings_after_load "
        "_get_output_dir",
    ),
    **_all(
        _ROWS,
        "get_train_dataloader get_eval_dataloader get_test_dataloader _get_dataloader _get_train_sampler _get_eval_sampler "
        "_get_collator_with_removed_columns _remove_unused_columns _set_signature_columns_if_needed _prepare_input _prepare_inputs "
        "num_examples",
    ),
    **_all(
        _MACHINE,
        "_build_accelerator_args create_accelerator_and_postprocess _defer_fsdp_gradient_reduction _move_model_to_device "
        "_prepare_context_parallel_inputs _sync_replicated_trainable_parameters _wrap_model _validate_args get_cp_size get_sp_size "
        "get_tp_size call_model_init",
    ),
    **_all(_STATE, "_track_num_input_tokens floating_point_ops store_flos get_num_trainable_parameters"),
    **_all(_HUB, "_finish_current_push _push_from_checkpoint init_hf_repo end _send_telemetry"),
    **_all(
        "use the command `gradus sweep`", "hyperparameter_search _hp_search_setup _report_to_hp_search _tune_save_checkpoint"
    ),
}
_PREPARES: Final = _all(_ROWS, "_prepare_dataset")
_REFERENCE: Final = _all(_LOSS, "_compute_loss _precompute_ref_logps compute_ref_log_probs")
_SAMPLES: Final = {
    **_all(_LOSS, "_compute_loss _get_per_token_logps_and_entropies"),
    **_all(
        _COMPLETIONS,
        "_calculate_rewards _generate _generate_and_score_completions _generate_single_turn _tokenize_prompts",
    ),
    **_all("use `log_extra` and `log_metric`, which reward functions get", "_log_completion_extra _log_metric"),
}

NOT_CALLED: Final[Mapping[str, Mapping[str, str]]] = {
    "SFTTrainer": {**_SHARED, **_PREPARES, **_all(_ROWS, "_reject_skip_prepare_without_labels")},
    "DPOTrainer": {**_SHARED, **_PREPARES, **_REFERENCE},
    "GRPOTrainer": {
        **_SHARED,
        **_SAMPLES,
        **_all(_COMPLETIONS, "_get_tool_suffix_ids _tool_call_loop"),
        **_all(_LOSS, "get_gamma_weights get_high_entropy_mask get_off_policy_mask"),
    },
    "KTOTrainer": {**_SHARED, **_PREPARES, **_REFERENCE, **_all(_LOSS, "_compute_kl_logps")},
    "RLOOTrainer": {**_SHARED, **_SAMPLES},
    "RewardTrainer": {**_SHARED, **_PREPARES},
}
"""For each trainer, the methods of TRL that the trainer of gradus does not have, with the alternative."""

_EARLIER_TRAINER: Final = {
    **_all(_EVALUATION, "prediction_loop"),
    **_all(_SAVING, "_rotate_checkpoints _sorted_checkpoints"),
}
_EARLIER_REFERENCE: Final = {
    **_EARLIER_TRAINER,
    **_all(
        _LOSS,
        "_compute_loss_liger compute_reference_log_probs get_batch_logps get_batch_loss_metrics null_ref_context",
    ),
    **_all(_EVALUATION, "generate_from_model_and_ref"),
    **_all(_LOG, "store_metrics"),
}
EARLIER: Final[Mapping[str, Mapping[str, str]]] = {
    "SFTTrainer": {**_EARLIER_TRAINER, **_all(_ROWS, "_prepare_non_packed_dataloader _prepare_packed_dataloader")},
    "DPOTrainer": {
        **_EARLIER_REFERENCE,
        **_all(_LOSS, "concatenated_forward concatenated_inputs dpo_loss"),
        **_all(_ROWS, "build_tokenized_answer process_row tokenize_row"),
    },
    "GRPOTrainer": {
        **_EARLIER_TRAINER,
        **_all(_LOSS, "_get_last_hidden_state _get_per_token_logps compute_liger_loss"),
        **_all(_COMPLETIONS, "_move_model_to_vllm"),
    },
    "KTOTrainer": {**_EARLIER_REFERENCE, **_all(_LOSS, "bco_loss forward kto_loss")},
    "RLOOTrainer": {
        **_EARLIER_TRAINER,
        **_all(_COMPLETIONS, "_move_model_to_vllm"),
        **_all(_EVALUATION, "generate_completions"),
    },
    "RewardTrainer": {**_EARLIER_TRAINER, **_all(_EVALUATION, "visualize_samples")},
}
"""Methods of the same trainers in earlier versions of TRL and transformers, which scripts override to change training."""


def notes(cls: type, *, evaluates: Callable[..., Any] | None, saves: Callable[..., Any] | None) -> list[str]:
    """Returns a warning for each method that `cls` replaces for scripts, and that TRL also calls during training.

    `evaluates` and `saves` are the methods `evaluate` and `save_model` of gradus, or `None` if TRL does not call them in this run.
    """
    called = {"evaluate": (evaluates, _EVALUATION), "save_model": (saves, _SAVING)}
    return [
        f"`{cls.__name__}` defines `{name}`. TRL also calls it during training, and gradus only where the script calls it. Instead, {instead}"
        for name, (ours, instead) in called.items()
        if ours is not None and getattr(cls, name) is not ours
    ]


def refuse(trainer: str, owner: str, names: Iterable[str]) -> None:
    """Raises for the first of `names` that is a method of TRL's `trainer` and that gradus does not call.

    Raises:
        ConfigError: with the method and the alternative.
    """
    for name in names:
        for who, methods in (("TRL calls", NOT_CALLED[trainer]), ("earlier versions of TRL call", EARLIER[trainer])):
            if name in methods:
                raise error(
                    f"`{owner}` defines `{name}`, which {who} and gradus never calls: the run would train without it. "
                    f"Remove it. Instead, {methods[name]}."
                )


def refuse_class(trainer: str, cls: type, last: type) -> None:
    """Raises for such a method in `cls`, or in a class that it inherits from, up to `last`.

    `last` is the base class of all trainers of gradus. A trainer of gradus has no such method itself, so it was patched by the script.

    Raises:
        ConfigError: as `refuse`.
    """
    # The methods of later classes are not called in TRL either.
    for one in cls.__mro__[: cls.__mro__.index(last) + 1]:
        refuse(trainer, one.__name__, vars(one))
