//! From feedback to a policy: files for reward models, reward models, and PPO with rewards of segments.

use serde_json::{Value, json};

use crate::harness::{CliTest, fixture_model};

fn start(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus/tests/fixtures/parity/trajectories/classify");
    format!("{folder}/{name}")
}

/// Rows with feedback whose answers have one or two sentences.
pub fn feedback() -> String {
    let row = |i: usize| {
        let answer = ["The tea is warm. It is cold.", "It is it. The tea is warm."][i % 2];
        let cold = answer.find("It is").expect("there");
        let end = cold + answer[cold..].find('.').expect("a sentence") + 1;
        json!({
            "question": "is it",
            "passages": [["Tea", "The tea is warm.", "It is warm."]],
            "gold": "The tea is warm.",
            "prediction 1": answer, "prediction 2": "The tea is warm.", "prediction 3": "It is", "prediction 4": "A cup",
            "feedback": {
                "errors": [{ "error type": "Irrelevant", "explanation": "", "start": cold, "end": end }],
                "missing-info": [], "corrected-prediction": "The tea is warm."
            },
            "preference": [2, 1, 1, 1, 1, 0],
        })
    };
    Value::Array((0..8).map(row).collect()).to_string()
}

pub const PROMPTS: &str = r#"[
    {"question": "is it", "passages": [], "answer": ["The tea is warm.", "It is."]},
    {"question": "who sings", "passages": [{"wikipage": "Tea", "content": "The tea."}], "answer": ["Nobody."]}
]"#;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

/// `eval` measures separators alone where it is told which label stands elsewhere.
fn segments_are_measured_as_in_training(test: &CliTest, last: &Value) {
    let eval =
        ["eval", "--model", "relevance/model", "--data", "r1.jsonl", "--json", "--label-column", "feedback_tags"];
    let labels = ["--ignored-label", "Ignore", "--negative-label", "O"];
    let measured: Value = serde_json::from_str(&test.succeeds(&[&eval[..], &labels].concat())).expect("JSON");
    for key in ["accuracy", "detection/accuracy", "detection/f1", "detection/support", "recall/NF-ERR"] {
        assert_eq!(measured[key], last[format!("eval_{key}")], "{key}: {measured}");
    }
    // All as errors, or none: the shares of both kinds of segments.
    let baseline = |kind: &str| measured[format!("detection/all_{kind}_accuracy")].as_f64().expect("a baseline");
    let segments = measured["detection/support"].as_f64().expect("a count") / baseline("positive");
    assert!(baseline("positive") > 0.0 && (segments - segments.round()).abs() < 1e-9, "{measured}");
    assert!((baseline("positive") + baseline("negative") - 1.0).abs() < 1e-12, "{measured}");
    let all: Value = serde_json::from_str(&test.succeeds(&eval)).expect("JSON");
    assert!(all["accuracy"].as_f64() < measured["accuracy"].as_f64() && all["detection/f1"].is_null(), "{all}");
    let run = test.run(&[&eval[..], &["--negative-label", "Fine"]].concat());
    assert!(run.code == 1 && run.stderr.contains("`negative_label`: no label `Fine`"), "{run:?}");
}

