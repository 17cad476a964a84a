//! Diagnosis of runs that diverge or never improve on their start.

use crate::run::MetricsRow;
use crate::settings::Settings;

/// Number of first and last rows of the log that are compared.
const WINDOW: usize = 3;

/// Returns true if a loss is too far above its start for a fluctuation: above twice the start plus 1.
fn is_far_above(start: f64, now: f64) -> bool {
    !now.is_finite() || now > start + start.abs() + 1.0
}

/// Formats a learning rate as people write it: `0.5`, `1e-6`, `0`.
fn rate(value: f64) -> String {
    if value == 0.0 || (1e-3..1e4).contains(&value) { value.to_string() } else { format!("{value:e}") }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns a warning if the held-out loss `name` is far above `start`: it is `value` after `step` steps. `None` for other metrics.
pub(super) fn of_evaluation(step: usize, settings: &Settings, name: &str, start: f64, value: f64) -> Option<String> {
    let diverges = settings.learning_rate > 0.0
        && name.contains("loss")
        && settings.smaller_is_better(name)
        && is_far_above(start, value);
    diverges.then(|| warning(step, settings, &format!("`{name}`"), start, value))
}

/// Returns a warning if the training loss has left its start: all of its last rows are far above the smallest of its first ones.
pub(super) fn of_losses(step: usize, settings: &Settings, losses: &[f64]) -> Option<String> {
    if settings.learning_rate == 0.0 || losses.len() < 2 * WINDOW {
        return None;
    }
    let least = |rows: &[f64]| rows.iter().copied().fold(f64::INFINITY, f64::min);
    let (first, last) = (least(&losses[..WINDOW]), &losses[losses.len() - WINDOW..]);
    is_far_above(first, least(last)).then(|| warning(step, settings, "the training loss", first, last[WINDOW - 1]))
}

/// Factor of growth that means an exploding loss. Online losses are around 0, or on the scale of the rewards for a critic, so that smaller
/// factors mean little.
const EXPLODED: f64 = 100.0;

/// Names of the losses of online methods.
const ONLINE_LOSSES: [&str; 3] = ["loss", "loss/policy_avg", "loss/value_avg"];

/// Returns a warning if an online run diverges. `logged` returns the values of a key in all rows so far.
///
/// - A loss explodes: the absolute values of its last rows are all above [`EXPLODED`] times (the smallest of its first rows plus 1).
/// - The policy collapses: the KL of its last rows is farther from 0 than [`FAR_KL`], and their reward is below that of the first row, which
///   the start sampled. A large KL alone is no sign, because a large reward costs KL. An estimate that far below 0 is one, because no
///   reward costs it.
pub(super) fn of_online(step: usize, settings: &Settings, logged: &dyn Fn(&str) -> Vec<f64>) -> Option<String> {
    // Without a learning rate, only the batches differ.
    if settings.learning_rate == 0.0 {
        return None;
    }
    let ends = |key: &str| {
        let values = logged(key);
        let last = values.len().checked_sub(WINDOW).filter(|&last| last >= WINDOW)?;
        Some((values[..WINDOW].to_vec(), values[last..].to_vec()))
    };
    for key in ONLINE_LOSSES {
        let Some((first, last)) = ends(key) else { continue };
        let start = first.iter().copied().reduce(|least, loss| if loss.abs() < least.abs() { loss } else { least })?;
        if last.iter().all(|loss| loss.abs() > EXPLODED * (start.abs() + 1.0)) {
            return Some(warning(step, settings, &format!("`{key}`"), start, last[WINDOW - 1]));
        }
    }
    let ((_, kls), (first, last)) = (ends("objective/kl")?, ends("reward")?);
    let start = first[0];
    let has_fallen = last.iter().all(|&reward| reward < start);
    let is_far = kls.iter().all(|&kl| kl.abs() > FAR_KL);
    let is_impossible = kls.iter().all(|&kl| kl < -FAR_KL);
    (is_impossible || is_far && has_fallen).then(|| {
        let fall = match has_fallen {
            true => format!(", and the reward of the sampled completions fell from {start:.4} to {:.4}", last[WINDOW - 1]),
            false => String::new(),
        };
        format!(
            "step {step}: the run diverges: the policy is far from its start ({}){fall}; stop it and lower the learning \
             rate ({})",
            distance(kls[WINDOW - 1]),
            rate(settings.learning_rate)
        )
    })
}

/// Formats the KL of a policy that is far from its start.
fn distance(kl: f64) -> String {
    let below = if kl < 0.0 { "; an estimate far below 0 is as bad as one far above" } else { "" };
    format!("KL {kl:.0} nats per completion{below}")
}

fn warning(step: usize, settings: &Settings, what: &str, start: f64, now: f64) -> String {
    format!(
        "step {step}: the run diverges: {what} is {now:.4} and was {start:.4} at the start; stop it and lower the learning \
         rate ({})",
        rate(settings.learning_rate)
    )
}

/// Facts about a run that its log lacks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    /// Whether the method samples completions and trains on their rewards.
    pub is_online: bool,
    /// Whether the reference follows the policy, so that the KL to it is not the distance from the start.
    pub reference_follows: bool,
    /// Whether the run was found to diverge while it trained.
    pub diverged: bool,
}

