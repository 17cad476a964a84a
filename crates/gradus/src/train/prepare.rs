//! What every run needs before its loop: the start model's directory, its tokenizer, and the rows.

use rand::seq::SliceRandom;

use super::observer::{Event, Observer};
use crate::config::Plan;
use crate::data::{self, Counts, ImplicitPrompt, LoadOptions, Need, Row, TokeniseOptions};
use crate::error::Result;
use crate::model::{self, ModelDir};
use crate::rng::Purpose;
use crate::text::{ChatTemplate, Tokenizer};

/// The start model's directory with what turns text into ids.
#[derive(Debug)]
pub struct Start {
    /// The directory: configuration, weights, tokenizer files.
    pub dir: ModelDir,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template, or the one that replaces it.
    pub template: Option<ChatTemplate>,
}

impl Start {
    /// Opens the model that `plan` starts from, and checks that its tokenizer fits.
    ///
    /// # Errors
    /// When a file is missing or corrupt, or the vocabularies disagree.
    pub fn open(plan: &Plan) -> Result<Self> {
        let dir = open_model(&plan.config().model)?;
        let tokenizer = Tokenizer::from_dir(&dir.path)?;
        let template = match &plan.train().chat_template {
            Some(file) => Some(ChatTemplate::from_file(file, &tokenizer)?),
            None => ChatTemplate::from_dir(&dir.path, &tokenizer)?,
        };
        Ok(Self { dir, tokenizer, template })
    }

    /// The id that fills gaps in batches elsewhere, written into the configuration of reward models.
    pub fn pad_id(&self) -> u32 {
        self.dir.pad_id().or(self.tokenizer.pad_id()).unwrap_or(0)
    }

    /// The ids that end a completion.
    pub fn stop_ids(&self) -> Vec<u32> {
        let mut ids = self.dir.eos_ids();
        ids.extend(self.tokenizer.eos_id().filter(|id| !ids.contains(id)));
        ids
    }
}

/// The directory of a model given by name or path.
///
/// # Errors
/// When there is none, or it is not a model's.
pub fn open_model(name: &str) -> Result<ModelDir> {
    ModelDir::open(&model::resolve(name, &mut |_, _, _| {})?)
}

/// Training rows and held-out rows.
#[derive(Debug)]
pub struct Split {
    /// Rows to train on, in the order of the file.
    pub train: Vec<Row>,
    /// Held-out rows; never trained on.
    pub held_out: Vec<Row>,
}

/// Reads the rows and holds some out, unless `eval_data` names others.
///
/// # Errors
/// When they cannot be read.
pub fn rows(plan: &Plan, need: Need) -> Result<Split> {
    let (config, train) = (plan.config(), plan.train());
    let options = LoadOptions { text_column: train.text_column.clone(), ..LoadOptions::needing(need) };
    let training = LoadOptions { max_rows: train.max_rows, ..options.clone() };
    let mut rows = data::load(&config.data, &training)?.rows;
    let most = most_held_out(plan, need);
    let mut held_out = match &config.eval_data {
        Some(name) if train.eval_steps >= 0 => data::load(name, &LoadOptions { max_rows: Some(most), ..options })?.rows,
        _ => Vec::new(),
    };
    if config.eval_data.is_none() && train.eval_steps >= 0 {
        let share = eval_share(plan);
        let count = ((rows.len() as f64 * share) as usize).min(most);
        held_out = hold_out(&mut rows, count, plan);
    }
    Ok(Split { train: rows, held_out })
}

/// Held-out prompts of online methods, unless asked for otherwise: each costs a completion per evaluation.
const MAX_EVAL_PROMPTS: usize = 100;

fn most_held_out(plan: &Plan, need: Need) -> usize {
    let most = plan.train().max_eval_rows;
    if need == Need::Prompt && !plan.is_set("train.max_eval_rows") { most.min(MAX_EVAL_PROMPTS) } else { most }
}

/// The share of training rows held out. With `--no-shuffle` the file is taken as it is, unless a share is asked for.
fn eval_share(plan: &Plan) -> f64 {
    match plan.train().shuffle || plan.is_set("train.eval_fraction") {
        true => plan.train().eval_fraction,
        false => 0.0,
    }
}

/// Takes `count` rows out: at random, or without shuffling the last ones. Both parts keep the file's order.
fn hold_out(rows: &mut Vec<Row>, count: usize, plan: &Plan) -> Vec<Row> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    if plan.train().shuffle {
        order.shuffle(&mut plan.seed().stream(Purpose::Split, 0, 0));
    }
    let mut chosen = vec![false; rows.len()];
    order[rows.len() - count..].iter().for_each(|&row| chosen[row] = true);
    let mut index = 0;
    let taken = rows.extract_if(.., |_| {
        index += 1;
        chosen[index - 1]
    });
    taken.collect()
}

/// How rows become ids, as `plan` says; `max_length` in tokens.
pub fn tokenise_options(plan: &Plan, max_length: Option<usize>) -> TokeniseOptions {
    TokeniseOptions {
        max_length,
        too_long: plan.too_long(),
        implicit_prompt: ImplicitPrompt::default(),
        ..TokeniseOptions::default()
    }
}

/// Says what became of the rows.
pub fn report(what: &str, counts: &Counts, observer: &mut dyn Observer) {
    let message = format!("{what}: {} of {} rows, {} tokens", counts.kept, counts.rows, counts.tokens);
    observer.event(&Event::Message(&message));
    for remark in counts.remarks() {
        observer.event(&Event::Warning(&format!("{what}: {remark}")));
    }
}
