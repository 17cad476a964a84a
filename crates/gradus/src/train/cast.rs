//! Opens the models of a run once, for loading, for memory forecasts and for checks.

use super::fit;
use super::player::Player;
use super::prepare::Start;
use crate::config::Plan;
use crate::error::{Error, Result};
use crate::method::{Cast, Head, Role, Source, TrainedBy};
use crate::model::{ModelDir, ModelShape, open_model};

/// Selects the head of a model that scores texts: its files determine whether it is an encoder or a decoder.
fn judging(role: &Role, dir: &ModelDir) -> Role {
    let is_judge = match role.trained_by {
        TrainedBy::Nobody => role.head != Head::Language,
        _ => role.head == Head::SCALAR && role.source == Source::Start,
    };
    let head = if dir.is_encoder() { Head::Labels } else { Head::SCALAR };
    Role { head: if is_judge { head } else { role.head }, ..role.clone() }
}

/// Opens the models of `plan` without reading weights.
///
/// # Errors
/// If a model is missing, has an invalid configuration, or does not fit the policy.
pub fn open(plan: &Plan, start: &Start) -> Result<Cast<Player>> {
    let config = plan.config();
    let cast: Cast<Player> = config.method.method().cast(&config.shared()).try_map(|role| {
        let (name, dir) = match &role.source {
            Source::Named(name) => (name, open_model(name)?),
            Source::Start | Source::Policy | Source::Trunk => (&config.model, start.model.dir.clone()),
        };
        let role = judging(role, &dir);
        match role.head {
            Head::Labels => dir.check_reads()?,
            Head::Scalar(_) if dir.is_encoder() => {
                let message = "an encoder reads whole texts, and has no values for the states of a policy";
                let hint = "set another start model for the critic: `critic.model`, or `critic.trunk: shared`";
                return Err(Error::model(&dir.path, message).with_hint(hint));
            }
            Head::Language | Head::Scalar(_) => dir.check_writes()?,
        }
        let mut shape = ModelShape::of(&dir)?;
        match role.layers {
            // The decoder is not used.
            Some(layers) if shape.has_encoder() => {
                (shape.layers, shape.encoder_layers) = (0, layers.clamp(1, shape.encoder_layers));
            }
            Some(layers) => shape.layers = layers.min(shape.layers),
            None => {}
        }
        Ok::<_, Error>(Player { role, name: name.clone(), dir, shape })
    })?;
    if let Some(alpha) = config.train.noise_alpha().filter(|_| cast.policy.shape.has_encoder()) {
        let message = format!(
            "has an encoder, but `train.neftune_noise_alpha` is {alpha}: such models are trained without noise"
        );
        let hint =
            "leave it out: transformers accepts it for these models, but their noise does not reach encoder or decoder";
        return Err(Error::model(&cast.policy.dir.path, message).with_hint(hint));
    }
    if let (Some(player), Some(_)) = (&cast.reference, config.train.reference_sync()) {
        check_follows(player, &start.model.dir)?;
    }
    fit::check(&cast, start, config.method.is_online())?;
    Ok(cast)
}

/// Hint for a reference that cannot be mixed with the policy.
pub(super) const SAME_ARCHITECTURE: &str =
    "set a `reference_model` with the policy's architecture, or leave it out to use the start model";

/// Checks that a reference can follow the policy that starts from `start`.
fn check_follows(reference: &Player, start: &ModelDir) -> Result<()> {
    if start.adapter.is_some() {
        let message = "`train.sync_ref_model` is true, but the start model is an adapter: its reference is the base, which does not change";
        let hint = "leave `sync_ref_model` out, or merge the adapter into its base first (`gradus merge`)";
        return Err(Error::model(&start.path, message).with_hint(hint));
    }
    if reference.dir.model_type() != start.model_type() {
        let message = format!(
            "`train.sync_ref_model` mixes this reference with the policy, but it is of the family `{}`, and the policy is of `{}`",
            reference.dir.model_type(),
            start.model_type()
        );
        return Err(Error::model(&reference.dir.path, message).with_hint(SAME_ARCHITECTURE));
    }
    Ok(())
}
