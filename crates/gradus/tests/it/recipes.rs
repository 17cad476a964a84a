//! Recipes: each is valid without warnings and is listed in the README next to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gradus::config::{Imported, Plan, Request, RunConfig, System, import};
use gradus::error::Location;
use gradus::machine::Machine;
use serde_json::json;

fn recipes() -> BTreeMap<String, Vec<PathBuf>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for folder in std::fs::read_dir(root).expect("the recipes").map(|entry| entry.expect("a folder").path()) {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
            .expect("a folder of recipes")
            .map(|entry| entry.expect("a file").path())
            .collect();
        files.retain(|file| file.extension().is_some_and(|end| end == "yml"));
        files.sort();
        found.insert(name, files);
    }
    found
}

#[test]
fn every_recipe_is_a_run_and_stands_in_its_readme() {
    let machine = Machine::detect();
    let (mut methods, mut count): (BTreeMap<String, usize>, usize) = Default::default();
    for (folder, files) in recipes() {
        let readme = files[0].with_file_name("README.md");
        let readme = std::fs::read_to_string(&readme).unwrap_or_else(|error| panic!("{}: {error}", readme.display()));
        for file in files {
            let name = file.file_name().expect("a name").to_string_lossy().into_owned();
            assert!(readme.contains(&name), "recipes/{folder}/README.md does not name `{name}`");
            let written = RunConfig::load(&Request { file: Some(&file), ..Request::default() });
            let plan = written.and_then(|written| Plan::check(&written, &machine));
            let plan = plan.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            if plan.config().data.task.is_none() {
                // Rows from files: QA-Feedback's.
                continue;
            }
            *methods.entry(plan.method().name().to_owned()).or_default() += 1;
            count += 1;
        }
    }
    // RL4LMs' 38 runs with rewards and 6 supervised ones, a small version of each of nine tasks, and two of
    // detoxification.
    assert_eq!(count, 44 + 9 + 2, "{methods:?}");
    let counted: Vec<(&str, usize)> = methods.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(counted, [("a2c", 2), ("nlpo", 16), ("ppo", 19 + 9 + 2), ("sft", 6), ("trpo", 1)]);
}

/// A file in the original's format, with the mistakes of its own files.
const ORIGINAL: &str = "\
tokenizer: { model_name: gpt2, padding_side: left, truncation_side: left, pad_token_as_eos_token: True }
reward_fn:
  id: learned_reward
  args: { model_name: some/classifier, label_ix: 1, include_prompt_for_eval: False }
datapool: { id: imdb }
env:
  n_envs: 10
  args: { max_prompt_length: 64, max_episode_length: 48, terminate_on_eos: True, context_start_token: 0 }
alg:
  id: nlpo
  args: { n_steps: 128, batch_size: 64, verbose: 1, learning_rate: 0.000001, n_epochs: 5, vf_coef: 0.25, new_key: 3 }
  kl_div: { coeff: 0.1, target_kl: 0.1, norm_reward: True }
  policy:
    id: maskable_causal_lm_actor_critic_policy
    args:
      model_name: lvwerra/gpt2-imdb
      apply_model_parallel: True
      mask_type: learned_top_p
      top_mask: 0.9
      target_update_iterations: 5
      generation_kwargs: { do_sample: True, min_length: 48, max_new_tokens: 48 }
train_evaluation:
  eval_batch_size: 64
  n_iters: 50
  eval_every: 10
  metrics: [{ id: causal_perplexity, args: { stride: 512 } }, { id: sacre_bleu, args: { tokenize: intl } }]
  generation_kwargs: { num_beams: 4, length_penalty: 0.6, num_beam_groups: 2, diversity_penalty: 0.5, no_repeat_ngram_size: 3 }
";

