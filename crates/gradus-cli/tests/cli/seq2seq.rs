//! Encoder–decoder models in all commands. Expected numbers from transformers 5.23.0 on the same directory.

use std::io::Write;
use std::process::Stdio;

use gradus::device::DeviceChoice;
use gradus::model::{CausalLm, ModelDir, save_causal};
use gradus::rng::{Purpose, Seed};
use serde_json::{Value, json};

use crate::harness::{CliTest, fixture_model};

const ROWS: &str = "{\"prompt\": \"the sun rises\", \"completion\": \"rises sun the\"}\n\
                    {\"prompt\": \"a warm sea\", \"completion\": \"sea warm\"}\n";
const PAIRS: &str = "{\"prompt\": \"the sun rises\", \"chosen\": \"rises\", \"rejected\": \"the\"}\n\
                     {\"prompt\": \"a warm sea\", \"chosen\": \"sea\", \"rejected\": \"a warm sea\"}\n";
const SHORT: [&str; 7] = ["--max-steps", "2", "--batch-size", "2", "--no-shuffle", "--quiet", "--learning-rate=0.05"];

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

fn sums(text: &str) -> Vec<f64> {
    lines(text).iter().map(|row| row["sum"].as_f64().expect("a number")).collect()
}

#[test]
fn score_gives_the_logprobs_of_the_target_given_the_source() {
    let test = CliTest::with("rows.jsonl", ROWS);
    test.write("ids.jsonl", "{\"input_ids\": [3, 5, 22, 1], \"labels\": [22, 5, 3, 1, -100]}\n");
    for data in ["rows.jsonl", "ids.jsonl"] {
        let rows = lines(&test.succeeds(&["score", "--model", &fixture_model("t5"), "--data", data]));
        let logprobs = rows[0]["logprobs"].as_array().expect("a list");
        let expected = [-4.442131519317627, -4.3069987297058105, -4.916284561157227, -4.270691871643066];
        assert_eq!(logprobs.len(), expected.len(), "{data}: the end of the target is one of its tokens");
        for (found, expected) in logprobs.iter().zip(expected) {
            assert!((found.as_f64().expect("a number") - expected).abs() < 1e-4, "{data}: {found}, {expected}");
        }
    }
}

#[test]
fn an_adapter_is_trained_used_merged_and_quantized() {
    let test = CliTest::with("rows.jsonl", ROWS);
    let model = fixture_model("t5");
    let train =
        ["sft", "--model", &model, "--data", "rows.jsonl", "--output-dir", "run", "--lora-targets", "all-linear"];
    test.succeeds(&[&train[..], &SHORT].concat());
    let config: Value = serde_json::from_str(&test.read("run/model/adapter_config.json")).expect("JSON");
    assert_eq!(config["task_type"], "SEQ_2_SEQ_LM");
    let score = |model: &str| sums(&test.succeeds(&["score", "--data", "rows.jsonl", "--model", model]));
    let (plain, adapted) = (score(&model), score("run/model"));
    assert!(plain.iter().zip(&adapted).all(|(a, b)| b > a), "it has learned: {plain:?} {adapted:?}");
    test.succeeds(&["merge", "--model", &model, "--adapter", "run/model", "--output", "merged"]);
    let merged = score("merged");
    assert!(merged.iter().zip(&adapted).all(|(a, b)| (a - b).abs() < 1e-4), "{merged:?} {adapted:?}");
    for data in [&["--data", "rows.jsonl"][..], &[]] {
        let output = format!("int8-{}", data.len());
        let quantize =
            ["quantize", "--model", "merged", "--format", "int8", "--output", &output, "--max-new-tokens", "6"];
        test.succeeds(&[&quantize[..], data].concat());
        let moved: Vec<f64> = merged.iter().zip(score(&output)).map(|(a, b)| (a - b).abs()).collect();
        assert!(moved.iter().all(|&moved| moved > 0.0 && moved < 0.2), "{moved:?}");
    }
    let measured = test.succeeds(&["--json", "eval", "--model", "merged", "--data", "rows.jsonl"]);
    let measured: Value = serde_json::from_str(&measured).expect("JSON");
    assert!(measured["perplexity"].as_f64().is_some_and(|it| it > 1.0), "{measured}");
}

