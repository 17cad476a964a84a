"""Scripts like those of TRL's documentation, run by gradus on a model that is created here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from record_trl import RECORD
from trl_jobs import JOBS, numbers
from trl_stand_in import HAS_NATIVE, REPOSITORY

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the native module of gradus is not built")

TOKENIZER = REPOSITORY / "crates" / "gradus" / "tests" / "fixtures" / "parity" / "rows" / "tokenizer"
ANSWERS = [("What is the color of the sky?", "It is blue."), ("What is the color of grass?", "It is green.")] * 10


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with two layers and random weights."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    arguments = ["new-model", "--family", "llama", "--tokenizer", str(TOKENIZER), "--output", str(directory)]
    subprocess.run([sys.executable, "-m", "gradus", *arguments], check=True)
    return str(directory)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADUS_CACHE", str(tmp_path / "cache"))
    yield


def run(script: str, **names: Any) -> dict[str, Any]:
    """Runs a script and returns its names."""
    scope = dict(names)
    exec(compile(script, "script.py", "exec"), scope)
    return scope


def check(trainer: Any, metrics: set[str]) -> None:
    """Checks a finished run: steps, log, and a model that loads."""
    assert trainer.state.global_step == 2
    first = trainer.state.log_history[0]
    assert first["step"] == 1 and metrics | {"loss", "grad_norm", "learning_rate", "epoch", "num_tokens"} <= set(first)
    assert "train_loss" in trainer.state.log_history[-1]
    trainer.save_model("saved")
    assert (Path("saved") / "config.json").is_file() and (Path("saved") / "model.safetensors").is_file()
    assert (Path("out") / "metrics.jsonl").is_file()


def rows(make: Callable[[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    return [make(*answer) for answer in ANSWERS]


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def assistant(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def test_sft(model: str) -> None:
    data = rows(lambda question, answer: {"messages": user(question) + assistant(answer)})
    script = """
from gradus.trl import SFTConfig, SFTTrainer

training_args = SFTConfig(output_dir="out", max_steps=2, logging_steps=1, learning_rate=1e-3)
trainer = SFTTrainer(model=model, args=training_args, train_dataset=dataset)
result = trainer.train()
"""
    scope = run(script, model=model, dataset=data)
    check(scope["trainer"], {"mean_token_accuracy", "entropy"})
    assert scope["result"].global_step == 2 and scope["result"].training_loss > 0


def test_dpo(model: str) -> None:
    data = rows(lambda question, answer: {"prompt": user(question), "chosen": assistant(answer), "rejected": assistant("No.")})
    script = """
from gradus.trl import DPOConfig, DPOTrainer

training_args = DPOConfig(output_dir="out", max_steps=2, logging_steps=1, eval_strategy="steps", eval_steps=1)
trainer = DPOTrainer(model=model, args=training_args, train_dataset=dataset, eval_dataset=dataset)
trainer.train()
metrics = trainer.evaluate()
"""
    scope = run(script, model=model, dataset=data)
    check(scope["trainer"], {"rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins"})
    assert scope["metrics"]["eval_loss"] > 0 and "eval_rewards/accuracies" in scope["metrics"]
    again = scope["trainer"].evaluate(data, metric_key_prefix="test")
    held_out = {name.replace("eval_", "test_"): value for name, value in scope["metrics"].items()}
    assert again == pytest.approx(held_out, rel=1e-5)


GRPO = """
from gradus.trl import GRPOConfig, GRPOTrainer

def rewards_letters(prompts, completions, answer, **kwargs):
    seen.append((prompts[0], completions[0], answer[0]))
    return [float(completion[0]["content"].count("a")) for completion in completions]

async def rewards_length(completion_ids, **kwargs):
    return [-float(len(ids)) for ids in completion_ids]

training_args = GRPOConfig(
    output_dir="out",
    max_steps=2,
    logging_steps=1,
    num_generations=4,
    max_completion_length=8,
    learning_rate=1e-3,
    beta=0.1,
    reward_weights=[1.0, 0.5],
)
trainer = GRPOTrainer(
    model=model,
    reward_funcs=[rewards_letters, rewards_length],
    args=training_args,
    train_dataset=dataset,
)
trainer.train()
"""


def test_grpo(model: str) -> None:
    data = rows(lambda question, answer: {"prompt": user(question), "answer": answer})
    seen: list[Any] = []
    trainer = run(GRPO, model=model, dataset=data, seen=seen)["trainer"]
    check(
        trainer,
        {"reward", "reward_std", "completions/mean_length", "rewards/rewards_letters/mean", "rewards/rewards_length/mean", "kl"},
    )
    prompt, completion, answer = seen[0]
    assert prompt[0]["role"] == "user" and completion[0]["role"] == "assistant" and answer in {one for _, one in ANSWERS}
    (first,) = [entry for entry in trainer.log_history if entry["step"] == 1]
    total = first["rewards/rewards_letters/mean"] + 0.5 * first["rewards/rewards_length/mean"]
    assert first["reward"] == pytest.approx(total, abs=1e-4)


def test_rewards_know_the_steps_of_the_optimizer(model: str) -> None:
    from gradus.trl import GRPOConfig, GRPOTrainer

    seen: list[tuple[int, int]] = []

    def rewards_length(completions: Any, trainer_state: Any, **_: Any) -> list[float]:
        seen.append((trainer_state.global_step, trainer_state.max_steps))
        return [float(len(completion)) for completion in completions]

    args = GRPOConfig(output_dir="out", max_steps=4, num_iterations=2, num_generations=4, max_completion_length=4)
    data = rows(lambda question, answer: {"prompt": question})
    GRPOTrainer(model=model, reward_funcs=rewards_length, args=args, train_dataset=data).train()
    assert seen == [(0, 4), (2, 4)], "as in TRL, whatever is logged"


def test_reward_functions_of_trl(model: str) -> None:
    pytest.importorskip("trl", reason="TRL is not installed")
    data = rows(lambda question, _: {"prompt": user(question)})
    script = """