#[test]
fn another_systems_file_becomes_ours_and_says_what_changed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("gpt2_nlpo.yml");
    let imported = |text: &str| {
        std::fs::write(&file, text).expect("written");
        import(System::Rl4lms, &file)
    };
    let Imported { yaml, notes } = imported(ORIGINAL).expect("it is read");
    let written = RunConfig::parse(&yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    let config = Plan::check(&written, &Machine::detect()).expect("it can run").config().clone();
    let json = serde_json::to_value(&config).expect("plain data");
    for (key, expected) in [
        ("/model", "\"lvwerra/gpt2-imdb\""),
        ("/test_data/split", "\"test\""),
        ("/data/task/imdb/seed", "42"),
        // 10 × 128 tokens are 27 completions of 48, two per mini-batch of 64 tokens.
        ("/train/batch_size", "28"),
        ("/method/nlpo/mini_batches", "14"),
        ("/method/nlpo/value_coefficient", "0.5"),
        ("/method/nlpo/whiten_rewards", "true"),
        ("/method/nlpo/top_p", "0.9"),
        ("/method/nlpo/mask_at_eval", "false"),
        ("/method/nlpo/sampling/top_k", "50"),
        ("/method/nlpo/sampling/min_new_tokens", "48"),
        ("/reward/classifier/label", "\"1\""),
        ("/reward/classifier/text", "\"{completion}\""),
        ("/train/max_steps", "50"),
        ("/train/save_steps", "20"),
        ("/train/learning_rate", "1e-6"),
        ("/train/evaluation/beams/length_penalty", "0.6"),
        ("/train/evaluation/beams/num_beam_groups", "2"),
        ("/train/evaluation/beams/diversity_penalty", "0.5"),
        ("/train/evaluation/no_repeat_ngram_size", "3"),
        ("/train/evaluation/max_new_tokens", "20"),
        ("/train/evaluation/metrics/0/perplexity/of", "\"references\""),
        ("/train/evaluation/metrics/0/perplexity/stride", "512"),
        ("/train/evaluation/metrics/1/sacre_bleu/tokenize", "\"intl\""),
    ] {
        assert_eq!(json.pointer(key).map(ToString::to_string).as_deref(), Some(expected), "{key}\n{yaml}");
    }
    let remarks: Vec<String> = notes
        .iter()
        .map(|note| match &note.locations[..] {
            [Location::File { line, .. }] => format!("{line}: {}", note.message),
            _ => note.message.clone(),
        })
        .collect();
    let begins = [
        "1: `tokenizer.model_name` is `gpt2`: the tokenizer is read from the directory of the model",
        "5: the pool `imdb` needs a `seed`, and RL4LMs cannot run the file without one: 42 is used",
        "8: `env.args.context_start_token` is 0 for `maskable_causal_lm_actor_critic_policy`",
        "11: 10 environments × 128 steps are 1280 tokens: 28 completions of 48 per iteration, in 14 mini-batches of 2",
        "11: `alg.args.new_key` has no equivalent: left out",
        "21: `alg.policy.args.generation_kwargs` has no `top_k`: it is set to 50, the default of transformers",
        "22: `save_every` is missing: it is set to 20 iterations, the default of RL4LMs",
        "27: `train_evaluation.generation_kwargs` has no `max_new_tokens`: it is set to 20, where transformers stops",
        "27: RL4LMs applies the mask to beam search in evaluations; gradus does not",
    ];
    assert_eq!(remarks.len(), begins.len(), "{remarks:#?}");
    for (remark, begins) in remarks.iter().zip(begins) {
        assert!(remark.starts_with(begins), "{remark}\n{begins}");
    }
    let misspelled = folder.path().join("blendorbot_ppo.yml");
    std::fs::write(&misspelled, ORIGINAL).expect("written");
    let notes = import(System::Rl4lms, &misspelled).expect("it is read").notes;
    let about_name =
        "the file is called `blendorbot_ppo.yml`, but its model is Blenderbot: read as `blenderbot_ppo.yml`";
    assert!(notes.iter().any(|note| note.message == about_name), "{notes:?}");
    let error = imported("alg: { id: dqn }").expect_err("none of its algorithms").to_string();
    assert_eq!(error, "`alg.id` is `dqn`, which is not an algorithm of RL4LMs");
    let error = imported(&ORIGINAL.replace("learned_reward", "my_reward")).expect_err("unknown").to_string();
    assert_eq!(error, "the reward `my_reward` has no equivalent");
    // Values of the wrong type, each with its position.
    let wrong = ORIGINAL.replace("n_envs: 10", "n_envs: 0").replace("batch_size: 64", "batch_size: -3.5");
    let wrong = wrong.replace("do_sample: True", "do_sample: [True]");
    let Err(gradus::Error::Config(problems)) = imported(&wrong) else { panic!("nothing can be made of them") };
    let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "`alg.policy.args.generation_kwargs.do_sample` is a list, but one value is needed",
            "`env.n_envs` is 0, but a whole number from 1 is needed",
            "`alg.args.batch_size` is -3.5, but a whole number from 0 is needed",
        ]
    );
    assert!(problems.iter().all(|problem| problem.locations.len() == 1), "{problems:?}");
}

/// RL4LMs' supervised training joins prompt and reference without an end token, and trains on all of it.
#[test]
fn another_systems_supervised_run_learns_what_it_learns_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("supervised.yml");
    let text = "datapool: { id: imdb, args: { seed: 42 } }\nalg: { id: supervised, model_type: causal, model_name: gpt2 }\n\
                train_evaluation: { eval_batch_size: 8, metrics: [] }\n";
    let imported = |text: &str| {
        std::fs::write(&file, text).expect("written");
        let Imported { yaml, .. } = import(System::Rl4lms, &file).expect("it is read");
        let written = RunConfig::parse(&yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        let plan = Plan::check(&written, &Machine::detect()).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        let sft = part(&plan, "/method/sft");
        (sft["add_eos"].clone(), sft["completion_only_loss"].clone(), part(&plan, "/test_data/split"))
    };
    assert_eq!(imported(text), (json!(false), json!(false), json!("test")));
    let with_encoder = imported(&text.replace("causal", "seq2seq"));
    assert_eq!(with_encoder, (json!(true), json!(null), json!("test")));
}