#[test]
fn every_method_trains_one_and_it_answers() {
    let test = CliTest::with("rows.jsonl", ROWS);
    test.write("pairs.jsonl", PAIRS);
    let model = fixture_model("t5");
    let train = |method: &str, data: &str, output: &str, more: &[&str]| {
        let arguments = [method, "--model", &model, "--data", data, "--output-dir", output];
        test.succeeds(&[&arguments[..], &SHORT, more].concat());
    };
    train("dpo", "pairs.jsonl", "dpo", &[]);
    train("orpo", "pairs.jsonl", "orpo", &[]);
    train("reward", "pairs.jsonl", "reward", &[]);
    let rewards = lines(&test.succeeds(&["score", "--reward-model", "reward/model", "--data", "rows.jsonl"]));
    assert!(rewards[0]["reward"] != rewards[1]["reward"], "{rewards:?}");
    let online = ["--reward-model", "reward/model", "--max-new-tokens", "4"];
    train("grpo", "rows.jsonl", "grpo", &[&online[..], &["--group-size", "4"]].concat());
    for method in ["a2c", "nlpo", "trpo", "ppo"] {
        train(method, "rows.jsonl", method, &online);
    }

    let sample = ["generate", "--model", "ppo/model", "--prompts", "rows.jsonl", "--max-new-tokens", "5"];
    for more in [&["--temperature", "0"][..], &["--num-beams", "3"], &["--weights", "int8"]] {
        let found = lines(&test.succeeds(&[&sample[..], more].concat()));
        assert_eq!((found.len(), &found[0]["prompt"]), (2, &Value::from("the sun rises")), "{more:?}");
        assert_eq!(found[0]["completion_ids"].as_array().map(Vec::len), found[0]["logprobs"].as_array().map(Vec::len));
    }
    let mut chat = test.command(&["chat", "--model", "ppo/model", "--json", "--max-new-tokens", "4"]);
    let mut child = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary runs");
    child.stdin.take().expect("a pipe").write_all(b"the sun\nthe sea\n").expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    assert_eq!(lines(&String::from_utf8(output.stdout).expect("UTF-8")).len(), 2);
}

