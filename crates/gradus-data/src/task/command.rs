//! A task from an external program, in any language, that prints rows as JSON lines.
//!
//! The program reads one line, `{"split": "train", "from": null, "max_rows": null}`: the requested split, the value of `data.from`,
//! and the maximum number of rows. It prints one JSON object per row: `prompt` and, if there are any, `references` (one text or
//! several). All other keys become columns that rewards and metrics read. The program exits when it is done. Once enough rows have
//! arrived, it is ended.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::files::texts_of;
use super::{Files, Origin, Sample, Split, Task};
use crate::data::RowLocation;
use crate::error::{Error, Result, excerpt};
use crate::metric::MetricConfig;
use crate::process::{Program, ProgramError, TIMEOUT_S, default_timeout_s};

/// Name of the program in messages.
const WHAT: &str = "task command";

/// An external program that prints rows: `[program, args…]`, or a mapping with `program` and more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandTask {
    /// The program and its arguments.
    pub program: Vec<String>,
    /// Seconds that the program may take for one row. Default 60.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: f64,
    /// Metrics of the task's completions, unless others are configured. Default: none.
    #[serde(default, deserialize_with = "crate::metric::read_list")]
    #[schemars(schema_with = "crate::metric::schema_of_list")]
    pub metrics: Vec<MetricConfig>,
}

impl From<Vec<String>> for CommandTask {
    fn from(program: Vec<String>) -> Self {
        Self { program, timeout_s: TIMEOUT_S, metrics: Vec::new() }
    }
}

impl CommandTask {
    /// Rejects configurations that cannot be started.
    ///
    /// # Errors
    /// The program is empty, or the time limit is not valid.
    pub fn check(&self) -> Result<()> {
        Program::check(WHAT, &self.program, self.timeout_s)
    }
}

impl Task for CommandTask {
    fn origin(&self, _split: Split) -> Origin {
        Origin::Generated
    }

    fn samples(&self, files: &Files<'_>) -> Result<Vec<(RowLocation, Sample)>> {
        let mut program = Program::start(WHAT, &self.program, self.timeout_s, files.interrupt())?;
        let request = json!({ "split": files.split().name(), "from": files.name(), "max_rows": files.max_samples() });
        // A program that needs no request may have printed rows already.
        let mut deadline = program.send(vec![request.to_string() + "\n"]);
        program.close();
        let file = Path::new(&format!("the {WHAT} `{}`", self.program.join(" "))).into();
        let (mut samples, mut bad, mut line) = (Vec::new(), files.bad(), 0);
        while files.max_samples().is_none_or(|max_samples| samples.len() < max_samples) {
            let Some(text) = program.line(deadline).map_err(failed)? else {
                program.finish().map_err(failed)?;
                break;
            };
            (deadline, line) = (program.deadline(), line + 1);
            let location = RowLocation { file: std::sync::Arc::clone(&file), line, row_in_array: None };
            match sample(&text) {
                Ok(sample) => samples.push((location, sample)),
                Err(message) => bad.push(location.error(message)),
            }
        }
        files.finish(samples, bad, line)
    }

    fn metrics(&self) -> Vec<MetricConfig> {
        self.metrics.clone()
    }
}

fn failed(ProgramError { message, hint, is_interrupted }: ProgramError) -> Error {
    let error = Error::input(message);
    match hint {
        _ if is_interrupted => Error::Interrupted,
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

/// Parses a sample from a line.
fn sample(line: &str) -> Result<Sample, String> {
    let mut columns: Map<String, Value> = serde_json::from_str(line)
        .map_err(|_| format!("expected a JSON object with `prompt` (found `{}`)", excerpt(line, 80)))?;
    let prompt = super::files::text(&mut columns, &["prompt"])?;
    let references = match columns.shift_remove("references").or_else(|| columns.shift_remove("reference")) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(value) => texts_of("references", value)?,
    };
    Ok(Sample { prompt, references, metadata: columns })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::process::Interrupt;

    fn task(script: &str) -> CommandTask {
        CommandTask { timeout_s: 60.0, ..["sh", "-c", script].map(String::from).to_vec().into() }
    }

    fn samples(script: &str, max_samples: Option<usize>) -> Result<Vec<Sample>> {
        samples_of(&task(script), max_samples)
    }

    fn samples_of(task: &CommandTask, max_samples: Option<usize>) -> Result<Vec<Sample>> {
        let interrupt = Interrupt::default();
        let files = Files::new(Some("here"), Split::Validation, max_samples, &interrupt);
        Ok(task.samples(&files)?.into_iter().map(|(_, sample)| sample).collect())
    }

    #[test]
    fn rows_are_lines_until_the_program_ends() {
        let script = r#"read -r asked
            printf '{"prompt": "a", "references": ["b", "c"], "asked": %s}\n' "$asked"
            echo '{"prompt": "d", "reference": "e"}'; echo '{"prompt": "f"}'"#;
        let found = samples(script, None).expect("rows");
        let request = json!({ "split": "validation", "from": "here", "max_rows": null });
        let metadata = Map::from_iter([("asked".to_owned(), request)]);
        assert_eq!(found[0], Sample { prompt: "a".into(), references: vec!["b".into(), "c".into()], metadata });
        assert_eq!((found[1].references.as_slice(), found[2].references.len()), (&["e".to_owned()][..], 0));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn one_that_has_more_than_is_wanted_is_ended() {
        let found = samples("while :; do echo '{\"prompt\": \"a\"}'; done", Some(100)).expect("rows");
        assert_eq!(found.len(), 100);
    }

    #[test]
    fn its_input_ends_after_the_request() {
        assert_eq!(samples("cat > /dev/null; echo '{\"prompt\": \"a\"}'", None).expect("rows").len(), 1);
    }

    #[test]
    fn what_is_no_row_is_told_with_its_line() {
        let error = samples("echo '{\"prompt\": \"a\"}'; echo oops; echo '{\"text\": 1}'", None).expect_err("no rows");
        let text = error.to_string();
        for part in ["the task command `sh -c", ":2", "found `oops`", ":3", "missing column `prompt`"] {
            assert!(text.contains(part), "`{part}` is missing in: {text}");
        }
    }

    #[test]
    fn one_that_fails_is_an_error_although_it_printed_rows() {
        let error = samples("echo '{\"prompt\": \"a\"}'; echo 'no disk' >&2; exit 4", None).expect_err("it failed");
        let text = error.to_string();
        assert!(text.contains("task command `sh` failed (exit status: 4)") && text.contains("no disk"), "{text}");
        let hasty = CommandTask { timeout_s: 0.5, ..task("sleep 60") };
        let hangs = samples_of(&hasty, None).expect_err("it hangs").to_string();
        assert!(hangs.contains("did not answer within 0.5 s"), "{hangs}");
    }

    #[test]
    fn an_interrupt_ends_the_wait() {
        let interrupt = Interrupt::default();
        interrupt.raise();
        let files = Files::new(None, Split::Train, None, &interrupt);
        assert!(matches!(task("sleep 60").samples(&files), Err(Error::Interrupted)));
    }
}
