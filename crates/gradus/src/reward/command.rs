//! A reward from an external program, in any language, over JSON lines.
//!
//! The program reads one JSON object per line (`prompt`, `completion`, `messages` if the row holds a conversation, and
//! the row's other columns). It prints one line for each: a number, `null` for no judgement, or an object of named
//! parts (`judgement`). Each part has a number or segments of the completion. The program is started once and serves
//! all batches. Each of its mistakes is an error of the row at which it happened.

mod judgement;

use serde_json::{Map, Value};

use super::config::CommandConfig;
use super::{Interrupt, Reward, RewardError, Scores, report};
use crate::error::Result;
use crate::process::Program;
use crate::progress::{Progress, Unwatched};
use crate::rollout::{Prompt, Rollout, Rollouts};
use judgement::Judgement;

/// Name of the program in messages.
pub(super) const WHAT: &str = "reward command";

/// What each answer must be. Larger numbers are infinite as `f32`.
const EXPECTED: &str = "a number (at most 3.4e38), null or an object of parts, each a number, null or a list of [start, end, value] \
                        with whole numbers from 0 as start and end,";

/// Scores completions with a program that runs in parallel to the training.
pub struct CommandReward {
    name: String,
    program: Program,
}

impl CommandReward {
    /// Starts the program; an `interrupt` ends the wait for its answers.
    ///
    /// # Errors
    /// If no program is given, it cannot be started, or the time limit is not a positive number.
    pub fn start(config: &CommandConfig, interrupt: &Interrupt) -> Result<Self> {
        let program = Program::start(WHAT, &config.program, config.timeout_s, interrupt)?;
        Ok(Self { name: config.name.clone().unwrap_or_else(|| "command".into()), program })
    }
}

impl Reward for CommandReward {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        self.score_with_progress(rollouts, &Unwatched)
    }

    fn score_with_progress(&mut self, rollouts: &Rollouts, progress: &dyn Progress) -> Scores {
        let lines = rollouts.rollouts.iter().map(|rollout| request(&rollouts.prompts[rollout.prompt], rollout));
        let deadline = self.program.request(lines.collect());
        let each = rollouts.rollouts.iter().enumerate().map(|(i, rollout)| {
            let tokens = rollout.completion_ids.len();
            let answer = self.program.answer(deadline, EXPECTED, Judgement::parse)?;
            // The remaining answers must not reach a later batch, so the program is ended.
            report(progress, i + 1, rollouts.len()).map_err(|_| self.program.interrupt())?;
            let score = answer.score(&rollout.completion, tokens, || rollouts.ranges(i));
            score.map_err(|error| RewardError::new(error.to_string()))?.map_err(RewardError::new)
        });
        let mut scores: Scores = each.collect();
        // If the program printed two lines for one row, the answers above belong to the wrong rows.
        if let Some(last) = scores.last_mut().filter(|last| last.is_ok())
            && let Err(error) = self.program.expect_silence()
        {
            *last = Err(error);
        }
        scores
    }
}

/// Returns one line for the program. `prompt` and `completion` are always the sampled ones and override columns of the
/// same name.
fn request(prompt: &Prompt, rollout: &Rollout) -> String {
    let mut object: Map<String, Value> = Map::new();
    object.insert("prompt".into(), prompt.text.clone().into());
    object.insert("completion".into(), rollout.completion.clone().into());
    if let Some(messages) = &prompt.messages {
        object.insert("messages".into(), serde_json::to_value(messages).expect("messages are strings and JSON"));
    }
    for (name, value) in &prompt.columns {
        if !object.contains_key(name) {
            object.insert(name.clone(), value.clone());
        }
    }
    let mut line = Value::Object(object).to_string();
    line.push('\n');
    line
}

