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
    """Use this tokenizer instead of the model's own: a directory or a hub name. It is saved with every model of the
    run. Default: the model's own."""
    split: Literal["train", "validation", "test"]
    """The part of the data. Default: `train` for training, `validation` for the evaluation of a task."""
    mix: Any
    """More training rows from other files or splits, in addition to those of `data` (which `train.max_rows` limits)."""
    eval_split: Literal["train", "validation", "test"]
    """The part of the data. Default: `train` for training, `validation` for the evaluation of a task."""
    test_split: Literal["train", "validation", "test"]
    """The part of the data. Default: `train` for training, `validation` for the evaluation of a task."""
    adapter: Name
    """Continue training this adapter on `model`: a directory in peft's format or a hub name. Nothing else is
    trained."""
    preset: Literal["rl4lms", "fine_grained", "gspo", "dapo", "dr_grpo"]
    """Use the defaults of another system; written keys take precedence. `gradus config explain preset` shows them."""
    lora_rank: int
    """Rank r of the adapter. Default 16 (TRL)."""
    lora_alpha: float
    """Scale α: the adapter's output is multiplied by α/r. Default 32 (TRL)."""
    lora_dropout: float
    """Dropout of the adapter's input in training: for sft, reward, classify, orpo, cpo, simpo, and updates of online
    methods except trpo (see `train.dropout`). The other methods compare with a model without dropout. Default 0."""
    lora_targets: str | Sequence[str]
    """Linear layers that get an adapter, by name suffix; `all-linear` selects all except the heads. Default: those of
    attention."""
    lora_target_pattern: Name
    """Linear layers that get an adapter, by a regular expression for their whole names, such as `.*\\.mlp\\..*`."""
    lora_rank_stabilised: bool
    """Scale by α/√r instead of α/r (rank-stabilized; Kalajdzievski 2023). Default false."""
    lora_dora: bool
    """Train the norms of the weights' rows, too (DoRA, Liu et al. 2024). Default false."""
    rollouts_server: Name
    """Address of the server, such as `http://localhost:8000`."""
    rollouts_kind: Literal["gradus", "vllm", "sglang"]
    """Kind of server: `gradus`, `vllm` or `sglang`. Default `vllm`."""
    rollouts_model: Name
    """Name of the model on the server. Default: the first of its list."""
    rollouts_shared: Name
    """Folder that this process and the server can both access. Adapters and weights are exchanged through it."""
    rollouts_shared_at_server: Name
    """Path of that folder on the server. Default: the same."""
    rollouts_key_variable: Name
    """Environment variable that holds the key of the server. Default: the server needs none."""
    rollouts_connections: int
    """Maximum number of concurrent requests, each for one prompt. Default 16."""
    rollouts_timeout_s: float
    """Time limit of one request, in seconds. Default 1800."""
    rollouts_wait_s: float
    """Seconds that the run waits for an unresponsive server before it writes a checkpoint and ends. Default 600."""
    rollouts_max_staleness: int
    """Number of iterations that the server samples ahead while this process trains. The weights of the completions are
    then up to so many iterations old. Default 0: sampling and training alternate."""
    rollouts_importance_sampling_correction: bool
    """Multiply the loss by the ratio of the completion's probabilities under the policy and under the server. Default
    true (TRL)."""
    rollouts_importance_sampling_mode: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
    """Ratio per token or per sequence, and the treatment of ratios beyond the bounds: they become the bounds
    (`truncate`) or 0 (`mask`). Default `sequence_mask` (TRL)."""
    rollouts_importance_sampling_clip_max: float
    """Upper bound of the ratio; null: none. Default 3 (TRL)."""
    rollouts_importance_sampling_clip_min: float
    """Lower bound of the ratio. Default: none (TRL)."""
    epochs: float
    """Passes over the data. Default 1. If both are given, `max_steps` counts."""
    max_steps: int
    """Optimizer steps (online methods: iterations). Default: from `epochs`."""
    batch_size: int
    """Rows per step (offline: rows or pairs; online: prompts). Default 8 (TRL)."""
    micro_batch_size: int
    """Rows per forward and backward pass. Default: limited by `micro_batch_tokens`. It changes the result only by
    rounding. With dropout and with grpo's `loss_type: bnpo` it changes more: each pass draws its own dropout masks, and
    `bnpo` averages over passes."""
    micro_batch_tokens: int
    """Maximum number of tokens per forward and backward pass. Default 4096. It changes the result as `micro_batch_size`
    does."""
    lanes: int
    """Number of parts in which the rows of an optimizer step are added up: a power of two. Within a part, gradients are
    added up in the order of the rows; the parts are added up in a fixed binary tree. A run therefore gives the same
    bits on any number of ranks up to this one. Default: 1; 8 for a run that is started on ranks (`--ranks`, `mpirun`,
    `srun`)."""
    shard_moments: bool
    """Divide the moments of the optimizer among all ranks (ZeRO-1) instead of storing them on each. The results have
    the same bits. Default false."""
    try_longest: bool
    """Compute the longest pass once before the first step, without an update, so that a lack of memory shows at once.
    Default true; the result does not depend on it."""
    memory_check: bool
    """Reject a run that needs more memory than the machine or its GPU has, before anything is loaded. Default true."""
    recompute: bool
    """Gradient checkpointing (TRL's `gradient_checkpointing`): compute each transformer block again in the backward
    pass instead of keeping its activations. This saves memory for one more forward pass (about a third more
    arithmetic); the result has the same bits. Default false (TRL: true)."""
    learning_rate: float
    """Peak learning rate. The default is the method's."""
    lr_schedule: Literal["linear", "cosine", "constant", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "cosine_with_restarts", "polynomial", "inverse_sqrt"] | Mapping[str, Any]
    """Decay of the learning rate after warm-up: a name, or a name with its settings, such as `{ cosine_with_min_lr: {
    min_lr_ratio: 0.1 } }`. Default `linear` (TRL)."""
    warmup_steps: float
    """Steps over which the learning rate rises from 0; below 1, a fraction of all steps. Default 0."""
    weight_decay: float
    """Weight decay, never applied to biases and norms. AdamW's is decoupled; RMSprop's is part of the gradient. Default
    0 (TRL)."""
    optimizer: Literal["adamw", "rmsprop"]
    """The optimizer. Default `adamw` (TRL)."""
    adam_betas: float | Sequence[float]
    """AdamW's decay rates of the two moments. Default [0.9, 0.999] (TRL)."""
    adam_epsilon: float
    """AdamW's epsilon. Default 1e-8 (TRL)."""
    moments: Literal["f32", "int8"]
    """Format of AdamW's two moments: `f32`, or `int8` (bitsandbytes' 8-bit AdamW): a quarter of the memory, for a small
    error in each step. Default `f32` (TRL)."""
    offload_moments: bool
    """Store the moments in the machine's main memory while a GPU computes. The processor then takes the optimizer's
    steps: each step copies weights and gradients to it and weights back. Default false; no effect on `cpu`."""
    rmsprop_alpha: float
    """RMSprop's decay rate of the mean squared gradient. Default 0.99 (PyTorch, A2C in RL4LMs)."""
    rmsprop_epsilon: float
    """RMSprop's epsilon, added to the root of that mean. Default 1e-8 (PyTorch; A2C in RL4LMs 1e-5)."""
    max_grad_norm: float
    """Maximum norm of the gradients, which are scaled down to it; 0 turns it off. Default 1 (TRL)."""
    max_length: int
    """Longest row in tokens, prompt and completion together; for models with an encoder, each of them. Default 1024
    (TRL)."""
    too_long: Literal["skip", "truncate"]
    """The treatment of longer rows. The default depends on the method, as in TRL."""
    max_prompt_length: int
    """Longest prompt in tokens that completions are sampled for; longer ones are cut. Preference rows are cut only by
    `too_long`. Default: no prompt is cut, and prompts that leave no space for a completion within `max_length` are left
    out."""
    prompt_truncation: Literal["left", "right"]
    """Side at which such prompts are cut. Default `left` (RL4LMs)."""
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
    """Skip bad rows instead of ending the run. gradus reports their number, and `skipped_rows.jsonl` in the run
    directory lists each with its problem. Default false."""
    max_rows: int
    """Use at most this many training rows."""
    max_rows_at_random: bool
    """Choose those `max_rows` rows at random by the seed, instead of the first ones of the file. Default false."""
    max_eval_rows: int
    """Use at most this many held-out rows. Default 1000; for online methods 100."""
    eval_fraction: float
    """Share of training rows held out if there is no `eval_data`; 0 turns it off. Default 0.05, but at least 16 rows
    (or a fifth of fewer than 80), and none without shuffling or with `eval_steps: -1`."""
    tensorboard: bool
    """Write an event file for TensorBoard, `tensorboard/`, next to `metrics.jsonl`. Default false."""
    wandb: bool
    """Write an offline run of Weights & Biases, `wandb/offline-run-…`, for `wandb sync`. Default false."""
    wandb_project: Name
    """Project of the run in Weights & Biases. Default `gradus`."""
    wandb_entity: Name
    """User or team that owns the project. Default: the user who uploads the run."""
    wandb_name: Name
    """Name of the run in Weights & Biases. Default: the name of the run directory."""
    eval_steps: int
    """Evaluate every so many steps; 0: only at the end; -1: never. Default 0."""
    eval_delay: int
    """Evaluate after this many steps at the earliest. Evaluations before the first step and after the last one stay.
    Default 0 (TRL)."""
    eval_sample: int
    """Evaluate on so many held-out rows, sampled with replacement for each evaluation. Default: on all of them."""
    evaluation_metrics: Any
    """Metrics that compare completions with their references (`[rouge, { bleu: { max_order: 2 } }]`; docs/metrics.md
    lists them). With metrics, methods that sample nothing in training sample completions too. Default: none."""
    evaluation_post_process: Literal["three_sentence_summary"] | Mapping[str, Any] | Callable[[str], str]
    """Change of completions before metrics read them. Default: none."""
    evaluation_max_new_tokens: int
    """Longest completion in tokens."""
    evaluation_min_new_tokens: int
    """No stop id is sampled before this many tokens."""
    evaluation_temperature: float
    """Sampling temperature; 0 takes the most likely token."""
    evaluation_top_k: int
    """Sample only from this many most likely tokens; 0: from all."""
    evaluation_top_p: float
    """Sample only from the fewest tokens that together have this probability."""
    evaluation_typical_p: float
    """Sample only from the tokens whose information is closest to the entropy, the fewest that together have this
    probability."""
    evaluation_repetition_penalty: float
    """Penalty of tokens that already occur: positive logits are divided by it, negative ones are multiplied."""
    evaluation_no_repeat_ngram_size: int
    """No sequence of this many tokens occurs twice, prompt included; 0: off."""
    evaluation_encoder_no_repeat_ngram_size: int
    """No sequence of this many tokens of the prompt occurs in the completion; 0: off."""
    evaluation_beams_num_beams: int
    """Number of beams per prompt, at least 2. Default 4."""
    evaluation_beams_length_penalty: float
    """Exponent of the length by which a completion's log-probability is divided for ranking. Values above 0 prefer long
    completions. Default 1."""
    evaluation_beams_early_stopping: Literal["true", "false", "never"]
    """When a search ends. `true`: once as many completions have ended as there are beams. `false`: when, in addition,
    the likeliest open beam would not rank among them if it ended now. `never`: when, in addition, no open beam can rank
    among them any more. Default `false`."""
    evaluation_beams_num_beam_groups: int
    """Diverse beam search: the beams are divided into this many groups with separate searches. A group avoids tokens
    that earlier groups chose at the same position. It divides `num_beams`. Default 1."""
    evaluation_beams_diversity_penalty: float
    """The penalty on a token's log-probability for every beam of an earlier group that has the same token at the same
    position. Must be above 0 with groups. Default 0."""
    evaluation_samples: int
    """Number of completions of each held-out prompt; beam search takes the best ones. Default 1."""
    save_steps: int
    """Write a checkpoint every so many steps; 0: only at the end. Default 0."""
    keep_checkpoints: int
    """Keep this many checkpoints. Default 2."""
    logging_steps: int
    """Append to `metrics.jsonl` every so many steps. Default 1."""
    save_rollouts: bool
    """Store every completion of training in `rollouts.sqlite` (online methods). Completions of evaluations and warnings
    are always stored there. Default true: they show what the reward really favors, and a thousand steps of 64
    completions of 200 tokens take about 100 MB."""
    best_metric: Name
    """Held-out metric that selects `best/`. The default is the method's."""
    greater_is_better: bool
    """Whether larger values of the best metric are better (transformers). Without the key, its name decides. Smaller is
    better if the name contains `loss`, `error` or `perplexity`, if one of its words is `kl`, `approxkl` or `toxicity`,
    or if its last word is `ter`. Words are separated by `_` or `/`. Larger is better for all other metrics, and for all
    `rewards/…`."""
    early_stopping_patience: int
    """Stop when the best metric has not improved for so many evaluations; 0: never. Default 0."""
    shuffle: bool
    """Shuffle the rows each epoch. Default true; `--no-shuffle` keeps the file's order."""
    priority_scale: float
    """Sample prompts with replacement, with probabilities proportional to their column `weight` (1 without one) to this
    power; 0 makes them equal. For online methods only (RL4LMs' priority sampler, whose weights are all 1). Default:
    none, so every prompt occurs once per epoch."""
    dropout: bool
    """Use the dropout of the model's configuration instead of none. For sft, reward, classify, orpo, cpo, simpo, and
    for the updates of online methods except trpo. Completions are sampled and scored without dropout. The ratios of
    ppo, nlpo and a2c compare with logprobs without dropout, so the first ratios are not 1 (FineGrainedRLHF). The ratios
    of grpo and rloo compare with logprobs with dropout (TRL). Default false."""
    neftune_noise_alpha: float
    """Add uniform noise to the embeddings of a step (NEFTune, Jain et al. 2023). The noise of a row with L tokens is at
    most this value divided by √(L·D), where D is the width of the embeddings. For sft, dpo, orpo, cpo and simpo, with
    models that have no encoder. Evaluations, completions and the reference have no noise. Default 0: no noise (TRL)."""
    sync_ref_model: bool
    """Let the reference follow the policy (TR-DPO, Gorbatovski et al. 2024): see `ref_model_mixup_alpha` and
    `ref_model_sync_steps`. For dpo with `reference: live`, kto with `loss_type: kto`, and grpo and rloo with a
    `kl_coefficient`, without an adapter. The reference is then held in f32, whatever `frozen_weights` is. Default false
    (TRL)."""
    ref_model_mixup_alpha: float
    """Weight α of the policy when the reference follows it: the reference becomes α · policy + (1 − α) · reference.
    Default 0.6 (TRL)."""
    ref_model_sync_steps: int
    """The reference follows the policy after every so many steps (online methods: iterations). Default 512 (TRL)."""
    seed: int
    """Seed of every random stream. Default 42 (TRL)."""
    device: Name
    """Device for all computations: `cpu`; in a build with the cargo feature `cuda` or `wgpu` also `gpu`, `gpu:1` and so
    on; with `cuda` also `cuda`, `cuda:1` and so on; with `wgpu` also `gpu:software` (`gradus doctor` lists them).
    Default `cpu`."""
    compute: Literal["f32", "bf16"]
    """Format of the operands of matrix products: `f32` or `bf16` (about twice as fast if the processor multiplies it;
    weights, sums and the optimizer stay in f32, frozen models are kept in bf16). Default `f32`."""
    sampling_weights: Literal["f32", "bf16", "int8", "nf4"]
    """Format of the weights for sampling: `f32`, `bf16`, `int8` or `nf4`. A coarser format than `compute` samples
    faster. The policy then computes the logprobs again, and gradus reports how far the two differ. Default: as
    `compute`."""
    frozen_weights: Literal["f32", "bf16", "int8", "nf4"]
    """Format of weights that are not trained (the base under an adapter, reference, reward models): `f32`, `bf16`,
    `int8` or `nf4` (under an adapter QLoRA, Dettmers et al. 2023). Default: as `compute`."""
    saved_weights: Literal["f32", "bf16", "f16"]
    """Format of the weights of `model/` and `best/` on disk: `f32`, `bf16` or `f16` (half the size, rounded).
    Checkpoints, adapters and critics keep `f32`. Default `f32`."""
    threads: int
    """Number of threads. Default: one per core."""
    text_column: Name
    """Column with plain text for language modeling. Default `text`."""
    column: str | Sequence[str]
    """Columns to read under other names, as `name=column`: `prompt=question` reads the column `question` as the
    prompt."""
    system_prompt: Name
    """System message of every conversation that has none. Rows that are not conversations are then rejected. Default:
    none."""
    transcripts_as_messages: bool
    """Read transcripts (`\\n\\nHuman: …\\n\\nAssistant: …`, as in HH-RLHF) as conversations, which the model's chat
    template renders. Default false: they are used as plain text."""
    chat_template: Name
    """Chat template that replaces the model's own: a file, or a name (`chatml`, `gemma`, `llama2`, `llama3`, `mistral`,
    `phi3`, `qwen`, `zephyr`)."""
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
    """The task that makes rows from its public files: its name, or a mapping of its name and its keys. The default is
    the method's."""
    eval_task: Any
    """The task that makes rows from its public files: its name, or a mapping of its name and its keys."""
    test_task: Any
    """The task that makes rows from its public files: its name, or a mapping of its name and its keys."""
    group_size: int
    """Completions per prompt. The default is the method's."""
    max_new_tokens: int
    """Maximum length of a completion in tokens. The default is the method's."""
    stop: str | Sequence[str]
    """Strings that end a completion."""
    sampling_top_k: int
    """Sample only from this many of the likeliest tokens. Default: all of them."""
    sampling_top_p: float
    """Sample from the smallest set of likeliest tokens with at least this total probability. Default 1: all of them."""
    sampling_min_p: float
    """Sample only tokens with at least this share of the likeliest token's probability. Default 0: all of them."""
    sampling_typical_p: float
    """Sample only from the tokens whose information is closest to the entropy: the smallest set with at least this
    total probability (locally typical sampling). Default 1: all of them."""
    sampling_repetition_penalty: float
    """Divide the positive logits of tokens that have already occurred, including in the prompt, by this; multiply
    negative ones. Default 1: off."""
    sampling_no_repeat_ngram_size: int
    """Let no sequence of this many tokens occur twice, including in the prompt. Default 0: off."""
    sampling_encoder_no_repeat_ngram_size: int
    """Let no sequence of this many prompt tokens occur in the completion. In an encoder–decoder, the prompt is the
    encoder's input. Default 0: off."""
    sampling_min_new_tokens: int
    """Sample no stop ids before this many tokens. Default 0."""
    sampling_suppress_tokens: float | Sequence[float]
    """Token ids that are never sampled."""
    sampling_bad_words_ids: Any
    """Sequences of token ids that are never completed. A single stop id is not banned."""
    sampling_forced_bos_token_id: int
    """First id of every completion. Without an encoder, prompts must have one token, as in transformers. Default: the
    id that the generation configuration of an encoder–decoder forces, if any."""
    sampling_forced_eos_token_id: int
    """Last id of a completion of `max_new_tokens` tokens. Default: the id that the generation configuration of an
    encoder–decoder forces, if any."""
    sampling_trained_logprobs: Literal["raw", "untempered", "processed"]
    """Log-probabilities in the loss. `raw`: those of the model at the sampling temperature. `untempered`: those at
    temperature 1 (FineGrainedRLHF). `processed`: those of the distribution that was sampled from; the tokens that could
    be sampled are stored, and the policy, the reference, ratios, KL and entropy are restricted to them. `processed`
    keeps whole rows of logits in memory, and works with every other key here except `repetition_penalty`. Default `raw`
    (TRL)."""
    reference_model: Name
    """Model directory of the reference. Default: the start model. The default is the method's."""
    reward_model: Name
    """A reward model: a directory, a run or a hub name."""
    reward_classifier_model: Name
    """The classifier: a `…ForSequenceClassification` directory or a hub name."""
    reward_classifier_label: Name
    """Rewarded label, by name or index. Default: the only one, if the model has one."""
    reward_classifier_value: Literal["logit", "probability", "log_odds"]
    """Value of the label that becomes the reward. Default: its probability, or the number itself for a regression
    model."""
    reward_classifier_text: Name
    """Template of the input text, with `{prompt}`, `{completion}`, `{reference}` and any column of the row in braces.
    Default: the prompt followed by the completion."""
    reward_classifier_pair: Name
    """Template of a second input text, such as a hypothesis after its premise. Default: none."""
    reward_classifier_truncate: Literal["left", "right"]
    """Side at which texts longer than the classifier's positions are cut. Default: such a text is an error."""
    reward_rule_length_target: int
    """The wanted length in tokens."""
    reward_rule_length_tolerance: int
    """Half width of the triangle around the target: the reward is 1 at the target and 0 at this distance and beyond.
    Default: `target`."""
    reward_rule_soft_overlong_max_length: int
    """Number of tokens, the stop id included, from which on the full penalty applies."""
    reward_rule_soft_overlong_cache: int
    """Number of tokens before `max_length` over which the penalty grows."""
    reward_rule_regex: Name
    """1 if the regular expression matches anywhere in the completion, otherwise 0."""
    reward_rule_exact_match: Name
    """1 if the completion equals the named column, apart from white space at the ends, otherwise 0."""
    reward_rule_substring: Name
    """1 if the completion contains the text, otherwise 0."""
    reward_rule_numeric_answer: Name
    """1 if the last number of the completion equals that of the named column (GSM8K's `#### n` is understood),
    otherwise 0."""
    reward_rule_math_column: Name
    """Column of the right answer: a text that contains the answer, or bare LaTeX. A row without an answer there is not
    scored."""
    reward_rule_math_after: Name
    """Mark after which the answer is searched, such as `</think>`; a completion without the mark is wrong. Default:
    none."""
    reward_rule_cosine_length_column: Name
    """Column of the right answer, as in `math`."""
    reward_rule_cosine_length_after: Name
    """Mark after which the answer is searched, as in `math`. Default: none."""
    reward_rule_cosine_length_max_length: int
    """Number of tokens from which on a completion counts as longest."""
    reward_rule_cosine_length_right_short: float
    """Reward of the shortest completion."""
    reward_rule_cosine_length_right_long: float
    """Reward of the longest completion."""
    reward_rule_cosine_length_wrong_short: float
    """Reward of the shortest completion."""
    reward_rule_cosine_length_wrong_long: float
    """Reward of the longest completion."""
    reward_rule_repeat_penalty: Name
    """−1 if the completion repeats this prefix, the part of the prompt after it, `generate` or `sentence`, otherwise 0
    (RL4LMs' shaping for CommonGen, whose prefix is `generate a sentence with: `)."""
    reward_rule_lexicon: Name
    """Mean valence of the completion's words, from a lexicon file in VADER's format."""
    reward_metric: Any
    """A metric of each completion (docs/metrics.md). The key selects the metric, as in `rouge: {}`. Metrics that have
    no value for a single new completion cannot be rewards: `diversity`, `distinct`, `perplexity`, and `spice` over
    `scene_graphs`."""
    reward_toxicity_scorer: Any
    """Scorer of a completion's toxicity; it reads the completion without its prompt."""
    reward_toxicity_segments: Literal["whole", "sentence", "sub_sentence"]
    """Rewarded unit: the `whole` completion, by 1 − its toxicity; or each `sentence` or `sub_sentence`, by the decrease
    in toxicity from the text before it to the text with it. Default `whole`."""
    reward_command: str | Sequence[str]
    """An external program as a list of arguments. For each JSON object that it reads, it prints a number, null or an
    object of parts."""
    reward_command_timeout_s: float
    """Time limit for one batch of completions in seconds. Default 60."""
    reward_command_name: Name
    """Name of the reward in the log, without `/`. Default `command`."""
    reward_judge_url: Name
    """Endpoint up to `/v1`, such as `http://localhost:8000/v1`; `/chat/completions` is appended."""
    reward_judge_model: Name
    """Name of the judging model at the endpoint."""
    reward_judge_key_variable: Name
    """Environment variable that holds the API key. The key is sent as a bearer token and never stored. Default: no
    key."""
    reward_judge_verdict: Any
    """Form of the verdict. Default: a scale from 1 to 10."""
    reward_judge_template: Name
    """Template of the question, with `{prompt}`, `{completion}` and any column of the row in braces; for pairs
    `{completion_a}` and `{completion_b}`. The judge must end with its verdict in double brackets: `[[7]]`, or `[[A]]`,
    `[[B]]` or `[[C]]` for a tie. Default: a built-in question."""
    reward_judge_max_tokens: int
    """Maximum number of tokens of an answer. Default 512."""
    reward_judge_temperature: float
    """Temperature of the judge. Default 0."""
    reward_judge_record: Name
    """File of the judge's answers; questions that it contains are not sent again. Default: `judgements.jsonl` in the
    directory of the run."""
    reward_judge_requests_per_second: float
    """Maximum number of requests per second, over all connections and ranks. Default 20."""
    reward_judge_connections: int
    """Number of concurrent requests. Default 8."""
    reward_judge_retries: int
    """Number of times that a question is sent again after a temporary refusal (429), a server error, a broken
    connection or an answer without a verdict. Default 5."""
    reward_judge_timeout_s: float
    """Time limit of one request in seconds. Default 60."""
    reward_code_tests: Name
    """Column of the tests: a Python program, or a list of programs such as `["assert add(1, 2) == 3", …]`. A test
    passes if it ends without an exception, or with `sys.exit(0)`, as `unittest.main()` does. If the completion's
    program exits, the test fails. A test that cannot be compiled, or is empty, is an error."""
    reward_code_value: Literal["all", "share"]
    """Value that is rewarded: the `share` of passed tests, or `all` for 1 if all tests pass and 0 otherwise. Default
    `all`."""
    reward_code_sandbox_python: Name
    """The interpreter. Default `python3`."""
    reward_code_sandbox_seconds: int
    """The time limit of one program in seconds, both of CPU time and of wall-clock time. Default 5."""
    reward_code_sandbox_memory_mb: int
    """The memory limit of one program in megabytes. Default 256."""
    reward_code_at_once: int
    """Number of programs that run at the same time. Default 2."""
    reward_fine_grained: Any
    """Models that judge the segments of a completion: sentences, parts of sentences, or the whole."""
    reward_mix: Any
    """A weighted sum of rewards."""
    environment: Any
    """The environment that replies to the policy between its turns (online methods only; docs/environments.md). Its
    name is the key."""
    tools: Any
    """Tools that the policy may call (online methods only; docs/environments.md). The model needs a chat template."""
    episode_max_turns: int
    """Maximum number of turns of the policy. Default 16."""
    episode_timeout_s: float
    """Time limit of one answer, in seconds. An episode whose answer takes longer has failed and is not trained on.
    Default 120."""
    episode_max_time_s: float
    """Time limit of all answers of one episode together, in seconds. A longer episode ends, with the reward it has.
    Default: no limit."""
    episode_at_once: int
    """Number of answers that are computed at the same time. Default 32."""
    episode_reply_after: int
    """Number of sampling steps between a turn and its answer, on a GPU. Default 16. Numbers of one completion depend
    there, in their last bits, on which completions are sampled with it. So every completion continues at a fixed step,
    and the others wait if the answer is late: then results do not depend on time. With 0, answers are read as they
    arrive. The CPU always reads them as they arrive."""
    episode_reward_weight: float
    """Weight of the environment's reward relative to `reward`. Default 1 (TRL)."""
    episode_tool_calls: Literal["hermes", "qwen3_coder", "llama3", "mistral"]
    """Format of the model's tool calls. Default: as in its chat template."""


