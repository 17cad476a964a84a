//! Keys that several tools share, and the YAML that all of them read.

use gradus::config::System;

use super::rl4lms::rl4lms;
use super::{TRL_BASE, check, converted, imported, refused};

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
fn a_system_that_is_not_known_is_refused_with_those_that_are() {
    let error = "trl".parse::<System>().expect_err("a command of TRL is needed");
    assert!(error.contains("`trl-dpo`") && error.contains("`axolotl`"), "{error}");
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