/// Explains that no evaluation was better than the start, with the likely cause. `None` if one was better or nothing was compared.
///
/// `best` is the best value of `settings.best_metric` and its step. `rows` is the whole log.
pub(super) fn no_improvement(
    best: Option<(usize, f64)>,
    rows: &[MetricsRow],
    settings: &Settings,
    facts: Facts,
) -> Option<String> {
    let name = &settings.best_metric;
    let (0, start) = best? else { return None };
    let after: Vec<f64> = rows.iter().filter(|row| row.step > 0).filter_map(|row| row.values.get(name)).collect();
    let last = *after.last()?;
    let nearest = after.into_iter().reduce(|best, value| if settings.is_better(value, best) { value } else { best })?;
    let closest = if nearest == last { String::new() } else { format!(", {nearest:.4} at its best") };
    Some(format!(
        "no evaluation beat the start: `{name}` was {start:.4} before training and is {last:.4} now{closest}; `best/` was \
         not written. {}",
        cause(start, last, rows, settings, facts)
    ))
}

/// Share of groups with equal rewards above which a run had no signal.
const MOSTLY_FLAT: f64 = 0.95;

/// Share of groups with equal rewards from which they are the likely cause of a reward that does not rise.
const OFTEN_FLAT: f64 = 0.5;

/// KL to the start in nats per completion above which a policy has lost its abilities. Estimates can be as far below 0.
const FAR_KL: f64 = 100.0;

/// KL to the start in nats per completion up to which a policy hardly moved. By Pinsker's inequality, the probability of no set of
/// completions differs by more than `sqrt(KL / 2)`, which is 7 % here.
const NEAR_KL: f64 = 0.01;

/// Share of the first training loss by which the last must be smaller for a model that memorizes. A fluctuation is smaller.
const MEMORIZED: f64 = 0.1;

/// Share by which a loss must change to have moved.
const MOVED: f64 = 1e-3;

/// Share by which equal rewards may differ in the log, because means and deviations are rounded.
const ROUNDING: f64 = 1e-6;

/// Returns true if all completions of a run had the same reward: `rewards` is its mean in every row, `stds` its standard deviation.
fn are_equal(rewards: &[f64], stds: &[f64]) -> bool {
    let Some(first) = rewards.first() else { return false };
    let tolerance = ROUNDING * first.abs();
    !stds.is_empty()
        && rewards.iter().all(|reward| (reward - first).abs() <= tolerance)
        && stds.iter().all(|std| std.abs() <= tolerance)
}

/// Advice against equal rewards.
const FINER_REWARD: &str = "use a reward with more levels, or other prompts";

/// Explains that all completions of a run, or of almost all groups, had the same reward. `None` if they did not. `trained` returns the values
/// of a key in the rows of training.
fn equal_rewards(trained: impl Fn(&str) -> Vec<f64>) -> Option<String> {
    // Methods without groups have no share of equal ones.
    if are_equal(&trained("reward"), &trained("reward_std")) {
        return Some(format!(
            "All completions had the same reward, so there was nothing to learn from: {FINER_REWARD}."
        ));
    }
    let share = flat_share(&trained).filter(|share| *share > MOSTLY_FLAT)?;
    let percent = 100.0 * share;
    Some(match percent > 99.95 {
        true => format!("In every group all completions had the same reward, so nothing was learned: {FINER_REWARD}."),
        false => format!(
            "In {percent:.0} % of the groups all completions had the same reward, so there was almost nothing to learn from: \
             {FINER_REWARD}. The few other groups still moved the weights."
        ),
    })
}

