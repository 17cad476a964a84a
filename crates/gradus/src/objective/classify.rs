//! Classification: its configuration keys, its objective, and its per-label report.

use burn::tensor::{Tensor, TensorData};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{LossContext, Objective, OfflineMethod, evaluate_loss};
use crate::batches::MicroBatch;
use crate::data::feedback::SENTENCES;
use crate::data::{
    self, Examples, Gold, LabelForm, LabelKind, LabeledExample, Need, Row, Side, TextForm, TokenizeOptions, TooLong,
};
use crate::error::{Error, Result};
use crate::host::read;
use crate::loss::classify::{binary_cross_entropy, cross_entropy, squared_error};
use crate::loss::reduce::sum;
use crate::math::classes::{ClassScore, Confusion, macro_f1};
use crate::method::{Cast, Defaults, Head, Method, Problems, Shared};
use crate::model::{
    Classifier, ClassifierColumns, DropoutStream, ModelShape, Reading, Reference, Rows, Scope, Sequence, Task, Text,
    TrainingInfo,
};
use crate::pretrained::{LabelPlan, Pretrained};
use crate::progress::Progress;
use crate::readings::Readings;
use crate::settings::TrainConfig;
use crate::stats::Stats;

/// Keys of `method.classify`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub struct ClassifyConfig {
    /// Kind of label of a row. Default: that of the start model's head, or `single_label` if it has none.
    pub task: Option<ClassifyTask>,
    /// Labels, in the order of their indices. Default: the start model's labels if they cover all training rows;
    /// otherwise the labels of the training rows in alphabetical order.
    pub labels: Option<Vec<String>>,
    /// Column of the labels. Default: `label`; for `tokens` the first existing one of `labels`, `tags`, `ner_tags`.
    pub label_column: Option<String>,
    /// For `tokens`: label of words without a loss, such as `Ignore`. It becomes a label of the model only if `labels`
    /// lists it. Default: none (null and −100 have the same meaning).
    pub ignored_label: Option<String>,
    /// For `single_label` and `tokens`: label that means "nothing found", such as `O`. Evaluations then also report how
    /// well all other labels together are told apart from it (`detection/…`). Default: none.
    pub negative_label: Option<String>,
    /// Template of the input text, with columns in braces. Default: `input_ids`, `tokens`, `text`, or prompt and
    /// completion.
    pub text: Option<String>,
    /// Template of a second input text, which follows the first. Default: none.
    pub pair: Option<String>,
    /// Side at which long texts are cut, if they are cut. Default `right`.
    pub truncate: Side,
    /// Loss weights of labels; labels that are not listed have weight 1. Default: none.
    pub class_weights: Vec<ClassWeight>,
    /// Weight each label by N / (K · N_label) over the training rows, on top of `class_weights`. Default false.
    pub balanced: bool,
}

/// Loss weight of a label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassWeight {
    /// The label.
    pub label: String,
    /// Factor of its loss.
    pub weight: f64,
}

/// Prediction target of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClassifyTask {
    /// One label of several.
    SingleLabel,
    /// Any number of the labels.
    MultiLabel,
    /// One number, or one per label.
    Regression,
    /// One label per token.
    Tokens,
}

impl ClassifyTask {
    fn name(self) -> &'static str {
        match self {
            Self::SingleLabel => "single_label",
            Self::MultiLabel => "multi_label",
            Self::Regression => "regression",
            Self::Tokens => "tokens",
        }
    }

    fn of(task: &Task) -> Self {
        match (task.scope, task.reading) {
            (Scope::Token, _) => Self::Tokens,
            (_, Reading::OneOf) => Self::SingleLabel,
            (_, Reading::AnyOf) => Self::MultiLabel,
            (_, Reading::Values) => Self::Regression,
        }
    }

    fn with(self, labels: Vec<String>) -> Task {
        let (scope, reading) = match self {
            Self::SingleLabel => (Scope::Sequence, Reading::OneOf),
            Self::MultiLabel => (Scope::Sequence, Reading::AnyOf),
            Self::Regression => (Scope::Sequence, Reading::Values),
            Self::Tokens => (Scope::Token, Reading::OneOf),
        };
        Task { scope, reading, labels }
    }
}

