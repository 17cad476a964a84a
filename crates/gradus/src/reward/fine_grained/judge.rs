//! Models that judge segments, and the rewards for their output.

use burn::tensor::Device;

use super::SegmentConfig;
use crate::batches::MicroBatch;
use crate::error::{Error, Result};
use crate::host::read;
use crate::model::{Classifier, ModelDir, RewardModel, Rows, Scope, Sequence, Task, Text, WeightFormat};
use crate::reward::classifier::{number, resolve_label};
use crate::reward::label::ClassifierValue;
use crate::reward::{RewardError, config_error};
use crate::text::{Cut, Joined, Level, Pattern, Tokenizer};

/// Default separator before a segment.
const SEPARATOR: &str = "</s>";
/// Default text before the segments for token classifiers, and default text for other models.
const PROMPT: &str = "{prompt}";
const TEXT: &str = "{prompt}{so_far}";

/// A model with its tokenizer and its input format.
pub(super) struct Judge {
    model: Model,
    tokenizer: Tokenizer,
    /// Text before all segments (token classifiers), or text of each segment (others).
    pattern: Pattern,
    separator: String,
    cut: Option<Cut>,
}

enum Model {
    /// A token classifier, which reads all segments at once.
    Tokens(Classifier),
    /// A text classifier.
    Texts(Classifier),
    /// A reward model on a decoder.
    Scalar(RewardModel),
}

impl Judge {
    pub fn load(dir: &ModelDir, config: &SegmentConfig, device: &Device, weights: WeightFormat) -> Result<Self> {
        let model = if dir.is_classifier() {
            let model = Classifier::load_packed(dir, weights, device)?.into_frozen(weights);
            if model.task().scope == Scope::Token { Model::Tokens(model) } else { Model::Texts(model) }
        } else {
            if dir.has_encoder()? {
                let message =
                    format!("`{}` reads prompt and completion separately, and cannot judge segments", config.model);
                let hint = "as a part of a `mix`, `reward: { model: … }` judges whole completions with it";
                return Err(config_error(message, Some(hint.into())));
            }
            Model::Scalar(RewardModel::load_packed(dir, weights, device)?.into_frozen(weights))
        };
        let tokenizer = Tokenizer::of_model(dir.tokenizer_dir(), &dir.path)?;
        dir.check_vocabulary(tokenizer.vocab_size())?;
        let positions = match &model {
            Model::Tokens(model) | Model::Texts(model) => model.encoder.max_positions(),
            Model::Scalar(model) => model.trunk.position_budget().after(0),
        };
        let limit = config.max_length.or(dir.training_info().max_length).into_iter().chain(positions).min();
        let (written, usual) = match model {
            Model::Tokens(_) => (&config.prompt, PROMPT),
            Model::Texts(_) | Model::Scalar(_) => (&config.text, TEXT),
        };
        let pattern =
            Pattern::parse(written.as_deref().unwrap_or(usual)).map_err(|message| config_error(message, None))?;
        let separator = config.separator.clone().unwrap_or_else(|| SEPARATOR.into());
        Ok(Self { model, tokenizer, pattern, separator, cut: limit.map(Cut::Right) })
    }

    /// Rejects keys that do not fit the model.
    pub fn check(&self, config: &SegmentConfig, level: Level) -> Result<(), (String, Option<String>)> {
        let name = &config.model;
        let is_of_tokens = matches!(self.model, Model::Tokens(_));
        if is_of_tokens && config.text.is_some() {
            let message = format!("`{name}` classifies tokens, and reads all segments after one `prompt`");
            return Err((message, Some("set `prompt` instead of `text`".into())));
        }
        if !is_of_tokens && (config.prompt.is_some() || config.separator.is_some()) {
            let message = format!("`{name}` classifies texts: `prompt` and `separator` are for classifiers of tokens");
            return Err((message, Some("set `text` instead, such as `{prompt}{so_far}`".into())));
        }
        if is_of_tokens && self.tokenizer.token_id(&self.separator).is_none() {
            let message = format!("the separator `{}` is not a token of `{name}`", self.separator);
            return Err((message, Some("set `separator` to the word that was before segments in its training".into())));
        }
        if config.change && (is_of_tokens || level == Level::Whole) {
            let message = format!("`change` needs a number for each text so far, which `{name}` does not output");
            return Err((
                message,
                Some("set `segments: sentence` and use a classifier of texts or a reward model".into()),
            ));
        }
        Ok(())
    }

    /// Returns the default unit that the model judges.
    pub fn usual_level(&self) -> Level {
        match self.model {
            Model::Tokens(_) => Level::Sentence,
            Model::Texts(_) | Model::Scalar(_) => Level::Whole,
        }
    }

