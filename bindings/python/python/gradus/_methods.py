"""A function for every training method. Made by ``tools/make_methods.py`` from the configuration's schema."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from gradus._data import Rows
from gradus._model import Model
from gradus._run import Run
from gradus._training import train

if TYPE_CHECKING:
    from typing import Unpack

Name: TypeAlias = str | os.PathLike[str]
#: A function with TRL's contract, the name of a reward model, a mapping as in a configuration, or a list of these.
Reward: TypeAlias = Callable[..., Any] | Name | Mapping[str, Any] | Sequence["Callable[..., Any] | Name | Mapping[str, Any]"]
OnStep: TypeAlias = Callable[[int, int, dict[str, float]], Any]
OnEvaluation: TypeAlias = Callable[[int, dict[str, float], bool], Any]
OnRollouts: TypeAlias = Callable[[int, list[dict[str, Any]]], Any]


class SharedKeys(TypedDict, total=False):
    """Keys of every method."""

    tokenizer: Name
    """A tokenizer that is not beside the model: a directory or a hub name. It is saved with every model of the run.
    Default: the model's own."""
    split: Literal["train", "validation", "test"]
    """The part of the data. Default: for training `train`; to evaluate a task `validation`."""
    mix: Any
    """More training rows, from other files or splits, beside those of `data` (which `train.max_rows` bounds)."""
    eval_split: Literal["train", "validation", "test"]
    """The part of the data. Default: for training `train`; to evaluate a task `validation`."""
    test_split: Literal["train", "validation", "test"]
    """The part of the data. Default: for training `train`; to evaluate a task `validation`."""
    adapter: Name
    """An adapter to go on with, on `model`: a directory in peft's format or a hub name. Nothing else is trained."""
    preset: Literal["rl4lms", "fine_grained", "gspo", "dapo", "dr_grpo"]
    """Use the defaults of another system; keys that are written win. `gradus config explain preset` shows them."""
    lora_rank: int
    """Rank r of the adapter. Default 16 (TRL)."""
    lora_alpha: float
    """α: what the adapter adds is multiplied by α/r. Default 32 (TRL)."""
    lora_dropout: float
    """Dropout before the adapter while it trains: for sft, reward, classify, and for updates of online methods but trpo
    (see `train.dropout`). The other methods compare with a model that has none. Default 0."""
    lora_targets: str | Sequence[str]
    """Linear layers that get an adapter, by the ends of their names; `all-linear` takes all but the heads. Default:
    those of attention."""
    lora_target_pattern: Name
    """The same by a regular expression over whole names, such as `.*\\.mlp\\..*`."""
    lora_rank_stabilised: bool
    """Rank-stabilized: α/√r instead of α/r (Kalajdzievski 2023). Default false."""
    lora_dora: bool
    """DoRA: train the lengths of the weights' rows too (Liu et al. 2024). Default false."""
    rollouts_server: Name
    """The address of the server, such as `http://localhost:8000`."""
    rollouts_kind: Literal["gradus", "vllm", "sglang"]
    """The kind of server: `gradus`, `vllm` or `sglang`. Default `vllm`."""
    rollouts_model: Name
    """The name of the model on the server. Default: the first of its list."""
    rollouts_shared: Name
    """A folder that this process and the server both see: adapters and weights go through it."""
    rollouts_shared_at_server: Name
    """The path of that folder at the server. Default: the same."""
    rollouts_key_variable: Name
    """The environment variable that holds the key of the server. Default: the server wants none."""
    rollouts_connections: int
    """Requests under way at a time, each for one prompt. Default 16."""
    rollouts_timeout_s: float
    """Seconds that one request may take. Default 1800."""
    rollouts_wait_s: float
    """Seconds that the run waits for a server that does not answer, before it writes a checkpoint and ends. Default
    600."""
    rollouts_max_staleness: int
    """How many iterations ahead the server samples while this process trains. The completions are then from weights
    that are so many iterations old. Default 0: each waits for the other."""
    rollouts_importance_sampling_correction: bool
    """Multiply the loss with the ratio of the probabilities that the policy and the server give a completion. Default
    true (TRL)."""
    rollouts_importance_sampling_mode: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
    """Whether each token or each sequence has a ratio, and what happens to ratios beyond the bounds: they become the
    bounds (`truncate`) or 0 (`mask`). Default `sequence_mask` (TRL)."""
    rollouts_importance_sampling_clip_max: float
    """The upper bound of the ratio; null for none. Default 3 (TRL)."""
    rollouts_importance_sampling_clip_min: float
    """The lower bound of the ratio. Default: none (TRL)."""
    epochs: float
    """Passes over the data. Default 1. `max_steps` wins where both are given."""
    max_steps: int
    """Optimizer steps (online methods: iterations). Default: from `epochs`."""
    batch_size: int
    """Rows (offline: rows or pairs; online: prompts) a step. Default 8 (TRL)."""
    micro_batch_size: int
    """Rows of one forward and backward pass. Default: bounded by `micro_batch_tokens`. The result does not depend on
    it."""
    micro_batch_tokens: int
    """Tokens of one forward and backward pass at most. Default 4096."""
    lanes: int
    """In how many parts the rows of an optimizer step are added up: a power of two. Within a part, gradients are added
    up in the order of the rows, and the parts in a fixed binary tree. So a run gives the same bits on any number of
    ranks up to this one. Default: 1; 8 for a run that is started on ranks (`--ranks`, `mpirun`, `srun`)."""
    shard_moments: bool
    """Keep the moments of the optimizer once over all ranks, each rank its share (ZeRO-1), instead of once on each. The
    results are the same bits. Default false."""
    try_longest: bool
    """Compute the longest pass once before the first step, without an update, so that memory trouble shows at once.
    Default true; the result does not depend on it."""
    memory_check: bool
    """Refuse a run that needs more memory than the machine has, before anything is loaded. Default true."""
    recompute: bool
    """Gradient checkpointing (TRL's `gradient_checkpointing`): compute each transformer block again in the backward
    pass instead of keeping its activations. Less memory for one more forward pass (about a third more arithmetic); the
    result is the same, to the bit. Default false (TRL: true)."""
    learning_rate: float
    """Peak learning rate. The default is the method's."""
    lr_schedule: Literal["linear", "cosine", "constant"]
    """How the learning rate falls after warm-up. Default `linear` (TRL)."""
    warmup_steps: float
    """Steps over which the learning rate rises from 0; below 1, a fraction of all steps. Default 0."""
    weight_decay: float
    """Weight decay, never on biases and norms: AdamW's is decoupled, RMSprop's part of the gradient. Default 0
    (TRL)."""
    optimizer: Literal["adamw", "rmsprop"]
    """The optimizer. Default `adamw` (TRL)."""
    adam_betas: float | Sequence[float]
    """AdamW's decay rates of the two moments. Default [0.9, 0.999] (TRL)."""
    adam_epsilon: float
    """AdamW's epsilon. Default 1e-8 (TRL)."""
    moments: Literal["f32", "int8"]
    """How AdamW's two moments are held: `f32`, or `int8` (bitsandbytes' 8-bit AdamW): a quarter of the memory, for a
    small error in each step. Default `f32` (TRL)."""
    offload_moments: bool
    """Hold the moments in the machine's own memory while a GPU computes. The processor makes the optimizer's steps:
    each step copies weights and gradients to it and weights back. Default false; on `cpu` it changes nothing."""
    rmsprop_alpha: float
    """RMSprop's decay rate of the squared gradient's mean. Default 0.99 (PyTorch, A2C in RL4LMs)."""
    rmsprop_epsilon: float
    """RMSprop's epsilon, added to the root of that mean. Default 1e-8 (PyTorch; A2C in RL4LMs 1e-5)."""
    max_grad_norm: float
    """Gradients are scaled down to this norm; 0 turns it off. Default 1 (TRL)."""
    max_length: int
    """Longest row in tokens, prompt and completion together; where an encoder reads the prompt, each of them. Default
    1024 (TRL)."""
    too_long: Literal["skip", "truncate"]
    """The treatment of longer rows. The default depends on the method, as in TRL."""
    max_prompt_length: int
    """Longest prompt in tokens that completions are sampled for; longer ones are cut. Rows of preferences are cut by
    `too_long` alone. Default: no prompt is cut, and prompts without room for a completion within `max_length` are left
    out."""
    prompt_truncation: Literal["left", "right"]
    """The side at which such prompts are cut. Default `left` (RL4LMs)."""
    filter_drop_ties: bool
    """Leave out pairs that the data marks as ties: `margin` is 0, or both answers have the same score (`score_chosen`
    and `score_rejected`, `chosen_score` and `rejected_score`, `chosen_rating` and `rejected_rating`). Default false."""
    filter_drop_equal: bool
    """Leave out pairs with equal answers. White space around an answer does not count. Default false."""
    filter_min_characters: int
    """Leave out rows with an answer of fewer characters than this. An answer is `completion`, `chosen`, `rejected`, the
    last message of the assistant, or the whole of a plain text. White space around it does not count. Default 0:
    none."""
    filter_min_tokens: int
    """Leave out rows with an answer of fewer tokens than this. Default 0: none."""
    skip_bad_rows: bool
    """Leave bad rows out instead of ending the run: gradus reports how many, and `skipped_rows.jsonl` in the run
    directory lists each with what is wrong. Default false."""
    max_rows: int
    """Use at most this many training rows."""
    max_rows_at_random: bool
    """Draw those `max_rows` rows at random by the seed, instead of taking the first of the file. Default false."""
    max_eval_rows: int
    """Use at most this many held-out rows. Default 1000; online methods 100, unless it is given."""
    eval_fraction: float
    """The share of training rows held out when there is no `eval_data`; 0 turns it off. Default 0.05, but at least 16
    rows (or a fifth of fewer than 80), and none without shuffling."""
    tensorboard: bool
    """Write an event file for TensorBoard, `tensorboard/`, beside `metrics.jsonl`. Default false."""
    wandb: bool
    """Write an offline run of Weights & Biases, `wandb/offline-run-…`, for `wandb sync`. Default false."""
    wandb_project: Name
    """The project of the run there. Default `gradus`."""
    wandb_entity: Name
    """The user or team that the project belongs to. Default: whoever uploads it."""
    wandb_name: Name
    """The name of the run there. Default: the name of the run directory."""
    eval_steps: int
    """Evaluate every so many steps; 0 only at the end; -1 never. Default 0."""
    eval_sample: int
    """Evaluate on so many held-out rows, drawn anew with replacement each time. Default: on all of them, every time the
    same."""
    evaluation_metrics: Any
    """Metrics of completions beside their references (`[rouge, { bleu: { max_order: 2 } }]`; docs/metrics.md lists
    them). Methods that sample nothing in training sample for these. Default: none."""
    evaluation_post_process: Any
    """The change of completions before metrics read them. Default: none."""
    evaluation_max_new_tokens: int
    """Longest completion in tokens."""
    evaluation_min_new_tokens: int
    """Stop ids are not drawn before this many tokens."""
    evaluation_temperature: float
    """Sampling temperature; 0 takes the likeliest token."""
    evaluation_top_k: int
    """Draw from this many of the likeliest tokens only; 0: from all."""
    evaluation_top_p: float
    """Draw from the fewest tokens that together have this probability."""
    evaluation_typical_p: float
    """Draw only the tokens whose information is closest to the entropy, the fewest that together have this
    probability."""
    evaluation_repetition_penalty: float
    """Logits of tokens that are already there are divided by it when positive, multiplied when negative."""
    evaluation_no_repeat_ngram_size: int
    """No sequence of this many tokens appears twice, prompt included; 0: off."""
    evaluation_encoder_no_repeat_ngram_size: int
    """No sequence of this many tokens of the prompt appears in the completion; 0: off."""
    evaluation_beams_num_beams: int
    """Rows that go on side by side, at least 2. Default 4."""
    evaluation_beams_length_penalty: float
    """A completion is ranked by its log-probability over its length to this power: above 0 prefers long ones. Default
    1."""
    evaluation_beams_early_stopping: Literal["true", "false", "never"]
    """When a search ends, once as many completions have ended as there are beams: `true` at once, `false` when the
    likeliest open beam would not rank among them if it ended now, `never` when no open beam can rank among them any
    more. Default `false`."""
    evaluation_beams_num_beam_groups: int
    """Diverse beam search: the beams are divided into this many groups with separate searches. A group avoids tokens
    that earlier groups chose at the same position. It divides `num_beams`. Default 1."""
    evaluation_beams_diversity_penalty: float
    """The penalty on a token's log-probability for every beam of an earlier group that has the same token at the same
    position. Must be above 0 with groups. Default 0."""
    evaluation_samples: int
    """Completions of each held-out prompt; of a search the best ones. Default 1."""
    save_steps: int
    """Write a checkpoint every so many steps; 0 only at the end. Default 0."""
    keep_checkpoints: int
    """Keep this many checkpoints. Default 2."""
    logging_steps: int
    """Append to `metrics.jsonl` every so many steps. Default 1."""
    save_rollouts: bool
    """Keep every completion that was trained on in `rollouts.sqlite` (online methods); those of evaluations and
    warnings are kept there either way. Default true: they show what the reward really pays for, and a thousand steps of
    64 completions of 200 tokens take about 100 MB."""
    best_metric: Name
    """The held-out metric that decides which model is `best/`, and whether larger or smaller is better follows from its
    name. The default is the method's."""
    early_stopping_patience: int
    """Stop when the best metric has not improved for so many evaluations; 0 never. Default 0."""
    shuffle: bool
    """Shuffle the rows each epoch. Default true; `--no-shuffle` keeps the file's order."""
    priority_scale: float
    """Draw prompts with replacement, with probabilities in proportion to their column `weight` (1 without one) to this
    power. 0 draws all alike. For online methods only (RL4LMs' priority sampler, whose weights are all 1). Default:
    none, so every prompt comes once an epoch."""
    dropout: bool
    """Dropout as the model's configuration says, instead of none. For sft, reward, classify, and for the updates of
    online methods except trpo. Completions are sampled and scored without dropout. The ratios of ppo, nlpo and a2c
    compare with logprobs without dropout, so the first ratios are not 1 (FineGrainedRLHF). The ratios of grpo and rloo
    compare with logprobs with dropout (TRL). Default false."""
    seed: int
    """The seed of every random stream. Default 42 (TRL)."""
    device: Name
    """Where to compute: `cpu`; in a build with the cargo feature `cuda` or `wgpu` also `gpu`, `gpu:1` and so on
    (`gradus doctor` lists them). Default `cpu`."""
    compute: Literal["f32", "bf16"]
    """How the operands of matrix products are held: `f32` or `bf16` (about twice as fast where the processor multiplies
    it; weights, sums and the optimizer stay in f32, frozen models are kept in bf16). Default `f32`."""
    sampling_weights: Literal["f32", "bf16", "int8", "nf4"]
    """How the weights that completions are sampled with are held: `f32`, `bf16`, `int8` or `nf4`. Coarser than
    `compute`, sampling is faster, logprobs are computed again by the policy itself, and how far the two are apart is
    reported. Default: as `compute`."""
    frozen_weights: Literal["f32", "bf16", "int8", "nf4"]
    """How weights are held that are not trained (the base under an adapter, reference, reward models): `f32`, `bf16`,
    `int8` or `nf4` (under an adapter QLoRA, Dettmers et al. 2023). Default: as `compute`."""
    saved_weights: Literal["f32", "bf16", "f16"]
    """How the weights of `model/` and `best/` lie on disk: `f32`, `bf16` or `f16` (half the size, rounded).
    Checkpoints, adapters and critics keep `f32`. Default `f32`."""
    threads: int
    """Threads. Default: one per core."""
    text_column: Name
    """The column that holds plain text for language modeling. Default `text`."""
    column: str | Sequence[str]
    """Columns that are read under other names, as `name=column`: `prompt=question` takes the column `question` for the
    prompt."""
    system_prompt: Name
    """The system message of every conversation that has none of its own. Rows that are not conversations are refused
    then. Default: none."""
    transcripts_as_messages: bool
    """Read transcripts (`\\n\\nHuman: …\\n\\nAssistant: …`, as in HH-RLHF) as conversations, which the model's chat
    template renders. Default false: they are trained on as they are written."""
    chat_template: Name
    """A chat template that replaces the model's own: a file, or the name of one (`chatml`, `gemma`, `llama2`, `llama3`,
    `mistral`, `phi3`, `qwen`, `zephyr`)."""
    train: Any
    """The part `train` of a configuration, as a mapping."""
    evaluation: Any
    """The part `train.evaluation`, as a mapping; `metrics` may hold functions."""
    observers: Any
    """Functions `observer(kind, details)` that are told of everything that happens; one that returns False stops the
    run."""


