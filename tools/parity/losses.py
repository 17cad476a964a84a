"""Losses, advantages, whitening, schedules, optimizer steps: inputs, values and gradients.

TRL's own `compute_loss` computes the SFT, reward, DPO and GRPO losses. The trainer object is created without its
constructor, and its model returns the numbers of the fixture. This script contains only the parts that TRL 1.16 no longer has
(PPO, KL controllers), from the formulas of TRL <= 1.12.

Inputs are float32 values. Everything is then computed in float64, so the results have no additional rounding.
Rows are lists of different lengths: the files contain no padding.
"""

import inspect
import itertools
import math
import textwrap
import types
from collections import defaultdict

from common import arguments, meta, write_json

import torch
from torch.nn.functional import logsigmoid
from transformers import TrainingArguments, get_scheduler
from trl import DPOTrainer, GRPOTrainer, KTOTrainer, RewardTrainer, RLOOTrainer, SFTTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.gkd import GKDTrainer
from trl.experimental.orpo import ORPOTrainer
from trl.experimental.server_distillation.server_distillation_trainer import ServerDistillationTrainer
from trl.trainer.utils import FusedCausalLMOutput, add_fused_lm_head

SEED = 7
DOUBLE = torch.float64


class Accelerator:
    """One process: gathering returns its input."""

    parallelism_config = None
    num_processes = 1
    process_index = 0
    sync_gradients = True
    device = torch.device("cpu")

    def gather(self, x):
        return x

    gather_for_metrics = gather

    def reduce(self, x, reduction="sum"):
        return x

    def pad_across_processes(self, x, **_):
        return x

    def unwrap_model(self, x):
        return x


def bare(trainer, **fields):
    """A trainer without its constructor: only the fields that its loss reads."""
    self = object.__new__(trainer)
    metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    model = torch.nn.Module()
    model.is_gradient_checkpointing = False
    defaults = dict(model=model, accelerator=Accelerator(), _metrics=metrics,
                    _total_train_tokens=0, _tp_size=1, aux_loss_enabled=False, current_gradient_accumulation_steps=1)
    self.__dict__.update({**defaults, **fields})
    return self


def namespace(**fields):
    return types.SimpleNamespace(**fields)


def single(rows):
    """Rounds to float32 and continues in float64."""
    return [torch.tensor(row, dtype=torch.float32).to(DOUBLE).tolist() for row in rows]


def padded(rows, fill=0.0, dtype=DOUBLE):
    width = max(1, max(map(len, rows)))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], dtype=dtype)


def ragged(tensor, rows):
    return [values[: len(row)].tolist() for values, row in zip(tensor, rows)]


def lengths_mask(rows):
    return padded([[1] * len(row) for row in rows], 0, torch.long)


def random_rows(lengths, low, high, generator):
    return [(low + (high - low) * torch.rand(n, generator=generator, dtype=torch.float32)).to(DOUBLE).tolist() for n in lengths]


def metrics_of(trainer):
    return {key: values[-1] for key, values in trainer._metrics["train"].items()}


def result(name, options, loss, gradients, trainer=None):
    entry = {"name": name, "options": options, "loss": loss.item(), "grad": gradients}
    if trainer is not None:
        entry["metrics"] = metrics_of(trainer)
    return entry


# ---------------------------------------------------------------------------------------------------------------- SFT


def sft():
    generator = torch.Generator().manual_seed(SEED)
    lengths = (4, 1, 6, 3)
    logprobs = random_rows(lengths, -5.0, -0.05, generator)
    entropies = random_rows(lengths, 0.1, 3.0, generator)
    correct = [[bool(x > -1.2) for x in row] for row in logprobs]
    everything = [[1] * n for n in lengths]
    some = [[0, 1, 1, 0], [1], [0, 0, 0, 1, 1, 1], [0, 0, 0]]
    nothing = [[0] * n for n in lengths]

    def case(name, mask, rows=slice(None), loss_type="nll", tokens_of_step=None):
        taken = logprobs[rows]
        lp = padded(taken).requires_grad_()
        label_mask = padded(mask[rows], 0, torch.long).bool()

        def model(**inputs):
            keep = lambda x: x.masked_fill(~label_mask, 0)  # noqa: E731
            return FusedCausalLMOutput(log_probs=keep(lp), entropy=keep(padded(entropies[rows])), label_mask=label_mask,
                                       is_top1=keep(padded(correct[rows], False, torch.bool)))

        trainer = bare(SFTTrainer, compute_loss_func=None, label_smoother=None,
                       args=namespace(loss_type=loss_type, average_tokens_across_devices=False))
        count = None if tokens_of_step is None else torch.tensor(tokens_of_step)
        loss = trainer.compute_loss(model, {"attention_mask": lengths_mask(taken)}, num_items_in_batch=count)
        loss.backward()
        options = {"loss_type": loss_type, "tokens_of_step": tokens_of_step}
        entry = result(name, options, loss, ragged(lp.grad, taken), trainer)
        return {**entry, "rows": list(range(len(logprobs)))[rows], "mask": mask[rows]}

    step = sum(map(sum, some))
    cases = [
        case("all_tokens", everything),
        case("masked", some),
        case("dft", some, loss_type="dft"),
        case("first_micro_batch", some, slice(0, 2), tokens_of_step=step),
        case("second_micro_batch", some, slice(2, 4), tokens_of_step=step),
        case("nothing_counts", nothing),
    ]
    inputs = {"logprobs": logprobs, "entropies": entropies, "correct": correct}
    note = "logprobs are those of the target tokens; metrics entropy and mean_token_accuracy count masked-in targets"
    return {"note": note, "inputs": inputs, "cases": cases}


def head():
    """Log-probability and entropy of target tokens from hidden states, as TRL's fused head computes them."""
    generator = torch.Generator().manual_seed(SEED + 1)
    n, d, vocab = 6, 5, 11
    hidden = torch.randn(n, d, generator=generator)
    weight = torch.randn(vocab, d, generator=generator)
    targets = torch.randint(0, vocab, (n,), generator=generator)
    gains = torch.randn(2, n, generator=generator)
    cases = []
    for temperature in (1.0, 0.7, 1.5):
        states = hidden.to(DOUBLE).requires_grad_()
        linear = torch.nn.Linear(d, vocab, bias=False, dtype=DOUBLE)
        linear.weight.data.copy_(weight)

        class Fake(torch.nn.Module):
            config = namespace(get_text_config=lambda: namespace(), model_type="fake")

            def __init__(self):
                super().__init__()
                self.lm_head = linear
                self.base_model = lambda *a, **k: namespace(last_hidden_state=states[None])

            def forward(self):
                raise AssertionError("the fused head must replace this call")

            def get_output_embeddings(self):
                return linear

        model = Fake()
        add_fused_lm_head(model, temperature=temperature, outputs=("log_probs", "entropy", "is_top1"))
        out = model(shift_labels=targets[None], fused_lm_head=True)
        value = (out.log_probs[0] * gains[0]).sum() + (out.entropy[0] * gains[1]).sum()
        value.backward()
        # TRL's backward pass uses float32 inside. The file contains autograd's result through log_softmax, after a comparison of both.
        h, w = hidden.to(DOUBLE).requires_grad_(), weight.to(DOUBLE).requires_grad_()
        logp = torch.log_softmax(h @ w.T / temperature, -1)
        entropy = -(logp.exp() * logp).sum(-1)
        chosen = logp.gather(1, targets[:, None])[:, 0]
        ((chosen * gains[0]).sum() + (entropy * gains[1]).sum()).backward()
        for ours, theirs in ((chosen, out.log_probs[0]), (entropy, out.entropy[0]), (h.grad, states.grad),
                             (w.grad, linear.weight.grad)):
            torch.testing.assert_close(theirs.to(DOUBLE), ours, rtol=1e-5, atol=1e-5)
        cases.append({"temperature": temperature, "logprobs": chosen, "entropies": entropy, "correct": out.is_top1[0],
                      "grad_hidden": h.grad, "grad_weight": w.grad})
    note = "grad_* are gradients of sum(gains[0] * logprobs) + sum(gains[1] * entropies)"
    inputs = {"hidden": hidden, "weight": weight, "targets": targets, "gains": gains}
    return {"note": note, "inputs": inputs, "cases": cases}