/// Returns the share of groups whose completions all had the same reward. `None` for methods without groups.
fn flat_share(trained: impl Fn(&str) -> Vec<f64>) -> Option<f64> {
    let shares = trained("frac_reward_zero_std");
    (!shares.is_empty()).then(|| mean(&shares))
}

/// Returns the KL to the reference at the start and at the end.
fn kl_to_reference(rows: &[MetricsRow]) -> Option<(f64, f64)> {
    let values = |key: &str| -> Vec<f64> {
        rows.iter().filter_map(|row| row.values.get(key)).filter(|kl| !kl.is_nan()).collect()
    };
    // Evaluations begin before the first step. The first row of training is a mean over steps that may have moved the policy.
    if let [start, .., end] = values("eval_kl")[..] {
        return Some((start, end));
    }
    let trained = values("objective/kl");
    let window = WINDOW.min(trained.len() / 2);
    (window > 0).then(|| (trained[0], mean(&trained[trained.len() - window..])))
}

/// Explains why an online run did not improve `name`. `kl` is the KL to the start, if it is known. `reward` is the mean reward of the first
/// and of the last completions.
fn no_rise(
    name: &str,
    kl: Option<f64>,
    trained: impl Fn(&str) -> Vec<f64>,
    reward: Option<(f64, f64)>,
    learning_rate: &str,
) -> String {
    let flat = flat_share(trained).filter(|share| *share >= OFTEN_FLAT).map(|share| {
        let percent = 100.0 * share;
        format!(
            "In {percent:.0} % of the groups all completions had the same reward, so there was nothing to learn from them: \
             {FINER_REWARD}."
        )
    });
    if let Some(kl) = kl
        && kl.abs() <= NEAR_KL
    {
        let near = format!("The policy hardly moved (KL {kl:.4} nats per completion)");
        return match flat {
            Some(flat) => format!("{near}. {flat}"),
            None => format!("{near}: the learning rate ({learning_rate}) is probably too small, or the run too short."),
        };
    }
    if let Some((before, now)) = reward
        && now > before
    {
        let rose = format!("The reward of the sampled completions rose from {before:.4} to {now:.4}");
        return match name.contains("reward") {
            true => format!(
                "{rose}, so the held-out prompts are too few to show it, or the policy only learned its own prompts: \
                 evaluate on more (`--max-eval-rows`)."
            ),
            false => format!("{rose}, but `{name}` measures something else."),
        };
    }
    let rewards = match reward {
        Some(_) => "The reward of the sampled completions did not rise",
        None => "The log has too few rows to compare rewards",
    };
    match (flat, kl) {
        (Some(flat), _) => format!("{rewards}. {flat}"),
        // A learning rate that moved the policy is not too small.
        (None, Some(kl)) => format!(
            "{rewards}. The policy moved (KL {kl:.2} nats per completion), so the run may be too short, or the learning rate \
             ({learning_rate}) too large."
        ),
        // The loss and the norm of the gradient do not show how far the policy moved.
        (None, None) => {
            format!(
                "{rewards}: the run may be too short, or the learning rate ({learning_rate}) too small or too large."
            )
        }
    }
}

