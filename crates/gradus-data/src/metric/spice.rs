//! SPICE from a file of scene graphs, or by its authors' program (`spice-1.0.jar`), which parses and scores.
//!
//! Anderson et al. 2016, <https://arxiv.org/abs/1607.08822>.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use gradus_metrics::{WordNet, spacy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{KeyedBy, Measure, Metric, Row, RowError, Spice, at, error_of_metric};
use crate::error::{Error, Result};
use crate::process::{Interrupt, Program};

/// Options of [`Spice`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpiceOptions {
    /// A file of JSON lines, one per row, in the order of the rows: `{"prediction": [["girl"], ["girl", "young"], ["girl", "on",
    /// "court"]], "references": [[…], …]}`.
    #[serde(default)]
    pub scene_graphs: Option<PathBuf>,
    /// WordNet, as for METEOR: words of one synset match. Without it, words match by their letters. Only with `scene_graphs`.
    #[serde(default)]
    pub wordnet: Option<PathBuf>,
    /// SPICE's own program instead of `scene_graphs`, such as `[java, -Xmx8G, -jar, spice-1.0.jar]`. It is started for each
    /// evaluation with a file of texts, `-out FILE -subset -silent` and, if `cache` is set, `-cache DIR`.
    #[serde(default)]
    pub program: Vec<String>,
    /// The folder in which the program caches parsed graphs of references. Default: no cache.
    #[serde(default)]
    pub cache: Option<PathBuf>,
    /// Seconds that the program may take for all rows of one evaluation. Default 3600.
    #[serde(default = "an_hour")]
    pub timeout_s: f64,
    /// The key of a row. Default `row`.
    #[serde(default)]
    pub keyed_by: KeyedBy,
    /// Tokenizer whose words, with a space between them, the `program` reads as the text. Default `none`.
    #[serde(default)]
    pub tokenizer: SpiceTokenizer,
}

/// Tokenizer of the texts for SPICE's program, which has a tokenizer of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SpiceTokenizer {
    /// The text as it is.
    #[default]
    None,
    /// spaCy's tokenizer for English (RL4LMs).
    Spacy,
}

impl SpiceTokenizer {
    fn text<'a>(self, text: &'a str) -> Cow<'a, str> {
        match self {
            Self::None => text.into(),
            Self::Spacy => spacy::joined(text).into(),
        }
    }
}

fn an_hour() -> f64 {
    3600.0
}

impl SpiceOptions {
    /// Rejects options that do not fit together.
    pub(super) fn check(&self) -> Result<()> {
        let has_program = !self.program.is_empty();
        match (&self.scene_graphs, has_program) {
            (Some(_), true) => Err(Error::input("`spice` has `scene_graphs` and a `program`, but takes one of them")
                .with_hint("leave one out: the program parses the texts itself")),
            (None, false) => {
                Err(Error::input("`spice` needs scene graphs, or the program that parses and scores texts")
                    .with_hint("set `scene_graphs: FILE`, or `program: [java, -Xmx8G, -jar, spice-1.0.jar]`"))
            }
            (Some(_), false) if self.keyed_by == KeyedBy::Prompt => {
                Err(Error::input("the option `keyed_by: prompt` of `spice` is for its `program`, which is not set"))
            }
            (Some(_), false) if self.tokenizer != SpiceTokenizer::None => {
                Err(Error::input("the option `tokenizer` of `spice` is for its `program`, which is not set"))
            }
            (Some(_), false) if self.cache.is_some() => {
                Err(Error::input("the option `cache` of `spice` is for its `program`, which is not set"))
            }
            (None, true) if self.wordnet.is_some() => Err(Error::input(
                "the option `wordnet` of `spice` is for `scene_graphs`: the program has its own WordNet",
            )),
            (None, true) => Program::check(WHAT, &self.program, self.timeout_s),
            (Some(_), false) => Ok(()),
        }
    }

    /// Creates the metric. An `interrupt` ends the wait for a program.
    pub(super) fn build(&self, interrupt: &Interrupt) -> Result<Box<dyn Metric>> {
        self.check()?;
        Ok(match &self.scene_graphs {
            Some(file) => {
                let spice = WordNet::open(self.wordnet.as_deref()).and_then(|wordnet| Spice::read(file, wordnet));
                Box::new(spice.map_err(error_of_metric)?)
            }
            None => Box::new(SpiceProgram { options: self.clone(), interrupt: interrupt.clone() }),
        })
    }
}

/// Name of the program in messages.
const WHAT: &str = "program of `spice`";