# ------------------------------------------------------------------------------------------------------------- reward


def reward():
    chosen, rejected, margins = single([[1.0, 0.5, -2.0, 3.25, 0.1], [0.2, 0.7, -2.0, -4.5, 0.3], [0.0, 0.5, 1.0, 2.0, 0.25]])
    cases = []
    for name, margin, centering in (("plain", False, None), ("margin", True, None), ("centering", False, 0.01),
                                    ("margin_and_centering", True, 0.1)):
        scores = torch.tensor(chosen + rejected, dtype=DOUBLE).requires_grad_()
        trainer = bare(RewardTrainer, args=namespace(center_rewards_coefficient=centering))
        inputs = {"attention_mask": torch.ones(10, 3, dtype=torch.long)}
        if margin:
            inputs["margin"] = torch.tensor(margins, dtype=DOUBLE)
        loss = trainer.compute_loss(lambda **_: namespace(logits=scores[:, None]), inputs)
        loss.backward()
        half = len(chosen)
        gradients = {"chosen": scores.grad[:half], "rejected": scores.grad[half:]}
        cases.append(result(name, {"margin": margin, "centering": centering}, loss, gradients, trainer))
    return {"inputs": {"chosen": chosen, "rejected": rejected, "margins": margins}, "cases": cases}


# ---------------------------------------------------------------------------------------------------------------- DPO

DPO_LOSSES = ("sigmoid", "hinge", "ipo", "exo_pair", "robust", "discopop", "sigmoid_norm", "sft", "nca_pair", "bco_pair",
              "sppo_hard", "apo_zero", "apo_down", "aot", "aot_unpaired")