from trl.rewards import get_soft_overlong_punishment, think_format_reward
from gradus.trl import GRPOConfig, GRPOTrainer

trainer = GRPOTrainer(
    model=model,
    reward_funcs=[think_format_reward, get_soft_overlong_punishment(max_completion_len=8, soft_punish_cache=8)],
    args=GRPOConfig(output_dir="out", max_steps=2, logging_steps=1, max_completion_length=8),
    train_dataset=dataset,
)
trainer.train()
"""
    trainer = run(script, model=model, dataset=data)["trainer"]
    check(trainer, {"rewards/think_format_reward/mean"})
    # No completion contains thoughts, and each loses an eighth per token.
    (first,) = [entry for entry in trainer.log_history if entry["step"] == 1]
    assert first["reward"] == pytest.approx(-first["completions/mean_length"] / 8, abs=1e-3)


def test_kto(model: str) -> None:
    data = [
        {"prompt": question, "completion": f" {answer}" if good else " No.", "label": good}
        for question, answer in ANSWERS
        for good in (True, False)
    ]
    script = """
from gradus.trl import KTOConfig, KTOTrainer

training_args = KTOConfig(output_dir="out", max_steps=2, logging_steps=1)
trainer = KTOTrainer(model=model, args=training_args, train_dataset=dataset)
trainer.train()
"""
    check(run(script, model=model, dataset=data)["trainer"], {"kl", "rewards/chosen", "rewards/rejected"})


def test_rloo(model: str) -> None:
    data = rows(lambda question, _: {"prompt": question})
    script = """
from gradus.trl import RLOOConfig, RLOOTrainer

def reward_num_unique_letters(completions, **kwargs):
    return [float(len(set(completion))) for completion in completions]

training_args = RLOOConfig(output_dir="out", max_steps=2, logging_steps=1, max_completion_length=8)
trainer = RLOOTrainer(
    model=model,
    reward_funcs=reward_num_unique_letters,
    args=training_args,
    train_dataset=dataset,
)
trainer.train()
"""
    check(run(script, model=model, dataset=data)["trainer"], {"reward", "reward_std", "frac_reward_zero_std"})


def test_reward_and_its_model_as_a_reward(model: str) -> None:
    data = rows(lambda question, answer: {"prompt": user(question), "chosen": assistant(answer), "rejected": assistant("No.")})
    script = """
from gradus.trl import RewardConfig, RewardTrainer

training_args = RewardConfig(output_dir="out", max_steps=2, logging_steps=1)
trainer = RewardTrainer(model=model, args=training_args, train_dataset=dataset)
trainer.train()
"""
    check(run(script, model=model, dataset=data)["trainer"], {"accuracy", "margin", "mean_reward"})
    judged = """
from gradus.trl import GRPOConfig, GRPOTrainer