class SftKeys(SharedKeys, total=False):
    """Keys of `sft`."""

    task: Any
    """The task that makes rows from its public files: its name, or a mapping of its name and its keys."""
    eval_task: Any
    """The task that makes rows from its public files: its name, or a mapping of its name and its keys."""
    test_task: Any
    """The task that makes rows from its public files: its name, or a mapping of its name and its keys."""
    loss_type: Literal["nll", "dft"]
    """Loss of a token. Default `nll` (TRL)."""
    completion_only_loss: bool
    """Compute the loss on the completion only. Default: true for prompt–completion rows, false otherwise (TRL)."""
    assistant_only_loss: bool
    """Compute the loss on assistant turns only; the chat template must mark them. Default false (TRL)."""
    add_eos: bool
    """End every text with its end-of-text token, which is trained on too. Default true (TRL; RL4LMs' code for models
    without an encoder: false)."""
    label_smoothing: float
    """Mix this share of the uniform distribution into the target (`nll` only). Default 0."""
    packing: bool
    """Join all rows, each with its end-of-text token, and cut them into blocks of `train.max_length` tokens (TRL's
    packing strategy `wrapped`). Use it for continued pre-training, where no text should be lost. Default false: each
    row is its own sequence. Nothing is padded either way."""
    max_target_length: int
    """With an encoder: maximum length of a target in tokens; a longer one is cut and keeps its end-of-text token
    (FineGrainedRLHF: 200). Default: only `train.max_length` limits it."""


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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.sft)``
            lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("sft", given)


