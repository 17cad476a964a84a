"""The trainers of TRL, run by gradus.

A script for TRL needs another import and nothing else::

    from gradus.trl import GRPOConfig, GRPOTrainer  # was: from trl import GRPOConfig, GRPOTrainer

Every argument of TRL 1.16's trainers and configurations is either honored, or has no effect on results here, or is refused with
what to do instead. docs/trl.md lists them all. Neither TRL nor PyTorch is loaded.
"""

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
