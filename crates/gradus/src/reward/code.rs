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
    /// Column of the tests: a Python program, or a list of programs such as `["assert add(1, 2) == 3", …]`. A test passes
    /// if it ends without an exception, or with `sys.exit(0)`, as `unittest.main()` does. If the completion's program
    /// exits, the test fails. A test that cannot be compiled, or is empty, is an error.
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
    ///
    /// # Errors
    /// If the test is no program: then no completion could pass it, or every one.
    fn passes(&self, code: &str, number: usize, test: &str) -> Result<bool, RewardError> {
        let broken = |what: &str| {
            let column = &self.config.tests;
            RewardError::new(format!("test {number} of the column `{column}` {what}, expected a Python program"))
                .with_hint("correct the test, or remove it from the row")
        };
        if test.trim().is_empty() {
            return Err(broken("is empty"));
        }
        if self.interrupt.is_raised() {
            return Err(RewardError::interrupted());
        }
        let secret = format!("{:032x}", rand::random::<u128>());
        // The harness reads these lines of stdin before the program runs. The program itself gets an empty stdin.
        let input = format!("{secret}\n{}\n{code}{test}", code.len());
        let outcome = self.sandbox.run(HARNESS, &input).map_err(|error| RewardError::new(error.to_string()))?;
        match verdict(&outcome, &secret) {
            Verdict::Passed => Ok(true),
            Verdict::Failed => Ok(false),
            Verdict::Broken(error) => Err(broken(&format!("cannot be compiled ({error})"))),
        }
    }
}

/// Compiles the test, then runs the program and the test in the module `__main__`. Then prints the secret, with the error if the test cannot be
/// compiled. A program that exits early prints none.
///
/// A program can replace functions such as `exec`, and the names of the module are its own. So the harness looks up everything before.
const HARNESS: &str = r"
def _run():
    import builtins, os, sys
    channel = sys.stdin.buffer
    secret, size = channel.readline().strip(), int(channel.readline())
    code, test = channel.read(size), channel.read()
    out = os.dup(1)
    sys.stdin = open(os.devnull)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    names, run, write, put, exits = globals(), exec, os.write, setattr, SystemExit
    # Files of the program. In `exec` of a text, the file is `<string>`.
    files = ('<completion>', '<string>')
    del names['_run']
    try:
        test = compile(test, '<test>', 'exec')
    except (SyntaxError, ValueError, RecursionError) as error:
        text = ' '.join(f'{type(error).__name__}: {error}'.split())
        write(out, b'\n' + secret + b' ' + text.encode(errors='replace') + b'\n')
        return
    # A program that stores a function that exits, as in `add = exit`, stores one of its own file. So a test that calls it does not pass.
    own = {}
    run(compile('def leave(code=None): raise SystemExit(code)', '<completion>', 'exec'), own)
    places = [(module, name) for module in (sys, builtins) for name in ('exit', 'quit') if hasattr(module, name)]
    usual = [(module, name, getattr(module, name)) for module, name in places]
    for module, name in places:
        put(module, name, own['leave'])
    run(compile(code, '<completion>', 'exec'), names)
    for module, name, function in usual:
        put(module, name, function)
    try:
        run(test, names)
    except exits as end:
        frame = end.__traceback__.tb_next
        while frame:
            if frame.tb_frame.f_code.co_filename in files:
                raise
            frame = frame.tb_next
        if end.code is not None and end.code != 0:
            raise
    write(out, b'\n' + secret + b'\n')
_run()
";

/// Result of a test.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    /// The test cannot be compiled, with the error.
    Broken(String),
}

fn verdict(outcome: &ProgramOutput, secret: &str) -> Verdict {
    match outcome.stdout.lines().find_map(|line| line.strip_prefix(secret)) {
        None => Verdict::Failed,
        Some("") => Verdict::Passed,
        Some(error) => Verdict::Broken(error.trim().to_owned()),
    }
}

/// Languages of a code block whose program counts. A block without a language counts, too.
const LANGUAGES: [&str; 4] = ["", "python", "python3", "py"];

