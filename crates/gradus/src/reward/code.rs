//! Programs that must pass tests, run in a sandbox ([`gradus_environments::sandbox`]).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use gradus_environments::sandbox::{ProgramOutput, Sandbox, SandboxConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::score::Count;
use super::{Reward, RewardError, Score, Scores, config_error, interrupted, report};
use crate::error::Result;
use crate::process::Interrupt;
use crate::progress::{Progress, Unwatched};
use crate::rollout::{Prompt, Rollout, Rollouts};

/// Interval between progress reports of the programs.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Keys of `reward.code`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CodeConfig {
    /// Column of the tests: a Python program, or a list of programs such as `["assert add(1, 2) == 3", …]`. A test that
    /// ends without an exception passes.
    pub tests: String,
    /// Value that is rewarded: the `share` of passed tests, or `all` for 1 if all tests pass and 0 otherwise. Default
    /// `all`.
    #[serde(default)]
    pub value: CodeValue,
    /// Sandbox of a program with one test.
    #[serde(default)]
    pub sandbox: SandboxConfig,
    /// Number of programs that run at the same time. Default 2.
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 256))]
    pub at_once: usize,
}

fn two() -> usize {
    2
}

/// Reward from the test results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CodeValue {
    /// 1 if all tests pass, otherwise 0.
    #[default]
    All,
    /// Share of passed tests.
    Share,
}

/// Runs the completion's program with each test of its row.
pub struct CodeReward {
    config: CodeConfig,
    sandbox: Sandbox,
    interrupt: Interrupt,
}

impl CodeReward {
    /// Creates the reward of `config`.
    ///
    /// # Errors
    /// If this machine cannot run programs in a sandbox.
    pub fn new(config: &CodeConfig, interrupt: &Interrupt) -> Result<Self> {
        let sandbox = Sandbox::open(&config.sandbox).map_err(|error| {
            config_error(format!("`reward.code.sandbox`: {error}"), error.hint().map(str::to_owned))
        })?;
        Ok(Self { config: config.clone(), sandbox, interrupt: interrupt.clone() })
    }

    fn tests(&self, prompt: &Prompt) -> Result<Vec<String>, RewardError> {
        let column = &self.config.tests;
        let wrong = |found: &Value| {
            RewardError::new(format!("the column `{column}` is `{found}`, expected a program or a list of programs"))
        };
        match prompt.columns.get(column) {
            Some(Value::String(text)) => Ok(vec![text.clone()]),
            Some(Value::Array(list)) if list.is_empty() => {
                Err(RewardError::new(format!("the column `{column}` holds no test")))
            }
            Some(Value::Array(list)) => {
                list.iter().map(|test| test.as_str().map(str::to_owned).ok_or_else(|| wrong(test))).collect()
            }
            Some(other) => Err(wrong(other)),
            None => Err(RewardError::new(format!("the row has no column `{column}`"))),
        }
    }

    /// Returns whether the program passes the test.
    fn passes(&self, code: &str, test: &str) -> Result<bool, RewardError> {
        if self.interrupt.is_raised() {
            return Err(RewardError::interrupted());
        }
        let secret = format!("{:032x}", rand::random::<u128>());
        // The harness reads these lines of stdin before the program runs. The program itself gets an empty stdin.
        let input = format!("{secret}\n{}\n{code}{test}", code.len());
        let outcome = self.sandbox.run(HARNESS, &input).map_err(|error| RewardError::new(error.to_string()))?;
        Ok(is_passed(&outcome, &secret))
    }
}

/// Runs the program and then the test in the same namespace, then prints the secret. A program that exits early prints
/// none.
const HARNESS: &str = r"
def _run():
    import os, sys
    channel = sys.stdin.buffer
    secret, size = channel.readline().strip(), int(channel.readline())
    code, test = channel.read(size), channel.read()
    out = os.dup(1)
    sys.stdin = open(os.devnull)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    names = {'__name__': '__main__'}
    exec(compile(code, '<completion>', 'exec'), names)
    exec(compile(test, '<test>', 'exec'), names)
    sys.stdout.flush()
    os.write(out, b'\n' + secret + b'\n')
_run()
";

fn is_passed(outcome: &ProgramOutput, secret: &str) -> bool {
    outcome.stdout.lines().any(|line| line == secret)
}

/// Returns the program of a completion: its last code block, or the whole text if it has none.
fn program(completion: &str) -> &str {
    let mut found = None;
    let mut at = 0;
    while let Some(open) = completion[at..].find("```") {
        let start = at + open + 3;
        let Some(line) = completion[start..].find('\n') else { break };
        let language = completion[start..start + line].trim();
        let body = start + line + 1;
        let end = completion[body..].find("```").map_or(completion.len(), |length| body + length);
        if ["", "python", "python3", "py", "Python"].contains(&language) {
            found = Some(&completion[body..end]);
        }
        at = (end + 3).min(completion.len());
    }
    found.unwrap_or(completion)
}

impl Reward for CodeReward {
    fn name(&self) -> String {
        "code".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        self.score_with_progress(rollouts, &Unwatched)
    }

    fn score_with_progress(&mut self, rollouts: &Rollouts, progress: &dyn Progress) -> Scores {
        type Found = Result<Score, RewardError>;
        let all = &rollouts.rollouts;
        let (next, done, is_stopped) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let found: Vec<Mutex<Option<Found>>> = all.iter().map(|_| Mutex::new(None)).collect();
        let of = |rollout: &Rollout| -> Found {
            let tests = self.tests(&rollouts.prompts[rollout.prompt])?;
            let code = program(&rollout.completion);
            let mut passed = 0;
            for test in &tests {
                passed += usize::from(self.passes(code, test)?);
            }
            let share = passed as f32 / tests.len() as f32;
            let value = match self.config.value {
                CodeValue::All => share.floor(),
                CodeValue::Share => share,
            };
            let counts = vec![Count::new("passed", passed as f64, tests.len())];
            Ok(Score { counts, ..Score::sequence(value, rollout.completion_ids.len()) })
        };
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(rollout) = all.get(at).filter(|_| !is_stopped.load(Ordering::Relaxed)) else { return };
                *found[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(of(rollout));
                done.fetch_add(1, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> =
                (0..self.config.at_once.clamp(1, all.len().max(1))).map(|_| scope.spawn(work)).collect();
            // Only this thread may report, because it owns `progress`.
            while !workers.iter().all(ScopedJoinHandle::is_finished) {
                std::thread::sleep(POLL_INTERVAL);
                let outcome = report(progress, done.load(Ordering::Relaxed), all.len());
                is_stopped.fetch_or(outcome.is_err(), Ordering::Relaxed);
            }
        });
        if is_stopped.into_inner() {
            return interrupted(rollouts);
        }
        let taken = |slot: Mutex<Option<Found>>| {
            slot.into_inner()
                .unwrap_or_else(PoisonError::into_inner)
                .unwrap_or_else(|| Err(RewardError::new("the program was not run")))
        };
        found.into_iter().map(taken).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_the_last_block_of_code() {
        assert_eq!(program("x = 1"), "x = 1");
        assert_eq!(program("Look:\n```python\nx = 1\n```\nbetter:\n```py\nx = 2\n```\nDone."), "x = 2\n");
        assert_eq!(program("```\nx = 3\n"), "x = 3\n");
        assert_eq!(program("```python\nx = 4\n```\nIt prints\n```text\n4\n```"), "x = 4\n");
        assert_eq!(program("``` "), "``` ");
    }
}