def dpo():
    generator = torch.Generator().manual_seed(SEED + 2)
    chosen = random_rows((3, 4, 1), -2.5, -0.05, generator)
    rejected = random_rows((2, 3, 6), -2.5, -0.05, generator)
    ref_chosen = random_rows((3, 4, 1), -2.5, -0.05, generator)
    ref_rejected = random_rows((2, 3, 6), -2.5, -0.05, generator)
    rows, ref_rows = chosen + rejected, ref_chosen + ref_rejected
    # log Σ p² of each token's distribution: at least that of its own probability, at most 0.
    log_sum_sq_probs = [[x * (0.4 + 0.3 * y) for x, y in zip(row, share)]
                        for row, share in zip(rows, random_rows(map(len, rows), 0.0, 1.0, generator))]
    log_sum_sq_probs = single(log_sum_sq_probs)

    def case(name, loss_types, beta=0.1, weights=None, smoothing=0.0, ld_alpha=None, divergence="reverse_kl", coef=0.5,
             tau=0.05, weighting=False):
        # TRL's α-divergence does not support float64.
        dtype = torch.float32 if divergence == "alpha_divergence" else DOUBLE
        lp = padded(rows, dtype=dtype).requires_grad_()
        mask = lengths_mask(rows)
        zero = torch.zeros_like(lp)

        def outputs(x):
            return FusedCausalLMOutput(log_probs=x, entropy=zero, mean_logits=zero, is_top1=zero.bool(),
                                       log_sum_sq_probs=padded(log_sum_sq_probs, dtype=dtype))

        # One prompt token at the start, because TRL drops the first column when it shifts.
        front = lambda x, value: torch.cat([torch.full((len(rows), 1), value), x], 1)  # noqa: E731
        inputs = {"input_ids": front(mask * 5, 5), "attention_mask": front(mask, 1), "completion_mask": front(mask, 0)}
        trainer = bare(DPOTrainer, beta=beta, ld_alpha=ld_alpha, precompute_ref_logps=False, f_divergence_type=divergence,
                       f_alpha_divergence_coef=coef, loss_types=loss_types, loss_weights=weights or [1.0] * len(loss_types),
                       label_smoothing=smoothing, use_weighting=weighting,
                       ref_model=lambda **_: outputs(padded(ref_rows, dtype=dtype)),
                       args=namespace(discopop_tau=tau, gradient_checkpointing_kwargs=None))
        loss = trainer._compute_loss(lambda **_: outputs(lp), inputs, False)
        loss.backward()
        half = len(chosen)
        gradients = {"chosen": ragged(lp.grad[:half], chosen), "rejected": ragged(lp.grad[half:], rejected)}
        options = {"loss_type": loss_types, "beta": beta}
        given = {"loss_weights": (weights, None), "label_smoothing": (smoothing, 0.0), "ld_alpha": (ld_alpha, None),
                 "f_divergence_type": (divergence, "reverse_kl"), "f_alpha_divergence_coef": (coef, 0.5),
                 "discopop_tau": (tau, 0.05), "use_weighting": (weighting, False)}
        options.update({key: value for key, (value, default) in given.items() if value != default})
        entry = result(name, options, loss, gradients, trainer)
        for key in ("entropy", "num_tokens", "logits/chosen", "logits/rejected", "mean_token_accuracy"):
            del entry["metrics"][key]
        return entry

    cases = []
    for kind in DPO_LOSSES:
        smoothing = 0.1 if kind in ("exo_pair", "robust", "aot", "aot_unpaired") else 0.0
        cases.append(case(kind, [kind], smoothing=smoothing))
    for kind in ("sigmoid", "hinge", "ipo"):
        cases.append(case(f"{kind}_beta_0.5", [kind], 0.5))
    for kind in ("robust", "aot", "aot_unpaired"):
        cases.append(case(f"{kind}_without_smoothing", [kind], 0.5))
    cases.append(case("discopop_tau_0.5", ["discopop"], 0.5, tau=0.5))

    cases.append(case("mpo", ["sigmoid", "bco_pair", "sft"], weights=[0.8, 0.2, 1.0]))
    cases.append(case("sigmoid_and_sft", ["sigmoid", "sft"]))
    cases.append(case("three_with_smoothing", ["exo_pair", "aot_unpaired", "ipo"], 0.3, weights=[0.5, 2.0, 0.01], smoothing=0.05))
    # TRL has no smoothing in `sigmoid`, gradus does: `cdpo` below.
    rest = [kind for kind in DPO_LOSSES if kind != "sigmoid"]
    cases.append(case("all_but_sigmoid", rest, 0.2, weights=[0.1 * (i + 1) for i in range(len(rest))], smoothing=0.02,
                      ld_alpha=0.7))

    for alpha in (0.0, 0.5, 1.0):
        cases.append(case(f"sigmoid_ld_alpha_{alpha}", ["sigmoid"], ld_alpha=alpha))
    for kind in ("ipo", "bco_pair", "aot", "aot_unpaired"):
        cases.append(case(f"{kind}_ld_alpha_0.3", [kind], ld_alpha=0.3))

    for divergence in ("forward_kl", "js_divergence", "alpha_divergence"):
        for kind in ("sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "robust", "discopop"):
            smoothing = 0.1 if kind in ("exo_pair", "robust") else 0.0
            cases.append(case(f"{kind}_{divergence}", [kind], smoothing=smoothing, divergence=divergence))
    for coef in (0.0, 1.0, 1.5):
        cases.append(case(f"sigmoid_alpha_divergence_{coef}", ["sigmoid"], divergence="alpha_divergence", coef=coef))
    cases.append(case("sigmoid_and_sft_forward_kl_ld_alpha_0.5", ["sigmoid", "sft"], weights=[1.0, 0.25], ld_alpha=0.5,
                      divergence="forward_kl"))

    for kind in ("sigmoid", "sppo_hard"):
        cases.append(case(f"{kind}_weighted_pairs", [kind], weighting=True))
    cases.append(case("two_losses_weighted_pairs", ["sigmoid_norm", "apo_zero"], weights=[1.0, 0.5], weighting=True, ld_alpha=0.5))

    # Not in TRL: conservative DPO.
    for smoothing, beta in ((0.1, 0.1), (0.3, 0.5)):
        lp = padded(rows).requires_grad_()
        ratio = lp.sum(1) - padded(ref_rows).sum(1)
        delta = ratio[: len(chosen)] - ratio[len(chosen):]
        losses = -(1 - smoothing) * logsigmoid(beta * delta) - smoothing * logsigmoid(-beta * delta)
        losses.mean().backward()
        gradients = {"chosen": ragged(lp.grad[: len(chosen)], chosen), "rejected": ragged(lp.grad[len(chosen):], rejected)}
        options = {"loss_type": ["sigmoid"], "beta": beta, "label_smoothing": smoothing, "formula": "written out, not from TRL"}
        cases.append(result(f"cdpo_{smoothing}_beta_{beta}", options, losses.mean(), gradients))
    inputs = {"chosen": chosen, "rejected": rejected, "ref_chosen": ref_chosen, "ref_rejected": ref_rejected,
              "log_sum_sq_probs": log_sum_sq_probs}
    return {"inputs": inputs, "cases": cases}


# ------------------------------------------------------------------------------------------------- pairs without reference


def of_pairs(trainer, name, options, rows):
    """Loss, gradients and metrics of prompts with a chosen and a rejected completion, by a trainer that requests logits from a model."""
    prompts, chosen, rejected = rows
    sides = [prompts, chosen, prompts, rejected]
    leaves = [padded(side).requires_grad_() for side in sides]
    sequences = [
        torch.cat([prompt[: len(p)], completion[: len(c)]])
        for (prompt_rows, rows), (all_prompts, completions) in
        (((prompts, chosen), leaves[:2]), ((prompts, rejected), leaves[2:]))
        for p, c, prompt, completion in zip(prompt_rows, rows, all_prompts, completions)
    ]
    width = max(map(len, sequences)) + 1

    def model(*_, **__):
        # Two words, of which the first is always the target: its logits are its logprobs. The last position predicts nothing.
        rows = [torch.cat([row, torch.full((width - len(row),), -1.0, dtype=DOUBLE)]) for row in sequences]
        meant = torch.stack(rows)
        return namespace(logits=torch.stack([meant, torch.log(-torch.expm1(meant))], -1))

    def side(name, completions):
        ids = [torch.zeros(1 + len(p) + len(c), dtype=torch.long) for p, c in zip(prompts, completions)]
        labels = [torch.cat([torch.full((1 + len(p),), -100), torch.zeros(len(c), dtype=torch.long)])
                  for p, c in zip(prompts, completions)]
        pad = lambda rows, fill: torch.stack(  # noqa: E731
            [torch.cat([row, torch.full((width - len(row),), fill)]) for row in rows])
        return {f"{name}_input_ids": pad(ids, 0), f"{name}_labels": pad(labels, -100),
                f"{name}_attention_mask": pad([torch.ones_like(row) for row in ids], 0)}

    loss, metrics = trainer.get_batch_loss_metrics(model, {**side("chosen", chosen), **side("rejected", rejected)})
    loss.backward()
    gradients = {key: ragged(leaf.grad, rows) for key, leaf, rows in
                 (("prompt", leaves[0], prompts), ("chosen", leaves[1], chosen), ("rejected", leaves[3], rejected))}
    entry = result(name, options, loss, gradients)
    entry["metrics"] = {key: value for key, value in metrics.items() if not key.startswith("logits/")}
    return entry


# --------------------------------------------------------------------------------------------------------------- ORPO


def orpo():
    generator = torch.Generator().manual_seed(SEED + 20)
    prompts = random_rows((2, 3, 1), -3.0, -0.1, generator)
    chosen = random_rows((3, 4, 1), -2.5, -0.05, generator)
    rejected = random_rows((2, 3, 6), -2.5, -0.05, generator)

    def case(name, beta):
        trainer = bare(ORPOTrainer, beta=beta, is_encoder_decoder=False, padding_value=0)
        return of_pairs(trainer, name, {"beta": beta}, (prompts, chosen, rejected))

    cases = [case("default", 0.1), case("beta_1", 1.0)]
    return {"inputs": {"prompt": prompts, "chosen": chosen, "rejected": rejected}, "cases": cases}


# ---------------------------------------------------------------------------------------------------------- CPO, SimPO


def cpo():
    generator = torch.Generator().manual_seed(SEED + 21)
    rows = tuple(random_rows(lengths, -2.5, -0.05, generator) for lengths in ((2, 3, 1), (3, 4, 1), (2, 3, 6)))

    def case(name, loss_type, beta=0.1, cpo_alpha=1.0, gamma=0.5, alpha=0.0, smoothing=0.0):
        trainer = bare(CPOTrainer, beta=beta, is_encoder_decoder=False, pad_token_id=0, loss_type=loss_type,
                       cpo_alpha=cpo_alpha, simpo_gamma=gamma, alpha=alpha, label_smoothing=smoothing)
        options = {"loss_type": loss_type, "beta": beta, "cpo_alpha": cpo_alpha, "simpo_gamma": gamma, "alpha": alpha,
                   "label_smoothing": smoothing}
        return of_pairs(trainer, name, options, rows)

    cases = [case(kind, kind) for kind in ("sigmoid", "hinge", "ipo", "simpo")]
    cases += [case(f"{kind}_alpha", kind, alpha=0.25, beta=0.5) for kind in ("sigmoid", "hinge", "ipo", "simpo")]
    cases += [case(f"{kind}_smoothing", kind, smoothing=0.1, beta=1.5) for kind in ("sigmoid", "simpo")]
    cases.append(case("simpo_of_the_paper", "simpo", beta=2.0, cpo_alpha=0.0, gamma=1.0))
    cases.append(case("alphapo", "simpo", beta=2.5, cpo_alpha=0.0, gamma=0.25, alpha=-0.3))
    cases.append(case("half_likelihood", "sigmoid", cpo_alpha=0.5))
    return {"inputs": dict(zip(("prompt", "chosen", "rejected"), rows)), "cases": cases}


# ---------------------------------------------------------------------------------------------------------------- KTO


def kto():
    generator = torch.Generator().manual_seed(SEED + 22)
    lengths, other_lengths = (3, 4, 1, 6, 2), (2, 3, 4, 1, 6)
    logprobs, reference = (random_rows(lengths, -2.5, -0.05, generator) for _ in range(2))
    # The prompts with each other's completions, which are more or less probable under the policy.
    others = random_rows(other_lengths, -2.0, -0.5, generator)
    of_reference = {"above": single([[x - 0.4 for x in row] for row in others]),
                    "below": single([[x + 0.3 for x in row] for row in others])}
    labels = [True, False, True, True, False]
    OWN, OTHER = 5, 6

    def case(name, loss_type="kto", beta=0.1, weights=(1.0, 1.0), point="above", marked=labels):
        lp = padded(logprobs).requires_grad_()

        def model(own, other):
            def forward(input_ids, **_):
                rows = own if input_ids[0, 0] == OWN else padded(other)
                zero = torch.zeros_like(rows)
                return FusedCausalLMOutput(log_probs=rows, entropy=zero, mean_logits=zero, is_top1=zero.bool())

            return forward

        def side(prefix, rows, prompt):
            # One prompt token at the start, because TRL drops the first column when it shifts.
            mask = lengths_mask(rows)
            front = lambda x, value: torch.cat([torch.full((len(rows), 1), value), x], 1)  # noqa: E731
            return {f"{prefix}input_ids": front(mask * prompt, prompt), f"{prefix}attention_mask": front(mask, 1),
                    f"{prefix}completion_mask": front(mask, 0)}

        trainer = bare(KTOTrainer, beta=beta, loss_type=loss_type, calculate_KL=loss_type == "kto", precompute_ref_logps=False,
                       desirable_weight=weights[0], undesirable_weight=weights[1],
                       ref_model=model(padded(reference), of_reference[point]),
                       args=namespace(gradient_checkpointing_kwargs=None))
        batch = {**side("", logprobs, OWN), **side("KL_", others, OTHER), "label": torch.tensor(marked)}
        loss = trainer._compute_loss(model(lp, others), batch, False)
        loss.backward()
        options = {"loss_type": loss_type, "beta": beta, "desirable_weight": weights[0], "undesirable_weight": weights[1]}
        entry = result(name, options, loss, {"logprobs": ragged(lp.grad, logprobs)}, trainer)
        for key in ("entropy", "num_tokens", "logits/chosen", "logits/rejected"):
            entry["metrics"].pop(key, None)
        return {**entry, "reference_of_others": point, "labels": marked}

    cases = [case("default"), case("beta_0.5", beta=0.5), case("weights", weights=(1.33, 0.5)), case("no_kl", point="below"),
             case("apo_zero_unpaired", "apo_zero_unpaired"), case("apo_weights", "apo_zero_unpaired", 0.3, (0.5, 2.0)),
             case("all_desirable", marked=[True] * 5), case("none_desirable", marked=[False] * 5)]
    inputs = {"logprobs": logprobs, "reference": reference, "others": others, "reference_of_others": of_reference}
    return {"inputs": inputs, "cases": cases}


# ---------------------------------------------------------------------------------------------------------- distillation


def distill():
    generator = torch.Generator().manual_seed(SEED + 24)
    rows, vocabulary = 7, 11
    student, teacher = (3 * torch.randn(rows, vocabulary, generator=generator) for _ in range(2))
    cases = []
    for beta in (0.0, 0.1, 0.5, 0.9, 1.0):
        logits = student.to(DOUBLE).requires_grad_()
        labels = torch.zeros(1, rows, dtype=torch.long)
        loss = GKDTrainer.generalized_jsd_loss(logits[None], teacher.to(DOUBLE)[None], labels, beta=beta, num_items_in_batch=rows)
        loss.backward()
        cases.append(result(f"beta_{beta}", {"beta": beta}, loss, logits.grad))
    return {"inputs": {"student": student, "teacher": teacher}, "cases": cases}


def distill_top_k():
    """TRL's loss from the most probable ids of a teacher's server. The lists are those of the server."""
    generator = torch.Generator().manual_seed(SEED + 25)
    rows, vocabulary = 6, 13
    student, teacher = (3 * torch.randn(rows, vocabulary, generator=generator) for _ in range(2))
    own = torch.randint(vocabulary, (rows,), generator=generator)
    # In one row, the given id is the teacher's most probable one.
    own[2] = teacher[2].argmax()
    told = torch.log_softmax(teacher.to(DOUBLE), dim=-1).float().to(DOUBLE)
    labels = torch.zeros(1, rows, dtype=torch.long)
    cases = []
    for beta, top_k, tail in itertools.product((0.0, 0.3, 1.0), (1, 4, vocabulary), (True, False)):
        # TRL compares several ids with the forward KL only. One id without the rest gives no gradient.
        if (beta > 0 and top_k > 1) or (beta in (0.0, 1.0) and top_k == 1 and not tail):
            continue
        logits = student.to(DOUBLE).requires_grad_()
        best = told.topk(top_k, dim=-1)
        trainer = bare(ServerDistillationTrainer, beta=beta, loss_top_k=top_k, loss_add_tail=tail,
                       reverse_kl_top_1_mode="sampled")
        result_of = {"actual_logprobs": told.gather(-1, own[:, None])[None, :, 0], "topk_logprobs": best.values[None],
                     "topk_token_ids": best.indices[None]}
        logprobs = torch.log_softmax(logits, dim=-1)[None]
        if beta > 0:
            loss = trainer._compute_server_sparse_top_1_divergence_loss(result_of, logprobs, own[None], labels)
        else:
            loss = trainer._compute_server_forward_kl_loss(result_of, logprobs, labels)
        loss.backward()
        cases.append(result(f"beta_{beta}_top_{top_k}_tail_{tail}", {"beta": beta, "top_k": top_k, "add_tail": tail}, loss, logits.grad))
    return {"inputs": {"student": student, "told": told, "own": own}, "cases": cases}


# ---------------------------------------------------------------------------------------------------------- off-policy


def importance_ratios(trainer, old, sampler, mask):
    """TRL's ratios of trainer and sampler, by the lines of TRL that compute them within a longer function."""
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    used = source.index("per_token_logps_diff = ")
    begin = source.rindex("\n", 0, source.rindex("mask = completion_mask if tool_mask is None", 0, used)) + 1
    end = source.index("# Compute the per-token log probabilities for the reference model", used)
    names = {"self": trainer, "torch": torch, "math": math, "completion_mask": mask, "tool_mask": None,
             "old_per_token_logps": old, "sampling_per_token_logps": sampler}
    exec(textwrap.dedent(source[begin:source.rindex("\n", 0, end)]), names)  # noqa: S102
    return names["vllm_importance_sampling_ratio"]


def off_policy():
    generator = torch.Generator().manual_seed(SEED + 31)
    lengths = (5, 3, 4, 1, 5, 2)
    sampler = random_rows(lengths, -2.5, -0.3, generator)
    old = single([[min(a + b, -0.01) for a, b in zip(x, y)] for x, y in zip(sampler, random_rows(lengths, -0.9, 0.9, generator))])
    logprobs = single([[min(a + b, -0.01) for a, b in zip(x, y)] for x, y in zip(old, random_rows(lengths, -0.4, 0.4, generator))])
    # A token without a number from the sampler.
    sampler[2][1] = math.nan
    advantages = single([[1.25, -0.5, 0.75, -1.5, 0.0, -0.8]])[0]
    limit = 5

    def case(name, loss_type="dapo", level="token", mode="sequence_mask", high=3.0, low=None, threshold=None, corrected=True, cap=0.2):
        lp = padded(logprobs).requires_grad_()
        mask = lengths_mask(logprobs)
        trainer = bare(GRPOTrainer, top_entropy_quantile=1.0, off_policy_mask_threshold=threshold,
                       importance_sampling_level=level, beta=0.0, loss_type=loss_type, epsilon_low=0.2, epsilon_high=cap,
                       use_vllm=True, max_completion_length=limit, _entropy_bonus_enabled=False, use_adaptive_entropy=False,
                       vllm_importance_sampling_correction=corrected, vllm_importance_sampling_mode=mode,
                       vllm_importance_sampling_clip_max=high, vllm_importance_sampling_clip_min=low,
                       args=namespace(use_bias_correction_kl=True, delta=None, steps_per_generation=1, sapo_temperature_pos=1.0,
                                      sapo_temperature_neg=1.05, vespo_k_pos=2.0, vespo_lambda_pos=3.0, vespo_k_neg=3.0,
                                      vespo_lambda_neg=2.0))
        trainer._get_per_token_logps_and_entropies = lambda *a, **k: (lp, torch.zeros_like(lp), None)
        ones = torch.ones(len(lengths), 1, dtype=torch.long)
        inputs = {"prompt_ids": ones, "prompt_mask": ones, "completion_ids": mask, "completion_mask": mask,
                  "advantages": torch.tensor(advantages, dtype=DOUBLE), "num_items_in_batch": mask.sum(),
                  "old_per_token_logps": padded(old), "sampling_per_token_logps": padded(sampler)}
        ratios = None
        if corrected:
            inputs["importance_sampling_ratio"] = importance_ratios(trainer, padded(old), padded(sampler), mask)
            ratios = ragged(inputs["importance_sampling_ratio"].expand(-1, mask.shape[1]), logprobs)
        loss = trainer._compute_loss(None, inputs)
        loss.backward()
        options = {"loss_type": loss_type, "importance_sampling_level": level, "mode": mode, "clip_max": high, "clip_min": low,
                   "off_policy_mask_threshold": threshold, "corrected": corrected, "epsilon_high": cap}
        return {**result(name, options, loss, {"logprobs": ragged(lp.grad, logprobs)}), "ratios": ratios}

    modes = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    bounds = {"default": {}, "cap_1.2": dict(high=1.2), "floor_0.8": dict(high=None, low=0.8), "both": dict(high=1.5, low=0.7)}
    cases = [case(f"{mode}_{name}", mode=mode, **keys) for mode in modes for name, keys in bounds.items()]
    cases += [case("no_bound", mode="sequence_mask", high=None), case("not_corrected", corrected=False)]
    for kind in ("grpo", "bnpo", "dr_grpo", "cispo", "sapo"):
        keys = dict(cap=5.0) if kind == "cispo" else {}
        cases += [case(kind, kind, high=1.5, **keys), case(f"{kind}_tokens", kind, mode="token_truncate", high=1.5, **keys)]
    cases += [case(f"vespo_{mode}", "vespo", mode=mode, high=1.5) for mode in ("token_truncate", "token_mask")]
    cases += [case("gspo", "grpo", level="sequence", high=1.5), case("luspo", "luspo", level="sequence", high=1.5)]
    cases += [case(f"mask_{threshold}", threshold=threshold) for threshold in (0.0, 0.05, 0.3)]
    cases += [case("mask_not_corrected", threshold=0.05, corrected=False), case("mask_vespo", "vespo", mode="token_mask", threshold=0.05)]
    without_nan = [[None if math.isnan(value) else value for value in row] for row in sampler]
    return {"inputs": {"logprobs": logprobs, "old": old, "sampler": without_nan, "advantages": advantages}, "cases": cases}


# --------------------------------------------------------------------------------------------------------------- GRPO


def grpo():
    generator = torch.Generator().manual_seed(SEED + 3)
    lengths = (5, 3, 4, 1, 5, 2)
    old = random_rows(lengths, -2.5, -0.1, generator)
    shift = random_rows(lengths, -0.6, 0.6, generator)
    logprobs = single([[min(a + b, -0.01) for a, b in zip(x, y)] for x, y in zip(old, shift)])
    reference = single([[a + 0.4 * b for a, b in zip(x, y)] for x, y in zip(old, random_rows(lengths, -1.0, 1.0, generator))])
    entropies = random_rows(lengths, 0.1, 2.5, generator)
    advantages = [1.25, -0.5, 0.75, -1.5, 0.0, -0.8]
    advantages = single([advantages])[0]
    limit = 5
    truncated = [True, False, False, False, True, False]

    def case(name, loss_type, level="token", beta=0.0, bias_correction=True, delta=None, low=0.2, high=0.2, quantile=1.0,
             entropy_coef=0.0, mask_truncated=False, aligned=False):
        lp = padded(logprobs).requires_grad_()
        entropy = padded(entropies).requires_grad_()
        mask = lengths_mask(logprobs)
        if mask_truncated:
            mask = mask * (~torch.tensor(truncated)).long()[:, None]
        trainer = bare(GRPOTrainer, top_entropy_quantile=quantile, off_policy_mask_threshold=None,
                       importance_sampling_level=level, beta=beta, loss_type=loss_type, epsilon_low=low, epsilon_high=high,
                       use_vllm=False, max_completion_length=limit, _entropy_bonus_enabled=entropy_coef != 0,
                       use_adaptive_entropy=False, entropy_coef=entropy_coef, use_bias_correction_kl=bias_correction,
                       args=namespace(use_bias_correction_kl=bias_correction, delta=delta, steps_per_generation=1,
                                      sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, vespo_k_pos=2.0,
                                      vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0))
        trainer._get_per_token_logps_and_entropies = lambda *a, **k: (lp, entropy, None)
        ones = torch.ones(len(lengths), 1, dtype=torch.long)
        inputs = {"prompt_ids": ones, "prompt_mask": ones, "completion_ids": mask, "completion_mask": mask,
                  "advantages": torch.tensor(advantages, dtype=DOUBLE), "num_items_in_batch": mask.sum(),
                  "ref_per_token_logps": padded(reference)}
        if not aligned:
            inputs["old_per_token_logps"] = padded(old)
        loss = trainer._compute_loss(None, inputs)
        loss.backward()
        gradients = {"logprobs": ragged(lp.grad, logprobs)}
        if entropy_coef:
            gradients["entropies"] = ragged(entropy.grad, entropies)
        options = {"loss_type": loss_type, "importance_sampling_level": level, "beta": beta,
                   "use_bias_correction_kl": bias_correction, "delta": delta, "epsilon": low, "epsilon_high": high,
                   "top_entropy_quantile": quantile, "entropy_coef": entropy_coef,
                   "mask_truncated_completions": mask_truncated, "old_is_current": aligned,
                   "max_completion_length": limit}
        entry = result(name, options, loss, gradients, trainer)
        entry["metrics"] = {k: v for k, v in entry["metrics"].items() if not (isinstance(v, float) and math.isnan(v))}
        return entry

    variants = {
        "plain": {},
        "kl": dict(beta=0.04),
        "kl_not_corrected": dict(beta=0.04, bias_correction=False),
        "delta": dict(delta=1.3),
        "epsilon_high": dict(high=0.28),
        "mask_truncated": dict(mask_truncated=True),
        "mask_truncated_kl": dict(mask_truncated=True, beta=0.04, high=0.28),
        "sequence": dict(level="sequence"),
        "sequence_kl": dict(level="sequence", beta=0.04),
        "old_is_current": dict(aligned=True),
        "everything": dict(beta=0.1, delta=1.5, high=0.3, low=0.1, mask_truncated=True, entropy_coef=0.01),
    }
    cases = [case(f"{kind}_{name}", kind, **options)
             for kind, (name, options) in itertools.product(("grpo", "dr_grpo", "bnpo", "dapo"), variants.items())]
    cases += [case("dapo_top_entropy_0.4", "dapo", quantile=0.4), case("dapo_entropy_bonus", "dapo", entropy_coef=0.01),
              case("cispo", "cispo", high=5.0), case("sapo", "sapo"), case("vespo", "vespo"),
              case("luspo", "luspo", level="sequence")]
    cases += [case(f"{kind}_top_entropy_{quantile}", kind, quantile=quantile, **options) for kind, quantile, options in (
        ("dapo", 0.0, {}), ("dapo", 0.7, {}), ("dapo", 0.9, dict(beta=0.04, mask_truncated=True, entropy_coef=0.01)),
        ("grpo", 0.2, dict(beta=0.04, entropy_coef=0.01)), ("grpo", 0.5, dict(level="sequence")), ("luspo", 0.5, dict(level="sequence")),
        ("cispo", 0.5, dict(high=5.0)), ("sapo", 0.5, {}), ("vespo", 0.5, {}))]
    inputs = {"logprobs": logprobs, "old": old, "reference": reference, "entropies": entropies, "advantages": advantages,
              "truncated": truncated}
    return {"inputs": inputs, "cases": cases}


def adaptive_entropy():
    """Adaptive entropy control over optimizer steps of two micro-batches, with TRL's own loss."""
    generator = torch.Generator().manual_seed(SEED + 25)
    lengths = ((3, 2), (1, 4))
    # The level of the entropies falls below the target and rises again.
    steps = [[random_rows(counts, low, low + 0.4, generator) for counts in lengths] for low in (0.9, 0.3, 0.1, 0.1, 0.1, 0.6, 0.9, 0.2)]
    logprobs = [[random_rows(counts, -2.0, -0.1, generator) for counts in lengths] for _ in steps]
    advantages = single([[0.5, -1.0]])[0]
    cases = []
    for name, options in {
        "usual_bounds": dict(entropy_coef=0.01, entropy_coef_min=0.0, entropy_coef_max=1.0, entropy_coef_delta=0.005, entropy_target=0.5),
        "narrow_bounds": dict(entropy_coef=0.0, entropy_coef_min=0.01, entropy_coef_max=0.03, entropy_coef_delta=0.02, entropy_target=0.5),
        "always_above": dict(entropy_coef=0.02, entropy_coef_min=0.0, entropy_coef_max=1.0, entropy_coef_delta=0.005, entropy_target=0.05),
    }.items():
        accelerator = Accelerator()
        model = policy_module().train()
        trainer = bare(GRPOTrainer, model=model, accelerator=accelerator, top_entropy_quantile=1.0, off_policy_mask_threshold=None,
                       importance_sampling_level="token", beta=0.0, loss_type="dapo", epsilon_low=0.2, epsilon_high=0.2, use_vllm=False,
                       max_completion_length=4, _entropy_bonus_enabled=True, use_adaptive_entropy=True,
                       entropy_coef=options["entropy_coef"], _last_world_entropy=float("inf"), _entropy_window_stats=None,
                       current_gradient_accumulation_steps=2, args=namespace(delta=None, steps_per_generation=2, **options))
        found = []
        for entropies, rows in zip(steps, logprobs):
            bonuses = []
            for number, (entropy, row) in enumerate(zip(entropies, rows)):
                accelerator.sync_gradients = number == 1
                h, mask = padded(entropy).requires_grad_(), lengths_mask(row)
                trainer._get_per_token_logps_and_entropies = lambda *a, **k: (padded(row), h, None)  # noqa: B023
                ones = torch.ones(len(row), 1, dtype=torch.long)
                loss = trainer._compute_loss(None, {
                    "prompt_ids": ones, "prompt_mask": ones, "completion_ids": mask, "completion_mask": mask,
                    "advantages": torch.tensor(advantages, dtype=DOUBLE), "num_items_in_batch": torch.tensor(10)})
                (gradient,) = torch.autograd.grad(loss, h, allow_unused=True)
                bonuses.append(gradient)
            # Each micro-batch has the mean over its own tokens, times the same coefficient over the number of micro-batches.
            applied = {round(-(gradient.sum() * 2).item(), 12) for gradient in bonuses}
            assert len(applied) == 1, applied
            found.append({"applied": applied.pop() + 0.0, "entropy_coef": metrics_of(trainer)["entropy_coef"],
                          "entropy": trainer._last_world_entropy})
        cases.append({"name": name, "options": options, "steps": found})
    note = "applied: coefficient of the bonus in a step; entropy_coef and entropy: after it. A step has two micro-batches"
    return {"note": note, "entropies": steps, "cases": cases}


def advantages():
    """TRL's `_generate_and_score_completions` with recorded completions and rewards."""
    none = float("nan")
    sets = {
        "one_function": ([[1.0], [0.0], [0.0], [1.0], [0.5], [0.5], [0.5], [0.5]], None, 4),
        "two_functions": ([[1.0, -0.25], [0.0, 2.0], [3.5, 0.5], [1.0, 1.0], [0.5, 0.0], [0.25, 8.0]], [1.0, 0.5], 3),
        "unscorable": ([[1.0, none], [none, none], [2.0, 1.0], [0.0, 3.0], [none, none], [none, 1.0], [none, none], [none, none]],
                       [1.0, 2.0], 4),
        "pairs": ([[0.1], [0.3], [-5.0], [7.0], [2.0], [2.0]], None, 2),
    }
    cases = []
    for (name, (values, weights, group)), scale, aggregation in itertools.product(
            sets.items(), ("group", "batch", "none"), ("sum_then_normalize", "normalize_then_sum")):
        count = len(values[0])
        rewards = torch.tensor(values, dtype=DOUBLE)
        weights_ = torch.tensor(weights or [1.0] * count, dtype=DOUBLE)
        trainer = bare(GRPOTrainer, environment_factories=None, tools=None, environments=None,
                       pad_to_multiple_of=None, mask_truncated_completions=False, eos_token_ids=[2], use_vllm=False,
                       _tokenizer=namespace(pad_token_id=0, eos_token_id=2), num_iterations=1, beta=0.0, num_generations=group,
                       multi_objective_aggregation=aggregation, reward_weights=weights_, scale_rewards=scale,
                       reward_funcs=[None] * count, reward_func_names=[f"f{i}" for i in range(count)], _is_vlm=False,
                       _logs=defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list)), _pending_extra_logs={},
                       _pending_metrics={}, args=namespace(per_device_train_batch_size=len(values), steps_per_generation=1,
                                                           gradient_accumulation_steps=1, gradient_checkpointing_kwargs=None))
        trainer._generate = lambda prompts: ([[5]] * len(prompts), [[6, 2]] * len(prompts), None, ["x"] * len(prompts), None,
                                             {}, None, None)
        trainer._calculate_rewards = lambda *a: rewards
        out = trainer._generate_and_score_completions([{"prompt": "p"} for _ in values])
        clean = lambda x: None if isinstance(x, float) and math.isnan(x) else x  # noqa: E731
        cases.append({
            "name": f"{name}_{scale}_{aggregation}",
            "options": {"scale_rewards": scale, "multi_objective_aggregation": aggregation, "num_generations": group,
                        "reward_weights": weights},
            "rewards": [[clean(x) for x in row] for row in values],
            "advantages": out["advantages"],
            "metrics": {k: clean(v[-1]) for k, v in trainer._metrics["train"].items()},
        })
    return {"cases": cases}


