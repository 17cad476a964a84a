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