class OnlineKeys(SharedKeys, total=False):
    """Keys of every method that samples."""

    task: Any
    """The task that makes rows of its public files: its name, or a mapping of its name and its keys. The default is the
    method's."""
    eval_task: Any
    """The task that makes rows of its public files: its name, or a mapping of its name and its keys."""
    test_task: Any
    """The task that makes rows of its public files: its name, or a mapping of its name and its keys."""
    max_new_tokens: int
    """Longest completion in tokens. The default is the method's."""
    stop: str | Sequence[str]
    """Strings that end a completion."""
    sampling_top_k: int
    """Draw from this many of the likeliest tokens only. Default: all of them."""
    sampling_top_p: float
    """Draw from the fewest tokens that together have this probability. Default 1: all of them."""
    sampling_min_p: float
    """Draw only tokens at least this share as likely as the likeliest. Default 0: all of them."""
    sampling_typical_p: float
    """Draw only the tokens whose information is closest to the entropy, the fewest that together have this probability
    (locally typical sampling). Default 1: all of them."""
    sampling_repetition_penalty: float
    """Logits of tokens that are already there, prompt included, are divided by it when positive, multiplied when
    negative. Default 1: off."""
    sampling_no_repeat_ngram_size: int
    """No sequence of this many tokens appears twice, prompt included. Default 0: off."""
    sampling_encoder_no_repeat_ngram_size: int
    """No sequence of this many tokens of the prompt appears in the completion; the prompt is what an encoder reads,
    where there is one. Default 0: off."""
    sampling_min_new_tokens: int
    """Stop ids are not drawn before this many tokens. Default 0."""
    sampling_suppress_tokens: float | Sequence[float]
    """Token ids that are never drawn."""
    sampling_bad_words_ids: Any
    """Sequences of token ids that are never completed; a stop id alone is not banned by it."""
    sampling_forced_bos_token_id: int
    """The id that every completion begins with. Default: the one that the generation configuration of a model with an
    encoder forces, if any."""
    sampling_forced_eos_token_id: int
    """The id that a completion of `max_new_tokens` ends with. Default: the one that the generation configuration of a
    model with an encoder forces, if any."""
    sampling_trained_logprobs: Literal["raw", "untempered", "processed"]
    """The log-probabilities in the loss: those of the model at the sampling temperature (`raw`), those at temperature 1
    whatever the sampling temperature (`untempered`, FineGrainedRLHF), or those of the distribution that was drawn from
    (`processed`), for which the tokens that could be drawn are kept and the policy, the reference, ratios, KL and
    entropy are taken among them; whole rows of logits are then in memory. `processed` goes with every other key here
    except `repetition_penalty`. Default `raw` (TRL)."""
    reference_model: Name
    """The reference: a model directory. Default: the model training starts from."""
    reward_model: Name
    """A reward model directory or hub name."""
    reward_classifier_model: Name
    """The classifier: a `…ForSequenceClassification` directory or a hub name."""
    reward_classifier_label: Name
    """The label that is rewarded, by name or number. Default: the only one there is."""
    reward_classifier_value: Literal["logit", "probability", "log_odds"]
    """The value of the label that becomes the reward. Default: its probability, or the number itself for a regression
    model."""
    reward_classifier_text: Name
    """The text that is read: `{prompt}`, `{completion}`, `{reference}` and any column of the row stand in braces.
    Default: prompt and completion, one after the other."""
    reward_classifier_pair: Name
    """A second text that is read beside the first, such as a hypothesis beside its premise. Default: none."""
    reward_classifier_truncate: Literal["left", "right"]
    """The side at which texts longer than the classifier's positions are cut. Default: such a text is an error."""
    reward_rule_length_target: int
    """The wanted length in tokens."""
    reward_rule_length_tolerance: int
    """Half width of the triangle around the target: reward 1 at the target, 0 at this distance and beyond. Default:
    `target`."""
    reward_rule_soft_overlong_max_length: int
    """Tokens of a completion, its stop id included, from which on the penalty is whole."""
    reward_rule_soft_overlong_cache: int
    """Over how many tokens before that it grows."""
    reward_rule_regex: Name
    """1 when the regular expression is found in the completion, else 0."""
    reward_rule_exact_match: Name
    """1 when the completion equals the named column, white space at the ends aside, else 0."""
    reward_rule_substring: Name
    """1 when the text is found in the completion, else 0."""
    reward_rule_numeric_answer: Name
    """1 when the last number of the completion equals that of the named column (GSM8K's `#### n` understood), else
    0."""
    reward_rule_math_column: Name
    """The column of the right answer: a text with the answer in it, or bare LaTeX. A row without an answer there is not
    scored."""
    reward_rule_math_after: Name
    """The mark after which the answer is looked for, such as `</think>`; a completion without the mark is wrong.
    Default: none."""
    reward_rule_cosine_length_column: Name
    """The column of the right answer, as of `math`."""
    reward_rule_cosine_length_after: Name
    """The mark after which the answer is looked for, as of `math`. Default: none."""
    reward_rule_cosine_length_max_length: int
    """Tokens from which on a completion counts as longest."""
    reward_rule_cosine_length_right_short: float
    """Of the shortest."""
    reward_rule_cosine_length_right_long: float
    """Of the longest."""
    reward_rule_cosine_length_wrong_short: float
    """Of the shortest."""
    reward_rule_cosine_length_wrong_long: float
    """Of the longest."""
    reward_rule_repeat_penalty: Name
    """−1 when the completion repeats the prompt after this prefix, the prefix, `generate` or `sentence`, else 0
    (RL4LMs' shaping for CommonGen, whose prefix is `generate a sentence with: `)."""
    reward_rule_lexicon: Name
    """Mean valence of the completion's words by a lexicon file in VADER's format."""
    reward_metric: Any
    """A metric of each completion (docs/metrics.md): the choice is the key, as in `rouge: {}`. Metrics without a value
    of one new completion cannot be rewards: `diversity`, `distinct`, `perplexity`, and `spice` over `scene_graphs`."""
    reward_toxicity_scorer: Any
    """The scorer of a completion's toxicity; it reads the completion without its prompt."""
    reward_toxicity_segments: Literal["whole", "sentence", "sub_sentence"]
    """The rewarded unit: the `whole` completion, by 1 − its toxicity; or each `sentence` or `sub_sentence`, by the
    decrease in toxicity from the text before it to the text with it. Default `whole`."""
    reward_command: str | Sequence[str]
    """An external program: arguments as a list. One JSON object a line in; a number, null or an object of parts a line
    out."""
    reward_command_timeout_s: float
    """Seconds it may take for one batch of completions. Default 60."""
    reward_command_name: Name
    """The name of the reward in the log. Default `command`."""
    reward_judge_url: Name
    """The endpoint up to `/v1`, such as `http://localhost:8000/v1`; `/chat/completions` is added."""
    reward_judge_model: Name
    """The model that judges, as the endpoint calls it."""
    reward_judge_key_variable: Name
    """The environment variable that holds the key, which is sent as a bearer token and never written down. Default: no
    key."""
    reward_judge_verdict: Any
    """How it judges. Default: on a scale from 1 to 10."""
    reward_judge_template: Name
    """The question. `{prompt}`, `{completion}` and any column of the row stand in braces; of a pair `{completion_a}`
    and `{completion_b}`. The judge must end with its verdict in double brackets: `[[7]]`, or `[[A]]`, `[[B]]` or
    `[[C]]` for a tie. Default: a question of gradus's own."""
    reward_judge_max_tokens: int
    """The most tokens of an answer. Default 512."""
    reward_judge_temperature: float
    """The temperature of the judge. Default 0."""
    reward_judge_record: Name
    """The file of the judge's answers; a question in it is not sent again. Default: `judgements.jsonl` in the directory
    of the run."""
    reward_judge_requests_per_second: float
    """Requests a second at most, over all connections. Default 20."""
    reward_judge_connections: int
    """Requests under way at a time. Default 8."""
    reward_judge_retries: int
    """How often a question is sent again after a temporary refusal (429), a server error, a broken connection or an
    answer without a verdict. Default 5."""
    reward_judge_timeout_s: float
    """Seconds that one request may take. Default 60."""
    reward_code_tests: Name
    """The column of the tests: a Python program, or a list of programs such as `["assert add(1, 2) == 3", …]`. One that
    ends without an exception is passed."""
    reward_code_value: Literal["all", "share"]
    """The reward: the `share` of passed tests, or 1 if `all` pass and else 0. Default `all`."""
    reward_code_sandbox_python: Name
    """The interpreter. Default `python3`."""
    reward_code_sandbox_seconds: int
    """Seconds that one program may take, of the processor and by the clock. Default 5."""
    reward_code_sandbox_memory_mb: int
    """Megabytes of memory that one program may hold. Default 256."""
    reward_code_at_once: int
    """Programs that run at a time. Default 2."""
    reward_fine_grained: Any
    """Parts that judge the segments of a completion: sentences, parts of sentences, or the whole."""
    reward_mix: Any
    """A weighted sum of rewards."""
    environment: Any
    """The environment that answers the policy between its turns (online methods only; docs/environments.md): its name
    is the key."""
    tools: Any
    """Tools that the policy may call (online methods only; docs/environments.md). The model needs a chat template."""
    episode_max_turns: int
    """The most turns of the policy. Default 16."""
    episode_timeout_s: float
    """The longest that one answer may take, in seconds. An episode whose answer takes longer has failed, and nothing is
    learned from it. Default 120."""
    episode_max_time_s: float
    """The longest that all answers of one episode may take together, in seconds. An episode that took longer ends, with
    the reward it has. Default: no limit."""
    episode_at_once: int
    """Answers that are worked at side by side. Default 32."""
    episode_reward_weight: float
    """The weight of the environment's reward beside `reward`. Default 1 (TRL)."""
    episode_tool_calls: Literal["hermes", "qwen3_coder", "llama3", "mistral"]
    """How the model writes calls of tools. Default: as its chat template shows."""