/// transformers' `Trainer` trains with dropout and, as its arguments say, several passes per step. T5's tokenizer cuts at 512.
#[test]
fn arguments_of_the_trainer_become_settings_of_a_supervised_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("supervised.yml");
    let imported = |tokenizer: &str, model: &str, arguments: &str| {
        let text = format!(
            "tokenizer: {{ {tokenizer} }}\ndatapool: {{ id: commongen }}\nalg:\n  id: supervised\n  {model}\n  \
             training_args: {{ {arguments} }}\ntrain_evaluation: {{ eval_batch_size: 8, metrics: [] }}\n"
        );
        std::fs::write(&file, text).expect("written");
        let Imported { yaml, notes } = import(System::Rl4lms, &file).expect("it is read");
        let written = RunConfig::parse(&yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        let plan = Plan::check(&written, &Machine::detect()).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        (part(&plan, "/train"), notes.into_iter().map(|note| note.message).collect::<Vec<_>>().join("\n"))
    };
    let arguments = "per_device_train_batch_size: 4, gradient_accumulation_steps: 3, adam_epsilon: 1e-6, adam_beta2: 0.95, \
                     fp16: True, warmup_steps: 0, warmup_ratio: 0.1";
    let (train, notes) = imported("model_name: t5-base", "model_type: seq2seq\n  model_name: t5-base", arguments);
    for (key, expected) in [
        ("dropout", json!(true)),
        ("batch_size", json!(12)),
        ("adam_epsilon", json!(1e-6)),
        ("adam_betas", json!([0.9, 0.95])),
        ("compute", json!("bf16")),
        ("warmup_steps", json!(0.1)),
        ("max_length", json!(512)),
        ("max_prompt_length", json!(512)),
    ] {
        assert_eq!(train[key], expected, "{key}");
    }
    assert!(!notes.contains("has no equivalent") && notes.contains("gradus computes products in bf16"), "{notes}");
    let (train, _) = imported(
        "model_name: gpt2, max_length: 128",
        "model_type: causal\n  model_name: gpt2",
        "warmup_steps: 50, warmup_ratio: 0.1",
    );
    for (key, expected) in [
        ("dropout", json!(true)),
        ("batch_size", json!(8)),
        ("compute", json!("f32")),
        ("warmup_steps", json!(50.0)),
        ("max_length", json!(1024)),
        ("max_prompt_length", json!(128)),
    ] {
        assert_eq!(train[key], expected, "{key}");
    }
    // A `constant` schedule has no warm-up, and steps count instead of epochs.
    let causal = "model_type: causal\n  model_name: gpt2";
    for (schedule, warmup) in [("constant", 0.0), ("constant_with_warmup", 10.0)] {
        let arguments = format!(
            "lr_scheduler_type: {schedule}, warmup_steps: 10, num_train_epochs: 2, max_steps: 30, gradient_checkpointing: True"
        );
        let (train, notes) = imported("model_name: gpt2", causal, &arguments);
        for (key, expected) in [
            ("lr_schedule", json!("constant")),
            ("warmup_steps", json!(warmup)),
            ("max_steps", json!(30)),
            ("recompute", json!(true)),
        ] {
            assert_eq!(train[key], expected, "{key} with {schedule}");
        }
        assert_eq!(notes.contains("`train.warmup_steps` is set to 0"), schedule == "constant", "{notes}");
        assert!(!notes.contains("has no equivalent"), "{notes}");
    }
    let (_, notes) = imported("model_name: gpt2", causal, "lr_scheduler_type: constant_with_warmup");
    assert!(notes.contains("`constant_with_warmup` without steps of warm-up is constant"), "{notes}");
}

