//! A metric from an external program, in any language, over JSON lines.
//!
//! The program reads one JSON object per line (`prediction`, `references`, `prompt`, and the row's other columns) and prints one
//! line for each: a number, `null` for no value, or an object of named numbers. The value over all rows is the mean of the rows
//! with a value. With `corpus`, the program computes it instead: after the N rows it reads `{"corpus": N}`, and prints a line of
//! the same form, in which `null` keeps the mean. The program is started once and kept for all evaluations.

use std::sync::Mutex;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Measure, Metric, Row, RowError, at, first_values};
use crate::error::{Error, Result};
use crate::process::{AnswerDeadline, Interrupt, Program, TIMEOUT_S, default_timeout_s};

/// Name of the program in messages.
const WHAT: &str = "metric command";

/// Valid answers.
const EXPECTED: &str = "a number, null or an object of numbers";

/// Maximum number of named values per row. With more, the names are probably data.
const PARTS_MAX: usize = 100;

/// An external program that measures rows: `[program, args…]`, or a mapping with `program` and more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandOptions {
    /// The program and its arguments.
    pub program: Vec<String>,
    /// Seconds that the program may take for all rows of one evaluation. Default 60.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: f64,
    /// The name of the metric, without `/`. Default `command`.
    #[serde(default)]
    pub name: Option<String>,
    /// Let the program compute the value of all rows, at a line `{"corpus": N}` after N rows. Otherwise it is the mean.
    #[serde(default)]
    pub corpus: bool,
}

impl From<Vec<String>> for CommandOptions {
    fn from(program: Vec<String>) -> Self {
        Self { program, timeout_s: TIMEOUT_S, name: None, corpus: false }
    }
}

impl CommandOptions {
    /// Rejects a wrong name, and options with which the program cannot be started.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(mistake) = self.name.as_deref().and_then(mistake_in_name) {
            return Err(Error::input(format!("the option `name` of `command` {mistake}")));
        }
        Program::check(WHAT, &self.program, self.timeout_s)
    }
}

/// Returns the mistake in the name of a program whose values have names of their own; `None` if there is none. Values are logged as
/// `NAME/VALUE`, so a `/` in a name could give two values the same name.
pub fn mistake_in_name(name: &str) -> Option<String> {
    let reason = "values that the program names are logged as `NAME/VALUE`";
    match name {
        "" => Some("is empty".into()),
        _ if name.contains('/') => Some(format!("is `{name}`, but must not contain `/`: {reason}")),
        _ => None,
    }
}

/// Metric by an external program that keeps running.
pub struct CommandMetric {
    /// Evaluations use the program one after the other.
    program: Mutex<Program>,
    corpus: bool,
}

impl CommandMetric {
    /// Starts the program. An `interrupt` ends the wait for its answers.
    ///
    /// # Errors
    /// If `program` is empty or cannot be started, or the time limit is not a positive number.
    pub fn start(options: &CommandOptions, interrupt: &Interrupt) -> Result<Self> {
        options.check()?;
        let program = Program::start(WHAT, &options.program, options.timeout_s, interrupt)?;
        Ok(Self { program: Mutex::new(program), corpus: options.corpus })
    }
}

/// Values of a row by their names. An unnamed value has the empty name. Missing values are left out.
type Values = Vec<(String, f64)>;

/// Parses an answer.
fn parse(line: &str) -> Option<Values> {
    let finite = |value: &Value| value.as_f64().filter(|value| value.is_finite());
    Some(match serde_json::from_str(line.trim()).ok()? {
        Value::Null => Vec::new(),
        Value::Object(parts) if parts.len() <= PARTS_MAX => {
            let given = parts.into_iter().filter(|(_, value)| !value.is_null());
            given.map(|(name, value)| Some((name, finite(&value)?))).collect::<Option<_>>()?
        }
        value => vec![(String::new(), finite(&value)?)],
    })
}

/// Formats the line for a row. `prediction`, `references` and `prompt` take precedence over columns of these names.
fn request(row: &Row) -> String {
    let mut object: Map<String, Value> = Map::new();
    object.insert("prediction".into(), row.prediction.clone().into());
    object.insert("references".into(), row.references.clone().into());
    object.insert("prompt".into(), row.prompt.clone().into());
    for (name, value) in &row.metadata {
        if !object.contains_key(name) {
            object.insert(name.clone(), value.clone());
        }
    }
    Value::Object(object).to_string() + "\n"
}

/// Values of all rows by name, in the order in which the names first appear.
struct ValueTable {
    rows: usize,
    parts: Vec<(String, Vec<Option<f64>>)>,
}

impl ValueTable {
    fn add(&mut self, row: usize, values: Values) -> Result<(), String> {
        for (name, value) in values {
            let at = match self.parts.iter().position(|(known, _)| *known == name) {
                Some(at) => at,
                None if self.parts.len() == PARTS_MAX => {
                    return Err(format!("more than {PARTS_MAX} names from the metric command (the next is `{name}`)"));
                }
                None => {
                    self.parts.push((name, vec![None; self.rows]));
                    self.parts.len() - 1
                }
            };
            self.parts[at].1[row] = Some(value);
        }
        Ok(())
    }
}