class SftKeys(SharedKeys, total=False):
    """Keys of `sft`."""

    task: Any
    """The task that makes rows of its public files: its name, or a mapping of its name and its keys."""
    eval_task: Any
    """The task that makes rows of its public files: its name, or a mapping of its name and its keys."""
    test_task: Any
    """The task that makes rows of its public files: its name, or a mapping of its name and its keys."""
    loss_type: Literal["nll", "dft"]
    """The loss of a token. Default `nll` (TRL)."""
    completion_only_loss: bool
    """Loss on the completion only. Default: true for prompt–completion rows, false otherwise (TRL)."""
    assistant_only_loss: bool
    """Loss on assistant turns only; the chat template must mark them. Default false (TRL)."""
    add_eos: bool
    """Whether every text ends with its end-of-text token, which is learned too. Default true (TRL; RL4LMs' code for
    models without an encoder: false)."""
    label_smoothing: float
    """Mix this share of the uniform distribution into the target (`nll` only). Default 0."""
    packing: bool
    """Join all rows, each with its end-of-text token, and cut them into blocks of `train.max_length` tokens (TRL's
    packing strategy `wrapped`): for continued pre-training, where no text is to be lost. Default false: every row is a
    sequence of its own, and nothing is padded either way."""
    max_target_length: int
    """With an encoder: longest target in tokens; a longer one is cut and keeps its end-of-text token (FineGrainedRLHF:
    200). Default: only `train.max_length` bounds it."""