class RewardModelKeys(SharedKeys, total=False):
    """Keys of `reward_model`."""

    center_rewards_coefficient: float
    """Weight of the term (r_chosen + r_rejected)² that keeps rewards near 0. Default 0; 0.01 is usual (TRL)."""
    score_pairs: int
    """Maximum number of training pairs over which mean and standard deviation of the scores are measured at the end,
    evenly spaced if there are more. `reward.fine_grained` normalizes by them. 0 disables it. Default 20000."""
    truncation: Literal["left", "right"]
    """Side at which texts over `max_length` are cut, with `too_long: truncate`. `left` keeps the end of the
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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``.
            ``gradus.explain(gradus.reward_model)`` lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("reward", given)


class ClassifyKeys(SharedKeys, total=False):
    """Keys of `classify`."""

    task: Literal["single_label", "multi_label", "regression", "tokens"]
    """Kind of label of a row. Default: that of the start model's head, or `single_label` if it has none."""
    labels: str | Sequence[str]
    """Labels, in the order of their indices. Default: the start model's labels if they cover all training rows;
    otherwise the labels of the training rows in alphabetical order."""
    label_column: Name
    """Column of the labels. Default: `label`; for `tokens` the first existing one of `labels`, `tags`, `ner_tags`."""
    ignored_label: Name
    """For `tokens`: label of words without a loss, such as `Ignore`. It becomes a label of the model only if `labels`
    lists it. Default: none (null and −100 have the same meaning)."""
    negative_label: Name
    """For `single_label` and `tokens`: label that means "nothing found", such as `O`. Evaluations then also report how
    well all other labels together are told apart from it (`detection/…`). Default: none."""
    text: Name
    """Template of the input text, with columns in braces. Default: `input_ids`, `tokens`, `text`, or prompt and
    completion."""
    pair: Name
    """Template of a second input text, which follows the first. Default: none."""
    truncate: Literal["left", "right"]
    """Side at which long texts are cut, if they are cut. Default `right`."""
    class_weights: Any
    """Loss weights of labels; labels that are not listed have weight 1. Default: none."""
    balanced: bool
    """Weight each label by N / (K · N_label) over the training rows, on top of `class_weights`. Default false."""


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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.classify)``
            lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("classify", given)