/// Likely cause, derived from the losses, or from the KL and the rewards of sampled completions.
fn cause(start: f64, last: f64, rows: &[MetricsRow], settings: &Settings, facts: Facts) -> String {
    if settings.learning_rate == 0.0 {
        return "The learning rate is 0, so nothing was learned: set one above 0 (`--learning-rate`).".to_owned();
    }
    let learning_rate = rate(settings.learning_rate);
    let divergence = || format!("The run diverged: the learning rate ({learning_rate}) is too large.");
    let name = &settings.best_metric;
    if name.contains("loss") && settings.smaller_is_better(name) && is_far_above(start, last) {
        return divergence();
    }
    let trained = |key: &str| -> Vec<f64> {
        rows.iter().filter(|row| row.step > 0).filter_map(|row| row.values.get(key)).collect()
    };
    if facts.is_online
        && let Some(explanation) = equal_rewards(trained)
    {
        return explanation;
    }
    let window_of = |key: &str| {
        let values: Vec<f64> = trained(key).into_iter().filter(|value| !value.is_nan()).collect();
        let window = WINDOW.min(values.len() / 2);
        (window > 0).then(|| (mean(&values[..window]), mean(&values[values.len() - window..])))
    };
    if facts.is_online {
        let kl = kl_to_reference(rows);
        // A reference that was far from the start as well is another model.
        if let Some((start, kl)) = kl
            && kl.abs() > FAR_KL
            && start.abs() <= FAR_KL
        {
            return format!(
                "The policy is far from its start ({}): the learning rate ({learning_rate}) is too large.",
                distance(kl)
            );
        }
        if facts.diverged {
            return divergence();
        }
        // If the reference is another model than the start, the KL to it is not the distance from the start.
        let is_start = |kl: f64| kl.abs() <= NEAR_KL && !facts.reference_follows;
        let kl = kl.filter(|&(before, _)| is_start(before)).map(|(_, now)| now);
        return no_rise(name, kl, trained, window_of("reward"), &learning_rate);
    }
    let losses = window_of("loss");
    if facts.diverged || losses.is_some_and(|(before, now)| is_far_above(before, now)) {
        return divergence();
    }
    // Starts with the evaluation before training, which is the row of step 0.
    let held_out: Vec<f64> = rows.iter().filter_map(|row| row.values.get("eval_loss")).collect();
    let held_out = (held_out.len() > 1).then(|| (held_out[0], held_out[held_out.len() - 1]));
    // A metric may stay constant while everything else changes, such as the reward of texts that are all wrong. Training
    // losses come from different batches, so that they differ even if the weights stay.
    let (what, compared) = match held_out {
        Some(_) => ("held-out", held_out),
        None => ("training", losses),
    };
    let moved = compared.is_some_and(|(before, now)| (now - before).abs() > MOVED * before.abs());
    if (last - start).abs() <= 1e-4 * start.abs() && !moved {
        return format!(
            "The weights hardly moved: the learning rate ({learning_rate}) is probably too small, or the run too short."
        );
    }
    if let Some((before, now)) = held_out
        && before - now > MOVED * before.abs()
    {
        return format!(
            "The held-out loss fell from {before:.4} to {now:.4}, so the run is probably too short for `{}` to follow: train \
             for more steps, or evaluate on more rows (`--max-eval-rows`).",
            settings.best_metric
        );
    }
    let generalizes = held_out.is_some_and(|(before, now)| now < before);
    // A model cannot memorize rows that it saw once.
    let repeats = trained("epoch").last().is_none_or(|&epoch| epoch > 1.0);
    match losses {
        Some((before, now)) if moved && repeats && !generalizes && before - now >= MEMORIZED * before.abs() => format!(
            "The training loss fell from {before:.4} to {now:.4}, so the model memorizes its training rows: train for fewer \
             steps, on more rows, or with a smaller learning rate ({learning_rate})."
        ),
        Some(_) if !moved => format!(
            "The {what} loss hardly moved: the learning rate ({learning_rate}) is probably too small, or the run too short."
        ),
        _ => format!("The learning rate ({learning_rate}) is probably too large, or the run too short."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Metrics;
    use crate::settings::TrainConfig;

    fn rows(key: &str, values: &[f64]) -> Vec<MetricsRow> {
        let row = |(i, &value): (usize, &f64)| MetricsRow { step: i + 1, values: Metrics::from_iter([(key, value)]) };
        values.iter().enumerate().map(row).collect()
    }

    fn facts(is_online: bool, diverged: bool) -> Facts {
        Facts { is_online, reference_follows: false, diverged }
    }

    fn diagnosis(best: (usize, f64), metric: &str, evaluated: &[f64], trained: (&str, &[f64])) -> Option<String> {
        let settings = Settings::new(&TrainConfig::default(), 10, 5.0, metric);
        let all = [rows(metric, evaluated), rows(trained.0, trained.1)].concat();
        no_improvement(Some(best), &all, &settings, facts(trained.0 == "reward", false))
    }

    #[test]
    fn a_run_that_got_worse_says_so_with_the_likely_cause() {
        let text = diagnosis((0, 3.468), "eval_loss", &[100.0, 369.2], ("loss", &[3.4, 200.0])).expect("it got worse");
        assert!(text.starts_with(
            "no evaluation beat the start: `eval_loss` was 3.4680 before training and is 369.2000 now, 100.0000 at its best; \
             `best/` was not written."
        ), "{text}");
        assert!(text.ends_with("The run diverged: the learning rate (5) is too large."), "{text}");
        let text = diagnosis((0, 3.0), "eval_loss", &[3.5], ("loss", &[3.0, 1.0])).expect("it got worse");
        assert!(text.contains("now; `best/`") && text.contains("fell from 3.0000 to 1.0000"), "{text}");
        let text = diagnosis((0, 0.5), "eval_reward", &[0.25], ("reward", &[0.25, 0.5])).expect("it got worse");
        assert!(text.contains("rose from 0.2500 to 0.5000") && text.contains("--max-eval-rows"), "{text}");
        let text = diagnosis((0, 0.5), "eval_reward", &[0.25], ("reward", &[0.5, 0.25])).expect("it got worse");
        assert!(text.contains("did not rise: the run"), "{text}");
        let text = diagnosis((0, 0.5), "eval_reward", &[0.25], ("reward", &[0.5])).expect("it got worse");
        assert!(text.contains("too few rows to compare rewards: the run"), "{text}");
        let text = diagnosis((0, 0.5), "eval_bleu", &[0.25], ("reward", &[0.25, 0.5])).expect("it got worse");
        assert!(text.ends_with("rose from 0.2500 to 0.5000, but `eval_bleu` measures something else."), "{text}");
        let settings = Settings::new(&TrainConfig::default(), 10, 5.0, "eval_reward");
        let all = [rows("eval_reward", &[1.0]), rows("frac_reward_zero_std", &[1.0, 0.96])].concat();
        let text = no_improvement(Some((0, 1.0)), &all, &settings, facts(true, false)).expect("nothing got better");
        assert!(text.contains("In 98 % of the groups") && !text.contains("hardly moved"), "{text}");
        let text = diagnosis((0, 2.0), "eval_loss", &[2.00001], ("loss", &[2.0])).expect("nothing moved");
        assert!(text.contains("hardly moved") && text.contains("too small"), "{text}");
    }

    #[test]
    fn a_metric_that_stays_does_not_hide_that_the_rest_moved() {
        let text = diagnosis((0, 0.5), "eval_accuracy", &[0.5], ("loss", &[0.7, 1.0])).expect("nothing got better");
        assert!(
            !text.contains("hardly moved") && text.ends_with("(5) is probably too large, or the run too short."),
            "{text}"
        );
        let settings = Settings::new(&TrainConfig::default(), 10, 5.0, "eval_reward");
        let all = [rows("eval_reward", &[1.0]), rows("objective/kl", &[0.0, 900.0])].concat();
        let text = no_improvement(Some((0, 1.0)), &all, &settings, facts(true, true)).expect("nothing got better");
        assert!(text.ends_with("(KL 900 nats per completion): the learning rate (5) is too large."), "{text}");
    }

    #[test]
    fn a_run_that_diverged_was_not_too_short() {
        let diverged = "The run diverged: the learning rate (5) is too large.";
        let text = diagnosis((0, 0.5), "eval_accuracy", &[0.5], ("loss", &[0.7, 20.0])).expect("nothing got better");
        assert!(text.ends_with(diverged), "{text}");
        let settings = Settings::new(&TrainConfig::default(), 10, 5.0, "eval_accuracy");
        for (key, samples) in [("loss", false), ("reward", true)] {
            let all = [rows("eval_accuracy", &[0.5]), rows(key, &[0.7, 0.5])].concat();
            let cause =
                |diverged| no_improvement(Some((0, 0.5)), &all, &settings, facts(samples, diverged)).expect("a tie");
            assert!(cause(true).ends_with(diverged) && !cause(false).contains("diverged"), "{key}");
        }
    }

    #[test]
    fn a_model_memorizes_if_its_training_loss_alone_fell_by_a_tenth() {
        let settings = Settings::new(&TrainConfig::default(), 10, 1e-6, "eval_rewards/accuracies");
        let cause = |losses: &[f64], held_out: &[f64], epoch: f64| {
            let accuracies = rows("eval_rewards/accuracies", &[0.5]);
            let all = [accuracies, rows("loss", losses), rows("eval_loss", held_out), rows("epoch", &[epoch])].concat();
            no_improvement(Some((0, 0.75)), &all, &settings, facts(false, false)).expect("it got worse")
        };
        assert!(cause(&[1.0, 0.875], &[0.5, 0.6], 2.0).contains("memorizes"), "by more than a tenth");
        assert!(!cause(&[1.0, 0.91], &[0.5, 0.6], 2.0).contains("memorizes"), "by less");
        assert!(!cause(&[1.0, 0.5], &[0.5, 0.6], 1.0).contains("memorizes"), "it saw no row twice");
        let text = cause(&[1.0, 0.5], &[0.5, 0.4], 2.0);
        assert!(
            text.contains(
                "The held-out loss fell from 0.5000 to 0.4000, so the run is probably too short for \
                 `eval_rewards/accuracies` to follow"
            ),
            "{text}"
        );
        let text = cause(&[0.70314, 0.70311], &[0.70314, 0.70312], 2.0);
        assert!(
            text.ends_with(
                "The held-out loss hardly moved: the learning rate (1e-6) is probably too small, or the run too short."
            ),
            "{text}"
        );
    }

    #[test]
    fn weights_that_stay_are_not_said_to_be_far_off() {
        let cause = |learning_rate: f64, samples: bool| {
            let settings = Settings::new(&TrainConfig::default(), 10, learning_rate, "eval_loss");
            let held_out =
                [0, 1].map(|step| MetricsRow { step, values: Metrics::from_iter([("eval_loss", 3.0)]) }).into();
            let all = [held_out, rows("loss", &[3.0, 2.5, 6.0])].concat();
            no_improvement(Some((0, 3.0)), &all, &settings, facts(samples, false)).expect("nothing got better")
        };
        for samples in [false, true] {
            assert!(
                cause(0.0, samples)
                    .ends_with("The learning rate is 0, so nothing was learned: set one above 0 (`--learning-rate`).")
            );
        }
        let text = cause(1e-30, false);
        assert!(
            text.ends_with(
                "The weights hardly moved: the learning rate (1e-30) is probably too small, or the run too short."
            ),
            "{text}"
        );
        let settings = Settings::new(&TrainConfig::default(), 10, 0.0, "eval_loss");
        assert_eq!(of_losses(6, &settings, &[1.0, 1.0, 1.0, 90.0, 90.0, 90.0]), None);
        assert_eq!(of_online(6, &settings, &|_| vec![0.0, 0.0, 0.0, 1e9, 1e9, 1e9]), None);
        assert_eq!((rate(0.0), rate(1e-6)), ("0".to_owned(), "1e-6".to_owned()));
    }

    #[test]
    fn equal_rewards_of_methods_without_groups_are_found() {
        let settings = Settings::new(&TrainConfig::default(), 10, 1e-6, "eval_reward");
        let cause = |rewards: &[f64], stds: &[f64]| {
            let all = [rows("eval_reward", &[0.0]), rows("reward", rewards), rows("reward_std", stds)].concat();
            no_improvement(Some((0, 0.0)), &all, &settings, facts(true, false)).expect("nothing got better")
        };
        let expected = "All completions had the same reward, so there was nothing to learn from: use a reward with more \
                        levels, or other prompts.";
        for reward in [0.0, 0.1, -2.0] {
            assert!(cause(&[reward, reward, reward], &[0.0, 0.0, 0.0]).ends_with(expected), "{reward}");
        }
        for (rewards, stds) in [([0.0, 0.0], [0.0, 0.5]), ([0.0, 1.0], [0.0, 0.0])] {
            assert!(!cause(&rewards, &stds).contains("the same reward"), "{rewards:?} {stds:?}");
        }
    }

    #[test]
    fn the_kl_and_the_flat_groups_explain_an_online_run_and_its_losses_do_not() {
        let settings = Settings::new(&TrainConfig::default(), 10, 1e-6, "eval_reward");
        // Losses of GRPO are rounding errors around 0, which change by any factor.
        let cause = |kls: &[f64], flat: &[f64], rewards: &[f64], reference_follows: bool| {
            let evaluated = |(i, &kl): (usize, &f64)| MetricsRow {
                step: 10 * i,
                values: Metrics::from_iter([("eval_reward", 0.25), ("eval_kl", kl)]),
            };
            let steps = [("loss", &[-4.2e-8, 0.0, 0.0, 1e-9][..]), ("reward", rewards), ("frac_reward_zero_std", flat)];
            let steps = steps.into_iter().flat_map(|(key, values)| rows(key, values));
            let all: Vec<MetricsRow> = kls.iter().enumerate().map(evaluated).chain(steps).collect();
            let facts = Facts { is_online: true, reference_follows, diverged: false };
            let text = no_improvement(Some((0, 0.25)), &all, &settings, facts).expect("nothing got better");
            text.split_once("was not written. ").expect("a cause follows").1.to_owned()
        };
        let (mostly_flat, varied, same) = ([1.0, 1.0, 0.75, 1.0], [0.25; 4], [0.25, 0.0, 0.0, 0.25]);
        assert_eq!(
            cause(&[0.0, 8e-4], &mostly_flat, &same, false),
            "The policy hardly moved (KL 0.0008 nats per completion). In 94 % of the groups all completions had the same \
             reward, so there was nothing to learn from them: use a reward with more levels, or other prompts."
        );
        let too_small = "The policy hardly moved (KL 0.0008 nats per completion): the learning rate (1e-6) is probably too \
                         small, or the run too short.";
        assert_eq!(cause(&[0.0, 8e-4], &varied, &same, false), too_small);
        assert_eq!(cause(&[0.0, 8e-4], &varied, &[0.0, 0.25], false), too_small, "the prompts differ, not the policy");
        assert_eq!(
            cause(&[0.0, 300.0], &varied, &same, false),
            "The policy is far from its start (KL 300 nats per completion): the learning rate (1e-6) is too large."
        );
        assert_eq!(
            cause(&[0.0, 20.0], &varied, &same, false),
            "The reward of the sampled completions did not rise. The policy moved (KL 20.00 nats per completion), so the run \
             may be too short, or the learning rate (1e-6) too large."
        );
        assert_eq!(
            cause(&[0.0, 20.0], &mostly_flat, &same, false),
            "The reward of the sampled completions did not rise. In 94 % of the groups all completions had the same reward, so \
             there was nothing to learn from them: use a reward with more levels, or other prompts."
        );
        assert!(cause(&[0.0, 20.0], &mostly_flat, &[0.0, 0.25], false).contains("rose from 0.0000 to 0.2500"));
        let unknown = "The reward of the sampled completions did not rise: the run may be too short, or the learning rate \
                       (1e-6) too small or too large.";
        assert_eq!(cause(&[0.0, 8e-4], &varied, &same, true), unknown, "the reference followed the policy");
        assert_eq!(
            cause(&[5.0, 5.0008], &varied, &same, false),
            unknown,
            "the reference is another model than the start"
        );
        assert_eq!(cause(&[150.0, 151.0], &varied, &same, false), unknown, "so is this one");
        let logged = [rows("eval_reward", &[0.25]), rows("objective/kl", &[0.0, 2.0, 5.0, 5.0, 5.0, 5.0])].concat();
        let text = no_improvement(Some((0, 0.25)), &logged, &settings, facts(true, false)).expect("nothing got better");
        assert!(text.contains("(KL 5.00 nats per completion)"), "it moved in its first steps: {text}");
        // A row of ten steps. The evaluation before them shows that the policy started from the reference.
        let logged = rows("objective/kl", &[1.0, 2.0]);
        let evaluated = [0, 10].map(|step| MetricsRow { step, values: Metrics::from_iter([("eval_kl", step as f64)]) });
        let logged = [rows("eval_reward", &[0.25]), logged, evaluated.into()].concat();
        let text = no_improvement(Some((0, 0.25)), &logged, &settings, facts(true, false)).expect("nothing got better");
        assert!(text.contains("(KL 10.00 nats per completion)"), "{text}");
    }

    #[test]
    fn losses_diverge_when_all_of_the_last_are_far_above_the_least_of_the_first() {
        let settings = Settings::new(&TrainConfig::default(), 10, 5.0, "eval_loss");
        let diagnosis = |losses: &[f64]| of_losses(6, &settings, losses);
        // A jump at the second step does not belong to the start.
        let text = diagnosis(&[10.73, 900.0, 1200.0, 1000.0, 990.0, 980.0]).expect("it diverges");
        assert!(text.contains("the training loss is 980.0000 and was 10.7300 at the start"), "{text}");
        assert_eq!(diagnosis(&[3.0, 3.0, 3.0, 90.0, 3.0, 90.0]), None, "one that comes back");
        assert_eq!(diagnosis(&[3.0, 90.0, 90.0, 90.0]), None, "too few");
    }

    #[test]
    fn an_online_run_diverges_when_a_loss_explodes() {
        let settings = Settings::new(&TrainConfig::default(), 10, 5.0, "eval_reward");
        let diagnosis = |key: &str, values: &[f64]| {
            of_online(6, &settings, &|requested| if requested == key { values.to_vec() } else { Vec::new() })
        };
        let text =
            diagnosis("loss/value_avg", &[0.5, 9.0, 0.25, 126.0, 2e3, 4e4]).expect("all are above 100 · (0.25 + 1)");
        assert_eq!(
            text,
            "step 6: the run diverges: `loss/value_avg` is 40000.0000 and was 0.2500 at the start; stop it and lower the learning \
             rate (5)"
        );
        // Policy losses can be negative.
        assert!(diagnosis("loss", &[-0.5, 0.0, 0.25, 101.0, -300.0, 151.0]).is_some());
        assert_eq!(diagnosis("loss", &[-0.5, 0.0, 0.25, 99.0, -300.0, 151.0]), None, "one that comes back");
        assert_eq!(diagnosis("loss", &[1e9, -1e9, 1e9, 1e9, 1e9, 1e9]), None, "it began so");
        assert_eq!(diagnosis("loss", &[0.0, 0.0, 0.0, 1e9, 1e9]), None, "too few");
        assert_eq!(diagnosis("entropy", &[0.0, 0.0, 0.0, 1e9, 1e9, 1e9]), None, "no loss");
    }

    #[test]
    fn an_online_run_diverges_when_it_is_far_and_its_reward_fell() {
        let settings = Settings::new(&TrainConfig::default(), 10, 5.0, "eval_reward");
        let diagnosis = |kls: &[f64], rewards: &[f64]| {
            of_online(6, &settings, &|requested| match requested {
                "objective/kl" => kls.to_vec(),
                "reward" => rewards.to_vec(),
                _ => Vec::new(),
            })
        };
        let far = [0.0, 5.0, 300.0, 400.0, 500.0, 600.0];
        let text = diagnosis(&far, &[0.5, 0.0, 0.125, 0.25, 0.0, 0.125]).expect("it diverges");
        assert!(
            text.contains(
                "(KL 600 nats per completion), and the reward of the sampled completions fell from 0.5000 to 0.1250;"
            ),
            "{text}"
        );
        assert_eq!(diagnosis(&far, &[0.5, 0.25, 0.5, 0.75, 0.9, 1.0]), None, "its reward rises");
        assert_eq!(diagnosis(&far, &[0.5, 0.0, 0.0, 0.0, 0.5, 0.0]), None, "one row is as good as the start");
        assert_eq!(
            diagnosis(&[0.0, 5.0, 300.0, 99.0, 500.0, 600.0], &[0.5, 0.5, 0.5, 0.0, 0.0, 0.0]),
            None,
            "one is near"
        );
        assert_eq!(diagnosis(&[], &[0.5, 0.5, 0.5, 0.0, 0.0, 0.0]), None, "without a reference");
        let below = far.map(|kl| -kl);
        let text = diagnosis(&below, &[0.5, 0.0, 0.125, 0.25, 0.0, 0.125]).expect("it diverges");
        assert!(
            text.contains(
                "(KL -600 nats per completion; an estimate far below 0 is as bad as one far above), and the reward of the \
                 sampled completions fell from 0.5000 to 0.1250;"
            ),
            "{text}"
        );
        let text = diagnosis(&below, &[0.0; 6]).expect("no reward costs a KL below 0");
        assert!(text.contains("one far above); stop it and lower the learning rate (5)"), "{text}");
        assert_eq!(diagnosis(&[0.0, 5.0, -300.0, -99.0, -500.0, -600.0], &[0.0; 6]), None, "one is near");
    }

    #[test]
    fn nothing_is_said_of_a_run_that_got_better_or_was_never_evaluated() {
        assert_eq!(diagnosis((2, 3.0), "eval_loss", &[3.5, 3.0], ("loss", &[3.0])), None);
        assert_eq!(diagnosis((0, 3.0), "eval_loss", &[], ("loss", &[3.0])), None);
    }

    #[test]
    fn a_loss_diverges_when_it_is_twice_its_start_and_more() {
        let far = [(0.69, 2.0, false), (0.69, 2.5, true), (3.468, 369.2, true), (0.0, 0.9, false), (-1.0, 0.5, false)];
        for (start, now, expected) in far {
            assert_eq!(is_far_above(start, now), expected, "{start} → {now}");
        }
        assert!(is_far_above(1.0, f64::NAN) && is_far_above(1.0, f64::INFINITY));
    }
}