/// Defaults of RL4LMs' constructors, buffers smaller than a mini-batch, and masks by rank.
#[test]
fn what_another_systems_file_leaves_out_is_what_it_sets_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bare.yml");
    let imported = |algorithm: &str, environments: usize, args: &str, policy: &str, generation: &str| {
        let text = format!(
            "reward_fn: {{ id: increasing_numbers, args: {{ min_tokens: 20 }} }}\ndatapool: {{ id: dummy_pool, args: {{ prompt: one, n_samples: 5 }} }}\n\
             env: {{ n_envs: {environments}, args: {{ max_prompt_length: 5, max_episode_length: 20, terminate_on_eos: True }} }}\n\
             alg:\n  id: {algorithm}\n  args: {{ {args} }}\n  kl_div: {{ coeff: 0.1 }}\n  policy:\n    \
             id: {policy}\n      generation_kwargs: {{ do_sample: True, max_new_tokens: 20{generation} }}\n\
             train_evaluation: {{ n_iters: 5, eval_every: 1, eval_batch_size: 8 }}\n"
        );
        std::fs::write(&file, text).expect("written");
        let Imported { yaml, notes } = import(System::Rl4lms, &file).expect("it is read");
        let written = RunConfig::parse(&yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        let plan = Plan::check(&written, &Machine::detect()).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        (serde_json::to_value(plan.config()).expect("plain data"), notes)
    };
    let check = |(json, _): &(serde_json::Value, Vec<_>), expected: &[(&str, &str)]| {
        for (key, expected) in expected {
            assert_eq!(json.pointer(key).map(ToString::to_string).as_deref(), Some(*expected), "{key}");
        }
    };
    let (causal, masked) = (
        "causal_lm_actor_critic_policy\n    args:\n      model_name: gpt2",
        "maskable_seq2seq_lm_actor_critic_policy\n    args:\n      model_name: t5\n      mask_type: ",
    );
    // 2048 tokens are 103 completions of 20, four per 64 tokens.
    let ppo = imported("ppo", 1, "clip_range_vf: null", causal, ", temperature: 0.7");
    check(
        &ppo,
        &[
            ("/method/ppo/update_epochs", "10"),
            ("/method/ppo/mini_batches", "26"),
            ("/method/ppo/value_clip_range", "0.0"),
            ("/method/ppo/kl/target", "null"),
            ("/method/ppo/sampling/trained_logprobs", "\"untempered\""),
            ("/train/batch_size", "104"),
            ("/train/learning_rate", "0.0003"),
        ],
    );
    let generation = ", typical_p: 0.9, no_repeat_ngram_size: 3, encoder_no_repeat_ngram_size: 4, forced_bos_token_id: 5, bad_words_ids: [[7]]";
    let optimizer = format!("{causal}\n      optimizer_kwargs: {{ eps: 1e-5, betas: [0.8, 0.9] }}");
    let forced = imported("ppo", 1, "", &optimizer, generation);
    assert!(forced.1.iter().any(|note| note.message.contains("forces no id after a prompt")), "{:?}", forced.1);
    check(
        &forced,
        &[
            ("/train/adam_epsilon", "0.00001"),
            ("/train/adam_betas", "[0.8,0.9]"),
            ("/method/ppo/sampling/bad_words_ids", "[[7]]"),
            ("/method/ppo/sampling/typical_p", "0.9"),
            ("/method/ppo/sampling/no_repeat_ngram_size", "3"),
            ("/method/ppo/sampling/encoder_no_repeat_ngram_size", "4"),
            ("/method/ppo/sampling/forced_bos_token_id", "null"),
        ],
    );
    let several = imported("ppo", 1, "", causal, ", num_return_sequences: 3");
    check(&several, &[("/method/ppo/group_size", "3")]);
    assert!(several.1.iter().any(|note| note.message.contains("gradus samples 3")), "{:?}", several.1);
    // 40 tokens are two completions, regardless of the mini-batch size.
    let small = imported("ppo", 2, "n_steps: 20, batch_size: 64", causal, "");
    check(&small, &[("/train/batch_size", "2"), ("/method/ppo/mini_batches", "1")]);
    let a2c = imported("a2c", 8, "verbose: 1, rms_prop_eps: 1e-4", causal, "");
    check(&a2c, &[("/train/batch_size", "2"), ("/train/learning_rate", "0.0007"), ("/method/a2c/gae_lambda", "1.0")]);
    check(&a2c, &[("/train/optimizer", "\"rmsprop\""), ("/train/rmsprop_epsilon", "0.0001")]);
    let adamw = imported("a2c", 8, "use_rms_prop: False", causal, "");
    check(&adamw, &[("/train/optimizer", "\"adamw\"")]);
    // 640 tokens are 32 completions, seven per 128 tokens.
    let trpo = imported("trpo", 10, "n_steps: 64", causal, "");
    check(
        &trpo,
        &[("/train/batch_size", "35"), ("/method/trpo/critic_mini_batches", "5"), ("/train/learning_rate", "0.001")],
    );
    let sampled = ", temperature: 0.5, forced_bos_token_id: 5";
    let ranked = imported("nlpo", 1, "n_steps: 20", &format!("{masked}topk\n      top_mask: 7"), sampled);
    check(
        &ranked,
        &[
            ("/method/nlpo/sampling/forced_bos_token_id", "5"),
            ("/method/nlpo/mask_model", "\"policy\""),
            ("/method/nlpo/top_k", "7"),
            ("/method/nlpo/min_tokens_to_keep", "1"),
        ],
    );
    assert!(ranked.1.iter().any(|note| note.message.contains("KL at temperature 1;")), "{:?}", ranked.1);
    let likely = imported("nlpo", 1, "n_steps: 20", &format!("{masked}learned_top_p\n      top_mask: 0.9"), "");
    check(
        &likely,
        &[
            ("/method/nlpo/min_tokens_to_keep", "101"),
            ("/method/nlpo/mask_model", "\"lagged\""),
            ("/method/nlpo/mask_update_iterations", "1000"),
        ],
    );
}