class DpoKeys(SharedKeys, total=False):
    """Keys of `dpo`."""

    beta: float
    """Strength of the pull toward the reference. Default 0.1 (Rafailov et al. 2023)."""
    loss_type: Literal["sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"] | Sequence[Literal["sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"]]
    """Loss on the log-ratios of policy and reference; several losses are added. Default `sigmoid`."""
    loss_weights: float | Sequence[float]
    """Weight of each loss of `loss_type`. Default: 1 each."""
    label_smoothing: float
    """Probability that a label is wrong (`sigmoid`, `robust`, `exo_pair`, `aot`, `aot_unpaired`). Default 0."""
    ld_alpha: float
    """Weight, from 0 to 1, of tokens beyond the length of the pair's shorter completion (LD-DPO). Default: the same as
    all others."""
    f_divergence_type: Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"]
    """Divergence from the reference (f-DPO; only for losses on the difference of both sides). Default `reverse_kl`."""
    f_alpha_divergence_coef: float
    """Parameter α of `alpha_divergence`. Default 0.5 (TRL)."""
    discopop_tau: float
    """Temperature τ of `discopop`, at which it changes from logistic to exponential. Default 0.05 (Lu et al. 2024)."""
    use_weighting: bool
    """Weight each pair by how likely the policy itself is to write completions like its two (WPO). Default false."""
    reference: Literal["precomputed", "live"]
    """Source of the reference's log-probabilities. Default `precomputed`: one pass before training, after which the
    reference is dropped."""
    reference_model: Name
    """The reference: a model directory. Default: the start model of the training."""


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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.dpo)``
            lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("dpo", given)


class OrpoKeys(SharedKeys, total=False):
    """Keys of `orpo`."""

    beta: float
    """Weight of the odds ratio relative to the likelihood (λ in the paper). Default 0.1 (TRL)."""


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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.orpo)``
            lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("orpo", given)


class CpoKeys(SharedKeys, total=False):
    """Keys of `cpo`."""

    beta: float
    """Factor β of differences of log-probabilities. Default 0.1 (TRL)."""
    loss_type: Literal["sigmoid", "hinge", "ipo", "simpo"]
    """Loss on the log-probabilities of a pair. Default `sigmoid` (Xu et al. 2024)."""
    cpo_alpha: float
    """Weight of the negative log-likelihood of the chosen completions. Default 1 (Xu et al. 2024)."""
    simpo_gamma: float
    """Margin γ by which the chosen completion should be better (`simpo` only). Default 0.5 (TRL)."""
    alpha: float
    """Shape of the rewards: (1 − π^(−α))/α in place of log π (AlphaPO). Default 0: log π."""
    label_smoothing: float
    """Probability that a label is wrong (`sigmoid`, `simpo`). Default 0."""


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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.cpo)``
            lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("cpo", given)


class SimpoKeys(SharedKeys, total=False):
    """Keys of `simpo`."""

    beta: float
    """Factor β of differences of mean log-probabilities. Default 2 (Meng et al. 2024, on Llama 3 8B)."""
    simpo_gamma: float
    """Margin γ by which the chosen completion should be better. Default 1 (half of `beta`: Meng et al. 2024, on Llama 3
    8B)."""
    cpo_alpha: float
    """Weight of the negative log-likelihood of the chosen completions (CPO-SimPO above 0). Default 0 (Meng et al.
    2024)."""
    alpha: float
    """Shape of the rewards: (1 − π^(−α))/α in place of log π (AlphaPO). Default 0: log π."""
    label_smoothing: float
    """Probability that a label is wrong. Default 0."""


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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.simpo)``
            lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("simpo", given)


class KtoKeys(SharedKeys, total=False):
    """Keys of `kto`."""

    beta: float
    """Strength of the pull toward the reference. Default 0.1 (TRL; Ethayarajh et al. 2024)."""
    loss_type: Literal["kto", "apo_zero_unpaired"]
    """The loss. Default `kto`."""
    desirable_weight: float
    """Weight of the losses of desirable completions. Default 1 (TRL)."""
    undesirable_weight: float
    """Weight of the losses of undesirable completions. Default 1 (TRL)."""
    reference_model: Name
    """The reference: a model directory. Default: the start model of the training."""


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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.kto)``
            lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("kto", given)


