//! Registry of the metrics with their names and options.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    BertScore, BertScoreOptions, Bleu, BleuOptions, BleuTotto, BleuTottoOptions, Bleurt, BleurtOptions, Chrf,
    ChrfOptions, Cider, CiderOptions, CommandMetric, CommandOptions, CommonGenPreference, CommonGenPreferenceOptions,
    Dates, Distinct, Diversity, DiversityOptions, ExactMatch, IncreasingNumbers, IncreasingNumbersOptions,
    IntentAccuracy, IntentAccuracyOptions, LearnedReward, LearnedRewardOptions, Meteor, MeteorOptions, Metric,
    MetricModel, ModelUse, Models, NoModels, Parent, ParentOptions, Perplexity, PerplexityOptions, Rouge, RougeLMax,
    RougeLMaxOptions, RougeOptions, Row, RowError, SacreBleu, SacreBleuOptions, SpiceOptions, SummacConv,
    SummacConvOptions, SummacZs, SummacZsOptions, Ter, TerOptions, TokenF1, Toxicity, ToxicityOptions, error_of_metric,
};
use crate::error::{Error, Result};
use crate::plugin::Plugin;
use crate::process::{Interrupt, read_program, schema_of_program};
use crate::suggest::nearest;

/// Key of metrics that a plug-in adds, which have names of their own.
const PLUGIN: &str = "plugin";

/// One metric and its options; the key selects the metric. The names are RL4LMs'.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MetricConfig {
    /// BLEU of TensorFlow's `nmt` script: whitespace tokens, no smoothing.
    Bleu(BleuOptions),
    /// BLEU of sacreBLEU, from 0 to 1.
    SacreBleu(SacreBleuOptions),
    /// chrF of sacreBLEU, from 0 to 1; chrF++ with `word_order: 2`.
    Chrf(ChrfOptions),
    /// Translation edit rate: edits per word of the references; lower is better.
    Ter(TerOptions),
    /// ROUGE-1, -2, -L and -Lsum of `rouge_score`.
    Rouge(RougeOptions),
    /// ROUGE-L of `py-rouge`, the best over references.
    RougeLMax(RougeLMaxOptions),
    /// METEOR of NLTK: words matched by letters, stems and, with a WordNet, synonyms.
    Meteor(MeteorOptions),
    /// CIDEr-D or CIDEr of `pycocoevalcap`, over the references of all rows.
    Cider(CiderOptions),
    /// F-score of the tuples of scene graphs, from a file or from SPICE's own program.
    Spice(SpiceOptions),
    /// PARENT of ToTTo: a sentence about a table.
    ParentTotto(ParentOptions),
    /// BLEU by ToTTo's protocol.
    BleuTotto(BleuTottoOptions),
    /// Diversity of the predictions: GEM's lengths, type–token ratios, n-grams and entropies.
    Diversity(DiversityOptions),
    /// Number of distinct n-grams per word in the samples of a prompt.
    Distinct(NoOptions),
    /// 1 if the prediction equals a reference by SQuAD's rules, else 0.
    ExactMatch(NoOptions),
    /// F1 of words by SQuAD's rules.
    TokenF1(NoOptions),
    /// 1 if the prediction has a date `dddd-dd-dd`, else 0.
    Dates(NoOptions),
    /// Length of the increasing sequence of numbers in the prediction, per word.
    IncreasingNumbers(IncreasingNumbersOptions),
    /// Perplexity under a language model, from 1; lower is better.
    Perplexity(PerplexityOptions),
    /// BERTScore: tokens matched by their states in an encoder.
    BertScore(BertScoreOptions),
    /// BLEURT: the score of a reference and a prediction by a regression model.
    Bleurt(BleurtOptions),
    /// SummaC without training: whether an inference model finds that the document entails the prediction.
    SummacZs(SummacZsOptions),
    /// SummaC with a trained convolution over the outputs of an inference model.
    SummacConv(SummacConvOptions),
    /// 1 if a classifier finds the row's intent in the prediction, else 0.
    IntentAccuracy(IntentAccuracyOptions),
    /// The probability of a classifier's label.
    LearnedReward(LearnedRewardOptions),
    /// Preference of a text-to-text model for calling the prediction good rather than bad (RL4LMs' preference model of CommonGen).
    #[serde(rename = "common_gen_preference")]
    CommonGenPreference(CommonGenPreferenceOptions),
    /// Toxicity of the samples of a prompt, by a classifier, a record or a service.
    Toxicity(ToxicityOptions),
    /// The score of an external program for every row.
    #[serde(deserialize_with = "read_program")]
    #[schemars(schema_with = "schema_of_program::<CommandOptions>")]
    Command(CommandOptions),
    /// A metric that was registered by name (docs/plugins.md). The key is its name, and its options are below it.
    Plugin(Plugin<dyn Metric>),
}