/// Maximum size of the program's answer. A row takes a few hundred bytes.
const ANSWER_BYTES: u64 = 1 << 30;

/// SPICE by its authors' program, which is started for each evaluation.
pub struct SpiceProgram {
    options: SpiceOptions,
    interrupt: Interrupt,
}

/// The program's answer for a row.
#[derive(Deserialize)]
struct SpiceScores {
    image_id: usize,
    scores: HashMap<String, Scores>,
}

/// The scores of a row. `f` is `null` if there is nothing to compare.
#[derive(Deserialize)]
struct Scores {
    f: Option<f64>,
}

impl SpiceProgram {
    /// Returns the program's F-score of every row, or `None` if there is nothing to compare.
    fn scores(&self, rows: &[Row]) -> Result<Vec<Option<f64>>, RowError> {
        let Self { options, interrupt } = self;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let texts = rows.iter().enumerate().map(|(i, row)| match row.references.is_empty() {
            true => Err(RowError::without_references(i)),
            false => {
                let references: Vec<_> = row.references.iter().map(|text| options.tokenizer.text(text)).collect();
                Ok(json!({ "image_id": i, "test": options.tokenizer.text(&row.prediction), "refs": references }))
            }
        });
        let texts = Value::Array(texts.collect::<Result<_, _>>()?);
        let failed = |message: String| RowError::new(rows.len() - 1, message);
        let folder = tempfile::tempdir().map_err(|error| failed(format!("no temporary folder: {error}")))?;
        let [input, output] = ["texts.json", "scores.json"].map(|name| folder.path().join(name));
        fs::write(&input, texts.to_string()).map_err(|error| failed(format!("{}: {error}", input.display())))?;
        let mut words = options.program.clone();
        words.extend([input.display().to_string(), "-out".into(), output.display().to_string()]);
        words.extend(["-subset".into(), "-silent".into()]);
        if let Some(cache) = &options.cache {
            words.extend(["-cache".into(), cache.display().to_string()]);
        }
        let mut program = Program::start(WHAT, &words, options.timeout_s, interrupt)
            .map_err(|error| RowError { hint: error.hint().map(str::to_owned), ..failed(error.to_string()) })?;
        program.close();
        let deadline = program.deadline();
        // The answer is in the file; printed text is ignored.
        while program.line(deadline).map_err(at(0))?.is_some() {}
        program.finish().map_err(at(0))?;
        let answers = crate::files::read_text(&output, ANSWER_BYTES)
            .map_err(|error| failed(format!("the {WHAT} wrote no scores: {error}")))?;
        let answers: Vec<SpiceScores> = serde_json::from_str(&answers).map_err(|error| {
            failed(format!("the {WHAT} wrote something other than `[{{\"image_id\": 0, \"scores\": …}}]`: {error}"))
        })?;
        let mut scores = vec![None; rows.len()];
        for SpiceScores { image_id, scores: of } in answers {
            let whole = of.get("All").ok_or_else(|| RowError::new(0, format!("the {WHAT} gave no score `All`")))?;
            *scores
                .get_mut(image_id)
                .ok_or_else(|| failed(format!("the {WHAT} scored a row {image_id} that it was not given")))? =
                Some(whole.f);
        }
        let scored = |(i, score): (usize, Option<Option<f64>>)| {
            score.ok_or_else(|| RowError::new(i, format!("the {WHAT} gave no score for it")))
        };
        scores.into_iter().enumerate().map(scored).collect()
    }
}