class DistillKeys(SharedKeys, total=False):
    """Keys of `distill`."""

    task: Any
    """The task that makes rows from its public files: its name, or a mapping of its name and its keys."""
    eval_task: Any
    """The task that makes rows from its public files: its name, or a mapping of its name and its keys."""
    test_task: Any
    """The task that makes rows from its public files: its name, or a mapping of its name and its keys."""
    teacher_model: Name
    """The teacher: a directory, a run or a hub name, with the student's tokenizer. `train.frozen_weights` sets how its
    weights are stored. Required, unless `teacher_server` is given."""
    teacher_server_server: Name
    """Address of the server, such as `http://localhost:8000`."""
    teacher_server_kind: Literal["gradus", "vllm", "sglang"]
    """Protocol of the server: `gradus`, `vllm` or `sglang`. Default `vllm`."""
    teacher_server_model: Name
    """Name of the teacher on the server. Default: the first model that the server lists."""
    teacher_server_key_variable: Name
    """Environment variable that holds the API key of the server. Default: the server needs no key."""
    teacher_server_top_k: int
    """Number of most probable ids that the teacher returns per position. With `beta` above 0, the actual id is compared
    as well. Default 20, vLLM's limit unless it is started with `--max-logprobs`. TRL: 1."""
    teacher_server_add_tail: bool
    """Also compare the total probability of all other ids. Default true (TRL)."""
    teacher_server_connections: int
    """Number of concurrent requests, each for one row. Default 16."""
    teacher_server_timeout_s: float
    """Time limit of one request in seconds. Default 1800."""
    teacher_server_wait_s: float
    """Seconds that the run waits for a server that does not answer, before it writes a checkpoint and ends. Default
    600."""
    beta: float
    """Position of the divergence between the forward KL (0) and the reverse KL (1). Default 0.5 (TRL)."""
    lmbda: float
    """Share λ of steps that train on completions sampled by the student itself. Default 0.5 (TRL)."""
    seq_kd: bool
    """Let the teacher sample the completions of the other steps, instead of using those of the rows. Default false
    (TRL)."""
    temperature: float
    """Sampling temperature; the divergence is computed at temperature 1. Default 0.9 (TRL)."""
    max_new_tokens: int
    """Maximum length of a sampled completion in tokens. Default 128 (TRL)."""


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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.distill)``
            lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("distill", given)


class PpoKeys(OnlineKeys, total=False):
    """Keys of `ppo`."""

    temperature: float
    """Temperature of sampling and of the trained logprobs (see `sampling.trained_logprobs`). Default 0.7 (TRL)."""
    update_epochs: int
    """Passes over one batch of rollouts. Default 4 (TRL)."""
    mini_batches: int
    """Mini-batches (optimizer steps) per pass. Default 1 (TRL)."""
    clip_range: float
    """Clip range of the policy ratio. Default 0.2 (Schulman et al. 2017, section 6.1)."""
    value_clip_range: float
    """Clip range of the value update; 0 turns clipping off (RL4LMs). Default 0.2 (TRL)."""
    policy_coefficient: float
    """Weight of the policy loss (FineGrainedRLHF's `pg_coef`). Default 1."""
    value_coefficient: float
    """Weight of the value loss, which is half the squared error. Default 0.1 (TRL). RL4LMs' `vf_coef: 0.5` corresponds
    to 1, because its error is not halved."""
    entropy_coefficient: float
    """Weight of the entropy bonus. Default 0."""
    discount: float
    """Discount γ. Default 1 (TRL)."""
    gae_lambda: float
    """GAE's λ. Default 0.95 (TRL)."""
    whiten_rewards: bool
    """Whiten rewards before GAE. Default false (TRL)."""
    whiten_advantages: bool
    """Whiten advantages. Default true (TRL)."""
    missing_eos_penalty: float
    """Subtract this from the score of a completion without a stop id. Default: none (TRL's TL;DR recipe uses 1)."""
    kl_coefficient: float
    """The coefficient β, or its initial value if it is adaptive. Default 0.05 (TRL)."""
    kl_estimator: Literal["k1", "k2", "k3"]
    """Estimator: k1 = d, k2 = d²/2, k3 = e^(−d) − 1 + d. Default k1 (TRL)."""
    kl_target: float
    """Adapt the coefficient so that the KL approaches this target. Default: fixed."""
    kl_horizon: float
    """Number of sequences over which the adaptive coefficient moves. Default 10000 (Ziegler et al. 2019)."""
    kl_rate: float
    """Move the adaptive coefficient by this share of its error in each iteration, independent of the number of
    sequences. Replaces `horizon`. Default: none (RL4LMs: 0.1)."""
    kl_unit: Literal["sequence", "token"]
    """Unit of `target`: nats per `sequence` (Ziegler et al. 2019) or per `token` (RL4LMs). Default `sequence`."""
    kl_stop_above: float
    """Stop the run when `stop_after` iterations have had a KL above this, as a mean over their sequences in nats.
    Default: never (FineGrainedRLHF's `kl_threshold`)."""
    kl_stop_after: int
    """Number of iterations above `stop_above` that stop the run, not necessarily in a row. Default 5
    (FineGrainedRLHF)."""
    critic_trunk: Literal["shared", "separate"]
    """Trunk of the critic: `shared` with the policy, or a `separate` model. Default `separate` (TRL)."""
    critic_model: Name
    """Model directory that a separate critic starts from. Default: the reward model if there is one, else the
    policy."""
    critic_learning_rate: float
    """Learning rate of a separate critic. Default: the policy's."""
    critic_head: Literal["linear", "two_layer"]
    """Head of a separate critic: one `linear` layer, or FineGrainedRLHF's `two_layer` head, whose last layer also
    starts at 0. A model with another head gets a new one. Default `linear` (TRL)."""
    critic_freeze_trunk: bool
    """Train only the head of a separate critic and freeze its trunk (FineGrainedRLHF's `freeze_value_model`). Default
    false."""
    target_kl: float
    """Skip the remaining update epochs when the policy has moved further than 1.5 times this (mean k3). Default:
    off."""
    quirks_value_clip: Literal["larger", "clipped"]
    """Error that counts if values are clipped. Default `larger` (TRL)."""
    quirks_target_kl_over: Literal["pass", "mini_batch"]
    """Check `target_kl` after each `pass` over the rollouts, or before the step of each `mini_batch`, which is then
    skipped too (RL4LMs). Default `pass`."""
    quirks_clip_jointly: bool
    """Clip the gradients of policy and critic by their joint norm (RL4LMs) instead of separately. A critic on the
    policy's trunk is always clipped jointly. Default false."""
    quirks_part_size: int
    """Split a mini-batch into parts of this many sequences. The loss is averaged over the tokens of each part, then the
    parts are averaged or added up (FineGrainedRLHF's micro-batches: 4). Default: one part."""
    quirks_sum_parts: bool
    """Add the parts up instead of averaging them (FineGrainedRLHF: true). Default false."""
    quirks_length_weights: bool
    """Weight each part by its mean length relative to that of all rollouts (FineGrainedRLHF: true). Default false."""
    quirks_lr_per_step: bool
    """Advance the learning rate schedule with every optimizer step instead of every iteration (FineGrainedRLHF: true).
    Default false."""
    quirks_whitening_rewards: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """Divisor that whitens rewards, after the mean is subtracted. Default `unbiased` (TRL)."""
    quirks_whitening_advantages: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """Divisor that whitens advantages, after the mean is subtracted. Default `unbiased` (TRL)."""
    quirks_whitening_center_rewards: bool
    """Shift whitened rewards to mean 0 instead of keeping their mean. Default false (TRL; RL4LMs' `norm_reward`:
    true)."""
    quirks_whitening_leak_padding: bool
    """Let whitened rewards extend into the padding after a completion, up to the longest completion of the iteration,
    and from there back through GAE. Default false (FineGrainedRLHF: true)."""
    quirks_whitening_advantages_over: Literal["batch", "mini_batch"]
    """Tokens over which advantages are whitened. Default `batch` (TRL)."""


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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        reward: A function, the directory or hub name of a reward model, a mapping as in a configuration, or a list of
            these. A function is called with those of these keyword arguments that it accepts: ``prompts``,
            ``completions``, ``completion_ids``, ``trainer_state``, ``environments``, ``log_metric``, ``log_extra``, and
            each column of the rows. Values per completion are lists. The function returns a list with a finite number
            for each completion, or with None for a completion without a score. It may be an ``async`` function.
        reward_weights: A weight for each entry of the list ``reward``. Default: 1 for each.
        reward_timeout_s: The time limit of a call of reward functions, in seconds. Default 60.
        on_rollouts: A function ``on_rollouts(step, rollouts)``. It is called with the completions of each step, as
            dicts. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.ppo)``
            lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
        gradus.RewardError: A reward function failed. ``__cause__`` is its exception.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("ppo", given)