#[test]
fn metrics_that_ask_models_become_ours() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("metrics.yml");
    let imported = |reward: &str, metrics: &str| {
        let metric =
            "metrics: [{ id: causal_perplexity, args: { stride: 512 } }, { id: sacre_bleu, args: { tokenize: intl } }]";
        let reward_fn = "  id: learned_reward\n  args: { model_name: some/classifier, label_ix: 1, include_prompt_for_eval: False }\n";
        let text =
            ORIGINAL.replace(metric, &format!("metrics: [{metrics}]")).replace(reward_fn, &format!("  {reward}\n"));
        std::fs::write(&file, text).expect("written");
        let Imported { yaml, notes } = import(System::Rl4lms, &file).expect("it is read");
        let written = RunConfig::parse(&yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        let plan = Plan::check(&written, &Machine::detect()).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        (plan, notes.iter().map(|note| note.message.clone()).collect::<Vec<_>>().join("\n"))
    };
    let (dates, meteor) = ("id: sentences_with_dates", "{ id: meteor }");
    for (theirs, ours) in [
        (
            "{ id: bert_score, args: { language: en } }",
            json!({ "bert_score": { "model": "FacebookAI/roberta-large" } }),
        ),
        (
            "{ id: bert_score, args: { language: de } }",
            json!({ "bert_score": { "model": "google-bert/bert-base-multilingual-cased" } }),
        ),
        (
            "{ id: bleurt, args: { config_name: bleurt-large-512 } }",
            json!({ "bleurt": {
            "model": "Elron/bleurt-large-512", "references": "repr", "max_length": 512 } }),
        ),
        (
            "{ id: bleurt }",
            json!({ "bleurt": {
            "model": "Elron/bleurt-base-128", "references": "repr", "max_length": 128 } }),
        ),
        (
            "{ id: learned_reward, args: { model_name: some/classifier, label_ix: 1, batch_size: 100 } }",
            json!({
            "learned_reward": { "model": "some/classifier", "label": "1", "include_prompt": true } }),
        ),
        (
            "{ id: intent_accuracy }",
            json!({ "intent_accuracy": {
            "model": "rajkumarrrk/roberta-daily-dialog-intent-classifier" } }),
        ),
        (
            "{ id: summaCZS, args: { granularity: document-sentence, model_name: vitc, use_con: False } }",
            json!({
            "summac_zs": { "model": "tals/albert-xlarge-vitaminc-mnli", "entailment": "0", "contradiction": "1",
                "granularity": "document", "summary_granularity": "sentence", "use_con": false } }),
        ),
    ] {
        let (plan, _) = imported(dates, theirs);
        let found = part(&plan, "/train/evaluation/metrics/0");
        let (name, options) = ours.as_object().and_then(|ours| ours.iter().next()).expect("one metric");
        for (key, expected) in options.as_object().expect("options") {
            assert_eq!(&found[name][key], expected, "{theirs}: {key} in {found}");
        }
    }
    let (plan, notes) = imported(dates, "{ id: summaCConv }, { id: spice }, { id: summaCZS, args: { model_name: x } }");
    assert_eq!(part(&plan, "/train/evaluation/metrics"), json!([]));
    let expected =
        ["needs a trained convolution", "add `spice: { program:", "unknown granularity or model of `summaCZS`"];
    for part in expected {
        assert!(notes.contains(part), "`{part}` is missing in: {notes}");
    }
    let (plan, _) = imported("id: intent_accuracy\n  args: { intent_coeff: 0.75, auto_coeff: 0.25 }", meteor);
    let mix = part(&plan, "/reward/mix");
    assert_eq!((&mix[0]["weight"], &mix[1]["weight"]), (&json!(0.75), &json!(0.25)));
    assert!(mix[0]["reward"]["metric"]["intent_accuracy"].is_object(), "{mix}");
    // METEOR is a running mean over the ten environments.
    assert_eq!((&mix[0]["running_mean_over"], &mix[1]["running_mean_over"]), (&json!(null), &json!(10)), "{mix}");
    let (plan, _) = imported("id: intent_accuracy\n  args: { shape: False }", meteor);
    let mix = part(&plan, "/reward/mix");
    assert!(mix.as_array().is_some_and(|parts| parts.len() == 1), "nothing shapes it: {mix}");
    let spider =
        "id: spider\n  args: { spice_coeff: 0, cider_coeff: 2, shaping_fn: common_gen_repeat_penalty_batched }";
    let mix = part(&imported(spider, meteor).0, "/reward/mix");
    let penalty = json!({ "rule": { "repeat_penalty": "generate a sentence with: " } });
    assert_eq!((&mix[1]["weight"], &mix[1]["reward"]), (&json!(1.0), &penalty), "{mix}");
    let (plan, notes) = imported("id: spider\n  args: { spice_coeff: 0.5, cider_coeff: 0.5 }", meteor);
    let mix = part(&plan, "/reward/mix");
    assert_eq!(mix[0]["reward"]["metric"]["spice"]["program"][3], json!("spice-1.0.jar"), "{mix}");
    for metric in [&mix[0]["reward"]["metric"]["spice"], &mix[1]["reward"]["metric"]["cider"]] {
        assert_eq!((&metric["keyed_by"], &metric["tokenizer"]), (&json!("prompt"), &json!("spacy")), "{mix}");
    }
    assert!(notes.contains("`spice-1.0.jar`"), "{notes}");
    let whole = "{ id: causal_perplexity, args: { stride: 128, use_text_from_meta_data: True } }, { id: cider }";
    let metrics = part(&imported(dates, whole).0, "/train/evaluation/metrics");
    assert_eq!(metrics[0]["perplexity"]["column"], json!("reference"), "{metrics}");
    assert_eq!(metrics[1]["cider"]["keyed_by"], json!("prompt"), "{metrics}");
    assert_eq!(metrics[1]["cider"]["tokenizer"], json!("spacy"), "{metrics}");
    // The tables of py-rouge's stemmer are files of the user.
    for (arguments, are_needed) in [("{ alpha: 0.5 }", true), ("{ stemming: False }", false)] {
        let metric = format!("{{ id: rouge_l_max, args: {arguments} }}");
        let (_, notes) = imported(dates, &metric);
        assert_eq!(notes.contains("set `tables` to the directory of `py-rouge`"), are_needed, "{notes}");
    }
    let prefers = "id: common_gen_preference_model\n  args: { device: cpu, batch_size: 5, model_type: 11b";
    let (plan, notes) = imported(&format!("{prefers} }}"), meteor);
    let model = &part(&plan, "/reward/metric/common_gen_preference/model");
    assert_eq!(model, &json!("models/t5-11b-commongen-preferences"));
    assert!(notes.contains("must be a model directory with them"), "{notes}");
    let (plan, _) = imported(&format!("{prefers}, concept_penalty_coeff: 0.5, meteor_coeff: 2 }}"), meteor);
    let mix = part(&plan, "/reward/mix");
    assert_eq!(mix[0]["reward"]["metric"]["common_gen_preference"]["concept_penalty"], json!(0.5));
    assert_eq!((&mix[1]["weight"], &mix[1]["reward"]["metric"]["meteor"]["references"]), (&json!(2.0), &json!("repr")));
    let conv = "{ id: summaCConv, args: { granularity: sentence, models: [vitc, mnli], bins: percentile, start_file: default } }";
    let found = part(&imported(dates, conv).0, "/train/evaluation/metrics/0/summac_conv");
    assert_eq!(found["weights"], json!("summac_conv_vitc_sent_perc_e.bin"));
    assert_eq!(found["more_models"][0]["model"], json!("FacebookAI/roberta-large-mnli"), "{found}");
}

