//! Rules of `method.dpo`: which keys each loss reads.

use super::{Divergence, DpoConfig, DpoLossType};
use crate::method::Problems;
use crate::settings::TrainConfig;

pub(super) fn check(problems: &mut Problems<'_>, dpo: &DpoConfig) {
    problems.above_zero("method.dpo.beta", dpo.beta);
    check_losses(problems, dpo);
    check_weights(problems, dpo);
    check_label_smoothing(problems, dpo);
    check_divergence(problems, dpo);

    let has = |kind: DpoLossType| dpo.loss_type.0.contains(&kind);
    if let Some(alpha) = dpo.ld_alpha {
        problems.within("method.dpo.ld_alpha", alpha, 0.0..=1.0);
        let fine = dpo.loss_type.0.iter().any(|loss| *loss != DpoLossType::Sft);
        problems.require(fine, &["method.dpo.ld_alpha", "method.dpo.loss_type"], || {
            let message = format!("`method.dpo.ld_alpha` is {alpha}, but `loss_type: sft` has no pairs of lengths");
            (message, Some("leave it out, or add a loss of pairs such as `sigmoid`".into()))
        });
    }

    problems.above_zero("method.dpo.discopop_tau", dpo.discopop_tau);
    let usual = DpoConfig::default().discopop_tau;
    let fine = dpo.discopop_tau == usual || has(DpoLossType::Discopop);
    problems.require(fine, &["method.dpo.discopop_tau", "method.dpo.loss_type"], || {
        let message = format!(
            "`method.dpo.discopop_tau` is given, but only `discopop` reads it, not `loss_type: {}`",
            dpo.loss_type
        );
        (message, Some("leave it out, or use `loss_type: discopop`".into()))
    });

    for (kind, reason) in [
        (DpoLossType::Aot, "it sorts the pairs of a step, so a weight would apply to another pair's value"),
        (DpoLossType::AotUnpaired, "it sorts the pairs of a step, so a weight would apply to another pair's value"),
        (DpoLossType::Sft, "it is a mean over tokens, not over pairs"),
    ] {
        let fine = !dpo.use_weighting || !has(kind);
        problems.require(fine, &["method.dpo.use_weighting", "method.dpo.loss_type"], || {
            let message = format!("`method.dpo.use_weighting` weighs pairs, but `{kind}` has none to weigh: {reason}");
            (message, Some(format!("leave out one of `use_weighting` and `{kind}`")))
        });
    }
}

/// Rejects noise for losses that sort the pairs of a step: the pass that finds their order has no noise, so their losses would depend on
/// the split of the step.
pub(super) fn check_noise(problems: &mut Problems<'_>, dpo: &DpoConfig, train: &TrainConfig) {
    let fine = train.noise_alpha().is_none() || !dpo.sorts();
    problems.require(fine, &["train.neftune_noise_alpha", "method.dpo.loss_type"], || {
        let message = format!(
            "`train.neftune_noise_alpha` is {}, but `loss_type: {}` sorts the pairs of a step by log-probabilities without noise",
            train.neftune_noise_alpha, dpo.loss_type
        );
        (message, Some("leave out the noise, or use a loss that does not sort, such as `sigmoid`".into()))
    });
}

fn check_losses(problems: &mut Problems<'_>, dpo: &DpoConfig) {
    let losses = &dpo.loss_type.0;
    problems.require(!losses.is_empty(), &["method.dpo.loss_type"], || {
        (
            "`method.dpo.loss_type` is an empty list: there is nothing to train on".into(),
            Some("`sigmoid` is DPO".into()),
        )
    });
    for (i, loss) in losses.iter().enumerate() {
        let key = format!("method.dpo.loss_type[{i}]");
        problems.require(!losses[..i].contains(loss), &[&key], || {
            let message = format!("`method.dpo.loss_type` names `{loss}` twice");
            (message, Some("name it once, with the sum in `loss_weights`".into()))
        });
    }
}