class NlpoKeys(OnlineKeys, total=False):
    """Keys of `nlpo`."""

    temperature: float
    """Temperature of sampling and of the trained logprobs (see `sampling.trained_logprobs`). Default 0.7 (TRL)."""
    update_epochs: int
    """Passes over one batch of rollouts. Default 4 (TRL)."""
    mini_batches: int
    """Mini-batches (optimizer steps) per pass. Default 1 (TRL)."""
    clip_range: float
    """Clip range of the policy ratio. Default 0.2 (Schulman et al. 2017, section 6.1)."""
    value_clip_range: float
    """Clip range of the value update; 0 turns clipping off (RL4LMs). Default 0.2 (TRL)."""
    policy_coefficient: float
    """Weight of the policy loss (FineGrainedRLHF's `pg_coef`). Default 1."""
    value_coefficient: float
    """Weight of the value loss, which is half the squared error. Default 0.1 (TRL). RL4LMs' `vf_coef: 0.5` corresponds
    to 1, because its error is not halved."""
    entropy_coefficient: float
    """Weight of the entropy bonus. Default 0."""
    discount: float
    """Discount γ. Default 1 (TRL)."""
    gae_lambda: float
    """GAE's λ. Default 0.95 (TRL)."""
    whiten_rewards: bool
    """Whiten rewards before GAE. Default false (TRL)."""
    whiten_advantages: bool
    """Whiten advantages. Default true (TRL)."""
    missing_eos_penalty: float
    """Subtract this from the score of a completion without a stop id. Default: none (TRL's TL;DR recipe uses 1)."""
    kl_coefficient: float
    """The coefficient β, or its initial value if it is adaptive. Default 0.05 (TRL)."""
    kl_estimator: Literal["k1", "k2", "k3"]
    """Estimator: k1 = d, k2 = d²/2, k3 = e^(−d) − 1 + d. Default k1 (TRL)."""
    kl_target: float
    """Adapt the coefficient so that the KL approaches this target. Default: fixed."""
    kl_horizon: float
    """Number of sequences over which the adaptive coefficient moves. Default 10000 (Ziegler et al. 2019)."""
    kl_rate: float
    """Move the adaptive coefficient by this share of its error in each iteration, independent of the number of
    sequences. Replaces `horizon`. Default: none (RL4LMs: 0.1)."""
    kl_unit: Literal["sequence", "token"]
    """Unit of `target`: nats per `sequence` (Ziegler et al. 2019) or per `token` (RL4LMs). Default `sequence`."""
    kl_stop_above: float
    """Stop the run when `stop_after` iterations have had a KL above this, as a mean over their sequences in nats.
    Default: never (FineGrainedRLHF's `kl_threshold`)."""
    kl_stop_after: int
    """Number of iterations above `stop_above` that stop the run, not necessarily in a row. Default 5
    (FineGrainedRLHF)."""
    critic_trunk: Literal["shared", "separate"]
    """Trunk of the critic: `shared` with the policy, or a `separate` model. Default `separate` (TRL)."""
    critic_model: Name
    """Model directory that a separate critic starts from. Default: the reward model if there is one, else the
    policy."""
    critic_learning_rate: float
    """Learning rate of a separate critic. Default: the policy's."""
    critic_head: Literal["linear", "two_layer"]
    """Head of a separate critic: one `linear` layer, or FineGrainedRLHF's `two_layer` head, whose last layer also
    starts at 0. A model with another head gets a new one. Default `linear` (TRL)."""
    critic_freeze_trunk: bool
    """Train only the head of a separate critic and freeze its trunk (FineGrainedRLHF's `freeze_value_model`). Default
    false."""
    target_kl: float
    """Skip the remaining update epochs when the policy has moved further than 1.5 times this (mean k3). Default:
    off."""
    quirks_value_clip: Literal["larger", "clipped"]
    """Error that counts if values are clipped. Default `larger` (TRL)."""
    quirks_target_kl_over: Literal["pass", "mini_batch"]
    """Check `target_kl` after each `pass` over the rollouts, or before the step of each `mini_batch`, which is then
    skipped too (RL4LMs). Default `pass`."""
    quirks_clip_jointly: bool
    """Clip the gradients of policy and critic by their joint norm (RL4LMs) instead of separately. A critic on the
    policy's trunk is always clipped jointly. Default false."""
    quirks_part_size: int
    """Split a mini-batch into parts of this many sequences. The loss is averaged over the tokens of each part, then the
    parts are averaged or added up (FineGrainedRLHF's micro-batches: 4). Default: one part."""
    quirks_sum_parts: bool
    """Add the parts up instead of averaging them (FineGrainedRLHF: true). Default false."""
    quirks_length_weights: bool
    """Weight each part by its mean length relative to that of all rollouts (FineGrainedRLHF: true). Default false."""
    quirks_lr_per_step: bool
    """Advance the learning rate schedule with every optimizer step instead of every iteration (FineGrainedRLHF: true).
    Default false."""
    quirks_whitening_rewards: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """Divisor that whitens rewards, after the mean is subtracted. Default `unbiased` (TRL)."""
    quirks_whitening_advantages: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """Divisor that whitens advantages, after the mean is subtracted. Default `unbiased` (TRL)."""
    quirks_whitening_center_rewards: bool
    """Shift whitened rewards to mean 0 instead of keeping their mean. Default false (TRL; RL4LMs' `norm_reward`:
    true)."""
    quirks_whitening_leak_padding: bool
    """Let whitened rewards extend into the padding after a completion, up to the longest completion of the iteration,
    and from there back through GAE. Default false (FineGrainedRLHF: true)."""
    quirks_whitening_advantages_over: Literal["batch", "mini_batch"]
    """Tokens over which advantages are whitened. Default `batch` (TRL)."""
    top_p: float
    """Sample from the smallest set of tokens with this total probability under the mask's model; 1 keeps all tokens.
    Default 0.9 (RL4LMs)."""
    top_k: int
    """Sample from this many of its likeliest tokens instead of `top_p`. Default: none."""
    mask_model: Literal["lagged", "policy"]
    """Model that defines the mask. Default `lagged` (RL4LMs)."""
    mask_update: Literal["periodic", "frozen"]
    """Updates of the lagged copy. Default `periodic` (RL4LMs' code: `frozen`)."""
    mask_update_iterations: int
    """Number of iterations after which the lagged copy is replaced by the current policy. Default 20 (RL4LMs'
    recipes)."""
    min_tokens_to_keep: int
    """Minimum number of tokens that the mask keeps. Default 1 (RL4LMs' code: 100; with an encoder, one more than
    configured)."""
    keep_special_tokens: bool
    """Never mask the tokenizer's special tokens. Default true (RL4LMs' code)."""
    renormalise: bool
    """Renormalize the trained logprobs over the tokens that the mask keeps. RL4LMs' code uses the whole vocabulary
    (false). Default true."""
    mask_scope: Literal["nlpo_mask_only", "processed"]
    """Tokens over which logprobs are renormalized: those that the mask keeps, or those that the mask and all of
    `sampling` keep. Default `nlpo_mask_only`."""
    mask_at_eval: bool
    """Apply the mask to completions of evaluations too, as in RL4LMs' code. Default false."""


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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        reward: A function, the directory or hub name of a reward model, a mapping as in a configuration, or a list of
            these. A function is called with those of these keyword arguments that it accepts: ``prompts``,
            ``completions``, ``completion_ids``, ``trainer_state``, ``environments``, ``log_metric``, ``log_extra``, and
            each column of the rows. Values per completion are lists. The function returns a list with a finite number
            for each completion, or with None for a completion without a score. It may be an ``async`` function.
        reward_weights: A weight for each entry of the list ``reward``. Default: 1 for each.
        reward_timeout_s: The time limit of a call of reward functions, in seconds. Default 60.
        on_rollouts: A function ``on_rollouts(step, rollouts)``. It is called with the completions of each step, as
            dicts. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.nlpo)``
            lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
        gradus.RewardError: A reward function failed. ``__cause__`` is its exception.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("nlpo", given)


