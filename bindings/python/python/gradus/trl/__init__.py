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
_INSTEAD = {
    **{f"{method}{kind}": instead for method, instead in _OF_METHODS.items() for kind in ("Config", "Trainer")},
    "DatasetMixtureConfig": "import it from `trl`",
    "ModelConfig": "import it from `trl`",
    "ScriptArguments": "import it from `trl`",
    "TrlParser": "import it from `trl`; the configurations here work with it",
    "get_peft_config": "import it from `trl`",
    "get_quantization_config": "import it from `trl`",
    "rewards": "import `trl.rewards`; its functions work here",
}
"""Other names of TRL, with the alternative in gradus."""


# With this function, type checkers would accept every name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _INSTEAD:
            # `from gradus.trl import NAME` shows only the text of an `ImportError`.
            raise ImportError(f"gradus.trl has no `{name}`: {_INSTEAD[name]}", name=__name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
