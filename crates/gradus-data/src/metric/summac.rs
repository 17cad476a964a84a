//! SummaC: whether a summary follows from its document, by an inference model on pairs of their sentences.
//!
//! Laban et al. 2022, <https://aclanthology.org/2022.tacl-1.10>. Checked against `summac` 0.0.4 in f32 on a CPU.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gradus_metrics::characters::is_space;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::models::{ClassifierModel, Models, Truncation, softmax};
use super::{Measure, Metric, Punkt, Row, RowError, error_of_metric};
use crate::error::{Error, Result};

/// Maximum number of ids in a pair, and number of characters that a chunk must exceed.
const IDS: usize = 500;
const CHARACTERS: usize = 10;
/// Maximum number of chunks read from a document.
const CHUNKS: usize = 100;
/// Maximum number of chunks of a summary in the convolution.
const SUMMARY_CHUNKS: usize = 10;
/// Number of pairs in one call of the model.
const PAIRS: usize = 512;
/// Prefixes of label names, in lower case, for entailment and contradiction (`vitc` has its own).
const ENTAILMENT: [&str; 2] = ["entail", "support"];
const CONTRADICTION: [&str; 2] = ["contradict", "refute"];

/// Granularity of the chunks of a text: one word, or two joined by `-` for document and summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Granularity {
    /// The whole text.
    #[serde(rename = "document")]
    Document,
    /// Paragraphs, separated by blank lines, or lines if there is no blank line.
    #[serde(rename = "paragraph")]
    Paragraph,
    /// Sentences.
    #[serde(rename = "sentence")]
    Sentence,
    /// Every sentence with the next one.
    #[serde(rename = "2sents")]
    TwoSentences,
    /// Sentences and paragraphs.
    #[serde(rename = "mixed")]
    Mixed,
}

/// Operation that combines several values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fold {
    /// The maximum.
    Max,
    /// The mean.
    Mean,
    /// The minimum.
    Min,
}

impl Fold {
    fn of(self, values: impl Iterator<Item = f64>) -> f64 {
        let values: Vec<f64> = values.collect();
        match self {
            Self::Max => values.into_iter().fold(f64::NEG_INFINITY, f64::max),
            Self::Min => values.into_iter().fold(f64::INFINITY, f64::min),
            Self::Mean => values.iter().sum::<f64>() / values.len() as f64,
        }
    }
}

/// Operation that combines the values of a summary's chunks for the convolution's last layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Aggregate {
    /// The maximum, three times.
    Max,
    /// The mean, three times.
    Mean,
    /// The minimum, three times.
    Min,
    /// The minimum, the mean and the maximum.
    All,
}

impl Aggregate {
    fn of(self, values: &[f64]) -> [f64; 3] {
        let fold = |fold: Fold| fold.of(values.iter().copied());
        match self {
            Self::Max => [fold(Fold::Max); 3],
            Self::Mean => [fold(Fold::Mean); 3],
            Self::Min => [fold(Fold::Min); 3],
            Self::All => [fold(Fold::Min), fold(Fold::Mean), fold(Fold::Max)],
        }
    }
}

/// Options of [`SummacZs`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SummacZsOptions {
    /// The inference model: a directory or a hub name, such as `tals/albert-xlarge-vitaminc-mnli`.
    pub model: String,
    /// The column that holds the document. Default: the prompt.
    #[serde(default)]
    pub document: Option<String>,
    /// Granularity of documents.
    #[serde(default = "paragraph")]
    pub granularity: Granularity,
    /// Granularity of summaries. Default: that of documents.
    #[serde(default)]
    pub summary_granularity: Option<Granularity>,
    /// Operation that combines the chunks of the document.
    #[serde(default = "max")]
    pub op1: Fold,
    /// Operation that combines the chunks of the summary.
    #[serde(default = "mean")]
    pub op2: Fold,
    /// Count entailment.
    #[serde(default = "yes")]
    pub use_ent: bool,
    /// Count contradiction.
    #[serde(default = "yes")]
    pub use_con: bool,
    /// The label of entailment, by name or number. Default: the label with such a name.
    #[serde(default)]
    pub entailment: Option<String>,
    /// The label of contradiction.
    #[serde(default)]
    pub contradiction: Option<String>,
    /// A directory of NLTK's Punkt data (`tokenizers/punkt_tab/english`), for splitting sentences. Without it, a list of
    /// abbreviations is used.
    #[serde(default)]
    pub punkt: Option<PathBuf>,
}