def sft(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    **keys: Unpack[SftKeys],
) -> Run:
    """Fine-tune a model on texts, conversations or completions.

    ``keys`` are the keys of the configuration: ``gradus.explain("sft")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("sft", given)


class RewardModelKeys(SharedKeys, total=False):
    """Keys of `reward_model`."""

    center_rewards_coefficient: float
    """Weight of the term (r_chosen + r_rejected)² that keeps rewards near 0. Default 0; 0.01 is usual (TRL)."""
    score_pairs: int
    """Over how many training pairs at most mean and standard deviation of the scores are measured at the end, for
    `reward.fine_grained`, which normalizes by them; 0: not at all. Default 20000, evenly spaced where there are
    more."""
    truncation: Literal["left", "right"]
    """The side at which a text over `max_length` is cut, with `too_long: truncate`. `left` keeps the end of the
    conversation, which holds the answer (`truncation_side` of transformers). Models with an encoder and a decoder leave
    such pairs out. Default `right`."""


def reward_model(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    **keys: Unpack[RewardModelKeys],
) -> Run:
    """Train a reward model on preferences.

    ``keys`` are the keys of the configuration: ``gradus.explain("reward")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("reward", given)


class ClassifyKeys(SharedKeys, total=False):
    """Keys of `classify`."""

    task: Literal["single_label", "multi_label", "regression", "tokens"]
    """The kind of label of a row. Default: that of the start model's head, or `single_label` if it has none."""
    labels: str | Sequence[str]
    """The labels, in the order of their numbers. Default: the start model's, where it knows all of the training rows;
    otherwise those of the training rows in alphabetical order."""
    label_column: Name
    """The column of labels. Default: `label`; for tokens the first existing one of `labels`, `tags`, `ner_tags`."""
    ignored_label: Name
    """For tokens: the label of words without a loss, such as `Ignore`. It is no label of the model unless `labels`
    names it. Default: none (null and −100 have the same meaning)."""
    negative_label: Name
    """The label that says that nothing was found, such as `O`: evaluations then also say how well anything else is told
    from it (`detection/…`), whatever it is. Default: none."""
    text: Name
    """The text that is read, with columns in braces. Default: `input_ids`, `tokens`, `text`, or prompt and
    completion."""
    pair: Name
    """A second text that is read beside the first. Default: none."""
    truncate: Literal["left", "right"]
    """The side at which long texts are cut, if they are cut. Default `right`."""
    class_weights: Any
    """Factors of the labels' losses; 1 for labels that are not named. Default: none."""
    balanced: bool
    """Weigh every label by N / (K · N_label) of the training rows, on top of `class_weights`. Default false."""


def classify(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    **keys: Unpack[ClassifyKeys],
) -> Run:
    """Train a classifier of texts or tokens.

    ``keys`` are the keys of the configuration: ``gradus.explain("classify")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("classify", given)


class DpoKeys(SharedKeys, total=False):
    """Keys of `dpo`."""

    beta: float
    """How strongly the policy is held to the reference. Default 0.1 (Rafailov et al. 2023)."""
    loss_type: Literal["sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"] | Sequence[Literal["sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"]]
    """The loss on the log-ratios of policy and reference; several are added. Default `sigmoid`."""
    loss_weights: float | Sequence[float]
    """The weight of each loss of `loss_type`. Default: 1 each."""
    label_smoothing: float
    """The probability that a label is wrong (`sigmoid`, `robust`, `exo_pair`, `aot`, `aot_unpaired`). Default 0."""
    ld_alpha: float
    """Weight of the tokens beyond the length of the pair's shorter completion (LD-DPO), from 0 to 1. Default: they
    count like all others."""
    f_divergence_type: Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"]
    """How the distance from the reference is measured (f-DPO; losses on the difference of both sides only). Default
    `reverse_kl`."""
    f_alpha_divergence_coef: float
    """The α of `alpha_divergence`. Default 0.5 (TRL)."""
    discopop_tau: float
    """Where `discopop` turns from logistic to exponential: its temperature τ. Default 0.05 (Lu et al. 2024)."""
    use_weighting: bool
    """Weigh each pair by how likely the policy itself is to write completions like its two (WPO). Default false."""
    reference: Literal["precomputed", "live"]
    """Where the reference's logprobs come from. Default `precomputed`: one pass before training, then the reference is
    dropped."""
    reference_model: Name
    """The reference: a model directory. Default: the model training starts from."""


def dpo(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    **keys: Unpack[DpoKeys],
) -> Run:
    """Train a policy on preferences directly.

    ``keys`` are the keys of the configuration: ``gradus.explain("dpo")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("dpo", given)


class OrpoKeys(SharedKeys, total=False):
    """Keys of `orpo`."""

    beta: float
    """Weight of the odds ratio beside the likelihood (λ in the paper). Default 0.1 (TRL)."""