/// A column without which a metric cannot measure a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeededColumn {
    /// One or more references.
    References,
    /// The prompt, which may be empty.
    Prompt,
}

/// The metric has no options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoOptions {}

fn boxed<M: Metric + 'static>(metric: Result<M, gradus_metrics::Error>) -> Result<Box<dyn Metric>> {
    metric.map(|metric| Box::new(metric) as Box<dyn Metric>).map_err(error_of_metric)
}

impl MetricConfig {
    /// Creates the metric and opens its models with `models`. An `interrupt` ends the wait for a program.
    ///
    /// # Errors
    /// An option out of its limits, or a file, a model or a program in the options that is not available.
    pub fn build(&self, models: &dyn Models, interrupt: &Interrupt) -> Result<Box<dyn Metric>> {
        self.check()?;
        Ok(match self {
            Self::Bleu(options) => boxed(Bleu::new(*options))?,
            Self::SacreBleu(options) => boxed(SacreBleu::new(*options))?,
            Self::Chrf(options) => boxed(Chrf::new(*options))?,
            Self::Ter(options) => Box::new(Ter::new(*options)),
            Self::Rouge(options) => boxed(Rouge::new(options.clone()))?,
            Self::RougeLMax(options) => boxed(RougeLMax::new(options.clone()))?,
            Self::ParentTotto(options) => Box::new(Parent::new(*options)),
            Self::BleuTotto(options) => Box::new(BleuTotto::new(*options)),
            Self::Meteor(options) => boxed(Meteor::new(options.clone()))?,
            Self::Cider(options) => boxed(Cider::new(options.clone()))?,
            Self::Spice(options) => options.build(interrupt)?,
            Self::Diversity(options) => boxed(Diversity::new(options.clone()))?,
            Self::Distinct(NoOptions {}) => Box::new(Distinct),
            Self::ExactMatch(NoOptions {}) => Box::new(ExactMatch),
            Self::TokenF1(NoOptions {}) => Box::new(TokenF1),
            Self::Dates(NoOptions {}) => Box::new(Dates),
            Self::IncreasingNumbers(options) => Box::new(IncreasingNumbers::new(*options)),
            Self::Perplexity(options) => Box::new(Perplexity::new(options.clone(), models)?),
            Self::BertScore(options) => Box::new(BertScore::new(options, models)?),
            Self::Bleurt(options) => Box::new(Bleurt::new(options.clone(), models)?),
            Self::SummacZs(options) => Box::new(SummacZs::new(options.clone(), models)?),
            Self::SummacConv(options) => Box::new(SummacConv::new(options, models)?),
            Self::IntentAccuracy(options) => Box::new(IntentAccuracy::new(options, models)?),
            Self::LearnedReward(options) => Box::new(LearnedReward::new(options, models)?),
            Self::CommonGenPreference(options) => Box::new(CommonGenPreference::new(options.clone(), models)?),
            Self::Toxicity(options) => Box::new(Toxicity::new(options, models, interrupt)?),
            Self::Command(options) => Box::new(CommandMetric::start(options, interrupt)?),
            Self::Plugin(plugin) => plugin.make()?(models)?,
        })
    }

