//! `gradus generate`, `gradus score` and `gradus eval`. Expected numbers from transformers 5.23.0 on the same directories.

mod quantize;

use serde_json::{Value, json};

use crate::harness::{CliTest, fixture_model};

/// Log-probabilities of " good and warm." after "The tea is" under the fixture `gpt2`.
const LOGPROBS: [f64; 9] = [
    -6.424187457071747,
    -7.464579408585634,
    -4.022359887462572,
    -6.720827748658926,
    -7.099895835701701,
    -5.743338014263185,
    -6.617431962331811,
    -6.494244090418328,
    -7.274071199020419,
];
/// Absolute tolerance between sampler, trainer and transformers in f32.
const TOLERANCE: f64 = 1e-4;

const ROW: &str = "{\"prompt\": \"The tea is\", \"completion\": \" good and warm.\"}\n";

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

#[track_caller]
fn assert_close(found: &Value, expected: f64) {
    let found = found.as_f64().expect("a number");
    assert!((found - expected).abs() < TOLERANCE, "{found} is not {expected}");
}

#[test]
fn score_prints_the_logprobs_of_each_completion() {
    let test = CliTest::with("rows.jsonl", &ROW.repeat(2));
    let rows = lines(&test.succeeds(&["score", "--model", &fixture_model("gpt2"), "--data", "rows.jsonl"]));
    assert_eq!(rows.len(), 2);
    for row in &rows {
        let logprobs = row["logprobs"].as_array().expect("a list");
        assert_eq!(logprobs.len(), LOGPROBS.len());
        for (found, expected) in logprobs.iter().zip(LOGPROBS) {
            assert_close(found, expected);
        }
        assert_close(&row["sum"], -57.86093560351433);
        assert_close(&row["mean"], -6.428992844834926);
        assert_eq!(row.as_object().expect("an object").len(), 3);
    }
}