fn check_weights(problems: &mut Problems<'_>, dpo: &DpoConfig) {
    let Some(weights) = &dpo.loss_weights else { return };
    let losses = dpo.loss_type.0.len();
    problems.require(weights.len() == losses, &["method.dpo.loss_weights", "method.dpo.loss_type"], || {
        let message = format!(
            "`method.dpo.loss_weights` has {} entries, but `loss_type: {}` names {losses}: one weight per loss is \
             needed",
            weights.len(),
            dpo.loss_type
        );
        (message, None)
    });
    for (i, &weight) in weights.iter().enumerate() {
        problems.at_least(&format!("method.dpo.loss_weights[{i}]"), weight, 0.0);
    }
    let nothing = weights.iter().all(|&weight| weight == 0.0);
    problems.require(!nothing, &["method.dpo.loss_weights"], || {
        ("`method.dpo.loss_weights` are all 0: there is nothing to train on".into(), None)
    });
}

fn check_label_smoothing(problems: &mut Problems<'_>, dpo: &DpoConfig) {
    problems.zero_to_below("method.dpo.label_smoothing", dpo.label_smoothing, 0.5);
    let fine = dpo.label_smoothing == 0.0 || dpo.loss_type.0.iter().any(|loss| loss.smooths_labels());
    problems.require(fine, &["method.dpo.label_smoothing", "method.dpo.loss_type"], || {
        let message = format!(
            "`method.dpo.label_smoothing` is {}, but `loss_type: {}` has no label smoothing: only `sigmoid`, `robust`, `exo_pair`, `aot` and `aot_unpaired` read a label as a probability",
            dpo.label_smoothing, dpo.loss_type
        );
        (message, Some("use one of them, or set `label_smoothing` to 0".into()))
    });
    let fine = dpo.label_smoothing > 0.0 || !dpo.loss_type.0.contains(&DpoLossType::ExoPair);
    problems.require(fine, &["method.dpo.loss_type", "method.dpo.label_smoothing"], || {
        let message = "`loss_type: exo_pair` needs `method.dpo.label_smoothing` above 0: it takes its logarithm";
        (message.into(), Some("1e-3 is usual (Ji et al. 2024)".into()))
    });
}

fn check_divergence(problems: &mut Problems<'_>, dpo: &DpoConfig) {
    let usual = DpoConfig::default().f_alpha_divergence_coef;
    let fine = dpo.f_alpha_divergence_coef == usual || dpo.f_divergence_type == Divergence::AlphaDivergence;
    let keys = ["method.dpo.f_alpha_divergence_coef", "method.dpo.f_divergence_type"];
    problems.only_read_by(fine, &keys, "`alpha_divergence`", "use `f_divergence_type: alpha_divergence`");
    if dpo.f_divergence_type == Divergence::ReverseKl {
        return;
    }
    let keys = ["method.dpo.f_divergence_type", "method.dpo.loss_type"];
    let of_one_side = dpo.loss_type.0.iter().find(|loss| !loss.is_of_difference() && **loss != DpoLossType::Sft);
    if let Some(loss) = of_one_side {
        let message = format!(
            "`method.dpo.f_divergence_type` is given, but `{loss}` has no form for another divergence: only in the difference of both sides does the partition function cancel"
        );
        let hint = "use `reverse_kl`, or losses among `sigmoid`, `sigmoid_norm`, `hinge`, `ipo`, `exo_pair`, `robust`, `discopop`";
        problems.require(false, &keys, || (message, Some(hint.into())));
    }
    let read = dpo.loss_type.0.iter().any(|loss| *loss != DpoLossType::Sft);
    problems.require(read, &keys, || {
        let message = "`method.dpo.f_divergence_type` is given, but `loss_type: sft` reads no reference";
        (message.into(), Some("leave it out, or add a loss of pairs such as `sigmoid`".into()))
    });
}