    /// Returns the column that every row needs in addition to its prediction, if there is one. Tables and labels in other columns are
    /// checked by the metrics that read them, and plug-ins check all columns.
    pub fn needs(&self) -> Option<NeededColumn> {
        let (references, prompt) = (Some(NeededColumn::References), Some(NeededColumn::Prompt));
        match self {
            Self::Bleu(_) | Self::SacreBleu(_) | Self::Chrf(_) | Self::Ter(_) | Self::Rouge(_) => references,
            Self::RougeLMax(_) | Self::Meteor(_) | Self::Cider(_) | Self::ExactMatch(_) | Self::TokenF1(_) => {
                references
            }
            Self::BertScore(_) | Self::Bleurt(_) => references,
            // A file of scene graphs contains those of the references.
            Self::Spice(options) => references.filter(|_| options.scene_graphs.is_none()),
            Self::SummacZs(options) => prompt.filter(|_| options.document.is_none()),
            Self::SummacConv(options) => prompt.filter(|_| options.document.is_none()),
            Self::ParentTotto(_) | Self::BleuTotto(_) | Self::Diversity(_) | Self::Distinct(_) | Self::Dates(_) => None,
            Self::IncreasingNumbers(_) | Self::Perplexity(_) | Self::IntentAccuracy(_) | Self::LearnedReward(_) => None,
            Self::CommonGenPreference(_) | Self::Toxicity(_) | Self::Command(_) | Self::Plugin(_) => None,
        }
    }

    /// Rejects row `i` if it lacks the column that the metric [needs](Self::needs). `has_prompt` is whether the data have a prompt for it.
    ///
    /// # Errors
    /// The row lacks the column.
    pub fn check_row(&self, i: usize, row: &Row, has_prompt: bool) -> Result<(), RowError> {
        match self.needs() {
            Some(NeededColumn::References) if row.references.is_empty() => Err(RowError::without_references(i)),
            Some(NeededColumn::Prompt) if !has_prompt => {
                let hint = format!("name the column with the document in the option `document` of `{}`", self.name());
                let error = RowError::new(i, "no column `prompt`, which must hold the document");
                Err(RowError { hint: Some(hint), ..error })
            }
            _ => Ok(()),
        }
    }