fn paragraph() -> Granularity {
    Granularity::Paragraph
}
fn sentence() -> Granularity {
    Granularity::Sentence
}
fn max() -> Fold {
    Fold::Max
}
fn mean() -> Fold {
    Fold::Mean
}
fn mean_of_chunks() -> Aggregate {
    Aggregate::Mean
}
fn yes() -> bool {
    true
}

/// Bins of the histogram of probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bins {
    /// Fifty bins of equal width.
    Even50,
    /// The bins of the published weights, which are narrow where probabilities are frequent.
    Percentile,
}

impl Bins {
    fn edges(self) -> Vec<f64> {
        match self {
            Self::Even50 => (0..50).map(|i| f64::from(i) * 0.02).chain([1.0]).collect(),
            Self::Percentile => vec![
                0.0, 0.01, 0.02, 0.03, 0.04, 0.07, 0.13, 0.37, 0.90, 0.91, 0.92, 0.93, 0.94, 0.95, 0.955, 0.96, 0.965,
                0.97, 0.975, 0.98, 0.985, 0.99, 0.995, 1.0,
            ],
        }
    }
}

/// Options of [`SummacConv`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SummacConvOptions {
    /// The inference model.
    pub model: String,
    /// Additional inference models, in the order of the weights. Default: none.
    #[serde(default)]
    pub more_models: Vec<InferenceModel>,
    /// The weights of the convolution, `mlp.weight`, `mlp.bias`, `layer_final.weight` and `layer_final.bias`, in PyTorch's format
    /// (`summac_conv_vitc_sent_perc_e.bin`), safetensors, or JSON (`.json`) with nested lists.
    pub weights: PathBuf,
    /// The bins that the weights were trained with.
    #[serde(default = "percentile")]
    pub bins: Bins,
    /// Probabilities that are counted: `e`, `c` and `n` for entailment, contradiction, neither.
    #[serde(default = "entailed")]
    pub nli_labels: String,
    /// Operation that combines the chunks of the summary.
    #[serde(default = "mean_of_chunks")]
    pub agg: Aggregate,
    /// The column that holds the document. Default: the prompt.
    #[serde(default)]
    pub document: Option<String>,
    /// Granularity of documents.
    #[serde(default = "sentence")]
    pub granularity: Granularity,
    /// Granularity of summaries. Default: that of documents.
    #[serde(default)]
    pub summary_granularity: Option<Granularity>,
    /// The label of entailment, by name or number. Default: the label with such a name.
    #[serde(default)]
    pub entailment: Option<String>,
    /// The label of contradiction.
    #[serde(default)]
    pub contradiction: Option<String>,
    /// A directory of NLTK's Punkt data (`tokenizers/punkt_tab/english`), for splitting sentences. Without it, a list of
    /// abbreviations is used.
    #[serde(default)]
    pub punkt: Option<PathBuf>,
}

/// An additional inference model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InferenceModel {
    /// The model: a directory or a hub name.
    pub model: String,
    /// The label of entailment, by name or number. Default: the label with such a name.
    #[serde(default)]
    pub entailment: Option<String>,
    /// The label of contradiction.
    #[serde(default)]
    pub contradiction: Option<String>,
}

fn percentile() -> Bins {
    Bins::Percentile
}
fn entailed() -> String {
    "e".into()
}

/// Applies inference models to every pair of a document's and a summary's chunk.
struct Inference {
    judges: Vec<Judge>,
    document: Option<String>,
    granularity: [Granularity; 2],
    punkt: Punkt,
}

/// An inference model.
struct Judge {
    model: Box<dyn ClassifierModel>,
    /// Indices of entailment, contradiction and, of three labels, the third.
    labels: [Option<usize>; 3],
}

/// Probabilities for each chunk of a summary and each chunk of the document: entailment, contradiction, neither.
type PairScores = Vec<Vec<[f64; 3]>>;