impl ClassifyConfig {
    /// Fills in the columns that a model was trained on, where none are given. A given text replaces both recorded texts.
    #[must_use]
    pub fn or_recorded(self, recorded: ClassifierColumns) -> Self {
        let has_text = self.text.is_some() || self.pair.is_some();
        let text = |own: Option<String>, recorded: Option<String>| if has_text { own } else { recorded };
        Self {
            text: text(self.text, recorded.text),
            pair: text(self.pair, recorded.pair),
            label_column: self.label_column.or(recorded.label_column),
            ..self
        }
    }

    /// Returns a key with a label that is given although this task does not read it, and the tasks that do.
    fn unread(&self, task: ClassifyTask) -> Option<(&'static str, &'static str)> {
        let has_one = matches!(task, ClassifyTask::SingleLabel | ClassifyTask::Tokens);
        if self.ignored_label.is_some() && task != ClassifyTask::Tokens {
            return Some(("ignored_label", "`tokens`"));
        }
        (self.negative_label.is_some() && !has_one).then_some(("negative_label", "`single_label` or `tokens`"))
    }

    /// Refuses an ignored or a negative label that the task does not read, and a negative label that it does not have.
    ///
    /// # Errors
    /// [`Error::Input`].
    pub(crate) fn check_labels(&self, task: &Task) -> Result<()> {
        let kind = ClassifyTask::of(task);
        if let Some((key, readers)) = self.unread(kind) {
            let message = format!("`{key}` is given, but only {readers} reads it, and the task is `{}`", kind.name());
            return Err(Error::input(message).with_hint("leave it out"));
        }
        match self.negative_label.as_deref().map(|name| task.label(name)) {
            Some(Err(message)) => Err(Error::input(format!("`negative_label`: {message}"))),
            _ => Ok(()),
        }
    }

    /// Returns a message if the ignored label is neither in the rows nor a label of the task.
    ///
    /// # Errors
    /// [`Error::Input`] if the columns of the text are invalid.
    pub(crate) fn missing_ignored(&self, rows: &[Row], task: &Task) -> Result<Option<String>> {
        let form = self.form(ClassifyTask::of(task), None)?;
        let is_missing = |name: &&String| !form.has_ignored(rows) && !task.labels.contains(name);
        let message = |name: &String| {
            let known: Vec<String> = task.labels.iter().map(|label| format!("`{label}`")).collect();
            format!("`ignored_label` is `{name}`, but no row has this label: the labels are {}", known.join(", "))
        };
        Ok(self.ignored_label.as_ref().filter(is_missing).map(message))
    }

    /// Returns the form of the input text. `limit` is the number of tokens at which texts are cut.
    fn text_form(&self, limit: Option<usize>) -> Result<TextForm, (&'static str, String)> {
        let cut = limit.map(|limit| self.truncate.to(limit));
        TextForm::parse(self.text.as_deref(), self.pair.as_deref(), cut)
    }

    /// Returns the configured task, or else the task `own` of the start model's head.
    fn task(&self, own: Option<&Task>) -> ClassifyTask {
        self.task.or(own.map(ClassifyTask::of)).unwrap_or(ClassifyTask::SingleLabel)
    }

    /// Returns the columns of text and labels.
    fn form(&self, task: ClassifyTask, limit: Option<usize>) -> Result<LabelForm> {
        let text = self
            .text_form(limit)
            .map_err(|(key, message)| Error::input(format!("`method.classify.{key}`: {message}")))?;
        let kind = match task {
            ClassifyTask::SingleLabel => LabelKind::One,
            ClassifyTask::MultiLabel => LabelKind::Any,
            ClassifyTask::Regression => LabelKind::Values,
            ClassifyTask::Tokens => LabelKind::Tokens,
        };
        Ok(LabelForm { text, kind, column: self.label_column.clone(), ignored: self.ignored_label.clone() })
    }

