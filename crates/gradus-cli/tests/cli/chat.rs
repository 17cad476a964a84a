//! Chat over a pipe: answers, commands, JSON, two models and a reward model.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::harness::{CliTest, fixture_model};

/// Sends `lines` to the chat and returns exit code, stdout and stderr.
fn chat(test: &CliTest, arguments: &[&str], lines: impl AsRef<[u8]>) -> (Option<i32>, String, String) {
    let mut command = test.command(&[&["chat"], arguments].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    child.stdin.take().expect("a pipe").write_all(lines.as_ref()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the binary prints UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Returns the answers as JSON.
fn answers(arguments: &[&str], lines: &str) -> Vec<Value> {
    let test = CliTest::new();
    let (code, stdout, stderr) = chat(&test, &[arguments, &["--json", "--max-new-tokens", "8"]].concat(), lines);
    assert_eq!(code, Some(0), "{stderr}");
    stdout.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

#[test]
fn lines_are_turns_of_one_conversation_and_answers_can_be_had_again() {
    let model = fixture_model("gpt2");
    let script = "The tea\n/regenerate\nThe cup\n/reset\nThe tea\n";
    let found = answers(&["--model", &model], script);
    let text = |i: usize| found[i]["completion"].as_str().expect("a text").to_owned();
    assert_eq!(found.len(), 4);
    assert_eq!(found.iter().map(|line| line["turn"].as_u64().expect("a number")).collect::<Vec<_>>(), [1, 1, 2, 3]);
    assert_ne!(text(0), text(1), "another attempt draws from another stream");
    assert_eq!(found[0]["prompt"], "The tea");
    assert!(found[0]["tokens"].as_u64().is_some_and(|tokens| (1..=8).contains(&tokens)));
    let timeless = |mut lines: Vec<Value>| {
        lines.iter_mut().for_each(|line| drop(line.as_object_mut().expect("an object").remove("tokens_per_s")));
        lines
    };
    assert_eq!(timeless(answers(&["--model", &model], script)), timeless(found), "the same conversation again");
}

#[test]
fn an_answer_is_what_generate_samples_from_the_same_prompt() {
    let model = fixture_model("gpt2");
    let test = CliTest::with("prompts.jsonl", "{\"prompt\": \"\\n\\nHuman: The tea\\n\\nAssistant:\"}\n");
    let greedy = ["--max-new-tokens", "12", "--temperature", "0"];
    let arguments = [&["--model", &model, "--format", "hh", "--json"], &greedy[..]].concat();
    let (_, stdout, stderr) = chat(&test, &arguments, "The tea\n");
    let answer: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    let generate =
        [&["generate", "--model", &model, "--prompts", "prompts.jsonl", "--stop", "\n\nHuman:"], &greedy[..]];
    let sampled: Value = serde_json::from_str(&test.succeeds(&generate.concat())).expect("a row");
    assert_eq!(answer["completion"], sampled["completion"]);
    assert_eq!(answer["tokens"], sampled["completion_ids"].as_array().expect("ids").len());
    // The streamed text is the same.
    let (_, streamed, _) =
        chat(&test, &arguments.iter().copied().filter(|word| *word != "--json").collect::<Vec<_>>(), "The tea\n");
    assert_eq!(streamed, format!("{}\n", sampled["completion"].as_str().expect("a text")));
}

#[test]
fn a_prompt_of_several_lines_stands_between_marks() {
    let script = "\"\"\"\nThe tea\n  /reset is green\n\"\"\"\n\"\"\"The cup\"\"\"\n\"\"\"\n\"\"\"\n\"\"\"The\nkettle";
    let found = answers(&["--model", &fixture_model("gpt2")], script);
    let prompts: Vec<&str> = found.iter().filter_map(|line| line["prompt"].as_str()).collect();
    assert_eq!(prompts, ["The tea\n  /reset is green", "The cup", "The\nkettle"]);
    assert_eq!(found[2]["turn"], 3);
}

#[test]
fn a_byte_that_is_no_text_does_not_end_the_conversation() {
    let test = CliTest::new();
    let model = fixture_model("gpt2");
    let arguments = ["--model", &model, "--json", "--max-new-tokens", "2"];
    let (code, stdout, stderr) = chat(&test, &arguments, b"The tea\nThe c\xffp\nThe cup\n");
    assert_eq!((code, stdout.lines().count()), (Some(0), 3), "{stderr}");
    assert!(stderr.contains("warning: the line is not valid UTF-8"), "{stderr}");
    let last: Value = serde_json::from_str(stdout.lines().last().expect("a line")).expect("JSON");
    assert_eq!(last["turn"], 3);
}

#[test]
fn two_models_answer_and_are_scored() {
    let (one, two, reward) = (fixture_model("gpt2"), fixture_model("qwen3"), fixture_model("qwen3-reward"));
    let arguments = ["--model", &one, "--versus", &two, "--reward-model", &reward, "--system", "Be kind."];
    let found = answers(&arguments, "The tea\n");
    assert_eq!(found.len(), 2);
    assert_eq!((&found[0]["model"], &found[1]["model"]), (&Value::from(one), &Value::from(two)));
    assert!(found.iter().all(|line| line["reward"].is_number()), "{found:?}");
}

#[test]
fn commands_over_a_pipe() {
    let test = CliTest::new();
    let model = fixture_model("gpt2");
    let script = "/set temperature 0\n/set heat 3\n/sing\n/regenerate\n/system Be kind.\nThe tea\n/save chat.jsonl\n/quit\nThe cup\n";
    let (code, stdout, stderr) = chat(&test, &["--model", &model, "--max-new-tokens", "4"], script);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stdout.lines().count(), 1, "nothing after /quit: {stdout}");
    for line in [
        "temperature 0, top-k off,",
        "warning: there is no setting `heat`; `/help` lists them",
        "warning: there is no command `/sing`; `/help` lists them",
        "warning: there is no prompt to answer yet",
        "the system prompt is set",
        "saved to `chat.jsonl`",
    ] {
        assert!(stderr.contains(line), "no `{line}` in {stderr}");
    }
    let row: Value = serde_json::from_str(&test.read("chat.jsonl")).expect("one row");
    let roles: Vec<&str> =
        row["messages"].as_array().expect("a list").iter().filter_map(|m| m["role"].as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    // The saved conversation is valid training data.
    test.succeeds(&["data", "check", "chat.jsonl"]);
}

#[test]
fn runs_and_checkpoints_can_be_talked_to_and_reward_models_cannot() {
    let test = CliTest::with("texts.jsonl", "{\"text\": \"The tea is good.\"}\n{\"text\": \"The kettle is warm.\"}\n");
    let model = fixture_model("gpt2");
    let train =
        ["sft", "--model", &model, "--data", "texts.jsonl", "--output-dir", "run", "--max-steps", "1", "--quiet"];
    test.succeeds(&train);
    let talk = |model: &str| chat(&test, &["--model", model, "--max-new-tokens", "4"], "The tea\n");
    let (whole, part) = (talk("run"), talk("run/checkpoints/step-000001"));
    assert_eq!((whole.0, &whole.1), (Some(0), &part.1), "{}{}", whole.2, part.2);
    let (code, _, stderr) = talk(&fixture_model("qwen3-reward"));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("this is a reward model, which does not answer"), "{stderr}");
    let (code, _, stderr) = talk("texts.jsonl");
    assert_eq!(code, Some(1), "{stderr}");
}

#[test]
fn a_model_without_a_template_says_which_form_it_takes_and_takes_one_by_name() {
    let test = CliTest::new();
    for model in ["bare", "other"].map(|name| test.path().join(name)) {
        std::fs::create_dir(&model).expect("a directory");
        for entry in std::fs::read_dir(fixture_model("gpt2")).expect("a fixture").flatten() {
            if entry.file_name() != "chat_template.jinja" {
                std::fs::copy(entry.path(), model.join(entry.file_name())).expect("copied");
            }
        }
    }
    let talk = |more: &[&str]| {
        let (code, _, stderr) =
            chat(&test, &[&["--model", "bare", "--max-new-tokens", "2"], more].concat(), "The tea\n");
        assert_eq!(code, Some(0), "{stderr}");
        stderr
    };
    let output = talk(&[]);
    assert!(
        output.contains("warning: `bare` has no chat template: it reads the conversation as `Human: …`"),
        "{output}"
    );
    // Two models share one warning.
    let output = talk(&["--versus", "other"]);
    let both = "warning: `bare` and `other` have no chat template: they read the conversation as `Human: …`";
    assert!(output.contains(both) && output.matches("chat template").count() == 1, "{output}");
    for chosen in [&["--format", "hh"][..], &["--chat-template", "chatml"]] {
        let output = talk(chosen);
        assert!(!output.contains("no chat template"), "{chosen:?}: {output}");
    }
}