# ---------------------------------------------------------------------------------------------------------------- PPO


def rloo():
    """TRL's own leave-one-out baseline and loss: `RLOOTrainer` with recorded rewards and logprobs."""
    none = float("nan")
    sets = {
        "fours": ([1.0, 0.0, 0.0, 1.0, 0.5, 0.5, 0.5, 0.5], 4),
        "threes": ([0.25, 8.0, -3.5, 1.0, 1.5, 0.0], 3),
        "pairs": ([0.1, 0.3, -5.0, 7.0, 2.0, 2.0], 2),
        "unscorable": ([1.0, none, 2.0, 0.0, none, 1.0, none, none], 4),
    }
    variants = {"": {}, "_kl": {"beta": 0.3}, "_normalised": {"normalize_advantages": True},
                "_everything": {"beta": 0.1, "normalize_advantages": True, "reward_clip_range": [-1.0, 1.5]}}
    clean = lambda x: None if isinstance(x, float) and math.isnan(x) else x  # noqa: E731
    generator = torch.Generator().manual_seed(SEED + 23)

    def scored(name, rewards, group, options, generator, truncated=None):
        count = len(rewards)
        sides = [torch.tensor(random_rows([2] * count, -2.0, -0.1, generator), dtype=DOUBLE) for _ in range(2)]
        completions = [[6, 7] if cut else [6, 2] for cut in truncated or [False] * count]
        reference = object()
        trainer = bare(RLOOTrainer, pad_to_multiple_of=None, mask_truncated_completions=truncated is not None, eos_token_ids=[2],
                       beta=options.get("beta", 0.0), ref_model=reference, model=policy_module(),
                       _tokenizer=namespace(pad_token_id=0, eos_token_id=2), num_generations=group, num_iterations=1,
                       reward_weights=torch.ones(1, dtype=DOUBLE), reward_clip_range=options.get("reward_clip_range"),
                       normalize_advantages=options.get("normalize_advantages", False),
                       reward_funcs=[None], reward_func_names=["f"], _is_vlm=False, _pending_extra_logs={}, _pending_metrics={},
                       _logs=defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list)),
                       args=namespace(per_device_train_batch_size=count, steps_per_generation=1,
                                      gradient_accumulation_steps=1, gradient_checkpointing_kwargs=None))
        trainer._generate = lambda prompts: ([[5]] * len(prompts), completions, ["x"] * len(prompts))
        trainer._calculate_rewards = lambda *_: torch.tensor(rewards, dtype=DOUBLE)[:, None]
        trainer._get_per_token_logps_and_entropies = lambda model, *_, **__: (
            sides[1] if model is reference else sides[0], None, None)
        out = trainer._generate_and_score_completions([{"prompt": "p"} for _ in rewards])
        entry = {"name": name, "num_generations": group, "rewards": [clean(x) for x in rewards],
                 "advantages": out["advantages"], "metrics": {k: clean(v[-1]) for k, v in trainer._metrics["train"].items()}}
        if options:
            entry.update(options=options, logprobs=sides[0], reference=sides[1])
        return entry if truncated is None else {**entry, "truncated": truncated}

    cases = [scored(name + suffix, rewards, group, options, generator)
             for (name, (rewards, group)), (suffix, options) in itertools.product(sets.items(), variants.items())]
    others = torch.Generator().manual_seed(SEED + 24)
    rewards, group = sets["fours"]
    cut = {"some": [True, False, False, False, True, True, False, True], "all": [True] * 8}
    masked = [scored(name, rewards, group, {"beta": 0.3}, others, truncated) for name, truncated in cut.items()]

    lengths = (5, 3, 4, 1, 5, 2)
    old = random_rows(lengths, -2.5, -0.1, generator)
    shift = random_rows(lengths, -0.3, 0.3, generator)
    logprobs = single([[min(a + b, -0.01) for a, b in zip(x, y)] for x, y in zip(old, shift)])
    entropies = random_rows(lengths, 0.1, 2.5, generator)
    advantages = single([[1.25, -0.5, 0.75, -1.5, 0.0, -0.8]])[0]
    losses = []
    for name, low, high in (("default", 0.2, 0.2), ("higher", 0.1, 0.3)):
        lp = padded(logprobs).requires_grad_()
        mask = lengths_mask(logprobs)
        trainer = bare(RLOOTrainer, epsilon_low=low, epsilon_high=high)
        trainer._get_per_token_logps_and_entropies = lambda *a, **k: (lp, padded(entropies), None)  # noqa: B023
        ones = torch.ones(len(lengths), 1, dtype=torch.long)
        loss = trainer._compute_loss(None, {"prompt_ids": ones, "prompt_mask": ones, "completion_ids": mask,
                                            "completion_mask": mask, "advantages": torch.tensor(advantages, dtype=DOUBLE),
                                            "old_logps": padded(old).sum(1)})
        loss.backward()
        losses.append(result(name, {"epsilon": low, "epsilon_high": high}, loss, ragged(lp.grad, logprobs), trainer))
    inputs = {"logprobs": logprobs, "old": old, "advantages": advantages}
    return {"cases": cases, "masked": masked, "inputs": inputs, "losses": losses}


