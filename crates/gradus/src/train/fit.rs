//! Checks that the models of a run fit together, before they are loaded. The reference and the critic read the ids of the policy's
//! tokenizer. Reward models read text, with their own tokenizer.

use super::player::Player;
use super::prepare::Start;
use crate::error::Result;
use crate::method::Cast;
use crate::pretrained::IdReader;

/// Models that read the ids of the start model's tokenizer.
fn readers(cast: &Cast<Player>) -> impl Iterator<Item = &Player> {
    std::iter::once(&cast.policy).chain(&cast.reference).chain(&cast.critic)
}

/// Checks that all these models use the same ids and have every id that the policy may sample.
///
/// # Errors
/// The first model that does not fit, with a hint.
pub(super) fn check(cast: &Cast<Player>, start: &Start, samples: bool) -> Result<()> {
    for player in readers(cast).filter(|player| player.is_named()) {
        let checked = reader(player).check(&start.model, &cast.policy.name, samples);
        checked.map_err(|error| error.with_hint(suggestion(player.role.display_name)))?;
    }
    Ok(())
}

/// Checks that every model has the `needed` positions of the longest sequence. `taken` of them hold no ids of a row.
///
/// # Errors
/// The first model that has fewer.
pub(super) fn check_positions(cast: &Cast<Player>, (needed, taken): (usize, usize)) -> Result<()> {
    for player in readers(cast) {
        let most = player.shape.made_for.unwrap_or_default();
        let hint = format!("set `train.max_length` to {}", most.saturating_sub(taken));
        reader(player).check_positions(needed).map_err(|error| error.with_hint(hint))?;
    }
    Ok(())
}

fn reader(player: &Player) -> IdReader<'_> {
    IdReader { role: player.role.display_name, name: &player.name, dir: &player.dir, shape: &player.shape }
}

fn suggestion(role: &str) -> &'static str {
    match role {
        "the critic" => {
            "set one with the policy's tokenizer as `critic.model` (the policy itself is possible), or use \
             `critic.trunk: shared`; without either, the critic starts from the reward model"
        }
        "the teacher" => {
            "set a `teacher_model` with the student's tokenizer: their distributions are compared id by id"
        }
        _ => "set a `reference_model` with the policy's tokenizer, or leave it out to use the start model",
    }
}