    /// Returns the labels and, for each, the number of training texts or tokens that carry it.
    fn counted(&self, form: &LabelForm, rows: &[Row], own: Option<&Task>) -> Result<(Vec<String>, Vec<usize>)> {
        if form.kind == LabelKind::Values {
            let labels = self.labels.clone().or(own.map(|own| own.labels.clone()));
            let labels = labels.unwrap_or_else(|| vec!["LABEL_0".into()]);
            let none = vec![0; labels.len()];
            return Ok((labels, none));
        }
        if let Some(labels) = &self.labels {
            return Ok((labels.clone(), form.count_among(rows, labels)?));
        }
        let known = own.and_then(|own| Some((own.labels.clone(), form.count_among(rows, &own.labels).ok()?)));
        match known {
            Some(known) => Ok(known),
            None => {
                let found = form.count(rows)?;
                Ok((found.labels, found.counts))
            }
        }
    }

    /// Returns the loss weight of each label.
    fn weights(&self, labels: &[String], counts: &[usize]) -> Result<Vec<f32>> {
        let unknown = self.class_weights.iter().map(|of| &of.label).find(|label| !labels.contains(label));
        if let Some(unknown) = unknown {
            let known: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            let message =
                format!("`method.classify.class_weights` names `{unknown}`, but the labels are {}", known.join(", "));
            return Err(Error::input(message));
        }
        let (all, kinds) = (counts.iter().sum::<usize>() as f64, labels.len() as f64);
        let balance = |count: usize| if self.balanced && count > 0 { all / (kinds * count as f64) } else { 1.0 };
        let weight = |(label, &count): (&String, &usize)| {
            let own = self.class_weights.iter().find(|of| of.label == *label).map_or(1.0, |of| of.weight);
            (own * balance(count)) as f32
        };
        Ok(labels.iter().zip(counts).map(weight).collect())
    }
}

impl Method for ClassifyConfig {
    fn name(&self) -> &'static str {
        "classify"
    }

    fn about(&self) -> &'static str {
        "Train a classifier of texts or tokens"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 2e-5, too_long: TooLong::Truncate, best_metric: "eval_loss" }
    }

    fn need(&self) -> Need {
        Need::Columns
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        Cast::alone(shared, Head::Labels)
    }

    fn rules(&self, problems: &mut Problems<'_>, _train: &TrainConfig) {
        if let Err((key, message)) = self.text_form(None) {
            let key = format!("method.classify.{key}");
            problems.require(false, &[&key], || (format!("`{key}`: {message}"), None));
        }
        for (i, of) in self.class_weights.iter().enumerate() {
            problems.at_least(&format!("method.classify.class_weights[{i}].weight"), of.weight, 0.0);
        }
        if let Some((key, readers)) = self.task.and_then(|task| self.unread(task)) {
            let key = format!("method.classify.{key}");
            problems.only_read_by(false, &[&key, "method.classify.task"], readers, "use another `task`");
        }
        let weighs = self.balanced || !self.class_weights.is_empty();
        let several = matches!(self.task, Some(ClassifyTask::Regression | ClassifyTask::MultiLabel));
        problems.require(!(several && weighs), &["method.classify.class_weights", "method.classify.task"], || {
            let message = "labels have weights only where exactly one of them applies: `single_label` and `tokens`";
            (message.into(), Some("leave `class_weights` and `balanced` out".into()))
        });
        if let Some(labels) = &self.labels {
            let key = "method.classify.labels";
            problems.require(!labels.is_empty(), &[key], || (format!("`{key}` is empty"), None));
            let mut sorted = labels.clone();
            sorted.sort_unstable();
            let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone());
            if let Some(label) = twice {
                problems.require(false, &[key], || (format!("`{key}` names `{label}` twice"), None));
            }
        }
    }

    fn drops_out(&self) -> bool {
        true
    }
}

impl OfflineMethod for ClassifyConfig {
    type Example = LabeledExample;
    type Objective = Classify;