def orpo(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    **keys: Unpack[OrpoKeys],
) -> Run:
    """Fine-tune on preferences in one stage, without a reference.

    ``keys`` are the keys of the configuration: ``gradus.explain("orpo")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("orpo", given)


class CpoKeys(SharedKeys, total=False):
    """Keys of `cpo`."""

    beta: float
    """The factor β of differences of log-probabilities. Default 0.1 (TRL)."""
    loss_type: Literal["sigmoid", "hinge", "ipo", "simpo"]
    """The loss on the logprobs of a pair. Default `sigmoid` (Xu et al. 2024)."""
    cpo_alpha: float
    """Weight of the negative log-likelihood of the chosen completions. Default 1 (Xu et al. 2024)."""
    simpo_gamma: float
    """The margin γ by which the chosen completion is to be better (`simpo` only). Default 0.5 (TRL)."""
    alpha: float
    """The shape of rewards, (1 − π^(−α))/α in place of log π (AlphaPO). Default 0: log π."""
    label_smoothing: float
    """The probability that a label is wrong (`sigmoid`, `simpo`). Default 0."""


def cpo(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    **keys: Unpack[CpoKeys],
) -> Run:
    """Train a policy on preferences and on the chosen answers, without a reference.

    ``keys`` are the keys of the configuration: ``gradus.explain("cpo")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("cpo", given)


class SimpoKeys(SharedKeys, total=False):
    """Keys of `simpo`."""

    beta: float
    """The factor β of differences of mean log-probabilities. Default 2 (Meng et al. 2024, on Llama 3 8B)."""
    simpo_gamma: float
    """The margin γ by which the chosen completion is to be better. Default 1 (half of `beta`: Meng et al. 2024, on
    Llama 3 8B)."""
    cpo_alpha: float
    """Weight of the negative log-likelihood of the chosen completions (CPO-SimPO above 0). Default 0 (Meng et al.
    2024)."""
    alpha: float
    """The shape of rewards, (1 − π^(−α))/α in place of log π (AlphaPO). Default 0: log π."""
    label_smoothing: float
    """The probability that a label is wrong. Default 0."""


def simpo(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    **keys: Unpack[SimpoKeys],
) -> Run:
    """Train a policy on preferences by mean logprobs and a margin, without a reference.

    ``keys`` are the keys of the configuration: ``gradus.explain("simpo")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("simpo", given)


class KtoKeys(SharedKeys, total=False):
    """Keys of `kto`."""

    beta: float
    """How strongly the policy is held to the reference. Default 0.1 (TRL; Ethayarajh et al. 2024)."""
    loss_type: Literal["kto", "apo_zero_unpaired"]
    """The loss. Default `kto`."""
    desirable_weight: float
    """The weight of the losses of desirable completions. Default 1 (TRL)."""
    undesirable_weight: float
    """The weight of the losses of undesirable completions. Default 1 (TRL)."""
    reference_model: Name
    """The reference: a model directory. Default: the model training starts from."""


def kto(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    **keys: Unpack[KtoKeys],
) -> Run:
    """Train a policy on completions marked as desirable or not.

    ``keys`` are the keys of the configuration: ``gradus.explain("kto")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("kto", given)


class DistillKeys(SharedKeys, total=False):
    """Keys of `distill`."""

    task: Any
    """The task that makes rows of its public files: its name, or a mapping of its name and its keys."""
    eval_task: Any
    """The task that makes rows of its public files: its name, or a mapping of its name and its keys."""
    test_task: Any
    """The task that makes rows of its public files: its name, or a mapping of its name and its keys."""
    teacher_model: Name
    """The teacher: a model directory or hub name, with the student's tokenizer. `train.frozen_weights` says how its
    weights lie. Required, unless `teacher_server` is given."""
    teacher_server_server: Name
    """The address of the server, such as `http://localhost:8000`."""
    teacher_server_kind: Literal["gradus", "vllm", "sglang"]
    """What the server understands: `gradus`, `vllm` or `sglang`. Default `vllm`."""
    teacher_server_model: Name
    """What the teacher is called at the server. Default: the first of its list."""
    teacher_server_key_variable: Name
    """The environment variable that holds the key of the server. Default: the server wants none."""
    teacher_server_top_k: int
    """How many of its likeliest ids the teacher tells of each place. With a `beta` above 0, the id that stands there is
    compared, too. Default 20, the most that vLLM tells unless it is started with `--max-logprobs`. TRL: 1."""
    teacher_server_add_tail: bool
    """Compare the probability of all other ids together, too. Default true (TRL)."""
    teacher_server_connections: int
    """Requests under way at a time, each for one row. Default 16."""
    teacher_server_timeout_s: float
    """Seconds that one request may take. Default 1800."""
    teacher_server_wait_s: float
    """Seconds that the run waits for a server that does not answer, before it writes a checkpoint and ends. Default
    600."""
    beta: float
    """Where between the forward KL (0) and the reverse KL (1) the divergence lies. Default 0.5 (TRL)."""
    lmbda: float
    """The share of steps that learn from completions which the student samples itself, λ. Default 0.5 (TRL)."""
    seq_kd: bool
    """Whether the teacher samples the completions of the other steps, in place of the rows' own. Default false
    (TRL)."""
    temperature: float
    """Sampling temperature; the divergence is that of temperature 1. Default 0.9 (TRL)."""
    max_new_tokens: int
    """Longest sampled completion in tokens. Default 128 (TRL)."""