def policy_module():
    module = torch.nn.Module()
    module.is_gradient_checkpointing = False
    return module


def ppo():
    generator = torch.Generator().manual_seed(SEED + 4)
    lengths = (5, 3, 4, 1)
    old = random_rows(lengths, -2.5, -0.1, generator)
    logprobs = single([[min(a + b, -0.01) for a, b in zip(x, y)] for x, y in zip(old, random_rows(lengths, -0.6, 0.6, generator))])
    advantage = random_rows(lengths, -2.0, 2.0, generator)
    old_values = random_rows(lengths, -1.0, 1.0, generator)
    values = single([[a + b for a, b in zip(x, y)] for x, y in zip(old_values, random_rows(lengths, -0.5, 0.5, generator))])
    returns = random_rows(lengths, -1.5, 1.5, generator)
    mask = lengths_mask(logprobs).bool()
    mean = lambda x: x[mask].mean()  # noqa: E731
    policy, value = [], []
    for low, high in ((0.2, 0.2), (0.1, 0.3)):
        lp = padded(logprobs).requires_grad_()
        log_ratio = lp - padded(old)
        ratio, a = log_ratio.exp(), padded(advantage)
        plain, clipped = -a * ratio, -a * ratio.clamp(1 - low, 1 + high)
        loss = mean(torch.max(plain, clipped))
        loss.backward()
        policy.append({
            "options": {"cliprange_low": low, "cliprange_high": high}, "loss": loss, "grad": ragged(lp.grad, logprobs),
            "metrics": {"clipfrac": mean((clipped > plain).double()), "approxkl": 0.5 * mean(log_ratio**2),
                        "approxkl_k3": mean(ratio - 1 - log_ratio), "ratio": mean(ratio)},
        })
    for cliprange in (0.2, 0.05, None):
        v = padded(values).requires_grad_()
        ret, before = padded(returns), padded(old_values)
        first = (v - ret) ** 2
        second = first if cliprange is None else (torch.clamp(v, before - cliprange, before + cliprange) - ret) ** 2
        loss = 0.5 * mean(torch.max(first, second))
        loss.backward()
        variance = lambda x: x[mask].var(unbiased=False)  # noqa: E731
        value.append({
            "options": {"cliprange_value": cliprange}, "loss": loss, "grad": ragged(v.grad, values),
            "metrics": {"clipfrac": mean((second > first).double()),
                        "explained_variance": 1 - variance(ret - v) / variance(ret)},
        })
    inputs = {"logprobs": logprobs, "old": old, "advantages": advantage, "values": values, "old_values": old_values,
              "returns": returns}
    note = "written out from TRL <= 1.12; every mean runs over all tokens of the rows"
    return {"note": note, "inputs": inputs, "policy": policy, "value": value}


