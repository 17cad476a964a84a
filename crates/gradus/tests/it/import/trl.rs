//! Files of TRL.

use super::{TRL_BASE, check, converted, imported, refused};

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