/// A code block of Markdown that is being read.
struct Block {
    /// Character of its fences: `` ` `` or `~`.
    mark: char,
    /// Length of the opening fence. The closing one is at least as long.
    length: usize,
    /// Width of what is before the opening fence in its line: spaces, or the number of a list. The lines of the program may be indented by as much.
    indent: usize,
    /// Width of what is removed from each line of the program: spaces of its first line, at most `indent`.
    indent_of_text: usize,
    is_python: bool,
    has_language: bool,
    text: String,
}

impl Block {
    /// Returns the block that this line opens.
    fn opened(line: &str) -> Option<Self> {
        let fence = line.strip_suffix('\n')?.trim_end();
        let of = |mark: char| {
            let fence_and_before = fence.trim_end_matches(|c: char| c != mark);
            let before = fence_and_before.trim_end_matches(mark);
            let length = fence_and_before.len() - before.len();
            let info = &fence[fence_and_before.len()..];
            let language = info.split(|c: char| !c.is_alphanumeric()).find(|word| !word.is_empty());
            let is_python = LANGUAGES.contains(&language.unwrap_or_default().to_lowercase().as_str());
            let is_of_list = before.chars().all(|c| c.is_ascii_digit() || " \t-*+.)".contains(c));
            // Models also open a block behind text, as in "Here it is: ```python".
            let is_behind_text = mark == '`' && is_python && !before.contains("```");
            let indent = if is_of_list { before.len() } else { 0 };
            let opens = length >= 3 && (is_of_list || is_behind_text);
            opens.then(|| Self {
                mark,
                length,
                indent,
                indent_of_text: 0,
                is_python,
                has_language: language.is_some(),
                text: String::new(),
            })
        };
        of('`').or_else(|| of('~'))
    }

    /// Returns the end of the program before the closing fence, if this line has one. A line that begins with a fence closes the block, whatever
    /// follows, such as `</answer>`. A fence that is indented further than the block is a part of the program, such as one in a docstring.
    fn end<'l>(&self, line: &'l str) -> Option<&'l str> {
        let line = line.trim_end();
        let fence = line.trim_start_matches([' ', '\t']);
        let indent = line.len() - fence.len();
        let length = fence.len() - fence.trim_start_matches(self.mark).len();
        if length >= self.length && indent <= self.indent + 3 {
            return Some("");
        }
        // Models also close a block behind code, as in "x = 1```".
        let code = line.trim_end_matches(self.mark);
        let is_behind_code = line.len() - code.len() >= self.length && !code.trim().is_empty();
        is_behind_code.then_some(code)
    }

    /// Adds a line to the program, whose first line is not indented.
    fn push(&mut self, line: &str) {
        let spaces = line.len() - line.trim_start_matches([' ', '\t']).len();
        if self.text.trim().is_empty() && !line.trim().is_empty() {
            self.indent_of_text = spaces.min(self.indent);
        }
        self.text.push_str(&line[spaces.min(self.indent_of_text)..]);
    }
}

