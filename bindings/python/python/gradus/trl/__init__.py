"""The trainers of TRL, run by gradus.

A script for TRL only needs another import::

    from gradus.trl import GRPOConfig, GRPOTrainer  # was: from trl import GRPOConfig, GRPOTrainer

Every argument of TRL 1.16's trainers and configurations is honored, has no effect on results here, or is rejected with a
hint. docs/trl.md lists them all. Neither TRL nor PyTorch is loaded.
"""

from typing import TYPE_CHECKING, Any

from gradus.trl._configs import DPOConfig, GRPOConfig, KTOConfig, RewardConfig, RLOOConfig, SFTConfig
from gradus.trl._state import TrainerControl, TrainerState, TrainOutput
from gradus.trl._trainers import DPOTrainer, GRPOTrainer, KTOTrainer, RewardTrainer, RLOOTrainer, SFTTrainer

__all__ = [
    "DPOConfig",
    "DPOTrainer",
    "GRPOConfig",
    "GRPOTrainer",
    "KTOConfig",
    "KTOTrainer",
    "RLOOConfig",
    "RLOOTrainer",
    "RewardConfig",
    "RewardTrainer",
    "SFTConfig",
    "SFTTrainer",
    "TrainOutput",
    "TrainerControl",
    "TrainerState",
]

_DISTILLATION = "call `gradus.distill`, which trains a student to imitate a teacher"
_SAMPLES = "gradus does not have this method; `GRPOTrainer`, `RLOOTrainer` and `gradus.ppo` train on sampled completions"
_OF_METHODS = {
    "AlignProp": "gradus trains language models only",
    "BCO": "call `gradus.kto`, or `gradus.dpo` with `loss_type=\"bco_pair\"`",
    "CPO": "call `gradus.cpo`, or `gradus.simpo` for SimPO",
    "DDPO": "gradus trains language models only",
    "Distillation": _DISTILLATION,
    "GKD": _DISTILLATION,
    "IterativeSFT": "call `gradus.sft`",
    "NashMD": _SAMPLES,
    "ORPO": "call `gradus.orpo`",
    "OnlineDPO": _SAMPLES,
    "PPO": "call `gradus.ppo`",
    "PRM": "call `gradus.classify` with a label for each token",
    "XPO": _SAMPLES,
}
"""Methods of TRL, also of earlier versions and of `trl.experimental`, that have no trainer here."""
_VALUE_HEAD = "pass the directory or hub name of the model to `gradus.ppo`, which adds the value head itself"
_TEMPLATE = "set `chat_template_path` of `SFTConfig`"
_OF_TRL = (
    "DatasetMixtureConfig",
    "ModelConfig",
    "ScriptArguments",
    "apply_chat_template",
    "extract_prompt",
    "get_dataset",
    "get_peft_config",
    "get_quantization_config",
    "init_zero_verbose",
    "is_conversational",
    "is_conversational_from_value",
    "maybe_apply_chat_template",
    "maybe_convert_to_chatml",
    "maybe_extract_prompt",
    "maybe_unpair_preference_dataset",
    "pack_dataset",
    "unpair_preference_dataset",
)
"""Names of TRL 1.16 that also serve scripts for gradus."""
_INSTEAD = {
    **{f"{method}{kind}": instead for method, instead in _OF_METHODS.items() for kind in ("Config", "Trainer")},
    **dict.fromkeys(_OF_TRL, "import it from `trl`"),
    "AutoModelForCausalLMWithValueHead": _VALUE_HEAD,
    "AutoModelForSeq2SeqLMWithValueHead": _VALUE_HEAD,
    "BestOfNSampler": "sample with `model.generate([prompt], group_size=n)`, and rate the completions with `gradus.score`",
    "ConstantLengthDataset": "set `packing` of `SFTConfig`",
    "DataCollatorForCompletionOnlyLM": "train on rows with `prompt` and `completion`, and set `completion_only_loss` of `SFTConfig`",
    "LogCompletionsCallback": "set `log_completions` of `GRPOConfig` or `RLOOConfig`",
    "RichProgressCallback": "leave it out: gradus shows the progress itself",
    "SyncRefModelCallback": "set `sync_ref_model` in the configuration of the trainer",
    "TextEnvironment": "pass `tools` or `environment_factory` to `GRPOTrainer`",
    "TrlParser": "import it from `trl`; the configurations here work with it",
    "clone_chat_template": _TEMPLATE,
    "create_reference_model": "leave out `ref_model`: the reference is the model that training starts from",
    "get_kbit_device_map": "leave it out: gradus places the model itself",
    "rewards": "import `trl.rewards`; its functions work here",
    "setup_chat_format": _TEMPLATE,
    "truncate_dataset": "set `max_length` in the configuration of the trainer",
}
"""Other names of TRL, also of earlier versions, with the alternative in gradus."""


# With this function, type checkers would accept every name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _INSTEAD:
            # `from gradus.trl import NAME` shows only the text of an `ImportError`.
            raise ImportError(f"gradus.trl has no `{name}`: {_INSTEAD[name]}", name=__name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
