//! Configurations of TRL, LLaMA-Factory, axolotl and RL4LMs: their conversion, and a check that each key is converted or
//! reported.

use gradus::config::{Imported, Plan, Request, RunConfig, System, import};
use gradus::error::{Error, Location};
use gradus::machine::Machine;
use serde_json::Value;

/// Returns the converted configuration and its messages. It must be runnable.
fn imported(system: &str, text: &str) -> (Value, Vec<String>, String) {
    let Imported { yaml, notes } = converted(system, text).unwrap_or_else(|error| panic!("{error}"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("config.yml");
    std::fs::write(&file, &yaml).expect("written");
    let written = RunConfig::load(&Request { file: Some(&file), ..Request::default() });
    let plan = written.and_then(|written| Plan::check(&written, &Machine::detect()));
    let plan = plan.unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    let config = serde_json::to_value(plan.config()).expect("plain data");
    (config, notes.into_iter().map(|note| note.message).collect(), yaml)
}

/// Returns the converted configuration, which may lack what a run needs.
fn converted(system: &str, text: &str) -> Result<Imported, Error> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("config.yml");
    std::fs::write(&file, text).expect("written");
    import(system.parse().expect("a system"), &file)
}

fn refused(system: &str, text: &str) -> String {
    converted(system, text).expect_err("it cannot be read").to_string()
}

#[track_caller]
fn check((config, _, yaml): &(Value, Vec<String>, String), expected: &[(&str, &str)]) {
    for (key, expected) in expected {
        assert_eq!(config.pointer(key).map(ToString::to_string).as_deref(), Some(*expected), "{key}\n{yaml}");
    }
}

#[test]
fn trl_files_keep_method_data_batch_and_adapter() {
    let found = imported(
        "trl-dpo",
        "model_name_or_path: acme/base\ndataset_name: acme/pairs\ndataset_test_split: test\neval_strategy: steps\neval_steps: 50\n\
         learning_rate: 5.0e-6\nnum_train_epochs: 2\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 8\n\
         beta: 0.2\nloss_type: [sigmoid, sft]\nloss_weights: [1.0, 0.1]\nwarmup_ratio: 0.1\nbf16: true\n\
         use_peft: true\nlora_r: 32\nlora_target_modules: all-linear\nload_in_4bit: true\nreport_to: [wandb]\npush_to_hub: true\n",
    );
    check(
        &found,
        &[
            ("/model", "\"acme/base\""),
            ("/method/dpo/beta", "0.2"),
            ("/method/dpo/loss_weights/1", "0.1"),
            ("/train/batch_size", "32"),
            ("/train/micro_batch_size", "4"),
            ("/train/epochs", "2.0"),
            ("/train/eval_steps", "50"),
            ("/train/warmup_steps", "0.1"),
            ("/train/compute", "\"bf16\""),
            ("/train/frozen_weights", "\"nf4\""),
            ("/train/wandb", "true"),
            ("/lora/rank", "32"),
            ("/lora/alpha", "32.0"),
            // TRL turns dropout off for DPO.
            ("/lora/dropout", "0.0"),
            ("/lora/targets/0", "\"all-linear\""),
        ],
    );
    assert_eq!(found.1, ["`push_to_hub` has no equivalent: left out"], "every other key is taken over");
    assert!(found.2.contains("acme/pairs:test"), "{}", found.2);
}

#[test]
fn a_batch_of_trl_counts_completions_and_its_steps_count_updates() {
    let found = imported(
        "trl-grpo",
        "model_name_or_path: acme/base\ndataset_name: acme/prompts\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 4\n\
         steps_per_generation: 8\nnum_generations: 16\nmax_completion_length: 256\nnum_iterations: 2\nmax_steps: 400\nbeta: 0.04\n\
         scale_rewards: false\ntop_k: 0\nreward_funcs: [accuracy_reward, mine.score]\nuse_vllm: true\n",
    );
    // 8 × 8 completions are 4 groups of 16; two mini-batches of 32, used twice, are four updates.
    check(
        &found,
        &[
            ("/train/batch_size", "4"),
            ("/method/grpo/group_size", "16"),
            ("/method/grpo/mini_batches", "2"),
            ("/method/grpo/update_epochs", "2"),
            ("/train/max_steps", "100"),
            ("/method/grpo/kl_coefficient", "0.04"),
            ("/method/grpo/scale_rewards", "\"none\""),
            ("/method/grpo/sampling/top_k", "null"),
            ("/train/eval_steps", "-1"),
            ("/reward/rule/math/column", "\"solution\""),
        ],
    );
    let notes = found.1.join("\n");
    for part in ["`mine.score` is a Python function", "100 steps"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    assert!(!notes.contains("vllm"), "gradus samples itself, with the same probabilities: {notes}");
    let odd = "model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: 3\nnum_generations: 8\n";
    assert!(refused("trl-grpo", odd).contains("not a multiple of `num_generations`, 8"));
}

#[test]
fn aggregation_and_entropy_of_trl_are_kept() {
    let base = "model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: 8\nnum_generations: 8\n\
                reward_funcs: [accuracy_reward, think_format_reward]\n";
    let found = imported(
        "trl-grpo",
        &format!(
            "{base}multi_objective_aggregation: normalize_then_sum\nscale_rewards: batch\ntop_entropy_quantile: 0.2\n\
             use_adaptive_entropy: true\nentropy_coef_min: 0.001\nentropy_coef_max: 0.1\nentropy_coef_delta: 0.002\n\
             entropy_target: 0.5\n"
        ),
    );
    check(
        &found,
        &[
            ("/method/grpo/multi_objective_aggregation", "\"normalize_then_sum\""),
            ("/method/grpo/scale_rewards", "\"group\""),
            ("/method/grpo/top_entropy_quantile", "0.2"),
            ("/method/grpo/use_adaptive_entropy", "true"),
            ("/method/grpo/entropy_coefficient_min", "0.001"),
            ("/method/grpo/entropy_coefficient_max", "0.1"),
            ("/method/grpo/entropy_coefficient_delta", "0.002"),
            ("/method/grpo/entropy_target", "0.5"),
        ],
    );
    let note =
        "TRL does not read `scale_rewards` with `multi_objective_aggregation: normalize_then_sum`: it is left out";
    assert!(found.1.iter().any(|message| message == note), "{:?}", found.1);
    assert!(!found.1.join("\n").contains("no equivalent"), "{:?}", found.1);
    let found = imported("trl-grpo", &format!("{base}entropy_target: 0.5\n"));
    check(&found, &[("/method/grpo/entropy_target", "0.2")]);
    let note = "without `use_adaptive_entropy: true`, TRL does not read `entropy_target`: it is left out";
    assert!(found.1.iter().any(|message| message == note), "{:?}", found.1);
    // Without a reward, the files of axolotl are not complete.
    let of_axolotl = |rl: &str| {
        converted("axolotl", &format!("base_model: m\ndatasets:\n  - path: d\nrl: {rl}\n")).expect("converted").yaml
    };
    assert!(of_axolotl("gdpo").contains("multi_objective_aggregation: normalize_then_sum"), "{}", of_axolotl("gdpo"));
    assert!(!of_axolotl("grpo").contains("multi_objective_aggregation"), "{}", of_axolotl("grpo"));
}

#[test]
fn the_direction_of_the_best_metric_is_kept() {
    let base = "model_name_or_path: m\ndataset_name: d\neval_strategy: steps\nmetric_for_best_model: wer\n";
    let found = imported("trl-sft", &format!("{base}greater_is_better: false\n"));
    check(&found, &[("/train/best_metric", "\"eval_wer\""), ("/train/greater_is_better", "false")]);
    check(&imported("trl-sft", base), &[("/train/greater_is_better", "null")]);
}

/// The expected numbers are those of `gradus.trl`, which rounds intervals to even and keeps the fraction of a warm-up.
#[test]
fn intervals_of_trl_count_optimizer_steps() {
    let base = "model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: 8\nnum_generations: 8\n\
                reward_funcs: accuracy_reward\ngradient_accumulation_steps: 2\nsteps_per_generation: 4\neval_strategy: steps\n\
                logging_steps: 10\nsave_steps: 6\neval_steps: 50\n";
    let counts =
        "warmup_steps: 10\neval_delay: 30\nlr_scheduler_type: inverse_sqrt\nlr_scheduler_kwargs: { timescale: 40 }\n";
    let found = imported("trl-grpo", &format!("{base}num_iterations: 2\n{counts}"));
    check(
        &found,
        &[
            ("/train/eval_delay", "8"),
            ("/train/lr_schedule/inverse_sqrt/timescale", "10"),
            ("/train/logging_steps", "2"),
            ("/train/save_steps", "2"),
            ("/train/eval_steps", "12"),
            ("/train/warmup_steps", "2.5"),
            ("/train/micro_batch_size", "8"),
            ("/train/micro_batch_tokens", "4096"),
        ],
    );
    let note = "TRL counts optimizer steps in `eval_steps`; a step of gradus samples and takes 4 of them: \
                `train.eval_steps` is 12";
    assert!(found.1.iter().any(|message| message == note), "{:?}", found.1);
    let found = imported("trl-rloo", &format!("{base}num_iterations: 20\nwarmup_steps: 0.1\nsave_strategy: \"no\"\n"));
    check(
        &found,
        &[
            ("/train/logging_steps", "1"),
            ("/train/save_steps", "0"),
            ("/train/eval_steps", "1"),
            ("/train/warmup_steps", "0.1"),
        ],
    );
    // One optimizer step in an iteration.
    let found = imported("trl-grpo", &base.replace("steps_per_generation: 4", "loss_type: bnpo"));
    check(&found, &[("/train/logging_steps", "10"), ("/train/eval_steps", "50"), ("/train/micro_batch_size", "8")]);
    // `bnpo` depends on the rows of a pass.
    check(&found, &[("/train/micro_batch_tokens", "100000000")]);
}

#[test]
fn a_weight_of_trl_stays_with_its_reward() {
    let base = "model_name_or_path: m\ndataset_name: d\n";
    let names = "reward_funcs: [my_package.length_reward, accuracy_reward, think_format_reward]\n";
    let found = imported("trl-grpo", &format!("{base}{names}reward_weights: [0.1, 1.0, \"5.0\"]\n"));
    check(
        &found,
        &[
            ("/reward/mix/0/weight", "1.0"),
            ("/reward/mix/0/reward/rule/math/column", "\"solution\""),
            ("/reward/mix/1/weight", "5.0"),
        ],
    );
    assert!(found.0.pointer("/reward/mix/1/reward/rule/think_format").is_some(), "{}", found.2);
    assert!(found.0.pointer("/reward/mix/2").is_none(), "{}", found.2);
    let notes = found.1.join("\n");
    assert!(notes.contains("`my_package.length_reward` is a Python function: pass it with the weight 0.1"), "{notes}");

    // The reward model comes first, wherever the file names it.
    let with_model =
        format!("{base}reward_funcs: [mine.score, accuracy_reward]\nreward_model_name_or_path: acme/judge\n");
    let found = imported("trl-rloo", &format!("{with_model}reward_weights: [2.0, 3.0, 4.0]\n"));
    check(&found, &[("/reward/mix/0/weight", "2.0"), ("/reward/mix/1/weight", "4.0")]);
    assert!(found.2.contains("acme/judge"), "{}", found.2);

    for (weights, expected) in [
        (
            "[1.0, 2.0]",
            "`reward_weights` is a list of length 2, but a list with one number per reward, 3 in all, is needed",
        ),
        ("[1.0]", "is a list of length 1, but"),
        ("[1.0, null, 2.0]", "`reward_weights` is [1.0,null,2.0], but"),
        ("2.0", "`reward_weights` is not a list, but"),
    ] {
        let error = refused("trl-grpo", &format!("{base}{names}reward_weights: {weights}\n"));
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn rounds_of_sampling_within_an_optimizer_step_of_trl_become_one() {
    let base = "model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: 8\nnum_generations: 8\nmax_steps: 10\n\
                reward_funcs: accuracy_reward\n";
    let found = imported("trl-grpo", &format!("{base}gradient_accumulation_steps: 4\nsteps_per_generation: 1\n"));
    check(&found, &[("/train/batch_size", "4"), ("/method/grpo/mini_batches", "1"), ("/train/max_steps", "10")]);
    assert!(found.1.join("\n").contains("TRL samples 4 times for an optimizer step"), "{:?}", found.1);

    let found = imported("trl-grpo", &format!("{base}gradient_accumulation_steps: 2\ngeneration_batch_size: 64\n"));
    check(&found, &[("/train/batch_size", "8"), ("/method/grpo/mini_batches", "4"), ("/train/max_steps", "3")]);

    for (keys, expected) in [
        (
            "gradient_accumulation_steps: 2\nsteps_per_generation: 3\n",
            "`steps_per_generation` is 3 and `gradient_accumulation_steps` is 2",
        ),
        // The second pass over the completions of a round would step in the middle of it.
        (
            "gradient_accumulation_steps: 4\nsteps_per_generation: 1\nnum_iterations: 2\n",
            "`steps_per_generation` is 1 and `gradient_accumulation_steps` is 4",
        ),
        ("generation_batch_size: 12\n", "which is not a multiple of `per_device_train_batch_size`, 8"),
        ("generation_batch_size: 16\nsteps_per_generation: 2\n", "remove one of them"),
    ] {
        let error = refused("trl-grpo", &format!("{base}{keys}"));
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn a_null_of_trl_is_no_limit() {
    let base = "model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: 8\nnum_generations: 8\nreward_funcs: accuracy_reward\n";
    let all = "1000000000";
    for (command, keys, length, norm) in [
        ("sft", "max_length: null\nmax_grad_norm: null\n", all, "0.0"),
        ("dpo", "max_length:\n", all, "1.0"),
        ("reward", "max_length: 77\nmax_grad_norm: 0.5\n", "77", "0.5"),
        ("kto", "", "1024", "1.0"),
        // These drop no prompt because of its length.
        ("grpo", "", all, "1.0"),
        ("rloo", "", all, "1.0"),
    ] {
        let found = imported(&format!("trl-{command}"), &format!("{base}{keys}"));
        check(&found, &[("/train/max_length", length), ("/train/max_grad_norm", norm)]);
    }
}

/// LLaMA-Factory passes a null on to transformers, which then clips nothing. axolotl does not, so the default of transformers counts.
#[test]
fn a_null_limit_of_gradients_means_what_it_means_there() {
    let llamafactory = "stage: sft\ndataset: d\nmodel_name_or_path: m\n";
    let axolotl = "base_model: m\ndatasets:\n  - path: d\n";
    for (system, base, null) in
        [("llamafactory", llamafactory, "0.0"), ("axolotl", axolotl, "1.0"), ("trl-sft", TRL_BASE, "0.0")]
    {
        for (keys, norm) in [("max_grad_norm: null\n", null), ("", "1.0"), ("max_grad_norm: 0.3\n", "0.3")] {
            check(&imported(system, &format!("{base}{keys}")), &[("/train/max_grad_norm", norm)]);
        }
    }
}

const TRL_BASE: &str = "model_name_or_path: m\ndataset_name: d\n";

/// `get_constant_schedule` of transformers ignores a warm-up.
#[test]
fn a_constant_schedule_has_no_warm_up() {
    for (schedule, ours, warmup) in
        [("constant", "constant", "0.0"), ("constant_with_warmup", "constant", "5.0"), ("linear", "linear", "5.0")]
    {
        let found = imported("trl-sft", &format!("{TRL_BASE}lr_scheduler_type: {schedule}\nwarmup_steps: 5\n"));
        check(&found, &[("/train/lr_schedule", &format!("\"{ours}\"")), ("/train/warmup_steps", warmup)]);
        let is_noted = found.1.iter().any(|note| note.contains("`train.warmup_steps` is set to 0"));
        assert_eq!(is_noted, schedule == "constant", "{:?}", found.1);
    }
}

#[test]
fn schedules_of_transformers_keep_their_settings() {
    for (keys, key, value) in [
        ("cosine_with_min_lr\nlr_scheduler_kwargs:\n  min_lr_rate: 0.1\n", "cosine_with_min_lr/min_lr_ratio", "0.1"),
        (
            "cosine_warmup_with_min_lr\nlr_scheduler_kwargs: '{\"min_lr\": 1e-6, \"warmup_lr_rate\": null}'\n",
            "cosine_warmup_with_min_lr/min_lr",
            "1e-6",
        ),
        ("cosine\nlr_scheduler_kwargs: { num_cycles: 1.5 }\n", "cosine_with_min_lr/num_cycles", "1.5"),
        ("polynomial\n", "polynomial/power", "1.0"),
        ("polynomial\nlr_scheduler_kwargs: { power: '2' }\n", "polynomial/power", "2.0"),
        (
            "warmup_stable_decay\nlr_scheduler_kwargs: { num_decay_steps: 5, decay_type: 1-sqrt }\n",
            "warmup_stable_decay/decay_type",
            "\"1-sqrt\"",
        ),
    ] {
        for (system, base) in [("trl-sft", TRL_BASE), ("llamafactory", "model_name_or_path: m\ndataset: d\n")] {
            let found = imported(system, &format!("{base}lr_scheduler_type: {keys}"));
            check(&found, &[(&format!("/train/lr_schedule/{key}"), value)]);
            assert!(!found.1.iter().any(|note| note.contains("schedule")), "{:?}", found.1);
        }
    }
    for (keys, part) in [
        ("lr_scheduler_type: linear\nlr_scheduler_kwargs: { num_cycles: 2 }\n", "has no setting `num_cycles`"),
        ("lr_scheduler_type: greedy\n", "the schedule `greedy` has no equivalent"),
        ("lr_scheduler_kwargs: { num_cycles: 2 }\n", "is given without `lr_scheduler_type`"),
    ] {
        let found = imported("trl-sft", &format!("{TRL_BASE}{keys}"));
        check(&found, &[("/train/lr_schedule", "\"linear\"")]);
        assert!(found.1.iter().any(|note| note.contains(part)), "{part}: {:?}", found.1);
    }
    let error = refused("trl-sft", &format!("{TRL_BASE}lr_scheduler_type: cosine\nlr_scheduler_kwargs: 3\n"));
    assert!(error.contains("`lr_scheduler_kwargs` is not a mapping"), "{error}");
}

/// As `SchedulerMixin` of axolotl 0.19 chooses between its own cosines.
#[test]
fn a_lowest_learning_rate_of_axolotl_is_kept() {
    let base = "base_model: m\ndatasets:\n  - path: d\nwarmup_steps: 0\ncosine_min_lr_ratio: 0.1\n";
    let lowest = ("/train/lr_schedule/cosine_with_min_lr/min_lr_ratio", "0.1");
    for (keys, expected, note) in [
        ("", lowest, ""),
        ("lr_scheduler: cosine\n", lowest, ""),
        ("cosine_constant_lr_ratio: 0.8\n", lowest, "gradus has no such schedule"),
        ("lr_quadratic_warmup: true\n", ("/train/lr_schedule", "\"cosine\""), "gradus has no quadratic warm-up"),
        ("lr_scheduler: linear\n", ("/train/lr_schedule", "\"linear\""), "`cosine_min_lr_ratio` has no equivalent"),
    ] {
        let found = imported("axolotl", &format!("{base}{keys}"));
        check(&found, &[expected]);
        let notes = found.1.join("\n");
        assert!(notes.contains(note) && (!note.is_empty() || !notes.contains("cosine")), "{keys}: {notes}");
    }
}

/// Paging decides where moments are stored. vLLM, and code of a model's author, have no effect.
#[test]
fn keys_that_change_no_result_are_taken() {
    for (name, moments) in [("paged_adamw_32bit", "f32"), ("paged_adamw", "f32"), ("paged_adamw_8bit", "int8")] {
        let found = imported("trl-sft", &format!("{TRL_BASE}optim: {name}\ntrust_remote_code: true\n"));
        check(&found, &[("/train/optimizer", "\"adamw\""), ("/train/moments", &format!("\"{moments}\""))]);
        assert!(found.1.is_empty(), "{:?}", found.1);
    }
    let base = "model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: 8\nnum_generations: 8\n\
                reward_funcs: accuracy_reward\nuse_vllm: true\nvllm_mode: colocate\n";
    let notes = |keys: &str| imported("trl-grpo", &format!("{base}{keys}")).1.join("\n");
    assert!(!notes("vllm_importance_sampling_clip_max: 2.0\n").contains("vllm"));
    assert!(notes("vllm_importance_sampling_clip_max: 0.5\n").contains("so the ratio is 1"));
    assert!(notes("vllm_structured_outputs_regex: a+\n").contains("`vllm_structured_outputs_regex` has no equivalent"));
}

#[test]
fn dropout_of_trl_is_kept() {
    let base = "model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: 8\nnum_generations: 8\nreward_funcs: accuracy_reward\n";
    for (command, usual) in
        [("sft", true), ("grpo", true), ("rloo", true), ("reward", false), ("dpo", false), ("kto", false)]
    {
        for (keys, drops) in [("", usual), ("disable_dropout: true\n", false), ("disable_dropout: false\n", true)] {
            let found = imported(&format!("trl-{command}"), &format!("{base}{keys}"));
            let compares = matches!(command, "dpo" | "kto");
            check(&found, &[("/train/dropout", if drops && !compares { "true" } else { "false" })]);
            let is_noted = found.1.iter().any(|note| note.contains("because it compares two models"));
            assert_eq!(is_noted, drops && compares, "{command}: {:?}", found.1);
        }
    }
    let adapter = "use_peft: true\nlora_dropout: 0.2\n";
    let found = imported("trl-reward", &format!("{base}{adapter}"));
    check(&found, &[("/lora/dropout", "0.0")]);
    assert!(found.1.join("\n").contains("`lora.dropout` is set to 0"), "{:?}", found.1);
    check(&imported("trl-sft", &format!("{base}{adapter}")), &[("/lora/dropout", "0.2"), ("/train/dropout", "true")]);
}

#[test]
fn label_smoothing_of_trl_is_for_some_losses() {
    let base = "model_name_or_path: m\ndataset_name: d\nlabel_smoothing: 0.1\n";
    for (loss, smoothing, note) in [
        ("", "0.0", "TRL reads `label_smoothing` only for the losses `robust`, `exo_pair`, `aot`, `aot_unpaired`"),
        ("loss_type: [sigmoid, sft]\n", "0.0", "`method.dpo.label_smoothing` is set to 0"),
        ("loss_type: ipo\n", "0.0", "`method.dpo.label_smoothing` is set to 0"),
        ("loss_type: [sigmoid, robust]\n", "0.1", "gradus also applies `label_smoothing` to the loss `sigmoid`"),
    ] {
        let found = imported("trl-dpo", &format!("{base}{loss}"));
        check(&found, &[("/method/dpo/label_smoothing", smoothing)]);
        assert!(found.1.join("\n").contains(note), "{note}: {:?}", found.1);
    }
    let found = imported("trl-dpo", &format!("{base}loss_type: robust\n"));
    check(&found, &[("/method/dpo/label_smoothing", "0.1")]);
    assert!(found.1.is_empty(), "{:?}", found.1);
}

#[test]
fn label_smoothing_of_supervised_fine_tuning_is_kept() {
    let text = format!("{TRL_BASE}label_smoothing_factor: 0.1\n");
    let found = imported("trl-sft", &text);
    check(&found, &[("/method/sft/label_smoothing", "0.1")]);
    assert!(!found.1.join("\n").contains("label_smoothing_factor"), "{:?}", found.1);
    let found = imported("trl-sft", &format!("{text}loss_type: dft\n"));
    check(&found, &[("/method/sft/label_smoothing", "0.0")]);
    assert!(found.1.join("\n").contains("`dft` has no label smoothing"), "{:?}", found.1);
}

/// As in `TrainingArguments` of transformers: an absent interval, or 0, is that of logging.
#[test]
fn an_interval_of_evaluations_that_is_a_share_is_left_out() {
    let base = format!("{TRL_BASE}eval_strategy: steps\nlogging_steps: 3\n");
    for (keys, steps) in [("", "3"), ("eval_steps: 0\n", "3"), ("eval_steps: 7\n", "7")] {
        check(&imported("trl-sft", &format!("{base}{keys}")), &[("/train/eval_steps", steps)]);
    }
    let (_, notes, yaml) = imported("trl-sft", &format!("{base}eval_steps: 0.1\n"));
    assert!(!yaml.contains("eval_steps"), "{yaml}");
    assert!(notes.join("\n").contains("`eval_steps` is a share of all steps: left out"), "{notes:?}");
}

#[test]
fn slices_of_splits_are_reported_and_left_out() {
    let found = imported(
        "trl-sft",
        &format!(
            "{TRL_BASE}dataset_train_split: \"extra[:10%]\"\ndataset_test_split: \"test[5:]\"\neval_strategy: \"no\"\n"
        ),
    );
    check(&found, &[("/data", "\"d:extra\"")]);
    assert!(found.1.join("\n").contains("all rows of `extra` are used"), "{:?}", found.1);
    let keys = "dataset_train_split: \"train[:10%]\"\ndataset_test_split: \"test[5:]\"\neval_strategy: steps\n";
    let found = imported("trl-sft", &format!("{TRL_BASE}{keys}"));
    check(&found, &[("/data", "\"d\""), ("/eval_data", "\"d:test\"")]);
    let parts =
        "- {path: a/b, type: alpaca, split: \"train[:1%]\"}\n- {path: c/d, type: alpaca, split: \"test+extra\"}\n";
    let found = imported("axolotl", &format!("base_model: m\ndatasets:\n{parts}"));
    check(&found, &[("/data", "\"a/b\""), ("/mix/0/data", "\"c/d:test\"")]);
    let notes = found.1.join("\n");
    for part in ["`train[:1%]` is a part or a sum of splits", "`test+extra` is a part or a sum of splits"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}

#[test]
fn converted_numbers_that_are_too_small_are_reported() {
    let text =
        "stage: sft\nfinetuning_type: full\nmodel_name_or_path: m\ndataset: d\ncutoff_len: 1\nsave_total_limit: 0\n";
    let notes = converted("llamafactory", text).expect("converted").notes;
    for expected in
        ["`train.max_length` is 1, but must be at least 2", "`train.keep_checkpoints` is 0, but must be at least 1"]
    {
        assert!(notes.iter().any(|note| note.message == expected), "{expected}: {notes:?}");
    }
}

/// `max_samples` of LLaMA-Factory limits every data set.
#[test]
fn a_limit_of_llamafactory_counts_for_each_data_set() {
    let text = "stage: sft\nfinetuning_type: full\nmodel_name_or_path: m\ndataset: a,b,c\nmax_samples: 100\neval_dataset: d,e\n\
                eval_strategy: steps\neval_steps: 5\n";
    let found = imported("llamafactory", text);
    check(
        &found,
        &[
            ("/train/max_rows", "100"),
            ("/mix/0/max_rows", "100"),
            ("/mix/1/max_rows", "100"),
            ("/eval_data", "\"data/d.json\""),
        ],
    );
    assert!(found.1.join("\n").contains("`data/e.json` left out"), "{:?}", found.1);
    let text = "base_model: m\ndatasets:\n- path: d\ntest_datasets:\n- path: e\n- path: f\n- path: g\n";
    let notes = imported("axolotl", text).1.join("\n");
    assert!(notes.contains("`eval_data` names one data set, `e`: `f`, `g` left out"), "{notes}");
}

#[test]
fn flags_that_change_which_rows_share_a_step_are_reported() {
    let llamafactory = "stage: sft\nfinetuning_type: full\ndataset: d\nmodel_name_or_path: m\n";
    let axolotl = "base_model: m\ndatasets:\n  - path: d\n";
    for (system, base) in [("llamafactory", llamafactory), ("axolotl", axolotl), ("trl-sft", TRL_BASE)] {
        for key in ["dataloader_drop_last", "group_by_length"] {
            let count = |value: bool| imported(system, &format!("{base}{key}: {value}\n")).1.len();
            assert_eq!(count(true), count(false) + 1, "{system}: {key}");
        }
    }
}

#[test]
fn noise_on_embeddings_is_kept_for_methods_that_are_trained_with_it() {
    let axolotl = "base_model: m\ndatasets:\n  - path: d\n";
    let llamafactory = "stage: sft\nfinetuning_type: full\ndataset: d\nmodel_name_or_path: m\n";
    for (system, base, key) in [
        ("trl-sft", TRL_BASE, "neftune_noise_alpha"),
        ("trl-dpo", TRL_BASE, "neftune_noise_alpha"),
        ("axolotl", axolotl, "neftune_noise_alpha"),
        ("llamafactory", llamafactory, "neftune_alpha"),
    ] {
        let found = imported(system, &format!("{base}{key}: 5\n"));
        check(&found, &[("/train/neftune_noise_alpha", "5.0")]);
        assert!(!found.1.iter().any(|note| note.contains("neftune")), "{:?}", found.1);
        for nothing in ["0", "null"] {
            let found = imported(system, &format!("{base}{key}: {nothing}\n"));
            check(&found, &[("/train/neftune_noise_alpha", "0.0")]);
            assert!(!found.1.iter().any(|note| note.contains("neftune")), "{:?}", found.1);
        }
    }
    let found = imported("trl-kto", &format!("{TRL_BASE}neftune_noise_alpha: 5\n"));
    check(&found, &[("/train/neftune_noise_alpha", "0.0")]);
    assert!(
        found.1.iter().any(|note| note == "gradus trains `kto` without noise on embeddings: left out"),
        "{:?}",
        found.1
    );
}

#[test]
fn a_reference_that_follows_the_policy_is_kept() {
    let found = imported("trl-dpo", &format!("{TRL_BASE}sync_ref_model: true\nref_model_mixup_alpha: 0.5\n"));
    check(
        &found,
        &[
            ("/train/sync_ref_model", "true"),
            ("/train/ref_model_mixup_alpha", "0.5"),
            ("/train/ref_model_sync_steps", "512"),
            ("/method/dpo/reference", "\"live\""),
        ],
    );
    // An iteration has two optimizer steps.
    let sampled = "per_device_train_batch_size: 8\nnum_generations: 8\nreward_funcs: accuracy_reward\nnum_iterations: 2\nbeta: 0.1\n";
    let found = imported("trl-grpo", &format!("{TRL_BASE}{sampled}sync_ref_model: true\nref_model_sync_steps: 64\n"));
    check(&found, &[("/train/sync_ref_model", "true"), ("/train/ref_model_sync_steps", "32")]);
    let found = imported("trl-kto", &format!("{TRL_BASE}ref_model_mixup_alpha: 0.5\nref_model_sync_steps: 64\n"));
    check(&found, &[("/train/sync_ref_model", "false"), ("/train/ref_model_mixup_alpha", "0.6")]);
    assert!(!found.1.iter().any(|note| note.contains("ref_model")), "{:?}", found.1);
}

#[test]
fn order_template_and_quoted_numbers_of_trl_are_kept() {
    let base = "model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: 8\nnum_generations: 8\nreward_funcs: accuracy_reward\n";
    for (command, keys, shuffles) in [
        ("grpo", "shuffle_dataset: false\n", "false"),
        ("grpo", "shuffle_dataset: true\n", "true"),
        ("sft", "shuffle_dataset: false\n", "true"),
        ("sft", "train_sampling_strategy: sequential\n", "false"),
        ("sft", "train_sampling_strategy: sequential\nshuffle_dataset: true\n", "true"),
        ("kto", "", "false"),
        ("kto", "train_sampling_strategy: random\n", "true"),
    ] {
        let found = imported(&format!("trl-{command}"), &format!("{base}{keys}"));
        check(&found, &[("/train/shuffle", shuffles)]);
    }
    let found = imported("trl-sft", &format!("{base}chat_template_path: chats/mine.jinja\n"));
    check(&found, &[("/train/chat_template", "\"chats/mine.jinja\"")]);
    let found = imported("trl-sft", &format!("{base}chat_template_path: acme/chat\n"));
    check(&found, &[("/train/chat_template", "null")]);
    assert!(found.1.join("\n").contains("`acme/chat` is not a Jinja file"), "{:?}", found.1);

    let quoted =
        "beta: \"0.2\"\nlearning_rate: \"5e-6\"\nseed: '7'\nloss_weights: [\"1.0\"]\nuse_weighting: \"false\"\n";
    check(
        &imported("trl-dpo", &format!("{base}{quoted}")),
        &[
            ("/method/dpo/beta", "0.2"),
            ("/train/learning_rate", "5e-6"),
            ("/train/seed", "7"),
            ("/method/dpo/loss_weights/0", "1.0"),
            ("/method/dpo/use_weighting", "false"),
        ],
    );
    // RMSprop reads no keys of AdamW.
    let found = imported("trl-sft", &format!("{base}optim: rmsprop\nadam_beta2: 0.95\nadam_epsilon: 1e-6\n"));
    check(&found, &[("/train/optimizer", "\"rmsprop\""), ("/train/adam_betas", "[0.9,0.999]")]);
    assert!(found.1.join("\n").contains("`adam_beta2` has no equivalent"), "{:?}", found.1);
    let quoted = "stage: dpo\ndataset: d\nmodel_name_or_path: m\ndpo_label_smoothing: \"0.1\"\n";
    check(&imported("llamafactory", quoted), &[("/method/dpo/label_smoothing", "0.1")]);
    let found = imported("trl-sft", &format!("{base}use_peft: true\nload_in_4bit: true\nbnb_4bit_quant_type: fp4\n"));
    check(&found, &[("/train/frozen_weights", "\"nf4\"")]);
    assert!(found.1.join("\n").contains("gradus has no `fp4`"), "{:?}", found.1);
}

#[test]
fn llamafactory_stages_become_methods() {
    let base = "model_name_or_path: acme/base\ndataset: pairs,more\ntemplate: llama3\ncutoff_len: 512\n\
                per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nval_size: 0.1\neval_strategy: steps\neval_steps: 20\n";
    let found = imported(
        "llamafactory",
        &format!(
            "stage: dpo\nfinetuning_type: lora\nlora_rank: 16\nlora_target: all\npref_loss: sigmoid\npref_ftx: 0.2\nquantization_bit: 4\n{base}"
        ),
    );
    check(
        &found,
        &[
            ("/method/dpo/beta", "0.1"),
            ("/method/dpo/loss_type", "[\"sigmoid\",\"sft\"]"),
            ("/method/dpo/loss_weights/1", "0.2"),
            ("/train/batch_size", "8"),
            ("/train/learning_rate", "0.00005"),
            ("/train/epochs", "3.0"),
            ("/train/max_length", "512"),
            ("/train/eval_fraction", "0.1"),
            ("/train/chat_template", "\"llama3\""),
            ("/train/frozen_weights", "\"nf4\""),
            ("/lora/rank", "16"),
            ("/lora/alpha", "32.0"),
        ],
    );
    assert!(found.2.contains("data/more.json"), "{}", found.2);
    for (stage, method) in [
        ("stage: sft\nfinetuning_type: full\n", "sft"),
        ("stage: pt\nfinetuning_type: full\n", "sft"),
        ("stage: rm\n", "reward"),
        ("stage: kto\n", "kto"),
        ("stage: dpo\npref_loss: simpo\n", "simpo"),
        ("stage: dpo\npref_loss: orpo\n", "orpo"),
        ("stage: ppo\nreward_model: acme/reward\n", "ppo"),
    ] {
        let (config, _, yaml) = imported("llamafactory", &format!("{stage}{base}"));
        assert!(config["method"].get(method).is_some(), "{stage}: {yaml}");
        assert_eq!(config.get("lora").is_some_and(|lora| !lora.is_null()), !stage.contains("full"), "{stage}");
    }
    assert!(refused("llamafactory", &format!("stage: dream\n{base}")).contains("`stage` is `dream`"));
}

/// LLaMA-Factory 0.9.5: `lora_target` is `all` by default.
#[test]
fn an_adapter_of_llamafactory_has_all_layers_by_default() {
    let base = "stage: sft\ndataset: d\nmodel_name_or_path: m\n";
    for (keys, targets) in [
        ("", "[\"all-linear\"]"),
        ("lora_target: all\n", "[\"all-linear\"]"),
        ("lora_target: q_proj,v_proj\n", "[\"q_proj\",\"v_proj\"]"),
    ] {
        check(&imported("llamafactory", &format!("{base}{keys}")), &[("/lora/targets", targets)]);
    }
}

/// LLaMA-Factory 0.9.5: `train_on_prompt` is false, so all turns of users are masked (`SupervisedDatasetProcessor`).
#[test]
fn llamafactory_trains_on_the_turns_of_the_assistant() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let chat = r#"[{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]"#;
    let one = r#"[{"instruction": "a", "output": "b"}]"#;
    let history =
        r#"[{"instruction": "a", "output": "b"}, {"instruction": "c", "output": "d", "history": [["a", "b"]]}]"#;
    let texts = r#"[{"prompt": "a", "completion": "b"}]"#;
    for (name, rows) in [("chat", chat), ("one", one), ("history", history), ("texts", texts), ("broken", "[{")] {
        std::fs::write(folder.path().join(format!("{name}.json")), rows).expect("written");
    }
    let of = |names: &str, keys: &str| {
        let folder = folder.path().display();
        let base = "model_name_or_path: m\nfinetuning_type: full\n";
        imported("llamafactory", &format!("{base}dataset_dir: {folder}\ndataset: {names}\n{keys}"))
    };
    let unknown = "gradus trains on all turns of conversations";
    for (names, keys, assistant_only, completion_only) in [
        ("chat", "", "true", None),
        ("chat,one", "", "true", None),
        ("one", "", "false", None),
        ("one,history", "", "true", Some(false)),
        ("texts,one", "", "false", None),
        ("chat", "train_on_prompt: true\n", "false", Some(false)),
        ("chat", "stage: pt\n", "false", None),
    ] {
        let found = of(names, keys);
        check(&found, &[("/method/sft/assistant_only_loss", assistant_only)]);
        let written = found.0.pointer("/method/sft/completion_only_loss").and_then(Value::as_bool);
        assert_eq!(written, completion_only, "{names} {keys}: {}", found.2);
        assert!(!found.1.join("\n").contains(unknown), "{names} {keys}: {:?}", found.1);
    }
    for (names, cause) in [
        ("chat,elsewhere", ""),
        ("chat,texts", ", because some rows are no conversations"),
        ("history,texts", ", because some rows are no conversations"),
        ("chat,broken", ", because the import cannot read `"),
    ] {
        let found = of(names, "");
        check(&found, &[("/method/sft/assistant_only_loss", "false")]);
        let expected = format!("{unknown} (`messages`){cause}");
        assert!(found.1.iter().any(|note| note.contains(&expected)), "{names}: {:?}", found.1);
    }
}

/// LLaMA-Factory 0.9.5, `data/template.py`: `qwen` adds a system message. `llama2`, `mistral` and `zephyr` have other spaces than here.
#[test]
fn system_messages_of_templates_are_kept() {
    let base = "model_name_or_path: m\ndataset: d\n";
    let qwen = "\"You are Qwen, created by Alibaba Cloud. You are a helpful assistant.\"";
    let found = imported("llamafactory", &format!("{base}template: qwen\n"));
    check(&found, &[("/train/chat_template", "\"qwen\""), ("/train/system_prompt", qwen)]);
    let own = "template: qwen\ndefault_system: Be brief.\n";
    check(&imported("llamafactory", &format!("{base}{own}")), &[("/train/system_prompt", "\"Be brief.\"")]);
    for keys in ["template: chatml\n", "template: qwen\ndefault_system: \"\"\n", "template: qwen\nstage: pt\n"] {
        let (.., yaml) = imported("llamafactory", &format!("{base}{keys}"));
        assert!(yaml.contains("chat_template: ") && !yaml.contains("system_prompt"), "{keys}: {yaml}");
    }
    for name in ["llama2", "mistral", "zephyr"] {
        let (_, notes, yaml) = imported("llamafactory", &format!("{base}template: {name}\n"));
        assert!(!yaml.contains("chat_template"), "{yaml}");
        let notes = notes.join("\n");
        assert!(notes.contains(&format!("the template `{name}` of gradus has other spaces")), "{notes}");
    }
    let axolotl = |kind: &str| {
        imported("axolotl", &format!("base_model: m\nchat_template: qwen_25\ndatasets:\n- {{path: d, type: {kind}}}\n"))
    };
    check(&axolotl("chat_template"), &[("/train/chat_template", "\"qwen\""), ("/train/system_prompt", qwen)]);
    assert!(!axolotl("alpaca").2.contains("system_prompt"), "alpaca has a layout of its own");
    let mixed = axolotl("chat_template}\n- {path: t, type: completion");
    assert!(!mixed.2.contains("system_prompt"), "texts cannot have one: {}", mixed.2);
    assert!(
        mixed.1.join("\n").contains("gradus does not, because not all data sets are conversations"),
        "{:?}",
        mixed.1
    );
}

/// LLaMA-Factory 0.9.5: `infer_seqlen` shortens prompt and answer in proportion, and drops no row.
#[test]
fn llamafactory_drops_no_long_rows() {
    let of = |stage: &str| {
        let text =
            format!("model_name_or_path: m\nfinetuning_type: full\ndataset: d\nstage: {stage}\ncutoff_len: 40\n");
        imported("llamafactory", &text)
    };
    let note = "LLaMA-Factory shortens prompt and answer of a longer row in proportion; gradus cuts";
    for (stage, cut) in
        [("rm", "the beginning of both texts"), ("sft", "the end of the row"), ("dpo", "the end of the row")]
    {
        let found = of(stage);
        check(&found, &[("/train/max_length", "40"), ("/train/too_long", "\"truncate\"")]);
        assert!(found.1.contains(&format!("{note} {cut}")), "{stage}: {:?}", found.1);
    }
    check(&of("rm"), &[("/method/reward/truncation", "\"left\"")]);
    assert!(!of("pt").1.join("\n").contains(note), "texts are cut at their end there, too");
}

/// LLaMA-Factory 0.9.5: `GeneratingArguments`, `FinetuningArguments`, and `init_kl_coef` of `PPOConfig` in TRL 0.9.6. `cutoff_len` limits prompts.
#[test]
fn defaults_of_ppo_of_llamafactory_are_written() {
    let base =
        "stage: ppo\nreward_model: r\nmodel_name_or_path: m\nfinetuning_type: full\ndataset: d\ncutoff_len: 512\n";
    let found = imported("llamafactory", base);
    check(
        &found,
        &[
            ("/method/ppo/temperature", "0.95"),
            ("/method/ppo/max_new_tokens", "1024"),
            ("/method/ppo/sampling/top_p", "0.7"),
            ("/method/ppo/sampling/top_k", "50"),
            ("/method/ppo/kl/target", "6.0"),
            ("/method/ppo/kl/coefficient", "0.2"),
            ("/train/max_length", "1536"),
            ("/train/max_prompt_length", "512"),
            ("/train/prompt_truncation", "\"right\""),
        ],
    );
    let found = imported("llamafactory", &format!("{base}top_k: 0\ntop_p: 1\nmax_new_tokens: 8\nppo_target: 2\n"));
    check(
        &found,
        &[("/method/ppo/max_new_tokens", "8"), ("/method/ppo/kl/target", "2.0"), ("/train/max_length", "520")],
    );
    assert!(!found.2.contains("top_k"), "0 samples from all tokens: {}", found.2);
}

/// `CPOConfig` of TRL 1.16: `beta` is 0.1 and `cpo_alpha` 1. axolotl 0.19 passes only what a file has.
#[test]
fn simpo_of_axolotl_has_the_defaults_of_trl() {
    let base = "base_model: m\ndatasets:\n- path: d\nrl: simpo\nsimpo_gamma: 0.5\n";
    for (keys, beta, alpha) in [("", "0.1", "1.0"), ("rl_beta: 2\ncpo_alpha: 0\n", "2.0", "0.0")] {
        check(
            &imported("axolotl", &format!("{base}{keys}")),
            &[("/method/simpo/beta", beta), ("/method/simpo/cpo_alpha", alpha), ("/method/simpo/simpo_gamma", "0.5")],
        );
    }
}

/// axolotl 0.19, `prompt_strategies/chat_template.py`: `roles_to_train` is `["assistant"]` and `train_on_inputs` false.
#[test]
fn axolotl_trains_on_the_turns_of_the_assistant() {
    let of = |kinds: &[&str], keys: &str| {
        let sets: String = kinds.iter().map(|kind| format!("- {{path: d, type: {kind}}}\n")).collect();
        imported("axolotl", &format!("base_model: m\ndatasets:\n{sets}{keys}"))
    };
    for (kinds, keys, expected) in [
        (&["chat_template", "chat_template"][..], "", "true"),
        (&["chat_template"], "train_on_inputs: false\n", "true"),
        (&["chat_template"], "train_on_inputs: true\n", "false"),
        (&["alpaca"], "", "false"),
        (&["chat_template", "alpaca"], "", "false"),
    ] {
        let found = of(kinds, keys);
        check(&found, &[("/method/sft/assistant_only_loss", expected)]);
        let is_mixed = kinds.contains(&"alpaca") && kinds.len() > 1;
        assert_eq!(
            found.1.join("\n").contains("axolotl trains on the assistant's turns alone"),
            is_mixed,
            "{:?}",
            found.1
        );
    }
}

#[test]
fn keys_of_data_sets_are_read_or_reported() {
    let text = "base_model: m\ndatasets:\n\
                - {path: json, data_files: [chat.jsonl, more.jsonl], type: chat_template, roles_to_train: [user], train_on_eos: turn, \
                field_messages: conv, drop_system_message: true, shards: 10, message_property_mappings: {role: from, content: value}}\n\
                - {path: openai/gsm8k, name: main, split: test, type: {field_instruction: q, format: \"[INST] {instruction}\"}}\n\
                - {path: a/b, name: [x, default], data_files: c.json, trust_remote_code: true, revision: null}\n\
                test_datasets:\n- {path: e, ds_type: json, shards: 2}\n";
    let found = imported("axolotl", text);
    check(
        &found,
        &[
            ("/data", "\"chat.jsonl\""),
            ("/mix/0/data", "\"more.jsonl\""),
            ("/mix/1/data", "\"openai/gsm8k:main:test\""),
            ("/mix/2/data", "\"a/b:x\""),
            ("/mix/3/data", "\"a/b\""),
            ("/eval_data", "\"e\""),
        ],
    );
    let left_out: Vec<&str> =
        found.1.iter().filter_map(|note| note.strip_suffix(" has no equivalent: left out")).collect();
    let expected = [
        "`datasets[0].roles_to_train`",
        "`datasets[0].field_messages`",
        "`datasets[0].drop_system_message`",
        "`datasets[0].shards`",
        "`datasets[1].type.field_instruction`",
        "`datasets[1].type.format`",
        "`test_datasets[0].shards`",
    ];
    assert_eq!(left_out, expected, "{:?}", found.1);
    assert!(found.1.join("\n").contains("gradus reads all files of a split of `a/b`"), "{:?}", found.1);
    let trl = "model_name_or_path: m\ndatasets:\n- {path: a/b, name: x, split: test, columns: [text]}\n- {path: json, data_files: c.json}\n";
    let found = imported("trl-sft", trl);
    check(&found, &[("/data", "\"a/b:x:test\""), ("/mix/0/data", "\"c.json\"")]);
    assert!(found.1.iter().any(|note| note == "`datasets[0].columns` has no equivalent: left out"), "{:?}", found.1);
}

/// `load_dataset` of `datasets` resolves files below a local path. axolotl 0.19 does not.
#[test]
fn files_of_a_local_data_set_keep_their_folder() {
    let trl = |set: &str| format!("model_name_or_path: m\ndatasets:\n- {set}\n");
    let axolotl = |set: &str| format!("base_model: m\ndatasets:\n- {set}\n");
    let local = "{path: ./dd, data_files: train.jsonl}";
    let splits = "{path: json, data_files: {train: c.json, test: [d.json, e.json]}";
    let of_test = format!("{splits}, split: \"test[:5]\"}}");
    let splits = format!("{splits}}}");
    for (system, text, expected) in [
        ("trl-sft", trl(local), "dd/train.jsonl"),
        ("axolotl", axolotl(local), "train.jsonl"),
        ("trl-sft", trl("{path: /x/dd, data_files: [/y/a.json]}"), "/y/a.json"),
        ("trl-sft", trl(&splits), "c.json"),
        ("trl-sft", trl(&of_test), "d.json"),
        ("axolotl", axolotl(&splits), "c.json"),
    ] {
        check(&imported(system, &text), &[("/data", &format!("\"{expected}\""))]);
    }
    let found = imported("trl-sft", &trl(&of_test));
    check(&found, &[("/mix/0/data", "\"e.json\"")]);
    let notes = found.1.iter().filter(|note| note.contains("is a part or a sum of splits")).count();
    assert_eq!(notes, 1, "one note for all files: {:?}", found.1);
    let error = refused("trl-sft", &trl("{path: json, data_files: {test: c.json}}"));
    assert!(
        error.contains("`datasets[0].path` is `json`, but `data_files` names no file of the split `train`"),
        "{error}"
    );
}

/// `TrainingArguments` of transformers evaluate nothing without `eval_strategy`. axolotl does.
#[test]
fn an_interval_of_evaluations_needs_a_strategy_in_transformers() {
    let found = imported("trl-sft", &format!("{TRL_BASE}eval_steps: 50\n"));
    check(&found, &[("/train/eval_steps", "-1")]);
    assert!(!found.2.contains("eval_data"), "{}", found.2);
    let found = imported("llamafactory", "model_name_or_path: m\ndataset: d\nval_size: 0.1\neval_steps: 50\n");
    check(&found, &[("/train/eval_steps", "-1")]);
    let found = imported("axolotl", "base_model: m\ndatasets:\n- path: d\nval_set_size: 0.1\neval_steps: 50\n");
    check(&found, &[("/train/eval_steps", "50")]);
}

/// The metric of an early stop is the loss in transformers, unless the file names another.
#[test]
fn an_early_stop_is_kept() {
    let axolotl = "base_model: m\ndatasets:\n- path: d\nval_set_size: 0.1\nrl: dpo\nearly_stopping_patience: 3\n";
    let llamafactory =
        "model_name_or_path: m\ndataset: d\nval_size: 0.1\neval_strategy: steps\nearly_stopping_steps: 3\n";
    for (system, base) in [("axolotl", axolotl), ("llamafactory", llamafactory)] {
        let found = imported(system, &format!("{base}eval_steps: 5\n"));
        check(&found, &[("/train/early_stopping_patience", "3"), ("/train/best_metric", "\"eval_loss\"")]);
        let found = imported(system, base);
        check(&found, &[("/train/early_stopping_patience", "0")]);
        assert!(found.1.join("\n").contains("an early stop needs evaluations during training"), "{:?}", found.1);
    }
}

#[test]
fn a_place_of_activations_turns_on_gradient_checkpointing() {
    for (value, expected) in [("offload", "true"), ("offload_disk", "true"), ("true", "true"), ("false", "false")] {
        let text = format!("base_model: m\ndatasets:\n- path: d\ngradient_checkpointing: {value}\n");
        check(&imported("axolotl", &text), &[("/train/recompute", expected)]);
    }
    let error = refused("axolotl", "base_model: m\ndatasets:\n- path: d\ngradient_checkpointing: often\n");
    assert!(error.contains("`gradient_checkpointing` is `often`, but `true` or `false` is needed"), "{error}");
}

/// axolotl 0.19: `lr_scheduler` is `cosine`, `sequence_len` 512 and `excess_length_strategy` `drop`. The warm-up is
/// `min(int(0.03 * total_num_steps), 100)`, and 2 steps instead of 1.
#[test]
fn defaults_of_axolotl_are_written() {
    let base = "base_model: m\ndatasets:\n  - path: d\n";
    let found = imported("axolotl", base);
    check(
        &found,
        &[
            ("/train/lr_schedule", "\"cosine\""),
            ("/train/warmup_steps", "0.03"),
            ("/train/max_length", "512"),
            ("/train/too_long", "\"skip\""),
        ],
    );
    let notes = found.1.join("\n");
    assert!(notes.contains("write `train.warmup_steps: 100` if the run has more than 3333 steps"), "{notes}");
    for (keys, schedule, warmup) in [
        ("max_steps: 20\n", "cosine", "0.0"),
        ("max_steps: 50\n", "cosine", "2.0"),
        ("max_steps: 200\n", "cosine", "6.0"),
        ("max_steps: 9000\n", "cosine", "100.0"),
        ("lr_scheduler: linear\nwarmup_ratio: 0.1\n", "linear", "0.1"),
        ("warmup_steps: 0\n", "cosine", "0.0"),
        ("lr_scheduler: constant\n", "constant", "0.0"),
        ("lr_scheduler: constant_with_warmup\nmax_steps: 200\n", "constant", "6.0"),
    ] {
        let found = imported("axolotl", &format!("{base}{keys}"));
        let schedule = format!("\"{schedule}\"");
        check(&found, &[("/train/lr_schedule", &schedule), ("/train/warmup_steps", warmup)]);
        assert!(!found.1.join("\n").contains("warms up"), "{keys}: {:?}", found.1);
    }
    for (strategy, ours) in [("drop", "skip"), ("truncate", "truncate"), ("raise", "skip")] {
        let found = imported("axolotl", &format!("{base}sequence_len: 64\nexcess_length_strategy: {strategy}\n"));
        check(&found, &[("/train/max_length", "64"), ("/train/too_long", &format!("\"{ours}\""))]);
        assert_eq!(found.1.join("\n").contains("`raise` has no equivalent"), strategy == "raise", "{:?}", found.1);
    }
    // GRPO reads neither key, and drops no prompt because of its length.
    let Imported { yaml, .. } =
        converted("axolotl", &format!("{base}rl: grpo\nsequence_len: 64\n")).expect("converted");
    assert!(yaml.contains("max_length: 1000000000") && !yaml.contains("too_long"), "{yaml}");
}

/// axolotl cuts plain texts into pieces, so it leaves none out. The default of `sft` keeps the first part.
#[test]
fn long_plain_texts_of_axolotl_are_not_left_out() {
    let of = |kind: &str, keys: &str| {
        imported("axolotl", &format!("base_model: m\ndatasets:\n  - path: d\n    type: {kind}\n{keys}"))
    };
    for (kind, keys) in [("completion", ""), ("completion:field", "excess_length_strategy: drop\n")] {
        let found = of(kind, keys);
        check(&found, &[("/train/max_length", "512"), ("/train/too_long", "\"truncate\"")]);
        assert!(found.1.join("\n").contains("gradus keeps the first"), "{:?}", found.1);
    }
    let found = of("alpaca", "");
    check(&found, &[("/train/too_long", "\"skip\"")]);
    assert!(!found.1.join("\n").contains("gradus keeps the first"), "{:?}", found.1);
}

#[test]
fn axolotl_files_keep_their_names_of_batches_and_adapters() {
    let base = "base_model: acme/base\ndatasets:\n  - path: acme/rows\n    type: alpaca\n  - path: data/more.jsonl\n    type: alpaca\n\
                sequence_len: 2048\nsample_packing: true\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\nnum_epochs: 3\n\
                optimizer: adamw_bnb_8bit\nlr_scheduler: cosine\nlearning_rate: 0.0002\nbf16: auto\nval_set_size: 0.05\n\
                gradient_checkpointing: true\nflash_attention: true\nwandb_project: mine\n";
    let found = imported(
        "axolotl",
        &format!(
            "{base}adapter: qlora\nlora_r: 32\nlora_alpha: 16\nlora_dropout: 0.05\nlora_target_linear: true\nspecial_tokens:\n  pad_token: x\n"
        ),
    );
    check(
        &found,
        &[
            ("/train/batch_size", "8"),
            ("/train/epochs", "3.0"),
            ("/train/lr_schedule", "\"cosine\""),
            ("/train/compute", "\"bf16\""),
            ("/train/recompute", "true"),
            ("/train/eval_fraction", "0.05"),
            ("/train/eval_steps", "0"),
            ("/train/frozen_weights", "\"nf4\""),
            ("/train/wandb_project", "\"mine\""),
            ("/train/moments", "\"int8\""),
            ("/lora/alpha", "16.0"),
            ("/lora/targets/0", "\"all-linear\""),
        ],
    );
    let notes = found.1.join("\n");
    for part in [
        "types alpaca, alpaca",
        "so packing is not needed; `train.batch_size` counts rows",
        "`special_tokens.pad_token` has no equivalent",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    for (rl, method) in [("dpo", "dpo"), ("ipo", "dpo"), ("orpo", "orpo"), ("simpo", "simpo"), ("kto", "kto")] {
        let (config, _, yaml) = imported("axolotl", &format!("{base}rl: {rl}\nrl_beta: 0.3\n"));
        assert!(config["method"].get(method).is_some(), "{rl}: {yaml}");
    }
    assert!(refused("axolotl", &format!("{base}rl: dream\n")).contains("`rl` is `dream`"));
}

#[test]
fn a_system_that_is_not_known_is_refused_with_those_that_are() {
    let error = "trl".parse::<System>().expect_err("a command of TRL is needed");
    assert!(error.contains("`trl-dpo`") && error.contains("`axolotl`"), "{error}");
}

#[test]
fn a_sweep_of_rl4lms_is_converted_with_its_first_values() {
    let text = "tokenizer: {model_name: gpt2}
reward_fn: {id: rouge, args: {rouge_type: rouge1}}
datapool: {id: cnn_daily_mail}
alg:
  id: ppo
  args:
    n_steps: 512
    batch_size: 64
    learning_rate:
      expand: True
      values: [0.000002, 0.000001]
    n_epochs: 5
  kl_div: {coeff: 0.001}
  policy:
    id: causal_lm_actor_critic_policy
    args: {model_name: gpt2, generation_kwargs: {do_sample: true, max_new_tokens: 20}}
env: {n_envs: 4, args: {max_prompt_length: 100, max_episode_length: 20}}
train_evaluation:
  eval_batch_size: 10
  n_iters: 10
  eval_every: 5
  generation_kwargs: {do_sample: true, num_beams: 4, temperature: 0.7, max_new_tokens: 20}
  metrics: [{id: rouge}]
";
    let found = imported("rl4lms", text);
    let evaluation = "/train/evaluation";
    check(
        &found,
        &[
            ("/train/learning_rate", "2e-6"),
            (&format!("{evaluation}/beams/num_beams"), "4"),
            (&format!("{evaluation}/temperature"), "0.7"),
            (&format!("{evaluation}/top_k"), "50"),
        ],
    );
    let note = "`alg.args.learning_rate` is swept over [2e-6,1e-6]: the first value is used";
    assert!(found.1.iter().any(|message| message == note), "{:?}", found.1);
}

#[test]
fn unknown_arguments_of_rewards_and_metrics_of_rl4lms_are_reported() {
    let text = "tokenizer: {model_name: gpt2}
reward_fn: {id: rouge, args: {rouge_type: rouge1, bogus_r: 3}}
datapool: {id: cnn_daily_mail}
alg:
  id: ppo
  args: {n_steps: 512, batch_size: 64, n_epochs: 5}
  kl_div: {coeff: 0.001}
  policy:
    id: causal_lm_actor_critic_policy
    args: {model_name: gpt2, generation_kwargs: {do_sample: true, max_new_tokens: 20}}
env: {n_envs: 4, args: {max_prompt_length: 100, max_episode_length: 20}}
train_evaluation:
  n_iters: 10
  eval_every: 5
  metrics:
    - {id: rouge, args: {use_single_ref: false, bogus_m: 1}}
    - {id: causal_perplexity, args: {tokenizer_id: gpt2, stride: 512, model_type: causal}}
";
    let found = imported("rl4lms", text);
    let left_out: Vec<&String> = found.1.iter().filter(|note| note.contains("has no equivalent")).collect();
    assert_eq!(
        left_out,
        [
            "`reward_fn.args.bogus_r` has no equivalent: left out",
            "`train_evaluation.metrics[0].args.bogus_m` has no equivalent: left out",
        ],
    );
    check(&found, &[("/reward/metric/rouge/rouge_type", "\"rouge1\"")]);
}

/// A file of RL4LMs with NLPO.
const RL4LMS: &str = "tokenizer: {model_name: gpt2}
reward_fn:
  id: increasing_numbers
  args: {min_tokens: 20}
datapool: {id: dummy_pool, args: {prompt: one, n_samples: 5}}
alg:
  id: nlpo
  args: {n_steps: 20}
  kl_div: {coeff: 0.1}
  policy:
    id: maskable_causal_lm_actor_critic_policy
    args:
      model_name: gpt2
      mask_type: learned_top_k
      top_mask: 7
      generation_kwargs: {do_sample: True, max_new_tokens: 20}
env: {n_envs: 1, args: {max_prompt_length: 5, max_episode_length: 20, terminate_on_eos: True}}
train_evaluation:
  n_iters: 5
  eval_every: 1
  save_every: 1
  metrics: [{id: dates}]
  generation_kwargs: {do_sample: False, max_new_tokens: 6}
";

/// Returns [`RL4LMS`] with these changes.
fn rl4lms(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(RL4LMS.to_owned(), |text, (old, new)| {
        assert!(text.contains(old), "{old}");
        text.replace(old, new)
    })
}

/// `generate` of RL4LMs reads either the settings of evaluations or those of rollouts.
#[test]
fn evaluations_of_rl4lms_leave_out_rules_of_rollouts() {
    let of_rollouts = "do_sample: True, top_k: 50, top_p: 0.9, typical_p: 0.8, no_repeat_ngram_size: 1, repetition_penalty: 3.0, \
                       bad_words_ids: [[7]], forced_eos_token_id: 9, max_new_tokens: 20";
    let own = "do_sample: False, typical_p: 0.5, forced_eos_token_id: 9, max_new_tokens: 6";
    let rollouts = ("do_sample: True, max_new_tokens: 20", of_rollouts);
    let found = imported("rl4lms", &rl4lms(&[rollouts, ("do_sample: False, max_new_tokens: 6", own)]));
    check(
        &found,
        &[
            ("/method/nlpo/sampling/repetition_penalty", "3.0"),
            ("/train/evaluation/top_p", "1.0"),
            ("/train/evaluation/typical_p", "0.5"),
            ("/train/evaluation/repetition_penalty", "1.0"),
            ("/train/evaluation/no_repeat_ngram_size", "0"),
            // Neither sets it.
            ("/train/evaluation/encoder_no_repeat_ngram_size", "null"),
        ],
    );
    let notes = found.1.join("\n");
    assert!(notes.contains("`bad_words_ids` of rollouts also applies to evaluations"), "{notes}");
    assert!(!notes.contains("forced_eos_token_id"), "{notes}");

    // Without settings of their own, evaluations sample as rollouts do.
    let inherited =
        imported("rl4lms", &rl4lms(&[rollouts, ("  generation_kwargs: {do_sample: False, max_new_tokens: 6}\n", "")]));
    check(&inherited, &[("/train/evaluation/top_p", "null"), ("/train/evaluation/repetition_penalty", "null")]);
}

#[test]
fn the_entropy_bonus_of_nlpo_differs_and_is_noted() {
    let notes = |coefficient: &str| {
        let args = format!("args: {{n_steps: 20, ent_coef: {coefficient}}}");
        imported("rl4lms", &rl4lms(&[("args: {n_steps: 20}", args.as_str())])).1.join("\n")
    };
    assert!(
        notes("0.01").contains("RL4LMs sums the entropy of NLPO over the tokens under the mask"),
        "{}",
        notes("0.01")
    );
    assert!(!notes("0.0").contains("entropy"), "{}", notes("0.0"));
}

#[test]
fn a_mask_over_the_whole_vocabulary_of_rl4lms_masks_nothing() {
    for kind in ["learned_top_k", "learned_top_p", "topk"] {
        let found = imported("rl4lms", &rl4lms(&[("learned_top_k", kind), ("top_mask: 7", "top_mask: -1")]));
        check(&found, &[("/method/nlpo/top_p", "1.0"), ("/method/nlpo/top_k", "null")]);
        assert!(found.1.join("\n").contains("`top_mask` is -1, the whole vocabulary"), "{:?}", found.1);
    }
}

#[test]
fn values_that_rl4lms_cannot_use_are_refused_at_their_line() {
    let learned = "id: learned_reward\n  args: {model_name: some/classifier";
    let counts = "id: increasing_numbers\n  args: {min_tokens: 20";
    let mask = "alg.policy.args.top_mask";
    for (changes, line, expected) in [
        (vec![("top_mask: 7", "top_mask: 0.5")], 15, format!("`{mask}` is 0.5, but a whole number from 0 is needed")),
        (vec![("top_mask: 7", "top_mask: 0")], 15, format!("`{mask}` is 0, but a whole number from 1 is needed")),
        (
            vec![("learned_top_k", "learned_top_p"), ("top_mask: 7", "top_mask: 7.0")],
            15,
            format!("`{mask}` is 7, but must be above 0 and at most 1, or -1"),
        ),
        (
            vec![(counts, learned)],
            4,
            "`reward_fn.args.label_ix` is missing, but `learned_reward` needs it".into(),
        ),
        (
            vec![(counts, learned), ("some/classifier", "some/classifier, label_ix: -1")],
            4,
            "`reward_fn.args.label_ix` is -1, but a whole number from 0 is needed".into(),
        ),
        (
            vec![("{min_tokens: 20}", "{}")],
            4,
            "`reward_fn.args.min_tokens` is missing, but `increasing_numbers` needs it".into(),
        ),
        (
            vec![("increasing_numbers\n  args: {min_tokens: 20", "meteor\n  args: {shaping_fn: increasing_numbers")],
            4,
            "`reward_fn.args.shaping_fn` is `increasing_numbers`, which needs `min_tokens`, but RL4LMs gives a shaping \
             no arguments"
                .into(),
        ),
        (
            vec![("{id: dates}", "{id: learned_reward, args: {model_name: some/classifier}}")],
            22,
            "`train_evaluation.metrics[0].args.label_ix` is missing, but `learned_reward` needs it".into(),
        ),
        (
            vec![("{id: dates}", "{id: learned_reward, args: {model_name: m, label_ix: -1}}")],
            22,
            "`train_evaluation.metrics[0].args.label_ix` is -1, but a whole number from 0 is needed".into(),
        ),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("config.yml");
        std::fs::write(&file, rl4lms(&changes)).expect("written");
        let Err(Error::Config(problems)) = import(System::Rl4lms, &file) else { panic!("{expected}") };
        let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
        assert_eq!(messages, [expected.as_str()]);
        let [Location::File { line: found, .. }] = &problems[0].locations[..] else { panic!("{problems:?}") };
        assert_eq!(*found, line, "{expected}");
    }
}

/// The other systems read their files with PyYAML, whose booleans and numbers are those of YAML 1.1.
#[test]
fn booleans_and_numbers_of_yaml_1_1_are_read() {
    let found = imported(
        "rl4lms",
        &rl4lms(&[
            ("do_sample: True", "do_sample: on"),
            ("terminate_on_eos: True", "terminate_on_eos: yes"),
            ("do_sample: False", "do_sample: no"),
            ("n_steps: 20", "n_steps: 1_000, learning_rate: 1_0.5e-6"),
            ("prompt: one", "prompt: \"1_0\""),
        ]),
    );
    check(
        &found,
        &[
            ("/train/batch_size", "52"),
            ("/train/learning_rate", "0.0000105"),
            ("/train/evaluation/temperature", "0.0"),
            ("/data/task/dummy_pool/prompt", "\"1_0\""),
        ],
    );
    let notes = found.1.join("\n");
    assert!(!notes.contains("does not sample rollouts") && !notes.contains("terminate_on_eos"), "{notes}");
    let text = format!("{TRL_BASE}bf16: yes\nuse_peft: off\nsave_strategy: no\nmax_steps: 1_000\nrun_name: \"on\"\n");
    let found = imported("trl-sft", &text);
    check(
        &found,
        &[
            ("/train/compute", "\"bf16\""),
            ("/train/save_steps", "0"),
            ("/train/max_steps", "1000"),
            ("/train/wandb_name", "\"on\""),
        ],
    );
}

/// PyYAML: keys of the mapping itself win, then those of the first mapping.
#[test]
fn merge_keys_of_yaml_1_1_are_carried_out() {
    let text = format!(
        "{TRL_BASE}x: &x {{learning_rate: 3.0e-4, seed: 5}}\ny: &y {{seed: 6, weight_decay: 0.1, max_steps: 7}}\n<<: [*x, *y]\n\
         weight_decay: 0.2\n"
    );
    let found = imported("trl-sft", &text);
    check(
        &found,
        &[
            ("/train/learning_rate", "0.0003"),
            ("/train/seed", "5"),
            ("/train/weight_decay", "0.2"),
            ("/train/max_steps", "7"),
        ],
    );
    assert!(!found.1.join("\n").contains("<<"), "{:?}", found.1);
    let found = imported("trl-sft", &format!("x: &x\n  <<: {{seed: 4}}\n{TRL_BASE}<<: *x\n"));
    check(&found, &[("/train/seed", "4")]);
    assert!(converted("trl-sft", &format!("{TRL_BASE}<<: 3\n")).is_ok_and(|found| !found.notes.is_empty()));
}
