//! Rules for the schedule of the learning rate.

use crate::config::RunConfig;
use crate::method::Problems;
use crate::settings::{LrSchedule, WarmupStableDecay};

const SCHEDULE: &str = "train.lr_schedule";
const PEAK: &str = "train.learning_rate";

pub(super) fn check(problems: &mut Problems<'_>, config: &RunConfig) {
    let train = &config.train;
    let peak = train.learning_rate.unwrap_or(config.method.method().defaults().learning_rate);
    let name = train.lr_schedule.name();
    let key = |own: &str| format!("{SCHEDULE}.{name}.{own}");
    match &train.lr_schedule {
        LrSchedule::Linear | LrSchedule::Cosine | LrSchedule::Constant => {}
        LrSchedule::CosineWithMinLr(keys) => {
            lowest(problems, name, (keys.min_lr, keys.min_lr_ratio), peak);
            problems.above_zero(&key("num_cycles"), keys.num_cycles);
        }
        LrSchedule::CosineWarmupWithMinLr(keys) => {
            lowest(problems, name, (keys.min_lr, keys.min_lr_ratio), peak);
            problems.above_zero(&key("num_cycles"), keys.num_cycles);
            problems.within(&key("warmup_lr_ratio"), keys.warmup_lr_ratio.unwrap_or(0.0), 0.0..=1.0);
        }
        LrSchedule::CosineWithRestarts(keys) => problems.at_least(&key("num_cycles"), keys.num_cycles, 1),
        LrSchedule::Polynomial(keys) => {
            problems.above_zero(&key("power"), keys.power);
            let end = key("lr_end");
            problems.at_least(&end, keys.lr_end, 0.0);
            problems.require(keys.lr_end < peak, &[&end, SCHEDULE, PEAK], || {
                let message = format!("`{end}` is {:?}, but must be below `{PEAK}` ({peak:?})", keys.lr_end);
                (message, Some("set a smaller `lr_end`: 0 falls to 0".into()))
            });
        }
        LrSchedule::InverseSqrt(keys) => problems.at_least(&key("timescale"), keys.timescale.unwrap_or(1), 1),
        LrSchedule::WarmupStableDecay(keys) => {
            problems.at_least(&key("decay_steps"), keys.decay_steps, 0.0);
            problems.at_least(&key("stable_steps"), keys.stable_steps.unwrap_or(0.0), 0.0);
            problems.within(&key("min_lr_ratio"), keys.min_lr_ratio, 0.0..=1.0);
            problems.above_zero(&key("num_cycles"), keys.num_cycles);
            length(problems, config, keys);
        }
    }
}

/// Checks that one of `min_lr` and `min_lr_ratio` is given, and that the learning rate falls to it.
fn lowest(problems: &mut Problems<'_>, name: &str, (rate, ratio): (Option<f64>, Option<f64>), peak: f64) {
    let [of_rate, of_ratio] = ["min_lr", "min_lr_ratio"].map(|own| format!("{SCHEDULE}.{name}.{own}"));
    problems.require(rate.is_some() || ratio.is_some(), &[SCHEDULE], || {
        let message = format!("`{SCHEDULE}` is `{name}`, but its lowest learning rate is not given");
        (
            message,
            Some(format!("write `lr_schedule: {{ {name}: {{ min_lr_ratio: 0.1 }} }}` for a tenth of the highest")),
        )
    });
    problems.require(rate.is_none() || ratio.is_none(), &[&of_rate, &of_ratio], || {
        let message = format!("`{of_rate}` and `{of_ratio}` are both given, but each sets the lowest learning rate");
        (message, Some("leave one of them out".into()))
    });
    problems.within(&of_ratio, ratio.unwrap_or(0.0), 0.0..=1.0);
    let rate = rate.unwrap_or(0.0);
    problems.at_least(&of_rate, rate, 0.0);
    problems.require(rate <= peak, &[&of_rate, PEAK], || {
        let message = format!("`{of_rate}` is {rate:?}, but must be at most `{PEAK}` ({peak:?})");
        (message, Some("`min_lr_ratio` gives the lowest learning rate as a ratio of the highest".into()))
    });
}

/// Checks that warm-up and decay fit into the run. Without `train.max_steps`, the run checks this when it has counted its rows.
fn length(problems: &mut Problems<'_>, config: &RunConfig, keys: &WarmupStableDecay) {
    let train = &config.train;
    let decay = format!("{SCHEDULE}.warmup_stable_decay.decay_steps");
    let places = [decay.as_str(), "train.warmup_steps", "train.max_steps"];
    if let Some(Err(message)) = train.max_steps.map(|steps| train.lr_schedule.check_length(train.warmup_steps, steps)) {
        problems.require(false, &places, || (format!("`{decay}` is {:?}, but {message}", keys.decay_steps), None));
    }
}