/// Settings in the original's own files that look like mistakes, or apply without being visible.
#[test]
fn what_looks_like_a_mistake_of_the_original_is_said_with_its_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("file.yml");
    let messages_of = |changes: &[(&str, &str)]| {
        let text = changes.iter().fold(ORIGINAL.to_owned(), |text, (old, new)| {
            assert!(text.contains(old), "{old}");
            text.replace(old, new)
        });
        std::fs::write(&file, text).expect("written");
        let notes = import(System::Rl4lms, &file).expect("it is read").notes;
        let line = |location: &Location| match location {
            Location::File { line, .. } => *line,
            _ => 0,
        };
        let messages = notes.iter().map(|note| format!("{}: {}", note.locations.first().map_or(0, line), note.message));
        messages.collect::<Vec<_>>()
    };
    let check = |changes: &[(&str, &str)], expected: &str| {
        let messages = messages_of(changes);
        assert_eq!(
            messages.iter().filter(|message| message.starts_with(expected)).count(),
            1,
            "{expected} in {messages:#?}"
        );
    };
    check(
        &[("{ id: sacre_bleu, args: { tokenize: intl } }]", "{ id: rouge_l_max, args: { apply_best: \"True,\" } }]")],
        "22: `save_every` is missing",
    );
    let lists = "\n  - id: rouge_l_max\n    args:\n      apply_best: True,\n      alpha: 0.5\n  -";
    let metrics = "metrics: [{ id: causal_perplexity, args: { stride: 512 } },";
    let in_block = [
        (metrics, format!("metrics:{lists}")),
        (" { id: sacre_bleu, args: { tokenize: intl } }]", " id: meteor".into()),
    ];
    let in_block: Vec<(&str, &str)> = in_block.iter().map(|(old, new)| (*old, new.as_str())).collect();
    check(
        &in_block,
        "29: `train_evaluation.metrics[0].args.apply_best` is the text `True,`, not `True`: the comma is part of the \
         text",
    );
    let scored = ("{ id: sacre_bleu, args: { tokenize: intl } }", "{ id: bert_score }");
    check(
        &[scored, ("{ id: imdb }", "{ id: iwslt2017en_de }")],
        "26: BERTScore reads the texts of `iwslt2017en_de` as English, but they are German",
    );
    check(
        &[("{ id: sacre_bleu, args: { tokenize: intl } }", "{ id: causal_perplexity, args: { stride: 128 } }")],
        "26: `causal_perplexity` is listed with other arguments: its values are called `perplexity_2`",
    );
    let messages = messages_of(&[
        ("{ id: sacre_bleu, args: { tokenize: intl } }", "{ id: bert_score, args: { language: de } }"),
        ("{ id: imdb }", "{ id: iwslt2017en_de }"),
    ]);
    assert!(!messages.iter().any(|message| message.contains("BERTScore")), "{messages:#?}");
    check(
        &[("{ id: imdb }", "{ id: cnn_daily_mail, args: { prompt_prefix: \"Summarize: \" } }")],
        "5: the prefix is `Summarize: `; T5 was pre-trained with `summarize: `, in lower case",
    );
    check(
        &[("lvwerra/gpt2-imdb", "facebook/blenderbot-400M-distill")],
        "16: RL4LMs also applies the generation configuration of `facebook/blenderbot-400M-distill`",
    );
    let evaluates = format!("{}\n", ORIGINAL.lines().last().expect("a line"));
    check(
        &[(&evaluates[..], "")],
        "22: `train_evaluation` has no `generation_kwargs`: evaluations sample as rollouts do",
    );
}

