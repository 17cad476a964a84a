"""Training primitives for custom training loops."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from gradus import _native
from gradus._arrays import floats, numbers, one_text, seed_of, token_ids
from gradus._errors import ConfigError
from gradus._model import sampling

Ids: TypeAlias = Any
Loss: TypeAlias = Literal["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"]


@dataclass
class Datum:
    """One training text: ids, with arrays or lists of numbers."""

    #: The ids before those to train on; at least one.
    prompt: Ids
    #: The ids to train on.
    completion: Ids
    #: A number for each id of the completion: its weight in ``cross_entropy``, its advantage in the other losses.
    weights: Any
    #: Log-probabilities of the completion under the policy that sampled it, at temperature 1, in nats. ``cross_entropy`` does not use
    #: them. For samples at another temperature, take them from :meth:`Trainer.logprobs`.
    old_logprobs: Any = field(default_factory=list)


@dataclass
class ForwardBackward:
    """Result of a forward and backward pass."""

    #: The loss, a sum over tokens.
    loss: float
    #: Log-probabilities of each completion under the policy, in nats.
    logprobs: list[Any]
    #: The number of tokens that went through the model.
    tokens: int


@dataclass
class OptimStep:
    """Result of an optimizer step."""

    #: The norm of the gradient before clipping.
    grad_norm: float
    #: The version of the policy's weights.
    version: int


@dataclass
class Sample:
    """A completion of the policy."""

    #: The token ids.
    ids: list[int]
    #: Log-probability of each id under the policy at the sampling temperature, in nats.
    logprobs: Any
    #: The same under the sampled distribution, after ``top_k``, ``top_p`` and similar.
    sampled_logprobs: Any
    #: Why the completion ended.
    stop: str


class Trainer:
    """A policy in training: weights, gradients, optimizer and tokenizer.

    Losses are sums over tokens, so a batch may be split over any number of calls of :meth:`forward_backward`.

    ``weights`` is the format of the frozen weights below an adapter. Without ``lora``, all weights are trained, in ``f32``.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        lora: Mapping[str, Any] | int | None = None,
        weights: Literal["f32", "bf16", "int8", "nf4"] = "f32",
        compute: Literal["f32", "bf16"] = "f32",
        device: str = "cpu",
        betas: tuple[float, float] = (0.9, 0.95),
        epsilon: float = 1e-12,
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        adapter = {"rank": lora} if isinstance(lora, int) else None if lora is None else dict(lora)
        if adapter is None and weights in ("bf16", "int8", "nf4"):
            raise ConfigError(
                f"`weights` is `{weights}`, but without `lora` all weights are trained, and these are held in `f32`\n"
                "hint: pass `lora=16` to train an adapter, or leave `weights` out"
            )
        self._trainer = _native.NativeTrainer(
            os.fspath(model), adapter, weights, compute, device, list(betas), epsilon, weight_decay, seed_of(seed)
        )

    @property
    def version(self) -> int:
        """The version of the policy's weights. It increases with every :meth:`optim_step`."""
        return self._trainer.version

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text."""
        return self._trainer.encode(one_text(text), add_special_tokens)

    def decode(self, ids: Ids, *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        return self._trainer.decode(token_ids(ids, "`ids`"), skip_special_tokens)

    def forward_backward(
        self,
        data: Sequence[Datum],
        loss: Loss,
        *,
        low: float | None = None,
        high: float | None = None,
        beta: float = 0.05,
    ) -> ForwardBackward:
        """Add the gradient of the loss of ``data`` to the gradients of earlier calls.

        ``low`` and ``high`` bound the ratio of ``ppo`` (default 0.8 and 1.2) and of ``cispo`` (default 0 and 4). ``beta`` is the weight of
        the penalty of ``dro``. The defaults are those of Tinker. An error discards the gradients of all calls.
        """
        rows = [
            (
                token_ids(datum.prompt, f"`prompt` of datum {number}"),
                token_ids(datum.completion, f"`completion` of datum {number}"),
                numbers(datum.weights, f"`weights` of datum {number}"),
                numbers(datum.old_logprobs, f"`old_logprobs` of datum {number}"),
            )
            for number, datum in enumerate(data, 1)
        ]
        value, logprobs, tokens = self._trainer.forward_backward(rows, loss, low, high, beta)
        return ForwardBackward(value, [floats(one) for one in logprobs], tokens)

    def optim_step(self, learning_rate: float, *, max_grad_norm: float = 1.0) -> OptimStep:
        """Update the weights with the summed gradients, and reset the gradients. A ``max_grad_norm`` of 0 disables clipping.

        A step without a gradient, or with a negative or infinite number, raises :class:`gradus.InputError`. A gradient that is NaN or
        infinite raises :class:`gradus.DivergedError` and is discarded. Neither changes the weights.
        """
        return OptimStep(*self._trainer.optim_step(learning_rate, max_grad_norm))

    def logprobs(self, prompts: Sequence[Ids], completions: Sequence[Ids]) -> list[Any]:
        """Return the log-probabilities of each completion after its prompt under the current policy, in nats."""
        if len(prompts) != len(completions):
            raise ValueError(f"there are {len(prompts)} prompts, but {len(completions)} completions")
        rows = [
            (token_ids(prompt, f"prompt {number}"), token_ids(completion, f"completion {number}"))
            for number, (prompt, completion) in enumerate(zip(prompts, completions), 1)
        ]
        return [floats(one) for one in self._trainer.logprobs(rows)]

    def sample(self, prompts: Sequence[Ids], *, group_size: int = 1, seed: int = 0, **params: Any) -> list[Sample]:
        """Return ``group_size`` completions of each prompt under the current policy. ``params`` as for :meth:`gradus.Model.generate`,
        except ``stop``: ``stop_ids`` end a completion.
        """
        if "stop" in params:
            raise TypeError("unknown argument `stop`: completions are ids here, and `stop_ids` end them")
        if group_size < 1:
            raise ValueError(f"`group_size` is {group_size}, but must be at least 1")
        given = [token_ids(prompt, f"prompt {number}") for number, prompt in enumerate(prompts, 1)]
        found = self._trainer.sample(given, group_size, sampling(params), seed_of(seed))
        return [
            Sample(one["completion_ids"], floats(one["logprobs"]), floats(one["sampled_logprobs"]), one["stop"])
            for one in found
        ]

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the policy as a Hugging Face directory with its tokenizer. An adapter is written in peft's format.

        This replaces an earlier model in the directory. A directory with other files, or a file, raises
        :class:`gradus.InputError`.
        """
        self._trainer.save(os.fspath(directory))