    fn labels(&self, train: &[Row], from: &Pretrained) -> Result<Option<LabelPlan>> {
        let own = Task::of(&from.dir).ok();
        let task = self.task(own.as_ref());
        let own = own.filter(|own| ClassifyTask::of(own) == task);
        if let Some([label]) = self.labels.as_deref()
            && task != ClassifyTask::Regression
        {
            // Such as `--labels a,b`: a comma is part of a name.
            let message = format!("`method.classify.labels` names one label, `{label}`, but at least two are needed");
            return Err(Error::input(message)
                .with_hint("name each label by itself: `labels: [A, B]`, or as flags `--labels A --labels B`"));
        }
        let (labels, counts) = self.counted(&self.form(task, None)?, train, own.as_ref())?;
        if labels.len() < 2 && task != ClassifyTask::Regression {
            let found = if labels.is_empty() { "no labels" } else { "one label" };
            return Err(Error::input(format!("the training rows have {found}, but at least two are needed"))
                .with_hint("name all of them as `method.classify.labels`"));
        }
        let weights_k = self.weights(&labels, &counts)?;
        let task = task.with(labels);
        self.check_labels(&task)?;
        if let Some(message) = self.missing_ignored(train, &task)? {
            return Err(Error::input(message).with_hint("correct it, or leave it out"));
        }
        let splitter = |row: &Row| row.columns.get(SENTENCES).and_then(Value::as_str).map(str::to_owned);
        let sentences = train.first().and_then(splitter);
        let sentences = sentences.filter(|name| train.iter().all(|row| splitter(row).as_deref() == Some(name)));
        Ok(Some(LabelPlan { task, weights_k, sentences }))
    }

    fn examples(&self, rows: &[Row], from: &Pretrained, options: TokenizeOptions) -> Result<Examples<LabeledExample>> {
        let plan = from.labels.get().expect("labels are asked for before examples are made");
        let positions = ModelShape::of(&from.dir)?.max_positions;
        let limit = options.max_length.into_iter().chain(positions).min();
        let form = self.form(ClassifyTask::of(&plan.task), limit)?;
        let options = TokenizeOptions { max_length: limit, ..options };
        data::labeled_examples(rows, &from.tokenizer, &form, &plan.task.labels, &plan.weights_k, &options)
    }

    fn rows(example: &LabeledExample) -> Rows<'_> {
        Rows::Alone(vec![Sequence::scored(&example.ids)])
    }

    fn objective(&self, _reference: Option<Reference>) -> Classify {
        Classify {
            negative_label: self.negative_label.clone(),
            columns: ClassifierColumns {
                text: self.text.clone(),
                pair: self.pair.clone(),
                label_column: self.label_column.clone(),
            },
        }
    }
}

/// The objective: weighted cross-entropy for one label, binary cross-entropy for several labels, and squared error for
/// numbers.
#[derive(Debug, Clone, Default)]
pub struct Classify {
    /// Label that means "nothing found".
    pub negative_label: Option<String>,
    /// Columns of the rows, which are saved with the model.
    pub columns: ClassifierColumns,
}

/// Returns the logits `[M, K]`: one row per text, or one per labeled token.
fn logits(model: &Classifier, examples: &[&LabeledExample], dropout: Option<DropoutStream>) -> Tensor<2> {
    let texts: Vec<Text<'_>> =
        examples.iter().map(|example| Text { ids: &example.ids, types: &example.types, global: None }).collect();
    let batch = model.batch(&texts).dropping(dropout);
    if model.task().scope == Scope::Sequence {
        return model.logits(&batch);
    }
    let places = examples.iter().enumerate().flat_map(|(i, example)| {
        let tokens: &[(usize, usize)] = if let Gold::Tokens(tokens) = &example.gold { tokens } else { &[] };
        tokens.iter().map(move |&(at, _)| (i, at))
    });
    let indices: Vec<usize> = places.map(|(i, at)| batch.packed().index(i, at)).collect();
    model.token_logits(&batch, &indices)
}

/// Returns the gold labels if each text or token has exactly one label; otherwise nothing.
fn labels(example: &LabeledExample) -> Vec<usize> {
    match &example.gold {
        Gold::Label(label) => vec![*label],
        Gold::Tokens(tokens) => tokens.iter().map(|&(_, label)| label).collect(),
        Gold::Labels(_) | Gold::Values(_) => Vec::new(),
    }
}

