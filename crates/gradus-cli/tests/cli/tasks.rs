//! Tasks in all commands: shown, trained on, and evaluated with metrics.

use serde_json::{Value, json};

use crate::harness::{CliTest, fixture_model};

/// A few translations as two text files per split.
fn pairs() -> CliTest {
    let test = CliTest::new();
    let lines = |words: [&str; 4]| {
        (0..12).map(|i| format!("{} {}\n", words[i % 4], words[(i * 7 + 1) % 4])).collect::<String>()
    };
    for split in ["train", "val"] {
        test.write(&format!("pairs/{split}.en"), &lines(["the", "sun", "rises", "warm"]));
        test.write(&format!("pairs/{split}.de"), &lines(["sea", "a", "warm", "sun"]));
    }
    test
}

const TASK: &str = "{ iwslt2017en_de: { prompt_prefix: 'say: ' } }";

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn logged(test: &CliTest, run: &str) -> Vec<Value> {
    test.read(&format!("{run}/metrics.jsonl")).lines().map(json).collect()
}

#[test]
fn a_task_is_shown_and_written_as_rows() {
    let test = pairs();
    let shown = test.succeeds(&["data", "show", "pairs", "--task", TASK, "--split", "validation", "--examples", "1"]);
    assert!(shown.starts_with("iwslt2017en_de of pairs:validation\n  rows     12\n"), "{shown}");
    assert!(shown.contains("\npairs/val.en:1\n  prompt      say: the sun\n  completion  sea a\n"), "{shown}");
    test.succeeds(&["data", "convert", "pairs", "--task", TASK, "--output", "rows.jsonl"]);
    let row = json(test.read("rows.jsonl").lines().next().expect("a row"));
    assert_eq!(
        (&row["prompt"], &row["completion"], &row["id"]),
        (&"say: the sun".into(), &"sea a".into(), &"train_0".into())
    );
    let numbers = json(&test.succeeds(&["data", "show", "--task", "increasing_numbers", "--json"]));
    assert_eq!((&numbers["stats"]["rows"], &numbers["examples"][0]["prompt"]), (&50.into(), &"<|endoftext|>".into()));
    let run = test.run(&["data", "show", "--task", "comongen"]);
    assert!(run.code == 2 && run.stderr.contains("did you mean `commongen`?"), "{run:?}");
}

/// `eval` reports the same values for a model's completions as for the same completions given as rows.
#[test]
fn completions_are_measured_as_rows_are() {
    let test = pairs();
    let model = fixture_model("t5");
    let eval = ["eval", "--model", &model, "--task", TASK, "--data", "pairs", "--max-new-tokens", "4", "--json"];
    let found = json(&test.succeeds(&[&eval[..], &["--metrics", "rouge,chrf", "--predictions", "out.jsonl"]].concat()));
    let rows = json(&test.succeeds(&["eval", "--data", "out.jsonl", "--metrics", "rouge,chrf", "--json"]));
    for key in ["rouge/rouge1", "rouge/rougeL", "chrf"] {
        assert!(found[key].is_number() && found[key] == rows["metrics"][key], "{key}: {found} {rows}");
        assert_eq!(found["intervals"][key], rows["intervals"][key], "{key}");
    }
    let first = json(test.read("out.jsonl").lines().next().expect("a row"));
    assert_eq!((&first["id"], &first["prompt"]), (&"val_0".into(), &"say: the sun".into()));
    assert_eq!(first["metrics"]["chrf"], rows["rows"][0]["chrf"]);
    // The task's own metrics, for completions from beam search.
    let own =
        json(&test.succeeds(&[&eval[..], &["--num-beams", "2", "--temperature", "0", "--bootstrap", "0"]].concat()));
    for key in ["meteor", "bleu", "sacre_bleu", "ter", "diversity/unique-1"] {
        assert!(own[key].is_number(), "{key}: {own}");
    }
    let table = test.succeeds(&[&eval[..9], &["--metrics", "chrf"]].concat());
    assert!(table.contains("length") && table.contains("95 % interval") && table.contains("chrf"), "{table}");
}