def gae():
    generator = torch.Generator().manual_seed(SEED + 5)
    lengths = (6, 1, 4)
    rewards = random_rows(lengths, -0.5, 0.5, generator)
    values = random_rows(lengths, -1.0, 1.0, generator)
    all_real = [[1] * n for n in lengths]
    with_tools = [[1, 0, 0, 1, 1, 0], [1], [0, 1, 0, 1]]
    cases = []
    for mask, (gamma, lam) in itertools.product((all_real, with_tools), ((1.0, 0.95), (0.99, 0.9), (1.0, 1.0), (0.9, 0.0))):
        advantage, returns = [], []
        for r, v, m in zip(rewards, values, mask):
            real = [t for t, keep in enumerate(m) if keep]
            a, ret = [0.0] * len(r), [0.0] * len(r)
            # The definition, not the recursion: a discounted sum of one-step errors over the real tokens.
            errors = [r[t] + gamma * (v[real[k + 1]] if k + 1 < len(real) else 0.0) - v[t] for k, t in enumerate(real)]
            for k, t in enumerate(real):
                a[t] = math.fsum((gamma * lam) ** (j - k) * errors[j] for j in range(k, len(real)))
                ret[t] = a[t] + v[t]
            advantage.append(a)
            returns.append(ret)
        cases.append({"gamma": gamma, "lambda": lam, "mask": mask, "advantages": advantage, "returns": returns})
    note = "masked tokens (tool output) are skipped; their advantage and return are written as 0"
    return {"note": note, "inputs": {"rewards": rewards, "values": values}, "cases": cases}