trainer = GRPOTrainer(
    model=model,
    reward_funcs="saved",
    args=GRPOConfig(output_dir="judged", max_steps=1, logging_steps=1, max_completion_length=4),
    train_dataset=dataset,
)
trainer.train()
"""
    questions = rows(lambda question, _: {"prompt": user(question)})
    trainer = run(judged, model=model, dataset=questions)["trainer"]
    assert "reward" in trainer.log_history[0]


def test_an_adapter(model: str) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    from gradus import trl

    data = rows(lambda question, answer: {"prompt": question, "completion": f" {answer}"})
    adapter = peft.LoraConfig(r=4, target_modules="all-linear")
    args = trl.SFTConfig("out", max_steps=2, logging_steps=1)
    trainer = trl.SFTTrainer(model, args, train_dataset=data, peft_config=adapter)
    trainer.train()
    trainer.save_model("saved")
    assert (Path("saved") / "adapter_model.safetensors").is_file()
    assert peft.PeftConfig.from_pretrained("saved").r == 4


def test_objects_of_transformers(model: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from gradus import trl

    network = transformers.AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        network.model.embed_tokens.weight.zero_()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    data = rows(lambda question, answer: {"prompt": question, "completion": f" {answer}"})
    args = trl.SFTConfig("out", max_steps=1, logging_steps=1, bf16=False)
    trainer = trl.SFTTrainer(network, args, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    (entry, _) = trainer.log_history
    # Embeddings of 0 make all logits 0, so all tokens are equally likely.
    assert entry["loss"] == pytest.approx(torch.log(torch.tensor(float(len(tokenizer)))).item(), abs=1e-3)


def test_a_callback_stops_the_run_after_a_checkpoint_and_it_goes_on(model: str) -> None:
    from gradus import trl

    class Stops:
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == 2

    data = rows(lambda question, answer: {"prompt": question, "completion": f" {answer}"})
    args = trl.SFTConfig("out", max_steps=4, logging_steps=1)
    stopped = trl.SFTTrainer(model, args, train_dataset=data, callbacks=[Stops()])
    assert stopped.train().global_step == 2
    assert len(list(Path("out/checkpoints").glob("step-*"))) == 1
    stopped.save_model("stopped")
    assert (Path("stopped") / "model.safetensors").is_file()
    goes_on = trl.SFTTrainer(model, args, train_dataset=data)
    assert goes_on.train(resume_from_checkpoint=True).global_step == 4
    assert goes_on.log_history[0]["step"] == 3


@pytest.mark.parametrize("method", ["DPO", "KTO", "Reward", "SFT"])
def test_evaluate_measures_what_the_run_measures(method: str, model: str) -> None:
    from gradus import trl

    answer = {"SFT": "completion", "KTO": "completion"}.get(method, "chosen")
    data: list[dict[str, Any]] = [{"prompt": question, answer: f" {text}", "rejected": " No."} for question, text in ANSWERS]
    for number, row in enumerate(data if method == "KTO" else []):
        row["label"] = number % 2 == 0
    if answer == "completion":
        data = [{name: value for name, value in row.items() if name != "rejected"} for row in data]
    fields: dict[str, Any] = {"max_steps": 2, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, "learning_rate": 1e-3}
    own: dict[str, dict[str, Any]] = {"DPO": {"beta": 0.4, "loss_type": "ipo"}, "KTO": {"beta": 0.4}, "SFT": {"loss_type": "dft"}}
    fields |= own.get(method, {})
    args = getattr(trl, f"{method}Config")("out", bf16=False, **fields)
    trainer = getattr(trl, f"{method}Trainer")(model, args=args, train_dataset=data, eval_dataset=data)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_loss"] != pytest.approx(before, rel=1e-3)
    assert trainer.evaluate(data) == pytest.approx(after, rel=1e-5, abs=1e-6)


def test_a_checkpoint_of_the_same_run_goes_on_there(model: str) -> None:
    from gradus import trl

    data = rows(lambda question, answer: {"prompt": question, "completion": f" {answer}"})
    args = trl.SFTConfig("out", max_steps=3, logging_steps=1, save_steps=1)
    whole = trl.SFTTrainer(model, args, train_dataset=data)
    whole.train()
    again = trl.SFTTrainer(model, args, train_dataset=data)
    again.train(resume_from_checkpoint=Path("out/checkpoints/step-000001"))
    losses = [{entry["step"]: entry["loss"] for entry in one.log_history if "loss" in entry} for one in (whole, again)]
    assert list(losses[1]) == [2, 3] and losses[1].items() <= losses[0].items()


def test_data_sets_of_hugging_face(model: str) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    from gradus import trl

    data = datasets.Dataset.from_list(rows(lambda question, answer: {"question": question, "reply": answer}))
    args = trl.SFTConfig("out", num_train_epochs=1, per_device_train_batch_size=10, logging_steps=1)
    trainer = trl.SFTTrainer(
        model, args, train_dataset=data, formatting_func=lambda row: f"Q: {row['question']} A: {row['reply']}"
    )
    assert trainer.train().global_step == 2
    parts = data.map(lambda row: {"prompt": row["question"], "completion": row["reply"]}).train_test_split(test_size=0.2, seed=1)
    trainer = trl.SFTTrainer(model, args, train_dataset=parts["train"])
    assert trainer.train().global_step == 2
    assert trainer.evaluate(parts["test"])["eval_loss"] > 0


@pytest.mark.parametrize("name", JOBS)
def test_numbers_are_those_of_trl(name: str) -> None:
    from gradus import trl

    known = json.loads(RECORD.read_text(encoding="utf-8"))["runs"][name]
    found = numbers(trl, name, list)
    assert [entry["step"] for entry in found] == [entry["step"] for entry in known]
    for ours, theirs in zip(found, known):
        shared = {key: value for key, value in theirs.items() if key in ours}
        assert shared == pytest.approx({key: ours[key] for key in shared}, rel=2e-3, abs=2e-5), theirs["step"]
        assert {"loss", "eval_loss", "step"} & set(shared) >= {"step"}
