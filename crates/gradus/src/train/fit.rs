//! Whether the models of a run fit together, before anything of them is loaded: ids of the policy's tokenizer reach the
//! reference and the critic too. Reward models read text, with a tokenizer of their own.

use super::cast::Player;
use super::prepare::Start;
use crate::error::{Error, Result};
use crate::method::Cast;
use crate::text::Tokenizer;

/// What reads the policy's ids: each part with its name.
fn readers(cast: &Cast<Player>) -> impl Iterator<Item = (&'static str, &Player)> {
    let named = [("the policy", Some(&cast.policy)), ("the reference", cast.reference.as_ref())];
    named.into_iter().chain([("the critic", cast.critic.as_ref())]).filter_map(|(part, player)| Some((part, player?)))
}

/// Checks that all of them mean the same by an id, and know every id that the policy may say.
///
/// # Errors
/// The first that does not, with what it takes to go on.
pub(super) fn check(cast: &Cast<Player>, start: &Start, samples: bool) -> Result<()> {
    let tokenizer = &start.model.tokenizer;
    // What is sampled may be any row of the policy's table, also one that no token has.
    let needed = if samples { cast.policy.shape.vocabulary } else { tokenizer.vocab_size() };
    for (part, player) in readers(cast).filter(|(_, player)| player.is_named()) {
        let (name, policy) = (&player.name, &cast.policy.name);
        let refuse = |what: String| Err(Error::input(format!("{part} `{name}` {what}")).with_hint(way_out(part)));
        if player.dir.path.join("tokenizer.json").is_file() {
            let own = Tokenizer::from_dir(&player.dir.path)?;
            if let Some(id) = first_other(tokenizer, &own) {
                let said = |by: &Tokenizer| by.token(id).map_or("nothing".to_owned(), |token| format!("`{token}`"));
                return refuse(format!(
                    "has another tokenizer than the policy `{policy}`: id {id} is {} to it and {} to the policy",
                    said(&own),
                    said(tokenizer)
                ));
            }
        }
        if player.shape.has_encoder() != cast.policy.shape.has_encoder() {
            let has = |player: &Player| if player.shape.has_encoder() { "has an encoder" } else { "has none" };
            return refuse(format!("{}, but the policy `{policy}` {}", has(player), has(&cast.policy)));
        }
        if player.shape.has_encoder() && player.dir.decoder_start()? != cast.policy.dir.decoder_start()? {
            return refuse(format!("begins its decoder with another id than the policy `{policy}`"));
        }
        let known = player.shape.vocabulary;
        if known < needed {
            return refuse(format!("knows {known} ids, but the policy `{policy}` uses {needed}"));
        }
    }
    Ok(())
}

/// Checks that every model has positions for sequences of `longest` tokens.
///
/// # Errors
/// The first that has not.
pub(super) fn check_positions(cast: &Cast<Player>, longest: usize) -> Result<()> {
    for (part, player) in readers(cast) {
        // Rotary positions have no end.
        let most = player.shape.learned_positions;
        if most > 0 && most < longest {
            let message = format!(
                "{part} `{}` has {most} positions, but the longest sequence of this run has {longest} tokens",
                player.name
            );
            return Err(Error::input(message).with_hint(format!("set `train.max_length` to {most}")));
        }
    }
    Ok(())
}

/// The first id of `one` that is not the same token in the other. That one may have more: a token for padding.
fn first_other(one: &Tokenizer, other: &Tokenizer) -> Option<u32> {
    if one.directory() == other.directory() {
        return None;
    }
    (0..one.vocab_size() as u32).find(|&id| one.token(id) != other.token(id))
}

fn way_out(part: &str) -> &'static str {
    match part {
        "the critic" => {
            "name one with the policy's tokenizer as `critic.model` (the policy itself would do), or use \
             `critic.trunk: shared`; without either, the critic starts from the reward model"
        }
        _ => "name a `reference_model` with the policy's tokenizer, or none: then it is the model training starts from",
    }
}