class A2cKeys(OnlineKeys, total=False):
    """Keys of `a2c`."""

    temperature: float
    """Temperature of sampling and of the trained logprobs (see `sampling.trained_logprobs`). Default 1 (RL4LMs)."""
    value_coefficient: float
    """Weight of the value loss, which is half the squared error. Default 1 (RL4LMs: 0.5, without the half)."""
    entropy_coefficient: float
    """Weight of the entropy bonus. Default 0 (RL4LMs)."""
    discount: float
    """Discount γ. Default 0.99 (RL4LMs)."""
    gae_lambda: float
    """GAE's λ. Default 1 (RL4LMs)."""
    whiten_rewards: bool
    """Whiten rewards before GAE. Default false (RL4LMs)."""
    whiten_advantages: bool
    """Whiten advantages. Default false (RL4LMs)."""
    missing_eos_penalty: float
    """Subtract this from the score of a completion without a stop id. Default: none (TRL's TL;DR recipe uses 1)."""
    kl_coefficient: float
    """The coefficient β, or its initial value if it is adaptive. Default 0.05 (TRL)."""
    kl_estimator: Literal["k1", "k2", "k3"]
    """Estimator: k1 = d, k2 = d²/2, k3 = e^(−d) − 1 + d. Default k1 (TRL)."""
    kl_target: float
    """Adapt the coefficient so that the KL approaches this target. Default: fixed."""
    kl_horizon: float
    """Number of sequences over which the adaptive coefficient moves. Default 10000 (Ziegler et al. 2019)."""
    kl_rate: float
    """Move the adaptive coefficient by this share of its error in each iteration, independent of the number of
    sequences. Replaces `horizon`. Default: none (RL4LMs: 0.1)."""
    kl_unit: Literal["sequence", "token"]
    """Unit of `target`: nats per `sequence` (Ziegler et al. 2019) or per `token` (RL4LMs). Default `sequence`."""
    kl_stop_above: float
    """Stop the run when `stop_after` iterations have had a KL above this, as a mean over their sequences in nats.
    Default: never (FineGrainedRLHF's `kl_threshold`)."""
    kl_stop_after: int
    """Number of iterations above `stop_above` that stop the run, not necessarily in a row. Default 5
    (FineGrainedRLHF)."""
    critic_trunk: Literal["shared", "separate"]
    """Trunk of the critic: `shared` with the policy, or a `separate` model. Default `separate` (TRL)."""
    critic_model: Name
    """Model directory that a separate critic starts from. Default: the reward model if there is one, else the
    policy."""
    critic_learning_rate: float
    """Learning rate of a separate critic. Default: the policy's."""
    critic_head: Literal["linear", "two_layer"]
    """Head of a separate critic: one `linear` layer, or FineGrainedRLHF's `two_layer` head, whose last layer also
    starts at 0. A model with another head gets a new one. Default `linear` (TRL)."""
    critic_freeze_trunk: bool
    """Train only the head of a separate critic and freeze its trunk (FineGrainedRLHF's `freeze_value_model`). Default
    false."""
    quirks_clip_jointly: bool
    """Clip the gradients of policy and critic by their joint norm. Default true (RL4LMs)."""
    quirks_whitening_rewards: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """Divisor that whitens rewards, after the mean is subtracted. Default `unbiased` (TRL)."""
    quirks_whitening_advantages: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """Divisor that whitens advantages, after the mean is subtracted. Default `unbiased` (TRL)."""
    quirks_whitening_center_rewards: bool
    """Shift whitened rewards to mean 0 instead of keeping their mean. Default false (TRL; RL4LMs' `norm_reward`:
    true)."""
    quirks_whitening_leak_padding: bool
    """Let whitened rewards extend into the padding after a completion, up to the longest completion of the iteration,
    and from there back through GAE. Default false (FineGrainedRLHF: true)."""
    quirks_whitening_advantages_over: Literal["batch", "mini_batch"]
    """Tokens over which advantages are whitened. Default `batch` (TRL)."""


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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        reward: A function, the directory or hub name of a reward model, a mapping as in a configuration, or a list of
            these. A function is called with those of these keyword arguments that it accepts: ``prompts``,
            ``completions``, ``completion_ids``, ``trainer_state``, ``environments``, ``log_metric``, ``log_extra``, and
            each column of the rows. Values per completion are lists. The function returns a list with a finite number
            for each completion, or with None for a completion without a score. It may be an ``async`` function.
        reward_weights: A weight for each entry of the list ``reward``. Default: 1 for each.
        reward_timeout_s: The time limit of a call of reward functions, in seconds. Default 60.
        on_rollouts: A function ``on_rollouts(step, rollouts)``. It is called with the completions of each step, as
            dicts. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.a2c)``
            lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
        gradus.RewardError: A reward function failed. ``__cause__`` is its exception.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("a2c", given)


class TrpoKeys(OnlineKeys, total=False):
    """Keys of `trpo`."""

    temperature: float
    """Temperature of sampling and of the trained logprobs (see `sampling.trained_logprobs`). Default 1 (RL4LMs)."""
    target_kl: float
    """Maximum distance that a step may move the policy: mean KL(new ‖ old) over tokens, in nats. Default 0.01
    (RL4LMs)."""
    cg_max_steps: int
    """Maximum number of conjugate gradient steps. Default 15 (RL4LMs)."""
    cg_damping: float
    """Value added to the diagonal of the Fisher matrix. Default 0.1 (RL4LMs)."""
    line_search_shrinking_factor: float
    """Factor that shortens a step that is too long. Default 0.8 (RL4LMs)."""
    line_search_max_iter: int
    """Maximum number of step lengths to try. Default 10 (RL4LMs)."""
    critic_updates: int
    """Passes of the critic over the rollouts. Default 10 (RL4LMs)."""
    critic_mini_batches: int
    """Mini-batches (optimizer steps of the critic) per pass. Default 1."""
    discount: float
    """Discount γ. Default 0.99 (RL4LMs)."""
    gae_lambda: float
    """GAE's λ. Default 0.95 (RL4LMs)."""
    whiten_rewards: bool
    """Whiten rewards before GAE. Default false (RL4LMs)."""
    whiten_advantages: bool
    """Whiten advantages. Default true (RL4LMs)."""
    missing_eos_penalty: float
    """Subtract this from the score of a completion without a stop id. Default: none (TRL's TL;DR recipe uses 1)."""
    kl_coefficient: float
    """The coefficient β, or its initial value if it is adaptive. Default 0.05 (TRL)."""
    kl_estimator: Literal["k1", "k2", "k3"]
    """Estimator: k1 = d, k2 = d²/2, k3 = e^(−d) − 1 + d. Default k1 (TRL)."""
    kl_target: float
    """Adapt the coefficient so that the KL approaches this target. Default: fixed."""
    kl_horizon: float
    """Number of sequences over which the adaptive coefficient moves. Default 10000 (Ziegler et al. 2019)."""
    kl_rate: float
    """Move the adaptive coefficient by this share of its error in each iteration, independent of the number of
    sequences. Replaces `horizon`. Default: none (RL4LMs: 0.1)."""
    kl_unit: Literal["sequence", "token"]
    """Unit of `target`: nats per `sequence` (Ziegler et al. 2019) or per `token` (RL4LMs). Default `sequence`."""
    kl_stop_above: float
    """Stop the run when `stop_after` iterations have had a KL above this, as a mean over their sequences in nats.
    Default: never (FineGrainedRLHF's `kl_threshold`)."""
    kl_stop_after: int
    """Number of iterations above `stop_above` that stop the run, not necessarily in a row. Default 5
    (FineGrainedRLHF)."""
    critic_trunk: Literal["shared", "separate"]
    """Trunk of the critic: `shared` with the policy, or a `separate` model. Default `separate` (TRL)."""
    critic_model: Name
    """Model directory that a separate critic starts from. Default: the reward model if there is one, else the
    policy."""
    critic_learning_rate: float
    """Learning rate of a separate critic. Default: the policy's."""
    critic_head: Literal["linear", "two_layer"]
    """Head of a separate critic: one `linear` layer, or FineGrainedRLHF's `two_layer` head, whose last layer also
    starts at 0. A model with another head gets a new one. Default `linear` (TRL)."""
    critic_freeze_trunk: bool
    """Train only the head of a separate critic and freeze its trunk (FineGrainedRLHF's `freeze_value_model`). Default
    false."""
    quirks_whitening_rewards: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """Divisor that whitens rewards, after the mean is subtracted. Default `unbiased` (TRL)."""
    quirks_whitening_advantages: Literal["unbiased", "biased", "deviation", "biased_deviation", "root_of_deviation"]
    """Divisor that whitens advantages, after the mean is subtracted. Default `unbiased` (TRL)."""
    quirks_whitening_center_rewards: bool
    """Shift whitened rewards to mean 0 instead of keeping their mean. Default false (TRL; RL4LMs' `norm_reward`:
    true)."""
    quirks_whitening_leak_padding: bool
    """Let whitened rewards extend into the padding after a completion, up to the longest completion of the iteration,
    and from there back through GAE. Default false (FineGrainedRLHF: true)."""
    quirks_whitening_advantages_over: Literal["batch", "mini_batch"]
    """Tokens over which advantages are whitened. Default `batch` (TRL)."""


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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        reward: A function, the directory or hub name of a reward model, a mapping as in a configuration, or a list of
            these. A function is called with those of these keyword arguments that it accepts: ``prompts``,
            ``completions``, ``completion_ids``, ``trainer_state``, ``environments``, ``log_metric``, ``log_extra``, and
            each column of the rows. Values per completion are lists. The function returns a list with a finite number
            for each completion, or with None for a completion without a score. It may be an ``async`` function.
        reward_weights: A weight for each entry of the list ``reward``. Default: 1 for each.
        reward_timeout_s: The time limit of a call of reward functions, in seconds. Default 60.
        on_rollouts: A function ``on_rollouts(step, rollouts)``. It is called with the completions of each step, as
            dicts. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.trpo)``
            lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
        gradus.RewardError: A reward function failed. ``__cause__`` is its exception.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("trpo", given)