#[cfg(all(test, unix))]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::super::Score;
    use super::super::test_rollouts::{Reports, completions, reports, rollouts, totals};
    use super::*;

    fn shell(script: &str, timeout_s: f64) -> CommandReward {
        let program = ["sh", "-c", script].map(String::from).to_vec();
        CommandReward::start(&CommandConfig { timeout_s, ..CommandConfig::new(program) }, &Interrupt::default())
            .expect("a shell")
    }

    #[track_caller]
    fn check_failure(script: &str, timeout_s: f64, row: usize, contains: &[&str]) {
        let error =
            super::super::apply(&mut shell(script, timeout_s), &completions(["a", "b", "c"])).expect_err("a failure");
        let message = error.to_string();
        assert!(message.starts_with(&format!("reward for prompt {row}: `command`: ")), "{message}");
        for part in contains {
            assert!(message.contains(part), "`{part}` is missing in: {message}");
        }
    }

    #[test]
    fn one_line_in_and_one_number_out_over_several_batches() {
        let mut reward = shell("n=0; while read -r line; do n=$((n+1)); echo $n.5; done", 60.0);
        assert_eq!(totals(&mut reward, &completions(["a", "b"])), [1.5, 2.5]);
        assert_eq!(totals(&mut reward, &completions(["c"])), [3.5]);
    }

    #[test]
    fn every_answer_is_reported_and_an_interrupted_program_ends() {
        let mut reward = shell("while read -r line; do echo 1; done", 60.0);
        assert_eq!(reports(&mut reward, &completions(["a", "b", "c"])), [(0, 3), (1, 3), (2, 3), (3, 3)]);
        let stops = Reports { stops_after: Some(3), ..Reports::default() };
        let made = completions(["a", "b", "c"]);
        let error = super::super::apply_with_progress(&mut reward, &made, &stops).expect_err("interrupted");
        assert!(matches!(error, crate::Error::Interrupted), "{error}");
        assert_eq!(stops.calls.into_inner(), [(0, 3), (1, 3), (2, 3)]);
        let error = reward.score(&made).remove(0).expect_err("the program has ended");
        assert!(error.is_interrupted, "{error}");
    }

    #[test]
    fn the_program_sees_the_row() {
        let made = rollouts([("Q: ", json!({ "answer": 7, "completion": "gold" }), "7\n\"yes\"")]);
        let expected = r#"{"prompt":"Q: ","completion":"7\n\"yes\"","answer":7}"#;
        let script =
            format!("IFS= read -r line; if [ \"$line\" = '{expected}' ]; then echo 1; else echo \"$line\"; fi");
        assert_eq!(totals(&mut shell(&script, 60.0), &made), [1.0]);
    }

    #[test]
    fn null_is_unscored_and_never_0() {
        let mut reward = shell("while read -r line; do echo null; done", 60.0);
        assert_eq!(reward.score(&completions(["a"])), [Ok(Score::unscored())]);
    }

    #[test]
    fn a_batch_larger_than_the_pipes_does_not_block() {
        // The program writes long lines to stderr before it reads on; pipes hold 64 KiB.
        let text = "word ".repeat(2000);
        let texts = vec![text.as_str(); 60];
        let mut reward = shell("while read -r line; do echo \"$line\" >&2; echo 1; done", 30.0);
        assert_eq!(totals(&mut reward, &completions(texts)), vec![1.0; 60]);
    }

    #[test]
    fn a_crash_names_the_row_and_shows_the_last_words() {
        let script = "read -r line; echo 1; read -r line; echo 'out of paper' >&2; exit 3";
        check_failure(script, 60.0, 2, &["`sh` ended before it answered (exit status: 3)", "out of paper"]);
    }

    #[test]
    fn too_few_lines_are_an_error() {
        check_failure(
            "read -r line; echo 1; cat > /dev/null",
            3.0,
            2,
            &["did not answer within 3 s: 1 of 3 answers arrived"],
        );
    }

    #[test]
    fn too_many_lines_are_an_error_of_the_same_batch() {
        let script = "while read -r line; do printf '1\\n2\\n'; done";
        check_failure(script, 60.0, 3, &["printed more lines than it was given", "one too many"]);
    }

    #[test]
    fn a_hang_ends_at_the_time_limit() {
        check_failure(
            "echo thinking >&2; exec sleep 60",
            2.0,
            1,
            &["did not answer within 2 s: 0 of 3 answers arrived", "thinking"],
        );
    }

    #[test]
    fn what_is_no_number_is_an_error_of_its_row_only() {
        check_failure(
            "read -r line; echo 1; echo good; echo 3; cat > /dev/null",
            60.0,
            2,
            &["a number (at most 3.4e38), null or an object of parts", "`good`"],
        );
        check_failure("read -r line; echo NaN; echo 2; echo 3; cat > /dev/null", 60.0, 1, &["`NaN`"]);
        check_failure("read -r line; echo 1e300; echo 2; echo 3; cat > /dev/null", 60.0, 1, &["`1e300`"]);
        let segment = r#"{"a": [[0.0, 1.0, 1]]}"#;
        check_failure(
            &format!("read -r line; echo '{segment}'; echo 2; echo 3; cat > /dev/null"),
            60.0,
            1,
            &["[start, end, value] with whole numbers from 0 as start and end", segment],
        );
        check_failure("read -r line; echo true; echo 2; echo 3; cat > /dev/null", 60.0, 1, &["`true`"]);
        let mut reward = shell("read -r line; echo 1; echo good; echo 3; cat > /dev/null", 60.0);
        let scores = reward.score(&completions(["a", "b", "c"]));
        assert_eq!(scores.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn a_failure_stays_a_failure() {
        let mut reward = shell("exit 0", 60.0);
        for _ in 0..2 {
            let error = reward.score(&completions(["a"])).remove(0).unwrap_err();
            assert!(error.message.contains("ended before it answered"), "{}", error.message);
        }
    }

    #[test]
    fn lines_nobody_asked_for_are_an_error() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [go, done] = ["go", "done"].map(|name| dir.path().join(name));
        let script = format!(
            "read -r line; echo 1; while [ ! -e {} ]; do sleep 0.02; done; echo 2; touch {}; cat > /dev/null",
            go.display(),
            done.display()
        );
        let mut reward = shell(&script, 60.0);
        assert_eq!(totals(&mut reward, &completions(["a"])), [1.0]);
        std::fs::write(go, "").expect("written");
        while !done.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The line is in the pipe, and a thread reads it from there.
        std::thread::sleep(Duration::from_secs(1));
        let error = reward.score(&completions(["b"])).remove(0).unwrap_err();
        assert!(
            error.message.contains("printed more lines than it was given (one too many: `2`)"),
            "{}",
            error.message
        );
    }

    #[test]
    fn a_dropped_reward_leaves_no_process() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("pid");
        let reward = shell(&format!("echo $$ > {}; exec sleep 60", file.display()), 60.0);
        let pid = loop {
            match std::fs::read_to_string(&file).map(|text| text.trim().to_string()) {
                Ok(pid) if !pid.is_empty() => break pid,
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        drop(reward);
        let alive = std::process::Command::new("kill").args(["-0", &pid]).output().expect("kill").status.success();
        assert!(!alive, "process {pid} is still there");
    }

    /// Whether the process whose id appears in `file` is alive; waits for the id.
    fn lives(file: &std::path::Path) -> bool {
        let started = Instant::now();
        loop {
            match std::fs::read_to_string(file).map(|text| text.trim().to_string()) {
                Ok(pid) if !pid.is_empty() => {
                    // A killed process may still be a zombie, which counts as dead.
                    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                    return stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'));
                }
                _ if started.elapsed() > Duration::from_secs(120) => panic!("nobody wrote {}", file.display()),
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Whether the process ends soon: a signal takes a moment.
    fn dies(file: &std::path::Path) -> bool {
        (0..12_000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            !lives(file)
        })
    }

    #[test]
    fn what_a_program_started_ends_with_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("pid");
        // The child keeps stdout open. The crash of its parent must be noticed nevertheless.
        let script = format!("sleep 60 & echo $! > {}; read -r line; exit 3", file.display());
        check_failure(&script, 30.0, 1, &["ended before it answered (exit status: 3)"]);
        assert!(dies(&file), "the child outlived its parent");
        // A program that ends on request also leaves no child behind.
        std::fs::remove_file(&file).expect("there");
        let script =
            format!("sleep 60 > /dev/null & echo $! > {}; while read -r line; do echo 1; done", file.display());
        let mut reward = shell(&script, 30.0);
        assert_eq!(totals(&mut reward, &completions(["a"])), [1.0]);
        assert!(lives(&file));
        drop(reward);
        assert!(dies(&file), "the child outlived its parent");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_left_the_group_of_a_program_ends_with_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [child, orphan] = ["child", "orphan"].map(|name| dir.path().join(name));
        // The parent of the second process has ended. Both keep stdout open.
        let start = format!(
            "setsid sleep 60 & echo $! > {}; (setsid sleep 60 & echo $! > {})",
            child.display(),
            orphan.display()
        );
        let script = format!("{start}; while read -r line; do echo 1; done");
        let mut reward = shell(&script, 30.0);
        assert_eq!(totals(&mut reward, &completions(["a"])), [1.0]);
        assert!(lives(&child) && lives(&orphan));
        drop(reward);
        assert!(dies(&child) && dies(&orphan), "they outlived the program");
        // The end of the program is noticed, although its descendants keep its output open, and so is its time limit.
        for (end, message) in [("read -r line; exit 3", "(exit status: 3)"), ("exec sleep 60", "did not answer")] {
            for file in [&child, &orphan] {
                std::fs::remove_file(file).expect("there");
            }
            check_failure(&format!("{start}; {end}"), 3.0, 1, &[message]);
            assert!(dies(&child) && dies(&orphan), "they outlived the program");
        }
    }

    #[test]
    fn what_a_program_prints_is_bounded() {
        check_failure("tr '\\0' x < /dev/zero", 30.0, 1, &["printed a line of more than 1048576 bytes"]);
        // Unrequested lines stay in the program.
        let mut reward = shell("read -r line; yes 1", 30.0);
        let error = reward.score(&completions(["a"])).remove(0).unwrap_err();
        assert!(error.message.contains("printed more lines than it was given"), "{}", error.message);
    }

    #[test]
    fn an_interrupt_ends_the_wait_at_once() {
        let interrupt = Interrupt::default();
        let config = CommandConfig { timeout_s: 60.0, ..CommandConfig::new(["sleep", "60"]) };
        let mut reward = CommandReward::start(&config, &interrupt).expect("sleep");
        std::thread::spawn({
            let interrupt = interrupt.clone();
            move || {
                std::thread::sleep(Duration::from_millis(200));
                interrupt.raise();
            }
        });
        let error = super::super::apply(&mut reward, &completions(["a"])).expect_err("interrupted");
        assert!(matches!(error, crate::Error::Interrupted), "{error}");
    }

    #[test]
    fn what_cannot_be_started_is_a_configuration_error() {
        let error = |program: &[&str], timeout_s| {
            let config = CommandConfig { timeout_s, ..CommandConfig::new(program.iter().copied()) };
            CommandReward::start(&config, &Interrupt::default()).err().expect("refused").to_string()
        };
        let missing = error(&["/nowhere/score"], 1.0);
        assert!(missing.starts_with("the reward command `/nowhere/score` could not be started: "), "{missing}");
        assert_eq!(error(&[], 1.0), "the reward command has no program");
        assert_eq!(error(&["sh"], 0.0), "the reward command's `timeout_s` is 0, but seconds above 0 are needed");
    }
}