/// Returns the program of a completion: its last block of Python code, or the whole text if it has none. A block that does not name its language,
/// such as one of output, counts only if no block names Python. A block without a closing fence extends to the end. An empty one does not count.
fn program(completion: &str) -> String {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<Block> = None;
    for line in completion.split_inclusive('\n') {
        let Some(mut block) = open.take() else {
            open = Block::opened(line);
            continue;
        };
        let end = block.end(line);
        block.push(end.unwrap_or(line));
        if end.is_none() {
            open = Some(block);
            continue;
        }
        blocks.push(block);
        // "```python" also ends a draft without a closing fence.
        open = Block::opened(line).filter(|next| next.is_python && next.has_language);
    }
    blocks.extend(open.filter(|block| !block.text.trim().is_empty()));
    blocks.retain(|block| block.is_python);
    let named = blocks.iter().rposition(|block| block.has_language);
    match named.or(blocks.len().checked_sub(1)) {
        Some(at) => blocks.swap_remove(at).text,
        None => completion.to_owned(),
    }
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
            for (i, test) in tests.iter().enumerate() {
                passed += usize::from(self.passes(&code, i + 1, test)?);
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
    use gradus_environments::sandbox::End;

    use super::*;

    #[test]
    fn the_program_is_the_last_block_of_code() {
        assert_eq!(program("x = 1"), "x = 1");
        assert_eq!(program("Look:\n```python\nx = 1\n```\nbetter:\n```py\nx = 2\n```\nDone."), "x = 2\n");
        assert_eq!(program("```\nx = 3\n"), "x = 3\n");
        assert_eq!(program("```python\nx = 4\n```\nIt prints\n```text\n4\n```"), "x = 4\n");
        assert_eq!(program("``` "), "``` ");
        assert_eq!(program("```python\nx = 5"), "x = 5");
    }

    #[test]
    fn a_block_has_the_fences_of_markdown() {
        for fenced in [
            "```PYTHON\nif x:\n    y = 1\n```",
            "```Py\r\nif x:\n    y = 1\n```\r\n",
            "```python title=\"a.py\"\nif x:\n    y = 1\n```",
            "``` {.python}\nif x:\n    y = 1\n```",
            "~~~python\nif x:\n    y = 1\n~~~",
            "````python\nif x:\n    y = 1\n````",
            "1. Do:\n   ```python\n   if x:\n       y = 1\n   ```\n2. Run it.",
            "- ```python\n  if x:\n      y = 1\n  ```",
            "\t```\n\tif x:\n\t    y = 1\n\t```",
            "text ``` inline ``` then\n```python\nif x:\n    y = 1\n```",
            "Code between ``` and ```\n```python\nif x:\n    y = 1\n```",
            "Here it is: ```python\nif x:\n    y = 1\n```\nDone.",
            "Here it is: ```\nif x:\n    y = 1\n```\nDone.",
            // Text behind the closing fence.
            "<answer>```python\nif x:\n    y = 1\n```</answer>",
            "```python\nif x:\n    y = 1\n``` That is it.\nMore.",
            "```\nif x:\n    y = 0\n``` That is a draft.\nBetter:\n```\nif x:\n    y = 1\n```",
            "```python\nif x:\n    y = 1\n```.\nThis works.",
            "```python\nif x:\n    y = 1\n```<|im_end|>",
            "```python\nif x:\n    y = 0</think>\n```python\nif x:\n    y = 1\n```",
            // Programs that are not indented, in blocks that are.
            "10. ```python\nif x:\n    y = 1\n```",
            "10. ```python\nif x:\n    y = 1\n    ```",
            "    ```python\n\nif x:\n    y = 1\n    ```",
            // Blocks of output, and fences without a block.
            "```python\nif x:\n    y = 1\n```\n```\n",
            "```python\nif x:\n    y = 1\n```\n\n```\nDone.",
            "```markdown\n```python\nif x:\n    y = 1\n```\n```\n",
            "```python\nif x:\n    y = 1\n```\nOutput:\n```\n1\n```",
            "```\nif x:\n    y = 1\n```\n```\n",
        ] {
            assert_eq!(program(fenced).trim_start_matches('\n'), "if x:\n    y = 1\n", "{fenced}");
        }
        assert_eq!(program("1. ```python\ndef f():\n  return 1\n```"), "def f():\n  return 1\n");
        assert_eq!(program("1.\t```python\n\tif x:\n\t\ty = 1\n\t```"), "if x:\n\ty = 1\n");
        assert_eq!(program("```python\nx = 1```\nDone."), "x = 1");
        let docstring = "def f():\n    \"\"\"\n    ```python\n    f()\n    ```\n    \"\"\"\n";
        assert_eq!(program(&format!("```python\n{docstring}```\n")), docstring);
        assert_eq!(program(&format!("````python\n{docstring}```\n````\n")), format!("{docstring}```\n"));
    }

    #[test]
    fn the_line_with_the_secret_is_the_verdict() {
        let of = |stdout: &str| {
            let outcome = ProgramOutput { stdout: stdout.into(), stderr: String::new(), end: End::Code(0) };
            verdict(&outcome, "5ec2e7")
        };
        assert_eq!(of("1\n5ec2e7\n"), Verdict::Passed);
        assert_eq!(of("1\n0\n"), Verdict::Failed);
        assert_eq!(of("\n5ec2e7 SyntaxError: no\n"), Verdict::Broken("SyntaxError: no".into()));
    }
}
