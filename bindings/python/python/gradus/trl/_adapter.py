"""Converts objects of peft and bitsandbytes to keys of gradus. Only their attributes are read; neither package is imported here."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gradus.trl._check import error, means, plain, shown

_READ: Final = ("r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora", "use_dora")
"""Attributes that become keys."""

_NEUTRAL: Final = (
    "task_type",
    "peft_type",
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "inference_mode",
    "megatron_core",
    "qalora_group_size",
    "runtime_config",
    # It follows from the model.
    "fan_in_fan_out",
)
"""Attributes that do not affect the numbers of an adapter."""


def lora_keys(config: Any, model: Any, *, drops: bool, trains_head: bool) -> dict[str, Any]:
    """Converts a `LoraConfig` of peft to keys. `drops`: whether the method uses dropout during training.

    Raises:
        ConfigError: for another kind of adapter, and for settings that gradus does not have.
    """
    kind = str(plain(getattr(config, "peft_type", None)))
    if kind != "LORA":
        raise error(
            f"`peft_config` is {shown(config)} ({kind}), but gradus trains adapters of `peft.LoraConfig`. Pass one of these."
        )
    _refuse_others(config, trains_head)
    found: dict[str, Any] = {
        "lora_rank": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": float(config.lora_dropout) if drops else 0.0,
        "lora_rank_stabilised": bool(config.use_rslora),
        "lora_dora": bool(config.use_dora),
    }
    targets = config.target_modules
    if targets is None:
        found["lora_targets"] = _usual_targets(model)
    elif isinstance(targets, str) and targets != "all-linear":
        found["lora_target_pattern"] = targets
    else:
        found["lora_targets"] = [targets] if isinstance(targets, str) else sorted(targets)
    return found


def _refuse_others(config: Any, trains_head: bool) -> None:
    try:
        usual = vars(type(config)())
    except TypeError:
        usual = {}
    for name, value in vars(config).items():
        if name.startswith("_") or name in _READ or name in _NEUTRAL or means(value, usual.get(name)):
            continue
        if name == "modules_to_save" and trains_head and set(value) <= {"score"}:
            continue  # the head of a reward model is always trained
        raise error(f"`peft_config` has `{name}={shown(value)}`, which gradus does not have. Leave it out.")


def _usual_targets(model: Any) -> list[str]:
    """Returns the layers that peft adapts by default in a model of this family."""
    kind = _model_type(model)
    try:
        usual = importlib.import_module("peft.utils.constants").TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    except ImportError:
        usual = {}
    if kind not in usual:
        raise error(
            f"`peft_config` has no `target_modules`, and which peft takes for the model type {shown(kind)} is not known. Give them, "
            "such as `target_modules='all-linear'`."
        )
    return sorted(usual[kind])


def _model_type(model: Any) -> str | None:
    """Returns `model_type` of a directory, a run, a hub name or an object; `None` if it cannot be determined."""
    if not isinstance(model, (str, os.PathLike)):
        found = getattr(getattr(model, "config", None), "model_type", None)
        return None if found is None else str(found)
    path = os.fspath(getattr(model, "model_path", model))
    file = Path(path) / "config.json"
    if file.is_file():
        found = json.loads(file.read_text(encoding="utf-8")).get("model_type")
        return None if found is None else str(found)
    try:
        return str(importlib.import_module("transformers").AutoConfig.from_pretrained(path).model_type)
    except (ImportError, OSError, ValueError):
        return None


def quantized_weights(config: Any, has_adapter: bool) -> dict[str, Any]:
    """Converts a `BitsAndBytesConfig`, or an equivalent dict, to a key.

    Raises:
        ConfigError: for formats that gradus does not have, and without an adapter.
    """
    if config is None:
        return {}

    def get(name: str, usual: Any) -> Any:
        return config.get(name, usual) if isinstance(config, Mapping) else getattr(config, name, usual)

    method = str(plain(get("quant_method", "bitsandbytes")))
    if method != "bitsandbytes":
        raise error(
            f"`quantization_config` is of {shown(method)}, but gradus has the formats of bitsandbytes. Pass a `BitsAndBytesConfig`."
        )
    if get("load_in_4bit", False):
        form = get("bnb_4bit_quant_type", "fp4")
        if form != "nf4":
            raise error(f"`quantization_config` has `bnb_4bit_quant_type={form!r}`, but gradus has `nf4`. Set it.")
        weights = "nf4"
    elif get("load_in_8bit", False):
        weights = "int8"
    else:
        return {}
    if get("llm_int8_skip_modules", None):
        raise error(
            "`quantization_config` has `llm_int8_skip_modules`, but gradus quantizes all layers below the head. Leave it out."
        )
    if not has_adapter:
        raise error(
            "`quantization_config` is given without `peft_config`, but quantized weights are not trained. Give a `LoraConfig` too."
        )
    return {"frozen_weights": weights}