/// RL4LMs' `causal_perplexity`, measured with the evaluated model on the references.
#[test]
fn the_perplexity_of_the_policy_is_measured_while_it_trains() {
    let test = pairs();
    let model = fixture_model("gpt2");
    let config = |model: &str| {
        format!(
            "model: {model}\ndata: {{ task: {TASK}, from: pairs }}\ntrain: {{ max_steps: 2, batch_size: 4, eval_steps: 1, \
             learning_rate: 0.01, evaluation: {{ metrics: [{{ perplexity: {{ of: references, stride: 8 }} }}], \
             max_new_tokens: 4, temperature: 0 }} }}\n"
        )
    };
    let method = "method: { ppo: { max_new_tokens: 6 } }\nreward: { metric: { chrf: {} } }\noutput_dir: ppo\n";
    test.write("run.yml", &format!("{}{method}", config(&model)));
    test.succeeds(&["train", "run.yml", "--quiet"]);
    let rows = logged(&test, "ppo");
    let eval = |model: &str, more: &[&str]| {
        let own = ["eval", "--model", model, "--task", TASK, "--data", "pairs", "--max-new-tokens", "4", "--json"];
        let metric = ["--metrics", "perplexity", "--metric-option", "of=references", "--metric-option", "stride=8"];
        let found = json(&test.succeeds(&[&own[..], &metric, more].concat()));
        found["perplexity"].as_f64().expect("a perplexity")
    };
    let of = |row: &Value| row["eval_perplexity"].as_f64().expect("a perplexity");
    // The model at the start and at the end, named or as the evaluated model.
    let named = format!("model={model}");
    for (found, model, more) in [
        (of(&rows[0]), model.as_str(), &["--metric-option", named.as_str()][..]),
        (of(&rows[0]), model.as_str(), &[]),
        (of(rows.last().expect("a row")), "ppo/model", &[]),
    ] {
        let expected = eval(model, more);
        assert!((found - expected).abs() <= 1e-4 * expected, "{model}: {found} instead of {expected}");
    }
    assert_ne!(of(&rows[0]), of(rows.last().expect("a row")), "the policy has moved");
    // Log-probabilities of the tokens of every step. At first, the policy equals the reference.
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
    for row in &rows[1..] {
        let [mean, least] = ["logprobs/mean", "logprobs/min"].map(|key| number(row, key));
        assert!(least <= mean && mean < 0.0 && number(row, "logprobs/std") >= 0.0, "{row}");
    }
    for part in ["mean", "std"] {
        let own = number(&rows[1], &format!("logprobs/{part}"));
        assert!((own - number(&rows[1], &format!("logprobs/reference_{part}"))).abs() < 1e-4, "{}", rows[1]);
    }
    // Models with an encoder assign no likelihood to a text alone. The metric also fails if no model is given.
    test.write("run.yml", &format!("{}method: {{ sft: {{}} }}\noutput_dir: sft\n", config(&fixture_model("t5"))));
    let run = test.run(&["train", "run.yml", "--quiet"]);
    assert!(run.code != 0 && run.stderr.contains("but this model has an encoder"), "{run:?}");
    test.write("rows.jsonl", "{\"prediction\": \"tea\", \"references\": [\"tea\"]}\n");
    let run = test.run(&["eval", "--data", "rows.jsonl", "--metrics", "perplexity"]);
    assert!(
        run.code != 0 && run.stderr.contains("`perplexity` needs its option `model` if no model is evaluated"),
        "{run:?}"
    );
}