    /// Returns the models that the metric uses.
    pub fn models(&self) -> Vec<MetricModel<'_>> {
        let of = |name, usage| vec![MetricModel { name, usage }];
        match self {
            Self::Perplexity(options) => {
                options.model.as_ref().map_or_else(Vec::new, |name| of(name, ModelUse::Language))
            }
            Self::BertScore(options) => of(&options.model, ModelUse::Encoder { layer: options.layer() }),
            Self::Bleurt(options) => of(&options.model, ModelUse::Classifier),
            Self::SummacZs(options) => of(&options.model, ModelUse::Classifier),
            Self::SummacConv(options) => {
                let more = options.more_models.iter().map(|more| more.model.as_str());
                let all = [options.model.as_str()].into_iter().chain(more);
                all.map(|name| MetricModel { name, usage: ModelUse::Classifier }).collect()
            }
            Self::IntentAccuracy(options) => of(&options.model, ModelUse::Classifier),
            Self::LearnedReward(options) => of(&options.model, ModelUse::Classifier),
            Self::CommonGenPreference(options) => of(&options.model, ModelUse::TextToText),
            Self::Toxicity(options) => {
                options.scorer.model().map_or_else(Vec::new, |name| of(name, ModelUse::Classifier))
            }
            _ => Vec::new(),
        }
    }

    /// Rejects metrics that have no value for a single completion. Those of plug-ins are known only when they are built.
    ///
    /// # Errors
    /// If the metric cannot be a reward.
    pub fn check_reward(&self) -> Result<(), String> {
        let is_reward = match self {
            Self::Diversity(_) | Self::Distinct(_) | Self::Perplexity(_) => false,
            // The file has no scene graphs of new completions.
            Self::Spice(options) => options.scene_graphs.is_none(),
            _ => true,
        };
        if is_reward { Ok(()) } else { Err(not_a_reward(&self.name())) }
    }

    /// Returns the same metric for one of several `processes` that measure at the same time: each has an equal share of a service's limits.
    #[must_use]
    pub fn shared_by(self, processes: usize) -> Self {
        match self {
            Self::Toxicity(options) => {
                Self::Toxicity(ToxicityOptions { scorer: options.scorer.shared_by(processes), ..options })
            }
            other => other,
        }
    }

    /// Returns whether the metric starts a program.
    pub fn starts_program(&self) -> bool {
        match self {
            Self::Command(_) => true,
            Self::Spice(options) => !options.program.is_empty(),
            _ => false,
        }
    }

    /// Rejects mistakes that can be found before a model is opened or a program started. For metrics without models or programs,
    /// these are all errors of [`build`](Self::build).
    ///
    /// # Errors
    /// As for [`build`](Self::build).
    pub fn check_alone(&self) -> Result<()> {
        match self {
            Self::Plugin(plugin) => plugin.make().map(drop),
            // Without a `model`, it uses the model that is evaluated.
            Self::Perplexity(_) => self.check(),
            _ if !self.models().is_empty() || self.starts_program() => self.check(),
            _ => self.build(&NoModels, &Interrupt::default()).map(drop),
        }
    }

    /// Rejects invalid options of metrics with models or programs. Metrics of text check their own options.
    fn check(&self) -> Result<()> {
        match self {
            Self::Perplexity(PerplexityOptions { stride: Some(0), .. }) => {
                Err(Error::input("the option `stride` of `perplexity` is 0, but must be at least 1"))
            }
            Self::Perplexity(PerplexityOptions { max_length: Some(found @ 0..=1), .. }) => {
                let message = format!("the option `max_length` of `perplexity` is {found}, but must be at least 2");
                Err(Error::input(message))
            }
            Self::Toxicity(options) => match options.scorer.mistakes().first() {
                Some((key, message)) => {
                    Err(Error::input(format!("the option `scorer` of `toxicity`: `{key}`: {message}")))
                }
                None => Ok(()),
            },
            Self::Command(options) => options.check(),
            Self::Spice(options) => options.check(),
            _ => Ok(()),
        }
    }

    /// Returns its name, as in `--metrics`. Programs and plug-ins have names of their own.
    pub fn name(&self) -> String {
        match self {
            Self::Command(CommandOptions { name: Some(name), .. }) => return name.clone(),
            Self::Plugin(plugin) => return plugin.name().to_owned(),
            _ => {}
        }
        let written = serde_json::to_value(self).expect("options are plain values");
        let name = written.as_object().and_then(|object| object.keys().next()).cloned();
        name.expect("a metric is written as a mapping of one key")
    }

    /// Returns the names of all built-in metrics.
    pub fn names() -> Vec<String> {
        registry().into_iter().map(|metric| metric.name).collect()
    }
}

/// Numbers equal names, in order: `bleu`, `bleu_2`. Values are stored by the names, so no two may be equal.
pub fn distinct_names(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut distinct: Vec<String> = Vec::new();
    for base in names {
        let (mut name, mut number) = (base.clone(), 1);
        while distinct.contains(&name) {
            number += 1;
            name = format!("{base}_{number}");
        }
        distinct.push(name);
    }
    distinct
}

/// Returns the schema of metrics in a configuration: each is its name alone, if it needs no options, or a mapping with its options.
pub fn schema_of_list(generator: &mut SchemaGenerator) -> Schema {
    let choice = generator.subschema_for::<MetricConfig>();
    let words: Vec<String> = MetricConfig::names().into_iter().filter(|name| named(name).is_some()).collect();
    json_schema!({
        "type": "array",
        "items": { "anyOf": [{ "type": "string", "enum": words }, choice] },
        "default": [],
    })
}

/// Deserializes the form that [`schema_of_list`] describes.
///
/// # Errors
/// If a metric or one of its options is unknown, or a value has another type.
pub fn read_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<MetricConfig>, D::Error> {
    let read = |value: Value| match value {
        Value::String(name) => serde_json::from_value(json!({ name: {} })),
        mapping => serde_json::from_value(mapping),
    };
    let values = Vec::<Value>::deserialize(deserializer)?;
    values.into_iter().map(read).collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// Returns the message that a metric has no value for a single completion.
pub fn not_a_reward(name: &str) -> String {
    format!("`{name}` cannot be a reward: it cannot score a single new completion")
}

/// Returns the metric with this name, if it needs no options.
fn named(name: &str) -> Option<MetricConfig> {
    serde_json::from_value(json!({ name: {} })).ok()
}

/// An option of a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricOption {
    /// Name of the option.
    pub name: String,
    /// JSON type of its value: `boolean`, `integer`, `number`, `array` (of words, split as by a shell); anything else is text.
    kind: String,
}