/// A file in the format of FineGrainedRLHF's own, with its values.
const FINE_GRAINED: &str = "\
model:
  policy_model:
    ckpt: ./tasks/qa_feedback/model_outputs/t5-large-1k-train
    input_padding_side: right
    train_generation_kwargs: { do_sample: True, top_k: 20, top_p: null, temperature: 0.7 }
    eval_generation_kwargs: { do_sample: False, num_beams: 1 }
  value_model: { ckpt: t5-base, freeze_value_model: False, policy_value_sharing: False }
reward:
  relevance_model: { ckpt: rel_rm, positive_reward: 0.3, negative_reward: -0.3 }
  factuality_model: { ckpt: fact_rm, positive_reward: 0.5, negative_reward: -0.5 }
  completeness_model: { ckpt: comp_rm, mean: -0.25, std: 8.5, bias: 0.0, scale: 0.3 }
env: { max_input_len: 1024, max_generated_len: 200, train_num_samples_per_input: 4 }
ppo: { kl_coef: 0.3, lam: 0.95, gamma: 1.0, pg_coef: 1.0, vf_coef: 1.0, cliprange: 0.2, cliprange_value: 0.2, whiten_rewards: True }
train:
  total_episodes: 80000
  eval_interval: 50
  sampling_batch_size_per_card: 8
  training_batch_size_per_card: 4
  lr: 0.00001
  n_warmup_steps: 100
  n_ppo_epoch_per_rollout: 4
  kl_threshold: 10.0
  clip_grad: False
  max_grad_norm: 0.5
  seed: 42
  cuda_deterministic: True
logging: { run_name: finegrained, wandb_log: True, wandb_entity: lab, wandb_project: RLHF, log_interval: 1, save_dir: outputs/fine_grained }
";

/// Returns the part of a plan's configuration below a key.
fn part(plan: &Plan, key: &str) -> serde_json::Value {
    serde_json::to_value(plan.config()).expect("plain data").pointer(key).cloned().unwrap_or_default()
}