impl CommandMetric {
    /// Requests the values of the rows. `done` is called after every answer; if it returns false, the program is ended.
    fn answers(&self, rows: &[Row], done: &mut dyn FnMut(usize) -> bool) -> Result<Vec<Measure>, RowError> {
        let mut program = self.program.lock().expect("no holder panics");
        let mut lines: Vec<String> = rows.iter().map(request).collect();
        let asks_corpus = self.corpus && !rows.is_empty();
        if asks_corpus {
            lines.push(json!({ "corpus": rows.len() }).to_string() + "\n");
        }
        let deadline: AnswerDeadline = program.request(lines);
        let mut table = ValueTable { rows: rows.len(), parts: Vec::new() };
        // Every answer is read even after an error, so that the next evaluation does not receive old answers.
        let mut first_wrong = None;
        for row in 0..rows.len() {
            let answer = program.answer(deadline, EXPECTED, parse).map_err(at(row));
            let answer = answer.and_then(|values| match done(row + 1) {
                true => Ok(values),
                false => Err(at(row)(program.interrupt())),
            });
            let added = answer.and_then(|values| table.add(row, values).map_err(|message| RowError::new(row, message)));
            if let Err(error) = added {
                first_wrong.get_or_insert(error);
            }
        }
        let last = rows.len().saturating_sub(1);
        let of_all = match asks_corpus {
            true => program.answer(deadline, EXPECTED, parse).map_err(at(last)),
            false => Ok(Vec::new()),
        };
        if let Some(error) = first_wrong {
            return Err(error);
        }
        let of_all = of_all?;
        program.expect_silence().map_err(at(last))?;
        let known = |name: &str| table.parts.iter().any(|(known, _)| known == name);
        let alone: Vec<Measure> =
            of_all.iter().filter(|(name, _)| !known(name)).map(|(name, value)| Measure::whole(name, *value)).collect();
        let mut measures: Vec<Measure> = table
            .parts
            .into_iter()
            .map(|(name, scores)| match of_all.iter().find(|(of, _)| *of == name) {
                Some(&(_, value)) => {
                    let rows = scores.into_iter().map(|score| score.unwrap_or(f64::NAN)).collect();
                    Measure::beside_rows(name, value, rows)
                }
                None => Measure::mean_of_some(name, &scores),
            })
            .collect();
        measures.extend(alone);
        // If no row has a value, the result is one undefined value.
        if measures.is_empty() {
            measures.push(Measure::mean_of_some("", &vec![None; rows.len()]));
        }
        Ok(measures)
    }
}

