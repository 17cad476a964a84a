"""Trains a policy on a game of several turns: guess a number from the answers `higher` and `lower`.

    python guess.py run --gradus target/release/gradus --out guess       # model, rows, SFT on random games, GRPO with three seeds
    python guess.py table --out guess --plot docs/guess.svg              # from the files of the runs

Nothing is downloaded: the model is small and random, and its tokens are bytes. It is first trained on the games of a
careless player, who uses the answers in every second guess. Then the game itself is its environment. The table has four players for
comparison: one that guesses at random, the careless one, one that guesses at random among the remaining numbers, and one that bisects.
"""

import argparse
import json
import pathlib
import random
import shlex
import statistics
import subprocess
import time

import plot as pictures

HIGH, GUESSES, GAMES, SEEDS = 7, 3, 6000, [1, 2, 3]
STEPS, EVERY, HELD_OUT = 300, 25, 500
PROMPT = f"A number from 1 to {HIGH}.\n"
# The environment writes its answers as lines, as the games do.
GAME = f'{{ guess: {{ low: 1, high: {HIGH}, guesses: {GUESSES}, explain: false, after: "\\n" }} }}'


def play(number, choose):
    """A game: its turns, its answers, and its reward as in docs/environments.md."""
    low, high, text = 1, HIGH, ""
    for done in range(1, GUESSES + 1):
        guess = choose(low, high)
        text += f"{guess}\n"
        if guess == number:
            return text, 1 - (done - 1) / GUESSES
        if guess < number:
            low, text = max(low, guess + 1), text + "higher\n"
        else:
            high, text = min(high, guess - 1), text + "lower\n"
    return text, 0.0


def careless(stream):
    return lambda low, high: stream.randint(low, high) if stream.random() < 0.5 else stream.randint(1, HIGH)


def expected(choose, repetitions):
    stream = [play(number, choose)[1] for number in range(1, HIGH + 1) for _ in range(repetitions)]
    return statistics.mean(stream)


def gradus(binary, *arguments):
    print("$ gradus", shlex.join(map(str, arguments)), flush=True)
    subprocess.run([binary, *map(str, arguments), "--quiet"], check=True)


def run(binary, out):
    stream = random.Random(0)
    (out / "tokenizer").mkdir(parents=True)
    (out / "tokenizer/tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}\n')
    games = (play(stream.randint(1, HIGH), careless(stream))[0] for _ in range(GAMES))
    rows = [{"prompt": PROMPT, "completion": game} for game in games]
    (out / "games.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (out / "prompts.jsonl").write_text((json.dumps({"prompt": PROMPT}) + "\n") * 64)
    (out / "held_out.jsonl").write_text((json.dumps({"prompt": PROMPT}) + "\n") * HELD_OUT)
    gradus(binary, "new-model", "--family", "llama", "--size", "tiny", "--tokenizer", out / "tokenizer", "--output", out / "model",
           "--set", "hidden_size=96", "--set", "intermediate_size=256", "--set", "num_hidden_layers=3")
    gradus(binary, "sft", "--model", out / "model", "--data", out / "games.jsonl", "--output-dir", out / "sft", "--max-steps", 800,
           "--batch-size", 32, "--learning-rate", 3e-3, "--eval-steps", 200)
    for seed in SEEDS:
        started = time.monotonic()
        gradus(binary, "grpo", "--model", out / "sft/model", "--data", out / "prompts.jsonl", "--eval-data", out / "held_out.jsonl",
               "--environment", GAME, "--output-dir", out / f"grpo-{seed}", "--seed", seed, "--max-steps", STEPS, "--batch-size", 32,
               "--group-size", 8, "--learning-rate", 3e-4, "--kl-coefficient", 0, "--max-new-tokens", 40, "--stop", "\n",
               "--temperature", 1, "--eval-steps", EVERY, "--max-eval-rows", HELD_OUT)
        print(f"seed {seed}: {time.monotonic() - started:.0f} s", flush=True)


def curve(folder, key):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row[key] for row in rows if key in row}


def table(out, plot):
    stream = random.Random(1)
    among = lambda low, high: stream.randint(low, high)
    known = [("random guesses", expected(lambda low, high: stream.randint(1, HIGH), 2000)),
             ("the careless player", expected(careless(stream), 2000)), ("random among the remaining numbers", expected(among, 2000)), ("halving", expected(lambda low, high: (low + high) // 2, 1))]
    runs = [out / f"grpo-{seed}" for seed in SEEDS]
    rewards = [curve(folder, "eval_reward") for folder in runs]
    found, guesses = ([curve(folder, f"eval_environment/{name}") for folder in runs] for name in ("found", "guesses"))
    of = lambda curves, step: f"{statistics.mean(c[step] for c in curves):.3f} ± {statistics.stdev(c[step] for c in curves):.3f}"
    print("| | reward | games won | guesses per game |\n|---|---|---|---|")
    for step in (0, STEPS // 4, STEPS // 2, STEPS):
        print(f"| GRPO, step {step} | {of(rewards, step)} | {of(found, step)} | {of(guesses, step)} |")
    for name, reward in known:
        print(f"| {name} | {reward:.3f} | | |")
    if plot:
        title = f"Reward of {HELD_OUT} held-out games: three seeds, their mean, lowest and highest"
        plot.write_text(pictures.curves(title, {"GRPO": rewards}, known))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--gradus", type=pathlib.Path, default=pathlib.Path("gradus"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("guess"))
    parser.add_argument("--plot", type=pathlib.Path)
    given = parser.parse_args()
    if given.what == "run":
        run(given.gradus.resolve() if given.gradus.exists() else given.gradus, given.out.resolve())
    else:
        table(given.out, given.plot)


if __name__ == "__main__":
    main()
