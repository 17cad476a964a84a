//! Files of LLaMA-Factory.

use serde_json::Value;

use super::{check, converted, imported, refused};

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