#[test]
fn a_critic_of_another_size_learns_beside_the_policy() {
    let test = CliTest::with("rows.jsonl", ROWS);
    let model = fixture_model("t5");
    let mut dir = ModelDir::open(std::path::Path::new(&model)).expect("a fixture");
    let sizes = json!({"d_model": 12, "d_kv": 4, "num_heads": 2, "d_ff": 20, "num_layers": 1, "num_decoder_layers": 1});
    dir.config.extend(sizes.as_object().expect("an object").clone());
    let mut stream = Seed(3).stream(Purpose::Init, 0, 0);
    let small = CausalLm::random(&dir, &mut stream, &DeviceChoice::cpu().device()).expect("builds");
    std::fs::create_dir(test.path().join("small")).expect("a directory");
    save_causal(&small, &dir, &test.path().join("small")).expect("saves");
    let train = |output: &str, more: &[&str]| {
        let ppo = ["ppo", "--model", &model, "--data", "rows.jsonl", "--output-dir", output, "--max-new-tokens", "4"];
        let reward = ["--reward-rule-regex", "s", "--critic-model", "small"];
        test.run(&[&ppo[..], &reward, &SHORT, more].concat())
    };
    let run = train("run", &["--save-steps", "2"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let config: Value = serde_json::from_str(&test.read("run/critic/config.json")).expect("JSON");
    assert_eq!((&config["d_model"], &config["architectures"]), (&json!(12), &json!(["T5ForSequenceClassification"])));

    dir.config.insert("decoder_start_token_id".into(), json!(2));
    test.write("small/config.json", &Value::Object(dir.config).to_string());
    test.write("small/generation_config.json", "{}");
    let run = train("other", &[]);
    assert!(
        run.code == 1 && run.stderr.contains("begins its decoder with a different id than the policy"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_critic_of_two_layers_learns_and_goes_on_to_the_bit() {
    let test = CliTest::with("rows.jsonl", ROWS);
    let model = fixture_model("t5");
    let ppo = ["ppo", "--model", &model, "--data", "rows.jsonl", "--max-new-tokens", "4", "--reward-rule-regex", "s"];
    let head = ["--critic-head", "two_layer", "--learning-rate", "0.05", "--batch-size", "2", "--quiet"];
    for (name, lora) in [("whole", &[][..]), ("adapter", &["--lora-targets", "all-linear"])] {
        let train = |output: &str, more: &[&str]| {
            test.succeeds(&[&ppo[..], &head, lora, &["--output-dir", output, "--max-steps", "4"], more].concat());
        };
        train(name, &["--save-steps", "2"]);
        let file = if lora.is_empty() { "model.safetensors" } else { "adapter_model.safetensors" };
        let read = |run: &str| std::fs::read(test.path().join(run).join("critic").join(file)).expect("it is there");
        let kept = read(name);
        let names = String::from_utf8_lossy(&kept);
        assert!(names.contains("score.dense.weight") && names.contains("score.out.bias"), "{name}");
        let (again, checkpoint) = (format!("{name}-again"), format!("{name}/checkpoints/step-000002"));
        test.succeeds(&["ppo", "--resume-from", &checkpoint, "--output-dir", &again, "--quiet"]);
        assert!(kept == read(&again), "{name}");
    }
    let shared = test.run(&[&ppo[..], &head, &["--output-dir", "shared", "--critic-trunk", "shared"]].concat());
    assert!(shared.code == 2 && shared.stderr.contains("`method.ppo.critic.head` is given"), "{}", shared.stderr);
}

#[test]
fn a_run_ends_when_its_kl_was_too_far_too_often() {
    let test = CliTest::with("rows.jsonl", ROWS);
    let model = fixture_model("t5");
    let ppo = ["ppo", "--model", &model, "--data", "rows.jsonl", "--max-new-tokens", "4", "--reward-rule-regex", "s"];
    // The first rollouts come from the reference itself. From then on, k3 is above 0.
    let limit = ["--kl-stop-above", "1e-9", "--kl-stop-after", "2", "--kl-estimator", "k3", "--save-steps", "2"];
    let more = ["--learning-rate", "0.05", "--batch-size", "2", "--output-dir", "run", "--max-steps", "9"];
    let run = test.run(&[&ppo[..], &limit, &more].concat());
    let words = "stopped early: the KL of 2 iterations was above `kl.stop_above`, 0.000000001";
    assert!(run.code == 0 && run.stderr.contains(words), "{}", run.stderr);
    let last = |name: &str| lines(&test.read(&format!("{name}/metrics.jsonl"))).last().map(|row| row["step"].clone());
    assert_eq!(last("run"), Some(json!(3)));
    // The count from before a checkpoint is restored.
    let resume = ["ppo", "--resume-from", "run/checkpoints/step-000002", "--output-dir", "again", "--quiet"];
    test.succeeds(&resume);
    assert_eq!(last("again"), Some(json!(3)));
    test.succeeds(&["ppo", "--output-dir", "run", "--resume", "--quiet"]);
    assert_eq!(last("run"), Some(json!(3)), "it has ended");
}

#[test]
fn what_cannot_be_learned_is_said() {
    let test = CliTest::with("text.jsonl", "{\"text\": \"the sun rises\"}\n");
    test.write("empty.jsonl", "{\"prompt\": \"\", \"completion\": \"sun\"}\n");
    test.write("ids.jsonl", "{\"input_ids\": [3, 5], \"labels\": [-100, 5, 7]}\n");
    test.write("open.jsonl", "{\"input_ids\": [3, 5, 1], \"labels\": [5, 7]}\n");
    test.write("rows.jsonl", ROWS);
    let model = fixture_model("t5");
    let says = |model: &str, data: &str, words: &str| {
        let arguments =
            ["sft", "--model", model, "--data", data, "--output-dir", "run", "--overwrite", "--max-steps", "1"];
        let run = test.run(&arguments);
        assert!(run.stderr.contains(words), "{data}: {}", run.stderr);
        run.code
    };
    assert_eq!(says(&model, "text.jsonl", "text.jsonl:1: the row has no source: a model with an encoder trains on"), 1);
    assert_eq!(says(&model, "empty.jsonl", "empty.jsonl:1: the prompt is empty: an encoder has nothing to read"), 1);
    assert_eq!(says(&model, "ids.jsonl", "ids.jsonl:1: column `labels` has 3 entries but `input_ids` has 2"), 1);
    let words = "1 of 1 rows have a target without the end-of-text token: the model does not learn where it ends";
    assert_eq!(says(&model, "open.jsonl", words), 0);
    assert_eq!(says(&fixture_model("gpt2"), "open.jsonl", "column `labels` has 2 entries but `input_ids` has 3"), 1);

    // Models that do not match each other.
    test.write("pairs.jsonl", PAIRS);
    let arguments = ["dpo", "--model", &model, "--data", "pairs.jsonl", "--output-dir", "dpo", "--reference-model"];
    let run = test.run(&[&arguments[..], &[&fixture_model("gpt2")]].concat());
    assert!(run.code == 1 && run.stderr.contains("has a different tokenizer than the policy"), "{}", run.stderr);
    // Without a decoder's first token, and with fewer ids than the tokenizer has.
    for (key, value, words) in [
        ("decoder_start_token_id", Value::Null, "no `decoder_start_token_id`: the first id of the decoder is unknown"),
        ("vocab_size", Value::from(5), "5"),
    ] {
        for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
            let to = test.write(&format!("broken/{file}"), "");
            std::fs::copy(std::path::Path::new(&model).join(file), to).expect("copied");
        }
        let mut config: Value = serde_json::from_str(&test.read("broken/config.json")).expect("JSON");
        config[key] = value;
        test.write("broken/config.json", &config.to_string());
        assert_eq!(says("broken", "rows.jsonl", words), 1);
    }
}

/// Creates a BART with this number of positions and the tokenizer of the T5 fixture.
fn bart(test: &CliTest, name: &str, positions: usize) {
    let mut dir = ModelDir::open(std::path::Path::new(&fixture_model("t5"))).expect("a fixture");
    let config = json!({
        "model_type": "bart", "vocab_size": dir.config["vocab_size"], "d_model": 12, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "max_position_embeddings": positions, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 1
    });
    dir.config = config.as_object().expect("an object").clone();
    // The T5's own has another start id.
    dir.generation_config = None;
    let mut stream = Seed(3).stream(Purpose::Init, 0, 0);
    let model = CausalLm::random(&dir, &mut stream, &DeviceChoice::cpu().device()).expect("builds");
    std::fs::create_dir(test.path().join(name)).expect("a directory");
    save_causal(&model, &dir, &test.path().join(name)).expect("saves");
}

#[test]
fn source_and_target_have_all_learned_positions_each() {
    // Sources of 10 and 7 ids, including their end tokens; targets of 10 and 4.
    let nine = "the sun rises and falls the sun rises and";
    let rows = format!(
        "{{\"prompt\": \"{nine}\", \"completion\": \"{nine}\"}}\n\
         {{\"prompt\": \"a warm sea a warm sea\", \"completion\": \"the sun rises\"}}\n"
    );
    let test = CliTest::with("rows.jsonl", &rows);
    for (name, positions) in [("bart", 10), ("eleven", 11), ("nine", 9)] {
        bart(&test, name, positions);
    }
    let run = |method: &str, model: &str, more: &[&str]| {
        let train = [method, "--model", model, "--data", "rows.jsonl", "--output-dir", "run", "--overwrite"];
        let run = test.run(&[&train[..], &SHORT, more].concat());
        (run.code, run.stderr)
    };
    assert_eq!(run("sft", "bart", &[]), (0, String::new()));
    let online = ["--reward-rule-regex", "s", "--max-new-tokens", "10"];
    assert_eq!(run("ppo", "bart", &online), (0, String::new()));
    assert_eq!(run("ppo", "bart", &[&online[..], &["--critic-model", "eleven"]].concat()), (0, String::new()));
    let (code, output) = run("ppo", "bart", &[&online[..], &["--critic-model", "nine"]].concat());
    let words = "the critic `nine` has 9 positions, but the longest sequence of this run has 10 tokens";
    assert!(code == 1 && output.contains(words) && output.contains("set `train.max_length` to 9"), "{output}");
    let (code, output) = run("sft", "nine", &[]);
    assert!(code == 1 && output.contains("the policy `nine` has 9 positions"), "{output}");

    // Scored texts are read up to their last id, after the decoder's start id.
    let pairs = rows.replace("completion", "chosen").replace("\"}", "\", \"rejected\": \"a sea\"}");
    test.write("rows.jsonl", &pairs);
    let (code, output) = run("reward", "bart", &[]);
    // Training a reward model involves no policy.
    assert!(code == 1 && output.contains("the model `bart` has 10 positions"), "{output}");
    assert!(output.contains("set `train.max_length` to 9"), "{output}");
    assert_eq!(run("reward", "bart", &["--max-length", "9"]).0, 0, "the longer pair is left out");
    assert_eq!(run("reward", "eleven", &[]), (0, String::new()));
    test.write("rows.jsonl", &rows);
    let score = |model: &str| test.run(&["score", "--reward-model", model, "--data", "rows.jsonl"]);
    assert_eq!(lines(&score("run/model").stdout).len(), 2);
    test.write("rows.jsonl", &pairs);
    assert_eq!(run("reward", "bart", &["--max-length", "9"]).0, 0, "the longer pair is left out");
    test.write("rows.jsonl", &rows);
    let scored = score("run/model");
    let words = "rows.jsonl:1: the row has 10 tokens in its prompt and 10 in its completion, but the decoder has room \
                 for 9 and the encoder for 10";
    assert!(scored.code == 1 && scored.stderr.contains(words), "{}", scored.stderr);
}

#[test]
fn rollouts_begin_and_end_as_the_generation_configuration_forces() {
    let test = CliTest::with("rows.jsonl", ROWS);
    bart(&test, "bart", 20);
    let sampled = |run: &str, more: &[&str]| {
        let train = ["grpo", "--model", "bart", "--data", "rows.jsonl", "--output-dir", run, "--group-size", "4"];
        let online = ["--reward-rule-length-target", "4", "--max-new-tokens", "3"];
        test.succeeds(&[&train[..], &online, &SHORT, more].concat());
        let run = gradus::run::RunDir::open(test.path().join(run)).expect("a run");
        let all = gradus::run::RolloutDb::open(&run).expect("rollouts").query(&Default::default()).expect("rows");
        assert_eq!(all.len(), 16);
        all.into_iter().map(|rollout| (rollout.completion, rollout.stop_reason)).collect::<Vec<_>>()
    };
    let begin = |all: &[(String, String)], word: &str| all.iter().filter(|(text, _)| text.starts_with(word)).count();
    let end = |all: &[(String, String)]| all.iter().filter(|(_, stop)| stop == "stop_id").count();
    let free = sampled("free", &[]);
    assert!(begin(&free, "sun") < 16 && end(&free) < 16, "{free:?}");
    test.write("bart/generation_config.json", "{\"forced_bos_token_id\": 5, \"forced_eos_token_id\": 1}");
    let forced = sampled("forced", &[]);
    assert!(begin(&forced, "sun") == 16 && end(&forced) == 16, "{forced:?}");
    let own = sampled("own", &["--sampling-forced-bos-token-id", "22"]);
    assert!(begin(&own, "rises") == 16 && end(&own) == 16, "what the run says wins: {own:?}");
}

#[test]
fn sampling_follows_the_generation_configuration_and_training_the_configuration() {
    let test = CliTest::with("rows.jsonl", ROWS);
    bart(&test, "bart", 20);
    let original: Value = serde_json::from_str(&test.read("bart/config.json")).expect("JSON");
    let set = |start: u32, generation: Value| {
        let mut config = original.clone();
        config["decoder_start_token_id"] = json!(start);
        config["forced_eos_token_id"] = json!(1);
        test.write("bart/config.json", &config.to_string());
        test.write("bart/generation_config.json", &generation.to_string());
        let dir = ModelDir::open(&test.path().join("bart")).expect("opens");
        let starts = [dir.decoder_start(), dir.sampling_start()].map(|start| start.expect("a start id"));
        (starts, dir.forced_ids())
    };
    // The generation configuration wins, even with keys that it lacks. Its `bos_token_id` comes before the other file.
    assert_eq!(set(1, json!({ "bos_token_id": 5 })), ([1, 5], [None, None]));
    assert_eq!(set(1, json!({ "forced_eos_token_id": [7] })), ([1, 1], [None, Some(7)]));
    let generate = || {
        let model = ["generate", "--model", "bart", "--prompt", "the sun rises", "--json"];
        test.succeeds(&[&model[..], &["--temperature", "0", "--max-new-tokens", "3"]].concat())
    };
    set(5, json!({}));
    let begun_with_5 = generate();
    set(1, json!({}));
    let begun_with_1 = generate();
    assert_ne!(begun_with_1, begun_with_5);
    set(1, json!({ "decoder_start_token_id": 5 }));
    assert_eq!(generate(), begun_with_5);
    let grpo = ["grpo", "--model", "bart", "--data", "rows.jsonl", "--output-dir", "run", "--max-new-tokens", "3"];
    let online = ["--reward-rule-length-target", "4", "--group-size", "4"];
    let run = test.run(&[&grpo[..], &online, &SHORT].concat());
    let words = "sampling begins the decoder with id 5, but training with id 1 of `config.json`";
    assert!(run.code == 1 && run.stderr.contains(words), "{}", run.stderr);
    // Without the file, the configuration counts.
    std::fs::remove_file(test.path().join("bart/generation_config.json")).expect("removed");
    let mut dir = ModelDir::open(&test.path().join("bart")).expect("opens");
    assert_eq!((dir.sampling_start().expect("a start id"), dir.forced_ids()), (1, [None, Some(1)]));
    // A saved model begins as its source, here with the default of the family.
    dir.config.remove("decoder_start_token_id");
    dir.config.insert("bos_token_id".into(), json!(0));
    let model = CausalLm::load(&dir, &DeviceChoice::cpu().device()).expect("loads");
    let saved = test.path().join("saved");
    std::fs::create_dir(&saved).expect("a directory");
    save_causal(&model, &dir, &saved).expect("saves");
    assert_eq!(ModelDir::open(&saved).expect("opens").sampling_start().expect("a start id"), 2);
}

#[test]
fn methods_are_compared_on_one() {
    let pairs = |i: usize| {
        let prompt = ["the sun rises", "a warm sea", "sea the sun"][i % 3];
        format!("{{\"prompt\": \"{prompt}\", \"chosen\": \"sun {}\", \"rejected\": \"warm\"}}\n", ["the", "sea"][i % 2])
    };
    let test = CliTest::with("pairs.jsonl", &(0..16).map(pairs).collect::<String>());
    let model = fixture_model("t5");
    let shared = ["--model", &model, "--data", "pairs.jsonl", "--reward-rule-length-target", "4", "--max-steps", "1"];
    let own = ["--methods", "dpo,ppo,grpo", "--max-new-tokens", "4", "--group-size", "2", "--eval-fraction", "0.25"];
    let table = test
        .succeeds(&[&["compare", "--quiet", "--batch-size", "2", "--output-dir", "three"][..], &shared, &own].concat());
    let first: Vec<&str> = table.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim).collect();
    assert_eq!(first, ["method", "------", "start", "dpo", "ppo", "grpo"], "{table}");
    let samples = lines(&test.read("three/comparison/samples.jsonl"));
    assert!(samples.iter().all(|row| row["completions"].as_object().is_some_and(|all| all.len() == 4)), "{samples:?}");
}

#[test]
fn tokens_are_counted_as_they_are_bounded() {
    // Sources of 4 and 7 ids, targets of 4 and 3. `max_length` limits each separately.
    let rows = "{\"prompt\": \"the sun rises\", \"completion\": \"rises sun the\"}\n\
                {\"prompt\": \"a warm sea a warm sea\", \"completion\": \"sea warm\"}\n";
    let test = CliTest::with("rows.jsonl", rows);
    let shown = test.succeeds(&["data", "show", "rows.jsonl", "--model", &fixture_model("t5"), "--json"]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let lengths = &shown["stats"]["tokens"]["quantiles"];
    assert_eq!([&lengths["min"], &lengths["max"]], [&json!(4), &json!(7)], "{lengths}");
}
