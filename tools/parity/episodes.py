"""Steps of TRL's GRPO trainer over episodes of several turns: with `tools`, and with `environment_factory`.

The output of the policy is scripted, so nothing is sampled. Tools, masks, appended answers, truncation, rewards,
advantages, losses and updates are TRL's. Run after `trajectories.py`, because it uses its start model. Each run has a folder:
  chat_template.jinja  template of conversations and calls
  run.json             hyper-parameters, steps, a summary of the final weights; of each rollout of the first generation the calls,
                       the advantage, and log-probabilities before and after the first update; those before it in float64 as well
  rows.jsonl           the prompts, in the order they are used
  rollouts.jsonl       for each generation the prompts, turns (ids that the policy wrote, ids that it read) and rewards
"""

import json
import random
import tempfile

import replay
import torch
from common import arguments, meta, write_json

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import selective_log_softmax

SEED = 23
GROUP = 4
BATCH = 8

CHAT_TEMPLATE = r"""{%- set ns = namespace(shown=false) %}
{%- for message in messages %}
    {{- '<|turn|>' + message['role'] + '\n' }}
    {%- if message['role'] == 'user' and tools and not ns.shown %}
        {%- set ns.shown = true %}
        {{- 'Tools:' }}{% for tool in tools %}{{ ' ' + tool['function']['name'] }}{% endfor %}{{ '\n' }}
    {%- endif %}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
            {{- message['content'] }}
            {%- for call in message['tool_calls'] or [] %}
                {{- '<tool_call>{"name": "' + call['function']['name'] + '", "arguments": ' + call['function']['arguments'] | tojson + '}</tool_call>' }}
            {%- endfor %}
            {{- '<|end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] + '<|end|>' }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|turn|>assistant\n' }}{%- endif %}
"""

# Schema with which transformers reads the turns of this template.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|turn|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|end\|>\s*", "content": "text"},
    },
}
END = "<|end|>"


def tokenizer():
    tok = replay.tokenizer()
    tok.eos_token = END
    tok.chat_template = CHAT_TEMPLATE
    tok.response_template = RESPONSE_TEMPLATE
    return tok


def call(name, **given):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': given}, separators=(',', ':'))}</tool_call>"


