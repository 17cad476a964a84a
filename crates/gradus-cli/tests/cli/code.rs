//! The reward of programs that pass tests, in the sandbox of the binary.

use gradus::reward::{self, CodeReward, Interrupt};
use gradus::rollout::{Prompt, Rollout, Rollouts, StopReason};
use gradus_environments::sandbox;
use serde_json::{Map, Value, json};

/// Returns the reward, or `None` if this machine has no sandbox.
fn code_reward() -> Option<CodeReward> {
    sandbox::register(env!("CARGO_BIN_EXE_gradus").into(), Vec::new());
    let config = json!({ "tests": "tests", "at_once": 4, "sandbox": { "seconds": 60 } });
    let config = serde_json::from_value(config).expect("keys of the reward");
    let reward = CodeReward::new(&config, &Interrupt::default());
    reward.map_err(|error| crate::skip::skipped("sandbox", &error.to_string())).ok()
}

/// One completion per row: its text, and its tests.
fn rollouts(rows: &[(&str, Value)]) -> Rollouts {
    let prompt = |(row, (_, tests)): (usize, &(&str, Value))| Prompt {
        row,
        text: "Write `add`.".into(),
        ids: vec![1],
        encoder_reads_prompt: false,
        messages: None,
        columns: Map::from_iter([("tests".to_owned(), tests.clone())]),
    };
    let rollout =
        |(row, (text, _)): (usize, &(&str, Value))| Rollout::one_turn(row, *text, vec![2], StopReason::StopId);
    Rollouts {
        prompts: rows.iter().enumerate().map(prompt).collect(),
        rollouts: rows.iter().enumerate().map(rollout).collect(),
        group_size: 1,
        tokenizer: None,
    }
}

const ADD: &str = "def add(a, b):\n    \"\"\"\n    >>> add(1, 2)\n    3\n    \"\"\"\n    return a + b\n";
const SUBTRACT: &str = "def add(a, b):\n    \"\"\"\n    >>> add(1, 2)\n    3\n    \"\"\"\n    return a - b\n";

const ASSERT: &str = "assert add(1, 2) == 3";
const UNITTEST: &str = "import unittest
class Test(unittest.TestCase):
    def test_add(self): self.assertEqual(add(1, 2), 3)
unittest.main()";
const DOCTEST: &str = "import doctest\ndoctest.testmod(raise_on_error=True)";
const EXIT: &str = "import sys\nassert add(1, 2) == 3\nsys.exit(0)";
const EXIT_OF_SITE: &str = "assert add(1, 2) == 3\nexit(0)";
const EXIT_IN_ASYNCIO: &str = "import asyncio, sys
async def main():
    assert add(1, 2) == 3
    sys.exit(0)
asyncio.run(main())";

#[test]
fn the_tests_decide() {
    let Some(mut reward) = code_reward() else { return };
    let mut rows: Vec<(String, &str, f32)> = Vec::new();
    for test in [ASSERT, UNITTEST, DOCTEST, EXIT, EXIT_OF_SITE, EXIT_IN_ASYNCIO] {
        rows.push((ADD.to_owned(), test, 1.0));
        rows.push((SUBTRACT.to_owned(), test, 0.0));
    }
    // Right programs.
    for lines in [
        "import pickle\nclass Point: pass\npickle.loads(pickle.dumps(Point()))",
        "import sys\nsys.stdout.close()",
        "import sys\nclass Quiet:\n    def write(self, text): pass\nsys.stdout = Quiet()",
        "import os\nos.write(1, b'no line break')",
    ] {
        rows.push((format!("{lines}\n{ADD}"), ASSERT, 1.0));
    }
    // Programs that switch the tests off.
    for lines in [
        "import builtins\nbuiltins.exec = lambda *_: None",
        "import builtins\nown = compile\nbuiltins.compile = lambda _, *more: own('pass', *more)",
        "SystemExit = BaseException",
        "import sys\ndef add(a, b): sys.exit(0)",
        "exec('def add(a, b): raise SystemExit')",
        "raise SystemExit",
    ] {
        rows.push((lines.to_owned(), ASSERT, 0.0));
    }
    for lines in ["add = exit", "import sys\nadd = sys.exit"] {
        rows.push((lines.to_owned(), "add(0)", 0.0));
    }
    let given: Vec<(&str, Value)> = rows.iter().map(|(program, test, _)| (program.as_str(), json!([test]))).collect();
    let scores = reward::apply(&mut reward, &rollouts(&given)).expect("scores");
    assert_eq!(scores.len(), rows.len());
    for (score, (program, test, expected)) in scores.iter().zip(&rows) {
        assert_eq!(score.total(), Some(*expected), "{program}\n{test}");
    }
}

#[test]
fn a_broken_test_is_an_error() {
    let Some(mut reward) = code_reward() else { return };
    for (tests, expected) in [
        (json!([ASSERT, " \n"]), "test 2 of the column `tests` is empty, expected a Python program"),
        (
            json!(format!("    {ASSERT}")),
            "test 1 of the column `tests` cannot be compiled (IndentationError: unexpected indent (<test>, line 1)), \
             expected a Python program",
        ),
    ] {
        let error = reward::apply(&mut reward, &rollouts(&[(ADD, json!(ASSERT)), (ADD, tests)])).expect_err("broken");
        assert_eq!(error.to_string(), format!("reward for prompt 2: `code`: {expected}"));
        assert_eq!(error.hint(), Some("correct the test, or remove it from the row"));
    }
}
