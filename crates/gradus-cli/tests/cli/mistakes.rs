//! Typical mistakes of new users, with the exact messages that they get (`mistakes.txt`).

use std::path::Path;

use crate::harness::{CliTest, fixture_model};

const ROWS: &str = "{\"prompt\": \"One\", \"completion\": \" two\"}\n\
                    {\"prompt\": \"Three\", \"completion\": \" four\"}\n\
                    {\"prompt\": \"Five\", \"completion\": \" six\"}\n";
const PAIRS: &str = "{\"prompt\": \"One\", \"chosen\": \" two\", \"rejected\": \" three\"}\n\
                     {\"prompt\": \"Two\", \"chosen\": \" four\", \"rejected\": \" one\"}\n\
                     {\"prompt\": \"Six\", \"chosen\": \" seven\", \"rejected\": \" none\"}\n";

/// Creates a directory with small models, and with valid and invalid rows.
fn playground() -> CliTest {
    let test = CliTest::with("rows.jsonl", ROWS);
    test.write("pairs.jsonl", PAIRS);
    let chat = r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}"#;
    test.write("chat.jsonl", chat);
    let broken = "{\"prompt\": \"One\", \"completion\": \" two\"}\n\
                  {\"prompt\": \"Two\", \"completion\":\n\
                  {\"prompt\": 3, \"completion\": \" x\"}\n";
    test.write("broken.jsonl", broken);
    let marked = "{\"prompt\": \"One\", \"completion\": \" two\", \"label\": true}\n\
                  {\"prompt\": \"Two\", \"completion\": \" one\", \"label\": \"maybe\"}\n";
    test.write("marked.jsonl", marked);
    test.write("other.jsonl", r#"{"foo": "bar"}"#);
    test.write("ids.jsonl", "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4, 5, 6]}\n");
    test.write("empty.jsonl", "");
    test.write("notes.md", "hello\n");
    for (name, fixture) in [("model", "qwen3"), ("reward", "qwen3-reward"), ("gpt2", "gpt2")] {
        let to = test.path().join(name);
        std::fs::create_dir(&to).expect("a directory");
        for entry in std::fs::read_dir(fixture_model(fixture)).expect("a fixture") {
            let from = entry.expect("an entry").path();
            let file = from.file_name().expect("a name");
            // One model has no chat template.
            if name != "gpt2" || file != "chat_template.jinja" {
                std::fs::copy(&from, to.join(file)).expect("copied");
            }
        }
    }
    test
}

/// A mistake in `mistakes.txt`, with the expected message and exit code.
struct Mistake<'a> {
    line: &'a str,
    stderr: String,
    code: i32,
}

fn mistakes(text: &str) -> Vec<Mistake<'_>> {
    let blocks = text.split("$ gradus ").skip(1);
    let read = |block| -> Option<Mistake<'_>> {
        let (line, rest): (&str, &str) = str::split_once(block, '\n')?;
        let (stderr, code) = rest.trim_end().rsplit_once('\n')?;
        let code = code.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?;
        Some(Mistake { line, stderr: format!("{stderr}\n"), code })
    };
    blocks.map(|block| read(block).unwrap_or_else(|| panic!("no mistake: {block}"))).collect()
}

#[test]
fn every_mistake_is_told_what_is_wrong_and_what_to_do() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/mistakes.txt");
    let text = std::fs::read_to_string(&path).expect("part of the repository");
    let mistakes = mistakes(&text);
    assert!(mistakes.len() >= 50, "{} mistakes", mistakes.len());
    let test = playground();
    let mut found = String::new();
    for Mistake { line, stderr, code } in mistakes {
        let run = test.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(run.stdout, "", "gradus {line}");
        // clap's messages end with an empty line.
        let actual = format!("{}\n", run.stderr.trim_end());
        if (run.code, actual.as_str()) != (code, stderr.as_str()) {
            found += &format!("$ gradus {line}\n{actual}[{}]\n\n", run.code);
        }
        // A failed start leaves a directory that must not affect the next mistake.
        let _ = std::fs::remove_dir_all(test.path().join("runs"));
    }
    assert!(found.is_empty(), "said otherwise than in mistakes.txt:\n\n{found}");
}

#[test]
fn a_start_that_failed_is_not_in_the_way_of_the_next() {
    let test = playground();
    let arguments = ["sft", "--model", "gpt2", "--output-dir", "run", "--max-steps", "1", "-q", "--data"];
    let start = |data: &'static str| test.run(&[&arguments[..], &[data]].concat());
    assert_eq!(start("chat.jsonl").code, 1);
    assert!(test.read("run/config.yml").contains("chat.jsonl"), "it has left something");
    let second = start("rows.jsonl");
    assert_eq!(second.code, 0, "{}", second.stderr);
    assert!(!test.read("run/log.txt").contains("chat.jsonl"), "the log is that of the second");
    // A directory with training results is kept.
    assert_eq!(start("rows.jsonl").code, 1);
}

#[test]
fn a_reward_that_judges_nothing_ends_the_run_after_all_prompts() {
    let test = playground();
    test.write("null.sh", "while read -r line; do echo null; done\n");
    let arguments = "ppo --model model --data rows.jsonl --eval-fraction 0 --max-new-tokens 2 --max-steps 5 --group-size 2 \
                     --batch-size 1 -q --reward-command";
    let run = test.run(&arguments.split(' ').chain(["sh null.sh"]).collect::<Vec<_>>());
    assert!(
        run.stderr.ends_with(
            "error: the reward `command` has scored none of the 6 completions so far\n\
             hint: a reward may answer `null` (Python: `None`) for rows to which it does not apply; return a number for other rows\n"
        ),
        "{}",
        run.stderr
    );
    assert!(run.stderr.contains("step 2: the reward `command` has scored none of the 4 completions"), "{}", run.stderr);
    assert_eq!(run.code, 1);
}

/// The first evaluation, two of three batches and the last evaluation contain only rows that the reward does not judge.
#[test]
fn a_reward_may_judge_few_rows() {
    let test = playground();
    let script =
        "n=0; while read -r line; do n=$((n+1)); case $n in 8) echo 1;; 9) echo 0;; *) echo null;; esac; done\n";
    test.write("few.sh", script);
    let arguments = "grpo --model model --data rows.jsonl --eval-data rows.jsonl --max-new-tokens 2 --max-steps 3 --group-size 2 \
                     --batch-size 1 --output-dir run -q --reward-command";
    test.succeeds(&arguments.split(' ').chain(["sh few.sh"]).collect::<Vec<_>>());
    let log = test.read("run/log.txt");
    assert_eq!(log.matches("`eval_reward` has no value in this evaluation").count(), 1, "{log}");
    assert_eq!(log.matches("Without a score until step 3, the run ends with an error").count(), 2, "{log}");
    let rows: Vec<serde_json::Value> =
        test.read("run/metrics.jsonl").lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    assert_eq!(rows.iter().map(|row| &row["reward"]).filter(|reward| !reward.is_null()).count(), 1, "{rows:?}");
    assert!(test.path().join("run/model/config.json").exists());
}