# --- the run with `tools` ------------------------------------------------------------------------------------------------------------


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: One number.
        b: The other.
    """
    return a + b


def find(word: str) -> str:
    """Finds a word.

    Args:
        word: The word.
    """
    return {"fog": "Low clouds.", "cat": "It purrs, " * 12, "dog": "It barks, " * 20}[word]


def now() -> str:
    """The time."""
    return "noon"


# Turns of a rollout: all but the last have calls. A turn without END is cut off, or is the beginning of a longer one.
SCRIPTS = [
    lambda r: [call("add", a=r(9), b=r(9)) + END, f"It is {r(18)}." + END],
    lambda r: [f"I think {r(18)}." + END],
    lambda r: [f"Well. {call('find', word='fog')}" + END, "Fog is low." + END],
    lambda r: [call("find", word="ship") + END, "Nobody knows." + END],  # the tool raises
    lambda r: [call("add", a=r(9), b=1) + "\n" + call("sum", a=1) + END, "Two." + END],  # one of the tools is unknown
    lambda r: [call("add", a=r(9), b=2) + END, call("find", word="fog") + END, "Both are done." + END],
    lambda r: [call("find", word="cat") + END, call("add", a=1, b=r(9)) + END],  # the second turn is cut off
    lambda r: ["I look. " + call("find", word="dog") + END],  # the answer does not fit
    lambda r: ["No end " * 60],  # cut off
    lambda r: [call("add", a=3, b=r(9)) + END, "and so on " * 40],  # the second turn is cut off
    lambda r: [call("now") + END, call("now") + END, call("now") + END],  # the turns are used up
    lambda r: [call("add", a=r(9)) + END, "Nothing." + END],  # an argument is missing
]


def tool_prompts(count):
    return [{"prompt": replay_messages(f"{i % 7} and {3 * i % 5}?")} for i in range(count)]


def replay_messages(text):
    return [{"role": "user", "content": text}]


# --- the run with `environment_factory` ----------------------------------------------------------------------------------------------


class Game:
    """A game: guess a number."""

    def reset(self, target: int, **_) -> str:
        self.target, self.guesses, self.is_won = target, 0, False
        return " Guess from 1 to 9."

    def guess(self, number: int) -> str:
        """Guesses.

        Args:
            number: The guess.
        """
        self.guesses += 1
        self.is_won = self.is_won or number == self.target
        return "right" if number == self.target else "higher" if number < self.target else "lower"

    def get_reward(self) -> float:
        return 1.0 / self.guesses if self.is_won else -0.125 * self.guesses


GAMES = [
    lambda r: [call("guess", number=r(9)) + END, call("guess", number=r(9)) + END, "I give up." + END],
    lambda r: [call("guess", number=r(9)) + END, "Done." + END],
    lambda r: ["I will not play." + END],
    lambda r: [call("guess", number=5) + END, call("guess", number=2 + r(6)) + END, call("guess", number=r(9)) + END],
    lambda r: [call("guess", number=r(9)) + END, "higher or lower " * 20],
]


def game_prompts(count):
    return [{"prompt": replay_messages("Let us play."), "target": 1 + 4 * i % 9} for i in range(count)]


RUNS = {
    "grpo_tools": {
        "scripts": SCRIPTS, "prompts": tool_prompts, "with": {"tools": [add, find, now], "reward_funcs": None},
        "options": {"loss_type": "grpo", "beta": 0.04, "num_iterations": 2, "epsilon": 0.1, "learning_rate": 3e-3, "temperature": 0.8,
                    "max_completion_length": 200, "max_tool_calling_iterations": 2},
    },
    "grpo_environment": {
        "scripts": GAMES, "prompts": game_prompts, "with": {"environment_factory": Game},
        "options": {"loss_type": "dapo", "beta": 0.0, "num_iterations": 1, "learning_rate": 5e-3, "temperature": 1.0,
                    "max_completion_length": 190, "mask_truncated_completions": True},
    },
}
BASE = {"per_device_train_batch_size": BATCH, "num_generations": GROUP, "lr_scheduler_type": "linear"}


class Scripted(GRPOTrainer):
    """Returns scripted completions instead of samples, and records TRL's results."""

    def follow(self, generations, limit):
        self.generations, self.limit, self.seen = generations, limit, []

    def _generate_single_turn(self, prompt_ids, *_, **__):
        script = self.generations[len(self.seen)]
        if not hasattr(self, "turns_taken") or self.turns_taken is None:
            self.turns_taken, self.so_far = [0] * len(script), [list(ids) for ids in prompt_ids]
            rows = range(len(script))
        else:
            # Unfinished rollouts, in order: their ids begin with their earlier ids.
            rows, at = [], 0
            for ids in prompt_ids:
                while ids[: len(self.so_far[at])] != self.so_far[at]:
                    at += 1
                rows.append(at)
                at += 1
        written = []
        for row, ids in zip(rows, prompt_ids):
            text = script[row][self.turns_taken[row]]
            turn = self._tokenizer(text)["input_ids"][: self.limit]
            self.turns_taken[row] += 1
            self.so_far[row] = ids + turn
            written.append(turn)
        return written, None

    def _generate(self, prompts):
        self.turns_taken = None
        found = super()._generate(prompts)
        prompt_ids, completion_ids, mask, completions = found[:4]
        self.seen.append({"prompt_ids": prompt_ids, "completion_ids": completion_ids, "mask": mask, "completions": completions})
        return found

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        last = self.seen[-1]
        last["advantages"] = output["advantages"].tolist()
        if output.get("old_per_token_logps") is not None:
            last["old_per_token_logps"] = self.of_policy(output["old_per_token_logps"], last["mask"])
        return output

    def _calculate_rewards(self, *given, **more):
        found = super()._calculate_rewards(*given, **more)
        assert found.shape == (BATCH, 1)
        self.seen[-1]["rewards"] = found[:, 0].tolist()
        return found

    def of_policy(self, logps, mask):
        """The log-probabilities of the policy's tokens of each rollout."""
        return [[x for x, counts in zip(row.tolist(), bits) if counts] for row, bits in zip(logps.detach(), mask)]

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, *given, **more):
        logps, *rest = found = super()._get_per_token_logps_and_entropies(model, input_ids, attention_mask, *given, **more)
        if logps.requires_grad:
            # TRL shuffles the rollouts of a generation. Omitted rollouts read nothing, so their values have no meaning.
            last = self.seen[-1]
            rows = [[token for token in ids if token != self._tokenizer.pad_token_id] for ids in input_ids.tolist()]
            at = [rows.index(prompt + ids) for prompt, ids in zip(last["prompt_ids"], last["completion_ids"])]
            last.setdefault("updates", []).append(self.of_policy(logps[at], last["mask"]))
        return found