/// A metric in the schema of [`MetricConfig`].
struct Registered {
    name: String,
    options: Vec<MetricOption>,
}

/// Returns all metrics with their options, read from the types.
fn registry() -> Vec<Registered> {
    let schema = schemars::schema_for!(MetricConfig).to_value();
    let variants = schema["oneOf"].as_array().cloned().unwrap_or_default();
    let entries = variants.iter().filter_map(|variant| variant["properties"].as_object()?.iter().next());
    let resolve = |value: &Value| -> Value {
        let name = value["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
        let found = name.map_or_else(|| value.clone(), |name| schema["$defs"][name].clone());
        // Either a single value, or a mapping that has the options.
        match found["anyOf"].as_array().and_then(|forms| forms.last()?["$ref"].as_str()?.strip_prefix("#/$defs/")) {
            Some(mapping) => schema["$defs"][mapping].clone(),
            None => found,
        }
    };
    let option = |(name, value): (&String, &Value)| {
        let kind = match &value["type"] {
            Value::Array(kinds) => kinds.first().cloned().unwrap_or_default(),
            kind => kind.clone(),
        };
        MetricOption { name: name.clone(), kind: kind.as_str().unwrap_or("string").to_owned() }
    };
    entries
        .filter(|(name, _)| *name != PLUGIN)
        .map(|(name, options)| {
            let options = resolve(options)["properties"]
                .as_object()
                .map_or_else(Vec::new, |fields| fields.iter().map(option).collect());
            Registered { name: name.clone(), options }
        })
        .collect()
}

/// Returns a hint on the name of a metric that does not exist here, if a similar name would mislead: `ter` is another error rate.
pub fn hint_on_absent(name: &str) -> Option<&'static str> {
    matches!(name, "wer" | "cer").then_some(
        "word and character error rates are not built in: measure them with `command`, a program of your own \
         (docs/plugins.md)",
    )
}

/// Returns metrics by name, with options `KEY=VALUE`. A key is the name of an option, which applies to every given metric that has
/// it, or `metric.option`.
///
/// # Errors
/// An unknown name or option, with a similar known one, and values that do not fit.
pub fn configure(names: &[String], options: &[String]) -> Result<Vec<MetricConfig>> {
    let registry = registry();
    let registered = |name: &str| {
        registry.iter().find(|metric| metric.name == name).ok_or_else(|| {
            let known = registry.iter().map(|metric| metric.name.as_str());
            let hint = hint_on_absent(name).map(str::to_owned);
            let hint = hint.unwrap_or_else(|| did_you_mean(name, known, "metrics are"));
            Error::input(format!("no metric is called `{name}`")).with_hint(hint)
        })
    };
    let mut chosen = Vec::new();
    for name in names {
        chosen.push((registered(name)?, Map::new()));
    }
    for option in options {
        let Some((key, value)) = option.split_once('=') else {
            return Err(Error::input(format!("the metric option `{option}` is not of the form KEY=VALUE")));
        };
        let (metric, key) = match key.split_once('.') {
            Some((metric, key)) => (Some(metric), key),
            None => (None, key),
        };
        if let Some(metric) = metric
            && !names.iter().any(|name| name == metric)
        {
            registered(metric)?;
            let message = format!("the metric option `{option}` is for `{metric}`, which is not measured");
            return Err(Error::input(message).with_hint(format!("add the metric `{metric}`, or leave the option out")));
        }
        let mut is_used = false;
        for (registered, values) in &mut chosen {
            let known = registered.options.iter().find(|option| option.name == key);
            if let Some(known) = known.filter(|_| metric.is_none_or(|metric| metric == registered.name)) {
                let value = known.read(value).ok_or_else(|| {
                    let message = format!("the option `{key}` of `{}` is `{value}`", registered.name);
                    Error::input(format!("{message}, but must be of type {}", known.kind))
                })?;
                values.insert(key.to_owned(), value);
                is_used = true;
            }
        }
        if !is_used {
            let of = chosen.iter().filter(|(found, _)| metric.is_none_or(|metric| metric == found.name));
            let known: Vec<&str> =
                of.flat_map(|(found, _)| found.options.iter().map(|option| option.name.as_str())).collect();
            let of = metric.map_or_else(|| names.join(", "), str::to_owned);
            let hint = did_you_mean(key, known.iter().copied(), "options are");
            return Err(Error::input(format!("no option `{key}` of {of}")).with_hint(hint));
        }
    }
    let read = |(registered, values): (&Registered, Map<String, Value>)| {
        let written = Value::Object(Map::from_iter([(registered.name.clone(), Value::Object(values))]));
        serde_json::from_value(written)
            .map_err(|error| Error::input(format!("options of the metric `{}`: {error}", registered.name)))
    };
    chosen.into_iter().map(read).collect()
}

fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone, are: &str) -> String {
    match nearest(word, known.clone()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.clone().next().is_none() => "there are no options".into(),
        None => format!("{are} {}", known.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")),
    }
}

impl MetricOption {
    fn read(&self, text: &str) -> Option<Value> {
        match self.kind.as_str() {
            "boolean" => text.parse::<bool>().ok().map(Value::from),
            "integer" => text.parse::<u64>().ok().map(Value::from),
            "number" => text.parse::<f64>().ok().filter(|value| value.is_finite()).map(Value::from),
            // A list in brackets is written as in a configuration.
            "array" if text.trim_start().starts_with('[') => serde_saphyr::from_str(text).ok(),
            "array" => shlex::split(text).map(Value::from),
            // A mapping is written as in a configuration: `scorer={ classifier: { model: DIR } }`.
            _ if text.trim_start().starts_with('{') => serde_saphyr::from_str(text).ok(),
            _ => Some(Value::from(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(list: &str) -> Vec<String> {
        list.split_whitespace().map(str::to_owned).collect()
    }

    /// Only metrics of text can be built without models and programs.
    #[test]
    fn a_metric_needs_references_if_it_measures_no_row_without() {
        let (without, mut compared) = (Row::new("a b", Vec::<String>::new()), 0);
        let alone = MetricConfig::names().into_iter().filter_map(|name| named(&name));
        for config in alone.filter(|config| config.models().is_empty()) {
            let Ok(metric) = config.build(&NoModels, &Interrupt::default()) else { continue };
            let expected = metric.measure(std::slice::from_ref(&without)).err();
            let expected = expected.filter(|error| error.message.contains("references"));
            assert_eq!(config.check_row(0, &without, true).err(), expected, "{}", config.name());
            compared += usize::from(expected.is_some());
        }
        assert_eq!(compared, 10);
    }

    #[test]
    fn a_document_is_the_prompt_or_a_named_column() {
        let row = Row::new("a", ["b"]);
        let config = |options: &str| configure(&["summac_zs".to_owned()], &list(options)).expect("known").remove(0);
        let error = config("model=none").check_row(4, &row, false).expect_err("no document");
        assert_eq!((error.row, error.message.as_str()), (4, "no column `prompt`, which must hold the document"));
        assert!(error.hint.is_some_and(|hint| hint.contains("the option `document` of `summac_zs`")));
        // An empty document is one.
        assert_eq!(config("model=none").check_row(4, &row, true), Ok(()));
        assert_eq!(config("model=none document=text").check_row(4, &row, false), Ok(()));
    }

    #[test]
    fn equal_names_get_numbers() {
        assert_eq!(distinct_names(list("a b a a_2 a")), ["a", "b", "a_2", "a_2_2", "a_3"]);
    }

    #[test]
    fn every_metric_is_named_and_built_by_its_name() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        for name in MetricConfig::names() {
            let options = match name.as_str() {
                "increasing_numbers" => list("min_tokens=20"),
                "spice" => vec![format!("scene_graphs={}", file.path().display())],
                "learned_reward" => list("model=none label=good"),
                "bert_score" => list("model=none layer=1"),
                "summac_conv" => vec!["model=none".into(), format!("weights={}", file.path().display())],
                "toxicity" => list(r#"scorer={"classifier":{"model":"none"}}"#),
                "perplexity" | "bleurt" | "summac_zs" | "intent_accuracy" | "common_gen_preference" => {
                    list("model=none")
                }
                "command" => list("program=sh"),
                _ => Vec::new(),
            };
            let found = configure(std::slice::from_ref(&name), &options).expect("known");
            assert_eq!(found[0].name(), name);
            let built = found[0].build(&NoModels, &Interrupt::default());
            assert_eq!(built.is_ok(), found[0].models().is_empty(), "{name}");
            found[0].check_alone().expect("nothing is wrong with its options");
        }
    }

    #[test]
    fn options_hold_for_every_metric_that_has_them_or_for_one() {
        let found = configure(&list("sacre_bleu chrf ter"), &list("lowercase=true sacre_bleu.tokenize=char beta=1.5"));
        let bleu = SacreBleuOptions { lowercase: true, tokenize: super::super::Tokenizer::Char, ..Default::default() };
        let chrf = ChrfOptions { lowercase: true, beta: 1.5, ..Default::default() };
        let expected =
            [MetricConfig::SacreBleu(bleu), MetricConfig::Chrf(chrf), MetricConfig::Ter(TerOptions::default())];
        assert_eq!(found.expect("known options"), expected);
    }

    #[test]
    fn what_is_not_known_is_refused_with_what_may_have_been_meant() {
        let check = |names: &str, options: &str, message: &str, hint: &str| {
            let error = configure(&list(names), &list(options)).expect_err("refused");
            assert_eq!(error.to_string(), message);
            assert!(error.hint().unwrap_or_default().starts_with(hint), "{:?}", error.hint());
        };
        check("rogue", "", "no metric is called `rogue`", "did you mean `rouge`?");
        check("wer", "", "no metric is called `wer`", "word and character error rates are not built in");
        check("something", "", "no metric is called `something`", "metrics are `bleu`, `sacre_bleu`, `chrf`");
        check("rouge", "stemmer=true", "no option `stemmer` of rouge", "options are `use_stemmer`");
        check("chrf", "chrf.betta=1", "no option `betta` of chrf", "did you mean `beta`?");
        check("dates", "beta=1", "no option `beta` of dates", "there are no options");
        let message = "the metric option `meteor.wordnet=none` is for `meteor`, which is not measured";
        check("dates chrf", "meteor.wordnet=none", message, "add the metric `meteor`");
        check("dates chrf", "metoer.wordnet=none", "no metric is called `metoer`", "did you mean `meteor`?");
        check("chrf", "beta=much", "the option `beta` of `chrf` is `much`, but must be of type number", "");
        check("chrf", "beta", "the metric option `beta` is not of the form KEY=VALUE", "");
        let built = |names: &str, options: &str| {
            let found = configure(&list(names), &list(options)).expect("known");
            found[0].build(&NoModels, &Interrupt::default()).err().expect("refused").to_string()
        };
        let expected = "the option `char_order` plus `word_order` of `chrf` is 0, but must be from 1 to 64";
        assert_eq!(built("chrf", "char_order=0"), expected);
        let expected = "the option `max_order` of `bleu` is 1000000000, but must be from 1 to 64";
        assert_eq!(built("bleu", "max_order=1000000000"), expected);
        let expected = "the option `weight_factor` of `rouge_l_max` is 0, but must exceed 0";
        assert_eq!(built("rouge_l_max", "weight_factor=0"), expected);
        let error = configure(&list("sacre_bleu"), &list("tokenize=13b")).expect_err("refused").to_string();
        assert!(error.starts_with("options of the metric `sacre_bleu`: unknown variant `13b`"), "{error}");
        let error = configure(&list("increasing_numbers"), &[]).expect_err("refused").to_string();
        assert_eq!(error, "options of the metric `increasing_numbers`: missing field `min_tokens`");
    }
}
