use serde_json::Map;

use super::*;
use crate::algorithm::Experience;
use crate::reward::Count;
use crate::rollout::{Prompt, Rollout, Rollouts, StopReason};

fn healthy() -> StepStats {
    let part = |name: &str, sign: f64| PartStats { name: name.into(), sign, mean: 1.0, std: 0.5 };
    StepStats {
        length: 30.0,
        entropy: 2.0,
        flat_groups: Some(0.1),
        repetition: 0.02,
        cut_off: 0.2,
        kl: Some(0.5),
        parts: vec![part("helpful", 1.0), part("harmless", 1.0), part("length", -1.0)],
        unread: vec![Unread { name: "facts".into(), lost: 0.0, of: 50.0 }],
    }
}

/// Kinds that are reported at each step, with steps counted from 1.
fn kinds_by_step(steps: impl IntoIterator<Item = StepStats>) -> Vec<(usize, &'static str)> {
    let mut watch = Watch::default();
    let steps = steps.into_iter().enumerate();
    steps.flat_map(|(i, stats)| watch.observe(stats).into_iter().map(move |warning| (i + 1, warning.kind))).collect()
}

fn turned(mut change: impl FnMut(&mut StepStats)) -> StepStats {
    let mut stats = healthy();
    change(&mut stats);
    stats
}

/// Ten healthy steps, then ten steps like `later`.
fn after_ten(later: StepStats) -> impl Iterator<Item = StepStats> {
    std::iter::repeat_n(healthy(), 10).chain(std::iter::repeat_n(later, 10))
}

#[test]
fn a_healthy_run_is_left_alone() {
    assert_eq!(kinds_by_step(std::iter::repeat_n(healthy(), 100)), []);
    // The same without a reference, groups and components.
    let plain = StepStats { flat_groups: None, kl: None, parts: Vec::new(), ..healthy() };
    assert_eq!(kinds_by_step(std::iter::repeat_n(plain, 100)), []);
    assert_eq!(kinds_by_step(std::iter::repeat_n(StepStats::default(), 100)), [], "nor is a run that shows nothing");
}

#[test]
fn each_kind_fires_past_its_bound_and_not_before() {
    let check = |kind: &'static str, quiet: fn(&mut StepStats), loud: fn(&mut StepStats)| {
        assert_eq!(kinds_by_step(after_ten(turned(quiet))), [], "{kind}");
        let found = kinds_by_step(after_ten(turned(loud)));
        assert_eq!(found.iter().map(|(_, kind)| *kind).collect::<Vec<_>>(), [kind]);
    };
    check("length_drift", |stats| stats.length = 44.9, |stats| stats.length = 45.1);
    check("length_drift", |stats| stats.length = 20.1, |stats| stats.length = 19.9);
    check("entropy_collapse", |stats| stats.entropy = 0.61, |stats| stats.entropy = 0.59);
    check("flat_groups", |stats| stats.flat_groups = Some(0.49), |stats| stats.flat_groups = Some(0.51));
    check("repetition", |stats| stats.repetition = 0.29, |stats| stats.repetition = 0.31);
    check("cut_off", |stats| stats.cut_off = 0.5, |stats| stats.cut_off = 0.51);
    // 30 tokens: 0.5 nats per token are 15 per completion.
    check("kl_bounds", |stats| stats.kl = Some(14.9), |stats| stats.kl = Some(15.1));
    check("kl_bounds", |stats| stats.kl = Some(-0.9), |stats| stats.kl = Some(-1.1));
    // The components have a spread of 0.5: the bound is a quarter up and a quarter down.
    check(
        "parts_diverge",
        |stats| (stats.parts[0].mean, stats.parts[1].mean) = (9.0, 0.8),
        |stats| (stats.parts[0].mean, stats.parts[1].mean) = (1.3, 0.7),
    );
    // 50 inputs per step.
    check("unread", |stats| stats.unread[0].lost = 0.49, |stats| stats.unread[0].lost = 0.51);
    // A component with a negative weight improves by falling.
    check(
        "parts_diverge",
        |stats| (stats.parts[0].mean, stats.parts[2].mean) = (9.0, 0.0),
        |stats| (stats.parts[0].mean, stats.parts[2].mean) = (9.0, 2.0),
    );
}