    /// Returns the text before the segments, if the model reads all of them at once.
    pub fn prompt(&self) -> Option<&Pattern> {
        matches!(self.model, Model::Tokens(_)).then_some(&self.pattern)
    }

    /// Returns the name of a label, if the model has labels.
    pub fn label(&self, number: usize) -> Option<String> {
        self.task()?.labels.get(number).cloned()
    }

    fn task(&self) -> Option<&Task> {
        match &self.model {
            Model::Tokens(model) | Model::Texts(model) => Some(model.task()),
            Model::Scalar(_) => None,
        }
    }

    /// Tokenizes the words of `before` and of the segments, with a separator before each segment. Also returns the
    /// positions of the separators that were not cut off.
    pub fn separated(&self, before: &str, segments: &[&str]) -> Result<(Joined, Vec<usize>)> {
        let mut words: Vec<String> = before.split_whitespace().map(str::to_owned).collect();
        let mut separators = Vec::with_capacity(segments.len());
        for segment in segments {
            separators.push(words.len());
            words.push(self.separator.clone());
            words.extend(segment.split_whitespace().map(str::to_owned));
        }
        let (joined, firsts) = self.tokenizer.encode_words(&words, self.cut)?;
        // Cutting removes separators at the end only.
        Ok((joined, separators.into_iter().map_while(|word| firsts[word]).collect()))
    }

    /// Returns the model's input for one segment, and whether it was cut.
    pub fn alone(
        &self,
        value: impl FnMut(&str) -> Result<String, RewardError>,
        has_ended: bool,
    ) -> Result<(Joined, bool), RewardError> {
        let mut text = self.pattern.fill(value)?;
        // As in reward model training, a finished text ends with the end-of-text token.
        if matches!(self.model, Model::Scalar(_)) && has_ended && !self.tokenizer.appends_eos() {
            text.push_str(self.tokenizer.eos_token().unwrap_or(""));
        }
        let encode = |cut| {
            self.tokenizer.encode_joined(&text, None, cut).map_err(|error: Error| RewardError::new(error.to_string()))
        };
        let whole = encode(None)?;
        match self.cut {
            Some(Cut::Right(limit)) if whole.ids.len() > limit => Ok((encode(self.cut)?, true)),
            _ => Ok((whole, false)),
        }
    }

    /// Rejects a text that the model cannot read.
    pub fn check_text(&self, joined: &Joined) -> Result<(), String> {
        match &self.model {
            Model::Tokens(model) | Model::Texts(model) => model.encoder.check(&text(joined)),
            Model::Scalar(_) if joined.ids.is_empty() => Err("prompt and completion are empty".into()),
            Model::Scalar(_) => Ok(()),
        }
    }

    /// Returns one row of numbers per question, in order. Each text goes through the model once. `on_progress` receives the
    /// number of finished questions after each pass.
    ///
    /// # Errors
    /// An error of `on_progress`, which ends the work.
    pub fn run(
        &self,
        questions: &[(&Joined, &[usize])],
        passes: MicroBatch,
        on_progress: &dyn Fn(usize) -> Result<(), RewardError>,
    ) -> Result<Vec<Vec<f32>>, RewardError> {
        let lengths: Vec<usize> = questions.iter().map(|(joined, _)| joined.ids.len()).collect();
        let mut outputs = Vec::new();
        for pass in passes.split(&lengths) {
            let done = pass.end;
            let questions = &questions[pass];
            let texts = || -> Vec<Text<'_>> { questions.iter().map(|(joined, _)| text(joined)).collect() };
            let (logits, width) = match &self.model {
                Model::Tokens(model) => {
                    let batch = model.batch(&texts());
                    let places =
                        questions.iter().enumerate().flat_map(|(i, (_, at))| at.iter().map(move |&at| (i, at)));
                    let indices: Vec<usize> = places.map(|(i, at)| batch.packed().index(i, at)).collect();
                    (model.token_logits(&batch, &indices).flatten(0, 1), model.task().labels.len())
                }
                Model::Texts(model) => (model.logits(&model.batch(&texts())).flatten(0, 1), model.task().labels.len()),
                Model::Scalar(model) => {
                    let rows = questions.iter().map(|(joined, _)| Sequence::scored(&joined.ids));
                    (model.rewards(&model.batch(&Rows::Alone(rows.collect()))), 1)
                }
            };
            outputs.extend(read(&logits).chunks_exact(width).map(<[f32]>::to_vec));
            on_progress(done)?;
        }
        Ok(outputs)
    }
}

fn text(joined: &Joined) -> Text<'_> {
    Text { ids: &joined.ids, types: &joined.types, global: None }
}