impl Judge {
    fn new(model: Box<dyn ClassifierModel>, [entailment, contradiction]: [Option<&str>; 2]) -> Result<Self> {
        let find = |what: &str, given: Option<&str>, starts: [&str; 2]| match given {
            Some(name) => model.label(name).map_err(|message| Error::input(format!("`summac`: {message}"))),
            None => {
                let says = |label: &String| starts.iter().any(|start| label.to_lowercase().starts_with(start));
                model.labels().iter().position(says).ok_or_else(|| {
                    let known = model.labels().iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
                    Error::input(format!("the model of inference has no label for {what}: it has {known}"))
                        .with_hint(format!("set the option `{what}` to the name or number of a label"))
                })
            }
        };
        let labels =
            [find("entailment", entailment, ENTAILMENT)?, find("contradiction", contradiction, CONTRADICTION)?];
        if labels[0] == labels[1] {
            let message = format!(
                "the options `entailment` and `contradiction` of `summac` both name `{}`",
                model.labels()[labels[0]]
            );
            return Err(Error::input(message).with_hint("name two labels"));
        }
        let other =
            (0..model.labels().len()).find(|label| !labels.contains(label)).filter(|_| model.labels().len() == 3);
        Ok(Self { labels: [Some(labels[0]), Some(labels[1]), other], model })
    }
}

impl Inference {
    fn new(
        judges: Vec<Judge>,
        document: Option<String>,
        granularity: [Granularity; 2],
        punkt: Option<&Path>,
    ) -> Result<Self> {
        let punkt = Punkt::open(punkt).map_err(error_of_metric)?;
        Ok(Self { judges, document, granularity, punkt })
    }

    fn chunks(&self, text: &str, granularity: Granularity) -> Vec<String> {
        let is_long = |chunk: &&str| chunk.chars().count() > CHARACTERS;
        let sentences = || self.punkt.sentences(text).into_iter().filter(is_long).collect::<Vec<_>>();
        let owned = |chunks: Vec<&str>| chunks.into_iter().map(str::to_owned).collect::<Vec<_>>();
        let paragraphs = || {
            let between = if text.contains("\n\n") { "\n\n" } else { "\n" };
            text.split(between).map(|part| part.trim_matches(is_space)).filter(is_long).map(str::to_owned)
        };
        match granularity {
            Granularity::Document => vec![text.to_owned()],
            Granularity::Paragraph => paragraphs().collect(),
            Granularity::Sentence => owned(sentences()),
            Granularity::Mixed => owned(sentences()).into_iter().chain(paragraphs()).collect(),
            Granularity::TwoSentences => {
                let sentences = sentences();
                (0..sentences.len()).map(|i| sentences[i..sentences.len().min(i + 2)].join(" ")).collect()
            }
        }
    }

    /// Returns the images of every row, one per model. They are zeros if the document or the summary has no chunks.
    fn pair_scores(&self, rows: &[Row]) -> Result<Vec<Vec<PairScores>>, RowError> {
        let [of_document, of_summary] = self.granularity;
        let (mut chunks, mut pairs) = (Vec::new(), Vec::new());
        for (i, row) in rows.iter().enumerate() {
            let document = match &self.document {
                None => row.prompt.as_str(),
                Some(column) => row.column_text(column).ok_or_else(|| {
                    RowError::new(i, format!("no text in the column `{column}`, which must hold the document"))
                })?,
            };
            let mut premises = self.chunks(document, of_document);
            premises.truncate(CHUNKS);
            let hypotheses = self.chunks(&row.prediction, of_summary);
            pairs.extend((0..hypotheses.len()).flat_map(|h| (0..premises.len()).map(move |p| (i, h, p))));
            chunks.push((premises, hypotheses));
        }
        let empty = |(premises, hypotheses): &(Vec<String>, Vec<String>)| match premises.len() * hypotheses.len() {
            0 => vec![vec![[0.0; 3]]],
            _ => vec![vec![[0.0; 3]; premises.len()]; hypotheses.len()],
        };
        let mut pair_scores: Vec<Vec<PairScores>> =
            chunks.iter().map(|of| vec![empty(of); self.judges.len()]).collect();
        for pairs in pairs.chunks(PAIRS) {
            let text = |&(i, h, p): &(usize, usize, usize)| {
                let (premises, hypotheses) = &chunks[i];
                (premises[p].as_str(), Some(hypotheses[h].as_str()))
            };
            let texts: Vec<(&str, Option<&str>)> = pairs.iter().map(text).collect();
            for (j, judge) in self.judges.iter().enumerate() {
                let logits = judge.model.logits(&texts, Truncation::Right(Some(IDS)));
                let logits = logits.map_err(|error| RowError::new(pairs[error.text].0, error.message))?;
                for (&(i, h, p), logits) in pairs.iter().zip(logits) {
                    let probabilities = softmax(&logits);
                    pair_scores[i][j][h][p] = judge.labels.map(|label| label.map_or(0.0, |label| probabilities[label]));
                }
            }
        }
        Ok(pair_scores)
    }
}