impl Metric for SpiceProgram {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        self.options.keyed_by.measure(rows, |rows| self.scores(rows))
    }

    fn depends_on_batch(&self) -> bool {
        self.options.keyed_by == KeyedBy::Prompt
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::path::Path;

    use super::*;

    fn rows() -> Vec<Row> {
        let row = |prediction: &str, reference: &str| Row {
            prediction: prediction.into(),
            references: vec![reference.into(), "a court".into()],
            ..Row::default()
        };
        vec![row("a girl", "a young girl"), row("\"quoted\"", "a boy"), row("", "a dog")]
    }

    /// A substitute for SPICE's program: a shell script that gets the file of texts, `-out`, the file of scores, and more.
    fn spice(script: &str, cache: Option<&Path>) -> Box<dyn Metric> {
        options(script, cache).build(&Interrupt::default()).expect("a program")
    }

    fn options(script: &str, cache: Option<&Path>) -> SpiceOptions {
        SpiceOptions {
            scene_graphs: None,
            wordnet: None,
            program: ["sh", "-c", script, "spice"].map(String::from).to_vec(),
            cache: cache.map(Path::to_path_buf),
            timeout_s: 60.0,
            keyed_by: KeyedBy::Row,
            tokenizer: SpiceTokenizer::None,
        }
    }

    #[test]
    fn the_program_is_given_all_rows_and_scores_them_in_any_order() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().display();
        let metric = spice(
            &format!(
                r#"cp "$1" {path}/seen; echo "$2 $4 $5 $6 $7" > {path}/flags; echo Parsing captions
                echo '[{{"image_id":2,"scores":{{"All":{{"f":null,"pr":null}}}}}},
                {{"image_id":0,"scores":{{"All":{{"f":0.5,"pr":1.0,"re":0.25}},"Object":{{"f":1.0}}}}}},
                {{"image_id":1,"scores":{{"All":{{"f":0.25}}}}}}]' > "$3""#
            ),
            Some(folder.path()),
        );
        assert!(metric.is_reward());
        let measures = metric.measure(&rows()).expect("scores");
        let found = measures[0].row_values().expect("values of rows");
        assert_eq!((&found[..2], found[2].is_nan(), measures[0].value()), (&[0.5, 0.25][..], true, 0.375));
        let seen = |name: &str| fs::read_to_string(folder.path().join(name)).expect("written");
        assert_eq!(seen("flags").trim(), format!("-out -subset -silent -cache {path}"));
        let texts: Value = serde_json::from_str(&seen("seen")).expect("JSON");
        let second = json!({ "image_id": 1, "test": "\"quoted\"", "refs": ["a boy", "a court"] });
        assert_eq!((texts.as_array().map(Vec::len), &texts[1]), (Some(3), &second));
    }

    #[test]
    fn the_program_reads_words_with_spaces_between_them() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let seen = folder.path().join("seen");
        let script =
            format!(r#"cp "$1" {}; echo '[{{"image_id":0,"scores":{{"All":{{"f":1}}}}}}]' > "$3""#, seen.display());
        let options =
            SpiceOptions { tokenizer: SpiceTokenizer::Spacy, keyed_by: KeyedBy::Prompt, ..options(&script, None) };
        let metric = options.build(&Interrupt::default()).expect("a program");
        assert!(metric.depends_on_batch());
        let row = Row::new("It isn't the boy's dog.", ["A dog, a boy"]);
        metric.measure(&[row]).expect("scores");
        let texts: Value = serde_json::from_str(&fs::read_to_string(seen).expect("written")).expect("JSON");
        let expected = json!({ "image_id": 0, "test": "It is n't the boy 's dog .", "refs": ["A dog , a boy"] });
        assert_eq!(texts[0], expected);
    }

    #[test]
    fn what_the_program_does_wrong_is_told() {
        let message_of = |script: &str| spice(script, None).measure(&rows()).expect_err("wrong").message;
        assert!(
            message_of("echo no memory >&2; exit 3").contains("failed (exit status: 3)"),
            "{}",
            message_of("exit 3")
        );
        assert!(message_of("exit 0").starts_with("the program of `spice` wrote no scores"));
        assert!(message_of("echo '{}' > $3").starts_with("the program of `spice` wrote something other than"));
        let one = r#"echo '[{"image_id":0,"scores":{"All":{"f":0.5}}}]' > "$3""#;
        let error = spice(one, None).measure(&rows()).expect_err("two rows are missing");
        assert_eq!((error.row, error.message.as_str()), (1, "the program of `spice` gave no score for it"));
        let without = [Row { prediction: "a".into(), ..Row::default() }];
        assert_eq!(spice(one, None).measure(&without).expect_err("no references").row, 0);
    }

    #[test]
    fn graphs_or_a_program_are_needed() {
        let refused = |yaml: &str| {
            let options: SpiceOptions = serde_saphyr::from_str(yaml).expect("options");
            options.check().expect_err("refused").to_string()
        };
        assert_eq!(refused("{}"), "`spice` needs scene graphs, or the program that parses and scores texts");
        assert_eq!(
            refused("{ scene_graphs: a, program: [java] }"),
            "`spice` has `scene_graphs` and a `program`, but takes one of them"
        );
        assert!(refused("{ scene_graphs: a, cache: b }").contains("`cache`"));
        assert!(refused("{ program: [java], wordnet: b }").contains("`wordnet`"));
        assert!(refused("{ scene_graphs: a, tokenizer: spacy }").contains("`tokenizer`"));
    }
}