/// Conversion of a model's output to a reward.
pub(super) enum RewardMapping {
    /// The value of the most probable of these labels.
    Labels(Vec<(usize, f32)>),
    /// A normalized number.
    Number { task: Option<Task>, label: usize, value: ClassifierValue, mean: f32, std: f32, bias: f32, scale: f32 },
}

impl RewardMapping {
    pub fn of(judge: &Judge, dir: &ModelDir, config: &SegmentConfig) -> Result<Self, (String, Option<String>)> {
        let task = judge.task();
        if !config.values.is_empty() {
            let Some(task) = task else {
                let message = format!("`{}` outputs scores and has no labels, but `values` names labels", config.model);
                return Err((
                    message,
                    Some("leave `values` out; `mean`, `std`, `scale` and `bias` set the value of a score".into()),
                ));
            };
            let place = |(label, value): (&String, &f64)| {
                let hint = "`values` uses the label names of the model's `config.json`, or the label numbers";
                task.label(label)
                    .map(|label| (label, *value as f32))
                    .map_err(|message| (format!("`{}`: {message}", config.model), Some(hint.to_owned())))
            };
            let mut labels = config.values.iter().map(place).collect::<Result<Vec<_>, _>>()?;
            labels.sort_by_key(|(label, _)| *label);
            if let Some(twice) = labels.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Err((format!("`values` names the label `{}` twice", task.labels[twice[0].0]), None));
            }
            return Ok(Self::Labels(labels));
        }
        let (label, value) = match task {
            Some(task) if task.scope == Scope::Token && config.label.is_none() => {
                let message = format!("`{}` classifies tokens, and the values of its labels are not set", config.model);
                let known: Vec<String> = task.labels.iter().map(|label| format!("`{label}`")).collect();
                return Err((message, Some(format!("set `values` for two or more of {}", known.join(", ")))));
            }
            Some(task) => resolve_label(task, &config.model, config.label.as_ref(), config.value)
                .map_err(|(message, hint)| (message, Some(hint)))?,
            None => (0, ClassifierValue::Logit),
        };
        // Changes of scores have their own distribution.
        let trained = if config.change { Default::default() } else { dir.training_info() };
        Ok(Self::Number {
            task: task.cloned(),
            label,
            value,
            mean: config.mean.or(trained.score_mean).unwrap_or(0.0) as f32,
            std: config.std.or(trained.score_std).unwrap_or(1.0) as f32,
            bias: config.bias as f32,
            scale: config.scale as f32,
        })
    }

    /// Returns the value of the most probable label (the first of equal ones, as `argmax`), or the number.
    pub fn raw(&self, logits: &[f32]) -> f32 {
        match self {
            Self::Labels(labels) => best(labels, logits).1,
            Self::Number { task: Some(task), label, value, .. } => number(task, logits, *label, *value),
            Self::Number { task: None, .. } => logits[0],
        }
    }

    /// Returns the index of the label whose value [`raw`](Self::raw) returns.
    pub fn label(&self, logits: &[f32]) -> Option<usize> {
        match self {
            Self::Labels(labels) => Some(best(labels, logits).0),
            Self::Number { .. } => None,
        }
    }

    /// Converts a raw value to a reward.
    pub fn reward(&self, raw: f32) -> f32 {
        match self {
            Self::Labels(_) => raw,
            Self::Number { mean, std, bias, scale, .. } => (raw - mean) / std * scale + bias,
        }
    }

    /// Returns the highest raw value that a label can have; 0 for numbers.
    pub fn max_value(&self) -> f32 {
        match self {
            Self::Labels(labels) => labels.iter().map(|(_, value)| *value).fold(f32::NEG_INFINITY, f32::max),
            Self::Number { .. } => 0.0,
        }
    }

    /// Returns the name of the segment statistic.
    pub fn statistic_name(&self) -> &'static str {
        match self {
            Self::Labels(_) => "right",
            Self::Number { .. } => "score",
        }
    }

    /// Returns the segment statistic. With labels: 1 if the segment has the label of the highest value. With numbers:
    /// the number in standard deviations from the mean.
    pub fn statistic(&self, raw: f32) -> f64 {
        match self {
            Self::Labels(_) => f64::from(u8::from(raw == self.max_value())),
            Self::Number { mean, std, .. } => f64::from((raw - mean) / std),
        }
    }
}

/// Returns the most probable label with its value; the first of equal ones.
fn best(labels: &[(usize, f32)], logits: &[f32]) -> (usize, f32) {
    let best = labels.iter().rev().max_by(|(a, _), (b, _)| logits[*a].total_cmp(&logits[*b]));
    *best.expect("two labels or more")
}