/// For each chunk of the summary, how much the document entails it minus how much it contradicts it (ZS).
pub struct SummacZs {
    inference: Inference,
    options: SummacZsOptions,
}

impl SummacZs {
    /// Creates the metric.
    ///
    /// # Errors
    /// A model that cannot be opened or has other labels.
    pub fn new(options: SummacZsOptions, models: &dyn Models) -> Result<Self> {
        if !options.use_ent && !options.use_con {
            return Err(Error::input(
                "`use_ent` and `use_con` of `summac_zs` are both false: nothing is left to count",
            ));
        }
        let granularity = [options.granularity, options.summary_granularity.unwrap_or(options.granularity)];
        let labels = [options.entailment.as_deref(), options.contradiction.as_deref()];
        let judge = Judge::new(models.classifier(&options.model)?, labels)?;
        let inference = Inference::new(vec![judge], options.document.clone(), granularity, options.punkt.as_deref())?;
        Ok(Self { inference, options })
    }

    fn score(&self, scores: &PairScores) -> f64 {
        let SummacZsOptions { op1, op2, use_ent, use_con, .. } = self.options;
        let of_chunk = |chunk: &Vec<[f64; 3]>| {
            let of = |label: usize| op1.of(chunk.iter().map(|pair| pair[label]));
            match (use_ent, use_con) {
                (true, true) => of(0) - of(1),
                (true, false) => of(0),
                _ => 1.0 - of(1),
            }
        };
        op2.of(scores.iter().map(of_chunk))
    }
}

impl Metric for SummacZs {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let pair_scores = self.inference.pair_scores(rows)?;
        let scores: Vec<f64> = pair_scores.iter().map(|pair_scores| self.score(&pair_scores[0])).collect();
        Ok(vec![Measure::mean("", &scores)])
    }
}

/// Probability that a summary is consistent, from a small convolution over the histograms of its chunks.
pub struct SummacConv {
    inference: Inference,
    edges: Vec<f64>,
    /// Probabilities that are counted, as indices of [`PairScores`].
    counted: Vec<usize>,
    agg: Aggregate,
    weights: Weights,
}

/// Weights of the convolution: one output per histogram, and two outputs from the combined values.
struct Weights {
    mlp: Vec<f64>,
    mlp_bias: f64,
    /// Weights of the three values and bias, for each of the two outputs.
    last: [([f64; 3], f64); 2],
}

impl SummacConv {
    /// Creates the metric.
    ///
    /// # Errors
    /// A model that cannot be opened or has other labels, or weights of other shapes.
    pub fn new(options: &SummacConvOptions, models: &dyn Models) -> Result<Self> {
        let letters: Vec<Option<usize>> = options.nli_labels.chars().map(|letter| "ecn".find(letter)).collect();
        let counted = letters
            .iter()
            .copied()
            .collect::<Option<Vec<usize>>>()
            .filter(|of| !of.is_empty() && of.is_sorted_by(|a, b| a < b));
        let counted = counted.ok_or_else(|| {
            let found = &options.nli_labels;
            let message = format!("the option `nli_labels` of `summac_conv` is `{found}`");
            Error::input(format!("{message}, but must be letters of `ecn` in this order"))
        })?;
        let granularity = [options.granularity, options.summary_granularity.unwrap_or(options.granularity)];
        let edges = options.bins.edges();
        let inputs = (1 + options.more_models.len()) * counted.len() * (edges.len() - 1);
        let weights = Weights::read(&options.weights, inputs, models)?;
        let first = (&options.model, &options.entailment, &options.contradiction);
        let more = options.more_models.iter().map(|more| (&more.model, &more.entailment, &more.contradiction));
        let judge = |(model, entailment, contradiction): (&String, &Option<String>, &Option<String>)| {
            Judge::new(models.classifier(model)?, [entailment.as_deref(), contradiction.as_deref()])
        };
        let judges = [first].into_iter().chain(more).map(judge).collect::<Result<_>>()?;
        let inference = Inference::new(judges, options.document.clone(), granularity, options.punkt.as_deref())?;
        Ok(Self { inference, edges, counted, agg: options.agg, weights })
    }