#[test]
fn a_kl_far_below_zero_has_the_text_of_the_end_of_a_run() {
    let steps: Vec<StepStats> = std::iter::repeat_n(turned(|stats| stats.kl = Some(-643.0)), 5).collect();
    let reading = kl_bounds(&[], &steps).unwrap();
    let expected = format!(
        "the KL to the reference is -643.00 nats per completion over the last 5 steps, which is {FAR_BELOW_ZERO}"
    );
    assert_eq!((reading.value, reading.message), (643.0, expected));
}

#[test]
fn comparisons_wait_for_two_windows_and_bounds_for_a_few_steps() {
    let collapsed = turned(|stats| stats.entropy = 0.0);
    assert_eq!(kinds_by_step(after_ten(collapsed)), [(20, "entropy_collapse")]);
    let repeating = turned(|stats| stats.repetition = 0.9);
    assert_eq!(kinds_by_step(std::iter::repeat_n(repeating, 30)), [(5, "repetition")]);
}

#[test]
fn a_kind_is_said_once_until_it_recovers() {
    let at = |repetition: f64, steps: usize| std::iter::repeat_n(turned(|stats| stats.repetition = repetition), steps);
    // The mean over ten steps exceeds 0.3 at the fourth step of 0.9 (0.36), then falls below 0.2 and rises again.
    let steps =
        at(0.0, 10).chain(at(0.9, 10)).chain(at(0.25, 30)).chain(at(0.9, 10)).chain(at(0.1, 10)).chain(at(0.9, 10));
    assert_eq!(kinds_by_step(steps), [(14, "repetition"), (73, "repetition")]);
}

#[test]
fn a_resumed_watch_says_the_same() {
    let steps: Vec<StepStats> = (0..60)
        .map(|i| {
            turned(|stats| {
                stats.length = 30.0 + f64::from(i) / 3.0;
                stats.entropy = 2.0 / f64::from(1 + i);
                stats.repetition = 0.4 * (f64::from(i) / 7.0).sin().abs();
                stats.parts[1].mean = 1.0 - 0.1f64 * f64::from(i) / 3.0;
                stats.parts[0].mean = 1.0 + f64::from(i) / 3.0;
            })
        })
        .collect();
    let mut whole = Watch::default();
    let expected: Vec<_> = steps.iter().map(|stats| whole.observe(stats.clone())).collect();
    assert!(expected.iter().flatten().count() > 4);
    for cut in 0..steps.len() {
        let mut before = Watch::default();
        let mut found: Vec<_> = steps[..cut].iter().map(|stats| before.observe(stats.clone())).collect();
        let text = serde_json::to_string(&before).unwrap();
        let mut after: Watch = serde_json::from_str(&text).unwrap();
        found.extend(steps[cut..].iter().map(|stats| after.observe(stats.clone())));
        assert_eq!((found == expected, after == whole), (true, true), "cut at {cut}");
    }
}

#[test]
fn a_watch_of_a_run_that_did_not_look_for_cut_completions_goes_on() {
    let mut watch = Watch::default();
    watch.observe(healthy());
    let mut kept = serde_json::to_value(&watch).unwrap();
    for stats in ["first", "last"] {
        assert_eq!(kept[stats][0].as_object_mut().unwrap().remove("cut_off"), Some(0.2.into()));
    }
    let found: Watch = serde_json::from_value(kept).unwrap();
    assert_eq!((found.first[0].cut_off, found.first[0].length), (0.0, 30.0));
}

#[test]
fn messages_say_what_was_found() {
    let message = |later: StepStats| {
        let mut watch = Watch::default();
        after_ten(later).flat_map(|stats| watch.observe(stats)).map(|warning| warning.message).next().unwrap()
    };
    assert_eq!(
        message(turned(|stats| stats.length = 60.0)),
        "completions became longer: 60.0 tokens on average over the last 10 steps, 30.0 over the first 10"
    );
    assert_eq!(
        message(turned(|stats| (stats.parts[0].mean, stats.parts[1].mean) = (2.0, -1.0))),
        "parts of the reward diverge between the first 10 and the last 10 steps: `helpful` got better (1.000 to \
         2.000), `harmless` got worse (1.000 to -1.000)"
    );
    assert_eq!(
        message(turned(|stats| stats.unread[0].lost = 4.0)),
        "texts are longer than `facts` can read: 1.6 % of the text to judge over the last 10 steps was cut off, and \
         segments that are cut off score 0; shorten passages or prompts, or raise its `max_length` where the model has \
         the positions"
    );
}