/// Returns one row of numbers per text: 1 for labels that apply, or the values themselves.
fn targets(examples: &[&LabeledExample], labels: usize) -> Vec<f32> {
    let of_text = |example: &&LabeledExample| match &example.gold {
        Gold::Values(values) => values.clone(),
        Gold::Labels(held) => (0..labels).map(|k| f32::from(u8::from(held.contains(&k)))).collect(),
        Gold::Label(_) | Gold::Tokens(_) => Vec::new(),
    };
    examples.iter().flat_map(of_text).collect()
}

impl Objective for Classify {
    type Model = Classifier;
    type Example = LabeledExample;

    fn tokens(&self, example: &LabeledExample) -> usize {
        example.ids.len()
    }

    fn targets(&self, example: &LabeledExample) -> usize {
        example.weights.len()
    }

    fn training_info(&self, _: &Classifier, _: &[&LabeledExample], _: MicroBatch) -> TrainingInfo {
        TrainingInfo { columns: self.columns.clone(), ..TrainingInfo::default() }
    }

    fn weight(&self, example: &LabeledExample) -> f64 {
        example.weights.iter().map(|&weight| f64::from(weight)).sum()
    }

    fn loss(
        &self,
        model: &Classifier,
        examples: &[&LabeledExample],
        context: LossContext,
        measured: &mut Readings<Stats>,
    ) -> Option<Tensor<1>> {
        let (k, logits_mk) = (model.task().labels.len(), logits(model, examples, context.dropout));
        let ([m, _], device) = (logits_mk.dims(), logits_mk.device());
        let targets_mk = || Tensor::from_data(TensorData::new(targets(examples, k), [m, k]), &device);
        let losses_m = match model.task().reading {
            Reading::OneOf => {
                let labels_m: Vec<usize> = examples.iter().flat_map(|example| labels(example)).collect();
                let (task, expected_m) = (model.task().clone(), labels_m.clone());
                measured.later([&logits_mk.clone().flatten(0, 1)], move |[logits], stats| {
                    let found = decided(&task, &logits);
                    let right = found.iter().zip(&expected_m).filter(|(found, expected)| found == expected).count();
                    stats.mean("accuracy", right as f64, m as f64);
                });
                cross_entropy(logits_mk, &labels_m)
            }
            Reading::AnyOf => binary_cross_entropy(logits_mk, targets_mk()),
            Reading::Values => squared_error(logits_mk, targets_mk()),
        };
        let weights: Vec<f32> = examples.iter().flat_map(|example| example.weights.clone()).collect();
        let weights_m = Tensor::from_data(TensorData::new(weights, [m]), &device);
        // A step in which every label has weight 0 has no loss.
        (context.totals.weight > 0.0).then(|| sum(losses_m * weights_m) / context.totals.weight)
    }

    /// In addition to the loss: accuracy, macro F1, and precision, recall and F1 of each label. With a negative label,
    /// also how well all other labels are told apart from it. For numbers, the mean squared and absolute errors.
    fn evaluate(
        &self,
        model: &Classifier,
        examples: &[&LabeledExample],
        passes: MicroBatch,
        progress: &dyn Progress,
    ) -> Result<Stats> {
        let mut stats = evaluate_loss(self, model, examples, passes, progress)?;
        let found = PassLogits::of(model, examples, passes);
        match model.task().reading {
            Reading::Values => {
                let errors: Vec<f32> = found.errors(examples);
                stats.mean_of("mean_absolute_error", &errors.iter().map(|error| error.abs()).collect::<Vec<_>>());
                stats.mean_of("mean_squared_error", &errors.iter().map(|error| error * error).collect::<Vec<_>>());
            }
            Reading::OneOf | Reading::AnyOf => {
                let classes = found.classes(model.task(), examples);
                stats.last("f1", macro_f1(&classes));
                for (label, class) in model.task().labels.iter().zip(&classes) {
                    stats.last(&format!("precision/{label}"), class.precision);
                    stats.last(&format!("recall/{label}"), class.recall);
                    stats.last(&format!("f1/{label}"), class.f1);
                }
                let negative = self.negative_label.as_ref().and_then(|name| model.task().label(name).ok());
                if let Some(negative) = negative.filter(|_| model.task().reading == Reading::OneOf) {
                    let confusion = found.confusion(model.task(), examples);
                    let (class, accuracy) = confusion.detection(negative);
                    // Two baselines: no item, or every item, has the negative label.
                    let share = class.support as f64 / confusion.total().max(1) as f64;
                    stats.last("detection/accuracy", accuracy);
                    stats.last("detection/all_positive_accuracy", share);
                    stats.last("detection/all_negative_accuracy", 1.0 - share);
                    stats.last("detection/precision", class.precision);
                    stats.last("detection/recall", class.recall);
                    stats.last("detection/f1", class.f1);
                    stats.last("detection/support", class.support as f64);
                }
            }
        }
        Ok(stats)
    }