    /// Counts the probabilities of a summary's chunk in each bin, concatenated over the labels and then the models. A bin includes
    /// its lower edge; the last bin includes both edges.
    fn histogram(&self, pair_scores: &[PairScores], chunk: usize) -> Vec<f64> {
        let bins = self.edges.len() - 1;
        let mut counts = vec![0.0; pair_scores.len() * self.counted.len() * bins];
        let kinds =
            pair_scores.iter().flat_map(|scores| self.counted.iter().map(move |&label| (&scores[chunk], label)));
        for (i, (pairs, label)) in kinds.enumerate() {
            for pair in pairs {
                // Probabilities are binned as f32.
                let value = f64::from(pair[label] as f32);
                let bin = self.edges.partition_point(|&edge| edge <= value).saturating_sub(1).min(bins - 1);
                counts[i * bins + bin] += 1.0;
            }
        }
        counts
    }

    fn score(&self, pair_scores: &[PairScores]) -> f64 {
        let value = |chunk: usize| {
            let sum: f64 = self
                .histogram(pair_scores, chunk)
                .iter()
                .zip(&self.weights.mlp)
                .map(|(count, weight)| count * weight)
                .sum();
            sum + self.weights.mlp_bias
        };
        let values: Vec<f64> = (0..pair_scores[0].len().min(SUMMARY_CHUNKS)).map(value).collect();
        let made = self.agg.of(&values);
        let [no, yes] =
            self.weights.last.map(|(weights, bias)| weights.iter().zip(made).map(|(w, of)| w * of).sum::<f64>() + bias);
        1.0 / (1.0 + (no - yes).exp())
    }
}

impl Weights {
    fn read(path: &Path, inputs: usize, models: &dyn Models) -> Result<Self> {
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let tensors = if is_json { read_json(path)? } else { widened(models.tensors(path)?) };
        let tensor = |name: &str, size: usize| match tensors.get(name) {
            Some(values) if values.len() == size => Ok(values.clone()),
            found => {
                let found = found.map_or(0, Vec::len);
                let message = format!("expected `{name}` of {size} numbers in all (found {found})");
                Err(Error::data(path, None, message).with_hint(
                    "the number of bins follows from `bins`, `nli_labels` and how many models there are (`more_models`)",
                ))
            }
        };
        let (last, bias) = (tensor("layer_final.weight", 6)?, tensor("layer_final.bias", 2)?);
        let label = |i: usize| ([last[3 * i], last[3 * i + 1], last[3 * i + 2]], bias[i]);
        Ok(Self { mlp: tensor("mlp.weight", inputs)?, mlp_bias: tensor("mlp.bias", 1)?[0], last: [label(0), label(1)] })
    }
}

/// Reads tensors from nested lists by name.
fn read_json(path: &Path) -> Result<BTreeMap<String, Vec<f64>>> {
    let text = crate::files::read_text(path, crate::files::SETTINGS_BYTES).map_err(|error| Error::io(path, error))?;
    let tensors: BTreeMap<String, Value> = serde_json::from_str(&text)
        .map_err(|error| Error::data(path, Some(error.line()), format!("not valid JSON: {error}")))?;
    let numbers = |(name, value): (String, Value)| {
        let mut values = Vec::new();
        match flatten(&value, &mut values) {
            true => Ok((name, values)),
            false => Err(Error::data(path, None, format!("expected `{name}` as lists of numbers"))),
        }
    };
    tensors.into_iter().map(numbers).collect()
}

fn widened(tensors: BTreeMap<String, Vec<f32>>) -> BTreeMap<String, Vec<f64>> {
    let wide = |(name, values): (String, Vec<f32>)| (name, values.into_iter().map(f64::from).collect());
    tensors.into_iter().map(wide).collect()
}

/// Appends the numbers of nested lists. Returns whether there are only numbers.
fn flatten(value: &Value, into: &mut Vec<f64>) -> bool {
    match value {
        Value::Array(values) => values.iter().all(|value| flatten(value, into)),
        value => value.as_f64().filter(|number| number.is_finite()).map(|number| into.push(number)).is_some(),
    }
}

impl Metric for SummacConv {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let pair_scores = self.inference.pair_scores(rows)?;
        let scores: Vec<f64> = pair_scores.iter().map(|pair_scores| self.score(pair_scores)).collect();
        Ok(vec![Measure::mean("", &scores)])
    }
}