def exact_logprobs(root, first, temperature):
    """Log-probabilities of the start model in float64, for the policy's tokens of each rollout."""
    model = replay.load(root / "models", "qwen3").double().eval()
    found = []
    for prompt, ids, mask in zip(first["prompt_ids"], first["completion_ids"], first["mask"]):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1] / temperature
        assert logits.dtype == torch.float64
        logps = selective_log_softmax(logits, torch.tensor(ids))
        found.append([x for x, counts in zip(logps.tolist(), mask) if counts])
    return found


def turns_of(ids, mask):
    """The ids of the policy and of the answers, turn by turn."""
    turns, before = [], False
    for token, counts in zip(ids, mask):
        if counts and not before:
            turns.append({"drawn": [], "answered": []})
        turns[-1]["drawn" if counts else "answered"].append(token)
        before = bool(counts)
    return turns


def calls_of(messages):
    """Each call with its answer, or with None if there was none."""
    answers = iter([message["content"] for message in messages if message["role"] == "tool"])
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or []]
    return [[call["name"], json.dumps(call["arguments"]), next(answers, None)] for call in calls]


def run(root, name):
    spec = RUNS[name]
    options = {**BASE, **spec["options"]}
    out = root / name
    out.mkdir(exist_ok=True)
    rng = random.Random(SEED)
    count = replay.STEPS // options["num_iterations"]
    roll = lambda most: rng.randint(1, most)  # noqa: E731
    scripts = [[spec["scripts"][(g * BATCH + i) % len(spec["scripts"])](roll) for i in range(BATCH)] for g in range(count)]
    recorded = [[round(rng.random(), 3) for _ in range(BATCH)] for _ in range(count)]
    rows = spec["prompts"](count * BATCH // GROUP)
    replay.write_rows(out / "rows.jsonl", rows)
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")

    def reward(completion_ids, trainer_state=None, **_):
        return recorded[len(trainers[-1].seen) - 1]

    trainers, recorders = [], []
    for attention in ("eager", "sdpa"):
        recorder = replay.Recorder()
        with tempfile.TemporaryDirectory() as scratch:
            args = GRPOConfig(output_dir=scratch, report_to=[], bf16=False, use_cpu=True, gradient_checkpointing=False, disable_tqdm=True,
                              logging_steps=1, save_strategy="no", max_steps=replay.STEPS, gradient_accumulation_steps=1, seed=SEED,
                              shuffle_dataset=False, disable_dropout=True, **options)
            more = dict(spec["with"])
            if "reward_funcs" in more:
                more["reward_funcs"] = reward
            trainer = Scripted(model=replay.load(root / "models", "qwen3", attention=attention), args=args,
                               train_dataset=Dataset.from_list(rows), processing_class=tokenizer(), callbacks=[recorder], **more)
            trainer.follow(scripts, options["max_completion_length"])
            trainers.append(trainer)
            recorders.append(recorder)
            trainer.train()
        assert len(trainer.seen) == count
    trainer, other = trainers
    steps, others = (replay.steps_of(t, r) for t, r in zip(trainers, recorders))
    far = lambda key: max(abs(a[key] - b[key]) for a, b in zip(steps, others))  # noqa: E731
    drift = {"loss": far("loss"), "grad_norm": far("grad_norm")}
    print(name, drift)

    answers = []
    for g, seen in enumerate(trainer.seen):
        for i in range(BATCH):
            turns = turns_of(seen["completion_ids"][i], seen["mask"][i])
            assert sum((turn["drawn"] + turn["answered"] for turn in turns), []) == seen["completion_ids"][i]
            answers.append({"generation": g, "prompt_ids": seen["prompt_ids"][i], "turns": turns, "reward": seen["rewards"][i]})
    replay.write_rows(out / "rollouts.jsonl", answers)
    first = trainer.seen[0]
    longest = max(len(seen["prompt_ids"][i] + seen["completion_ids"][i]) for seen in trainer.seen for i in range(BATCH))
    print(name, "longest sequence", longest)
    write_json(out / "run.json", {
        "meta": meta(SEED, "trl"),
        "start_model": "qwen3",
        "hyper_parameters": options,
        "largest_difference_by_rounding": drift,
        "steps": steps,
        "first": {
            "calls": [calls_of(messages) for messages in first["completions"]],
            "advantages": first["advantages"],
            "old_logprobs": first.get("old_per_token_logps"),
            "logprobs": first["updates"],
            "exact_logprobs": exact_logprobs(root, first, options["temperature"]),
        },
        "final_weights": replay.weights(trainer.model),
    })


def main():
    root = arguments("trajectories")
    for name in RUNS:
        run(root, name)


main()
