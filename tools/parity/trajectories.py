"""Ten training steps of TRL's trainers from committed weights: loss, gradient norm and metrics of every step.

AdamW, no shuffling, one micro-batch per step, no dropout, float32. Each run has a folder:
  run.json      start model, hyper-parameters, ten steps, a summary of the final weights
  rows.jsonl    the training rows, in the order of use (repeated from the start when they end)
  rollouts.jsonl  GRPO: for each generation the prompts, completions and rewards that replace sampling
"""

import tempfile

import replay
from common import arguments, meta, write_json

import torch
from datasets import Dataset
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.gkd import GKDConfig, GKDTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

SEED = 11
QUESTIONS = ["What is the capital of France?", "How far is the island?", "What colour is the sky?", "Tea?",
             "Can you help me with the garden?", "Seven plus five is", "The captain rang the", "The cat sat on the",
             "Who was late?", "When did the ferry leave?"]
GOOD = [" Paris.", " Eleven miles away.", " Blue, when the air is clear.", " Yes, please.", " Yes, I can help you with the garden.",
        " twelve.", " bell every minute.", " warm stone.", " The fisherman was late, as he was on most days.", " Before sunrise."]
BAD = [" I am sorry, I cannot help with that question.", " Red.", " No no no no.", " the the", " 100", " fog", " Paris is twelve.",
       " ?", " Nobody answered.", " In two sentences."]


def messages(*pairs):
    return [{"role": role, "content": text} for role, text in pairs]


def sft_rows():
    return [{"prompt": q, "completion": a} for q, a in zip(QUESTIONS * 2, GOOD + BAD)]


def chat_rows():
    rows = []
    for i in range(12):
        q, a = QUESTIONS[i % 10], GOOD[i % 10].strip()
        rows.append({"messages": messages(("system", "Short answers."), ("user", q), ("assistant", a), ("user", "Why?"),
                                          ("assistant", BAD[(i * 3) % 10].strip()))})
    return rows


def preference_rows():
    return [{"prompt": q, "chosen": g, "rejected": b} for q, g, b in zip(QUESTIONS * 2, GOOD + GOOD[::-1], BAD + BAD[3:] + BAD[:3])]