def distill(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    **keys: Unpack[DistillKeys],
) -> Run:
    """Train a student to imitate a teacher on its completions.

    ``keys`` are the keys of the configuration: ``gradus.explain("distill")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("distill", given)


class PpoKeys(OnlineKeys, total=False):
    """Keys of `ppo`."""

    group_size: int
    """Completions of each prompt. Default 1."""
    temperature: float
    """Sampling temperature, also that of the logprobs trained on (see `sampling.trained_logprobs`). Default 0.7
    (TRL)."""
    update_epochs: int
    """Passes over one batch of rollouts. Default 4 (TRL)."""
    mini_batches: int
    """Mini-batches (optimizer steps) of one pass. Default 1 (TRL)."""
    clip_range: float
    """Clip range of the policy ratio. Default 0.2 (Schulman et al. 2017, section 6.1)."""
    value_clip_range: float
    """Clip range of the value update; 0 turns clipping off (RL4LMs). Default 0.2 (TRL)."""
    value_clip: Literal["larger", "clipped"]
    """Which error counts where values are clipped. Default `larger` (TRL)."""
    policy_coefficient: float
    """Weight of the policy loss (FineGrainedRLHF's `pg_coef`). Default 1."""
    value_coefficient: float
    """Weight of the value loss, which is half a squared error. Default 0.1 (TRL; `vf_coef: 0.5` of RL4LMs, whose error
    is not halved, is 1)."""
    entropy_coefficient: float
    """Weight of the entropy bonus. Default 0."""
    discount: float
    """Discount γ. Default 1 (TRL)."""
    gae_lambda: float
    """GAE's λ. Default 0.95 (TRL)."""
    whiten_rewards: bool
    """Whether rewards are whitened before GAE. Default false (TRL)."""
    whiten_advantages: bool
    """Whether advantages are whitened. Default true (TRL)."""
    whitening_rewards: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """The divisor of the rewards' distances from their mean. Default `unbiased` (TRL)."""
    whitening_advantages: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """The divisor of the advantages' distances from their mean. Default `unbiased` (TRL)."""
    whitening_center_rewards: bool
    """Whether whitened rewards get the mean 0 instead of keeping theirs. Default false (TRL; RL4LMs' `norm_reward`:
    true)."""
    whitening_leak_padding: bool
    """Whether whitened rewards reach into the padding after a completion, which is as long as the longest of the
    iteration, and from there back through GAE. Default false (FineGrainedRLHF: true)."""
    whitening_advantages_over: Literal["batch", "mini_batch"]
    """Over which tokens advantages are whitened. Default `batch` (TRL)."""
    missing_eos_penalty: float
    """Subtracted from the score of a completion without a stop id. Default: none (TRL's TL;DR recipe uses 1)."""
    target_kl: float
    """Leave out the remaining update epochs when the policy has moved further than 1.5 times this (mean k3). Default:
    off."""
    target_kl_over: Literal["pass", "mini_batch"]
    """Where `target_kl` is looked at: after each `pass` over the rollouts, or before the step of each `mini_batch`,
    which is then left out too (RL4LMs). Default `pass`."""
    clip_jointly: bool
    """Whether the gradients of policy and critic are clipped by their norm together (RL4LMs), or each by its own. A
    critic on the policy's trunk always is. Default false."""
    part_size: int
    """Sequences of a mini-batch over whose tokens the loss is averaged before the parts are averaged or added up
    (FineGrainedRLHF's micro-batches: 4). Default: all of them."""
    sum_parts: bool
    """Whether the parts are added up instead of averaged (FineGrainedRLHF: true). Default false."""
    length_weights: bool
    """Whether each part weighs what its mean length is to that of all rollouts (FineGrainedRLHF: true). Default
    false."""
    lr_per_step: bool
    """Whether the learning rate goes on with every optimizer step instead of every iteration (FineGrainedRLHF: true).
    Default false."""
    kl_coefficient: float
    """The (initial) coefficient β. Default 0.05 (TRL)."""
    kl_estimator: Literal["k1", "k2", "k3"]
    """The estimator: k1 = d, k2 = d²/2, k3 = e^(−d) − 1 + d. Default k1 (TRL)."""
    kl_target: float
    """Adapt the coefficient towards this KL. Default: fixed."""
    kl_horizon: float
    """Sequences over which the adaptive coefficient moves. Default 10000 (Ziegler et al. 2019)."""
    kl_rate: float
    """The share of its error by which the adaptive coefficient moves each iteration, however many sequences there are,
    instead of `horizon`. Default: none (RL4LMs 0.1)."""
    kl_unit: Literal["sequence", "token"]
    """The unit of `target`: nats per `sequence` (Ziegler et al. 2019) or per `token` (RL4LMs). Default `sequence`."""
    kl_stop_above: float
    """Stop the run when the KL of an iteration, the mean over its sequences in nats, has been above this `stop_after`
    times. Default: never (FineGrainedRLHF's `kl_threshold`)."""
    kl_stop_after: int
    """How often, not necessarily in a row. Default 5 (FineGrainedRLHF)."""
    critic_trunk: Literal["shared", "separate"]
    """Whether the critic is a head on the policy's trunk or a model of its own. Default `separate` (TRL)."""
    critic_model: Name
    """The start of a separate critic: a model directory. Default: the reward model if there is one, else the policy."""
    critic_learning_rate: float
    """The critic's own learning rate. Default: the policy's."""
    critic_head: Literal["linear", "two_layer"]
    """The head of a separate critic: one `linear` layer, or the `two_layer` head of FineGrainedRLHF, whose last layer
    starts at 0 as well. A model that has another head gets a fresh one. Default `linear` (TRL)."""
    critic_freeze_trunk: bool
    """Whether a separate critic's trunk keeps its weights and only its head is trained (FineGrainedRLHF's
    `freeze_value_model`). Default false."""


def ppo(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    reward: Reward | None = None,
    reward_weights: Sequence[float] | None = None,
    reward_timeout_s: float | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    on_rollouts: OnRollouts | None = None,
    **keys: Unpack[PpoKeys],
) -> Run:
    """Train a policy on rewards, with a critic.

    ``keys`` are the keys of the configuration: ``gradus.explain("ppo")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("ppo", given)


class NlpoKeys(OnlineKeys, total=False):
    """Keys of `nlpo`."""

    group_size: int
    """Completions of each prompt. Default 1."""
    temperature: float
    """Sampling temperature, also that of the logprobs trained on (see `sampling.trained_logprobs`). Default 0.7
    (TRL)."""
    update_epochs: int
    """Passes over one batch of rollouts. Default 4 (TRL)."""
    mini_batches: int
    """Mini-batches (optimizer steps) of one pass. Default 1 (TRL)."""
    clip_range: float
    """Clip range of the policy ratio. Default 0.2 (Schulman et al. 2017, section 6.1)."""
    value_clip_range: float
    """Clip range of the value update; 0 turns clipping off (RL4LMs). Default 0.2 (TRL)."""
    value_clip: Literal["larger", "clipped"]
    """Which error counts where values are clipped. Default `larger` (TRL)."""
    policy_coefficient: float
    """Weight of the policy loss (FineGrainedRLHF's `pg_coef`). Default 1."""
    value_coefficient: float
    """Weight of the value loss, which is half a squared error. Default 0.1 (TRL; `vf_coef: 0.5` of RL4LMs, whose error
    is not halved, is 1)."""
    entropy_coefficient: float
    """Weight of the entropy bonus. Default 0."""
    discount: float
    """Discount γ. Default 1 (TRL)."""
    gae_lambda: float
    """GAE's λ. Default 0.95 (TRL)."""
    whiten_rewards: bool
    """Whether rewards are whitened before GAE. Default false (TRL)."""
    whiten_advantages: bool
    """Whether advantages are whitened. Default true (TRL)."""
    whitening_rewards: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """The divisor of the rewards' distances from their mean. Default `unbiased` (TRL)."""
    whitening_advantages: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """The divisor of the advantages' distances from their mean. Default `unbiased` (TRL)."""
    whitening_center_rewards: bool
    """Whether whitened rewards get the mean 0 instead of keeping theirs. Default false (TRL; RL4LMs' `norm_reward`:
    true)."""
    whitening_leak_padding: bool
    """Whether whitened rewards reach into the padding after a completion, which is as long as the longest of the
    iteration, and from there back through GAE. Default false (FineGrainedRLHF: true)."""
    whitening_advantages_over: Literal["batch", "mini_batch"]
    """Over which tokens advantages are whitened. Default `batch` (TRL)."""
    missing_eos_penalty: float
    """Subtracted from the score of a completion without a stop id. Default: none (TRL's TL;DR recipe uses 1)."""
    target_kl: float
    """Leave out the remaining update epochs when the policy has moved further than 1.5 times this (mean k3). Default:
    off."""
    target_kl_over: Literal["pass", "mini_batch"]
    """Where `target_kl` is looked at: after each `pass` over the rollouts, or before the step of each `mini_batch`,
    which is then left out too (RL4LMs). Default `pass`."""
    clip_jointly: bool
    """Whether the gradients of policy and critic are clipped by their norm together (RL4LMs), or each by its own. A
    critic on the policy's trunk always is. Default false."""
    part_size: int
    """Sequences of a mini-batch over whose tokens the loss is averaged before the parts are averaged or added up
    (FineGrainedRLHF's micro-batches: 4). Default: all of them."""
    sum_parts: bool
    """Whether the parts are added up instead of averaged (FineGrainedRLHF: true). Default false."""
    length_weights: bool
    """Whether each part weighs what its mean length is to that of all rollouts (FineGrainedRLHF: true). Default
    false."""
    lr_per_step: bool
    """Whether the learning rate goes on with every optimizer step instead of every iteration (FineGrainedRLHF: true).
    Default false."""
    kl_coefficient: float
    """The (initial) coefficient β. Default 0.05 (TRL)."""
    kl_estimator: Literal["k1", "k2", "k3"]
    """The estimator: k1 = d, k2 = d²/2, k3 = e^(−d) − 1 + d. Default k1 (TRL)."""
    kl_target: float
    """Adapt the coefficient towards this KL. Default: fixed."""
    kl_horizon: float
    """Sequences over which the adaptive coefficient moves. Default 10000 (Ziegler et al. 2019)."""
    kl_rate: float
    """The share of its error by which the adaptive coefficient moves each iteration, however many sequences there are,
    instead of `horizon`. Default: none (RL4LMs 0.1)."""
    kl_unit: Literal["sequence", "token"]
    """The unit of `target`: nats per `sequence` (Ziegler et al. 2019) or per `token` (RL4LMs). Default `sequence`."""
    kl_stop_above: float
    """Stop the run when the KL of an iteration, the mean over its sequences in nats, has been above this `stop_after`
    times. Default: never (FineGrainedRLHF's `kl_threshold`)."""
    kl_stop_after: int
    """How often, not necessarily in a row. Default 5 (FineGrainedRLHF)."""
    critic_trunk: Literal["shared", "separate"]
    """Whether the critic is a head on the policy's trunk or a model of its own. Default `separate` (TRL)."""
    critic_model: Name
    """The start of a separate critic: a model directory. Default: the reward model if there is one, else the policy."""
    critic_learning_rate: float
    """The critic's own learning rate. Default: the policy's."""
    critic_head: Literal["linear", "two_layer"]
    """The head of a separate critic: one `linear` layer, or the `two_layer` head of FineGrainedRLHF, whose last layer
    starts at 0 as well. A model that has another head gets a fresh one. Default `linear` (TRL)."""
    critic_freeze_trunk: bool
    """Whether a separate critic's trunk keeps its weights and only its head is trained (FineGrainedRLHF's
    `freeze_value_model`). Default false."""
    top_p: float
    """Draw from the fewest tokens that together have this probability under the model of the mask; 1 is all of them.
    Default 0.9 (RL4LMs)."""
    top_k: int
    """Draw from this many of its likeliest tokens, instead of `top_p`. Default: none."""
    mask_model: Literal["lagged", "policy"]
    """Which model the mask looks at. Default `lagged` (RL4LMs)."""
    mask_update: Literal["periodic", "frozen"]
    """Whether the lagged copy follows the policy. Default `periodic` (RL4LMs' code: `frozen`)."""
    mask_update_iterations: int
    """Iterations after which the lagged copy becomes the policy as it is then. Default 20 (RL4LMs' recipes)."""
    min_tokens_to_keep: int
    """Tokens that the mask keeps at least. Default 1 (RL4LMs' code: 100; with an encoder it keeps one more than it
    says)."""
    keep_special_tokens: bool
    """Whether the tokenizer's special tokens are never masked. Default true (RL4LMs' code)."""
    renormalise: bool
    """Whether logprobs are trained among what the mask leaves, renormalized, or those of the whole vocabulary (RL4LMs'
    code). Default true."""
    mask_scope: Literal["nlpo_mask_only", "processed"]
    """Among which tokens, where they are renormalized: those of the mask alone, or those that are left when everything
    else has been taken out too. Default `nlpo_mask_only`."""
    mask_at_eval: bool
    """Whether completions of evaluations are drawn under the mask (RL4LMs' code). Default false."""


def nlpo(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    reward: Reward | None = None,
    reward_weights: Sequence[float] | None = None,
    reward_timeout_s: float | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    on_rollouts: OnRollouts | None = None,
    **keys: Unpack[NlpoKeys],
) -> Run:
    """Train a policy on rewards, with a critic and a mask of unlikely tokens.

    ``keys`` are the keys of the configuration: ``gradus.explain("nlpo")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("nlpo", given)


class A2cKeys(OnlineKeys, total=False):
    """Keys of `a2c`."""

    group_size: int
    """Completions of each prompt. Default 1."""
    temperature: float
    """Sampling temperature, also that of the logprobs trained on. Default 1 (RL4LMs)."""
    value_coefficient: float
    """Weight of the value loss, which is half a squared error. Default 1 (RL4LMs: 0.5 of an error that is not
    halved)."""
    entropy_coefficient: float
    """Weight of the entropy bonus. Default 0 (RL4LMs)."""
    discount: float
    """Discount γ. Default 0.99 (RL4LMs)."""
    gae_lambda: float
    """GAE's λ. Default 1 (RL4LMs): the whole return less the value."""
    whiten_rewards: bool
    """Whether rewards are whitened before GAE. Default false (RL4LMs)."""
    whiten_advantages: bool
    """Whether advantages are whitened. Default false (RL4LMs)."""
    whitening_rewards: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """The divisor of the rewards' distances from their mean. Default `unbiased` (TRL)."""
    whitening_advantages: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """The divisor of the advantages' distances from their mean. Default `unbiased` (TRL)."""
    whitening_center_rewards: bool
    """Whether whitened rewards get the mean 0 instead of keeping theirs. Default false (TRL; RL4LMs' `norm_reward`:
    true)."""
    whitening_leak_padding: bool
    """Whether whitened rewards reach into the padding after a completion, which is as long as the longest of the
    iteration, and from there back through GAE. Default false (FineGrainedRLHF: true)."""
    whitening_advantages_over: Literal["batch", "mini_batch"]
    """Over which tokens advantages are whitened. Default `batch` (TRL)."""
    missing_eos_penalty: float
    """Subtracted from the score of a completion without a stop id. Default: none."""
    clip_jointly: bool
    """Whether the gradients of policy and critic are clipped by their norm together. Default true (RL4LMs)."""
    kl_coefficient: float
    """The (initial) coefficient β. Default 0.05 (TRL)."""
    kl_estimator: Literal["k1", "k2", "k3"]
    """The estimator: k1 = d, k2 = d²/2, k3 = e^(−d) − 1 + d. Default k1 (TRL)."""
    kl_target: float
    """Adapt the coefficient towards this KL. Default: fixed."""
    kl_horizon: float
    """Sequences over which the adaptive coefficient moves. Default 10000 (Ziegler et al. 2019)."""
    kl_rate: float
    """The share of its error by which the adaptive coefficient moves each iteration, however many sequences there are,
    instead of `horizon`. Default: none (RL4LMs 0.1)."""
    kl_unit: Literal["sequence", "token"]
    """The unit of `target`: nats per `sequence` (Ziegler et al. 2019) or per `token` (RL4LMs). Default `sequence`."""
    kl_stop_above: float
    """Stop the run when the KL of an iteration, the mean over its sequences in nats, has been above this `stop_after`
    times. Default: never (FineGrainedRLHF's `kl_threshold`)."""
    kl_stop_after: int
    """How often, not necessarily in a row. Default 5 (FineGrainedRLHF)."""
    critic_trunk: Literal["shared", "separate"]
    """Whether the critic is a head on the policy's trunk or a model of its own. Default `separate` (TRL)."""
    critic_model: Name
    """The start of a separate critic: a model directory. Default: the reward model if there is one, else the policy."""
    critic_learning_rate: float
    """The critic's own learning rate. Default: the policy's."""
    critic_head: Literal["linear", "two_layer"]
    """The head of a separate critic: one `linear` layer, or the `two_layer` head of FineGrainedRLHF, whose last layer
    starts at 0 as well. A model that has another head gets a fresh one. Default `linear` (TRL)."""
    critic_freeze_trunk: bool
    """Whether a separate critic's trunk keeps its weights and only its head is trained (FineGrainedRLHF's
    `freeze_value_model`). Default false."""


def a2c(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    reward: Reward | None = None,
    reward_weights: Sequence[float] | None = None,
    reward_timeout_s: float | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    on_rollouts: OnRollouts | None = None,
    **keys: Unpack[A2cKeys],
) -> Run:
    """Train a policy on rewards, with a critic and one step per iteration.

    ``keys`` are the keys of the configuration: ``gradus.explain("a2c")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("a2c", given)


class TrpoKeys(OnlineKeys, total=False):
    """Keys of `trpo`."""

    group_size: int
    """Completions of each prompt. Default 1."""
    temperature: float
    """Sampling temperature, also that of the logprobs trained on. Default 1 (RL4LMs)."""
    target_kl: float
    """How far a step may move the policy: mean KL(new ‖ old) over tokens, in nats. Default 0.01 (RL4LMs)."""
    cg_max_steps: int
    """Steps of conjugate gradients at most. Default 15 (RL4LMs)."""
    cg_damping: float
    """Added to the diagonal of the Fisher matrix. Default 0.1 (RL4LMs)."""
    line_search_shrinking_factor: float
    """The factor that shortens a step that is too long. Default 0.8 (RL4LMs)."""
    line_search_max_iter: int
    """How many lengths of the step are tried. Default 10 (RL4LMs)."""
    critic_updates: int
    """Passes of the critic over the rollouts. Default 10 (RL4LMs)."""
    critic_mini_batches: int
    """Mini-batches (optimizer steps of the critic) of one pass. Default 1."""
    discount: float
    """Discount γ. Default 0.99 (RL4LMs)."""
    gae_lambda: float
    """GAE's λ. Default 0.95 (RL4LMs)."""
    whiten_rewards: bool
    """Whether rewards are whitened before GAE. Default false (RL4LMs)."""
    whiten_advantages: bool
    """Whether advantages are whitened. Default true (RL4LMs)."""
    whitening_rewards: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """The divisor of the rewards' distances from their mean. Default `unbiased` (TRL)."""
    whitening_advantages: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """The divisor of the advantages' distances from their mean. Default `unbiased` (TRL)."""
    whitening_center_rewards: bool
    """Whether whitened rewards get the mean 0 instead of keeping theirs. Default false (TRL; RL4LMs' `norm_reward`:
    true)."""
    whitening_leak_padding: bool
    """Whether whitened rewards reach into the padding after a completion, which is as long as the longest of the
    iteration, and from there back through GAE. Default false (FineGrainedRLHF: true)."""
    whitening_advantages_over: Literal["batch", "mini_batch"]
    """Over which tokens advantages are whitened. Default `batch` (TRL)."""
    missing_eos_penalty: float
    """Subtracted from the score of a completion without a stop id. Default: none."""
    kl_coefficient: float
    """The (initial) coefficient β. Default 0.05 (TRL)."""
    kl_estimator: Literal["k1", "k2", "k3"]
    """The estimator: k1 = d, k2 = d²/2, k3 = e^(−d) − 1 + d. Default k1 (TRL)."""
    kl_target: float
    """Adapt the coefficient towards this KL. Default: fixed."""
    kl_horizon: float
    """Sequences over which the adaptive coefficient moves. Default 10000 (Ziegler et al. 2019)."""
    kl_rate: float
    """The share of its error by which the adaptive coefficient moves each iteration, however many sequences there are,
    instead of `horizon`. Default: none (RL4LMs 0.1)."""
    kl_unit: Literal["sequence", "token"]
    """The unit of `target`: nats per `sequence` (Ziegler et al. 2019) or per `token` (RL4LMs). Default `sequence`."""
    kl_stop_above: float
    """Stop the run when the KL of an iteration, the mean over its sequences in nats, has been above this `stop_after`
    times. Default: never (FineGrainedRLHF's `kl_threshold`)."""
    kl_stop_after: int
    """How often, not necessarily in a row. Default 5 (FineGrainedRLHF)."""
    critic_trunk: Literal["shared", "separate"]
    """Whether the critic is a head on the policy's trunk or a model of its own. Default `separate` (TRL)."""
    critic_model: Name
    """The start of a separate critic: a model directory. Default: the reward model if there is one, else the policy."""
    critic_learning_rate: float
    """The critic's own learning rate. Default: the policy's."""
    critic_head: Literal["linear", "two_layer"]
    """The head of a separate critic: one `linear` layer, or the `two_layer` head of FineGrainedRLHF, whose last layer
    starts at 0 as well. A model that has another head gets a fresh one. Default `linear` (TRL)."""
    critic_freeze_trunk: bool
    """Whether a separate critic's trunk keeps its weights and only its head is trained (FineGrainedRLHF's
    `freeze_value_model`). Default false."""


def trpo(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    reward: Reward | None = None,
    reward_weights: Sequence[float] | None = None,
    reward_timeout_s: float | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    on_rollouts: OnRollouts | None = None,
    **keys: Unpack[TrpoKeys],
) -> Run:
    """Train a policy on rewards, with a critic and steps within a trust region.

    ``keys`` are the keys of the configuration: ``gradus.explain("trpo")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("trpo", given)


class GrpoKeys(OnlineKeys, total=False):
    """Keys of `grpo`."""

    group_size: int
    """Completions of each prompt, G. Default 8 (TRL)."""
    temperature: float
    """Sampling temperature, also that of the logprobs trained on. Default 1 (TRL)."""
    update_epochs: int
    """Passes over one batch of rollouts, μ. Default 1 (TRL)."""
    mini_batches: int
    """Mini-batches (optimizer steps) of one pass. Default 1."""
    clip_range: float
    """Lower clip range of the ratio: 1 − clip_range. Default 0.2 (TRL)."""
    clip_range_high: float
    """Upper clip range: 1 + clip_range_high; of `cispo` the bound of the ratio itself, which it needs. Default:
    `clip_range`."""
    delta: float
    """Upper bound of the ratio even where the advantage is negative (two-sided clipping). Default: none."""
    kl_coefficient: float
    """Weight of the KL term (k3) in the loss; 0 needs no reference. Default 0 (TRL)."""
    kl_bias_correction: bool
    """Whether the KL term is multiplied by the importance ratio, which makes its gradient that of the reverse KL.
    Default true (TRL)."""
    importance_sampling_level: Literal["token", "sequence"]
    """The unit of the importance ratio: a token, or a sequence with the geometric mean of its tokens' ratios (GSPO).
    Default `token` (TRL)."""
    loss_type: Literal["grpo", "dr_grpo", "bnpo", "dapo", "cispo", "sapo", "luspo", "vespo"]
    """The loss of tokens, and its reduction. Default `dapo` (TRL)."""
    sapo_temperature_pos: float
    """Temperature of `sapo` where the advantage is positive. Default 1 (TRL)."""
    sapo_temperature_neg: float
    """Temperature of `sapo` elsewhere. Default 1.05 (TRL)."""
    vespo_k_pos: float
    """Exponent of the ratio in `vespo`'s weight where the advantage is not negative. Default 2 (TRL)."""
    vespo_lambda_pos: float
    """Rate of `vespo`'s weight there. Default 3 (TRL)."""
    vespo_k_neg: float
    """Exponent of the ratio in `vespo`'s weight where the advantage is negative. Default 3 (TRL)."""
    vespo_lambda_neg: float
    """Rate of `vespo`'s weight there. Default 2 (TRL)."""
    baseline: Literal["group_mean", "leave_one_out"]
    """The baseline of a reward. Default `group_mean` (TRL)."""
    scale_rewards: Literal["group", "batch", "none"]
    """The divisor of advantages. Default `group` (TRL)."""
    mask_truncated_completions: bool
    """Leave completions without a stop id out of the loss. Default false (TRL)."""
    missing_eos_penalty: float
    """Subtract this from the reward of a completion that reached `max_new_tokens` without a stop id, before rewards are
    compared within their group. Default: nothing."""
    resample_rounds: int
    """How often groups whose rewards are all alike give way to groups of prompts that the iteration has not had
    (dynamic sampling, Yu et al. 2025). Default 0: they stay, and teach nothing."""
    off_policy_mask_threshold: float
    """Leave a completion with a negative advantage out of the loss where its sampler is more than this many nats a
    token away from the policy, as a mean (the off-policy sequence mask of DeepSeek-V3.2). The sampler is the server of
    `rollouts`, or the policy before the iteration's updates. Default: none (TRL)."""
    entropy_coefficient: float
    """Weight of the entropy bonus. Default 0."""


def grpo(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    reward: Reward | None = None,
    reward_weights: Sequence[float] | None = None,
    reward_timeout_s: float | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    on_rollouts: OnRollouts | None = None,
    **keys: Unpack[GrpoKeys],
) -> Run:
    """Train a policy on rewards, with groups of completions.

    ``keys`` are the keys of the configuration: ``gradus.explain("grpo")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("grpo", given)


class RlooKeys(OnlineKeys, total=False):
    """Keys of `rloo`."""

    group_size: int
    """Completions of each prompt, k. Default 2 (TRL)."""
    temperature: float
    """Sampling temperature, also that of the logprobs trained on. Default 1 (TRL)."""
    update_epochs: int
    """Passes over one batch of rollouts. Default 1 (TRL)."""
    mini_batches: int
    """Mini-batches (optimizer steps) of one pass. Default 1."""
    clip_range: float
    """Lower clip range of a completion's ratio: 1 − clip_range. Default 0.2 (TRL)."""
    clip_range_high: float
    """Upper clip range: 1 + clip_range_high. Default: `clip_range`."""
    kl_coefficient: float
    """The weight of the KL (k1, summed over the completion) that is subtracted from the reward; 0 needs no reference.
    Default 0.05 (TRL)."""
    normalize_advantages: bool
    """Whether advantages are normalized over the batch. Default false (TRL)."""
    reward_clip_range: float | Sequence[float]
    """Bounds of rewards, before the KL is taken off. Default: none."""
    mask_truncated_completions: bool
    """Leave completions without a stop id out of the loss. Default false (TRL)."""
    missing_eos_penalty: float
    """Subtract this from the reward of a completion that reached `max_new_tokens` without a stop id, before rewards are
    compared within their group. Default: nothing."""


def rloo(
    model: Name | Model | None = None,
    data: Rows | None = None,
    *,
    eval_data: Rows | None = None,
    test_data: Rows | None = None,
    reward: Reward | None = None,
    reward_weights: Sequence[float] | None = None,
    reward_timeout_s: float | None = None,
    config: Name | None = None,
    output_dir: Name | None = None,
    overwrite: bool = False,
    resume: bool = False,
    resume_from: int | Name | None = None,
    progress: bool | None = None,
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    on_rollouts: OnRollouts | None = None,
    **keys: Unpack[RlooKeys],
) -> Run:
    """Train a policy on rewards, each completion compared with the others of its prompt.

    ``keys`` are the keys of the configuration: ``gradus.explain("rloo")`` lists them.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("rloo", given)


#: The functions of this module.
METHODS = ("sft", "reward_model", "classify", "dpo", "orpo", "cpo", "simpo", "kto", "distill", "ppo", "nlpo", "a2c", "trpo", "grpo", "rloo")
