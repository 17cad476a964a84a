//! Tasks from command to command: shown, trained on, evaluated with metrics.

use serde_json::Value;

use crate::harness::{CliTest, fixture_model};

/// A few translations as two text files a split.
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

/// What `eval` says of a model's completions is what it says of the same completions as rows.
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
    // The task's own metrics, of completions that are searched for with beams.
    let own =
        json(&test.succeeds(&[&eval[..], &["--num-beams", "2", "--temperature", "0", "--bootstrap", "0"]].concat()));
    for key in ["meteor", "bleu", "sacre_bleu", "ter", "diversity/unique-1"] {
        assert!(own[key].is_number(), "{key}: {own}");
    }
    let table = test.succeeds(&[&eval[..9], &["--metrics", "chrf"]].concat());
    assert!(table.contains("length") && table.contains("95 % interval") && table.contains("chrf"), "{table}");
}

/// RL4LMs' `causal_perplexity`: of the model that is evaluated, on the references.
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
    // The model as it starts and as it ends, whether it is named or the one that is evaluated.
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
    // Logprobs of the tokens of every step; at first the policy is the reference.
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
    for row in &rows[1..] {
        let [mean, least] = ["logprobs/mean", "logprobs/min"].map(|key| number(row, key));
        assert!(least <= mean && mean < 0.0 && number(row, "logprobs/std") >= 0.0, "{row}");
    }
    for part in ["mean", "std"] {
        let own = number(&rows[1], &format!("logprobs/{part}"));
        assert!((own - number(&rows[1], &format!("logprobs/reference_{part}"))).abs() < 1e-4, "{}", rows[1]);
    }
    // Nothing has a likelihood of a text alone that has an encoder; and nothing is evaluated where no model is named.
    test.write("run.yml", &format!("{}method: {{ sft: {{}} }}\noutput_dir: sft\n", config(&fixture_model("t5"))));
    let run = test.run(&["train", "run.yml", "--quiet"]);
    assert!(run.code != 0 && run.stderr.contains("but this one has an encoder"), "{run:?}");
    test.write("rows.jsonl", "{\"prediction\": \"tea\", \"references\": [\"tea\"]}\n");
    let run = test.run(&["eval", "--data", "rows.jsonl", "--metrics", "perplexity"]);
    assert!(run.code != 0 && run.stderr.contains("names no model, and no model is evaluated here"), "{run:?}");
}

#[test]
fn evaluations_of_training_measure_completions() {
    let test = pairs();
    let model = fixture_model("t5");
    let config = format!(
        "model: {model}\ndata: {{ task: {TASK}, from: pairs }}\n\
         train: {{ max_steps: 2, batch_size: 4, eval_steps: 1, learning_rate: 0.01, best_metric: eval_rouge/rouge1,\n\
         evaluation: {{ metrics: [{{ rouge: {{ rouge_type: rouge1 }} }}, ter], max_new_tokens: 4, temperature: 0 }} }}\n"
    );
    for (name, method) in [
        ("sft", "method: { sft: {} }"),
        ("grpo", "method: { grpo: { max_new_tokens: 6, group_size: 2 } }\nreward: { metric: { chrf: {} } }"),
    ] {
        test.write("run.yml", &format!("{config}{method}\noutput_dir: {name}\n"));
        test.succeeds(&["train", "run.yml", "--quiet"]);
        let rows = logged(&test, name);
        for key in ["eval_rouge/rouge1", "eval_ter", "eval_length"] {
            assert!(rows.iter().all(|row| row[key].is_number()), "{name} {key}: {rows:?}");
        }
        let results = json(&test.read(&format!("{name}/results.json")));
        assert!(results["before"]["eval_rouge/rouge1"].is_number(), "{results}");
        assert_eq!(results["best"]["metric"], "eval_rouge/rouge1");
        assert_eq!(results["data"], "iwslt2017en_de of pairs");
        // What the model wrote is kept, with what metrics say of it.
        let kept = test.succeeds(&["runs", "rollouts", name, "--runs-dir", ".", "--eval", "--json"]);
        assert!(kept.lines().count() >= 12 && kept.lines().all(|line| line.contains("rouge/rouge1")), "{kept}");
        // What the run measured at its end is what `eval` says of its model.
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
