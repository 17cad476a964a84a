//! From the rows of a plan to the examples of its method: those that are trained on, and those held out.

use super::observer::{Event, Observer};
use super::prepare::{Split, Start, report, tokenise_options};
use crate::config::Plan;
use crate::data::{self, Examples, Need, PreferenceExample, Row, SftExample, TokeniseOptions};
use crate::error::{Error, Result};
use crate::model::ModelShape;
use crate::objective::sft::SftConfig;
use crate::rollout::Prompt;

/// Examples to train on, and examples held out.
pub type Parts<E> = (Vec<E>, Vec<E>);

/// Texts for supervised fine-tuning.
///
/// # Errors
/// When the rows cannot be read, or none is left to train on.
pub fn texts(plan: &Plan, start: &Start, config: &SftConfig, observer: &mut dyn Observer) -> Result<Parts<SftExample>> {
    let split = start.rows(plan, Need::Sft)?;
    let options = TokeniseOptions {
        completion_only_loss: config.completion_only_loss,
        assistant_only_loss: config.assistant_only_loss,
        ..tokenise_options(plan, Some(plan.train().max_length))
    };
    let make = |rows: &[Row]| data::sft_examples(rows, &start.model.tokenizer, start.model.template.as_ref(), &options);
    parts(&split, make, observer)
}

/// Pairs of whole sequences for a reward model.
///
/// # Errors
/// As [`texts`].
pub fn scored_pairs(plan: &Plan, start: &Start, observer: &mut dyn Observer) -> Result<Parts<PreferenceExample>> {
    let split = start.rows(plan, Need::Preference)?;
    let options = tokenise_options(plan, Some(plan.train().max_length));
    let make =
        |rows: &[Row]| data::reward_examples(rows, &start.model.tokenizer, start.model.template.as_ref(), &options);
    parts(&split, make, observer)
}

/// Pairs of completions for DPO.
///
/// # Errors
/// As [`texts`].
pub fn pairs(plan: &Plan, start: &Start, observer: &mut dyn Observer) -> Result<Parts<PreferenceExample>> {
    let split = start.rows(plan, Need::Preference)?;
    let options = tokenise_options(plan, Some(plan.train().max_length));
    let make =
        |rows: &[Row]| data::preference_examples(rows, &start.model.tokenizer, start.model.template.as_ref(), &options);
    parts(&split, make, observer)
}

/// Prompts for online methods, with room for `max_new_tokens`.
///
/// # Errors
/// As [`texts`]; or when there is no room for any prompt.
pub fn prompts(
    plan: &Plan,
    start: &Start,
    max_new_tokens: usize,
    observer: &mut dyn Observer,
) -> Result<Parts<Prompt>> {
    let split = start.rows(plan, Need::Prompt)?;
    // A prompt is never cut: what leaves no room for a whole completion is left out.
    let limit = ModelShape::of(&start.model.dir)?.max_positions;
    let longest = limit.unwrap_or(usize::MAX).min(plan.train().max_length);
    let room = (longest + 1).saturating_sub(max_new_tokens);
    if room < 2 {
        return Err(Error::input(format!(
            "`max_new_tokens` ({max_new_tokens}) leaves no room for a prompt within {longest} tokens"
        )));
    }
    let options = tokenise_options(plan, Some(room));
    let make = |rows: &[Row]| data::prompts(rows, &start.model.tokenizer, start.model.template.as_ref(), &options);
    parts(&split, make, observer)
}

/// Examples of both parts of the rows. Held-out rows of which nothing is left turn evaluation off.
fn parts<E>(
    split: &Split,
    make: impl Fn(&[Row]) -> Result<Examples<E>>,
    observer: &mut dyn Observer,
) -> Result<Parts<E>> {
    let train = make(&split.train)?;
    report("training", &train.counts, observer);
    if split.held_out.is_empty() {
        return Ok((train.examples, Vec::new()));
    }
    let held_out = match make(&split.held_out) {
        Ok(held_out) => held_out,
        Err(error) => {
            observer.event(&Event::Warning(&format!("there is no evaluation: no held-out row is usable: {error}")));
            return Ok((train.examples, Vec::new()));
        }
    };
    report("held out", &held_out.counts, observer);
    Ok((train.examples, held_out.examples))
}