def kl():
    logprobs = single([[-0.5, -1.0, -0.25, -3.0, -0.001, -2.0]])[0]
    reference = single([[-0.7, -0.4, -0.25, -1.0, -2.5, -7.0]])[0]
    answer = {"logprobs": logprobs, "reference": reference}
    for name, form in (("k1", lambda d: d), ("k2", lambda d: d**2 / 2), ("k3", lambda d: torch.exp(-d) - 1 + d)):
        lp = torch.tensor(logprobs, dtype=DOUBLE).requires_grad_()
        value = form(lp - torch.tensor(reference, dtype=DOUBLE))
        value.sum().backward()
        answer[name] = {"values": value, "grad": lp.grad}
    return answer


def whitening():
    generator = torch.Generator().manual_seed(SEED + 6)
    values = random_rows((7,), -3.0, 5.0, generator)[0]
    cases = []
    x = torch.tensor(values, dtype=DOUBLE)
    for unbiased, center in itertools.product((True, False), (True, False)):
        var = x.var(unbiased=unbiased)
        out = (x - x.mean()) * torch.rsqrt(var + 1e-8)
        cases.append({"variance": "unbiased" if unbiased else "biased", "center": center, "eps": 1e-8,
                      "output": out if center else out + x.mean()})
    note = "center true: mean removed (TRL's masked_whiten, shift_mean=True); false: the mean is added back (shift_mean=False)"
    return {"note": note, "input": values, "cases": cases}