def unpaired_rows():
    """Every batch of four has one or two undesirable completions."""
    rows = []
    for i in range(40):
        wanted = i % 4 not in ((1,), (0, 3), (2,))[i // 4 % 3]
        rows.append({"prompt": QUESTIONS[(i * 3) % 10], "completion": (GOOD if wanted else BAD)[(i * 7 + i // 10) % 10], "label": wanted})
    return rows


def chat_preference_rows():
    return [{"prompt": messages(("user", q)), "chosen": messages(("assistant", g.strip())),
             "rejected": messages(("assistant", b.strip()))} for q, g, b in zip(QUESTIONS[:8], GOOD, BAD)]


BASE = {"per_device_train_batch_size": 4, "learning_rate": 5e-3, "lr_scheduler_type": "linear", "max_length": 128}
RUNS = {
    "sft": (SFTTrainer, SFTConfig, "qwen3", sft_rows, {"learning_rate": 2e-3}),
    "sft_chat_cosine_decay": (SFTTrainer, SFTConfig, "gpt2", chat_rows, {
        "assistant_only_loss": True, "lr_scheduler_type": "cosine", "warmup_steps": 3, "weight_decay": 0.1, "adam_beta2": 0.95,
        "adam_epsilon": 1e-6, "max_grad_norm": 0.5}),
    "reward": (RewardTrainer, RewardConfig, "qwen3-reward", preference_rows, {"center_rewards_coefficient": 0.01}),
    "reward_margin": (RewardTrainer, RewardConfig, "qwen3-reward",
                      lambda: [{**row, "margin": 0.25 * (i % 4)} for i, row in enumerate(preference_rows())],
                      {"lr_scheduler_type": "constant", "weight_decay": 0.05}),
    "dpo": (DPOTrainer, DPOConfig, "qwen3", preference_rows, {"beta": 0.1}),
    "dpo_sync": (DPOTrainer, DPOConfig, "qwen3", preference_rows, {
        "sync_ref_model": True, "ref_model_mixup_alpha": 0.6, "ref_model_sync_steps": 3}),
    "dpo_chat_gpt2_ipo": (DPOTrainer, DPOConfig, "gpt2", chat_preference_rows, {
        "beta": 0.2, "loss_type": ["ipo"], "lr_scheduler_type": "constant", "max_grad_norm": 100.0}),
    "sft_dft": (SFTTrainer, SFTConfig, "qwen3", sft_rows, {"learning_rate": 2e-3, "loss_type": "dft"}),
    "dpo_and_sft": (DPOTrainer, DPOConfig, "qwen3", preference_rows, {
        "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}),
    "dpo_aot_unpaired_ld": (DPOTrainer, DPOConfig, "qwen3", preference_rows, {
        "loss_type": ["aot_unpaired"], "label_smoothing": 0.1, "ld_alpha": 0.5}),
    "dpo_js_weighted_pairs": (DPOTrainer, DPOConfig, "gpt2", chat_preference_rows, {
        "beta": 0.5, "loss_type": ["exo_pair", "discopop"], "loss_weights": [1.0, 0.25], "label_smoothing": 0.01,
        "f_divergence_type": "js_divergence", "use_weighting": True}),
    "orpo": (ORPOTrainer, ORPOConfig, "qwen3", preference_rows, {}),
    "cpo": (CPOTrainer, CPOConfig, "qwen3", preference_rows, {"beta": 0.2, "label_smoothing": 0.05, "cpo_alpha": 0.5}),
    "simpo": (CPOTrainer, CPOConfig, "qwen3", preference_rows, {
        "loss_type": "simpo", "beta": 2.0, "simpo_gamma": 1.0, "cpo_alpha": 0.0}),
    "kto": (KTOTrainer, KTOConfig, "qwen3", unpaired_rows, {"beta": 0.3, "desirable_weight": 1.2, "learning_rate": 3e-3}),
    "kto_pairs_apo": (KTOTrainer, KTOConfig, "qwen3", lambda: preference_rows()[:6], {
        "loss_type": "apo_zero_unpaired", "undesirable_weight": 0.75}),
}
# Trainers that put a token before prompts if a tokenizer has one; other trainers add none to rows.
PUTS_BOS_IN_FRONT = (CPOTrainer, ORPOTrainer)


def arguments_of(config, scratch, options):
    return config(output_dir=scratch, report_to=[], bf16=False, use_cpu=True, gradient_checkpointing=False, disable_tqdm=True,
                  logging_steps=1, save_strategy="no", max_steps=replay.STEPS, gradient_accumulation_steps=1, seed=SEED,
                  **options)


def finish(out, runs, start, options):
    """`runs`: trainer and recorder of the run, and of one that rounds differently (float64; GRPO: fused attention).

    Their difference is the effect of rounding alone. No other implementation can be closer.
    """
    (trainer, recorder), (other, other_recorder) = runs
    steps, others = replay.steps_of(trainer, recorder), replay.steps_of(other, other_recorder)
    far = lambda key: max(abs(a[key] - b[key]) for a, b in zip(steps, others))  # noqa: E731
    drift = {"loss": far("loss"), "grad_norm": far("grad_norm")}
    print(out.name, drift)
    write_json(out / "run.json", {
        "meta": meta(SEED, "trl"),
        "start_model": start,
        "hyper_parameters": options,
        "largest_difference_by_rounding": drift,
        "steps": steps,
        "final_weights": replay.weights(trainer.model),
    })


def offline(root, name):
    kind, config, start, build, changes = RUNS[name]
    options = {**BASE, **changes}
    out = root / name
    out.mkdir(exist_ok=True)
    rows = build()
    replay.write_rows(out / "rows.jsonl", rows)
    runs = []
    for dtype in (torch.float32, torch.float64):
        recorder = replay.Recorder()
        with tempfile.TemporaryDirectory() as scratch:
            args = arguments_of(config, scratch, {**options, "train_sampling_strategy": "sequential"})
            extra = {"ref_model": replay.load(root / "models", start, dtype)} if kind in (DPOTrainer, KTOTrainer) else {}
            tokenizer = replay.tokenizer()
            if kind in PUTS_BOS_IN_FRONT:
                tokenizer.bos_token = None
            trainer = kind(model=replay.load(root / "models", start, dtype), args=args, train_dataset=Dataset.from_list(rows),
                           processing_class=tokenizer, callbacks=[recorder], **extra)
            pairs_come_apart = kind is KTOTrainer and "chosen" in rows[0]
            assert len(trainer.train_dataset) == len(rows) * (2 if pairs_come_apart else 1)
            trainer.train()
        runs.append((trainer, recorder))
    finish(out, runs, start, options)


DISTILL_RUNS = {
    "distill": {"beta": 0.5},
    "distill_reverse": {"beta": 1.0, "learning_rate": 3e-3},
}


def distill(root, name):
    """A teacher of another family with the same vocabulary. It uses the completions of the rows, so nothing is sampled."""
    options = {**BASE, **DISTILL_RUNS[name]}
    out = root / name
    out.mkdir(exist_ok=True)
    rows = sft_rows()
    replay.write_rows(out / "rows.jsonl", rows)
    tokenizer = replay.tokenizer()

    def collate(examples):
        texts = [tokenizer(row["prompt"] + row["completion"] + tokenizer.eos_token)["input_ids"] for row in examples]
        prompts = [len(tokenizer(row["prompt"])["input_ids"]) for row in examples]
        width = max(map(len, texts))
        pad = lambda row, fill: row + [fill] * (width - len(row))  # noqa: E731
        return {"input_ids": torch.tensor([pad(text, 0) for text in texts]),
                "attention_mask": torch.tensor([pad([1] * len(text), 0) for text in texts]),
                "labels": torch.tensor([pad([-100] * n + text[n:], -100) for text, n in zip(texts, prompts)])}

    runs = []
    for dtype in (torch.float32, torch.float64):
        recorder = replay.Recorder()
        with tempfile.TemporaryDirectory() as scratch:
            args = arguments_of(GKDConfig, scratch, {**options, "lmbda": 0.0, "train_sampling_strategy": "sequential"})
            trainer = GKDTrainer(model=replay.load(root / "models", "qwen3", dtype), args=args, data_collator=collate,
                                 teacher_model=replay.load(root / "models", "gpt2", dtype), processing_class=tokenizer,
                                 train_dataset=Dataset.from_list(rows), callbacks=[recorder])
            trainer.train()
        runs.append((trainer, recorder))
    finish(out, runs, "qwen3", options)


GRPO_BASE = {"per_device_train_batch_size": 8, "num_generations": 4, "learning_rate": 5e-3, "lr_scheduler_type": "linear",
             "max_completion_length": 12, "temperature": 1.0}
GRPO_RUNS = {
    "grpo_dapo": {"loss_type": "dapo", "beta": 0.0, "num_iterations": 1},
    "grpo_two_iterations_kl": {"loss_type": "grpo", "beta": 0.04, "num_iterations": 2, "epsilon": 0.1, "epsilon_high": 0.15,
                               "mask_truncated_completions": True, "temperature": 0.8, "learning_rate": 3e-3},
    "grpo_sync": {"loss_type": "grpo", "beta": 0.5, "num_iterations": 1, "sync_ref_model": True, "ref_model_mixup_alpha": 0.3,
                  "ref_model_sync_steps": 2},
    "grpo_gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "beta": 0.04, "num_iterations": 2,
                  "epsilon": 0.02, "epsilon_high": 0.03, "learning_rate": 3e-3},
    "grpo_cispo": {"loss_type": "cispo", "beta": 0.0, "num_iterations": 2, "epsilon_high": 1.1, "learning_rate": 3e-3},
    "grpo_sapo": {"loss_type": "sapo", "beta": 0.0, "num_iterations": 2, "learning_rate": 3e-3},
    "grpo_vespo": {"loss_type": "vespo", "beta": 0.0, "num_iterations": 2, "learning_rate": 3e-3},
    "rloo": {"beta": 0.05, "num_iterations": 1},
    "rloo_two_iterations": {"beta": 0.1, "num_iterations": 2, "epsilon": 0.15, "normalize_advantages": True,
                            "reward_clip_range": (0.2, 0.8), "learning_rate": 3e-3},
}


def rollouts(generations, limit, generator):
    """Completions that no policy sampled: words of the rows, most of them with a final eos, and arbitrary rewards."""
    tok = replay.tokenizer()
    answer = []
    for step in range(generations):
        for group in range(2):
            prompt = QUESTIONS[(2 * step + group) % len(QUESTIONS)]
            for member in range(4):
                text = (GOOD + BAD)[torch.randint(0, 20, (1,), generator=generator).item()]
                ids = (tok(text)["input_ids"] + [tok.eos_token_id])[:limit]
                reward = round(torch.rand(1, generator=generator).item(), 3) if (step, group) != (2, 1) else 0.5
                answer.append({"generation": step, "prompt": prompt, "prompt_ids": tok(prompt)["input_ids"],
                               "completion_ids": ids, "reward": reward})
    return answer


def grpo(root, name):
    options = {**GRPO_BASE, **GRPO_RUNS[name]}
    out = root / name
    out.mkdir(exist_ok=True)
    generations = replay.STEPS // options["num_iterations"]
    recorded = rollouts(generations, options["max_completion_length"], torch.Generator().manual_seed(SEED))
    replay.write_rows(out / "rollouts.jsonl", recorded)
    rows = [{"prompt": recorded[i]["prompt"]} for i in range(0, len(recorded), 4)]
    replay.write_rows(out / "rows.jsonl", rows)
    batches = [recorded[i: i + 8] for i in range(0, len(recorded), 8)]
    runs = [grpo_run(root, name, options, rows, batches, attention) for attention in ("eager", "sdpa")]
    finish(out, runs, "qwen3", options)


def grpo_run(root, name, options, rows, batches, attention):
    kind, config = (RLOOTrainer, RLOOConfig) if name.startswith("rloo") else (GRPOTrainer, GRPOConfig)
    calls = {"generation": 0}

    def reward(prompts, completions, completion_ids, **_):
        batch = batches[calls["generation"] - 1]
        assert [row["prompt"] for row in batch] == prompts
        assert [row["completion_ids"] for row in batch] == completion_ids
        return [row["reward"] for row in batch]

    def generate(prompt_ids, *_):
        batch = batches[calls["generation"]]
        assert [row["prompt_ids"] for row in batch] == prompt_ids
        calls["generation"] += 1
        completions = [row["completion_ids"] for row in batch]
        return completions if kind is RLOOTrainer else (completions, None)

    recorder = replay.Recorder()
    with tempfile.TemporaryDirectory() as scratch:
        args = arguments_of(config, scratch, {**options, "shuffle_dataset": False, "disable_dropout": True})
        trainer = kind(model=replay.load(root / "models", "qwen3", attention=attention), reward_funcs=reward, args=args,
                       train_dataset=Dataset.from_list(rows), processing_class=replay.tokenizer(), callbacks=[recorder])
        assert (trainer.ref_model is not None) == (trainer.beta != 0.0)  # TRL loads it from the start model's folder
        trainer._generate_single_turn = generate
        trainer.train()
    assert calls["generation"] == len(batches)
    return trainer, recorder


def main():
    root = arguments("trajectories")
    (root / "models").mkdir(exist_ok=True)
    replay.write_models(root / "models")
    for name in RUNS:
        offline(root, name)
    for name in DISTILL_RUNS:
        distill(root, name)
    for name in GRPO_RUNS:
        grpo(root, name)
    write_json(root / "fixture.json", {"meta": meta(SEED, "trl"), "runs": [*RUNS, *DISTILL_RUNS, *GRPO_RUNS], "models": list(replay.MODELS)})


main()