#[test]
fn feedback_becomes_reward_models_and_they_a_policy() {
    let test = CliTest::with("feedback.json", &feedback());
    test.write("prompts.json", PROMPTS);
    for (to, file) in [("r1", "r1.jsonl"), ("preference", "pairs.jsonl")] {
        test.succeeds(&["data", "convert", "feedback.json", "--to", to, "-o", file, "--min-span-words", "1"]);
    }
    let short = ["--max-steps", "4", "--batch-size", "4", "--quiet", "--learning-rate=0.001"];
    test.write(
        "relevance.yml",
        &format!(
            "model: {}\ndata: r1.jsonl\neval_data: r1.jsonl\noutput_dir: relevance\nmethod:\n  classify:\n    task: tokens\n    \
             label_column: feedback_tags\n    labels: [Ignore, NF-ERR, O]\n    ignored_label: Ignore\n    negative_label: O\n",
            start("longformer-segments")
        ),
    );
    test.succeeds(&[&["train", "relevance.yml"][..], &short].concat());
    let config: Value = serde_json::from_str(&test.read("relevance/model/config.json")).expect("JSON");
    assert_eq!((&config["id2label"]["0"], &config["gradus"]["max_length"]), (&"Ignore".into(), &30.into()));
    assert_eq!(config["gradus"]["sentences"], "gradus-rules-1");
    let best: Value = serde_json::from_str(&test.read("relevance/best/config.json")).expect("JSON");
    assert_eq!(best["gradus"], config["gradus"], "the best model is read as the last one is");
    let logged = lines(&test.read("relevance/metrics.jsonl"));
    let measured = logged.last().expect("a row");
    assert!(measured["eval_detection/f1"].is_number() && measured["eval_f1/NF-ERR"].is_number(), "{measured}");
    segments_are_measured_as_in_training(&test, measured);

    // With its passages, no answer fits into the model's 30 positions. Nothing can be trained on, and the message reports what would fit.
    test.succeeds(&["data", "convert", "feedback.json", "--to", "r2", "-o", "r2.jsonl"]);
    let factuality = test.read("relevance.yml").replace("r1.jsonl", "r2.jsonl").replace("NF-ERR", "F-ERR");
    test.write("factuality.yml", &factuality.replace("output_dir: relevance", "output_dir: factuality"));
    let run = test.run(&[&["train", "factuality.yml"][..], &short].concat());
    let message = "r2.jsonl: all 16 rows are longer than 30 tokens (`max_length`); the shortest has ";
    assert!(run.code != 0 && run.stderr.contains(message), "{}", run.stderr);
    // The passages leave no room in 30 positions.
    let prompts =
        [("context: wikipage: Tea text: The tea is warm. It is warm. ", ""), ("question: ", ""), ("answer: ", "")];
    let pairs = prompts.iter().fold(test.read("pairs.jsonl"), |text, (from, to)| text.replace(from, to));
    test.write("pairs.jsonl", &pairs);
    let model = start("longformer-pairs");
    let reward = ["reward", "--model", &model, "--data", "pairs.jsonl", "--output-dir", "ranker"];
    test.succeeds(
        &[
            &reward[..],
            &short,
            &["--eval-data", "pairs.jsonl", "--eval-steps", "1", "--save-steps", "1", "--best-metric", "eval_loss"],
        ]
        .concat(),
    );
    scores_are_measured_on_the_best_model(&test);
    let config: Value = serde_json::from_str(&test.read("ranker/model/config.json")).expect("JSON");
    assert!(config["gradus"]["score_std"].as_f64().is_some_and(|std| std > 0.0), "{config}");
    assert_eq!(config["architectures"][0], "LongformerForSequenceClassification");
    test.write(
        "rows.jsonl",
        "{\"prompt\": \"is it \", \"completion\": \"warm\"}\n{\"prompt\": \"is it \", \"completion\": \"cold\"}\n",
    );
    let scored = lines(&test.succeeds(&["score", "--reward-model", "ranker/model", "--data", "rows.jsonl"]));
    assert!(scored.len() == 2 && scored[0]["reward"] != scored[1]["reward"], "{scored:?}");
    let measured =
        test.succeeds(&["--json", "eval", "--model", "ranker/model", "--data", "pairs.jsonl", "--max-length", "30"]);
    assert!(measured.contains("longer_wins_accuracy"), "{measured}");

    test.write(
        "ppo.yml",
        &format!(
            "model: {}\ndata: prompts.json\neval_data: prompts.json\noutput_dir: ppo\nmethod: {{ ppo: {{ max_new_tokens: 6, group_size: 2 }} }}\n\
             reward:\n  fine_grained:\n    relevance:\n      model: relevance/model\n      prompt: 'question: {{question}} answer:'\n      \
             values: {{ O: 0.5, NF-ERR: -0.5 }}\n    preference:\n      model: ranker/model\n      text: '{{reward_prompt}} answer: {{completion}}'\n      \
             scale: 0.3\n      weight: 0\ntrain: {{ max_steps: 2, batch_size: 2, learning_rate: 1e-3 }}\n",
            fixture_model("t5")
        ),
    );
    test.succeeds(&["train", "ppo.yml", "--quiet"]);
    let logged = lines(&test.read("ppo/metrics.jsonl"));
    let row = logged.last().expect("steps");
    for name in [
        "rewards/relevance/mean",
        "rewards/relevance/segments",
        "rewards/preference/score",
        "rewards/fine_grained/mean",
    ] {
        assert!(row[name].is_number(), "{name}: {row}");
    }
    assert!(row["eval_rewards/preference/mean"].is_number(), "{row}");
    // A reward with weight 0 is measured but adds nothing.
    assert_eq!(row["reward"], row["rewards/relevance/mean"]);
    let rollouts = test.succeeds(&["runs", "rollouts", "ppo", "--json"]);
    assert!(rollouts.contains("\"relevance\"") && rollouts.contains("\"preference\""), "{rollouts}");

    // A model with a different label map is rejected, and its labels are listed.
    let text =
        test.read("ppo.yml").replace("NF-ERR: -0.5", "F-ERR: -0.5").replace("output_dir: ppo", "output_dir: other");
    test.write("other.yml", &text);
    let run = test.run(&["train", "other.yml", "--quiet"]);
    assert!(
        run.code != 0 && run.stderr.contains("no label `F-ERR`: the classifier has `Ignore`, `NF-ERR`, `O`"),
        "{}",
        run.stderr
    );
    let config = test.read("relevance/model/config.json").replace("gradus-rules-1", "spacy-3.5.4");
    test.write("relevance/model/config.json", &config);
    test.write("parsed.yml", &test.read("ppo.yml").replace("output_dir: ppo", "output_dir: parsed"));
    let run = test.run(&["train", "parsed.yml", "--quiet"]);
    assert!(run.code != 0 && run.stderr.contains("was trained on sentences split by `spacy-3.5.4`"), "{}", run.stderr);
    test.write("wrong.yml", &test.read("ppo.yml").replace("scale: 0.3", "std: 0\n      scael: 2"));
    let run = test.run(&["config", "check", "wrong.yml"]);
    for part in ["unknown key `scael`", "did you mean `scale`"] {
        assert!(run.code == 2 && run.stderr.contains(part), "{part}: {}", run.stderr);
    }
}