#[test]
fn fine_grained_rlhfs_files_become_the_recipes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("theirs.yml");
    let imported = |text: &str| {
        std::fs::write(&file, text).expect("written");
        import(System::FineGrained, &file)
    };
    let machine = Machine::detect();
    let recipe = |name: &str| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/qa_feedback").join(name);
        let written = RunConfig::load(&Request { file: Some(&file), ..Request::default() }).expect("a recipe");
        Plan::check(&written, &machine).expect("it can run")
    };
    let plan = |yaml: &str| {
        let written = RunConfig::parse(yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        Plan::check(&written, &machine).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
    };
    let Imported { yaml, notes } = imported(FINE_GRAINED).expect("it is read");
    let (ours, expected) = (plan(&yaml), recipe("fine_grained.yml"));
    // All keys of method and training, explicit or preset, equal the recipe's, except those that the file does not set.
    for key in ["/method", "/train"] {
        let (mut ours, mut expected) = (part(&ours, key), part(&expected, key));
        for kept in [&mut ours, &mut expected] {
            kept.as_object_mut()
                .expect("keys")
                .retain(|name, _| name != "seed" && name != "logging_steps" && !name.starts_with("wandb"));
        }
        assert_eq!(ours, expected, "{key}\n{yaml}");
    }
    for (part_of, key) in [
        ("relevance", "values"),
        ("relevance", "segments"),
        ("relevance", "prompt"),
        ("factuality", "values"),
        ("factuality", "segments"),
        ("factuality", "prompt"),
        ("completeness", "text"),
        ("completeness", "scale"),
    ] {
        let key = format!("/reward/fine_grained/{part_of}/{key}");
        assert_eq!(part(&ours, &key), part(&expected, &key), "{key}");
    }
    assert_eq!(part(&ours, "/reward/fine_grained/completeness/std"), 8.5);
    assert_eq!(part(&ours, "/train/seed"), 42);
    assert_eq!(part(&ours, "/train/wandb"), true);
    for (key, expected) in [("project", "RLHF"), ("entity", "lab"), ("name", "finegrained")] {
        assert_eq!(part(&ours, &format!("/train/wandb_{key}")), expected);
    }
    let remarks: Vec<&str> = notes.iter().map(|note| note.message.as_str()).collect();
    let begins =
        ["the original reads the data from", "`train.sampling_batch_size_per_card` counts for each of the 2 GPUs"];
    assert_eq!(remarks.len(), begins.len(), "{remarks:#?}");
    for (remark, begins) in remarks.iter().zip(begins) {
        assert!(remark.starts_with(begins), "{remark}\n{begins}");
    }

    let baseline = FINE_GRAINED
        .replace("positive_reward: 0.3, negative_reward: -0.3", "")
        .replace("env:", "  baseline_model: { ckpt: baseline_rm, mean: 0.5, std: 1.5, bias: 0.0, scale: 1.0 }\nenv:")
        .replace("kl_coef: 0.3, lam: 0.95", "kl_coef: 0.2, lam: 0.99")
        .replace("clip_grad: False", "clip_grad: True")
        .replace("n_warmup_steps: 100", "n_warmup_steps: 7");
    let others = FINE_GRAINED
        .replace("freeze_value_model: False", "freeze_value_model: True")
        .replace("pg_coef: 1.0", "pg_coef: 0.5")
        .replace("top_k: 20, top_p: null, temperature: 0.7", "top_k: null, top_p: null")
        .replace("do_sample: False, num_beams: 1", "do_sample: True, top_k: 0, num_return_sequences: 2");
    let Imported { yaml, notes } = imported(&others).expect("it is read");
    let ours = plan(&yaml);
    // In transformers, no value means 50 tokens and the temperature 1, and 0 means all tokens.
    assert_eq!(part(&ours, "/method/ppo/sampling/top_k"), 50);
    assert_eq!(part(&ours, "/method/ppo/temperature"), 1.0);
    assert_eq!(
        (part(&ours, "/train/evaluation/top_k"), part(&ours, "/train/evaluation/samples")),
        (json!(0), json!(2))
    );
    assert!(notes.iter().any(|note| note.message.ends_with("set to 50, the default of transformers")), "{notes:#?}");
    assert_eq!(part(&ours, "/method/ppo/critic/freeze_trunk"), true);
    assert_eq!(part(&ours, "/method/ppo/policy_coefficient"), 0.5);
    let Imported { yaml, notes } = imported(&baseline).expect("it is read");
    let (ours, expected) = (plan(&yaml), recipe("holistic.yml"));
    assert_eq!(part(&ours, "/method"), part(&expected, "/method"));
    assert_eq!(part(&ours, "/train/max_grad_norm"), 0.5);
    assert_eq!(part(&ours, "/train/warmup_steps"), part(&expected, "/train/warmup_steps"));
    for part_of in ["relevance", "factuality", "completeness"] {
        assert_eq!(part(&ours, &format!("/reward/fine_grained/{part_of}/weight")), 0.0);
    }
    assert_eq!(
        part(&ours, "/reward/fine_grained/relevance/values"),
        part(&expected, "/reward/fine_grained/relevance/values")
    );
    assert_eq!(notes.len(), 4, "{notes:#?}");

    let error = imported("model: { policy_model: {} }").expect_err("no policy").to_string();
    assert_eq!(error, "`model.policy_model.ckpt` is missing");
}

/// `sample` of the original reads `num_beams` only if it does not sample, and then nothing else.
#[test]
fn evaluations_of_fine_grained_rlhf_generate_as_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("theirs.yml");
    let imported = |evaluation: &str| {
        let text =
            FINE_GRAINED.replace("top_p: null", "top_p: 0.8").replace("do_sample: False, num_beams: 1", evaluation);
        std::fs::write(&file, text).expect("written");
        let Imported { yaml, notes } = import(System::FineGrained, &file).expect("it is read");
        let written = RunConfig::parse(&yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        let plan = Plan::check(&written, &Machine::detect()).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        (part(&plan, "/train/evaluation"), notes.into_iter().map(|note| note.message).collect::<Vec<_>>().join("\n"))
    };
    let (sampled, notes) = imported("do_sample: True, num_beams: 3, top_k: null, temperature: 0.5");
    // The `top_p` of rollouts is not that of evaluations.
    for (key, expected) in
        [("temperature", json!(0.5)), ("top_k", json!(50)), ("top_p", json!(1.0)), ("beams", json!(null))]
    {
        assert_eq!(sampled[key], expected, "{key}");
    }
    assert!(notes.contains("does not read `num_beams` if it samples"), "{notes}");
    let (own, _) = imported("do_sample: True, top_k: 7, top_p: 0.6");
    assert_eq!((&own["top_k"], &own["top_p"]), (&json!(7), &json!(0.6)));
    let (searched, notes) = imported("do_sample: False, num_beams: 3, top_k: 20, temperature: 0.5");
    assert_eq!((&searched["beams"]["num_beams"], &searched["temperature"]), (&json!(3), &json!(null)));
    assert!(!notes.contains("has no equivalent"), "{notes}");
}