impl Metric for CommandMetric {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        self.answers(rows, &mut |_| true)
    }

    fn rewards_with_progress(&self, rows: &[Row], done: &mut dyn FnMut(usize) -> bool) -> Result<Vec<f64>, RowError> {
        Ok(first_values(&self.answers(rows, done)?, rows.len()))
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::time::Duration;

    use super::*;

    fn metric(script: &str, timeout_s: f64, corpus: bool) -> CommandMetric {
        let program = ["sh", "-c", script].map(String::from).to_vec();
        let options = CommandOptions { program, timeout_s, name: None, corpus };
        CommandMetric::start(&options, &Interrupt::default()).expect("a shell")
    }

    fn rows(count: usize) -> Vec<Row> {
        (0..count).map(|i| Row { prediction: format!("text {i}"), ..Row::default() }).collect()
    }

    /// Returns the value of all rows and of each row, by name.
    fn found(metric: &CommandMetric, count: usize) -> Vec<(String, f64, Option<Vec<f64>>)> {
        let measures = metric.measure(&rows(count)).expect("measurable");
        measures.iter().map(|of| (of.part.clone(), of.value(), of.row_values())).collect()
    }

    #[test]
    fn one_line_in_and_one_number_out_over_several_evaluations() {
        let metric = metric("n=0; while read -r line; do n=$((n+1)); echo $n; done", 60.0, false);
        assert_eq!(found(&metric, 2), [(String::new(), 1.5, Some(vec![1.0, 2.0]))]);
        assert_eq!(found(&metric, 1), [(String::new(), 3.0, Some(vec![3.0]))]);
        assert_eq!(metric.rewards(&rows(2)), Ok(vec![4.0, 5.0]));
    }

    #[test]
    fn numbers_have_names_and_null_is_no_value() {
        let script =
            "read -r l; echo '{\"a\": 1, \"b\": null}'; read -r l; echo '{\"b\": 5, \"a\": 2}'; read -r l; echo null";
        let found = found(&metric(script, 60.0, false), 3);
        assert_eq!((found[0].0.as_str(), found[0].1), ("a", 1.5));
        assert_eq!((found[1].0.as_str(), found[1].1), ("b", 5.0));
        assert!(found[1].2.as_ref().is_some_and(|of| of[0].is_nan() && of[1] == 5.0 && of[2].is_nan()));
        let nothing = self::found(&metric("while read -r l; do echo null; done", 60.0, false), 2);
        assert!(nothing.len() == 1 && nothing[0].1.is_nan());
    }

    #[test]
    fn the_program_sees_the_row() {
        let row = Row {
            prompt: "Q".into(),
            prediction: "7\n\"yes\"".into(),
            references: vec!["7".into(), "8".into()],
            metadata: Map::from_iter([("id".to_owned(), json!(3)), ("prediction".to_owned(), json!("gold"))]),
        };
        let expected = r#"{"prediction":"7\n\"yes\"","references":["7","8"],"prompt":"Q","id":3}"#;
        let script =
            format!("IFS= read -r line; if [ \"$line\" = '{expected}' ]; then echo 1; else echo \"$line\"; fi");
        let measures = metric(&script, 60.0, false).measure(&[row]).expect("it saw the row");
        assert_eq!(measures[0].value(), 1.0);
    }

    #[test]
    fn the_program_gives_the_value_of_all_rows_where_it_is_asked() {
        // The value of all rows differs from the mean; `c` exists for all rows only.
        let script = r#"while read -r line; do case "$line" in
            '{"corpus":2}') echo '{"a": 9, "c": 4}';; *) echo '{"a": 1, "b": 2}';; esac; done"#;
        let metric = metric(script, 60.0, true);
        for _ in 0..2 {
            let found = found(&metric, 2);
            let values: Vec<(&str, f64)> = found.iter().map(|of| (of.0.as_str(), of.1)).collect();
            assert_eq!(values, [("a", 9.0), ("b", 2.0), ("c", 4.0)]);
            assert_eq!((found[0].2.clone(), found[2].2.clone()), (Some(vec![1.0, 1.0]), None));
        }
        // A mean has an interval. The value 9 has none, because only the program could compute it for resampled rows.
        let measures = metric.measure(&rows(2)).expect("measurable");
        let (units, resampling) = ([vec![0], vec![1]], super::super::Resampling { samples: 10, seed: 1 });
        let intervals = super::super::intervals(&measures.iter().collect::<Vec<_>>(), &units, resampling);
        assert_eq!(intervals.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false]);
        let mean =
            self::found(&self::metric("read -r l; echo 1; read -r l; echo 3; read -r l; echo null", 9.0, true), 2);
        assert_eq!(mean[0].1, 2.0);
    }

    #[test]
    fn mistakes_name_the_row() {
        let error = |script: &str| metric(script, 2.0, false).measure(&rows(3)).expect_err("a mistake");
        let crashed = error("read -r l; echo 1; echo 'out of paper' >&2; exit 3");
        assert_eq!(crashed.row, 1);
        assert!(crashed.message.contains("metric command `sh` ended before it answered (exit status: 3)"), "{crashed}");
        assert!(crashed.message.contains("out of paper"), "{crashed}");
        for line in ["good", "NaN", "true", "[1]", "{\"a\": \"b\"}"] {
            let error =
                error(&format!("read -r l; echo 1; read -r l; echo '{line}'; read -r l; echo 1; cat > /dev/null"));
            assert!(error.row == 1 && error.message.contains("a number, null or an object of numbers"), "{error}");
        }
        let twice = error("while read -r l; do printf '1\\n2\\n'; done");
        assert!(twice.message.contains("printed more lines than it was given (one too many: `2`)"), "{twice}");
        let slow = error("read -r l; echo 1; read -r l; echo 2; cat > /dev/null");
        assert!(slow.row == 2 && slow.message.contains("did not answer within 2 s"), "{slow}");
        assert!(slow.hint.is_some_and(|hint| hint.contains("flush")));
    }

    #[test]
    fn names_are_bounded() {
        let metric = metric("n=0; while read -r l; do n=$((n+1)); echo \"{\\\"a$n\\\": 1}\"; done", 30.0, false);
        let error = metric.measure(&rows(101)).expect_err("a name a row");
        assert_eq!(error.row, 100);
        assert_eq!(error.message, "more than 100 names from the metric command (the next is `a101`)");
    }

    #[test]
    fn an_answer_that_is_wrong_does_not_move_those_of_the_next_evaluation() {
        let script = "read -r l; echo oops; read -r l; echo 1; while read -r l; do echo 7; done";
        let metric = metric(script, 60.0, false);
        assert_eq!(metric.measure(&rows(2)).expect_err("no number").row, 0);
        assert_eq!(metric.rewards(&rows(2)), Ok(vec![7.0, 7.0]));
    }

    #[test]
    fn an_interrupt_ends_the_wait_at_once() {
        let interrupt = Interrupt::default();
        let options = CommandOptions::from(["sleep", "60"].map(String::from).to_vec());
        let metric = CommandMetric::start(&options, &interrupt).expect("sleep");
        std::thread::spawn({
            let interrupt = interrupt.clone();
            move || {
                std::thread::sleep(Duration::from_millis(200));
                interrupt.raise();
            }
        });
        let error = metric.measure(&rows(1)).expect_err("interrupted");
        assert!(matches!(
            super::super::of_row(error, |_, message| crate::Error::input(message)),
            crate::Error::Interrupted
        ));
    }
}