class GrpoKeys(OnlineKeys, total=False):
    """Keys of `grpo`."""

    temperature: float
    """Temperature of sampling and of the trained logprobs (see `sampling.trained_logprobs`). Default 1 (TRL)."""
    update_epochs: int
    """Passes over one batch of rollouts, μ. Default 1 (TRL)."""
    mini_batches: int
    """Mini-batches (optimizer steps) per pass. Default 1."""
    clip_range: float
    """Lower clip range of the ratio: 1 − clip_range. Default 0.2 (TRL)."""
    clip_range_high: float
    """Upper clip range: 1 + clip_range_high. For `cispo`, the bound of the ratio itself, which is required. Default:
    `clip_range`."""
    delta: float
    """Upper bound of the ratio even if the advantage is negative (two-sided clipping). Default: none."""
    kl_coefficient: float
    """Weight of the KL term (k3) in the loss; 0 needs no reference. Default 0 (TRL)."""
    kl_bias_correction: bool
    """Multiply the KL term by the importance ratio, so that its gradient is that of the reverse KL. Default true
    (TRL)."""
    importance_sampling_level: Literal["token", "sequence"]
    """Unit of the importance ratio: each token, or each sequence with the geometric mean of its tokens' ratios (GSPO).
    Default `token` (TRL)."""
    loss_type: Literal["grpo", "dr_grpo", "bnpo", "dapo", "cispo", "sapo", "luspo", "vespo"]
    """Loss per token and its reduction. Default `dapo` (TRL)."""
    sapo_temperature_pos: float
    """Temperature of `sapo` for positive advantages. Default 1 (TRL)."""
    sapo_temperature_neg: float
    """Temperature of `sapo` for other advantages. Default 1.05 (TRL)."""
    vespo_k_pos: float
    """Exponent of the ratio in `vespo`'s weight for advantages of at least 0. Default 2 (TRL)."""
    vespo_lambda_pos: float
    """Rate of `vespo`'s weight for advantages of at least 0. Default 3 (TRL)."""
    vespo_k_neg: float
    """Exponent of the ratio in `vespo`'s weight for negative advantages. Default 3 (TRL)."""
    vespo_lambda_neg: float
    """Rate of `vespo`'s weight for negative advantages. Default 2 (TRL)."""
    baseline: Literal["group_mean", "leave_one_out"]
    """Baseline that is subtracted from a reward. Default `group_mean` (TRL)."""
    scale_rewards: Literal["group", "batch", "none"]
    """Divisor of the advantages. Default `group` (TRL)."""
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"]
    """Order of the steps from several rewards (the parts of `reward`) to one advantage. With `normalize_then_sum`
    (GDPO), the weight of a reward decides its influence, and its range does not. Default `sum_then_normalize` (TRL)."""
    mask_truncated_completions: bool
    """Leave completions without a stop id out of the loss. Default false (TRL)."""
    missing_eos_penalty: float
    """Subtract this from the reward of a completion that reached `max_new_tokens` without a stop id, before rewards are
    compared within their group. Default: nothing."""
    resample_rounds: int
    """Rounds in which groups with equal rewards are replaced by groups of prompts that the iteration has not used
    (dynamic sampling, Yu et al. 2025). Default 0: they stay, with advantages of 0."""
    off_policy_mask_threshold: float
    """Leave a completion with a negative advantage out of the loss if its tokens are more than this many nats likelier
    under the sampler than under the policy, on average (the off-policy sequence mask of DeepSeek-V3.2). The sampler is
    the server of `rollouts`, or the policy before the iteration's updates. Default: none (TRL)."""
    top_entropy_quantile: float
    """Share of the tokens that carry the policy loss and the entropy bonus: those with the highest entropies among the
    tokens of an optimizer step. Wang et al. 2025 recommend 0.2. Below 1, each optimizer step needs one more forward
    pass. Default 1 (TRL): all tokens."""
    entropy_coefficient: float
    """Weight of the entropy bonus, or its first value with `use_adaptive_entropy`. Default 0."""
    use_adaptive_entropy: bool
    """Change the weight of the entropy bonus after each optimizer step, so that the entropy stays near `entropy_target`
    (Skywork-OR1). The bonus applies only after a step whose entropy was at or below the target. Default false (TRL)."""
    entropy_coefficient_min: float
    """Smallest weight of the adaptive entropy bonus. Default 0 (TRL)."""
    entropy_coefficient_max: float
    """Largest weight of the adaptive entropy bonus. Default 1 (TRL)."""
    entropy_coefficient_delta: float
    """Change of the adaptive weight per optimizer step: up at or below `entropy_target`, down above it. Default 0.005
    (TRL)."""
    entropy_target: float
    """Target of the adaptive entropy bonus: mean entropy in nats of the tokens that carry the policy loss. Choose a
    value near the logged `entropy` of the first steps. Default 0.2 (TRL)."""


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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        reward: A function, the directory or hub name of a reward model, a mapping as in a configuration, or a list of
            these. A function is called with those of these keyword arguments that it accepts: ``prompts``,
            ``completions``, ``completion_ids``, ``trainer_state``, ``environments``, ``log_metric``, ``log_extra``, and
            each column of the rows. Values per completion are lists. The function returns a list with a finite number
            for each completion, or with None for a completion without a score. It may be an ``async`` function.
        reward_weights: A weight for each entry of the list ``reward``. Default: 1 for each.
        reward_timeout_s: The time limit of a call of reward functions, in seconds. Default 60.
        on_rollouts: A function ``on_rollouts(step, rollouts)``. It is called with the completions of each step, as
            dicts. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.grpo)``
            lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
        gradus.RewardError: A reward function failed. ``__cause__`` is its exception.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("grpo", given)


class RlooKeys(OnlineKeys, total=False):
    """Keys of `rloo`."""

    temperature: float
    """Temperature of sampling and of the trained logprobs (see `sampling.trained_logprobs`). Default 1 (TRL)."""
    update_epochs: int
    """Passes over one batch of rollouts. Default 1 (TRL)."""
    mini_batches: int
    """Mini-batches (optimizer steps) per pass. Default 1."""
    clip_range: float
    """Lower clip range of a completion's ratio: 1 − clip_range. Default 0.2 (TRL)."""
    clip_range_high: float
    """Upper clip range: 1 + clip_range_high. Default: `clip_range`."""
    kl_coefficient: float
    """Weight of the KL (k1, summed over the completion) that is subtracted from the reward; 0 needs no reference.
    Default 0.05 (TRL)."""
    normalize_advantages: bool
    """Normalize advantages over the batch. Default false (TRL)."""
    reward_clip_range: float | Sequence[float]
    """Bounds of the rewards, applied before the KL is subtracted. Default: none."""
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

    Args:
        model: The model to train: a directory, a hub name, a ``Run`` or a loaded ``Model``.
        data: The rows to train on: a path, a hub name, a table (``datasets``, polars, pandas, pyarrow), an iterable of
            dicts, or ``{"task": …}``.
        eval_data: Rows for evaluations during the run. Default: a part of ``data``, which is not trained on.
        test_data: Rows for a last evaluation, after the run.
        config: A configuration file. The arguments override it.
        output_dir: The run directory. Default: a new one below ``runs``.
        overwrite: Replace a run in ``output_dir``. Without it, an existing run is an error.
        resume: Continue the run in ``output_dir`` from its last checkpoint.
        resume_from: Continue from this step of the run in ``output_dir``, or from the checkpoint in this directory.
        progress: Show the progress. Default: on terminals and in notebooks.
        on_step: A function ``on_step(step, total, metrics)``. It is called after every logged step with its number, the
            number of all steps, and a dict of metrics. If it returns False, the run stops after a checkpoint.
        on_evaluation: A function ``on_evaluation(step, metrics, best)``. It is called after every evaluation of
            held-out rows. If it returns False, the run stops after a checkpoint.
        reward: A function, the directory or hub name of a reward model, a mapping as in a configuration, or a list of
            these. A function is called with those of these keyword arguments that it accepts: ``prompts``,
            ``completions``, ``completion_ids``, ``trainer_state``, ``environments``, ``log_metric``, ``log_extra``, and
            each column of the rows. Values per completion are lists. The function returns a list with a finite number
            for each completion, or with None for a completion without a score. It may be an ``async`` function.
        reward_weights: A weight for each entry of the list ``reward``. Default: 1 for each.
        reward_timeout_s: The time limit of a call of reward functions, in seconds. Default 60.
        on_rollouts: A function ``on_rollouts(step, rollouts)``. It is called with the completions of each step, as
            dicts. If it returns False, the run stops after a checkpoint.
        keys: Keys of the configuration, such as ``learning_rate`` or ``max_steps``. ``gradus.explain(gradus.rloo)``
            lists them with their defaults.

    Returns:
        The finished or stopped run, with its directory, metrics and model.

    Raises:
        TypeError: An argument is unknown.
        gradus.ConfigError: Arguments are wrong. The text names every problem.
        gradus.DataError: A row is wrong.
        gradus.ModelError: The model cannot be used.
        gradus.DivergedError: A number became infinite or NaN.
        KeyboardInterrupt: After Ctrl-C. If a step was finished, a checkpoint was saved, and ``gradus.resume`` continues
            from it.
        gradus.RewardError: A reward function failed. ``__cause__`` is its exception.
    """
    given: dict[str, Any] = dict(locals())
    given.update(given.pop("keys"))
    return train("rloo", given)


#: The functions of this module.
METHODS = ("sft", "reward_model", "classify", "dpo", "orpo", "cpo", "simpo", "kto", "distill", "ppo", "nlpo", "a2c", "trpo", "grpo", "rloo")