#[test]
fn dropout_of_the_tokenizer_is_left_out_with_a_warning() {
    let test = CliTest::with("rows.jsonl", &ROW.repeat(2));
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        let bytes = std::fs::read(std::path::Path::new(&fixture_model("gpt2")).join(file)).expect("the fixture");
        std::fs::create_dir_all(test.path().join("m")).expect("a directory");
        std::fs::write(test.path().join("m").join(file), bytes).expect("written");
    }
    let tokenizer = test.read("m/tokenizer.json");
    let dropping = tokenizer.replace("\"dropout\": null", "\"dropout\": 1.0");
    assert_ne!(dropping, tokenizer);
    test.write("m/tokenizer.json", &dropping);
    let run = test.run(&["score", "--model", "m", "--data", "rows.jsonl"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    lines(&run.stdout).iter().for_each(|row| assert_close(&row["sum"], -57.86093560351433));
    let warning = "m/tokenizer.json: the tokenizer leaves out merges at random (`dropout` 1)";
    assert_eq!(run.stderr.matches(warning).count(), 1, "{}", run.stderr);
    // Files of a tokenizer are copied unchanged.
    let saves = ["sft", "--model", "m", "--data", "rows.jsonl", "--output-dir", "run", "--max-steps", "1"];
    test.succeeds(&saves);
    assert_eq!(test.read("run/model/tokenizer.json"), dropping);
}

#[test]
fn score_takes_tokens_with_a_mask() {
    let row = "{\"input_ids\": [282, 262, 73, 69, 275, 290, 83], \"completion_mask\": [0, 0, 0, 0, 0, 1, 1]}\n";
    let test = CliTest::with("rows.jsonl", row);
    let rows = lines(&test.succeeds(&["score", "--model", &fixture_model("gpt2"), "--data", "rows.jsonl"]));
    assert_close(&rows[0]["logprobs"][0], LOGPROBS[0]);
    assert_close(&rows[0]["logprobs"][1], LOGPROBS[1]);
}

#[test]
fn score_prints_rewards_and_adds_nothing_unless_told() {
    let test = CliTest::with("rows.jsonl", ROW);
    let model = fixture_model("qwen3-reward");
    let score = |more: &[&str]| {
        lines(&test.succeeds(&[&["score", "--reward-model", &model, "--data", "rows.jsonl"], more].concat()))
    };
    assert_close(&score(&[])[0]["reward"], 0.3626072406768799);
    assert_close(&score(&["--add-eos"])[0]["reward"], -1.2538586854934692);
}

#[test]
fn rewards_are_read_where_training_read_them_and_pairs_as_pairs() {
    let rows: String = (0..12)
        .map(|i| {
            format!("{{\"prompt\": \"Question {i}: \", \"chosen\": \"a good answer\", \"rejected\": \"no {i}\"}}\n")
        })
        .collect();
    let test = CliTest::with("pairs.jsonl", &rows);
    let base = fixture_model("qwen3");
    let train = |out: &str, more: &[&str]| {
        let args = ["reward", "--model", &base, "--data", "pairs.jsonl", "--max-steps", "1", "--batch-size", "2"];
        let rest = ["--eval-fraction", "0.2", "--output-dir", out];
        test.succeeds(&[&args[..], &rest[..], more].concat());
    };
    train("whole", &[]);
    train("adapted", &["--lora-rank", "2"]);
    test.succeeds(&["merge", "--model", &base, "--adapter", "adapted/model", "--output", "merged"]);
    // The measurements of the held-out pairs during training are the reference.
    for (run, model) in [("whole", "whole/model"), ("adapted", "adapted/model"), ("adapted", "merged")] {
        let measured = lines(&test.read(&format!("{run}/evaluation/pairs.jsonl")));
        let score = |more: &[&str]| {
            lines(&test.succeeds(&[&["score", "--reward-model", model, "--data", "pairs.jsonl"], more].concat()))
        };
        let (scored, bare) = (score(&[]), score(&["--no-add-eos"]));
        assert_eq!(scored, score(&["--add-eos"]), "{model}");
        for held_out in &measured {
            let row = held_out["row"].as_u64().unwrap() as usize - 1;
            for side in ["chosen", "rejected"] {
                assert_close(&scored[row][side]["reward"], held_out[side].as_f64().unwrap());
                assert_ne!(scored[row][side], bare[row][side], "{model}: the end counts");
            }
        }
        assert!(!measured.is_empty());
    }
    // The path of a run selects its model.
    let of_run = lines(&test.succeeds(&["score", "--reward-model", "whole", "--data", "pairs.jsonl"]));
    assert_eq!(of_run, lines(&test.succeeds(&["score", "--reward-model", "whole/model", "--data", "pairs.jsonl"])));
    let evaluated = |model: &str| test.succeeds(&["eval", "--model", model, "--data", "pairs.jsonl", "--json"]);
    assert_eq!(evaluated("whole"), evaluated("whole/model"));
    let rows = lines(&test.succeeds(&["score", "--model", &base, "--data", "pairs.jsonl"]));
    test.write("one.jsonl", "{\"prompt\": \"Question 3: \", \"completion\": \"no 3\"}\n");
    let one = lines(&test.succeeds(&["score", "--model", &base, "--data", "one.jsonl"]));
    assert_eq!((rows.len(), &rows[3]["rejected"]), (12, &one[0]), "a pair is two rows");
}

#[test]
fn columns_have_other_names_wherever_rows_are_read() {
    let test = CliTest::with(
        "theirs.jsonl",
        "{\"q\": \"The tea is\", \"a\": \" good.\"}\n{\"q\": \"A cup\", \"a\": \" is warm\"}\n",
    );
    test.write(
        "ours.jsonl",
        "{\"prompt\": \"The tea is\", \"completion\": \" good.\"}\n{\"prompt\": \"A cup\", \"completion\": \" is warm\"}\n",
    );
    let model = fixture_model("gpt2");
    let names = ["--column", "prompt=q", "--column", "completion=a"];
    for command in [
        &["score", "--model", &model, "--data"][..],
        &["eval", "--json", "--quiet", "--model", &model, "--data"],
        &[
            "eval",
            "--json",
            "--quiet",
            "--model",
            &model,
            "--metrics",
            "exact_match",
            "--max-new-tokens",
            "4",
            "--data",
        ],
        &["eval", "--json", "--quiet", "--metrics", "dates", "--data"],
    ] {
        let ours = test.succeeds(&[command, &["ours.jsonl"]].concat());
        assert_eq!(test.succeeds(&[command, &["theirs.jsonl"], &names].concat()), ours, "{command:?}");
    }
    let generate = ["generate", "--model", &model, "--max-new-tokens", "4", "--prompts"];
    let ours = test.succeeds(&[&generate[..], &["ours.jsonl"]].concat());
    assert_eq!(test.succeeds(&[&generate[..], &["theirs.jsonl"], &names[..2]].concat()), ours);

    let wrong = ["--column", "prompt=question"];
    for command in [
        &["score", "--model", &model, "--data"][..],
        &["eval", "--quiet", "--metrics", "chrf", "--data"],
        &["generate", "--model", &model, "--prompts"],
    ] {
        test.fails(
            &[command, &["theirs.jsonl"], &wrong].concat(),
            1,
            "error: theirs.jsonl:1: `prompt=question`: there is no column `question` (found `q`, `a`)\n",
        );
    }
    let run = test.run(&["generate", "--model", &model, "--prompt", "The tea", "--column", "prompt=q"]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(
        run.stderr.contains("`--column` needs `--prompts`: a prompt on the command line has no columns"),
        "{}",
        run.stderr
    );
    let run = test.run(&["score", "--model", &model, "--data", "theirs.jsonl", "--column", "prompt"]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(
        run.stderr.contains("`--column prompt`: expected NAME=COLUMN, such as `prompt=question`"),
        "{}",
        run.stderr
    );
}

#[test]
fn score_says_what_is_wrong() {
    let test = CliTest::with("rows.jsonl", "{\"prompt\": \"a\"}\n");
    let run = test.run(&["score", "--data", "rows.jsonl"]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    let run = test.run(&["score", "--model", &fixture_model("gpt2"), "--data", "rows.jsonl"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(
        run.stderr.starts_with("error: rows.jsonl:1: missing column `completion` (found `prompt`)"),
        "{}",
        run.stderr
    );
    test.fails(
        &["score", "--model", "./nowhere", "--data", "rows.jsonl"],
        1,
        "error: ./nowhere: no such model directory\nhint: a model directory holds `config.json` and `model.safetensors`\n",
    );
}

#[test]
fn generate_is_greedy_at_temperature_0_and_keeps_the_order() {
    let test = CliTest::with(
        "prompts.jsonl",
        "{\"prompt\": \"The tea is\"}\n{\"prompt\": \"A\"}\n{\"prompt\": \"The tea is\"}\n",
    );
    let arguments = ["generate", "--model", &fixture_model("gpt2"), "--prompts", "prompts.jsonl"];
    let rows = lines(&test.succeeds(&[&arguments[..], &["--max-new-tokens", "8", "--temperature", "0"]].concat()));
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0]["prompt"], "The tea is");
    assert_eq!(rows[1]["prompt"], "A");
    assert_eq!(rows[0], rows[2]);
    assert_eq!(rows[0]["completion_ids"], serde_json::json!([275, 178, 96, 231, 148, 96, 38, 207]));
    assert_eq!(rows[0]["completion"], " is\u{fffd}|\u{fffd}\u{fffd}|B\u{e}");
    assert_eq!(rows[0]["logprobs"].as_array().expect("a list").len(), 8);
    assert_eq!(rows[0]["stop"], "length");
}

#[test]
fn generate_takes_prompts_as_they_are_typed() {
    let test = CliTest::with("prompts.jsonl", "{\"prompt\": \"The tea is\"}\n{\"prompt\": \"-a cup\"}\n");
    test.write("prompts.txt", "The tea is\r\n\n-a cup");
    let model = fixture_model("gpt2");
    let generate = |prompts: &[&str]| {
        test.succeeds(&[&["generate", "--model", &model, "--max-new-tokens", "6"], prompts].concat())
    };
    let expected = generate(&["--prompts", "prompts.jsonl"]);
    assert_eq!(lines(&expected).len(), 2);
    assert_eq!(generate(&["--prompt", "The tea is", "--prompt", "-a cup"]), expected);
    assert_eq!(generate(&["--prompts", "prompts.txt"]), expected);
    test.write("marked.txt", "\u{feff}The tea is\n-a cup\n");
    assert_eq!(generate(&["--prompts", "marked.txt"]), expected, "a byte order mark is no part of a prompt");
    let mut command = test.command(&["generate", "--model", &model, "--max-new-tokens", "6", "--prompt", "-", "-q"]);
    command.stdin(std::fs::File::open(test.write("stdin", "The tea is\n")).expect("a file"));
    let piped = command.output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&piped.stdout).lines().next(), expected.lines().next());
    let twice = ["generate", "--model", &model, "--prompt", "-", "--prompt", "B", "--prompt", "-"];
    let message = "`--prompt -` is given 2 times, but stdin has one prompt";
    test.fails(&twice, 1, &format!("error: {message}\nhint: leave out all but one, or pass a file to `--prompts`\n"));
    let run = test.run(&["generate", "--model", &model]);
    assert!(run.stderr.contains("<--prompts <PATH>|--prompt <TEXT>>"), "{}", run.stderr);
    for arguments in [
        &["generate", "--model", &model, "--prompts", "prompts.jsonl"][..],
        &["score", "--model", &model, "--data", "prompts.jsonl"],
        &["eval", "--model", &model, "--data", "prompts.jsonl"],
        &["quantize", "--model", &model, "--data", "prompts.jsonl", "--format", "int8", "--output", "q"],
    ] {
        let run = test.run(&[arguments, &["--max-rows", "0"]].concat());
        let expected = "invalid value '0' for '--max-rows <N>': expected a whole number from 1";
        assert!(run.code == 2 && run.stderr.contains(expected), "{arguments:?}: {}", run.stderr);
    }
}

#[test]
fn generate_repeats_itself_with_a_seed() {
    let test = CliTest::with("prompts.jsonl", "{\"prompt\": \"The tea is\"}\n");
    let model = fixture_model("gpt2");
    let sample = |seed: &str| {
        let arguments = ["generate", "--model", &model, "--prompts", "prompts.jsonl", "--max-new-tokens", "6"];
        test.succeeds(&[&arguments[..], &["--group-size", "3", "--seed", seed]].concat())
    };
    assert_eq!(sample("1"), sample("1"));
    assert_ne!(sample("1"), sample("2"));
    assert_eq!(sample("1").lines().count(), 3);
}

#[test]
fn generate_searches_with_beams() {
    let test = CliTest::with("prompts.jsonl", "{\"prompt\": \"The tea is\"}\n{\"prompt\": \"The tea is\"}\n");
    let model = fixture_model("gpt2");
    let arguments = ["generate", "--model", &model, "--prompts", "prompts.jsonl", "--max-new-tokens", "6"];
    let search = ["--temperature", "0", "--num-beams", "3", "--length-penalty", "0.5", "--no-repeat-ngram-size", "2"];
    let rows = lines(&test.succeeds(&[&arguments[..], &search, &["--num-return-sequences", "2"]].concat()));
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[..2], rows[2..]);
    for (row, (ids, score)) in rows
        .iter()
        .zip([([96, 4, 96, 231, 148, 96], -9.583404541015625), ([96, 4, 96, 231, 148, 281], -9.606727600097656)])
    {
        assert_eq!(row["completion_ids"], serde_json::json!(ids));
        assert!((row["score"].as_f64().expect("a score") - score).abs() < TOLERANCE, "{row}");
    }
    // A forced id leaves one possible completion. The search marks the others, which repeat it, with its lowest score.
    let forced = ["--num-beams", "3", "--group-size", "3", "--temperature", "0", "--forced-eos-token-id", "5"];
    let one = ["generate", "--model", &model, "--prompt", "The tea is", "--max-new-tokens", "1"];
    let rows = lines(&test.succeeds(&[&one[..], &forced].concat()));
    assert!(rows.iter().all(|row| row["completion_ids"] == serde_json::json!([5])), "{rows:?}");
    let scores: Vec<f64> = rows.iter().map(|row| row["score"].as_f64().expect("a score")).collect();
    assert_eq!(scores, [0.0, -1e9, -1e9]);
    // Sampled continuations are also reproducible with a seed.
    let drawn = |seed| test.succeeds(&[&arguments[..], &["--num-beams", "3", "--seed", seed]].concat());
    assert_eq!(drawn("1"), drawn("1"));
    assert_ne!(drawn("1"), drawn("2"));
    test.fails(
        &[&arguments[..], &["--num-beams", "2", "--group-size", "3"]].concat(),
        1,
        "error: 3 completions of each prompt are requested, but 2 beams give 1 to 2\n\
         hint: raise `num_beams`, or request fewer (`num_return_sequences`)\n",
    );
    let groups =
        |more: &[&'static str]| [&arguments[..], &["--num-beams", "4", "--num-beam-groups", "2"], more].concat();
    let found = |more: &[&'static str]| test.succeeds(&groups(more));
    let greedy = ["--temperature", "0", "--group-size", "4", "--diversity-penalty"];
    let [little, much] = ["0.01", "9"].map(|penalty| found(&[&greedy[..], &[penalty]].concat()));
    assert_ne!(little, much, "the penalty has an effect");
    test.fails(
        &groups(&["--diversity-penalty", "1"]),
        1,
        "error: `num_beam_groups` is 2, but the temperature is 1\n\
         hint: diverse beam search does not sample: set the temperature to 0\n",
    );
    test.fails(
        &groups(&["--temperature", "0"]),
        1,
        "error: `diversity_penalty` is 0, but must be above 0 where beams are in groups\n\
         hint: without a penalty all groups find the same completions\n",
    );
}

#[test]
fn generate_refuses_prompts_without_room() {
    let test = CliTest::with("prompts.jsonl", "{\"prompt\": \"The tea is\"}\n");
    test.fails(
        &["generate", "--model", &fixture_model("gpt2"), "--prompts", "prompts.jsonl", "--max-new-tokens", "190"],
        1,
        "error: prompt 1 has 5 tokens; with `max_new_tokens` 190 it exceeds the model's 192 positions\n\
         hint: shorten the prompt or lower `--max-new-tokens`\n",
    );
    test.write("prompts.jsonl", &format!("{{\"prompt\": \"{}\"}}\n", "The tea is good. ".repeat(200)));
    let long = ["generate", "--model", &fixture_model("gpt2"), "--prompts", "prompts.jsonl", "--max-new-tokens", "1"];
    let run = test.run(&long);
    assert!(run.code == 1 && run.stderr.ends_with("hint: shorten the prompt\n"), "{run:?}");
}

#[test]
fn eval_measures_texts_preferences_and_samples() {
    let test = CliTest::with("texts.jsonl", "{\"text\": \"The tea is good.\"}\n");
    test.write("pairs.jsonl", "{\"prompt\": \"The tea is\", \"chosen\": \" good.\", \"rejected\": \" bad.\"}\n");
    let eval = |arguments: &[&str]| -> Value {
        let text = test.succeeds(&[&["eval", "--json", "--quiet"], arguments].concat());
        serde_json::from_str(&text).expect("it is JSON")
    };
    let model = fixture_model("gpt2");
    let texts = eval(&["--model", &model, "--data", "texts.jsonl"]);
    assert!(texts["rows"] == 1 && texts["loss"].is_number(), "{texts}");
    let pairs = eval(&["--model", &fixture_model("qwen3-reward"), "--data", "pairs.jsonl"]);
    assert!(pairs["accuracy"].is_number() && pairs["margin"].is_number(), "{pairs}");
    let rule = ["--reward-rule-length-target", "4", "--max-new-tokens", "6"];
    let samples =
        eval(&[&["--model", &model, "--data", "pairs.jsonl", "--reference-model", &model], &rule[..]].concat());
    assert!(samples["reward"].is_number(), "{samples}");
    assert_eq!(samples["kl"].as_f64(), Some(0.0), "a model is no distance from itself");
}

#[test]
fn eval_refuses_settings_of_sampling_where_nothing_is_sampled() {
    let test = CliTest::with("texts.jsonl", "{\"text\": \"The tea is good.\"}\n");
    let model = fixture_model("gpt2");
    let texts = ["eval", "--model", &model, "--data", "texts.jsonl"];
    let rows = ["eval", "--metrics", "chrf", "--data", "texts.jsonl"];
    for (arguments, flag) in [
        (&texts, "--num-beams"),
        (&texts, "--max-new-tokens"),
        (&texts, "--samples"),
        (&texts, "--predictions"),
        (&rows, "--top-k"),
    ] {
        test.fails(
            &[&arguments[..], &[flag, "6"]].concat(),
            1,
            &format!(
                "error: `{flag}` is given, but the rows are measured and nothing is sampled\n\
                 hint: leave it out, or sample completions of a model: pass a reward, `--metrics` or `--task`\n"
            ),
        );
    }
    for (arguments, flags, expected) in [
        (&texts, &["--bootstrap", "6"][..], "`--bootstrap` is given, but no metrics are measured"),
        (&texts, &["--reward-rule-substring", "a", "--bootstrap", "6"][..], "but no metrics are measured"),
        (&rows, &["--max-length", "6"][..], "--model <DIR>"),
        (&rows, &["--prompt-truncation", "right"][..], "--max-prompt-length <N>"),
    ] {
        let run = test.run(&[&arguments[..], flags].concat());
        assert!(run.code != 0 && run.stderr.contains(expected), "{flags:?}: {run:?}");
    }
    test.succeeds(&[&texts[..], &["--seed", "6"]].concat());
    let run = test.run(&[&texts[..], &["--max-length", "1", "--json"]].concat());
    let measured: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!([&measured["loss"], &measured["perplexity"]], [&Value::Null; 2], "{measured}");
    let remark = "warning: `loss` and `perplexity` are undefined: within 1 tokens (`--max-length`), no row has a token to predict";
    assert!(measured.get("loss").is_some() && run.stderr.contains(remark), "{run:?}");
    assert!(!test.path().join("6").exists(), "no predictions");
    let run = test.run(&[&texts[..], &["--reference-model", &model]].concat());
    assert!(run.code == 1 && run.stderr.contains("there is a reference model, but the rows are not pairs"), "{run:?}");
}

#[test]
fn eval_says_standard_errors_and_what_pairs_are_worth_beside_a_reference() {
    let test = CliTest::with(
        "texts.jsonl",
        "{\"text\": \"The tea is good.\"}\n{\"text\": \"The kettle\"}\n{\"text\": \"A cup of it, warm.\"}\n",
    );
    let pairs = "{\"prompt\": \"The tea is\", \"chosen\": \" good.\", \"rejected\": \" bad.\"}\n\
                 {\"prompt\": \"The cup is\", \"chosen\": \" warm.\", \"rejected\": \" full of it.\"}\n";
    test.write("pairs.jsonl", pairs);
    let model = fixture_model("gpt2");
    let eval = |arguments: &[&str]| -> Value {
        let text = test.succeeds(&[&["eval", "--json", "--quiet"], arguments].concat());
        serde_json::from_str(&text).expect("JSON")
    };
    let texts = eval(&["--model", &model, "--data", "texts.jsonl"]);
    // Computed by hand from the log-probabilities of every row.
    test.write("whole.jsonl", "{\"prompt\": \"\", \"completion\": \"The tea is good.\"}\n{\"prompt\": \"\", \"completion\": \"The kettle\"}\n{\"prompt\": \"\", \"completion\": \"A cup of it, warm.\"}\n");
    let rows: Vec<(f64, f64)> =
        lines(&test.succeeds(&["score", "--model", &model, "--data", "whole.jsonl", "--add-eos"]))
            .iter()
            .map(|row| {
                (-row["sum"].as_f64().expect("a number"), row["logprobs"].as_array().expect("a list").len() as f64)
            })
            .collect();
    let weight: f64 = rows.iter().map(|row| row.1).sum();
    let mean = rows.iter().map(|row| row.0).sum::<f64>() / weight;
    let squares: f64 = rows.iter().map(|(sum, own)| (sum - mean * own).powi(2)).sum();
    assert_close(&texts["loss"], mean);
    assert_close(&texts["standard_errors"]["loss"], (1.5 * squares).sqrt() / weight);
    assert_close(&texts["standard_errors"]["perplexity"], (1.5 * squares).sqrt() / weight * mean.exp());

    // With itself as reference, a model has no implicit rewards. Equal rewards count as half a correct choice.
    let same = eval(&["--model", &model, "--data", "pairs.jsonl", "--reference-model", &model]);
    assert_eq!([&same["rewards/margins"], &same["rewards/accuracies"]], [&json!(0.0), &json!(0.5)]);
    assert_eq!(same["standard_errors"]["rewards/margins"], 0.0);
    // Metrics of one answer of a pair name that answer: the chosen one, as in training on it.
    let alone = eval(&["--model", &model, "--data", "pairs.jsonl"]);
    assert!(alone["rewards/margins"].is_null() && alone["perplexity"].is_null() && alone["loss"].is_null(), "{alone}");
    test.write("chosen.jsonl", &pairs.replace("chosen", "completion").replace("rejected", "other"));
    let chosen = eval(&["--model", &model, "--data", "chosen.jsonl"]);
    for name in ["loss", "perplexity", "entropy", "mean_token_accuracy"] {
        let of_pairs = format!("{name}/chosen");
        assert!(chosen[name].is_number(), "{chosen}");
        assert_eq!([&alone[&of_pairs], &same[&of_pairs]], [&chosen[name]; 2], "{name}");
        assert_eq!(alone["standard_errors"][&of_pairs], chosen["standard_errors"][name], "{name}");
    }

    let ranker = fixture_model("qwen3-reward");
    let reward = eval(&["--model", &ranker, "--data", "pairs.jsonl"]);
    test.write(
        "answers.jsonl",
        "{\"prompt\": \"The tea is\", \"completion\": \" good.\"}\n{\"prompt\": \"The tea is\", \"completion\": \" bad.\"}\n\
         {\"prompt\": \"The cup is\", \"completion\": \" warm.\"}\n{\"prompt\": \"The cup is\", \"completion\": \" full of it.\"}\n",
    );
    let scored = test.succeeds(&["score", "--reward-model", &ranker, "--data", "answers.jsonl", "--add-eos"]);
    let rewards: Vec<f64> = lines(&scored).iter().map(|row| row["reward"].as_f64().expect("a number")).collect();
    let [[a, b], [c, d]] = [[rewards[0], rewards[1]], [rewards[2], rewards[3]]];
    let loss = |chosen: f64, rejected: f64| (1.0 + (rejected - chosen).exp()).ln();
    // The standard error of the mean of two values is half their distance.
    let (losses, means) = ([loss(a, b), loss(c, d)], [f64::midpoint(a, b), f64::midpoint(c, d)]);
    for (name, [first, second]) in [("loss", losses), ("mean_reward", means), ("margin", [a - b, c - d])] {
        assert_close(&reward[name], f64::midpoint(first, second));
        assert_close(&reward["standard_errors"][name], (first - second).abs() / 2.0);
    }
    let named: Vec<&String> = reward["standard_errors"].as_object().expect("an object").keys().collect();
    assert_eq!(named, ["loss", "accuracy", "margin", "mean_reward", "longer_wins_accuracy"]);
    let table = test.succeeds(&["eval", "--model", &model, "--data", "texts.jsonl", "--quiet"]);
    assert!(table.lines().any(|line| line.starts_with("loss") && line.contains(" ± ")), "{table}");
}

#[test]
fn settings_of_sampling_that_mean_nothing_are_errors_of_usage() {
    let test = CliTest::new();
    for (flags, expected) in [
        (
            &["--temperature", "nan"][..],
            "invalid value 'nan' for '--temperature <X>': it must be at least 0 and finite",
        ),
        (&["--temperature", "-1"], "invalid value '-1' for '--temperature <X>': it must be at least 0 and finite"),
        (&["--top-p", "0"], "invalid value '0' for '--top-p <P>': it must be above 0 and at most 1"),
        (&["--min-p", "2"], "invalid value '2' for '--min-p <P>': it must be between 0 and 1"),
        (&["--repetition-penalty", "0"], "it must be above 0 and finite"),
        (&["--group-size", "0"], "invalid value '0' for '--group-size <N>': expected a whole number from 1 to 65536"),
        (&["--max-new-tokens", "99999999999"], "expected a whole number from 1 to 100000000"),
        (&["--top-k", "0"], "expected a whole number from 1 to 16777216"),
        (&["--stop", ""], "invalid value '' for '--stop <TEXT>': every text ends with nothing: a text is needed"),
    ] {
        let run = test.run(&[&["generate", "--model", "m", "--prompts", "p"], flags].concat());
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{flags:?}: {}", run.stderr);
        assert!(run.stderr.contains(expected), "{expected} in {}", run.stderr);
    }
}

#[test]
fn a_reference_that_reads_ids_differently_is_refused() {
    let test = CliTest::with("prompts.jsonl", "{\"prompt\": \"The tea is\"}\n");
    let (policy, reference) = (fixture_model("gpt2"), fixture_model("t5"));
    let eval = ["eval", "--model", &policy, "--data", "prompts.jsonl", "--reward-rule-substring", "e"];
    let run = test.run(&[&eval[..], &["--max-new-tokens", "3", "--reference-model", &reference]].concat());
    assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{}", run.stderr);
    let message = format!("error: the reference `{reference}` ");
    assert!(run.stderr.contains(&message), "{}", run.stderr);
}

/// Training, `eval` and `score` have one rule: `max_length` cuts and counts, and a row that still exceeds the positions is refused.
#[test]
fn long_rows_are_cut_by_max_length_only_and_counted() {
    let long = "The tea is good. ".repeat(400);
    let test = CliTest::with("long.jsonl", &format!("{{\"text\": \"The tea.\"}}\n{{\"text\": \"{long}\"}}\n"));
    test.write("rows.jsonl", &format!("{{\"prompt\": \"{long}\", \"completion\": \" Yes.\"}}\n"));
    let model = fixture_model("gpt2");
    let eval = ["eval", "--model", &model, "--data", "long.jsonl", "--json", "--max-length"];
    let run = test.run(&[&eval[..], &["100000"]].concat());
    assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{}", run.stderr);
    let [message, hint] = [
        "error: long.jsonl:2: the row has ",
        " tokens, but the model has 192 positions\nhint: `--max-length 192` cuts",
    ];
    assert!(run.stderr.contains(message) && run.stderr.contains(hint), "{}", run.stderr);
    let run = test.run(&[&eval[..], &["192"]].concat());
    let remark = "1 of 2 rows cut at the end to 192 tokens (`max_length`): they lost their end-of-text token";
    assert!(run.code == 0 && run.stderr.contains(&format!("warning: {remark}\n")), "{}", run.stderr);
    let measured: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert!(measured["loss"].is_number(), "{measured}");
    assert_eq!(measured["remarks"], serde_json::json!([remark]));
    let run = test.run(&["score", "--model", &model, "--data", "rows.jsonl"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{}", run.stderr);
    let [message, hint] = ["error: rows.jsonl:1: the row has ", "`gradus eval --max-length 192` cuts long rows"];
    assert!(run.stderr.contains(message) && run.stderr.contains(hint), "{}", run.stderr);
    let sft = [
        "sft",
        "--model",
        &model,
        "--data",
        "long.jsonl",
        "--max-steps",
        "1",
        "--eval-fraction",
        "0",
        "--output-dir",
        "run",
    ];
    let run = test.run(&[&sft[..], &["--max-length", "192"]].concat());
    assert!(run.code == 0 && run.stderr.contains(&format!("training: {remark}")), "{}", run.stderr);
}

#[test]
fn bad_rows_are_skipped_by_score_and_generate_where_that_is_wanted() {
    let good = "{\"prompt\": \"The tea\", \"completion\": \" is\"}\n";
    let test = CliTest::with("rows.jsonl", &format!("{good}{{\"prompt\": 3, \"completion\": \" is\"}}\n{good}"));
    let pair = "{\"prompt\": \"The tea\", \"chosen\": \" is\", \"rejected\": \" was\"}\n";
    test.write("pairs.jsonl", &format!("{pair}{{\"prompt\": \"The\", \"chosen\": \" is\", \"rejected\": 7}}\n{pair}"));
    let (model, judge) = (fixture_model("gpt2"), fixture_model("qwen3-reward"));
    let generate = ["generate", "--model", &model, "--prompts", "rows.jsonl", "--max-new-tokens", "2"];
    let score = ["score", "--model", &model, "--data", "rows.jsonl"];
    let rewards = ["score", "--reward-model", &judge, "--data", "pairs.jsonl"];
    for (arguments, file, places) in
        [(&generate[..], "rows.jsonl", false), (&score, "rows.jsonl", true), (&rewards, "pairs.jsonl", true)]
    {
        let run = test.run(arguments);
        assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{}", run.stderr);
        let bad = format!("error: {file}:2: ");
        assert!(
            run.stderr.contains(&bad) && run.stderr.contains("`--skip-bad-rows` leaves bad rows out"),
            "{}",
            run.stderr
        );
        let run = test.run(&[arguments, &["--skip-bad-rows"]].concat());
        assert_eq!(run.code, 0, "{}", run.stderr);
        let warning = format!("warning: 1 bad row is left out, the first {file}:2: ");
        assert!(run.stderr.contains(&warning), "{}", run.stderr);
        let lines: Vec<Value> = run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.len(), 2, "{}", run.stdout);
        // Scores have no text that would show their rows.
        if places {
            let expected = [format!("{file}:1"), format!("{file}:3")];
            assert_eq!(
                [lines[0]["place"].as_str(), lines[1]["place"].as_str()],
                expected.each_ref().map(|at| Some(at.as_str()))
            );
        }
    }
    assert!(
        !test.succeeds(&["score", "--model", &model, "--data", "pairs.jsonl", "--max-rows", "1"]).contains("place")
    );
    let run = test.run(&["generate", "--model", &model, "--prompt", "The", "--skip-bad-rows"]);
    assert!(run.code == 1 && run.stderr.contains("`--skip-bad-rows` needs `--prompts`"), "{}", run.stderr);
}

/// GPT-2 has learned positions, Qwen rotary ones. Both end at the limit of the model.
#[test]
fn what_is_longer_than_a_models_positions_is_refused_by_every_family() {
    let test = CliTest::with("texts.jsonl", &format!("{{\"text\": \"{}\"}}\n", "The tea is good. ".repeat(200)));
    for (family, positions) in [("gpt2", "n_positions"), ("qwen3", "max_position_embeddings")] {
        let model = fixture_model(family);
        let config: Value =
            serde_json::from_str(&std::fs::read_to_string(format!("{model}/config.json")).expect("there"))
                .expect("JSON");
        let positions = config[positions].as_u64().expect("a number");
        let long = "The tea is good. ".repeat(200);
        let run = test.run(&["generate", "--model", &model, "--prompt", &long, "--max-new-tokens", "4"]);
        let message = format!("it exceeds the model's {positions} positions");
        assert!(run.code == 1 && run.stderr.contains(&message), "{family}: {}", run.stderr);
        let run = test.run(&[
            "sft",
            "--model",
            &model,
            "--data",
            "texts.jsonl",
            "--max-steps",
            "1",
            "--max-length",
            "100000",
        ]);
        let message = format!("has {positions} positions, but the longest sequence of this run has ");
        assert!(run.code == 1 && run.stderr.contains(&message), "{family}: {}", run.stderr);
        assert!(
            run.stderr.contains(&format!("hint: set `train.max_length` to {positions}")),
            "{family}: {}",
            run.stderr
        );
    }
}

/// A small file must not allocate a list as large as the largest id in it.
#[test]
fn ids_beyond_the_embedding_are_refused() {
    let test = CliTest::new();
    let from = fixture_model("qwen3");
    for file in ["config.json", "model.safetensors", "tokenizer_config.json"] {
        let path = test.write(&format!("m/{file}"), "");
        std::fs::copy(std::path::Path::new(&from).join(file), path).expect("copied");
    }
    let text = std::fs::read_to_string(std::path::Path::new(&from).join("tokenizer.json")).expect("the fixture has it");
    let vocabulary = serde_json::from_str::<Value>(&text).expect("JSON");
    let largest = vocabulary["model"]["vocab"].as_object().expect("a mapping").values().filter_map(Value::as_u64).max();
    for (id, expected) in [
        (4_000_000_000_u64, "the largest token id is 4000000000, but at most 16777215 is allowed"),
        (90_000, "the tokenizer has 90001 tokens, but the model's vocabulary only"),
    ] {
        let mut changed = vocabulary.clone();
        let pieces = changed["model"]["vocab"].as_object_mut().expect("a mapping");
        let last = pieces.values_mut().find(|value| value.as_u64() == largest).expect("the largest");
        *last = id.into();
        test.write("m/tokenizer.json", &changed.to_string());
        let run = test.run(&["export", "--model", "m", "--output", "m.gguf"]);
        assert!(run.code == 1 && run.stderr.contains(expected), "{id}: {} {}", run.code, run.stderr);
        assert!(!test.path().join("m.gguf").exists(), "nothing is written");
    }
}

/// The page shows where a reward model errs. The JSON file lists every wrongly ordered pair.
#[test]
fn a_reward_model_has_a_report_of_its_errors() {
    let rows: String = (0..12)
        .map(|i| {
            let long = " and more".repeat(i);
            format!(
                "{{\"prompt\": \"Question {i}: \", \"chosen\": \"a good answer{long}\", \"rejected\": \"no {i}\"}}\n"
            )
        })
        .collect();
    let test = CliTest::with("pairs.jsonl", &rows);
    let model = fixture_model("qwen3-reward");
    let eval = ["eval", "--model", &model, "--data", "pairs.jsonl", "--json", "--report", "errors.html"];
    let measured: Value = serde_json::from_str(&test.succeeds(&eval)).expect("it is JSON");
    let json: Value = serde_json::from_str(&test.read("errors.json")).expect("it is JSON");
    assert_eq!((&json["pairs"], &json["metrics"]["accuracy"]), (&json!(12), &measured["accuracy"]));
    let errors = json["errors"].as_array().expect("a list");
    let accuracy = measured["accuracy"].as_f64().expect("a number");
    assert_eq!(errors.len(), ((1.0 - accuracy) * 12.0).round() as usize);
    assert!(!errors.is_empty() && errors.len() < 12, "{accuracy}");
    let sure: Vec<f64> = errors.iter().map(|error| error["confidence"].as_f64().expect("a number")).collect();
    assert!(sure.is_sorted_by(|a, b| a >= b), "{sure:?}");
    let first = &errors[0];
    assert!(first["place"].as_str().expect("a place").starts_with("pairs.jsonl:"));
    assert!(first["prompt"].as_str().expect("a prompt").starts_with("Question "));
    assert!(first["chosen_reward"].as_f64() <= first["rejected_reward"].as_f64());
    for by in ["by_length_difference", "by_confidence"] {
        let buckets = json[by].as_array().expect("a list");
        assert_eq!(buckets.iter().map(|bucket| bucket["pairs"].as_u64().expect("a count")).sum::<u64>(), 12, "{by}");
    }
    let page = test.read("errors.html");
    for expected in
        ["Wrongly ordered pairs", "aria-label=\"Accuracy by length difference\"", "Calibration", "Question "]
    {
        assert!(page.contains(expected), "{expected} in {page}");
    }
    let run = test.run(&eval);
    assert!(run.code == 2 && run.stderr.contains("`errors.html` exists; `--overwrite` replaces it"), "{run:?}");
    test.succeeds(&[&eval[..], &["--overwrite"]].concat());
    let other = fixture_model("qwen3");
    let run = test.run(&["eval", "--model", &other, "--data", "pairs.jsonl", "--report", "none.html"]);
    assert!(run.code == 1 && run.stderr.contains("is not a reward model, or the rows are not pairs"), "{run:?}");
    assert!(!test.path().join("none.html").exists());
}