    fn report(&self, model: &Classifier, examples: &[&LabeledExample], passes: MicroBatch) -> Option<Value> {
        let task = model.task();
        if examples.is_empty() || task.reading == Reading::Values {
            return None;
        }
        let found = PassLogits::of(model, examples, passes);
        let classes = found.classes(task, examples);
        let of_label = |(label, class): (&String, &ClassScore)| {
            json!({
                "label": label, "precision": class.precision, "recall": class.recall, "f1": class.f1,
                "support": class.support, "found": class.found,
            })
        };
        let mut report = json!({
            "f1": macro_f1(&classes),
            "labels": task.labels.iter().zip(&classes).map(of_label).collect::<Vec<_>>(),
        });
        if task.reading == Reading::OneOf {
            let confusion = found.confusion(task, examples);
            report["accuracy"] = json!(confusion.accuracy());
            // One row per true label, one column per predicted label.
            report["confusion"] = (0..task.labels.len()).map(|label| json!(confusion.row(label))).collect();
        }
        Some(report)
    }

    fn describe(&self, example: &LabeledExample) -> Value {
        let gold = match &example.gold {
            Gold::Label(label) => json!(label),
            Gold::Labels(labels) => json!(labels),
            Gold::Values(values) => json!(values),
            Gold::Tokens(tokens) => json!(tokens),
        };
        json!({ "input_ids": example.ids, "labels": gold })
    }
}

/// Returns the most probable label of each row of logits.
fn decided(task: &Task, logits: &[f32]) -> Vec<usize> {
    logits.chunks_exact(task.labels.len()).map(|logits| task.decide(logits)[0]).collect()
}

/// Logits of a model on examples, `[M, K]`.
struct PassLogits(Vec<f32>);

impl PassLogits {
    fn of(model: &Classifier, examples: &[&LabeledExample], passes: MicroBatch) -> Self {
        let lengths: Vec<usize> = examples.iter().map(|example| example.ids.len()).collect();
        Self(passes.deal("logits", &lengths, |_, pass| read(&logits(model, &examples[pass], None).flatten(0, 1))))
    }

    fn errors(&self, examples: &[&LabeledExample]) -> Vec<f32> {
        let expected = examples
            .iter()
            .flat_map(|example| if let Gold::Values(values) = &example.gold { &values[..] } else { &[] });
        self.0.iter().zip(expected).map(|(found, expected)| found - expected).collect()
    }

    fn confusion(&self, task: &Task, examples: &[&LabeledExample]) -> Confusion {
        let mut counts = Confusion::new(task.labels.len());
        let expected = examples.iter().flat_map(|example| labels(example));
        expected.zip(decided(task, &self.0)).for_each(|(expected, found)| counts.add(expected, found));
        counts
    }

    fn classes(&self, task: &Task, examples: &[&LabeledExample]) -> Vec<ClassScore> {
        if task.reading == Reading::OneOf {
            return self.confusion(task, examples).classes();
        }
        let mut counts = vec![[0; 3]; task.labels.len()];
        for (example, logits) in examples.iter().zip(self.0.chunks_exact(task.labels.len())) {
            let expected = if let Gold::Labels(held) = &example.gold { &held[..] } else { &[] };
            expected.iter().for_each(|&k| counts[k][2] += 1);
            for k in task.decide(logits) {
                counts[k][1] += 1;
                counts[k][0] += usize::from(expected.contains(&k));
            }
        }
        counts.into_iter().map(|[right, found, support]| ClassScore::new(right, found, support)).collect()
    }
}