# ------------------------------------------------------------------------------------------- schedules and controllers


# Kinds with their settings, for a peak of `PEAK`. Several decays end before the run does, or within it.
PEAK = 2e-3
SCHEDULES = [
    ("linear", {}),
    ("cosine", {}),
    ("cosine", {"num_cycles": 1.25}),
    ("constant", {}),
    ("constant_with_warmup", {}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1}),
    ("cosine_with_min_lr", {"min_lr": 5e-4, "num_cycles": 1.5}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.2}),
    ("cosine_warmup_with_min_lr", {"min_lr": 1e-4, "warmup_lr_rate": 0.3, "num_cycles": 0.7}),
    ("cosine_with_restarts", {}),
    ("cosine_with_restarts", {"num_cycles": 3}),
    ("polynomial", {}),
    ("polynomial", {"power": 2.5, "lr_end": 3e-4}),
    ("polynomial", {"power": 0.5, "lr_end": 0.0}),
    ("inverse_sqrt", {}),
    ("inverse_sqrt", {"timescale": 2}),
    ("warmup_stable_decay", {"num_decay_steps": 4}),
    ("warmup_stable_decay", {"num_decay_steps": 3, "min_lr_ratio": 0.1, "warmup_type": "cosine", "decay_type": "linear"}),
    ("warmup_stable_decay", {"num_decay_steps": 2, "num_stable_steps": 2, "min_lr_ratio": 0.25, "warmup_type": "1-sqrt", "decay_type": "1-sqrt"}),
    ("warmup_stable_decay", {"num_decay_steps": 9, "num_stable_steps": 1, "num_cycles": 1.5}),
    ("warmup_stable_decay", {"num_decay_steps": 0, "min_lr_ratio": 0.5}),
]


def schedules():
    cases = []
    for (kind, settings), (steps, warmup) in itertools.product(SCHEDULES, ((10, 0), (10, 3), (7, 1))):
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=PEAK)
        scheduler = get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=steps, scheduler_specific_kwargs=settings)
        multipliers = []
        for _ in range(steps):
            multipliers.append(optimizer.param_groups[0]["lr"] / PEAK)
            optimizer.step()
            scheduler.step()
        cases.append({"kind": kind, "settings": settings, "steps": steps, "warmup": warmup, "multipliers": multipliers})
    fractions = []
    for value, steps in ((0.1, 25), (0.03, 10), (0.5, 7), (3, 10), (0, 10), (1, 10)):
        fractions.append({"warmup_steps": value, "steps": steps,
                          "count": TrainingArguments("/tmp/unused", warmup_steps=value, report_to=[]).get_warmup_steps(steps)})
    return {"note": "multipliers[k] is used by update k", "peak": PEAK, "cases": cases, "warmup": fractions}


def adaptive_kl():
    observed = single([[0.5, 2.0, 5.0, 6.0, 6.6, 7.5, 20.0, 12.0, 6.0, 3.0, 5.5, 6.3]])[0]
    cases = []
    for start, target, horizon, batch in ((0.15, 6.0, 10000, 512), (0.05, 6.0, 100, 64), (0.2, 1.0, 10000, 8)):
        beta, trajectory = start, []
        for value in observed:
            error = min(max(value / target - 1, -0.2), 0.2)
            beta *= 1 + error * batch / horizon
            trajectory.append(beta)
        cases.append({"initial": start, "target": target, "horizon": horizon, "sequences_per_step": batch,
                      "coefficients_after": trajectory})
    return {"observed_kl": observed, "cases": cases}


def optimizer():
    generator = torch.Generator().manual_seed(SEED + 7)
    shapes = {"matrix.weight": (3, 2), "vector.bias": (3,)}
    start = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    gradients = [{name: scale * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
                 for scale in (1.0, 0.01, 3.0, 0.3, 1e-6, 1.0)]
    cases = []
    for name, options in {
        "default": dict(lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0),
        "weight_decay": dict(lr=0.01, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1),
    }.items():
        parameters = {key: torch.nn.Parameter(value.clone()) for key, value in start.items()}
        groups = [{"params": [parameters["matrix.weight"]]}, {"params": [parameters["vector.bias"]], "weight_decay": 0.0}]
        adam = torch.optim.AdamW(groups, **options)
        scheduler = get_scheduler("linear", adam, num_warmup_steps=0, num_training_steps=len(gradients))
        steps = []
        for gradient in gradients:
            for key, parameter in parameters.items():
                parameter.grad = gradient[key].clone()
            norm = torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
            rate = adam.param_groups[0]["lr"]
            adam.step()
            scheduler.step()
            steps.append({"lr": rate, "grad_norm": norm, "parameters": {k: p.detach().clone() for k, p in parameters.items()}})
        cases.append({"name": name, "options": {**options, "max_grad_norm": 1.0, "schedule": "linear"}, "steps": steps})
    note = "float32; gradients are clipped to norm 1 over both tensors; weight decay on the matrix only"
    return {"note": note, "start": start, "gradients": gradients, "cases": cases}


def main():
    out = arguments("losses")
    for build in (sft, head, reward, dpo, orpo, cpo, kto, distill, distill_top_k, grpo, off_policy, adaptive_entropy, advantages, rloo, ppo, gae, kl, whitening, schedules, adaptive_kl, optimizer):
        answer = build()
        write_json(out / f"{build.__name__}.json", {"meta": meta(SEED, "trl", accumulate="float64 from float32 inputs"), **answer})
        print(build.__name__, len(answer.get("cases", [])))


main()