#[test]
fn evaluations_of_training_measure_completions() {
    let test = pairs();
    let model = fixture_model("t5");
    let config = format!(
        "model: {model}\ndata: {{ task: {TASK}, from: pairs }}\n\
         train: {{ max_steps: 2, batch_size: 4, eval_steps: 1, learning_rate: 0.01, best_metric: eval_rouge/rouge1,\n\
         evaluation: {{ metrics: [{{ rouge: {{ rouge_type: rouge1 }} }}, ter, ter], max_new_tokens: 4, temperature: 0 }} }}\n"
    );
    for (name, method) in [
        ("sft", "method: { sft: {} }"),
        ("grpo", "method: { grpo: { max_new_tokens: 6, group_size: 2 } }\nreward: { metric: { chrf: {} } }"),
    ] {
        test.write("run.yml", &format!("{config}{method}\noutput_dir: {name}\n"));
        test.succeeds(&["train", "run.yml", "--quiet"]);
        let rows = logged(&test, name);
        for key in ["eval_rouge/rouge1", "eval_ter", "eval_ter_2", "eval_length"] {
            assert!(rows.iter().all(|row| row[key].is_number()), "{name} {key}: {rows:?}");
        }
        let results = json(&test.read(&format!("{name}/results.json")));
        assert!(results["before"]["eval_rouge/rouge1"].is_number(), "{results}");
        assert_eq!(results["best"]["metric"], "eval_rouge/rouge1");
        assert_eq!(results["data"], "iwslt2017en_de of pairs");
        // The model's completions are stored with their metrics.
        let kept = test.succeeds(&["runs", "rollouts", name, "--runs-dir", ".", "--eval", "--json"]);
        assert!(kept.lines().count() >= 12 && kept.lines().all(|line| line.contains("rouge/rouge1")), "{kept}");
        // The last measurement of the run equals the result of `eval` on its model.
        let eval = ["eval", "--task", TASK, "--data", "pairs", "--max-new-tokens", "4", "--temperature", "0", "--json"];
        let directory = format!("{name}/model");
        let again = ["--model", &directory, "--metrics", "rouge", "--metric-option", "rouge_type=rouge1"];
        let again = json(&test.succeeds(&[&eval[..], &again].concat()));
        let last = rows.last().expect("a row")["eval_rouge/rouge1"].as_f64().expect("a number");
        assert!((again["rouge/rouge1"].as_f64().expect("a number") - last).abs() < 1e-9, "{name}: {again} {last}");
    }
    let run =
        test.run(&["sft", "--model", &model, "--task", TASK, "--data", "pairs", "--evaluation-metrics", "[roug]"]);
    assert!(run.code == 2 && run.stderr.contains("did you mean `rouge`?"), "{run:?}");
}

/// Configuration of a run with training rows, held-out rows and test rows.
fn with_test_rows(method: &str, more: &str) -> String {
    let model = fixture_model("t5");
    format!(
        "model: {model}\ndata: {{ task: {TASK}, from: pairs }}\neval_data: {{ from: pairs, split: train }}\ntest_data: {{}}\n\
         train: {{ max_steps: 3, batch_size: 4, eval_steps: 2, save_steps: 1, keep_checkpoints: 3, learning_rate: 0.01,\n\
         evaluation: {{ metrics: [ter], max_new_tokens: 4, temperature: 0 }}, {more} }}\n{method}\n"
    )
}

