//! From the rows of a plan to the examples of its method: those that are trained on, and those held out.

use super::cast::Player;
use super::fit;
use super::observer::{Event, Observer};
use super::prepare::{Split, Start, report, tokenise_options};
use crate::config::Plan;
use crate::data::{self, Examples, Need, Row};
use crate::error::{Error, Result};
use crate::method::Cast;
use crate::model::ModelShape;
use crate::objective::OfflineMethod;
use crate::rollout::Prompt;

/// Examples to train on, and examples held out.
pub type Parts<E> = (Vec<E>, Vec<E>);

/// What an offline method learns from.
///
/// # Errors
/// When the rows cannot be read, none is left to train on, or one is too long for a model.
pub fn fixed<M: OfflineMethod>(
    method: &M,
    plan: &Plan,
    start: &Start,
    cast: &Cast<Player>,
    observer: &mut dyn Observer,
) -> Result<Parts<M::Example>> {
    let split = start.rows(plan, method.need())?;
    if let Some(labels) = method.labels(&split.train, &start.model)? {
        // Rows are read once a run; a second reading gives the same.
        let _ = start.model.labels.set(labels);
    }
    let options = tokenise_options(plan, &start.model, Some(plan.train().max_length))?;
    let (train, held_out) = parts(&split, |rows| method.examples(rows, &start.model, options.clone()), observer)?;
    let lengths = train.iter().chain(&held_out).map(|example| M::rows(example).longest());
    fit::check_positions(cast, lengths.max().unwrap_or(0))?;
    Ok((train, held_out))
}

/// Prompts for online methods, with room for `max_new_tokens`.
///
/// # Errors
/// As [`fixed`]; or when there is no room for any prompt.
pub fn prompts(
    plan: &Plan,
    start: &Start,
    cast: &Cast<Player>,
    max_new_tokens: usize,
    observer: &mut dyn Observer,
) -> Result<Parts<Prompt>> {
    let split = start.rows(plan, Need::Prompt)?;
    // A prompt is never cut: what leaves no room for a whole completion is left out.
    let shape = ModelShape::of(&start.model.dir)?;
    let longest = shape.max_positions.unwrap_or(usize::MAX).min(plan.train().max_length);
    let room = shape.room().within(longest).too_long(max_new_tokens);
    if room < 2 {
        return Err(Error::input(format!(
            "`max_new_tokens` ({max_new_tokens}) leaves no room for a prompt within {longest} tokens"
        )));
    }
    let options = tokenise_options(plan, &start.model, Some(room))?;
    let make = |rows: &[Row]| data::prompts(rows, &start.model.tokenizer, start.model.template.as_ref(), &options);
    let (train, held_out) = parts(&split, make, observer)?;
    let lengths = train.iter().chain(&held_out).map(|prompt| prompt.ids.len() + max_new_tokens);
    fit::check_positions(cast, lengths.max().unwrap_or(0))?;
    Ok((train, held_out))
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