/// Checks that the mean and standard deviation stored with a reward model match its own scores of the training pairs.
fn scores_are_measured_on_the_best_model(test: &CliTest) {
    let results: Value = serde_json::from_str(&test.read("ranker/results.json")).expect("JSON");
    let best = results["best"]["step"].as_u64().expect("a step");
    // If no evaluation beat the start, the last model is the only one.
    let names: &[&str] = if best == 0 { &["model"] } else { &["model", "best"] };
    let stated: Vec<_> = names
        .iter()
        .map(|name| {
            let dir = format!("ranker/{name}");
            let config: Value = serde_json::from_str(&test.read(&format!("{dir}/config.json"))).expect("JSON");
            let scored = lines(&test.succeeds(&["score", "--reward-model", &dir, "--data", "pairs.jsonl"]));
            let scores: Vec<f64> = scored
                .iter()
                .flat_map(|row| ["chosen", "rejected"].map(|side| row[side]["reward"].as_f64().expect("a score")))
                .collect();
            let mean = scores.iter().sum::<f64>() / scores.len() as f64;
            let std = (scores.iter().map(|score| (score - mean).powi(2)).sum::<f64>() / scores.len() as f64).sqrt();
            let known = ["score_mean", "score_std"].map(|key| config["gradus"][key].as_f64().expect("measured"));
            assert!(
                (known[0] - mean).abs() < 1e-6 && (known[1] - std).abs() < 1e-6,
                "{name}: {known:?}, not {mean} and {std}"
            );
            assert_eq!(config["gradus"]["add_eos"], true);
            known
        })
        .collect();
    if best == 0 {
        return;
    }
    assert_eq!(stated[0] == stated[1], best == 4, "the last one is the best one or has other scores");
    // A checkpoint shares files with the best model, but stays as it was written.
    let at = "ranker/checkpoints/step-000004/best/config.json";
    let kept: Value = serde_json::from_str(&test.read(at)).expect("JSON");
    assert!(kept["gradus"]["score_mean"].is_null() && kept["gradus"]["max_length"].is_number(), "{kept}");
}