#[test]
fn repeated_n_grams_are_counted() {
    // 1 2 3 4 | 2 3 4 5 | 3 4 5 6
    assert_eq!(repeated(&[1, 2, 3, 4, 5, 6]), 0.0);
    // 1 1 1 1 three times: one of three is distinct.
    assert_eq!(repeated(&[1; 6]), 1.0 - 1.0 / 3.0);
    // 1 2 1 2 | 2 1 2 1 | 1 2 1 2 | 2 1 2 1
    assert_eq!(repeated(&[1, 2, 1, 2, 1, 2, 1]), 0.5);
    assert_eq!(repeated(&[1, 2, 3]), 0.0);
}

#[test]
fn what_a_step_shows_is_arithmetic_on_its_rollouts() {
    // Completions of five or more ids are cut off.
    let rollout = |prompt: usize, ids: &[u32], logprob: f32| {
        let stop = if ids.len() >= 5 { StopReason::Length } else { StopReason::StopId };
        Rollout { logprobs: vec![logprob; ids.len()], ..Rollout::one_turn(prompt, "", ids.to_vec(), stop) }
    };
    let prompt = |row| Prompt {
        row,
        text: String::new(),
        ids: vec![1],
        encoder_reads_prompt: false,
        messages: None,
        columns: Map::new(),
    };
    let rollouts = Rollouts {
        prompts: vec![prompt(0), prompt(1)],
        rollouts: vec![
            rollout(0, &[1; 6], -1.0),
            rollout(0, &[1, 2], -2.0),
            rollout(1, &[3], -0.5),
            rollout(1, &[4, 5, 6], -1.5),
        ],
        group_size: 2,
        tokenizer: None,
    };
    let reference = rollouts.rollouts.iter().map(|rollout| vec![-2.0; rollout.logprobs.len()]).collect();
    let rewards = [1.0, 2.0, 3.0, 3.0].into_iter().zip(&rollouts.rollouts);
    let rewards =
        rewards.map(|(reward, rollout)| Some([vec![0.0; rollout.counted() - 1], vec![reward]].concat())).collect();
    let experience = Experience::new(rollouts, rewards, Some(reference));
    let score = |parts: &[(&str, f32)]| {
        let part = |&(name, value): &(&str, f32)| {
            let weight = if name == "b" { -0.5 } else { 1.0 };
            reward::RewardPart { name: name.to_owned(), weight, rewards_t: vec![value] }
        };
        Score { parts: parts.iter().map(part).collect(), ..Score::default() }
    };
    let mut scores = [score(&[("a", 1.0), ("b", 5.0)]), score(&[("a", 3.0)]), score(&[("a", f32::NAN)]), score(&[])];
    scores[0].counts =
        vec![Count::new("a/unread", 1.0, 4), Count::new("b/cut", 0.0, 1), Count::new("a/segments", 4.0, 1)];
    scores[1].counts = vec![Count::new("a/unread", 2.0, 3)];
    let stats = StepStats::of(&experience, &scores, experience.kls().as_deref());
    // 6 + 2 + 1 + 3 = 12 tokens with −Σ logprob = 6 + 4 + 0.5 + 4.5 = 15.
    // KL: 6 · 1 + 2 · 0 + 1 · 1.5 + 3 · 0.5 = 9 nats in 4 completions. Of six equal ids, two of three 4-grams repeat.
    assert_eq!((stats.length, stats.entropy, stats.kl), (3.0, 1.25, Some(2.25)));
    assert_eq!((stats.flat_groups, stats.cut_off), (Some(0.5), 0.25));
    assert!((stats.repetition - (2.0 / 3.0) / 4.0).abs() < 1e-15);
    // 1 and 3 differ by 1 from their mean; with one degree of freedom the variance is 2.
    let parts: Vec<_> = stats.parts.iter().map(|part| (part.name.as_str(), part.sign, part.mean, part.std)).collect();
    assert_eq!(parts, [("a", 1.0, 2.0, 2f64.sqrt()), ("b", -1.0, 5.0, 0.0)]);
    let unread: Vec<_> = stats.unread.iter().map(|unread| (unread.name.as_str(), unread.lost, unread.of)).collect();
    assert_eq!(unread, [("a", 3.0, 7.0), ("b", 0.0, 1.0)]);
}