#[test]
fn the_test_split_is_measured_before_and_after_training() {
    let test = pairs();
    for language in ["de", "en"] {
        let file = |split: &str| test.path().join(format!("pairs/{split}.{language}"));
        std::fs::copy(file("val"), file("test")).expect("a test split");
    }
    for (name, method) in [
        ("sft", "method: { sft: {} }"),
        ("grpo", "method: { grpo: { max_new_tokens: 6, group_size: 2 } }\nreward: { metric: { chrf: {} } }"),
    ] {
        test.write("run.yml", &format!("{}output_dir: {name}\n", with_test_rows(method, "")));
        test.succeeds(&["train", "run.yml", "--quiet"]);
        let rows = logged(&test, name);
        let steps = |key: &str| -> Vec<u64> {
            rows.iter().filter(|row| row[key].is_number()).filter_map(|row| row["step"].as_u64()).collect()
        };
        assert_eq!((steps("test_ter"), steps("eval_ter")), (vec![0, 3], vec![0, 2, 3]), "{name}: {rows:?}");
        let own = if name == "sft" { "test_loss" } else { "test_reward" };
        assert_eq!(steps(own), [0, 3], "{name}: {rows:?}");
        let results = json(&test.read(&format!("{name}/results.json")));
        assert!(results["before"]["test_ter"].is_number() && results["after"]["test_ter"].is_number(), "{results}");
        assert!(results["last"]["test_ter"].is_null(), "{results}");
        let report = test.read(&format!("{name}/report.html"));
        assert!(report.contains("test_<wbr>ter"), "{report}");
        // Completions of test rows are stored separately from those of other evaluations.
        let kept = test.succeeds(&["runs", "rollouts", name, "--runs-dir", ".", "--test", "--limit", "100", "--json"]);
        let kept: Vec<u64> = kept.lines().filter_map(|line| json(line)["step"].as_u64()).collect();
        let each = kept.len() / 2;
        assert!(each > 0 && kept == [vec![0; each], vec![3; each]].concat(), "{kept:?}");

        // A resumed run does not measure the start again, and measures the end once.
        let whole = test.read(&format!("{name}/metrics.jsonl"));
        for step in ["1", "2", "3"] {
            let resume = ["runs", "resume", name, "--runs-dir", ".", "--resume-from", step, "--quiet"];
            test.succeeds(&resume);
            let now = logged(&test, name);
            let numbers = |rows: &[Value]| -> Vec<Value> {
                let of = |row: &Value| json!({ "step": row["step"], "ter": row["test_ter"], "own": row[own] });
                rows.iter().map(of).collect()
            };
            assert_eq!(numbers(&now), numbers(&rows), "{name} from {step}: {whole}");
            let after = json(&test.read(&format!("{name}/results.json")));
            assert_eq!((&after["before"], &after["after"]), (&results["before"], &results["after"]), "{name}");
        }
    }
}

#[test]
fn an_early_stop_measures_the_test_split_and_nothing_else_needs_held_out_rows() {
    let test = pairs();
    test.write("test.jsonl", r#"{"translation": {"en": "A green shirt.", "de": "Ein Hemd."}}"#);
    let config = |more: &str, output: &str| {
        with_test_rows("method: { sft: {} }", more).replace("test_data: {}", "test_data: test.jsonl") + output
    };
    // With a learning rate near 0, nothing improves from the second evaluation on.
    let early = "early_stopping_patience: 1";
    test.write("run.yml", &config(early, "output_dir: early\n").replace("learning_rate: 0.01", "learning_rate: 1e-30"));
    test.succeeds(&["train", "run.yml", "--quiet"]);
    let steps: Vec<Value> = logged(&test, "early")
        .iter()
        .filter(|row| row["test_loss"].is_number())
        .map(|row| row["step"].clone())
        .collect();
    assert_eq!(steps, [json!(0), json!(2)], "{}", test.read("early/metrics.jsonl"));

    test.write(
        "run.yml",
        &config("eval_fraction: 0", "output_dir: alone\n").replace("eval_steps: 2", "eval_steps: -1"),
    );
    test.succeeds(&["train", "run.yml", "--quiet"]);
    let results = json(&test.read("alone/results.json"));
    assert!(results["before"]["test_loss"].is_number() && results["after"]["test_loss"].is_number(), "{results}");
    assert!(results["before"]["eval_loss"].is_null() && results["best"].is_null(), "{results}");

    test.write("test.jsonl", r#"{"translation": {"en": "Another.", "de": "Anders."}}"#);
    let run = test.run(&["runs", "resume", "alone", "--runs-dir", ".", "--resume-from", "1", "--quiet"]);
    assert!(run.code == 1 && run.stderr.contains("the 1 test rows differ from those before"), "{run:?}");
}
