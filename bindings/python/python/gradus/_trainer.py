"""The primitives of training, for people who write their own loop."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from gradus import _native
from gradus._arrays import floats, numbers

Ids: TypeAlias = Any
Loss: TypeAlias = Literal["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"]


@dataclass
class Datum:
    """One text to learn from: ids, and arrays or lists of numbers beside them."""

    #: The ids before those that are learned; at least one.
    prompt: Ids
    #: The ids that are learned.
    completion: Ids
    #: A number for each id of the completion: its weight in ``cross_entropy``, its advantage in the other losses.
    weights: Any
    #: Log-probabilities of the completion under the policy that sampled it, in nats; ``cross_entropy`` reads none.
    old_logprobs: Any = field(default_factory=list)


@dataclass
class ForwardBackward:
    """What a forward and backward pass found."""

    #: The loss, a sum over tokens.
    loss: float
    #: Log-probabilities of each completion under the policy, in nats.
    logprobs: list[Any]
    #: Tokens that went through the model.
    tokens: int


@dataclass
class OptimStep:
    """What an optimizer step did."""

    #: The norm of the gradient before it was clipped.
    grad_norm: float
    #: Which weights the policy has now.
    version: int


@dataclass
class Sample:
    """A completion of the policy."""

    #: Its ids.
    ids: list[int]
    #: Log-probability of each id under the policy at the sampling temperature, in nats.
    logprobs: Any
    #: The same under what was drawn from, after ``top_k``, ``top_p`` and the like.
    sampled_logprobs: Any
    #: Why it ended.
    stop: str


class Trainer:
    """A policy in training: weights, gradients, optimizer and tokenizer.

    Losses are sums over tokens, so a batch may be split over any number of calls of :meth:`forward_backward`.
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
        self._trainer = _native.NativeTrainer(
            os.fspath(model), adapter, weights, compute, device, list(betas), epsilon, weight_decay, seed
        )

    @property
    def version(self) -> int:
        """Which weights the policy has: it grows with every :meth:`optim_step`."""
        return self._trainer.version

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text."""
        return self._trainer.encode(text, add_special_tokens)

    def decode(self, ids: Ids, *, skip_special_tokens: bool = True) -> str:
        """The text of ids."""
        return self._trainer.decode(numbers(ids), skip_special_tokens)

    def forward_backward(
        self, data: Sequence[Datum], loss: Loss, *, low: float = 0.8, high: float = 1.2, beta: float = 0.05
    ) -> ForwardBackward:
        """Add the gradient of the loss of ``data`` to those of earlier calls.

        ``low`` and ``high`` bound the ratio of ``ppo``, ``high`` that of ``cispo``. ``beta`` weighs the penalty of ``dro``. On an error no
        gradient of any call is left.
        """
        rows = [
            (numbers(datum.prompt), numbers(datum.completion), numbers(datum.weights), numbers(datum.old_logprobs))
            for datum in data
        ]
        value, logprobs, tokens = self._trainer.forward_backward(rows, loss, low, high, beta)
        return ForwardBackward(value, [floats(one) for one in logprobs], tokens)

    def optim_step(self, learning_rate: float, *, max_grad_norm: float = 1.0) -> OptimStep:
        """Move the weights by the gradients that were added up, and forget those. A ``max_grad_norm`` of 0 does not clip."""
        return OptimStep(*self._trainer.optim_step(learning_rate, max_grad_norm))

    def logprobs(self, prompts: Sequence[Ids], completions: Sequence[Ids]) -> list[Any]:
        """Log-probabilities of each completion after its prompt under the policy as it is now, in nats."""
        if len(prompts) != len(completions):
            raise ValueError(f"there are {len(prompts)} prompts, but {len(completions)} completions")
        rows = [(numbers(prompt), numbers(completion)) for prompt, completion in zip(prompts, completions)]
        return [floats(one) for one in self._trainer.logprobs(rows)]

    def sample(self, prompts: Sequence[Ids], *, group_size: int = 1, seed: int = 0, **params: Any) -> list[Sample]:
        """``group_size`` completions of each prompt by the policy as it is now. ``params`` are those of :meth:`gradus.Model.generate`."""
        if group_size < 1:
            raise ValueError(f"`group_size` is {group_size}, but must be at least 1")
        found = self._trainer.sample([numbers(prompt) for prompt in prompts], group_size, params, seed)
        return [
            Sample(one["completion_ids"], floats(one["logprobs"]), floats(one["sampled_logprobs"]), one["stop"])
            for one in found
        ]

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the policy as a Hugging Face directory, with its tokenizer; an adapter as peft writes it."""
        self._trainer.save(os.fspath(directory))