/// The program in docs/fine-grained.md subtracts a point for every sentence that is a question.
#[test]
fn the_program_of_the_documents_judges_sentences() {
    let docs =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fine-grained.md")).expect("there");
    let program = docs.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a program");
    let has_python =
        std::process::Command::new("python3").arg("--version").output().is_ok_and(|it| it.status.success());
    if !has_python {
        return crate::skip::skipped("python3", "the program of docs/fine-grained.md is not run");
    }
    let test = CliTest::with("prompts.jsonl", "{\"prompt\": \"the sun rises\"}\n");
    test.write("questions.py", program);
    let model = fixture_model("t5");
    let ppo = ["grpo", "--model", &model, "--data", "prompts.jsonl", "--output-dir", "run", "--max-new-tokens", "6"];
    let reward =
        ["--reward-command", "python3 questions.py", "--max-steps", "1", "--batch-size", "1", "--group-size", "2"];
    test.succeeds(&[&ppo[..], &reward, &["--quiet"]].concat());
    let logged = lines(&test.read("run/metrics.jsonl"));
    assert!(logged[0]["rewards/questions/mean"].is_number(), "{}", logged[0]);
    // Computed by hand: two of three sentences are questions, and their points belong to their characters.
    let request = json!({ "prompt": "", "completion": "Tea? Warm tea. Wärmer?" }).to_string();
    let mut child = std::process::Command::new("python3")
        .arg(test.path().join("questions.py"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3 runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), format!("{request}\n").as_bytes())
        .expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer, json!({ "questions": [[0, 4, -1.0], [15, 22, -1.0]] }));
}

#[test]
fn a_scorer_judges_sentences_and_is_asked_once_for_each_text() {
    let test =
        CliTest::with("prompts.jsonl", "{\"prompt\": \"The tea\"}\n{\"prompt\": \"A cup\"}\n{\"prompt\": \"Is it\"}\n");
    let bert = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus/tests/fixtures/parity/encoders/bert");
    let scorer = format!(
        "{{ recorded: {{ file: toxicity.jsonl, otherwise: {{ classifier: {{ model: {bert}, label: bad }} }} }} }}"
    );
    test.write(
        "ppo.yml",
        &format!(
            "model: {}\ndata: prompts.jsonl\neval_data: prompts.jsonl\noutput_dir: ppo\nmethod: {{ ppo: {{ max_new_tokens: 8 }} }}\n\
             reward: {{ toxicity: {{ scorer: {scorer}, segments: sentence }} }}\n\
             train:\n  max_steps: 2\n  batch_size: 2\n  learning_rate: 1e-3\n  evaluation:\n    samples: 3\n    metrics:\n      - distinct\n      \
             - toxicity: {{ scorer: {scorer} }}\n",
            fixture_model("gpt2")
        ),
    );
    test.succeeds(&["train", "ppo.yml", "--quiet"]);
    let logged = lines(&test.read("ppo/metrics.jsonl"));
    let row = logged.last().expect("steps");
    for name in [
        "rewards/toxicity/mean",
        "rewards/toxicity/score",
        "rewards/toxicity/segments",
        "eval_toxicity/max",
        "eval_toxicity/probability",
        "eval_toxicity/unscored",
        "eval_distinct/dist-2",
    ] {
        assert!(row[name].is_number(), "{name}: {row}");
    }
    // The rewards add up to −tox(y), in training and for three samples of each of three prompts.
    let near = |a: &str, b: &str| {
        let sum = row[a].as_f64().expect("a number") + row[b].as_f64().expect("a number");
        assert!(sum.abs() < 1e-5, "{a}, {b}: {row}");
    };
    near("rewards/toxicity/mean", "rewards/toxicity/score");
    near("eval_rewards/toxicity/mean", "eval_toxicity/mean");
    let recorded = lines(&test.read("toxicity.jsonl"));
    let texts: std::collections::BTreeSet<&str> = recorded.iter().filter_map(|line| line["text"].as_str()).collect();
    assert_eq!(texts.len(), recorded.len(), "each text once");
    assert!(recorded.iter().all(|line| line["scorer"] == format!("`bad` of {bert}")), "{recorded:?}");

    let eval =
        ["--json", "eval", "--model", &fixture_model("gpt2"), "--data", "prompts.jsonl", "--max-new-tokens", "8"];
    let more = ["--samples", "2", "--metrics", "toxicity", "--predictions", "said.jsonl", "--metric-option"];
    let measured = test.succeeds(&[&eval[..], &more, &[&format!("scorer={scorer}")]].concat());
    assert!(lines(&measured.replace('\n', " "))[0]["toxicity/max"].is_number(), "{measured}");
    assert_eq!(lines(&test.read("said.jsonl")).len(), 6);
    // The record alone answers the recorded requests, and no others.
    let alone = "scorer={ recorded: { file: toxicity.jsonl } }";
    let again = test.succeeds(&[&eval[..], &more, &[alone]].concat());
    assert_eq!(again, measured);
    let run = test.run(&[&eval[..], &more, &[alone], &["--seed", "7"]].concat());
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("toxicity.jsonl has no score for `"), "{}", run.stderr);
}
