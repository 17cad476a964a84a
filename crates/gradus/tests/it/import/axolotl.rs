//! Files of axolotl.

use gradus::config::Imported;

use super::{check, converted, imported, refused};

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
